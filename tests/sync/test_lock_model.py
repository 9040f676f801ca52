"""Semaphores, locks and queues against a model: served in order, nothing lost when cancelled.

As in test_select_model.py a director does things without yielding, so that a waiter can be served
and cancelled before it runs.
"""

from __future__ import annotations

import queue
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyfiber
from pyfiber import Cancelled, Fiber, run, spawn


class Waiters:
    """Fibers that each try one thing; and what became of it."""

    def __init__(self) -> None:
        self.fibers: list[Fiber[Any]] = []
        self.outcomes: list[Any] = []

    def start(self, operation: Any) -> None:
        number = len(self.outcomes)
        self.outcomes.append("waits")

        def body() -> None:
            try:
                self.outcomes[number] = operation()
            except Cancelled:
                self.outcomes[number] = "cancelled"

        self.fibers.append(spawn(body))
        pyfiber.yield_now()

    def end(self) -> None:
        for fiber in self.fibers:
            fiber.cancel()
        for fiber in self.fibers:
            fiber.join()


class LineModel:
    """Who waits, in order."""

    def __init__(self) -> None:
        self.outcomes: list[Any] = []
        self.line: list[int] = []
        self.cancelled: set[int] = set()

    def settle(self) -> None:
        for number in [n for n in self.line if n in self.cancelled]:
            self.line.remove(number)
            self.outcomes[number] = "cancelled"

    def serve(self, outcome: Any) -> None:
        self.outcomes[self.line.pop(0)] = outcome

    def begin(self) -> int:
        self.settle()
        self.outcomes.append("waits")
        return len(self.outcomes) - 1


steps = st.lists(
    st.one_of(
        st.just(("acquire",)),
        st.just(("release",)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.just(("settle",)),
    ),
    max_size=40,
)


def count_permits(semaphore: Any, value: int, program: list[tuple[Any, ...]]) -> None:
    waiters, model = Waiters(), LineModel()
    for step, *arguments in program:
        if step == "acquire":
            number = model.begin()
            if value:
                value -= 1
                model.outcomes[number] = True
            else:
                model.line.append(number)
            waiters.start(semaphore.acquire)
        elif step == "release":
            taken = isinstance(semaphore, pyfiber.Semaphore) or semaphore.locked()
            if not taken:
                continue
            if model.line:
                model.serve(True)
            else:
                value += 1
            semaphore.release()
        elif step == "cancel" and waiters.fibers:
            number = arguments[0] % len(waiters.fibers)
            model.cancelled.add(number)
            waiters.fibers[number].cancel()
        elif step == "settle":
            model.settle()
            for _ in range(3):
                pyfiber.yield_now()
        assert len(semaphore._waiters()) == len(model.line)
    waiters_of = [fiber for fiber in waiters.fibers if fiber in semaphore._waiters()]
    assert waiters_of == semaphore._waiters(), "not in the order of coming"
    waiters.end()
    model.cancelled.update(model.line)
    model.settle()
    assert waiters.outcomes == model.outcomes
    free = 0
    while semaphore.acquire(False):
        free += 1
    assert free == value


@pytest.mark.parametrize(
    ("make", "value"),
    [(pyfiber.Lock, 1), (pyfiber.Semaphore, 1), (lambda: pyfiber.Semaphore(2), 2)],
    ids=["Lock", "Semaphore", "Semaphore(2)"],
)
@settings(max_examples=150, deadline=None)
@given(program=steps)
def test_locks_go_to_who_waits_longest(make, value, program):
    run(lambda: count_permits(make(), value, program))


queue_steps = st.lists(
    st.one_of(
        st.just(("put",)),
        st.just(("get",)),
        st.just(("put now",)),
        st.just(("get now",)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.just(("settle",)),
        st.tuples(st.just("shutdown"), st.booleans()),
    ),
    max_size=40,
)


class QueueModel(LineModel):
    """Either getters or putters wait; items of putters are numbered as they are."""

    def __init__(self, maxsize: int, newest_first: bool) -> None:
        super().__init__()
        self.maxsize = maxsize
        self.newest_first = newest_first
        self.items: list[int] = []
        self.getting = True
        self.shut = False

    def put(self, item: int) -> Any:
        """None: would wait."""
        if self.shut:
            return "shut"
        if self.line and self.getting:
            self.serve(item)
        elif len(self.items) < self.maxsize:
            self.items.append(item)
        else:
            return None
        return "put"

    def get(self) -> Any:
        if not self.items:
            return "shut" if self.shut else None
        item = self.items.pop(-1 if self.newest_first else 0)
        if self.line and not self.getting:
            self.items.append(self.line[0])
            self.serve("put")
        return item

    def shutdown(self, immediate: bool) -> None:
        self.shut = True
        while self.line:
            self.serve("shut")
        if immediate:
            self.items.clear()


def outcome_of(operation: Any, *arguments: Any) -> Any:
    try:
        result = operation(*arguments)
    except pyfiber.ShutDown:
        return "shut"
    except (queue.Empty, queue.Full):
        return None
    return "put" if result is None else result


def follow_queue(q: Any, model: QueueModel, program: list[tuple[Any, ...]]) -> None:
    waiters = Waiters()
    for count, (step, *arguments) in enumerate(program):
        if step in ("put", "get"):
            number = model.begin()
            result = model.put(number) if step == "put" else model.get()
            if result is None:
                model.getting = step == "get"
                model.line.append(number)
            else:
                model.outcomes[number] = result
            arguments = [number] if step == "put" else []
            waiters.start(partial(outcome_of, getattr(q, step), *arguments))
        elif step == "put now":
            assert outcome_of(q.put_nowait, 1000 + count) == model.put(1000 + count)
        elif step == "get now":
            assert outcome_of(q.get_nowait) == model.get()
        elif step == "cancel" and waiters.fibers:
            number = arguments[0] % len(waiters.fibers)
            model.cancelled.add(number)
            waiters.fibers[number].cancel()
        elif step == "settle":
            model.settle()
            for _ in range(3):
                pyfiber.yield_now()
        elif step == "shutdown":
            model.shutdown(*arguments)
            q.shutdown(*arguments)
        assert q.qsize() == len(model.items)
    waiters.end()
    model.cancelled.update(model.line)
    model.settle()
    assert waiters.outcomes == model.outcomes
    rest = []
    while not q.empty():
        rest.append(q.get())
    assert rest == (model.items[::-1] if model.newest_first else model.items)


@pytest.mark.parametrize("kind", [pyfiber.Queue, pyfiber.LifoQueue])
@settings(max_examples=250, deadline=None)
@given(program=queue_steps, maxsize=st.integers(1, 3))
def test_queues_do_what_the_model_does(kind, program, maxsize):
    model = QueueModel(maxsize, newest_first=kind is pyfiber.LifoQueue)
    run(lambda: follow_queue(kind(maxsize), model, program))
