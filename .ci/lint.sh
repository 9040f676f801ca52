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
    step "sentences that are hard to read"
    "$TOOLS/python" "$ROOT/.ci/prose.py"
    step "clang-format"
    (cd "$ROOT" && find csrc tests/c -name '*.[ch]' -print0 | xargs -0 "$TOOLS/clang-format" --dry-run -Werror)
}

# Types want an importable package, so this runs in the tree that the warnings-are-errors build left.
lint_types() {
    step "mypy --strict and stubtest"
    (
        cd "$1"
        .venv/bin/python -m pip install -qq "$(grep '^mypy==' "$ROOT/.ci/requirements.txt")"
        .venv/bin/python -m mypy --strict pyfiber bench
        .venv/bin/python -m mypy.stubtest pyfiber._engine pyfiber.greenlet
        .venv/bin/python -m pytest -m "slow or not slow" tests/facade/test_typing.py # needs mypy: skipped elsewhere
    )
}

# Warnings are errors: a link that leads nowhere, a heading that is not there, a page that no page leads to.
docs_site() {
    local tree=$SCRATCH/strict
    step "the documentation as a site"
    [ -d "$tree" ] || install_editable python3 "$tree"
    (
        cd "$tree"
        .venv/bin/python -m pip install -qq --group docs
        .venv/bin/python -m sphinx -q -W --keep-going -j auto docs build/site
    )
    site_in_a_browser "$tree/build/site"
}

# site_in_a_browser SITE: each page as a reader sees it, on a phone and on a desktop. It takes Chrome or Chromium: what is here, or
# Debian's package.
site_in_a_browser() {
    local status=0
    step "the site in a browser"
    command -v chromium >/dev/null || command -v google-chrome >/dev/null || (need chromium) || true
    "$TOOLS/python" "$ROOT/.ci/site_check.py" "$1" || status=$?
    [ "$status" -ne 2 ] || { leave_out "$STEP: there is none here"; return 0; }
    return "$status"
}
