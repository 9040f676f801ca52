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

import os

# On the index, "pyfiber" is fiber photometry: its files land in this very folder, over ours.
if os.path.exists(os.path.join(os.path.dirname(__file__), "behavior.py")):
    raise ImportError(
        "the projects pyfiber-engine (this one) and pyfiber (fiber photometry) both import as"
        f" pyfiber, and are both installed in {os.path.dirname(__file__)}: uninstall both, then"
        " install the one you want, or each in an environment of its own"
    )

from pyfiber import _hooks
from pyfiber._engine import (
    BoundedSemaphore,
    Cancelled,
    CancelScope,
    Case,
    Channel,
    ChannelClosed,
    Condition,
    DeadlockError,
    Event,
    Fiber,
    FiberError,
    FiberExit,
    FiberGenerator,
    LifoQueue,
    Lock,
    Queue,
    RLock,
    Scheduler,
    Semaphore,
    TaskGroup,
    ThreadLimiter,
    _load,
    check_cancelled,
    current,
    current_deadline,
    current_scheduler,
    emit,
    get_stack_size,
    local,
    move_on_after,
    now,
    park,
    run,
    select,
    set_stack_size,
    shield,
    sleep,
    sleep_until,
    spawn,
    spawn_now,
    stack_stats,
    switch,
    timeout,
    trim_stacks,
    wait_readable,
    wait_writable,
    yield_now,
)
from pyfiber._info import get_include, info

TYPE_CHECKING = False  # typing takes longer to import than all of pyfiber
if TYPE_CHECKING:
    from queue import Empty, Full
    from threading import BrokenBarrierError

    from pyfiber import compose, grains
    from pyfiber._barrier import Barrier
    from pyfiber._cancelled import FiberCancelled
    from pyfiber._futures import FiberExecutor, wait_for
    from pyfiber._generators import generator
    from pyfiber._groups import first_success, gather, pmap, race
    from pyfiber._logs import LogFilter
    from pyfiber._outcome import CancelledOutcome, Failed, Ok, Outcome
    from pyfiber._patch import patch, patch_report, patched, unpatch
    from pyfiber._profile import Profiler, ProfileRow
    from pyfiber._queues import PriorityQueue, ShutDown
    from pyfiber._report import debug_on_signal, dump_fibers, dump_on_signal
    from pyfiber._signals import signals
    from pyfiber._threads import (
        OneThread,
        Portal,
        default_thread_limiter,
        from_thread,
        to_thread,
    )
    from pyfiber._trace import trace
    from pyfiber._watchdog import watchdog
    from pyfiber.service import background

__version__ = "0.1.0"

__all__ = [
    "Barrier",
    "BoundedSemaphore",
    "BrokenBarrierError",
    "CancelScope",
    "Cancelled",
    "CancelledOutcome",
    "Case",
    "Channel",
    "ChannelClosed",
    "Condition",
    "DeadlockError",
    "Empty",
    "Event",
    "Failed",
    "Fiber",
    "FiberCancelled",
    "FiberError",
    "FiberExecutor",
    "FiberExit",
    "FiberGenerator",
    "Full",
    "LifoQueue",
    "Lock",
    "LogFilter",
    "Ok",
    "OneThread",
    "Outcome",
    "Portal",
    "PriorityQueue",
    "ProfileRow",
    "Profiler",
    "Queue",
    "RLock",
    "Scheduler",
    "Semaphore",
    "ShutDown",
    "TaskGroup",
    "ThreadLimiter",
    "background",
    "check_cancelled",
    "compose",
    "current",
    "current_deadline",
    "current_scheduler",
    "debug_on_signal",
    "default_thread_limiter",
    "dump_fibers",
    "dump_on_signal",
    "emit",
    "first_success",
    "from_thread",
    "gather",
    "generator",
    "get_include",
    "get_stack_size",
    "grains",
    "info",
    "local",
    "move_on_after",
    "now",
    "park",
    "patch",
    "patch_report",
    "patched",
    "pmap",
    "race",
    "run",
    "select",
    "set_stack_size",
    "shield",
    "signals",
    "sleep",
    "sleep_until",
    "spawn",
    "spawn_now",
    "stack_stats",
    "switch",
    "timeout",
    "to_thread",
    "trace",
    "trim_stacks",
    "unpatch",
    "wait_for",
    "wait_readable",
    "wait_writable",
    "watchdog",
    "yield_now",
]

_hooks.install()

#: The modules of names that most programs do not need.
_HOMES = {
    "Barrier": "pyfiber._barrier",
    "BrokenBarrierError": "threading",
    "Empty": "queue",
    "Full": "queue",
    "CancelledOutcome": "pyfiber._outcome",
    "PriorityQueue": "pyfiber._queues",
    "ProfileRow": "pyfiber._profile",
    "Profiler": "pyfiber._profile",
    "ShutDown": "pyfiber._queues",
    "Failed": "pyfiber._outcome",
    "FiberCancelled": "pyfiber._cancelled",
    "FiberExecutor": "pyfiber._futures",
    "LogFilter": "pyfiber._logs",
    "Ok": "pyfiber._outcome",
    "OneThread": "pyfiber._threads",
    "Outcome": "pyfiber._outcome",
    "Portal": "pyfiber._threads",
    "background": "pyfiber.service",
    "debug_on_signal": "pyfiber._report",
    "default_thread_limiter": "pyfiber._threads",
    "dump_fibers": "pyfiber._report",
    "dump_on_signal": "pyfiber._report",
    "race": "pyfiber._groups",
    "pmap": "pyfiber._groups",
    "gather": "pyfiber._groups",
    "generator": "pyfiber._generators",
    "first_success": "pyfiber._groups",
    "from_thread": "pyfiber._threads",
    "patch": "pyfiber._patch",
    "patch_report": "pyfiber._patch",
    "patched": "pyfiber._patch",
    "signals": "pyfiber._signals",
    "to_thread": "pyfiber._threads",
    "trace": "pyfiber._trace",
    "unpatch": "pyfiber._patch",
    "wait_for": "pyfiber._futures",
    "watchdog": "pyfiber._watchdog",
}


if not TYPE_CHECKING:  # else a type checker would accept every name

    def __getattr__(name: str) -> object:
        # Imported on first use: dataclasses and concurrent.futures (where FiberCancelled's base
        # class is) take much longer to import than pyfiber.
        if name in _HOMES:
            value = getattr(_load(_HOMES[name]), name)
        elif name in ("compose", "grains"):
            value = _load(f"pyfiber.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """All public names, also those that have not been imported yet."""
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
