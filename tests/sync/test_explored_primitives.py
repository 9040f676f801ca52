"""pyfiber's primitives under explored schedules while fibers that use them are cancelled anywhere.

Each program has a saboteur, which cancels one of the fibers at some point of some schedule. What
must hold whoever was cancelled when: nothing is lost, nothing stays taken, nobody waits for ever
(that would be a DeadlockError).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    Barrier,
    Cancelled,
    Channel,
    ChannelClosed,
    Condition,
    Event,
    Fiber,
    FiberCancelled,
    Lock,
    Queue,
    RLock,
    Semaphore,
    TaskGroup,
    gather,
    move_on_after,
    now,
    pmap,
    race,
    select,
    sleep,
    spawn,
    spawn_now,
    timeout,
    yield_now,
)
from pyfiber.testing import choose, explore, explore_cancellation


def sabotaged(
    *fibers: Fiber[Any], besides: Fiber[Any] | None = None, patience: int = 6
) -> list[Any]:
    """Cancel one of them at some point, or none; what became of the fibers: result or exception."""

    def sabotage() -> None:
        for _ in range(choose(range(patience))):
            yield_now()
        victim = choose([None, besides, *fibers])
        if victim is not None:
            victim.cancel()

    spawn(sabotage).join()
    return [outcome(fiber) for fiber in fibers]


def outcome(fiber: Fiber[Any]) -> Any:
    try:
        return fiber.result()
    except (FiberCancelled, threading.BrokenBarrierError) as exc:
        return type(exc)


class Section:
    """A critical section: how many are inside, and how many may be."""

    def __init__(self, room: int = 1) -> None:
        self.room = room
        self.inside = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.inside += 1
        try:
            assert self.inside <= self.room
            yield_now()
            yield
        finally:
            self.inside -= 1


def locks() -> None:
    lock, section = Lock(), Section()

    def work() -> None:
        with lock, section.entered():
            yield_now()

    sabotaged(*[spawn(work) for _ in range(3)])
    assert not lock.locked()


def reentrant_locks() -> None:
    lock, section = RLock(), Section()

    def work() -> None:
        with lock, section.entered(), lock:
            yield_now()

    sabotaged(*[spawn(work) for _ in range(3)])
    assert lock.acquire(blocking=False)
    lock.release()


def semaphores() -> None:
    semaphore, section = Semaphore(2), Section(2)

    def work() -> None:
        with semaphore, section.entered():
            yield_now()

    sabotaged(*[spawn(work) for _ in range(4)])
    assert [semaphore.acquire(blocking=False) for _ in range(3)] == [True, True, False]


def timed_locks() -> None:
    lock = Lock()

    def work(patience: float) -> bool:
        if not lock.acquire(timeout=patience):
            return False
        try:
            sleep(1)
        finally:
            lock.release()
        return True

    # Time and the lock come at the same instant for the second and the third.
    sabotaged(*[spawn(work, patience) for patience in (1, 1, 2)])
    assert not lock.locked()


def conditions() -> None:
    condition = Condition()
    items: list[int] = []
    taken: list[int] = []

    def take() -> None:
        with condition:
            try:
                condition.wait_for(lambda: items)
            except Cancelled:
                condition.notify()  # what woke it may have been for another
                raise
            taken.append(items.pop())

    takers = [spawn(take) for _ in range(3)]

    def put() -> None:
        for i in range(3):
            with condition:
                items.append(i)
                condition.notify()
            yield_now()

    putter = spawn(put)
    sabotaged(*takers)
    putter.join()
    assert sorted(items + taken) == [0, 1, 2]
    assert not condition._is_owned()  # type: ignore[attr-defined]


def events() -> None:
    event = Event()
    waiters = [spawn(event.wait) for _ in range(3)]

    def set_later() -> None:
        yield_now()
        event.set()

    spawn(set_later)
    assert set(sabotaged(*waiters)) <= {True, FiberCancelled}
    assert event._waiters() == []


def barriers() -> None:
    barrier = Barrier(3, timeout=5)  # who is cancelled may not have come yet
    outcomes = sabotaged(*[spawn(barrier.wait) for _ in range(3)])
    if FiberCancelled not in outcomes:
        assert sorted(outcomes) == [0, 1, 2]
        assert not barrier.broken
    elif threading.BrokenBarrierError in outcomes:
        assert barrier.broken
    else:  # it was cancelled when the barrier had opened
        assert len(outcomes) - outcomes.count(FiberCancelled) == 2
    barrier.reset()
    assert barrier.n_waiting == 0


def queues() -> None:
    items: Queue[int] = Queue(1)
    put: list[int] = []
    got: list[int] = []

    def produce(base: int) -> None:
        for i in range(2):
            items.put(base + i)
            put.append(base + i)

    def consume() -> None:
        while True:
            got.append(items.get())

    consumers = [spawn(consume) for _ in range(2)]
    sabotaged(spawn(produce, 0), spawn(produce, 10), besides=consumers[0])
    for consumer in consumers:
        consumer.cancel()
        consumer.join()
    while not items.empty():
        got.append(items.get_nowait())
    assert sorted(got) == sorted(put)


def channels() -> None:
    channel: Channel[int] = Channel()
    sent: list[int] = []
    got: list[int] = []

    def produce(base: int) -> None:
        for i in range(2):
            channel.send(base + i)
            sent.append(base + i)

    def consume() -> None:
        with suppress(ChannelClosed):
            while True:
                got.append(channel.receive())

    consumers = [spawn(consume) for _ in range(2)]
    sabotaged(spawn(produce, 0), spawn(produce, 10), besides=consumers[0])
    channel.close()
    for consumer in consumers:
        consumer.join()
    assert sorted(got) == sorted(sent)


def selects() -> None:
    first, second = Channel[int](), Channel[int]()
    sent: list[int] = []
    got: list[int] = []

    def exchange(base: int) -> None:
        """Send to one channel or receive from the other, whatever comes first; twice."""
        for i in range(2):
            match select(first.sending(base + i), second.receiving(), timeout=1):
                case 0, _:
                    sent.append(base + i)
                case 1, value:
                    got.append(value)

    def mirror() -> None:
        for i in range(2):
            match select(second.sending(100 + i), first.receiving(), timeout=1):
                case 0, _:
                    sent.append(100 + i)
                case 1, value:
                    got.append(value)

    sabotaged(spawn(exchange, 0), spawn(exchange, 10), spawn(mirror))
    assert sorted(got) == sorted(sent)


def select_of_fibers() -> None:
    def work(seconds: float) -> float:
        sleep(seconds)
        return seconds

    slow, quick = spawn(work, 2), spawn(work, 1)

    def wait() -> Any:
        with suppress(FiberCancelled):
            index, _ = select(slow.joining(), quick.joining())
            assert (slow, quick)[index].done()

    sabotaged(slow, quick, spawn(wait))


def groups() -> None:
    running = 0

    def work() -> None:
        nonlocal running
        running += 1
        try:
            for _ in range(2):
                yield_now()
        finally:
            running -= 1

    def parent() -> None:
        with TaskGroup() as group:
            for _ in range(2):
                group.spawn(work)
            yield_now()
            group.spawn(work)

    sabotaged(spawn(parent))
    assert running == 0  # none outlives its group


def races() -> None:
    running = 0

    def run(number: int) -> int:
        nonlocal running
        running += 1
        try:
            for _ in range(number + 1):
                yield_now()
            return number
        finally:
            running -= 1

    def main() -> int:
        try:
            return race(*[lambda i=i: run(i) for i in range(3)])
        finally:
            assert running == 0

    (result,) = sabotaged(spawn(main))
    assert result in (0, 1, 2, FiberCancelled)


def maps() -> None:
    section = Section(2)

    def square(n: int) -> int:
        with section.entered():
            yield_now()
            return n * n

    def main() -> list[int]:
        with pmap(square, range(4), limit=2) as results:
            return list(results)

    (result,) = sabotaged(spawn(main), patience=12)
    assert result in ([0, 1, 4, 9], FiberCancelled)
    assert section.inside == 0


def gathers() -> None:
    ended: list[int] = []

    def work(number: int) -> int:
        try:
            yield_now()
            return number
        finally:
            ended.append(number)

    def main() -> list[int]:
        return gather(*[lambda i=i: work(i) for i in range(3)])

    (result,) = sabotaged(spawn(main))
    assert result in ([0, 1, 2], FiberCancelled)
    assert len(ended) == len(set(ended))


def timeouts() -> None:
    def within() -> str:
        try:
            with timeout(2):
                with move_on_after(1) as inner:
                    sleep(1)  # the deadline and the end at the same instant
                assert now() == 1
                assert isinstance(inner.cancelled(), bool)
                sleep(2)
        except TimeoutError:
            assert now() == 2
            return "timed out"
        return "in time"

    (result,) = sabotaged(spawn(within))
    assert result in ("timed out", FiberCancelled)


def immediate() -> None:
    """A tree of fibers, each of which runs when it is spawned, as far as it gets."""
    ended: list[int] = []

    def node(depth: int) -> int:
        try:
            if depth == 0:
                yield_now()
                return 1
            return sum(child.result() for child in [spawn_now(node, depth - 1) for _ in range(2)])
        finally:
            ended.append(depth)

    (result,) = sabotaged(spawn_now(node, 2))
    assert result in (4, FiberCancelled)
    assert result is FiberCancelled or sorted(ended) == [0] * 4 + [1] * 2 + [2]


PROGRAMS: dict[str, Callable[[], None]] = {
    program.__name__: program
    for program in (
        locks,
        reentrant_locks,
        semaphores,
        timed_locks,
        conditions,
        events,
        barriers,
        queues,
        channels,
        selects,
        select_of_fibers,
        groups,
        races,
        maps,
        gathers,
        timeouts,
        immediate,
    )
}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)


@programs
@pytest.mark.parametrize("strategy", ["random", "pct"])
def test_primitive_holds_when_users_of_it_are_cancelled(program: Any, strategy: Any) -> None:
    found = explore(program, 400, strategy)
    assert found.distinct > 10


@programs
def test_primitive_holds_when_preempted_and_unfair(program: Any) -> None:
    explore(program, 300, "random", preempt=True, unfair=True)


@programs
def test_primitive_holds_in_every_schedule_near_the_usual_one(program: Any) -> None:
    explore(program, 300, "dfs")


# In the others fibers wait for what another one does, which may be the one cancelled.
ENDING = [name for name in PROGRAMS if name not in ("conditions", "events", "queues", "channels")]


@pytest.mark.parametrize("name", ENDING)
def test_primitive_holds_when_any_wait_is_cancelled(name: str) -> None:
    assert explore_cancellation(PROGRAMS[name]) > 5


def test_saboteur_finds_a_lock_that_forgets_its_cancelled_owner() -> None:
    """The programs above can fail: this lock does not let go."""

    class Careless:
        def __init__(self) -> None:
            self.lock = Lock()

        def __enter__(self) -> None:
            self.lock.acquire()

        def __exit__(self, kind: object, *_: object) -> None:
            if kind is None:
                self.lock.release()

    def main() -> None:
        lock = Careless()

        def work() -> None:
            with lock:
                yield_now()

        sabotaged(*[spawn(work) for _ in range(2)])

    with pytest.raises(pyfiber.testing.ScheduleFailure, match="DeadlockError"):
        explore(main, 400)
