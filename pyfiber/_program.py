"""Runs a program in this process; shared by `python -m pyfiber run` and `greenlet`."""

from __future__ import annotations

import importlib.util
import os
import pkgutil
import runpy
import sys
from importlib.machinery import SourceFileLoader

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from importlib.machinery import ModuleSpec
    from typing import BinaryIO, NoReturn


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the end of the command line: the program or the module, then its arguments."""
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", nargs="...", help="run a module, as python -m does"
    )
    parser.add_argument(
        "program", metavar="PROGRAM", nargs="...", help="a Python file, and its arguments"
    )
    parser.set_defaults(parser=parser)


def set_arguments(options: argparse.Namespace) -> None:
    """Make sys.argv the program's; exit with a usage error if the command line names none."""
    command = options.module or options.program
    if not command:
        options.parser.error("which program? Give a Python file, or -m and a module")
    sys.argv[:] = command


def run_program(options: argparse.Namespace) -> None:
    """Run the program as `__main__`; what it raises, SystemExit too, goes to the caller."""
    if options.module:
        run_module(options.module[0])
    else:
        run_file(options.program[0])


def refuse(words: str, status: int) -> NoReturn:
    """End the process as `python` does when it finds no program: one line, no traceback."""
    print(f"{sys.executable}: {words}", file=sys.stderr)
    raise SystemExit(status)


def run_module(name: str) -> None:
    """Run a module as `__main__`. python -m has put the current directory first; it stays there."""
    if name.startswith("."):
        refuse("Relative module names not supported", 1)
    if (spec := spec_of(name)) is None:
        refuse(f"No module named {name}", 1)
    if spec.submodule_search_locations is not None and spec_of(f"{name}.__main__") is None:
        refuse(
            f"No module named {name}.__main__; {name!r} is a package and cannot be directly "
            "executed",
            1,
        )
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def spec_of(name: str) -> ModuleSpec | None:
    """The module's spec; None if there is no such module, or no package that it would be in."""
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as exc:
        # Raise if the package is there, but imports another module that is missing.
        if exc.name is None or not f"{name}.".startswith(f"{exc.name}."):
            raise
    except ValueError:  # an imported module without a __spec__
        pass
    return None


def run_file(path: str) -> None:
    """Run a file in the namespace of `__main__`, which threads and exit functions may use later."""
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        run_folder(path)
        return
    with opened(path) as file:
        content = file.read()
    take_first_place(os.path.dirname(os.path.realpath(path)))
    path = os.path.abspath(path)
    code = compile(content, path, "exec", dont_inherit=True)
    namespace: dict[str, object] = sys.modules["__main__"].__dict__
    keep = namespace.get("__builtins__")
    namespace.clear()
    namespace.update(
        __builtins__=keep,
        __name__="__main__",
        __file__=path,
        __doc__=None,
        __package__=None,
        __loader__=SourceFileLoader("__main__", path),
        __spec__=None,
    )
    exec(code, namespace)


def opened(path: str) -> BinaryIO:
    """Open the program's file to read; end the process with status 2 if that fails."""
    try:
        return open(path, "rb")
    except OSError as exc:
        refuse(
            f"can't open file {os.path.abspath(path)!r}: [Errno {exc.errno}] {exc.strerror}",
            2,
        )


def take_first_place(folder: str) -> None:
    """Put the program's folder first in sys.path, where python -m has put the current one."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


def run_folder(path: str) -> None:
    """Run the `__main__` of a folder or of a zip file."""
    if not os.path.isdir(path):
        opened(path).close()  # ends the process with the reason if the file cannot be read
    finder = pkgutil.get_importer(path)
    if finder is not None and finder.find_spec("__main__") is None:
        refuse(f"can't find '__main__' module in {os.path.abspath(path)!r}", 1)
    take_first_place(os.path.dirname(os.path.realpath(path)))
    runpy.run_path(path, run_name="__main__")
