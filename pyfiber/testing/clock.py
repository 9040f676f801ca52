"""Virtual time: a clock that moves when nothing else can."""

from __future__ import annotations

import math
from datetime import UTC
from datetime import datetime as Datetime

from pyfiber import _engine

NS = 1_000_000_000
Start = float | Datetime


class VirtualClock(_engine._VirtualClock):
    """Time for a run under test: it stands still while anything can run.

    When every fiber waits, it jumps to the next timer: ``sleep(86400)`` takes
    no time. ``start`` is the first value of ``now()`` in seconds, or a
    datetime (one without a time zone is UTC) for ``time()`` and ``datetime()``
    to begin at; then ``now()`` begins at 0.

    With ``auto=False`` it does not jump: only ``advance()`` moves it. With ``threads=True`` an idle
    run waits for other threads, in real time, instead of failing.
    """

    def __init__(self, start: Start = 0.0, *, auto: bool = True, threads: bool = False) -> None:
        self.start_ns, self.epoch_ns = beginnings(start)
        super().__init__(self.start_ns, not auto, threads)
        self.auto = auto

    def time(self) -> float:
        """The wall clock: seconds since 1970, as ``time.time()`` gives them."""
        return self.time_ns() / NS

    def time_ns(self) -> int:
        """The wall clock in nanoseconds."""
        return self.epoch_ns + self.now_ns()

    def datetime(self) -> Datetime:
        """The wall clock as a datetime in UTC."""
        return Datetime.fromtimestamp(self.time(), UTC)

    def reset(self) -> None:
        """Go back to the start; FiberError while a run uses it."""
        self._set_ns(self.start_ns)

    def __repr__(self) -> str:
        return f"<VirtualClock at {self.now():.9g} s>"


def beginnings(start: Start) -> tuple[int, int]:
    """Where now() begins, and what to add to it for the wall clock; nanoseconds."""
    if isinstance(start, Datetime):
        if start.tzinfo is None:
            start = start.replace(tzinfo=UTC)
        return 0, round(start.timestamp() * NS)
    if isinstance(start, bool) or not isinstance(start, (int, float)):
        raise TypeError(
            f"a clock starts at a number of seconds or a datetime, not {type(start).__name__!r}"
        )
    if not math.isfinite(start) or abs(start) > 2**33:
        raise ValueError(f"a clock cannot start at {start!r} seconds")
    return round(start * NS), 0
