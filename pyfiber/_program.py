"""A program in another one's process: what `python -m pyfiber run` and `greenlet` share."""

from __future__ import annotations

import os
import runpy
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse


def add_program(parser: argparse.ArgumentParser) -> None:
    """The end of the command line: the program or the module, then its own arguments."""
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", nargs="...", help="run a module, as python -m does"
    )
    parser.add_argument(
        "program", metavar="PROGRAM", nargs="...", help="a Python file, and its arguments"
    )
    parser.set_defaults(parser=parser)


def set_arguments(options: argparse.Namespace) -> None:
    """From now on sys.argv is the program's; without a program the command line is refused."""
    command = options.module or options.program
    if not command:
        options.parser.error("which program? Give a Python file, or -m and a module")
    sys.argv[:] = command


def run_program(options: argparse.Namespace) -> None:
    """Run it as `__main__`; what it raises, SystemExit too, goes to the caller."""
    if options.module:
        # python -m has put the current directory first; it stays there.
        runpy.run_module(options.module[0], run_name="__main__", alter_sys=True)
    else:
        run_file(options.program[0])


def run_file(path: str) -> None:
    """Run a file as the module `__main__`, where threads and exit functions may outlive it."""
    if not sys.flags.safe_path:  # then the first entry is python -m's own
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        runpy.run_path(path, run_name="__main__")
        return
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    namespace: dict[str, object] = sys.modules["__main__"].__dict__
    keep: dict[str, object] = {
        name: namespace[name] for name in ("__builtins__", "__loader__") if name in namespace
    }
    namespace.clear()
    namespace.update(
        keep, __name__="__main__", __file__=path, __doc__=None, __package__=None, __spec__=None
    )
    exec(code, namespace)
