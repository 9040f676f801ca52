"""Every kind of wait, while the waiting fiber's stack is another fiber's."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import pyfiber
import pyfiber.socket
from pyfiber import current, now, park, sleep_until, spawn, yield_now
from tests.fiber.sharing import needs_packing, packs
from tests.support.subprocesses import run_python

pytestmark = needs_packing


def test_fibers_in_park_get_their_values() -> None:
    waiting: list[pyfiber.Fiber[Any]] = []

    def wait() -> Any:
        waiting.append(current())
        return park()

    def wake() -> None:
        for fiber in waiting:
            fiber.unpark(fiber)
        waiting.clear()

    got = packs(wait, wake)
    assert len(set(map(id, got))) == 12


def test_fibers_that_sleep_wake_in_order() -> None:
    woken: list[int] = []
    numbers = iter(range(12))
    begins = now() + 0.1

    def wait() -> None:
        number = next(numbers) * 7 % 12
        sleep_until(begins + number / 1000)
        woken.append(number)

    packs(wait, lambda: None)
    assert woken == [*range(12)]


def test_queue_hands_each_fiber_one_item() -> None:
    queue: pyfiber.Queue[int] = pyfiber.Queue()
    assert sorted(packs(queue.get, lambda: [queue.put(i) for i in range(12)])) == list(range(12))


def test_putters_of_a_full_queue_put_once() -> None:
    queue: pyfiber.Queue[int] = pyfiber.Queue(1)
    numbers = iter(range(12))
    got: list[int] = []
    queue.put(-1)
    packs(lambda: queue.put(next(numbers)), lambda: got.extend(queue.get() for _ in range(13)))
    assert got[0] == -1
    assert sorted(got[1:]) == list(range(12))


def test_lock_goes_to_each_in_turn() -> None:
    lock = pyfiber.Lock()
    inside = 0
    order: list[int] = []

    def wait() -> None:
        nonlocal inside
        with lock:
            inside += 1
            assert inside == 1
            yield_now()
            order.append(1)
            inside -= 1

    packs(wait, lambda: None)
    assert len(order) == 12


@pytest.mark.parametrize("kind", ["Event", "Condition", "Semaphore"])
def test_primitive_wakes_all(kind: str) -> None:
    if kind == "Event":
        event = pyfiber.Event()

        def wake() -> None:
            event.set()
            yield_now()
            event.clear()

        assert packs(event.wait, wake) == [True] * 12
    elif kind == "Condition":
        condition = pyfiber.Condition()

        def wait() -> bool:
            with condition:
                return condition.wait()

        def tell() -> None:
            with condition:
                condition.notify_all()

        assert packs(wait, tell) == [True] * 12
    else:
        semaphore = pyfiber.Semaphore(0)
        got = packs(semaphore.acquire, lambda: [semaphore.release() for _ in range(12)])
        assert got == [True] * 12


def test_channel_passes_each_item_on() -> None:
    channel: pyfiber.Channel[int] = pyfiber.Channel()

    def wake() -> None:
        for i in range(12):
            channel.send(i)

    assert sorted(packs(channel.receive, wake)) == list(range(12))


@pytest.mark.parametrize("cases", [1, 3, 20])
def test_select_gets_from_one(cases: int) -> None:
    """Few places in queues are the fiber's own, many are allocated."""
    queues: list[pyfiber.Queue[int]] = [pyfiber.Queue() for _ in range(cases)]

    def wake() -> None:
        for i in range(12):
            queues[i % cases].put(i)

    got = packs(lambda: pyfiber.select(*[queue.getting() for queue in queues]), wake)
    assert sorted(item for _, item in got) == list(range(12))


def test_fiber_that_stands_in_one_queue_twice_moves() -> None:
    """Its places point to each other."""
    queue: pyfiber.Queue[int] = pyfiber.Queue()

    def wake() -> None:
        for i in range(12):
            queue.put(i)

    got = packs(lambda: pyfiber.select(queue.getting(), queue.getting(), queue.getting()), wake)
    assert sorted(item for _, item in got) == list(range(12))


def test_fibers_that_join_get_the_result() -> None:
    others: list[pyfiber.Fiber[Any]] = []

    def wait() -> Any:
        other = spawn(park)
        others.append(other)
        return other.result()

    def wake() -> None:
        for i, other in enumerate(others):
            other.unpark(i)
        others.clear()

    assert sorted(packs(wait, wake)) == list(range(12))


@pytest.mark.skipif(sys.platform == "win32", reason="pairs of sockets")
def test_sockets_receive_what_is_for_them() -> None:
    pairs: list[tuple[Any, Any]] = []

    def wait() -> bytes:
        ours, theirs = pyfiber.socket.socketpair()
        with ours, theirs:
            pairs.append((theirs, len(pairs)))
            return bytes(ours.recv(10))

    def wake() -> None:
        for theirs, number in pairs:
            theirs.sendall(b"%d" % number)
        pairs.clear()

    assert sorted(packs(wait, wake), key=int) == [b"%d" % i for i in range(12)]


def test_clock_under_test_moves_packed_fibers() -> None:
    done = run_python(
        "-c",
        """if True:
        from pyfiber import sleep, spawn
        from pyfiber.testing import VirtualClock, run

        clock = VirtualClock()
        done = []

        def main():
            for i in range(20):
                spawn(lambda i=i: (sleep(i + 1), done.append(i)))
                spawn(lambda i=i: clock.advance(0.5))
            sleep(30)

        run(main, clock=clock)
        print(done == list(range(20)))
        """,
        env={"PYFIBER_SLOTS": "2"},
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
