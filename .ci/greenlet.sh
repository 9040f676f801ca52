# The stand-in for greenlet: greenlet's own tests, and real programs on it. Sourced by run.

# greenlet_suite DIR [OPTION...]: greenlet's released tests in a tree made by install_editable.
greenlet_suite() {
    local dir=$1
    shift
    step "greenlet's own tests on the stand-in, $("$dir/.venv/bin/python" --version)"
    "$dir/.venv/bin/python" -m pip install -qq greenlet psutil objgraph
    "$dir/.venv/bin/python" "$dir/tests/standin/suite.py" "$@"
}

# Programs and tests of others, in their newest releases and unmodified. All of it talks to 127.0.0.1 only.
greenlet_programs() {
    local place=$SCRATCH/standin python on name
    python=$place/.venv/bin/python
    on=(env -u PYTEST_ADDOPTS "$python" -m pyfiber greenlet) # the options are for our tests
    "$python" -m pip install -qq --upgrade gevent sqlalchemy aiosqlite greenback trio anyio eventlet playwright greenlet
    step "random programs on the stand-in and on greenlet"
    timeout 600 "$python" "$place/tests/standin/random_programs.py"

    for name in gevent sqlalchemy eventlet playwright; do
        step "a program of $name on the stand-in"
        timeout 300 "${on[@]}" "$place/tests/standin/${name}_program.py"
    done

    step "gevent's own tests on the stand-in"
    timeout 1800 "$python" "$place/tests/standin/gevent_suite.py"

    # Its asyncio tests, and those of dialects, the engine and the ORM, whose every statement then goes through greenlets.
    step "SQLAlchemy's own tests over aiosqlite on the stand-in"
    mkdir "$SCRATCH/sdists"
    "$python" -m pip download -qq --no-deps --no-build-isolation --no-binary :all: -d "$SCRATCH/sdists" sqlalchemy
    tar -xzf "$SCRATCH"/sdists/sqlalchemy-*.tar.gz -C "$SCRATCH/sdists"
    (cd "$SCRATCH"/sdists/sqlalchemy-*/ && timeout 1200 "${on[@]}" -m pytest -q -rN -p no:logging -p no:cacheprovider \
        --dburi 'sqlite+aiosqlite:///:memory:' test/ext/asyncio test/base/test_concurrency.py test/dialect/test_suite.py \
        test/dialect/sqlite test/engine/test_{ddlevents,execute,reconnect,reflection,transaction}.py \
        test/orm/test_{session,transaction,unitofwork}.py)

    step "greenback's own tests on the stand-in"
    (cd "$SCRATCH" && timeout 300 "${on[@]}" -m pytest -q -p no:cacheprovider --pyargs greenback)
}

greenlet_full() {
    install_editable python3 "$SCRATCH/standin"
    greenlet_suite "$SCRATCH/standin" --leakchecks
    greenlet_programs
}
