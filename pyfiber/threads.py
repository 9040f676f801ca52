"""More of threads and futures than ``to_thread()``, ``from_thread()`` and ``await_future()``.

How many threads work at a time, a thread for objects that belong to one, the way into a run from
threads that the program has started itself, and an executor that runs its calls in fibers.
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
