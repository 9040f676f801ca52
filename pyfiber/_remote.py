"""Performs a compose.Work on another thread, in a separate run there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pyfiber
from pyfiber._engine import Fiber, Scheduler, _holding, _insistent, shield, spawn

T = TypeVar("T")


class _Remote:
    """One job on a thread, and the fiber that waits for it."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self._job = job
        self._scheduler: Scheduler | None = None
        self._stopped = False
        self._waiter: Fiber[Any] | None = None

    def wait(self, call: Callable[[Callable[[], Any]], Any]) -> Any:
        """Wait until ``call`` has run the job on a thread; return its result or raise."""
        self._waiter = spawn(call, self._run)
        return self._waiter.result()

    def _run(self) -> Any:
        """Run the job on the thread. Either end() sees the scheduler, or _run() sees `_stopped`."""
        scheduler = self._scheduler = Scheduler()
        try:
            if self._stopped:
                scheduler.stop()
            return scheduler.run(self._job)
        finally:
            scheduler.close()

    def end(self) -> None:
        """Stop the job if it is not over, and wait. Called again if an exception interrupts it."""
        self._stopped = True
        if self._scheduler is not None:
            self._scheduler.stop()  # does nothing once the scheduler is closed
        if self._waiter is not None:
            with shield():
                self._waiter.join()
            _ = self._waiter.outcome  # nobody else looks at the failure of a stopped job


class _Ending:
    """A lock for ``_holding()`` that calls ``end()`` in whatever way the call ends."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.release = _insistent(end)

    def acquire(self) -> None:
        """Do nothing: there is nothing to end yet."""


def perform_elsewhere(job: Callable[[], T], *, new_thread: bool) -> T:
    """Wait until a thread has called ``job`` in a run; return its result or raise its exception.

    If a cancellation or a trace function's exception ends the wait, everything in that run is
    cancelled and waited for.
    """
    remote = _Remote(job)
    call: Callable[[Callable[[], Any]], Any] = _in_new_thread if new_thread else pyfiber.to_thread
    result: T = _holding(_Ending(remote.end), remote.wait, call)
    return result


def _in_new_thread(fn: Callable[[], T]) -> T:
    """As ``to_thread()``, on a new thread; always waits for the end of that thread."""
    with pyfiber.threads.OneThread() as thread:
        return thread.run(fn)
