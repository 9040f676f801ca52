"""A failure that is stored and raised again and again: its traceback stays as long as it was."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import TracebackType
from typing import Any

import pytest

import pyfiber
from pyfiber import grains


class NoSuchUserError(Exception):
    pass


def fails() -> None:
    raise NoSuchUserError


def failing_grain() -> Iterator[Any]:
    yield grains.READY
    fails()


def length(traceback: TracebackType | None) -> int:
    count = 0
    while traceback is not None:
        count, traceback = count + 1, traceback.tb_next
    return count


def lengths(ask: Callable[[], object]) -> set[int]:
    found = set()
    for _ in range(5):
        with pytest.raises(NoSuchUserError) as caught:
            ask()
        found.add(length(caught.value.__traceback__))
    return found


def ended_fiber() -> Callable[[], object]:
    fiber = pyfiber.spawn(fails)
    fiber.join()
    return fiber.result


def ended_grain() -> Callable[[], object]:
    grain = grains.spawn(failing_grain())
    grain.join()
    return grain.result


def joined_by_another() -> Callable[[], object]:
    """The failure goes through two fibers, each of which keeps its own part of the traceback."""
    inner = pyfiber.spawn(fails)
    outer = pyfiber.spawn(inner.result)
    outer.join()
    return outer.result


def future_of_a_thread() -> Callable[[], object]:
    future: Future[None] = Future()
    thread = threading.Thread(target=lambda: future.set_exception(NoSuchUserError()))
    thread.start()
    thread.join()
    return lambda: pyfiber.await_future(future)


def future_of_an_executor() -> Callable[[], object]:
    with pyfiber.threads.FiberExecutor() as executor:
        future = executor.submit(fails)
    return future.result


def ended_pool() -> Callable[[], object]:
    pool = grains.GrainPool(on_error="pool").start()
    pool.queue(failing_grain)
    while pool.error is None:
        pyfiber.yield_now()
    return pool.shutdown


@pytest.mark.parametrize(
    "make",
    [
        ended_fiber,
        ended_grain,
        joined_by_another,
        future_of_a_thread,
        future_of_an_executor,
        ended_pool,
    ],
    ids=lambda make: make.__name__,
)
def test_traceback_of_a_failure_does_not_grow_with_each_call(
    make: Callable[[], Callable[[], object]],
) -> None:
    """A cached result that was asked for 5,000 times kept 5,000 frames alive."""

    def main() -> None:
        assert len(lengths(make())) == 1

    pyfiber.run(main)


def test_traceback_shows_where_it_failed_and_who_asks() -> None:
    def main() -> None:
        ask = ended_fiber()
        for _ in range(2):
            with pytest.raises(NoSuchUserError) as caught:
                ask()
            names = [entry.name for entry in caught.traceback]
            assert names == ["main", "fails"]

    pyfiber.run(main)


def test_frames_of_those_who_asked_are_not_kept() -> None:
    class Thing:
        pass

    def main() -> None:
        ask = ended_fiber()

        def asks() -> weakref.ref[Thing]:
            thing = Thing()
            with pytest.raises(NoSuchUserError):
                ask()
            return weakref.ref(thing)

        kept = [asks() for _ in range(3)]
        gc.collect()
        assert sum(ref() is not None for ref in kept) <= 1, sys.version

    pyfiber.run(main)
