"""`python -m pyfiber top`: its layout, and its keys."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber._debug import text
from pyfiber._debug.command import json_of
from tests.debug.programs import WAITING, WITHOUT, needs_unix, running
from tests.support.subprocesses import environment

pytestmark = needs_unix


def group(**changes: Any) -> text.Group:
    found: Any = {
        "count": 1,
        "state": "parked",
        "names": ["main"],
        "wait": "waits in park()",
        "waited": (1.0, 1.0),
        "moved": 0,
        "stack": [("/program/echo.py", 20, "echo")],
    }
    return {**found, **changes}


def look(time: float, count: int, *groups: text.Group) -> text.Snapshot:
    """A process whose counters have all come so far."""
    stats = dict.fromkeys(text.COUNTERS, count)
    fibers = sum(each["count"] for each in groups)
    return {
        "protocol": 1,
        "pid": 4194304,
        "pyfiber": "0.1.0",
        "python": "3.15.12",
        "home": "/pyfiber",
        "time": time,
        "threads": [
            {
                "id": 1,
                "name": "MainThread",
                "idle": True,
                "fibers": fibers,
                "examined": fibers - 1,
                "schedulers": [{"id": 1, "running": True, "stats": stats}],
                "groups": list(groups),
            }
        ],
    }


GROUPS = [
    group(count=12_345_678, moved=1_234_567, state="suspended", waited=(3599, 863_000)),
    group(names=["Server._serve"] * 3, count=100, moved=100, waited=(0.0209, 0.0213)),
    group(waited=(1e-4, 1e11)),
    group(names=["名前" * 30], waited=None),
    group(names=["e\u0301" * 60], stack=[("/" + "x" * 500 + ".py", 1, "名" * 99)], waited=None),
]


def test_top_keeps_its_layout_in_80_columns() -> None:
    shown = text.screen(look(2, 10**9, *GROUPS), look(1, 0, *GROUPS), 80, 24, "   (q quits)")
    lines = shown.splitlines()
    assert lines[0].endswith(" fibers   (q quits)")
    assert lines[2] == "per second  switches   wakeups  messages  timeouts     waits"
    assert lines[3] == " " * 10 + "    1,000M" * 5
    assert lines[5] == " fibers   moved state     for            name, place, wait"
    rows = lines[6:11]
    assert rows[0].startswith("  12.3M   1.23M suspended 59m59s-9d23h   'main' in echo at ")
    assert rows[1].startswith("    100     100 parked    20.9ms-21.3ms  'Server._serve',... in ec")
    assert rows[2].startswith("      1       0 parked    100us-1157407d  'main' in echo at")
    assert rows[3].startswith("      1       0 parked                   '名前名前名前名... in echo")
    assert lines[11:] == ["and 1 fiber not examined"]
    assert max(sum(map(text.width_of, line)) for line in lines) <= 80


@pytest.mark.parametrize("rows", range(1, 16))
def test_top_fits_into_the_rows_that_there_are(rows: int) -> None:
    shown = text.screen(look(2, 9, *GROUPS), None, 80, rows)
    if rows > 8:  # the heading, how many groups there are, and how many fibers were not examined
        assert shown.count("\n") < rows


@pytest.mark.parametrize(
    ("words", "columns", "shown"),
    [
        ("12345", 5, "12345"),
        ("123456", 5, "12..."),
        ("名前", 4, "名前"),
        ("名前名", 5, "名..."),
        ("名前名", 4, "..."),
        ("e\u0301e\u0301e\u0301", 3, "e\u0301e\u0301e\u0301"),
        ("1234", 2, ".."),
        ("1", 0, ""),
        ("", 0, ""),
    ],
)
def test_text_is_cut_by_its_width(words: str, columns: int, shown: str) -> None:
    assert text.cut(words, columns) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (0, "0"),
        (999_999.4, "999,999"),
        (999_999.5, "1M"),
        (1_234_567, "1.23M"),
        (999.4e6, "999M"),
        (12_345e6, "12,345M"),
    ],
)
def test_number_is_short(number: float, shown: str) -> None:
    assert text.number_text(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.00012, "120us"),
        (12.4, "12s"),
        (59.4, "59s"),
        (59.6, "1m0s"),
        (3599.4, "59m59s"),
        (11_400, "3h10m"),
        (86_399.6, "1d0h"),
        (99 * 86_400 + 23 * 3600, "99d23h"),
        (100 * 86_400, "100d"),
    ],
)
def test_time_is_short(seconds: float, shown: str) -> None:
    assert text.short_time(seconds) == shown


def test_json_is_ascii_without_control_characters() -> None:
    shown = json_of(look(1, 1, group(names=["\x00\x1b\x7f\x9b\u202e名"])))
    assert shown.isascii()
    assert shown.isprintable()


# keys ---------------------------------------------------------------------------------------------


#: Standard input becomes the terminal that sends signals and that has a foreground.
ON_ITS_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("pyfiber", run_name="__main__", alter_sys=True)
"""


@contextlib.contextmanager
def top_in_a_terminal(pid: int, *arguments: str) -> Iterator[tuple[Any, int]]:
    """The process, and the other end of its terminal."""
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", ON_ITS_TERMINAL, "top", str(pid), "--interval", "1000", *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(WITHOUT),
        start_new_session=True,
    )
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def read_until(terminal: int, words: bytes) -> bytes:
    shown = b""
    while words not in shown:
        shown += os.read(terminal, 10_000)
    return shown


@pytest.mark.parametrize("key", [b"q", b"Q", b"xq"])
def test_top_quits_with_q_and_leaves_the_terminal_as_it_was(key: bytes) -> None:
    import termios

    with running(WAITING) as watched, top_in_a_terminal(watched.pid) as (process, terminal):
        before = termios.tcgetattr(terminal)
        shown = read_until(terminal, b"in main at")
        assert b"(q quits)" in shown
        os.write(terminal, key)
        assert process.wait(60) == 0
        assert termios.tcgetattr(terminal) == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_top_that_a_signal_ends_leaves_the_terminal_as_it_was(number: int) -> None:
    import termios

    with running(WAITING) as watched, top_in_a_terminal(watched.pid) as (process, terminal):
        before = termios.tcgetattr(terminal)
        read_until(terminal, b"in main at")
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert termios.tcgetattr(terminal) == before
