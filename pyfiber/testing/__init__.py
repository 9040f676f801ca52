"""Deterministic tests of concurrent code, in virtual time, that search for breaking orders.

Time is virtual: it stands still while anything can run, and jumps to the next timer when nothing
can. The order of fibers is chosen: as usual, at random, by priorities, every order in turn, or by a
schedule string::

    >>> import pyfiber
    >>> from pyfiber import testing
    >>> testing.run(lambda: (pyfiber.sleep(86400), pyfiber.now())[1])
    86400.0
    >>> def race():
    ...     total = [0]
    ...     def add():
    ...         before = total[0]
    ...         pyfiber.yield_now()
    ...         total[0] = before + 1
    ...     for fiber in [pyfiber.spawn(add) for _ in range(2)]:
    ...         fiber.join()
    ...     assert total[0] == 2, total
    >>> testing.explore(race)  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pyfiber.testing.errors.ScheduleFailure: schedule 1 of 1000 ...
"""

from pyfiber.testing.cancellation import explore_cancellation
from pyfiber.testing.clock import VirtualClock
from pyfiber.testing.errors import (
    LeftRunningError,
    LivelockError,
    NeverAwaitedError,
    NondeterminismError,
    ReplayDivergence,
    ScheduleError,
    ScheduleFailure,
)
from pyfiber.testing.explore import choose, explore, preempt, replay, run
from pyfiber.testing.machines import Node
from pyfiber.testing.network import Network
from pyfiber.testing.search import Exploration

__all__ = [
    "Exploration",
    "LeftRunningError",
    "LivelockError",
    "Network",
    "NeverAwaitedError",
    "Node",
    "NondeterminismError",
    "ReplayDivergence",
    "ScheduleError",
    "ScheduleFailure",
    "VirtualClock",
    "choose",
    "explore",
    "explore_cancellation",
    "preempt",
    "replay",
    "run",
]
