"""What a run under test must not do, and what made two equal runs differ."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import pyfiber

REAL_THREAD = (
    "the program under test starts a real thread, whose timing no schedule controls: replace "
    "that call in the test, or allow threads with threads=True (then runs may differ)"
)


@contextmanager
def replaced(owner: object, name: str, value: object) -> Iterator[None]:
    """Set an attribute for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def inside(scheduler: pyfiber.Scheduler, owner: int) -> bool:
    """Is this a fiber of the run, not another thread or the code around it?"""
    return threading.get_ident() == owner and pyfiber.current() in scheduler.fibers()


@contextmanager
def no_threads(scheduler: pyfiber.Scheduler) -> Iterator[None]:
    """Starting a thread inside the run is an error."""
    start = threading.Thread.start
    owner = threading.get_ident()

    def refuse(self: threading.Thread) -> None:
        if inside(scheduler, owner):
            raise pyfiber.FiberError(f"{REAL_THREAD}: {self!r}")
        start(self)

    with replaced(threading.Thread, "start", refuse):
        yield


def note_threads(exc: BaseException) -> None:
    """A deadlock that another thread could have ended: say that it is not waited for."""
    others = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]
    if others:
        exc.add_note(
            "other threads run (" + ", ".join(others) + "), but a run with virtual time does not "
            "wait for them unless threads=True"
        )


# What makes runs differ, by where it is looked up and how it is named.
SOURCES: tuple[tuple[object, str, str], ...] = (
    (time, "time", "the real clock"),
    (time, "time_ns", "the real clock"),
    (time, "monotonic", "the real clock"),
    (time, "monotonic_ns", "the real clock"),
    (time, "perf_counter", "the real clock"),
    (time, "perf_counter_ns", "the real clock"),
    (time, "sleep", "a sleep in real time, which stops every fiber"),
    (threading.Thread, "start", "a real thread"),
    (random, "random", "the global random numbers"),
    (random, "randrange", "the global random numbers"),
    (random, "randint", "the global random numbers"),
    (random, "choice", "the global random numbers"),
    (random, "shuffle", "the global random numbers"),
    (random, "uniform", "the global random numbers"),
)


class Suspects:
    """Watches, during a run, for what makes runs differ."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    @contextmanager
    def watching(self, scheduler: pyfiber.Scheduler) -> Iterator[None]:
        """Replace the functions that bring in the outside world by ones that tell."""
        owner = threading.get_ident()
        with ExitStack() as stack:
            for place, name, what in SOURCES:
                real = getattr(place, name)
                stack.enter_context(
                    replaced(place, name, self.telling(scheduler, owner, real, name, what))
                )
            yield

    def telling(
        self,
        scheduler: pyfiber.Scheduler,
        owner: int,
        real: Callable[..., Any],
        name: str,
        what: str,
    ) -> Callable[..., Any]:
        def told(*args: Any, **kwargs: Any) -> Any:
            if inside(scheduler, owner):
                self.note(sys._getframe(1), name, what)
            return real(*args, **kwargs)

        return told

    def note(self, frame: FrameType, name: str, what: str) -> None:
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self.seen.setdefault(what, f"{what}: {name}() called at {where}")

    def text(self) -> str:
        """What was seen, or what else it may be."""
        others = (
            "state that one run leaves for the next (globals, caches, class attributes: make it "
            "in the function or in setup=), or an order that comes from hashes or addresses "
            "(iterating over a set, id())"
        )
        if not self.seen:
            return f"Nothing known to be random was called. It may be {others}."
        found = "\n".join(f"  - {line}" for line in self.seen.values())
        return f"What was used that differs from run to run:\n{found}\nBesides, it may be {others}."
