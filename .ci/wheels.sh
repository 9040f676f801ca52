# What a user downloads: the sdist, a wheel from it for every CPython at hand, and the suite against the installed wheel.
# Sourced by run.

build_sdist() {
    step "sdist"
    copy_tree "$SCRATCH/release"
    "$TOOLS/python" -m build --sdist --outdir "$SCRATCH/dist" "$SCRATCH/release"
    SDIST=$(echo "$SCRATCH"/dist/*.tar.gz)
}

# The suite comes out of the sdist too, without the package beside it, so a test that needs a file not shipped fails.
WHEEL_SCRIPT='
    cd "$1"
    mkdir unpacked outside
    tar -xzf sdist.tar.gz -C unpacked --strip-components=1
    "$2" -m venv builder
    builder/bin/python -m pip install -qq --upgrade pip
    builder/bin/python -m pip wheel -qq --no-deps --wheel-dir wheels sdist.tar.gz
    "$2" -m venv clean
    clean/bin/python -m pip install -qq --upgrade pip
    clean/bin/python -m pip install -qq wheels/pyfiber_engine-*.whl --group unpacked/pyproject.toml:test
    mv unpacked/tests unpacked/pyproject.toml outside/
    cd outside
    "$1/clean/bin/python" -c "
import importlib.metadata, pyfiber
print(\"pyfiber-engine\", importlib.metadata.version(\"pyfiber-engine\"), \"in\", pyfiber.__file__)"
    "$1/clean/bin/python" -m pytest'

# check_wheel WHEEL: what is in it by mistake is not seen when it is used: debug information, names that other libraries could
# take for theirs, a library that is not asked for.
check_wheel() {
    local contents module
    contents=$(mktemp -d -p "$SCRATCH")
    "$TOOLS/python" -m zipfile -e "$1" "$contents"
    printf '%s: %d KiB\n' "$(basename "$1")" $(($(stat -c %s "$1") / 1024))
    for module in "$contents"/pyfiber/*.so; do
        ! readelf --sections --wide "$module" | grep '\.debug_' || die "$module has debug information"
        ! nm --dynamic --defined-only "$module" | grep -vE ' (T|A) (PyInit_|_cffi_pypyinit_)' || die "$module exports these"
        readelf --sections --wide "$module" | grep '\.eh_frame ' >/dev/null || die "$module has no unwind tables"
        ! nm --dynamic --undefined-only "$module" | grep -E ' (pow|floor|ceil|log|exp|ldexp|fmod)(@|$)' >/dev/null ||
            readelf --dynamic "$module" | grep 'NEEDED.*libm\.' >/dev/null || die "$module uses libm and does not ask for it"
    done
}

wheel_here() {
    local python place=$SCRATCH/wheel-$1
    step "wheel on CPython $1"
    python=$(find_python "$1") || { leave_out "$STEP: there is none here"; return 0; }
    mkdir "$place"
    cp "$SDIST" "$place/sdist.tar.gz"
    bash -euo pipefail -c "$WHEEL_SCRIPT" - "$place" "$python"
    check_wheel "$place"/wheels/*.whl
    cp "$place"/wheels/*.whl "$SCRATCH/dist/"
}

wheel_in_sid() {
    step "wheel on CPython $1 in the sid chroot"
    make_chroot sid
    chroot_workplace sid "$1" x86_64
    cp "$SDIST" "$CHROOTS/sid$PLACE/sdist.tar.gz"
    in_workplace sid "$WHEEL_SCRIPT" "$PLACE" "python$1"
    check_wheel "$CHROOTS/sid$PLACE"/wheels/*.whl
    cp "$CHROOTS/sid$PLACE"/wheels/*.whl "$SCRATCH/dist/"
}

check_metadata() {
    step "metadata of the release and of the workflows"
    "$TOOLS/twine" check --strict "$SCRATCH"/dist/*
    "$TOOLS/check-wheel-contents" "$SCRATCH"/dist/*.whl
    (
        cd "$ROOT"
        "$TOOLS/validate-pyproject" pyproject.toml
        "$TOOLS/zizmor" --offline .github/workflows
        "$TOOLS/check-jsonschema" --builtin-schema vendor.github-workflows .github/workflows/*.yml
    )
}

# WHEELS=3.13 for one of them.
test_release() {
    local version
    build_sdist
    for version in ${WHEELS:-3.11 3.12 3.13 3.14 3.15}; do
        case $version in
            3.14 | 3.15) wheel_in_sid "$version" ;;
            *) wheel_here "$version" ;;
        esac
    done
    check_metadata
}
