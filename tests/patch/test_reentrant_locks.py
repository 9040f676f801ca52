"""The interpreter's locks and queues, while their arguments run code that uses them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest

import pyfiber
from pyfiber import Fiber, _engine, current, run, spawn


@pytest.fixture(autouse=True)
def patched() -> Iterator[None]:
    with pyfiber.patch():
        yield
    assert _engine._lot_count() == 0


class Acting:
    """A number that does something while it is converted."""

    def __init__(self, act: Callable[[], object], value: float = 1) -> None:
        self.act = act
        self.value = value

    def __float__(self) -> float:
        self.act()
        return float(self.value)

    def __index__(self) -> int:
        self.act()
        return int(self.value)

    def __bool__(self) -> bool:
        self.act()
        return True


def test_rlock_released_while_its_holder_acquires_it_again() -> None:
    """The lock's entry is free by then, and may be another lock's."""
    lock, other = threading.RLock(), threading.RLock()

    def act() -> None:
        lock.release()
        other.acquire()

    def take_both() -> list[bool]:
        return [lock.acquire(timeout=0) and lock.release() is None for lock in (lock, other)]

    def main() -> None:
        lock.acquire()
        assert lock.acquire(Acting(act))  # type: ignore[arg-type]
        assert spawn(take_both).result() == [False, False]
        lock.release()
        other.release()
        assert spawn(take_both).result() == [True, True]

    run(main)


def test_rlock_acquired_while_its_timeout_is_converted() -> None:
    lock = threading.RLock()

    def main() -> None:
        assert lock.acquire(timeout=Acting(lock.acquire))  # type: ignore[arg-type]
        lock.release()
        assert not spawn(lock.acquire, timeout=0).result()
        lock.release()
        assert spawn(lambda: lock.acquire(timeout=0) and lock.release() is None).result()

    run(main)


def locked() -> Any:
    lock = threading.Lock()
    lock.acquire()
    return lock


def locked_by_a_thread() -> Any:
    lock = threading.RLock()
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    return lock


@pytest.mark.parametrize(
    ("make", "wait", "result"),
    [
        (locked, lambda lock, number: lock.acquire(timeout=number), False),
        (locked_by_a_thread, lambda lock, number: lock.acquire(timeout=number), False),
        (SimpleQueue, lambda queue, number: queue.get(timeout=number), Empty),
    ],
    ids=["Lock", "RLock", "SimpleQueue"],
)
def test_timeout_that_leaves_the_run_blocks_as_ever(
    make: Callable[[], Any], wait: Callable[[Any, Any], Any], result: Any
) -> None:
    """Outside of a run, patched calls do what they did."""
    root, awaited = current(), make()
    way_out: list[Fiber[Any]] = []

    def victim() -> Any:
        try:
            return wait(awaited, Acting(lambda: way_out[-1].switch(), 0.001))
        except Empty as error:
            return type(error)

    def main() -> Fiber[Any]:
        way_out.append(current())
        fiber = Fiber(victim)
        fiber.parent = root
        fiber.switch()
        return fiber

    fiber = run(main)
    way_out.append(root)
    outcome = None
    while not fiber.done():  # the number is converted once more by the interpreter
        outcome = fiber.switch()
    assert outcome is result
