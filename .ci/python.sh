# The extension and its test suite. Sourced by run.

# The command block under the ci: test comment of README.md is what a newcomer types; it runs exactly as written.
readme_commands() {
    awk '/^<!-- ci: test -->/ { found = 1; next }
         found && /^```/ { if (inside) exit; inside = 1; next }
         inside' "$ROOT/README.md"
}

# On the newest CPython here: the oldest one's turn is under sanitizers.
test_readme() {
    local commands
    find_newest
    step "README's own test commands on $("$NEWEST" --version)"
    commands=$(readme_commands)
    [ -n "$commands" ] || die "README.md has no command block under <!-- ci: test -->"
    copy_tree "$SCRATCH/readme"
    "$NEWEST" -m venv "$SCRATCH/readme-venv"
    printf '%s\n' "$commands"
    (cd "$SCRATCH/readme" && . "$SCRATCH/readme-venv/bin/activate" && bash -euo pipefail -c "$commands")
}

build_strict() {
    step "build with -Wall -Wextra -Werror"
    PYFIBER_WERROR=1 install_editable python3 "$SCRATCH/strict"
}

test_versions() {
    local version python
    for version; do
        step "pytest on CPython $version"
        if python=$(find_python "$version"); then
            install_editable "$python" "$SCRATCH/$version"
            run_pytest "$SCRATCH/$version"
        else
            leave_out "$STEP: there is none here"
        fi
    done
}

test_sanitized() {
    step "pytest under AddressSanitizer and UBSan"
    local left_out=() name
    if [ -z "${PYTEST_ADDOPTS:-}" ]; then # the quick run: not what mostly starts other programs
        left_out=(--ignore tests/libraries -m "not slow")
        for name in facade/test_{info,typing} project/test_{bench,bench_io,commands,examples,origins,readme} testing/test_testing_plugin; do
            left_out+=(--ignore "tests/$name.py")
        done
    fi
    # The fault handler is under test: the sanitizer must leave faults to it.
    PYFIBER_SANITIZE=address,undefined install_editable python3 "$SCRATCH/asan"
    LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0 \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONDEVMODE=1 PYFIBER_WATCHDOG=0 PYTHONMALLOC=malloc \
        run_pytest "$SCRATCH/asan" "${left_out[@]}"
}

# The instructions of the hot paths beside those kept for each CPython. Where the tree of another step does not serve, one is made.
instruction_counts() {
    local version python tree
    need valgrind
    for version; do
        step "instructions of the hot paths on CPython $version"
        tree=$SCRATCH/$version
        if [ -d "$SCRATCH/strict" ] && fits "$SCRATCH/strict/.venv/bin/python" "$version"; then
            tree=$SCRATCH/strict
        elif [ ! -d "$tree" ]; then
            python=$(find_python "$version") || { leave_out "$STEP: there is none here"; continue; }
            install_editable "$python" "$tree"
        fi
        (cd "$tree" && .venv/bin/python -m bench.instructions --check)
    done
}

# Two stacks for all fibers: nearly every switch moves one. A good part of the suite, after build_strict ...
packed_quick() {
    step "pytest and random programs with two stacks for all fibers"
    (
        export PYFIBER_SLOTS=2
        run_pytest "$SCRATCH/strict" tests/fiber tests/sync tests/cancel tests/run tests/grain
        cd "$SCRATCH/strict" && .venv/bin/python -m tests.fuzz all --seeds "$FUZZ_QUICK_SEEDS" --minutes 1
    )
}

# ... and all of it, with two and with three, on each CPython here, with stacks that are poisoned when they are taken, and with
# ucontext. After test_plain and test_variants: their trees are there. test_sid does it as well.
test_packed() {
    local tree slots
    for tree in strict 3.11 3.12 hard ucontext; do
        [ -d "$SCRATCH/$tree" ] || continue
        for slots in 2 3; do
            step "pytest with $slots stacks for all fibers: $tree"
            PYFIBER_SLOTS=$slots run_pytest "$SCRATCH/$tree"
        done
        slots=$((RANDOM % 30 + 2))
        step "random programs with $slots stacks: $tree"
        PYFIBER_SLOTS=$slots fuzz "$SCRATCH/$tree" "$FUZZ_SEEDS" "$FUZZ_MINUTES"
    done
}

# Random programs: seeds FIRST:STOP or FIRST: of each kind, for so many minutes of each at most. In `quick` they are always the
# same; in `full` new ones every day. What fails is printed with the command that plays it again.
FUZZ_SEEDS=${FUZZ_SEEDS:-$(date +%Y%m%d)0000:}
FUZZ_MINUTES=${FUZZ_MINUTES:-2}
FUZZ_QUICK_SEEDS=${FUZZ_QUICK_SEEDS:-0:99}
FUZZ_QUICK_MINUTES=${FUZZ_QUICK_MINUTES:-10}

# fuzz DIR SEEDS MINUTES: random programs of every kind in a tree made by install_editable.
fuzz() {
    step "random programs, seeds $2, for $3 minutes of each kind: $(basename "$1")"
    (cd "$1" && .venv/bin/python -m tests.fuzz all --seeds "$2" --minutes "$3")
}

# The same in a tree with sanitizers, after test_sanitized.
fuzz_sanitized() {
    LD_PRELOAD=$(gcc -print-file-name=libasan.so) ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_sigbus=0 \
        UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 PYTHONMALLOC=malloc fuzz "$SCRATCH/asan" "$1" "$2"
}

fuzz_quick() {
    fuzz_sanitized "$FUZZ_QUICK_SEEDS" "$FUZZ_QUICK_MINUTES"
}

# After quick and test_variants: their trees are there. test_sid plays them as well.
fuzz_full() {
    local tree
    fuzz_sanitized "$FUZZ_SEEDS" "$FUZZ_MINUTES"
    for tree in strict 3.12 hard; do
        [ ! -d "$SCRATCH/$tree" ] || fuzz "$SCRATCH/$tree" "$FUZZ_SEEDS" "$FUZZ_MINUTES"
    done
}

# A thousand million switches, a hundred million fibers, an hour of everything at once: nothing may grow.
soak() {
    local python
    python=$(newest_python)
    install_editable "$python" "$SCRATCH/soak"
    step "endurance on $("$python" --version)"
    (cd "$SCRATCH/soak" && .venv/bin/python -m tests.soak)
}

# Tiny stacks, failing allocations, a switch at every opportunity; then the portable context switch.
test_variants() {
    step "pytest with the hard-test build"
    PYFIBER_HARDTEST=1 install_editable python3 "$SCRATCH/hard"
    run_pytest "$SCRATCH/hard"
    step "pytest with the ucontext backend"
    PYFIBER_CONTEXT=ucontext install_editable python3 "$SCRATCH/ucontext"
    run_pytest "$SCRATCH/ucontext"
}

# The suite's folders that pass without a GIL, on each of the interpreters that PYFIBER_FREE_THREADED names, separated by spaces:
# 3.14t and 3.15t were tried. patch() is refused there, and tests that count on the GIL are skipped. One process for each folder,
# so that a hang is known by its name.
FREE_THREADED_FOLDERS=(fiber cancel core run sync threads grain greenlet capi aio facade io debug testing patch project)
test_free_threaded() {
    local python tree folder
    step "pytest on a free-threaded CPython"
    if [ -z "${PYFIBER_FREE_THREADED:-}" ]; then
        leave_out "$STEP: PYFIBER_FREE_THREADED names none"
        return
    fi
    for python in $PYFIBER_FREE_THREADED; do
        step "pytest on a free-threaded CPython: $("$python" --version)"
        "$python" -c 'import sys; sys.exit(sys._is_gil_enabled())' || die "PYFIBER_FREE_THREADED: $python runs with the GIL"
        tree=$(mktemp -d -p "$SCRATCH")/tree
        copy_tree "$tree" # not install_editable: users of sockets may have no wheels yet
        make_venv "$python" "$tree/.venv"
        (cd "$tree" && PYFIBER_WERROR=1 .venv/bin/python -m pip install -qq -e . --group test)
        for folder in "${FREE_THREADED_FOLDERS[@]}"; do run_pytest "$tree" "tests/$folder"; done
    done
}
