"""`python -m pyfiber run`: runs a program in a fiber of a run, patched if wanted."""

from __future__ import annotations

import argparse
import os

import pyfiber
from pyfiber import _hooks, _patch
from pyfiber._engine import _load
from pyfiber._program import add_program, run_program, set_arguments
from pyfiber._slices import seconds_of

DESCRIPTION = """Run a program, unchanged, in a fiber of a run, so that it may call pyfiber.spawn()
and whatever else needs a run. The process ends when the program and its fibers have ended. Its exit
status is the program's, or 1 if that is 0 and a fiber has failed and nobody looked at the
failure."""


def add_patch(parser: argparse.ArgumentParser) -> None:
    """The options that say what is patched."""
    parser.add_argument(
        "--patch", action="store_true", help="call pyfiber.patch() before the program begins"
    )
    parser.add_argument(
        "--parts",
        type=parts_of,
        metavar="PART,...",
        help="patch only these parts: " + ", ".join(_patch.PARTS),
    )


def add_virtual_threads(parser: argparse.ArgumentParser) -> None:
    """The options that make the program's threads fibers, and that preempt fibers."""
    parser.add_argument(
        "--virtual-threads",
        action="store_true",
        help="every thread that the program starts is a fiber; all parts are patched",
    )
    parser.add_argument(
        "--time-slice",
        type=time_slice_of,
        metavar="LENGTH",
        help="preempt a fiber that computes for longer than this, such as 10ms; for virtual threads"
        " the default is 5ms, and 'off' means never",
    )


def parts_of(text: str) -> dict[str, bool]:
    """The arguments of patch() for a text such as "socket,ssl"."""
    parts = dict.fromkeys(text.split(","), True)
    if unknown := parts.keys() - _patch.PARTS.keys():
        names = ", ".join(map(repr, sorted(unknown)))
        raise argparse.ArgumentTypeError(
            f"there is no part {names}; there are: {', '.join(_patch.PARTS)}"
        )
    return parts


def time_slice_of(text: str) -> float:
    """Seconds for a text such as "5ms", 0 for "off"; argparse reports a wrong one."""
    if text == "off":
        return 0.0
    try:
        seconds = seconds_of(text)
        pyfiber.Scheduler(time_slice=seconds).close()  # checks the value
    except (ValueError, NotImplementedError) as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None
    return seconds


def patch_as(options: argparse.Namespace) -> None:
    """Call patch() if the options of add_patch() say so."""
    if options.patch or options.parts:
        _patch.patch(**(options.parts or {}))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line: options, then the program, then the program's own arguments."""
    parser.usage = (
        "%(prog)s [--patch] [--parts PART,...] [--virtual-threads] [--time-slice LENGTH]"
        " (PROGRAM | -m MODULE) [ARGUMENT ...]"
    )
    add_patch(parser)
    add_virtual_threads(parser)
    add_program(parser)
    parser.set_defaults(main=main)


class Failures:
    """Logs failures that nobody looked at, as run() does, and remembers whether there were any."""

    def __init__(self) -> None:
        #: The process that has logged a failure. A forked child has its own exit status.
        self.pid: int | None = None

    def log(self, fiber: _hooks.Task, exc: BaseException) -> None:
        self.pid = os.getpid()
        _hooks.log_failure(fiber, exc, "%r failed and nobody looked at it")

    def status(self) -> int:
        """The exit status of this process if its program has ended well."""
        return int(self.pid == os.getpid())


def main(options: argparse.Namespace) -> int:
    """Run the program and return the exit status; a SystemExit of the program passes through."""
    set_arguments(options)
    patch_as(options)
    failures = Failures()
    try:
        if options.virtual_threads:
            _load("pyfiber._virtual.command").run(options, failures.log)
        else:
            time_slice = options.time_slice or None
            pyfiber.run(run_program, options, on_unhandled=failures.log, time_slice=time_slice)
    except SystemExit as exc:
        if exc.code is None or exc.code == 0:
            return failures.status()
        raise
    return failures.status()
