"""Many fibers, threads, cancellations and limiters at once: nothing is lost, nothing is left."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    FiberCancelled,
    Portal,
    ThreadLimiter,
    from_thread,
    run,
    sleep,
    spawn,
    to_thread,
    yield_now,
)


def work(seed: int, counts: dict[str, int], lock: threading.Lock) -> int:
    """In a thread: now and then back into the loop."""
    with lock:
        counts["called"] += 1
    if seed % 5 == 0:
        assert from_thread(lambda: seed) == seed
    if seed % 7 == 0:
        threading.Event().wait(0.0005)
    if seed % 11 == 0:
        raise LookupError(seed)
    return seed


def body(limiter: ThreadLimiter, seed: int, counts: dict[str, int], lock: threading.Lock) -> str:
    try:
        try:
            assert limiter.to_thread(work, seed, counts, lock) == seed
        except LookupError as exc:
            assert exc.args == (seed,)  # noqa: PT017
        yield_now()
    except Cancelled:
        return "cancelled"
    return "done"


def storm(seed: int, fibers: int, limiter: ThreadLimiter) -> None:
    counts, lock = {"called": 0}, threading.Lock()
    chance = random.Random(seed)

    def main() -> dict[str, int]:
        ends = {"done": 0, "cancelled": 0, "never": 0}
        started = []
        for n in range(fibers):
            # 5: abandoned ones would fail in from_thread(), and be logged
            number = n if not limiter.abandon_on_cancel else 1
            started.append(spawn(body, limiter, number, counts, lock))
            if chance.random() < 0.4:
                chance.choice(started).cancel()
            if chance.random() < 0.1:
                sleep(0.0005)
        for fiber in started:
            try:
                ends[fiber.result()] += 1
            except FiberCancelled:
                ends["never"] += 1
        return ends

    ends = run(main)
    assert sum(ends.values()) == fibers
    assert counts["called"] >= ends["done"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("abandon", [False, True])
def test_storm_of_calls_and_cancellations(seed: int, abandon: bool) -> None:
    limiter = ThreadLimiter(3, abandon_on_cancel=abandon)
    storm(seed, 300, limiter)
    run(lambda: [limiter.to_thread(int) for _ in range(3)])
    for _ in range(20_000):
        if limiter.borrowed_tokens == 0:
            break
        run(sleep, 0.001)
    assert (limiter.borrowed_tokens, limiter.waiting) == (0, 0)


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
            ready.wait(20)
            while True:
                try:
                    outcomes.append(portals[0].call(int, 5))
                except (RuntimeError, FiberCancelled):
                    return

        def main(portals: list[Portal] = portals, ready: threading.Barrier = ready) -> None:
            portals.append(Portal())
            to_thread(ready.wait, 20)
            sleep(0.001)

        threads = [threading.Thread(target=caller) for _ in range(3)]
        for thread in threads:
            thread.start()
        run(main)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        assert set(outcomes) <= {5}
