"""Virtual time: a clock that moves when nothing else can, and `time` made to follow it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC
from datetime import datetime as Datetime
from typing import Any

import pyfiber
from pyfiber import _engine

NS = 1_000_000_000
Start = float | Datetime


class VirtualClock(_engine._VirtualClock):
    """Time for a run under test: it stands still while anything can run.

    When every fiber waits, it jumps to the next timer: ``sleep(86400)`` takes
    no time. ``start`` is the first value of ``now()`` in seconds, or a
    datetime (one without a time zone is UTC) for ``time()`` and ``datetime()``
    to begin at; then ``now()`` begins at 0.

    With ``auto=False`` it does not jump: time moves by ``advance()`` alone. With
    ``threads=True`` an idle run waits for other threads, in real time, instead of
    failing.
    """

    def __init__(self, start: Start = 0.0, *, auto: bool = True, threads: bool = False) -> None:
        self.start_ns, self.epoch_ns = beginnings(start)
        super().__init__(self.start_ns, not auto, threads)
        self.auto = auto
        self.threads = threads

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
        """Back to the start; FiberError while a run goes by it."""
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


# The functions of `time` that tell or take time, and what stands in for them.
def stand_ins(clock: VirtualClock) -> dict[str, Callable[..., Any]]:
    """For each function of `time`, the virtual one."""
    return {
        "time": clock.time,
        "time_ns": clock.time_ns,
        "monotonic": clock.now,
        "monotonic_ns": clock.now_ns,
        "perf_counter": clock.now,
        "perf_counter_ns": clock.now_ns,
        "sleep": sleep,
    }


def sleep(seconds: float) -> None:
    """time.sleep() in a virtual run: only this fiber waits."""
    pyfiber.sleep(seconds)


def here_or_real(
    virtual: Callable[..., Any], real: Callable[..., Any], owner: int
) -> Callable[..., Any]:
    """The virtual function on the run's thread, the real one on others."""

    def either(*args: Any) -> Any:
        if threading.get_ident() == owner:
            return virtual(*args)
        return real(*args)

    either.__name__ = getattr(real, "__name__", "time")
    return either


@contextmanager
def virtual_time_module(clock: VirtualClock) -> Iterator[None]:
    """Make the `time` module follow the clock for this thread.

    Names imported before (``from time import sleep``) and the C code of
    datetime, threading and others keep the real time.
    """
    owner = threading.get_ident()
    real = {name: getattr(time, name) for name in stand_ins(clock)}
    try:
        for name, virtual in stand_ins(clock).items():
            setattr(time, name, here_or_real(virtual, real[name], owner))
        yield
    finally:
        for name, function in real.items():
            setattr(time, name, function)
