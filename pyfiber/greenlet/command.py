"""`python -m pyfiber greenlet`: run a program with `pyfiber.greenlet` in greenlet's place."""

from __future__ import annotations

import os
import runpy
import sys

import pyfiber.greenlet

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

DESCRIPTION = "Run a program, unchanged, with pyfiber.greenlet in the place of greenlet."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line: options, then the program, then the program's own arguments."""
    parser.usage = "%(prog)s [--children] (PROGRAM | -m MODULE) [ARGUMENT ...]"
    parser.add_argument(
        "--children",
        action="store_true",
        help="also in the Python programs that it starts (through PYTHONPATH)",
    )
    parser.add_argument(
        "-m", dest="module", metavar="MODULE", nargs="...", help="run a module, as python -m does"
    )
    parser.add_argument(
        "program", metavar="PROGRAM", nargs="...", help="a Python file, and its arguments"
    )
    parser.set_defaults(main=main, parser=parser)


def main(options: argparse.Namespace) -> int:
    """Run the program; its exit is the exit of this process."""
    command = options.module or options.program
    if not command:
        options.parser.error("which program? Give a Python file, or -m and a module")
    pyfiber.greenlet.install(children=options.children)
    sys.argv[:] = command
    if options.module:
        # python -m has put the current directory first; it stays there.
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    else:
        run_file(command[0])
    return 0


def run_file(path: str) -> None:
    """Run a file as the module `__main__`, where threads and exit functions may outlive it."""
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
