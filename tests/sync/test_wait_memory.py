"""A wait takes its memory before it changes anything, and gives it back however it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Channel,
    Condition,
    Event,
    Lock,
    Queue,
    RLock,
    Scheduler,
    Semaphore,
    current,
    select,
    spawn,
    yield_now,
)
from tests.conftest import Child
from tests.support.growth import bytes_left

#: So many fibers wait at a time: more than a thread keeps memory for.
WAITS = 600
#: Bytes: the memory of a wait takes 104 or more.
FEW = WAITS * 50


def held(lock: Any) -> Any:
    lock.acquire()
    return lock


def queue_of_one() -> Queue[int]:
    queue: Queue[int] = Queue(1)
    queue.put(0)
    return queue


def notified() -> Callable[[], object]:
    condition = Condition()

    def wait() -> None:
        with condition:
            condition.wait()

    return wait


def select_of(number: int) -> Callable[[], object]:
    channels = [Channel[int]() for _ in range(number)]
    return lambda: select(*[channel.receiving() for channel in channels])


#: What makes a function that waits for ever.
MADE: dict[str, Callable[[], Callable[[], object]]] = {
    "Lock": lambda: held(Lock()).acquire,
    "RLock": lambda: held(RLock()).acquire,
    "Semaphore": lambda: Semaphore(0).acquire,
    "Event": lambda: Event().wait,
    "Condition": notified,
    "put": lambda: partial(queue_of_one().put, 1),
    "get": lambda: Queue[int]().get,
    "Queue.join": lambda: queue_of_one().join,
    "receive": lambda: Channel[int]().receive,
    "send": lambda: partial(Channel[int]().send, 1),
    "join": lambda: current().join,
    "select": lambda: select_of(3),
    "select of many": lambda: select_of(20),
}


def start(name: str) -> list[Any]:
    wait = MADE[name]()

    def waits() -> None:
        with suppress(Cancelled):
            wait()

    fibers = [spawn(waits) for _ in range(WAITS)]
    yield_now()
    return fibers


def cancel_all(name: str) -> None:
    fibers = start(name)
    for fiber in fibers:
        fiber.cancel()
    for fiber in fibers:
        fiber.join()


@pytest.mark.parametrize("name", MADE)
def test_wait_that_is_cancelled_gives_its_memory_back(name: str) -> None:
    with closing(Scheduler()) as scheduler:
        scheduler.run(cancel_all, name)
        left = bytes_left(lambda: scheduler.run(cancel_all, name), 1, FEW)
    assert left < FEW


@pytest.mark.parametrize("name", MADE)
def test_wait_of_a_fiber_that_is_unwound_gives_its_memory_back(name: str) -> None:
    def unwind_all() -> None:
        with closing(Scheduler()) as scheduler:
            scheduler.spawn(start, name)
            for _ in range(3):
                scheduler.run_once()

    unwind_all()
    assert bytes_left(unwind_all, 1, FEW) < FEW


# without memory -----------------------------------------------------------------------------------

#: Fibers that wait for ever have what this thread has kept for waits.
WITHOUT_MEMORY = """
import _testcapi
from pyfiber import *

no_memory, memory = _testcapi.set_nomemory, _testcapi.remove_mem_hooks

over = Event()

def take_all_that_is_kept():
    for _ in range(50):
        spawn(over.wait)
    yield_now()

def fails(wait, *args):
    try:
        no_memory(0)
        wait(*args)
        return False
    except MemoryError:
        return True
    finally:
        memory()

"""


def test_wait_without_memory_takes_nothing_and_leaves_nothing_in_line(child: Child) -> None:
    pytest.importorskip("_testcapi")
    done = child(
        WITHOUT_MEMORY
        + """
def main():
    lock, semaphore, event = Lock(), Semaphore(0), Event()
    full, empty, values = Queue(1), Queue(), Channel()
    lock.acquire(), full.put(0)
    condition, target = Condition(), spawn(park)
    condition.acquire()
    take_all_that_is_kept()
    assert fails(lock.acquire)
    assert fails(semaphore.acquire)
    assert fails(event.wait)
    assert fails(full.put, 1)
    assert fails(full.join)
    assert fails(empty.get)
    assert fails(values.receive)
    assert fails(values.send, 1)
    assert fails(target.join)
    assert fails(condition.wait)
    for each in lock, semaphore, event, full, empty, values, condition:
        assert each._waiters() == [], each
    condition.release()  # it was not freed
    lock.release(), semaphore.release()
    assert lock.acquire(False) and semaphore.acquire(False)
    assert full.get() == 0 and full.empty()
    target.unpark(), target.join()
    over.set()
    return "nothing lost"

print(Scheduler(slots=0).run(main))  # packing needs memory, too
"""
    )
    assert done.stdout == "nothing lost\n", done.stderr


def test_condition_takes_its_lock_again_without_memory(child: Child) -> None:
    """Somebody else has been given the lock meanwhile, so that it has to wait."""
    pytest.importorskip("_testcapi")
    done = child(
        WITHOUT_MEMORY
        + """
def main():
    lock = Lock()
    condition = Condition(lock)
    acquire, release, wait = lock.acquire, lock.release, condition.wait

    def waits():
        acquire()
        got.append(wait())
        got.append(lock.locked())
        release()

    def next_in_line():
        acquire()
        turn()  # who was notified comes, and cannot have the lock
        memory()
        got.append("memory")
        release()

    got, turn = [], yield_now
    first = spawn(waits)
    yield_now()
    acquire()
    second = spawn(next_in_line)
    yield_now()
    take_all_that_is_kept()
    condition.notify()
    no_memory(0)
    release()
    turn(), turn()
    second.join(), first.join()
    over.set()
    return got

print(Scheduler(slots=0).run(main))  # packing needs memory, too
"""
    )
    assert done.stdout == "['memory', True, True]\n", done.stderr
