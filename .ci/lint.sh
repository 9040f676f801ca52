# Formatting, lints and types. Sourced by run.

make_tools() {
    make_venv python3 "$SCRATCH/tools"
    "$SCRATCH/tools/bin/python" -m pip install -qq -r "$ROOT/.ci/requirements.txt"
    TOOLS=$SCRATCH/tools/bin
}

lint_text() {
    step "marks of a conflict"
    if grep -rnE '^(<<<<<<<|>>>>>>>) ' --exclude-dir=.git "$ROOT"; then die "a merge was not finished"; fi
    step "ruff"
    (cd "$ROOT" && "$TOOLS/ruff" check . && "$TOOLS/ruff" format --check .)
    step "rooms, and kinds of state"
    python3 "$ROOT/.ci/rooms.py"
    python3 "$ROOT/.ci/state.py"
    step "clang-format"
    (cd "$ROOT" && find csrc tests/c -name '*.[ch]' -print0 | xargs -0 "$TOOLS/clang-format" --dry-run -Werror)
}

# Types want an importable package, so this runs in the tree that the warnings-are-errors build left.
lint_types() {
    step "mypy --strict and stubtest"
    (
        cd "$1"
        .venv/bin/python -m pip install -qq "$(grep '^mypy==' "$ROOT/.ci/requirements.txt")"
        .venv/bin/python -m mypy --strict pyfiber
        .venv/bin/python -m mypy.stubtest pyfiber._engine pyfiber.greenlet
        .venv/bin/python -m pytest -m "slow or not slow" tests/facade/test_typing.py # needs mypy: skipped elsewhere
    )
}
