# The engine's own C tests, which need no Python. Sourced by run.

# c_tests VARIABLE=VALUE...: one build of tests/c in a folder of its own, then its check target.
c_tests() {
    step "C tests: $*"
    make --no-print-directory -C "$ROOT/tests/c" check BUILD="$(mktemp -d -p "$SCRATCH")" "$@"
}

c_tests_quick() {
    local backend
    for backend in native ucontext; do
        c_tests BACKEND=$backend
        c_tests BACKEND=$backend SANITIZE=address,undefined
    done
    c_tests HARDTEST=1 SANITIZE=address,undefined
}

# Sets WINE, and a prefix of its own.
find_wine() {
    need wine64
    WINE=$(dpkg -L wine64 | grep '/wine64$' | grep -v /share/)
    export WINEDEBUG=-all WINEPREFIX=$SCRATCH/wine
}

c_tests_full() {
    need clang libclang-rt-dev valgrind libc6-dbg gcc-mingw-w64-x86-64
    find_wine

    c_tests RUNNER="valgrind -q --error-exitcode=99"
    # gcc's undefined-behaviour sanitizer misses what clang's sees.
    c_tests CC=clang SANITIZE=address,undefined
    # The sanitizer's shadow memory and a wide address-space randomisation do not get along.
    c_tests SANITIZE=thread RUNNER="setarch -R"
    c_tests CC=x86_64-w64-mingw32-gcc RUNNER="$WINE"
    c_tests_emulated
}

# Processors that this machine is not, in emulation: AArch64 by its assembly, the others by ucontext. s390x is big-endian.
c_tests_emulated() {
    local machine hard
    need qemu-user-static gcc-{aarch64,riscv64,powerpc64le,s390x}-linux-gnu libc6-dev-{arm64,riscv64,ppc64el,s390x}-cross
    for machine in aarch64 riscv64 powerpc64le s390x; do
        for hard in "" 1; do
            c_tests CC=$machine-linux-gnu-gcc HARDTEST=$hard LDFLAGS=-static RUNNER="qemu-${machine/powerpc/ppc}-static"
        done
    done
}

# Small faults put into the engine, the same ones each time: a test notices each, or survivors.txt tells why none does.
mutants() {
    step "mutants of the engine"
    need gcc make
    (cd "$ROOT" && python3 tests/mutate/run.py csrc/engine/core/{scheduler,fiber,queue,timers,ccontext}.c \
        csrc/engine/unix/{epoll,poll,poller,watch,waker,guard,stack,overflow}.c csrc/engine/core/{inbox,scheduler,fiber,queue,task}.h \
        --stages c hard --sample 120 --seed 1 --minutes 15 --jobs "$(nproc)" --place "$SCRATCH/mutate")
}
