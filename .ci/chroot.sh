# CPythons and processors this machine lacks, in Debian chroots that are made once and kept. Sourced by run.

SID_PACKAGES=python3.14,python3.14-dev,python3.14-venv,python3.15,python3.15-dev,python3.15-venv,gcc,g++,make

# make_chroot NAME [OPTION...]: debootstraps $CHROOTS/NAME unless it is there already.
make_chroot() {
    local root=$CHROOTS/$1
    shift
    if [ ! -d "$root" ]; then
        need debootstrap
        mkdir -p "$CHROOTS"
        rm -rf --one-file-system "$root.partial"
        # Whoever reads the terminal from the background is stopped: a package that has a question.
        DEBIAN_FRONTEND=noninteractive debootstrap "$@" --variant=minbase --include="$SID_PACKAGES" sid "$root.partial" \
            </dev/null >"$SCRATCH/debootstrap.log" 2>&1 ||
            { tail -n 20 "$SCRATCH/debootstrap.log" >&2; die "debootstrap failed"; }
        mv "$root.partial" "$root"
    fi
}

# in_chroot NAME COMMAND...: with /proc and /dev in a mount namespace of its own, so nothing is left mounted.
in_chroot() {
    local root=$CHROOTS/$1
    shift
    unshare --mount --propagation slave bash -c '
        mount -t proc proc "$0/proc"
        mount --rbind /dev "$0/dev"
        exec chroot "$0" env HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"' "$root" "$@"
}

# chroot_workplace NAME VERSION MACHINE: sets PLACE, a fresh folder as the chroot sees it, with every wheel that building
# and testing there need. They are fetched out here: under an emulated processor pip's downloads time out.
chroot_workplace() {
    local tag platforms=()
    PLACE=$(mktemp -d -p "$CHROOTS/$1/tmp")
    CLEANUP+=("$PLACE")
    for tag in manylinux2014 manylinux_2_17 manylinux_2_28; do platforms+=(--platform "${tag}_$3"); done
    python3 -c '
import sys, tomllib
project = tomllib.load(sys.stdin.buffer)
print(*project["build-system"]["requires"], *project["project"].get("dependencies", []), sep="\n")
' <"$ROOT/pyproject.toml" >"$SCRATCH/requirements.txt"
    "$TOOLS/python" -m pip download -qq --dest "$PLACE/offline" --python-version "$2" --only-binary=:all: \
        "${platforms[@]}" pip -r "$SCRATCH/requirements.txt" --group "$ROOT/pyproject.toml:test"
    PLACE=${PLACE#"$CHROOTS/$1"}
}

# in_workplace NAME SCRIPT ARGUMENT...: a bash script in the chroot, whose pip knows only the wheels of PLACE.
in_workplace() {
    local name=$1
    shift
    in_chroot "$name" env PIP_NO_INDEX=1 PIP_FIND_LINKS="$PLACE/offline" bash -euo pipefail -c "$1" - "${@:2}"
}

# chroot_pytest NAME MACHINE VERSION...: build from a copy and run the suite on each of the chroot's Pythons, and random
# programs. An emulated processor takes hours: there it is the suite without slow tests, which has twenty times as long for
# everything, or no more than PYTEST_ONLY names.
chroot_pytest() {
    local name=$1 machine=$2 version emulated=
    shift 2
    [ "$machine" = "$(uname -m)" ] || emulated=yes
    for version; do
        step "pytest on CPython $version in the $name chroot"
        chroot_workplace "$name" "$version" "$machine"
        copy_tree "$CHROOTS/$name$PLACE/tree"
        in_workplace "$name" '
            cd "$1/tree"
            "python$2" -m venv .venv
            PYFIBER_WERROR=1 .venv/bin/python -m pip install -qq -e . --group test
            if [ -n "$3" ]; then
                export PYFIBER_TEST_EMULATED=1 PYFIBER_TEST_PATIENCE=20
                env -u PYTEST_ADDOPTS .venv/bin/python -m pytest --timeout 6000 $4
            else
                .venv/bin/python -m pytest
                PYFIBER_SLOTS=2 .venv/bin/python -m pytest
                .venv/bin/python -m tests.fuzz all --seeds "$5" --minutes "$6"
            fi' "$PLACE" "$version" "$emulated" "${PYTEST_ONLY:-}" "$FUZZ_SEEDS" "$FUZZ_MINUTES"
    done
}

test_sid() {
    make_chroot sid
    chroot_pytest sid x86_64 3.14 3.15
}

test_aarch64() {
    need qemu-user-static binfmt-support
    [ -e /proc/sys/fs/binfmt_misc/status ] || mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
    [ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 ] || update-binfmts --enable qemu-aarch64
    make_chroot arm64 --arch=arm64
    chroot_pytest arm64 aarch64 3.14
}
