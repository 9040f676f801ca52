"""Many fibers, threads, cancellations and limiters at once: nothing is lost, nothing is left."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import pytest

from pyfiber import Cancelled, FiberCancelled, from_thread, run, sleep, spawn, to_thread, yield_now
from pyfiber.threads import Portal, ThreadLimiter
from tests.support.threads import PATIENCE


class Calls:
    """What the threads see of the calls."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.called: set[int] = set()
        self.inside = self.most = 0

    def work(self, number: int) -> int:
        """In a thread: now and then back into the loop."""
        with self.lock:
            assert number not in self.called
            self.called.add(number)
            self.inside += 1
            self.most = max(self.most, self.inside)
        try:
            if number % 5 == 0:
                assert from_thread(lambda: number) == number
            if number % 7 == 0:
                threading.Event().wait(0.0005)
            if number % 11 == 0:
                raise LookupError(number)
            return number
        finally:
            with self.lock:
                self.inside -= 1


def body(limiter: ThreadLimiter, number: int, calls: Calls) -> str:
    try:
        try:
            assert limiter.to_thread(calls.work, number) == number
        except LookupError as exc:
            assert exc.args == (number,)  # noqa: PT017
        yield_now()
    except Cancelled:
        return "cancelled"
    return "done"


def storm(seed: int, fibers: int, limiter: ThreadLimiter) -> Calls:
    """Some fibers are cancelled before they begin, while they wait, while a thread works."""
    calls, chance = Calls(), random.Random(seed)
    ends: dict[str, set[int]] = {"done": set(), "cancelled": set(), "never": set()}

    def number_of(n: int) -> int:
        """What fails or calls back when it has been abandoned is logged: none of those."""
        return n if not limiter.abandon_on_cancel else 55 * n + 1

    def main() -> None:
        started = {}
        for n in range(fibers):
            number = number_of(n)
            started[number] = spawn(body, limiter, number, calls)
            if chance.random() < 0.4:
                started[chance.choice(list(started))].cancel()
            if chance.random() < 0.1:
                sleep(0.0005)
        yield_now()
        for fiber in list(started.values())[-20:]:  # they stand in line
            fiber.cancel()
        for number, fiber in started.items():
            try:
                ends[fiber.result()].add(number)
            except FiberCancelled:
                ends["never"].add(number)

    run(main)
    assert sum(map(len, ends.values())) == fibers
    assert calls.called >= ends["done"]
    assert not calls.called & ends["never"]
    assert ends["done"]
    assert ends["cancelled"]
    return calls


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("abandon", [False, True])
def test_storm_of_calls_and_cancellations(seed: int, abandon: bool) -> None:
    limiter = ThreadLimiter(3, abandon_on_cancel=abandon)
    calls = storm(seed, 300, limiter)
    assert limiter.waiting == 0
    end = time.monotonic() + PATIENCE
    while abandon and limiter.borrowed_tokens and time.monotonic() < end:
        time.sleep(0.001)
    assert limiter.borrowed_tokens == calls.inside == 0
    assert 1 < calls.most <= 3


def test_storms_on_several_threads_share_a_limiter() -> None:
    limiter = ThreadLimiter(4)
    errors: list[BaseException] = []

    def loop(seed: int) -> None:
        try:
            storm(seed, 150, limiter)
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=loop, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert (limiter.borrowed_tokens, limiter.waiting) == (0, 0)


def test_runs_that_end_while_threads_call_in() -> None:
    """Each call either returns its result or raises; none hangs, no fiber is lost."""
    for _ in range(40):
        outcomes: list[Any] = []
        portals: list[Portal] = []
        ready = threading.Barrier(4)

        def caller(
            outcomes: list[Any] = outcomes,
            portals: list[Portal] = portals,
            ready: threading.Barrier = ready,
        ) -> None:
            ready.wait(PATIENCE)
            while True:
                try:
                    outcomes.append(portals[0].call(int, 5))
                except (RuntimeError, FiberCancelled):
                    return

        def main(portals: list[Portal] = portals, ready: threading.Barrier = ready) -> None:
            portals.append(Portal())
            to_thread(ready.wait, PATIENCE)
            sleep(0.001)

        threads = [threading.Thread(target=caller) for _ in range(3)]
        for thread in threads:
            thread.start()
        run(main)
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert set(outcomes) <= {5}
