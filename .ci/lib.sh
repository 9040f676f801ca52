# What every part of the CI shares: headings, packages, Pythons, clean copies. Sourced, never run.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SCRATCH=$(mktemp -d)
CHROOTS=${PYFIBER_CI_CHROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/pyfiber-ci}
CLEANUP=("$SCRATCH")
STEP="setting up"
TIMES=()
LEFT_OUT=()
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

on_exit() {
    local status=$?
    rm -rf "${CLEANUP[@]}"
    [ ${#LEFT_OUT[@]} -eq 0 ] || printf '!!! LEFT OUT: %s\n' "${LEFT_OUT[@]}" >&2
    [ "$status" -eq 0 ] || printf '\n!!! failed (exit %d) in: %s\n' "$status" "$STEP" >&2
}
trap on_exit EXIT

# step NAME: a heading. What the steps took is in TIMES.
step() {
    end_step
    STEP=$1
    STEP_BEGAN=$SECONDS
    printf '\n=== [%3dm%02ds] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$STEP"
}

end_step() {
    [ -z "${STEP_BEGAN:-}" ] || TIMES+=("$(printf '%6d s  %s' $((SECONDS - STEP_BEGAN)) "$STEP")")
}

# leave_out WHAT: what this machine has no means for. It is said here, and again when the run ends, however it ends.
leave_out() {
    LEFT_OUT+=("$1")
    printf '!!! LEFT OUT: %s\n' "$1"
}

die() {
    printf '%s\n' "$*" >&2
    exit 1
}

# need PACKAGE...: Debian packages by name, installed only when missing.
need() {
    local package missing=() sudo=()
    for package; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    [ "$(id -u)" -eq 0 ] || sudo=(sudo)
    printf 'installing %s\n' "${missing[*]}"
    [ -n "${APT_UPDATED:-}" ] || "${sudo[@]}" apt-get update -qq
    APT_UPDATED=yes
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qq -y --no-install-recommends "${missing[@]}" >"$SCRATCH/apt.log" 2>&1 ||
        { tail -n 20 "$SCRATCH/apt.log" >&2; die "apt-get could not install: ${missing[*]}"; }
}

# Exits 0 when this interpreter has the version asked for, its headers, and can make a venv.
PYTHON_FITS='
import ensurepip, os, sys, sysconfig
fits = "%d.%d" % sys.version_info[:2] == sys.argv[1]
sys.exit(not (fits and os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))))'

# fits PYTHON VERSION
fits() {
    [ -x "$1" ] && "$1" -c "$PYTHON_FITS" "$2" 2>/dev/null
}

# find_python 3.12: prints an interpreter of that version, or fails. Candidates are asked, because a pyenv shim on PATH
# may refuse to run and a distribution's Python may lack its headers.
find_python() {
    local candidate places=()
    if command -v pyenv >/dev/null; then
        places+=("$(pyenv root)/versions/$1"*/bin/python3)
    fi
    places+=("$(python3 -c 'import sys; print(sys.base_prefix)')/../$1"*/bin/python3 "$(command -v "python$1" || true)")
    for candidate in "${places[@]}"; do
        if fits "$candidate" "$1"; then
            printf '%s\n' "$candidate"
            return
        fi
    done
    return 1
}

# find_newest: sets NEWEST to the newest CPython here, once, and says so if that is not the newest there should be.
find_newest() {
    local version
    [ -z "${NEWEST:-}" ] || return 0
    for version in 3.13 3.12 3.11; do
        if NEWEST=$(find_python "$version"); then return; fi
        leave_out "CPython $version, for what runs on the newest: there is none here"
    done
    die "there is no CPython here with headers"
}

# copy_tree DIR: the files git knows or would add, so that builds never share artefacts with the checkout or each other.
copy_tree() {
    mkdir -p "$1"
    (cd "$ROOT" && git -c safe.directory='*' ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do [ ! -e "$file" ] || printf '%s\0' "$file"; done |
        tar --null --files-from=- -cf -) | tar -xf - -C "$1"
}

# make_venv PYTHON DIR: an empty venv with a pip new enough for dependency groups.
make_venv() {
    "$1" -m venv "$2"
    "$2/bin/python" -m pip install -qq --upgrade pip
}

# install_editable PYTHON DIR: a fresh copy of the tree in DIR, built and installed with its test groups in DIR/.venv.
# PYFIBER_WERROR, PYFIBER_SANITIZE and the other build switches are taken from the environment.
install_editable() {
    copy_tree "$2"
    make_venv "$1" "$2/.venv"
    (cd "$2" && .venv/bin/python -m pip install -qq -e . --group test --group io)
}

# run_pytest DIR [ARGUMENT...]: the whole suite in a tree made by install_editable, on all processors.
run_pytest() {
    local dir=$1
    shift
    (cd "$dir" && .venv/bin/python -m pytest --durations 12 "$@")
}
