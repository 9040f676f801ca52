"""Builds pyfiber's native modules; everything else is in pyproject.toml.

Environment variables:
  PYFIBER_CONTEXT=ucontext   use ucontext instead of the assembly
  PYFIBER_ASSERTIONS=1       no optimisation, assertions on
  PYFIBER_WERROR=1           warnings are errors
  PYFIBER_SANITIZE=address,undefined
  PYFIBER_HARDTEST=1         tiny slabs, a look at the timers at every switch
  PYFIBER_UNTESTED=1         for free-threaded CPythons that pyfiber was not tested with
  PYFIBER_DEBUG_FILES=FOLDER put the debug information there, which wheels are built without
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

WINDOWS = sys.platform == "win32"
ASSEMBLY = platform.machine().lower() in ("x86_64", "amd64", "arm64", "aarch64")
UCONTEXT = not WINDOWS and (os.environ.get("PYFIBER_CONTEXT") == "ucontext" or not ASSEMBLY)


def why_not_here() -> str | None:
    """Why pyfiber cannot be built for this interpreter or system; None if it can."""
    if platform.python_implementation() != "CPython":
        return "pyfiber needs CPython: it switches CPython's own thread state"
    # pip runs this file before it looks at requires-python.
    if sys.version_info < (3, 11):  # noqa: UP036
        return f"pyfiber requires Python 3.11 or later, and this is {platform.python_version()}"
    free_threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
    tested = sys.version_info >= (3, 14) and sys.platform == "linux"
    if free_threaded and not tested and not os.environ.get("PYFIBER_UNTESTED"):
        return (
            "pyfiber was tested with free-threaded CPython 3.14 and 3.15 on Linux, and this is"
            f" another: use python{sys.version_info[0]}.{sys.version_info[1]}, without the t"
            " (or set PYFIBER_UNTESTED=1, to try)"
        )
    if UCONTEXT and "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or ""):
        return (
            "pyfiber cannot switch here: musl has no makecontext(), and there is assembly for"
            f" x86-64 and AArch64 only (this is {platform.machine()})"
        )
    return None


if reason := why_not_here():
    sys.exit(reason)

HEADERS = sorted(str(path) for path in Path("csrc").rglob("*.h"))
PUBLIC_HEADER = "csrc/include/pyfiber.h"


def sources(room: str) -> list[str]:
    """The C files under a folder, except those of the other system."""
    other = "unix" if WINDOWS else "windows"
    return sorted(str(path) for path in Path(room).rglob("*.c") if other not in path.parts)


def context_sources() -> list[str]:
    """The files that switch contexts, for the backend that csrc/context/context.h chooses."""
    if WINDOWS:
        return ["csrc/context/context.c", "csrc/context/winfiber.c"]
    if not UCONTEXT:
        # Both files: each is empty on the other's processor, and a macOS build for two processors
        # compiles both.
        assembly = ["csrc/context/x86_64_sysv.S", "csrc/context/aarch64_aapcs.S"]
        return ["csrc/context/context.c", *assembly]
    return ["csrc/context/context.c", "csrc/context/ucontext.c"]


def compile_args() -> list[str]:
    if WINDOWS:
        return ["/std:c11", "/O2"]
    args = ["-std=c11", "-fvisibility=hidden", "-fno-strict-aliasing", "-Wall", "-Wextra"]
    # Profilers and C++ exceptions need unwind tables, which some processors lack by default
    # (riscv64).
    args.append("-fasynchronous-unwind-tables")
    if os.environ.get("PYFIBER_WERROR"):
        args.append("-Werror")
    if os.environ.get("PYFIBER_ASSERTIONS"):
        args += ["-O0", "-g3", "-UNDEBUG"]
    else:
        args += ["-O2", "-g"]
    if sanitize := os.environ.get("PYFIBER_SANITIZE"):
        args += [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer"]
    return args


def link_args() -> list[str]:
    if sanitize := os.environ.get("PYFIBER_SANITIZE"):
        return [f"-fsanitize={sanitize}"]
    return []


def macros() -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    if UCONTEXT:
        found.append(("PYFIBER_CONTEXT_UCONTEXT", "1"))
    if os.environ.get("PYFIBER_SANITIZE"):
        found.append(("PYFIBER_SANITIZED", "1"))
    if os.environ.get("PYFIBER_HARDTEST"):
        found.append(("PYFIBER_HARDTEST", "1"))
    if sys.platform.startswith("linux"):
        found.append(("_GNU_SOURCE", "1"))
    return found


def split_debug_information(module: Path) -> None:
    """Strip the debug information, four fifths of the file.

    With PYFIBER_DEBUG_FILES it goes to a file of its name, which the module refers to.
    """
    objcopy = shutil.which("objcopy")
    if os.environ.get("PYFIBER_ASSERTIONS") or objcopy is None:
        return
    link = []
    if folder := os.environ.get("PYFIBER_DEBUG_FILES"):
        kept = Path(folder).resolve() / f"{module.name}.debug"
        kept.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([objcopy, "--only-keep-debug", module, kept], check=True)
        link = [f"--add-gnu-debuglink={kept}"]
    subprocess.run([objcopy, "--strip-debug", *link, module], check=True)


def shown_by_the_index(readme: str, repository: str, version: str) -> str:
    """README.md with absolute links to this version's files, for the package index.

    The relative links of README.md work only in a checkout and on the repository's page.
    """

    def absolute(found: re.Match[str]) -> str:
        before, target, after = found.groups()
        page = "raw" if target.endswith((".png", ".svg")) else "blob"
        target = f"README.md{target}" if target.startswith("#") else target
        return f"{before}{repository}/{page}/v{version}/{target}{after}"

    relative = r"(?!\w+:)([^\s()\"]+)"
    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    for i in range(0, len(parts), 2):  # parts with odd numbers are code
        markdown = re.sub(rf"(\]\(){relative}(\))", absolute, parts[i])
        parts[i] = re.sub(rf"(\b(?:src|srcset|href)=\"){relative}(\")", absolute, markdown)
    return "".join(parts)


def long_description() -> str:
    import tomllib  # not at the top: a Python that is refused may lack it

    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    readme = Path("README.md").read_text(encoding="utf-8")
    return shown_by_the_index(readme, project["urls"]["Source"], project["version"])


def corrected_macros(extension: Extension) -> list[tuple[str, str | None]]:
    """An extension's macros; those that cffi adds are corrected for free-threaded CPythons.

    On 3.15 cffi always asks for the stable ABI, in which the thread state cannot be read.
    Another macro is defined in the file that cffi writes, too, there with an empty value:
    compilers warn if the two values differ.
    """
    return [
        (key, value or "") for key, value in extension.define_macros if key != "Py_TARGET_ABI3T"
    ]


class BuildExt(build_ext):
    """build_ext that knows assembly files with a C preprocessor, and uses all processors."""

    def compile_side_by_side(self) -> None:
        """Compile each file of an extension by a separate call, several at a time."""
        compile_all = self.compiler.compile

        def compile(sources: list[str], output_dir: str = "", **options: Any) -> list[str]:
            for folder in {os.path.dirname(source) for source in sources}:
                os.makedirs(os.path.join(output_dir, folder), exist_ok=True)

            def compile_one(source: str) -> list[str]:
                return compile_all([source], output_dir=output_dir, **options)

            with ThreadPoolExecutor(os.cpu_count()) as pool:
                return [built for each in pool.map(compile_one, sources) for built in each]

        self.compiler.compile = compile

    def run(self) -> None:
        # Read before super().run(), which sets inplace to 0 while it builds and copies the result.
        self.for_this_tree = self.inplace or self.editable_mode
        super().run()

    def build_extensions(self) -> None:
        if not WINDOWS:
            self.compiler.src_extensions.append(".S")
            self.compile_side_by_side()
        for extension in self.extensions:
            extension.extra_compile_args = compile_args()
            extension.extra_link_args = link_args()
            extension.define_macros = corrected_macros(extension)
        super().build_extensions()
        if sys.platform.startswith("linux") and not self.for_this_tree:
            for extension in self.extensions:
                split_debug_information(Path(self.get_ext_fullpath(extension.name)))


class BuildPy(build_py):
    """build_py that puts the public header where get_include() looks for it.

    An editable install gets no copy: setuptools links to the header, or
    get_include() finds it in the source tree.
    """

    def header(self) -> str:
        return os.path.join(self.build_lib, "pyfiber", "include", "pyfiber.h")

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            self.mkpath(os.path.dirname(self.header()))
            self.copy_file(PUBLIC_HEADER, self.header())

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), self.header()]

    def get_output_mapping(self) -> dict[str, str]:
        return {**super().get_output_mapping(), self.header(): PUBLIC_HEADER}


engine = Extension(
    "pyfiber._engine",
    sources=sources("csrc/python") + sources("csrc/engine") + context_sources(),
    depends=HEADERS,
    include_dirs=["csrc"],
    define_macros=macros(),
    libraries=["ws2_32"] if WINDOWS else ["m"],
)


def cffi_modules() -> list[str]:
    """The module that pyfiber.capi needs; none on free-threaded 3.13 without cffi."""
    if sysconfig.get_config_var("Py_GIL_DISABLED") and importlib.util.find_spec("cffi") is None:
        return []
    return ["csrc/cffi/build_capi.py:ffibuilder"]


setup(
    long_description=long_description(),
    long_description_content_type="text/markdown",
    ext_modules=[engine],
    cffi_modules=cffi_modules(),
    cmdclass={"build_ext": BuildExt, "build_py": BuildPy},
)
