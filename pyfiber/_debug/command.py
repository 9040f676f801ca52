"""`python -m pyfiber ps PID` and `top PID`."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import time

from pyfiber._debug import text
from pyfiber._debug.client import Connection, Failed, connect

PS = """Show the fibers of a running process: alike ones together, what they wait for, for how long,
and their stack."""
TOP = """Show the fibers of a running process again and again: what moves, and what happens in a
second. It ends with Ctrl-C, or with the process."""

#: Goes to the terminal's upper left corner and erases what is there.
CLEAR = "\x1b[H\x1b[J"


def signal_of(name: str) -> int:
    """Of USR1, SIGUSR1 or 10."""
    try:
        if name.isdecimal():
            return signal.Signals(int(name))
        return signal.Signals["SIG" + name.upper().removeprefix("SIG")]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"there is no signal {name!r}") from None


def seconds_of(number: str) -> float:
    seconds = float(number)
    if not 0 < seconds < 1e6:
        raise ValueError(number)
    return seconds


def add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pid", metavar="PID", type=int, help="the process's number")
    parser.add_argument(
        "--signal",
        type=signal_of,
        metavar="NAME",
        help="send this signal first: the one given to pyfiber.debug_on_signal()",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, a line for each answer")
    parser.add_argument(
        "--timeout",
        type=seconds_of,
        default=10.0,
        metavar="SECONDS",
        help="how long to wait for an answer (default: %(default)g)",
    )


def add_ps(parser: argparse.ArgumentParser) -> None:
    add_common(parser)
    parser.set_defaults(main=main, action=ps)


def add_top(parser: argparse.ArgumentParser) -> None:
    add_common(parser)
    parser.add_argument(
        "--interval",
        type=seconds_of,
        default=1.0,
        metavar="SECONDS",
        help="from one look to the next (default: %(default)g)",
    )
    parser.add_argument("--count", type=int, metavar="N", help="look N times")
    parser.set_defaults(main=main, action=top)


def main(options: argparse.Namespace) -> int:
    """Connect and show; what stands in the way is one line on standard error."""
    try:
        connection = connect(options.pid, options.signal, options.timeout)
        try:
            options.action(connection, options)
        finally:
            connection.close()
    except Failed as exc:
        print(f"pyfiber: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        return 1
    return 0


def ps(connection: Connection, options: argparse.Namespace) -> None:
    found = connection.ask()
    print(json.dumps(found) if options.json else text.page(found), end="\n" * options.json)


def top(connection: Connection, options: argparse.Namespace) -> None:
    before = None
    number = 0
    while options.count is None or number < options.count:
        if number:
            time.sleep(options.interval)
        found = connection.ask(options.interval)
        if options.json:
            print(json.dumps(found), flush=True)
        else:
            shown = text.screen(found, before, *size_of_screen())
            print(CLEAR * sys.stdout.isatty() + shown, end="", flush=True)
        before = found
        number += 1


def size_of_screen() -> tuple[int, int]:
    """Columns and rows; without limit if it is a file or a pipe."""
    return shutil.get_terminal_size() if sys.stdout.isatty() else (10**6, 10**6)
