"""Threads and futures, beyond ``to_thread()``, ``from_thread()`` and ``await_future()``.

A limit for threads that work at a time, a thread for objects that belong to one thread, the way
into a run from threads that the program has started itself, and an executor that runs its calls in
fibers.
"""

from __future__ import annotations

from pyfiber._engine import ThreadLimiter
from pyfiber._futures import FiberExecutor
from pyfiber._threads import OneThread, Portal, default_thread_limiter

__all__ = [
    "FiberExecutor",
    "OneThread",
    "Portal",
    "ThreadLimiter",
    "default_thread_limiter",
]
