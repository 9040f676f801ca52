"""The commands `python -m pyfiber ps PID` and `top PID`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any, Self

from pyfiber._debug import text
from pyfiber._debug.client import Connection, Failed, connect
from pyfiber._debug.snapshot import Snapshot
from pyfiber._words import clean

PS = """Show the fibers of a running process: alike ones together, what they wait for, for how long,
and their stack."""
TOP = """Show the fibers of a running process again and again: which ones move, and how much happens
in a second. The command ends when you press q, or with the process."""

#: Goes to the terminal's upper left corner and erases what is there.
CLEAR = "\x1b[H\x1b[J"


def signal_of(name: str) -> int:
    """The signal that USR1, SIGUSR1 or 10 names."""
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
        help="send this signal first: the one given to pyfiber.debug.debug_on_signal()",
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
    """Connect and show. If that fails, one line on standard error says why."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names may be in any script
    try:
        connection = connect(options.pid, options.signal, options.timeout)
        try:
            options.action(connection, options)
        finally:
            connection.close()
    except Failed as exc:
        print(f"pyfiber: {clean(str(exc))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
        return 1
    return 0


def ps(connection: Connection, options: argparse.Namespace) -> None:
    found = connection.ask()
    if options.json:
        print(json_of(found))
        return
    with understood(), connection.user.acting():
        shown = text.page(found, connection.pid)
    print(shown, end="")


def json_of(found: Snapshot) -> str:
    """The answer as a line of ASCII, without control characters."""
    return json.dumps(found).replace("\x7f", "\\u007f")


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Raise Failed if an answer is malformed: any program may be on the other side."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as exc:
        raise Failed(f"what the process answers cannot be understood ({exc})") from None


def top(connection: Connection, options: argparse.Namespace) -> None:
    before = None
    number = 0
    with Keyboard() as keyboard:
        while options.count is None or number < options.count:
            if number and keyboard.quits_within(options.interval):
                break
            found = connection.ask(options.interval)
            if options.json:
                print(json_of(found), flush=True)
            else:
                hint = "   (q quits)" if keyboard.is_there() else ""
                with understood():
                    shown = text.screen(found, before, *size_of_screen(), hint)
                print(CLEAR * sys.stdout.isatty() + shown, end="", flush=True)
            before = found
            number += 1


def size_of_screen() -> tuple[int, int]:
    """Columns and rows of standard output; practically without limit for a file or a pipe."""
    return shutil.get_terminal_size() if sys.stdout.isatty() else (10**6, 10**6)


class Keyboard:
    """The keyboard of the terminal that `top` runs in: keys come at once, and are not shown."""

    def __init__(self) -> None:
        terminal = all(each is not None and each.isatty() for each in (sys.stdin, sys.stdout))
        self.number = sys.stdin.fileno() if terminal else -1
        self.modes: list[Any] | None = None

    def __enter__(self) -> Self:
        if self.number >= 0:
            import termios

            self.modes = termios.tcgetattr(self.number)
            signal.signal(signal.SIGTERM, lambda *args: sys.exit(128 + signal.SIGTERM))
            self.take()
        return self

    def __exit__(self, *exc: object) -> None:
        if self.modes is not None and self.is_there():
            import termios

            termios.tcsetattr(self.number, termios.TCSADRAIN, self.modes)

    def is_there(self) -> bool:
        """Whether the keys come to this process: not while it runs in the background."""
        try:
            return self.number >= 0 and os.tcgetpgrp(self.number) == os.getpgrp()
        except OSError:
            return False

    def take(self) -> None:
        """Set the modes; again after a time in the background, where a shell sets its own."""
        if self.is_there():
            import termios
            import tty

            tty.setcbreak(self.number, termios.TCSANOW)  # keeps what has been typed

    def quits_within(self, seconds: float) -> bool:
        """Wait so long; True at once when the user presses q."""
        self.take()
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self.is_there():
                time.sleep(min(left, 1.0))
            elif select.select([self.number], [], [], left)[0]:
                keys = os.read(self.number, 100)
                if not keys or b"q" in keys.lower():  # no bytes: the terminal is gone
                    return True
        return False
