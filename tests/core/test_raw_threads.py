"""The end of a thread: code that runs then, and fibers left suspended there."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

from pyfiber import Fiber, FiberError, Scheduler, current, local
from tests.support.threads import PATIENCE


def in_thread(fn: Callable[[], object]) -> None:
    thread = threading.Thread(target=fn)
    thread.start()
    thread.join()


def attempt(act: Callable[[], object], log: list[str]) -> None:
    try:
        act()
        log.append("done")
    except FiberError as refusal:
        log.append(str(refusal))


class Dies:
    """Calls a function when it dies."""

    def __init__(self, last_act: Callable[[], object]) -> None:
        self.last_act = last_act

    def __del__(self) -> None:
        self.last_act()


def test_callback_of_a_threads_own_fiber_is_refused_a_current_one() -> None:
    log: list[str] = []
    kept: list[object] = []

    def body() -> None:
        kept.append(weakref.ref(current(), lambda _: attempt(current, log)))

    in_thread(body)
    assert log == ["the thread is ending: no fibers any more"]


def test_fiber_that_ended_with_its_thread_can_be_looked_at() -> None:
    fibers: list[Fiber[Any]] = []

    def body() -> None:
        main = current()
        fibers.extend([main, Fiber(main.switch)])
        fibers[1].switch()

    in_thread(body)
    assert [(f.state, f.context, f.frame, f.waiting_on) for f in fibers] == [
        ("done", None, None, None)
    ] * 2


def test_scheduler_cannot_be_made_where_a_thread_ends() -> None:
    log: list[str] = []
    fibers: list[Fiber[Any]] = []

    def body() -> None:
        main = current()

        def waits() -> None:
            try:
                main.switch()
            finally:
                attempt(Scheduler, log)

        fibers.append(Fiber(waits))
        fibers[0].switch()

    in_thread(body)
    assert log == ["the thread is ending: no schedulers any more"]
    assert fibers[0].done()
    gc.collect()


def test_fiber_cannot_be_left_suspended_where_a_thread_ends() -> None:
    log: list[str] = []
    mine = local()

    def begin() -> None:
        main = current()
        Fiber(lambda: main.switch()).switch()

    def body() -> None:
        mine.value = Dies(lambda: attempt(begin, log))

    in_thread(body)
    assert log == ["cannot leave this fiber while its thread ends"]


def test_locals_that_come_back_as_a_thread_ends_are_given_up() -> None:
    log: list[str] = []
    mine = local()
    values = iter(range(30))

    def renew() -> None:
        if next(values, None) is not None:
            mine.value = Dies(lambda: attempt(renew, log))

    in_thread(renew)
    assert "the thread is ending: no fibers any more" in log


def test_fiber_that_another_thread_dropped_goes_with_its_own() -> None:
    """The reference that is left to its thread is dropped also if the end comes otherwise."""

    def body() -> None:
        main = current()
        fiber: Fiber[Any] = Fiber(main.switch)
        fiber.switch()
        held.append(fiber)
        reference.append(weakref.ref(fiber))
        del fiber
        ready.set()
        dropped.wait(PATIENCE)

    held: list[Fiber[Any]] = []
    reference: list[weakref.ref[Fiber[Any]]] = []
    ready, dropped = threading.Event(), threading.Event()
    thread = threading.Thread(target=body)
    thread.start()
    assert ready.wait(PATIENCE)
    held.clear()
    dropped.set()
    thread.join(PATIENCE)
    assert [fiber() for fiber in reference] == [None]
