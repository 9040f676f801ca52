"""Performing a description on another thread, in a run of its own there."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import pyfiber
from pyfiber._engine import Cancelled, FiberExit, Scheduler, shield, spawn

T = TypeVar("T")


class _Remote:
    """One job on a thread: ``run()`` is called there, ``stop()`` from anywhere."""

    def __init__(self, job: Callable[[], Any]) -> None:
        self._job = job
        self._lock = threading.RLock()  # a finalizer inside of it may come back here
        self._scheduler: Scheduler | None = None
        self._stopped = False

    def run(self) -> Any:
        scheduler = Scheduler()
        with self._lock:
            self._scheduler = scheduler
        try:
            if self._stopped:
                scheduler.stop()
            return scheduler.run(self._job)
        finally:
            with self._lock:
                self._scheduler = None
            scheduler.close()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            if self._scheduler is not None:
                self._scheduler.stop()


def perform_elsewhere(job: Callable[[], T], *, new_thread: bool) -> T:
    """Wait until a thread has called ``job`` in a run; its result, or its exception.

    Cancelled while it waits: so is everything in that run, and that is waited for.
    """
    remote = _Remote(job)
    wait: Callable[[Callable[[], Any]], Any] = _in_new_thread if new_thread else pyfiber.to_thread
    waiter = spawn(wait, remote.run)
    try:
        waiter.join()
    except (Cancelled, FiberExit):
        remote.stop()
        with shield():
            waiter.join()
        _ = waiter.outcome  # looked at: that it was stopped is no news
        raise
    result: T = waiter.result()
    return result


def _in_new_thread(fn: Callable[[], T]) -> T:
    """As ``to_thread()``, by a thread that ends afterwards: its end is waited for in any case."""
    future: Future[T] = Future()
    context = contextvars.copy_context()
    thread = threading.Thread(target=partial(context.run, _complete, future, fn))
    thread.start()
    with shield():
        result = pyfiber.wait_for(future)
    return result


def _complete(future: Future[T], fn: Callable[[], T]) -> None:
    try:
        future.set_result(fn())
    except BaseException as exc:
        future.set_exception(exc)
