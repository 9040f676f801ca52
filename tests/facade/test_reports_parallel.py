"""Reports on fibers that run on other threads at that moment: they may be out of date, no more."""

from __future__ import annotations

import contextlib
import io
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyfiber
from pyfiber import (
    Channel,
    Fiber,
    FiberError,
    Lock,
    Semaphore,
    TaskGroup,
    _engine,
    _report,
    emit,
    generator,
    local,
    metrics,
    yield_now,
)
from pyfiber._debug.snapshot import snapshot
from pyfiber.debug import dump_fibers, stack_stats
from pyfiber.grains import Grain
from tests.support.gil import GIL
from tests.support.parallel import in_parallel

QUESTIONS = 25


@generator
def emitted() -> None:
    for n in range(3):
        yield_now()
        emit(n)


def stepped() -> Iterator[Any]:
    inner = iter([None] * 3)
    yield from inner


def deep(n: int) -> int:
    return deep(n - 1) + 1 if n else yield_now() or 0


def busy(lock: Lock, semaphore: Semaphore) -> None:
    """A bit of everything, again and again on new fibers."""
    mine = local()
    channel: Channel[int] = Channel(1)

    def child(n: int) -> None:
        with lock:
            yield_now()
        with semaphore:
            mine.value = n
            deep(n)
        channel.send(n)

    with TaskGroup() as group:
        for n in range(4):
            group.spawn(child, n)
        group.spawn(lambda: sum(emitted()))
        assert sorted(channel.receive() for _ in range(4)) == [0, 1, 2, 3]
    Grain(stepped()).start()
    Fiber(deep, (5,), name="named").start().result()


def everything_of(fiber: Fiber[Any]) -> None:
    what = fiber.waiting_on
    fiber.stack()
    _report.holders_of(what)
    _report.wait_of(fiber)
    _report.title_of(fiber)
    str([fiber.state, fiber.name, repr(fiber), fiber.parent, fiber.outcome, fiber.daemon])
    for ask in (lambda: fiber.frame, lambda: fiber.context):
        with contextlib.suppress(FiberError):  # another thread's
            ask()
    _engine._places(fiber)
    _engine._waited(fiber)
    _engine._calls(fiber)
    repr(_engine._scheduler_of(fiber))
    _report.groups_of(fiber)


def ask_fibers() -> None:
    for _, current, root, _, fibers in _engine._threads():
        for fiber in [current, root, *fibers[:3]]:
            everything_of(fiber)


def ask_dump() -> None:
    dump_fibers(io.StringIO(), all_threads=True)


def ask_deadlock_text() -> None:
    _report.deadlock_text([f for *_, fibers in _engine._threads() for f in fibers[:5]])


QUESTION: list[Callable[[], Any]] = [
    ask_fibers,
    ask_dump,
    ask_deadlock_text,
    snapshot,
    metrics.render,
    stack_stats,
]


def test_reports_are_made_while_seven_threads_run() -> None:
    lock, semaphore = Lock(), Semaphore(2)
    over = threading.Event()
    chosen = random.Random(1)

    def body(i: int) -> int:
        if i == 0:
            for _ in range(QUESTIONS):
                chosen.choice(QUESTION)()
            over.set()
        turns = 0
        while not over.is_set():
            busy(lock, semaphore)
            turns += 1
        return turns

    turns = in_parallel(body)
    assert not any(turn is None for turn in turns)
    assert sum(turns) > 0


def in_thread_that_waits(fn: Callable[[], Any]) -> Any:
    """fn() while a fiber of another thread is parked."""
    began, over = threading.Event(), threading.Event()
    parked: list[Fiber[Any]] = []

    def innermost() -> None:
        pyfiber.park()

    def main() -> None:
        parked.append(Fiber(innermost, name="asleep").start())
        yield_now()
        began.set()
        over.wait()
        parked[0].unpark()

    thread = threading.Thread(target=pyfiber.run, args=(main,))
    thread.start()
    assert began.wait(10)
    try:
        return fn(parked[0])
    finally:
        over.set()
        thread.join()


def test_stack_of_a_fiber_of_another_thread_is_told() -> None:
    stack = in_thread_that_waits(lambda fiber: fiber.stack())
    assert [call.name for call in stack] == ["innermost"]
    assert stack[0].line == "pyfiber.park()"


def test_frame_of_a_fiber_of_another_thread_is_refused_without_the_gil() -> None:
    def frame(fiber: Fiber[Any]) -> str:
        try:
            return fiber.frame.f_code.co_name  # type: ignore[union-attr]
        except FiberError as exc:
            return "refused" if "stack()" in str(exc) else str(exc)

    assert in_thread_that_waits(frame) == ("innermost" if GIL else "refused")


def test_snapshot_tells_the_calls_of_another_thread() -> None:
    def calls(fiber: Fiber[Any]) -> list[Any]:
        groups = [group for thread in snapshot()["threads"] for group in thread["groups"]]
        return [g["stack"][-1][2] for g in groups if "asleep" in g["names"]]

    found = in_thread_that_waits(calls)
    assert [name.rpartition(".")[2] for name in found] == ["innermost"]


def test_holder_on_another_thread_is_named() -> None:
    lock = Lock()
    lock.acquire()

    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(lock._holders()))
    thread.start()
    thread.join()
    lock.release()
    assert found == [pyfiber.current()]


def test_time_that_a_fiber_of_another_thread_has_waited_is_told() -> None:
    waited = in_thread_that_waits(_engine._waited)
    assert 0 <= waited < time.monotonic()
