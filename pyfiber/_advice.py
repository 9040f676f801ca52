"""Advice for errors of the kind "... needs a running scheduler": what the caller can do instead.

The advice depends on where the call was made: in a coroutine, a thread of to_thread(), a raw fiber.
"""

from __future__ import annotations

import sys
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_ITERABLE_COROUTINE

from pyfiber import _engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

COROUTINE = CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE

IN_RUN_IN_FIBER = (
    ", and a function that run_in_fiber() calls has none: wait with pyfiber.aio.await_(), such as "
    "await_(asyncio.sleep(1)), or call the function with `await host.run(fn)` in a block of "
    "`async with pyfiber.aio.Host() as host`"
)
IN_COROUTINE = (
    ", and a coroutine has none: call the function with `await host.run(fn)` in a block of "
    "`async with pyfiber.aio.Host() as host`, or with `await pyfiber.aio.run_in_fiber(fn)` if "
    "await_() is all that it waits with"
)
IN_WORKER = (
    ", and a thread of to_thread() has none: give the function to from_thread(), which runs it in "
    "a fiber of the caller"
)
OUTSIDE_OF_TEST = (
    ", and setup= and check= are called outside of the run under test: call it from the function "
    "under test"
)
IN_RAW_FIBER = (
    ", and switch() starts none for a raw fiber: call it, or the first switch(), from a function "
    "that pyfiber.run() runs"
)
BESIDE_A_RUN = (
    ", and the one that runs is another thread's: reach that by a pyfiber.threads.Portal made in "
    "its run, by call_soon_threadsafe() of its Scheduler, or by from_thread() in a thread that "
    "to_thread() has started; or call it here from a function that pyfiber.run() runs"
)
ANYWHERE = ": call it from a function that pyfiber.run() runs"
NO_AWAIT_IN_COROUTINE = "in a coroutine, write `await` instead"
NO_AWAIT_IN_RUN = (
    "a fiber of pyfiber.run() calls coroutines by a loop of its own, "
    "asyncio.Runner(loop_factory=pyfiber.aio.new_event_loop)"
)
NO_AWAIT_ELSEWHERE = (
    "elsewhere call coroutines by asyncio.run(), or by asyncio.run_coroutine_threadsafe() for a "
    "loop on another thread"
)


def no_run() -> str:
    """The text after "... needs a running scheduler", on a thread where no scheduler runs."""
    if in_run_in_fiber():
        return IN_RUN_IN_FIBER
    if in_coroutine():
        return IN_COROUTINE
    if _engine._current_job() is not None:
        return IN_WORKER
    if outside_of_test():
        return OUTSIDE_OF_TEST
    if _engine._name_here() is not None:
        return IN_RAW_FIBER
    return BESIDE_A_RUN if _engine._runs_elsewhere() else ANYWHERE


def no_signals() -> str:
    """The advice of no_run() for signals(), to which the standard library has alternatives."""
    advice = no_run()
    if advice in (IN_COROUTINE, IN_RUN_IN_FIBER):
        return ", and asyncio's is none: use add_signal_handler() of its loop"
    return f"{advice}; elsewhere use signal.signal()"


def no_from_thread() -> str:
    """What to use in place of from_thread() to call a function in a fiber."""
    if in_run_in_fiber() or in_coroutine():
        return "beside asyncio use `await host.run(fn)` of a pyfiber.aio.Host"
    return "give other threads a Portal, made in the run; without a run use pyfiber.run()"


def no_await() -> str:
    """What to use in place of await_() to call a coroutine."""
    if in_coroutine():
        return NO_AWAIT_IN_COROUTINE
    return NO_AWAIT_ELSEWHERE if _engine._running_scheduler() is None else NO_AWAIT_IN_RUN


def in_run_in_fiber() -> bool:
    """Is the current fiber, or one of its parents, the fiber of a run_in_fiber()?"""
    module = sys.modules.get("pyfiber.aio._task")
    fiber: _engine.Fiber[object] | None = _engine.current() if module is not None else None
    while fiber is not None and type(fiber) is not module.TaskFiber:  # type: ignore[union-attr]
        fiber = fiber.parent
    return fiber is not None


def in_coroutine() -> bool:
    """Does asyncio's loop run here, or is a coroutine of any library among the callers?"""
    asyncio = sys.modules.get("_asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        return True
    frame: FrameType | None = sys._getframe()
    while frame is not None and not frame.f_code.co_flags & COROUTINE:
        frame = frame.f_back
    return frame is not None


def outside_of_test() -> bool:
    """Is the caller a setup= or check= of pyfiber.testing, which run before and after its run?"""
    module = sys.modules.get("pyfiber.testing.guards")
    rules = module.rules_here() if module is not None else None
    return rules is not None and not rules.active
