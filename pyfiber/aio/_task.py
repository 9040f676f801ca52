"""``run_in_fiber()`` and ``await_()``: plain functions that wait for what a coroutine could await.

The coroutine and the fiber take turns on the task's own thread::

    task ── send() ──> run_in_fiber()          a coroutine: the driver
                          │  ▲
                   switch │  │ "await this for me"
                          ▼  │
                         fn() ... await_(x)    a raw fiber

The fiber hands over the awaitable itself, and the driver awaits it as any coroutine would. So
everything that passes between a task and what it awaits is the task's own business: the loop's
futures, cancellation, a library's own messages.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from pyfiber._engine import Fiber, FiberError, _load, _running_scheduler, current
from pyfiber.aio._host import Host, HostedScheduler

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: The value of await_()'s switch to the driver. A switch by other code brings another value.
_ASKS = object()
#: The same from a raw fiber that the task's fiber has entered; ``asker`` is that fiber.
_ASKS_INSIDE = object()


class TaskFiber(Fiber[R]):
    """The fiber of a ``run_in_fiber()``."""

    __slots__ = ("asked", "asker", "home")

    #: The fiber that the driver runs on at present.
    home: Fiber[Any]
    asked: Awaitable[Any]
    asker: Fiber[Any]


async def run_in_fiber(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call ``fn(*args, **kwargs)`` in a fiber; inside of it, ``await_()`` waits as ``await`` does.

    Returns its result or raises its exception. The call is a step of the calling task, whatever
    loop that runs on: `fn` runs on the task's thread, in the task's own context (a variable that
    `fn` sets is set for the task), and while `fn` waits the loop runs other tasks. Cancelling the
    task raises asyncio.CancelledError at the ``await_()``, where `fn` may catch it.

    If the coroutine is closed, GeneratorExit is raised at the ``await_()``. If the coroutine is
    lost where no fiber may be entered, in the garbage collector or on another thread, FiberExit is
    raised there, at the next opportunity.

    TypeError if `fn` is not callable or is an async function. FiberError if the coroutine is
    continued on another thread, or if the fiber is left by a switch other than ``await_()``'s.
    """
    home = current()
    fiber = _make(fn, args, kwargs, home)
    switch = fiber.switch
    got = switch()
    value: Any = None
    error: BaseException | None = None
    asker: Fiber[Any] = fiber
    while True:
        if got is _ASKS:
            try:
                value = await fiber.asked
            except BaseException as exc:
                error = exc
            else:
                if current() is home:
                    got = switch(value)
                    continue
        elif got is _ASKS_INSIDE:
            asker = fiber.asker
            del fiber.asker  # a cycle: the asker's parents lead to this fiber
            try:
                value = await fiber.asked
            except BaseException as exc:
                error = exc
        elif fiber.done():
            return got  # type: ignore[no-any-return]
        else:
            error = _left_by_switch()
        # This is outside of the handlers: what fn raises later has nothing to do with this error.
        try:
            if isinstance(error, GeneratorExit) and fiber.done():
                raise error  # the collector, which found both, has unwound the fiber first
            if current() is not home:  # another fiber runs the loop than before
                home = _move(fiber, current())
            got = _resume(asker, value, error)
        except FiberError:
            if isinstance(error, GeneratorExit) and not fiber.done():
                raise error from None  # not enterable here: the fiber is unwound when its owner can
            raise
        finally:
            error, asker = None, fiber  # the error's traceback refers to this frame


def _resume(fiber: Fiber[Any], value: Any, error: BaseException | None) -> Any:
    try:
        return fiber.switch(value) if error is None else fiber.throw(error)
    finally:
        del error


def _make(fn: Callable[..., R], args: Any, kwargs: Any, home: Fiber[Any]) -> TaskFiber[R]:
    try:
        fiber: TaskFiber[R] = TaskFiber(fn, args, kwargs=kwargs, context=home.context)
    except TypeError as exc:
        if inspect.iscoroutinefunction(fn):
            raise TypeError(
                f"run_in_fiber() takes an ordinary function, and {fn.__name__}() is an async one: "
                "await it"
            ) from None
        raise TypeError(str(exc).replace("Fiber()", "run_in_fiber()", 1)) from None
    fiber.home = home
    return fiber


def _move(fiber: TaskFiber[Any], here: Fiber[Any]) -> Fiber[Any]:
    """Make ``here`` the fiber's home: another fiber has continued the coroutine."""
    try:
        fiber.parent = fiber.home = here
    except FiberError:
        raise FiberError(
            "the coroutine of a run_in_fiber() was continued on another thread than it began on"
        ) from None
    return here


def _left_by_switch() -> FiberError:
    return FiberError(
        "the fiber of a run_in_fiber() was left by a switch to the fiber that it was called from: "
        "it waits with await_(), and continues elsewhere only in raw fibers of its own"
    )


def await_(awaitable: Awaitable[T]) -> T:
    """Wait for an awaitable, in plain code that ``run_in_fiber()`` or a ``Host`` has called.

    The call may be at any depth of the stack, on that fiber or on raw fibers that it has entered;
    the bodies of its ``pyfiber.generator`` generators are such fibers.

    Returns what ``await`` would return, and raises what it would raise; TypeError if the object
    cannot be awaited.

    In a fiber of a Host a coroutine becomes a task, in the fiber's context, that begins at once
    (Python 3.12 and later). Cancelling the fiber, or a time limit around the call, cancels the task
    or future and waits until it is done.

    Anywhere else this raises FiberError. In a coroutine write ``await``.
    """
    fiber: Any = current()
    if type(fiber) is not TaskFiber:
        return _await_elsewhere(fiber, awaitable)
    fiber.asked = awaitable
    home = fiber.home
    del fiber  # a suspended frame that referred to its own fiber would keep it for ever
    result: T = home.switch(_ASKS)
    return result


def _await_elsewhere(fiber: Fiber[Any], awaitable: Awaitable[T]) -> T:
    """Do what await_() does in a fiber that is not itself the fiber of a ``run_in_fiber()``."""
    outer: Any = fiber.parent
    while outer is not None and type(outer) is not TaskFiber:
        outer = outer.parent
    if outer is None:
        return _host_of(fiber).wait_for(fiber, awaitable)
    outer.asked = awaitable
    outer.asker = fiber
    home = outer.home
    del outer, fiber
    result: T = home.switch(_ASKS_INSIDE)
    return result


def _host_of(fiber: Fiber[Any]) -> Host:
    scheduler = _running_scheduler()
    if isinstance(scheduler, HostedScheduler):
        return scheduler.host
    _load("pyfiber._advice")
    from pyfiber import _advice

    raise FiberError(
        "await_() works in functions that `await pyfiber.aio.run_in_fiber(fn)` calls, and in the "
        f"fibers of a pyfiber.aio.Host; {_advice.no_await()}"
    )
