"""Eight threads, each with a run of its own, share one primitive: counts add up, nothing is lost.

They pass with a GIL as well; without one the threads really run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    BoundedSemaphore,
    Channel,
    ChannelClosed,
    Condition,
    Event,
    Lock,
    PriorityQueue,
    Queue,
    RLock,
    Semaphore,
    select,
)
from pyfiber._engine import _Latch
from tests.support.parallel import PATIENCE, THREADS, in_parallel

FIBERS = 4
ROUNDS = 150


def in_fibers(body: Callable[[], Any], fibers: int = FIBERS) -> list[Any]:
    """body() in several fibers of this thread."""
    children = [pyfiber.spawn(body) for _ in range(fibers)]
    return [child.result() for child in children]


@pytest.mark.parametrize("kind", [Lock, RLock, lambda: Semaphore(1), lambda: BoundedSemaphore(1)])
def test_lock_excludes_fibers_of_all_threads(kind: Callable[[], Any]) -> None:
    lock = kind()
    inside = [0]
    total = [0]

    def work() -> None:
        for _ in range(ROUNDS):
            with lock:
                inside[0] += 1
                assert inside[0] == 1
                seen = total[0]
                pyfiber.yield_now()
                total[0] = seen + 1
                inside[0] -= 1

    in_parallel(lambda i: in_fibers(work))
    assert total[0] == THREADS * FIBERS * ROUNDS


def test_lock_with_timeouts_is_never_lost() -> None:
    lock = Lock()
    total = [0]

    def work() -> int:
        taken = 0
        for _ in range(ROUNDS):
            if lock.acquire(timeout=0.0001):
                seen = total[0]
                pyfiber.yield_now()
                total[0] = seen + 1
                lock.release()
                taken += 1
        return taken

    taken = in_parallel(lambda i: sum(in_fibers(work)))
    assert total[0] == sum(taken)
    assert not lock.locked()


def test_semaphore_admits_no_more_than_its_value() -> None:
    semaphore = BoundedSemaphore(3)
    gate = threading.Lock()
    inside = [0]
    most = [0]

    def work() -> None:
        for _ in range(ROUNDS):
            with semaphore:
                with gate:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                pyfiber.yield_now()
                with gate:
                    inside[0] -= 1

    in_parallel(lambda i: in_fibers(work))
    assert most[0] <= 3
    assert semaphore._value == 3


@pytest.mark.parametrize("capacity", [0, 1, 16])
def test_channel_loses_and_doubles_nothing(capacity: int) -> None:
    channel: Channel[tuple[int, int]] = Channel(capacity)

    def body(i: int) -> list[tuple[int, int]]:
        if i % 2 == 0:
            for n in range(ROUNDS * 4):
                channel.send((i, n))
            return []
        return [channel.receive() for _ in range(ROUNDS * 4)]

    got = in_parallel(body)
    values = [value for values in got for value in values]
    assert sorted(values) == [(i, n) for i in range(0, THREADS, 2) for n in range(ROUNDS * 4)]
    for received in got:  # what one sends, each receiver sees in order
        for i in range(0, THREADS, 2):
            own = [n for sender, n in received if sender == i]
            assert own == sorted(own)


@pytest.mark.parametrize("capacity", [0, 4])
def test_channel_with_timeouts_loses_nothing(capacity: int) -> None:
    """A send() that timed out was not received, and one that returned was."""
    channel: Channel[tuple[int, int]] = Channel(capacity)
    left = [THREADS // 2]
    gate = threading.Lock()

    def send(i: int) -> list[tuple[int, int]]:
        sent = []
        for n in range(ROUNDS * 2):
            try:
                channel.send((i, n), timeout=0.0001)
                sent.append((i, n))
            except TimeoutError:
                pass
        with gate:
            left[0] -= 1
            last = left[0] == 0
        if last:
            channel.close()
        return sent

    def receive(i: int) -> list[tuple[int, int]]:
        received = []
        while True:
            try:
                received.append(channel.receive(timeout=0.0001))
            except TimeoutError:
                pass
            except ChannelClosed:
                return received

    got = in_parallel(lambda i: send(i) if i % 2 == 0 else receive(i))
    sent = sorted(value for values in got[0::2] for value in values)
    received = sorted(value for values in got[1::2] for value in values)
    assert sent == received


@pytest.mark.parametrize("kind", [Queue, PriorityQueue])
@pytest.mark.parametrize("maxsize", [0, 3])
def test_queue_loses_and_doubles_nothing(kind: Callable[[int], Any], maxsize: int) -> None:
    queue = kind(maxsize)
    rounds = ROUNDS // 2

    def body(i: int) -> list[tuple[int, int]]:
        if i % 2 == 0:
            for n in range(rounds):
                queue.put((i, n))
            queue.join()
            return []
        got = []
        for _ in range(rounds):
            got.append(queue.get())
            queue.task_done()
        return got

    got = in_parallel(body)
    values = sorted(value for values in got for value in values)
    assert values == [(i, n) for i in range(0, THREADS, 2) for n in range(rounds)]
    assert queue.empty()
    assert queue.unfinished_tasks == 0


def test_event_wakes_everybody_each_time() -> None:
    events = [Event() for _ in range(ROUNDS)]

    def body(i: int) -> int:
        woken = 0
        for n, event in enumerate(events):
            if n % THREADS == i:
                event.set()
            woken += sum(in_fibers(event.wait, 2))
        return woken

    assert in_parallel(body) == [ROUNDS * 2] * THREADS


def test_condition_notifies_each_waiter() -> None:
    condition = Condition()
    ready: list[int] = []

    def body(i: int) -> int:
        total = 0
        for n in range(ROUNDS):
            if i % 2 == 0:
                with condition:
                    ready.append(n)
                    condition.notify()
            else:
                with condition:
                    while not ready:
                        condition.wait()
                    ready.pop()
                    total += 1
        return total

    got = in_parallel(body)
    assert sum(got) == THREADS // 2 * ROUNDS
    assert not ready


def test_barrier_lets_all_pass_together() -> None:
    barrier = pyfiber.Barrier(THREADS)
    passed = [0] * THREADS

    def body(i: int) -> None:
        for n in range(ROUNDS // 4):
            barrier.wait()
            passed[i] = n + 1
            barrier.wait()
            assert min(passed) == max(passed) == n + 1
            barrier.wait()

    in_parallel(body)


def test_select_does_exactly_one_of_its_cases() -> None:
    """Each thread sends to and receives from the others, always through select."""
    one: Channel[tuple[int, int]] = Channel()
    other: Channel[tuple[int, int]] = Channel(2)

    def body(i: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        sent, received = [], []
        for n in range(ROUNDS * 2):
            value = (i, n)
            match select(
                one.receiving(),
                other.sending(value),
                other.receiving(),
                one.sending(value),
                timeout=0.001,
            ):
                case (0 | 2, other_value):
                    received.append(other_value)
                case (1 | 3, None):
                    sent.append(value)
        return sent, received

    got = in_parallel(body)
    left = []
    while len(other):
        left.append(other.receive())
    sent = sorted(value for values, _ in got for value in values)
    received = sorted([value for _, values in got for value in values] + left)
    assert sent == received
    assert one._waiters() == []
    assert other._waiters() == []


def test_select_between_two_threads_meets() -> None:
    """Both offer to send and to receive on one channel: each meeting is one send, one receive."""
    channel: Channel[int] = Channel()
    rounds = ROUNDS * 4

    def body(i: int) -> int:
        received = 0
        for n in range(rounds):
            done = select(channel.sending(n), channel.receiving())
            received += done[0]
        return received

    assert sum(in_parallel(body, 2)) == rounds


def test_select_waits_for_queues_semaphores_and_events() -> None:
    queue: Queue[int] = Queue(2)
    semaphore = Semaphore(0)
    over = Event()
    left = [THREADS // 2]
    gate = threading.Lock()

    def produce(i: int) -> int:
        for n in range(ROUNDS):
            queue.put(n)
            semaphore.release()
        with gate:
            left[0] -= 1
            last = left[0] == 0
        if last:
            over.set()
        return 0

    def consume(i: int) -> int:
        taken = 0
        while True:
            index, _ = select(queue.getting(), semaphore.acquiring(), over.waiting())
            if index == 2:
                return taken
            taken += 1

    got = in_parallel(lambda i: produce(i) if i % 2 == 0 else consume(i))
    rest = queue.qsize() + semaphore._value
    assert sum(got) + rest == THREADS // 2 * ROUNDS * 2


def test_plain_threads_share_with_fibers() -> None:
    lock = Lock()
    channel: Channel[int] = Channel(1)
    total = [0]
    rounds = ROUNDS

    def work() -> None:
        for n in range(rounds):
            with lock:
                total[0] += 1
            channel.send(n)

    def drain() -> int:
        return sum(channel.receive() >= 0 for _ in range(rounds))

    plain = [threading.Thread(target=work, daemon=True) for _ in range(4)]
    for thread in plain:
        thread.start()
    got = in_parallel(lambda i: drain(), 4)
    for thread in plain:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert got == [rounds] * 4
    assert total[0] == 4 * rounds


def test_latch_rings_all_threads() -> None:
    latches = [_Latch() for _ in range(ROUNDS)]

    def body(i: int) -> int:
        woken = 0
        for n, latch in enumerate(latches):
            if n % THREADS == i:
                latch.set()
            woken += latch.wait(None, "the latch")
        return woken

    assert in_parallel(body) == [ROUNDS] * THREADS
