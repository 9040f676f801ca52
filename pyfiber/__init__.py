"""Suspend ordinary Python code anywhere in its call stack and resume it later.

Raw fibers, where you decide who runs::

    >>> from pyfiber import Fiber, current
    >>> def count(main):
    ...     for i in range(3):
    ...         main.switch(i)
    >>> f = Fiber(count, (current(),))
    >>> f.switch(), f.switch(), f.switch()
    (0, 1, 2)

Scheduled fibers, where the loop decides::

    >>> from pyfiber import run, sleep, spawn
    >>> def main():
    ...     fibers = [spawn(lambda n=n: (sleep(n / 1000), n)[1]) for n in (3, 1, 2)]
    ...     return [fiber.result() for fiber in fibers]
    >>> run(main)
    [3, 1, 2]
"""

from __future__ import annotations

from pyfiber import _hooks
from pyfiber._engine import (
    BoundedSemaphore,
    Cancelled,
    Channel,
    ChannelClosed,
    Condition,
    DeadlockError,
    Event,
    Fiber,
    FiberError,
    FiberExit,
    Joined,
    LifoQueue,
    Lock,
    Queue,
    Received,
    Receiving,
    RLock,
    Scheduler,
    Semaphore,
    Sending,
    Sent,
    check_cancelled,
    current,
    get_stack_size,
    local,
    now,
    park,
    run,
    select,
    set_stack_size,
    sleep,
    sleep_until,
    spawn,
    stack_stats,
    switch,
    trim_stacks,
    yield_now,
)
from pyfiber._info import get_include, info

TYPE_CHECKING = False  # typing takes longer to import than all of pyfiber
if TYPE_CHECKING:
    from typing import Any

    from pyfiber._barrier import Barrier
    from pyfiber._engine import FiberCancelled
    from pyfiber._outcome import CancelledOutcome, Failed, Ok, Outcome
    from pyfiber._queues import PriorityQueue, ShutDown

__version__ = "0.1.0"

__all__ = [
    "Barrier",
    "BoundedSemaphore",
    "Cancelled",
    "CancelledOutcome",
    "Channel",
    "ChannelClosed",
    "Condition",
    "DeadlockError",
    "Event",
    "Failed",
    "Fiber",
    "FiberCancelled",
    "FiberError",
    "FiberExit",
    "Joined",
    "LifoQueue",
    "Lock",
    "Ok",
    "Outcome",
    "PriorityQueue",
    "Queue",
    "RLock",
    "Received",
    "Receiving",
    "Scheduler",
    "Semaphore",
    "Sending",
    "Sent",
    "ShutDown",
    "check_cancelled",
    "current",
    "get_include",
    "get_stack_size",
    "info",
    "local",
    "now",
    "park",
    "run",
    "select",
    "set_stack_size",
    "sleep",
    "sleep_until",
    "spawn",
    "stack_stats",
    "switch",
    "trim_stacks",
    "yield_now",
]

_hooks.install()


def __getattr__(name: str) -> Any:
    # Made when first asked for: dataclasses and concurrent.futures (the home
    # of FiberCancelled's base class) take much longer to import than pyfiber.
    if name == "FiberCancelled":
        from pyfiber import _engine

        value: Any = _engine._fiber_cancelled()
    elif name in ("Ok", "Failed", "CancelledOutcome", "Outcome"):
        from pyfiber import _outcome

        value = getattr(_outcome, name)
    elif name == "Barrier":
        from pyfiber import _barrier

        value = _barrier.Barrier
    elif name in ("PriorityQueue", "ShutDown"):
        from pyfiber import _queues

        value = getattr(_queues, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value
