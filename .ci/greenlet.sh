# The stand-in for greenlet: greenlet's own tests, and real programs on it. Sourced by run.

# greenlet_suite DIR [OPTION...]: greenlet's released tests in a tree made by install_editable.
greenlet_suite() {
    local dir=$1
    shift
    step "greenlet's own tests on the stand-in, $("$dir/.venv/bin/python" --version)"
    "$dir/.venv/bin/python" -m pip install -qq greenlet psutil objgraph
    "$dir/.venv/bin/python" "$dir/tests/standin/suite.py" "$@"
}

# gevent's own test files that need no network beyond this machine and no exact timing.
GEVENT_TESTS='
    GreenletExit all backdoor close_backend_fd contextvars core core_async core_callback core_fork core_loop_run
    core_stat core_watcher destroy destroy_default_loop doctests environ event events exc_info execmodules fileobject
    greenio greenlet greenletset greenness hub hub_join issue112 issue1686 issue230 issue302monkey issue330 issue467
    issue6 issue600 issue639 iwait joinall local lock loop_callback memleak monkey nondefaultloop order
    os pool pywsgi queue real_greenlet refcount select selectors semaphore server signal sleep0 socket socketpair
    subprocess_interrupted systemerror thread threading threading_2 threading_before_monkey
    threading_holding_lock_while_monkey threading_monkey_in_thread threading_native_before_monkey
    threading_patched_local threading_vs_settrace threadpool util'

# Programs and tests of others, in their newest releases and unmodified. All of it talks to 127.0.0.1 only.
greenlet_programs() {
    local place=$SCRATCH/standin python on name source
    python=$place/.venv/bin/python
    on=("$python" -m pyfiber greenlet)
    "$python" -m pip install -qq --upgrade gevent sqlalchemy aiosqlite greenback trio anyio eventlet playwright greenlet
    for name in gevent sqlalchemy eventlet playwright; do
        step "a program of $name on the stand-in"
        timeout 300 "${on[@]}" "$place/tests/standin/${name}_program.py"
    done

    step "gevent's own tests on the stand-in"
    source=$("$python" -c 'import importlib.util as u; print(*u.find_spec("gevent").submodule_search_locations)')/tests
    # shellcheck disable=SC2086
    (cd "$source" && timeout 1200 "${on[@]}" --children -m gevent.tests --quiet --second-chance -u none \
        $(for name in $GEVENT_TESTS; do [ ! -e "test__$name.py" ] || echo "test__$name.py"; done))

    step "SQLAlchemy's asyncio tests on the stand-in"
    mkdir "$SCRATCH/sdists"
    "$python" -m pip download -qq --no-deps --no-build-isolation --no-binary :all: -d "$SCRATCH/sdists" sqlalchemy
    tar -xzf "$SCRATCH"/sdists/sqlalchemy-*.tar.gz -C "$SCRATCH/sdists"
    (cd "$SCRATCH"/sdists/sqlalchemy-*/ && timeout 1200 "${on[@]}" -m pytest -q -p no:logging -p no:cacheprovider \
        --dburi 'sqlite+aiosqlite:///:memory:' test/ext/asyncio test/base/test_concurrency.py)

    step "greenback's own tests on the stand-in"
    (cd "$SCRATCH" && timeout 300 "${on[@]}" -m pytest -q -p no:cacheprovider --pyargs greenback)
}

greenlet_full() {
    install_editable python3 "$SCRATCH/standin"
    greenlet_suite "$SCRATCH/standin" --leakchecks
    greenlet_programs
}
