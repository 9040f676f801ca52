"""What dies while an exception is on its way does not take it along."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

import pyfiber
from pyfiber import Fiber, Scheduler, current, greenlet
from pyfiber.grains import GrainPool

MARK = KeyError("mark")


def raises_while_it_dies(things: list[Any]) -> bool:
    """The iterator, whose list alone holds the things, goes when the exception leaves the loop."""
    try:
        for _ in [None, *things, things.clear()]:
            raise MARK
    except KeyError as error:
        return error is MARK
    return False


def fail() -> None:
    raise ValueError("it failed")


def suspended() -> Any:
    fiber: Fiber[Any] = Fiber(current().switch)
    fiber.switch()
    return fiber


def failing_at_its_end() -> Any:
    def work() -> None:
        try:
            current().parent.switch()  # type: ignore[union-attr]
        finally:
            raise ValueError

    fiber: Fiber[Any] = Fiber(work)
    fiber.switch()
    return fiber


def failed() -> Any:
    fiber: Fiber[Any] = Fiber(fail)
    with pytest.raises(ValueError, match="it failed"):
        fiber.switch()
    return fiber


def of_an_ended_thread(make: Callable[[], Any]) -> Any:
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(make()))
    thread.start()
    thread.join()
    return made.pop()


def record() -> Any:
    """What a thread's state refers to: in its dict is what pyfiber knows of the thread."""
    current()
    return [
        thing for thing in gc.get_objects() if type(thing) is dict and "pyfiber.thread" in thing
    ]


def generator() -> Any:
    @pyfiber.generator
    def emitting() -> None:
        pyfiber.emit(1)

    it = emitting()
    next(it)
    return it


def suspended_greenlet() -> Any:
    it = greenlet.greenlet(lambda: greenlet.getcurrent().parent.switch())
    it.switch()
    return it


def scheduler() -> Any:
    made = Scheduler()
    made.run(lambda: None)
    return made


def channel() -> Any:
    made: pyfiber.Channel[Any] = pyfiber.Channel(3)
    pyfiber.run(lambda: made.send(failed()))
    return made


MAKERS: list[Callable[[], Any]] = [
    suspended,
    failing_at_its_end,
    failed,
    lambda: of_an_ended_thread(suspended),
    lambda: of_an_ended_thread(current),
    lambda: of_an_ended_thread(record),
    lambda: of_an_ended_thread(scheduler),
    generator,
    suspended_greenlet,
    scheduler,
    channel,
    pyfiber.Queue,
    pyfiber.Lock,
    pyfiber.RLock,
    pyfiber.Condition,
    lambda: pyfiber.threads.ThreadLimiter(1),
    pyfiber.local,
    pyfiber.threads.OneThread,
    pyfiber.CancelScope,
    pyfiber.TaskGroup,
    GrainPool,
    Future,
]


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.filterwarnings("ignore")
def test_exception_outlives_what_dies_with_its_frame(make: Callable[[], Any]) -> None:
    assert raises_while_it_dies([make()])
