"""pyfiber's own primitives under test: virtual timeouts, explored orders, cancellation."""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections.abc import Callable
from operator import methodcaller
from typing import Any

import pytest

from pyfiber import (
    Channel,
    Condition,
    Event,
    Fiber,
    FiberExit,
    Lock,
    Queue,
    Semaphore,
    TaskGroup,
    current,
    move_on_after,
    now,
    park,
    select,
    sleep,
    spawn,
    timeout,
    yield_now,
)
from pyfiber.testing import ScheduleFailure, choose, explore, explore_cancellation, replay, run
from tests.support.threads import in_thread


def timed_out_by_scope() -> None:
    with timeout(5):
        park()


def timed_out_queue() -> None:
    try:
        Queue[int]().get(timeout=5)
    except queue.Empty:
        raise TimeoutError from None


def timed_out_lock() -> None:
    lock = Lock()
    lock.acquire()
    if not spawn(lock.acquire, timeout=5).result():
        raise TimeoutError


def timed_out_channel() -> None:
    Channel[int]().receive(timeout=5)


def timed_out_event() -> None:
    if not Event().wait(timeout=5):
        raise TimeoutError


def timed_out_select() -> None:
    if select(Channel[int]().receiving(), timeout=5) is None:
        raise TimeoutError


WAITS: list[Callable[[], None]] = [
    timed_out_by_scope,
    timed_out_queue,
    timed_out_lock,
    timed_out_channel,
    timed_out_event,
    timed_out_select,
]


@pytest.mark.parametrize("wait", WAITS, ids=lambda wait: wait.__name__)
def test_timeouts_of_primitives_obey_the_virtual_clock(wait: Callable[[], None]) -> None:
    def main() -> float:
        with pytest.raises(TimeoutError):
            wait()
        return now()

    assert run(main) == 5.0


def test_deadline_and_result_at_the_same_instant_come_in_both_orders() -> None:
    outcomes = set()

    def main() -> None:
        with move_on_after(1) as scope:
            sleep(1)
        outcomes.add(scope.cancelled())

    explore(main, 100)
    assert outcomes == {True, False}


def test_lock_serves_waiters_in_their_order_unless_unfair() -> None:
    def main() -> None:
        lock = Lock()
        served: list[int] = []

        def use(i: int) -> None:
            with lock:
                served.append(i)

        with lock:
            fibers = []
            for i in range(3):
                fibers.append(spawn(use, i))
                yield_now()
                while fibers[-1].state != "parked":
                    yield_now()
        for fiber in fibers:
            fiber.join()
        assert served == [0, 1, 2]

    assert explore(main, 300).schedules == 300
    with pytest.raises(ScheduleFailure) as failure:
        explore(main, 300, unfair=True)
    assert "who is woken" in failure.value.log
    with pytest.raises(ScheduleFailure):
        replay(main, failure.value.schedule)


def test_unfair_primitives_serve_waiters_in_every_order() -> None:
    orders: set[tuple[int, ...]] = set()

    def main() -> None:
        semaphore, order = Semaphore(0), list[int]()
        fibers = [spawn(semaphore.acquire) for _ in range(3)]
        while any(fiber.state != "parked" for fiber in fibers):
            yield_now()
        line = semaphore._waiters()  # type: ignore[attr-defined]
        before = list(line)
        for _ in fibers:
            semaphore.release()
            after = semaphore._waiters()  # type: ignore[attr-defined]
            order += [line.index(fiber) for fiber in before if fiber not in after]
            before = after
        for fiber in fibers:
            fiber.join()
        orders.add(tuple(order))

    explore(main, 300, unfair=True)
    assert orders == set(itertools.permutations(range(3)))


@pytest.mark.parametrize(
    "act",
    [
        lambda: Lock().acquire(),
        lambda: Semaphore().acquire(),
        lambda: Event().set(),
        lambda: Queue[int]().put(1),
        lambda: Queue[int](1).put(1, block=False),
        lambda: Channel[int](1).send(1),
        lambda: put_and_get(Queue[int]()),
        lambda: send_and_receive(Channel[int](1)),
        lambda: methodcaller("unpark")(current()),  # which looks whether an exception is set
    ],
)
def test_fiber_unwound_where_it_was_preempted_does_nothing_more(act: Callable[[], object]) -> None:
    """The run ends as a livelock while it stands between two steps of a primitive."""
    ends: list[type[BaseException]] = []
    places: set[str] = set()

    def acts() -> None:
        try:
            while True:
                place = "acts"
                act()
                place = "yields"
                yield_now()
        except BaseException as exc:
            ends.append(type(exc))
            places.add(place)
            raise

    def main() -> None:
        if choose([True, False]):
            return  # always in the usual order, which comes first: nobody is preempted there
        for _ in range(2):
            spawn(acts)
        while True:
            yield_now()

    for seed in range(5):
        with pytest.raises(ScheduleFailure, match="LivelockError"):
            explore(main, 20, seed=seed, preempt=True, max_steps=50)
    assert set(ends) == {FiberExit}
    assert "acts" in places


def put_and_get(queue: Queue[int]) -> None:
    queue.put(1)
    queue.get()


def send_and_receive(channel: Channel[int]) -> None:
    channel.send(1)
    channel.receive()


def test_thread_serves_who_waits_longest_while_others_explore() -> None:
    """It has no scheduler that could choose."""

    def main() -> None:
        lock = Lock()

        def use() -> None:
            with lock:
                pass

        lock.acquire()
        fibers = [spawn(use) for _ in range(2)]
        while any(fiber.state != "parked" for fiber in fibers):
            yield_now()
        first = lock._waiters()[0]  # type: ignore[attr-defined]
        thread = threading.Thread(target=lock.release)
        thread.start()
        thread.join()
        assert lock._holders() == [first]  # type: ignore[attr-defined]
        for fiber in fibers:
            fiber.join()

    explore(main, 20, unfair=True, threads=True)


def test_thread_selects_while_others_explore() -> None:
    def main() -> None:
        channel = Channel[int](1)
        channel.send(1)
        assert in_thread(lambda: select(channel.receiving())) == (0, 1)

    explore(main, 2, unfair=True, threads=True)


def test_select_takes_the_first_case_unless_unfair() -> None:
    def main() -> None:
        one, two = Channel[int](1), Channel[int](1)
        one.send(1)
        two.send(2)
        assert select(one.receiving(), two.receiving()) == (0, 1)

    assert explore(main, 50).schedules == 50
    with pytest.raises(ScheduleFailure):
        explore(main, 50, unfair=True)


def check_then_put(full: Callable[[], bool], put: Callable[[], object]) -> None:
    if not full():
        put()


PREEMPTED: dict[str, Callable[[], tuple[Callable[[], bool], Callable[[], object]]]] = {}


def preempted(make: Callable[[], Any]) -> Callable[[], Any]:
    PREEMPTED[make.__name__] = make
    return make


@preempted
def lock() -> Any:
    it = Lock()
    return it.locked, lambda: it.acquire(blocking=False) or 1 // 0


@preempted
def bounded_queue() -> Any:
    it = Queue[int](1)
    return it.full, lambda: it.put_nowait(1)


@preempted
def semaphore() -> Any:
    it = Semaphore(1)
    taken = [False]

    def take() -> None:
        assert it.acquire(blocking=False)
        taken[0] = True

    return lambda: taken[0], take


@pytest.mark.parametrize("make", PREEMPTED.values(), ids=PREEMPTED)
def test_look_and_use_is_a_race_under_preemption_alone(make: Callable[[], Any]) -> None:
    def main() -> None:
        look, use = make()
        for fiber in [spawn(check_then_put, look, use) for _ in range(2)]:
            fiber.result()

    assert explore(main, 100).schedules == 100
    with pytest.raises(ScheduleFailure):
        explore(main, 1000, preempt=True)


def test_deadlock_of_locks_shows_the_wait_graph() -> None:
    def main() -> None:
        a, b = Lock(), Lock()

        def take(first: Lock, second: Lock) -> None:
            with first:
                yield_now()
                with second:
                    pass

        one, two = spawn(take, a, b), spawn(take, b, a)
        one.join()
        two.join()

    with pytest.raises(ScheduleFailure, match="they wait for each other"):
        explore(main)


# ------------------------------------------------ the primitives hold, everywhere


def locks(lock: Lock) -> None:
    inside = 0

    def work() -> None:
        nonlocal inside
        with lock:
            inside += 1
            assert inside == 1
            try:
                sleep(1)
            finally:
                inside -= 1

    with TaskGroup() as group:
        for _ in range(3):
            group.spawn(work)


def unlocked(lock: Lock) -> None:
    assert not lock.locked()


def queue_of_one(items: Queue[int]) -> None:
    got: list[int] = []

    def consume() -> None:
        for _ in range(3):
            got.append(items.get())

    with TaskGroup() as group:
        group.spawn(consume)
        for i in range(3):
            items.put(i)
    assert got == [0, 1, 2]


def channels(channel: Channel[int]) -> None:
    def produce(base: int) -> None:
        for i in range(2):
            channel.send(base + i)

    got = []
    with TaskGroup() as group:
        for base in (0, 10):
            group.spawn(produce, base)
        for _ in range(4):
            got.append(channel.receive())
    assert sorted(got) == [0, 1, 10, 11]


def conditions(condition: Condition) -> None:
    items: list[int] = []

    def take() -> int:
        with condition:
            while not items:
                condition.wait()
            return items.pop()

    with TaskGroup() as group:
        takers: list[Fiber[int]] = [group.spawn(take) for _ in range(2)]
        for i in range(2):
            with condition:
                items.append(i)
                condition.notify()
    assert sorted(taker.result() for taker in takers) == [0, 1]


def semaphores(semaphore: Semaphore) -> None:
    inside = 0

    def work() -> None:
        nonlocal inside
        with semaphore:
            inside += 1
            assert inside <= 2
            try:
                yield_now()
            finally:
                inside -= 1

    with TaskGroup() as group:
        for _ in range(4):
            group.spawn(work)


def both_free(semaphore: Semaphore) -> None:
    for _ in range(2):
        assert semaphore.acquire(blocking=False)
    assert not semaphore.acquire(blocking=False)


PROGRAMS: dict[str, tuple[Callable[[Any], None], Callable[[], Any], Callable[[Any], None] | None]]
PROGRAMS = {
    "lock": (locks, Lock, unlocked),
    "queue": (queue_of_one, lambda: Queue[int](1), None),
    "channel": (channels, Channel, None),
    "condition": (conditions, Condition, None),
    "semaphore": (semaphores, lambda: Semaphore(2), both_free),
}
programs = pytest.mark.parametrize(("fn", "setup", "check"), PROGRAMS.values(), ids=PROGRAMS)


@programs
@pytest.mark.parametrize("strategy", ["random", "pct", "dfs"])
def test_primitive_holds_under_explored_schedules(
    fn: Any, setup: Any, check: Any, strategy: Any
) -> None:
    explore(fn, 300, strategy, setup=setup, check=check)
    explore(fn, 300, strategy, setup=setup, check=check, preempt=True, unfair=True)


class Transfer:
    """Two producers and two consumers that give up after a while; what they did."""

    def __init__(self) -> None:
        self.queue: Queue[int] = Queue(1)
        self.channel: Channel[int] = Channel()
        self.sent: list[int] = []
        self.got: list[int] = []


def by_queue(state: Transfer) -> None:
    def produce(base: int) -> None:
        for i in range(2):
            with contextlib.suppress(queue.Full):
                state.queue.put(base + i, timeout=10)
                state.sent.append(base + i)

    def consume() -> None:
        for _ in range(2):
            with contextlib.suppress(queue.Empty):
                state.got.append(state.queue.get(timeout=10))

    with TaskGroup() as group:
        for base in (0, 10):
            group.spawn(produce, base)
            group.spawn(consume)


def nothing_lost_in_the_queue(state: Transfer) -> None:
    while not state.queue.empty():
        state.got.append(state.queue.get_nowait())
    assert sorted(state.got) == sorted(state.sent)


def by_channel(state: Transfer) -> None:
    def produce(base: int) -> None:
        for i in range(2):
            with contextlib.suppress(TimeoutError):
                state.channel.send(base + i, timeout=10)
                state.sent.append(base + i)

    def consume() -> None:
        for _ in range(2):
            with contextlib.suppress(TimeoutError):
                state.got.append(state.channel.receive(timeout=10))

    with TaskGroup() as group:
        for base in (0, 10):
            group.spawn(produce, base)
            group.spawn(consume)


def nothing_lost_in_the_channel(state: Transfer) -> None:
    assert sorted(state.got) == sorted(state.sent)


CANCELLED = {
    "lock": (locks, Lock, unlocked),
    "semaphore": (semaphores, lambda: Semaphore(2), both_free),
    "queue": (by_queue, Transfer, nothing_lost_in_the_queue),
    "channel": (by_channel, Transfer, nothing_lost_in_the_channel),
}


@pytest.mark.parametrize(("fn", "setup", "check"), CANCELLED.values(), ids=CANCELLED)
def test_primitive_survives_a_cancellation_at_every_point(fn: Any, setup: Any, check: Any) -> None:
    assert explore_cancellation(fn, setup=setup, check=check) > 10
    explore(fn, 300, "random", setup=setup, check=check, preempt=True)
