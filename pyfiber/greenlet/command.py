"""`python -m pyfiber greenlet`: run a program with `pyfiber.greenlet` in greenlet's place."""

from __future__ import annotations

import pyfiber.greenlet
from pyfiber._program import add_program, run_program, set_arguments

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
    add_program(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Run the program and return the exit status; a SystemExit of the program passes through."""
    set_arguments(options)
    pyfiber.greenlet.install(children=options.children)
    run_program(options)
    return 0
