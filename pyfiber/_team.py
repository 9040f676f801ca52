"""Starts and joins the threads of run(main, threads=N); csrc/python/run/team.c does the rest."""

from __future__ import annotations

import functools
import os
import threading
from typing import TYPE_CHECKING, Any, TypeAlias

from pyfiber import _engine
from pyfiber._native import native_thread

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_THREADS = 256  # as in csrc/python/run/members.h


def processors() -> int:
    """How many processors this process may use: the meaning of threads=None."""
    count: int | None
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        count = os.process_cpu_count()
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count()
    return min(count or 1, MOST_THREADS)


def _keep() -> None:
    """Keep a member's run going until it is stopped."""
    _engine.park()


def _member(
    first: Any, how: Any, failures: list[BaseException], ready: threading.Semaphore
) -> None:
    """The main function of a member's thread; ``how`` is on_unhandled."""
    own = None
    try:
        try:
            _engine._only_watches()
            own = _engine.Scheduler(on_unhandled=how)
            joined = _engine._join_team(first, own)
        finally:
            ready.release()
        if joined:
            own.run(_keep)
    except _engine.Cancelled:
        pass  # how a member's run is stopped
    except BaseException as exc:
        if type(exc).__name__ != "FiberCancelled":
            failures.append(exc)
    finally:
        if own is not None:
            own.close()


Begun: TypeAlias = "tuple[Callable[[int], None], BaseException | None]"


def prepare(first: Any, threads: int, how: Any) -> Callable[[], Begun]:
    """Return a function that starts the other threads, and imports nothing more to do so."""
    return functools.partial(begin, first, threads, how)


def begin(first: Any, threads: int, how: Any) -> Begun:
    """Start the other threads. Returns a function that waits for their end, and a failed start."""
    failures: list[BaseException] = []
    ready = threading.Semaphore(0)
    members = [
        native_thread(_member, (first, how, failures, ready), name=f"pyfiber-run-{n}", daemon=True)
        for n in range(2, threads + 1)
    ]
    started: list[threading.Thread] = []
    failure = None
    try:
        for member in members:
            member.start()
            started.append(member)
    except BaseException as exc:
        failure = exc
    for _ in started:  # so that from the first spawn on fibers can be given to the members
        ready.acquire()

    def end(wait: int) -> None:
        if wait:
            for member in started:
                member.join()
            if failures:
                raise failures[0]

    return end, failure
