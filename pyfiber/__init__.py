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

# PyPI's project "pyfiber" is about fiber photometry. Installing it writes its files into this
# folder, over the files of pyfiber-engine.
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
    _load,
    check_cancelled,
    current,
    current_deadline,
    current_scheduler,
    emit,
    local,
    move_on_after,
    now,
    park,
    run,
    select,
    shield,
    sleep,
    sleep_until,
    spawn,
    spawn_now,
    stack_size,
    timeout,
    wait_readable,
    wait_writable,
    yield_now,
)

TYPE_CHECKING = False  # typing takes longer to import than all of pyfiber
if TYPE_CHECKING:
    from pyfiber import compose as compose
    from pyfiber import debug as debug
    from pyfiber import grains as grains
    from pyfiber import threads as threads
    from pyfiber._barrier import Barrier
    from pyfiber._cancelled import FiberCancelled
    from pyfiber._futures import await_future
    from pyfiber._generators import generator
    from pyfiber._groups import first_success, gather, pmap, race
    from pyfiber._info import get_include
    from pyfiber._native import native_thread
    from pyfiber._outcome import CancelledOutcome, Failed, Ok, Outcome
    from pyfiber._patch import patch
    from pyfiber._queues import PriorityQueue, ShutDown
    from pyfiber._signals import signals
    from pyfiber._slices import no_preemption
    from pyfiber._threads import from_thread, to_thread
    from pyfiber._virtual import virtual_threads

__version__ = "0.1.0"

__all__ = [
    "Barrier",
    "BoundedSemaphore",
    "CancelScope",
    "Cancelled",
    "CancelledOutcome",
    "Case",
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
    "FiberGenerator",
    "LifoQueue",
    "Lock",
    "Ok",
    "Outcome",
    "PriorityQueue",
    "Queue",
    "RLock",
    "Scheduler",
    "Semaphore",
    "ShutDown",
    "TaskGroup",
    "await_future",
    "check_cancelled",
    "current",
    "current_deadline",
    "current_scheduler",
    "emit",
    "first_success",
    "from_thread",
    "gather",
    "generator",
    "get_include",
    "local",
    "move_on_after",
    "native_thread",
    "no_preemption",
    "now",
    "park",
    "patch",
    "pmap",
    "race",
    "run",
    "select",
    "shield",
    "signals",
    "sleep",
    "sleep_until",
    "spawn",
    "spawn_now",
    "stack_size",
    "timeout",
    "to_thread",
    "virtual_threads",
    "wait_readable",
    "wait_writable",
    "yield_now",
]

_hooks.install()

#: The module that defines each name that most programs do not need.
_HOMES = {
    "Barrier": "pyfiber._barrier",
    "CancelledOutcome": "pyfiber._outcome",
    "Failed": "pyfiber._outcome",
    "FiberCancelled": "pyfiber._cancelled",
    "Ok": "pyfiber._outcome",
    "Outcome": "pyfiber._outcome",
    "PriorityQueue": "pyfiber._queues",
    "ShutDown": "pyfiber._queues",
    "await_future": "pyfiber._futures",
    "first_success": "pyfiber._groups",
    "from_thread": "pyfiber._threads",
    "gather": "pyfiber._groups",
    "generator": "pyfiber._generators",
    "get_include": "pyfiber._info",
    "native_thread": "pyfiber._native",
    "no_preemption": "pyfiber._slices",
    "patch": "pyfiber._patch",
    "pmap": "pyfiber._groups",
    "race": "pyfiber._groups",
    "signals": "pyfiber._signals",
    "to_thread": "pyfiber._threads",
    "virtual_threads": "pyfiber._virtual",
}
#: Submodules that ``import pyfiber`` is enough for, as in ``pyfiber.debug.dump_fibers()``.
_MODULES = ("compose", "debug", "grains", "threads")


if not TYPE_CHECKING:  # with a __getattr__ a type checker would accept every name

    def __getattr__(name: str) -> object:
        # Import these on first use: the standard modules that they need, such as concurrent.futures
        # (which has FiberCancelled's base class), take much longer to import than pyfiber.
        if name in _HOMES:
            value = getattr(_load(_HOMES[name]), name)
        elif name in _MODULES:
            value = _load(f"pyfiber.{name}")
        else:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """Return all public names, also those that have not been imported yet."""
    dunders = (name for name in globals() if name.startswith("__"))
    return sorted({*__all__, *_MODULES, *dunders})
