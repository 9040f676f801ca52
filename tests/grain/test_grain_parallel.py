"""Grains that several threads begin, or pull values from, at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pyfiber import FiberError
from pyfiber.grains import Grain, GrainPool
from tests.support.parallel import THREADS, in_parallel

ROUNDS = 200


def contest(prizes: list[list[Grain[Any]]]) -> list[list[str]]:
    """For each round, what came of the start of prizes[round][i] on thread i, all at once."""
    barrier = threading.Barrier(THREADS)
    results: list[list[str]] = [[] for _ in prizes]

    def body(i: int) -> None:
        for grains, result in zip(prizes, results, strict=True):
            barrier.wait()
            try:
                grains[i].start()
                grains[i].result()
                result.append("ended")
            except (FiberError, ValueError) as exc:
                result.append(str(exc))

    in_parallel(body)
    return results


@pytest.mark.parametrize("made_of", ["function", "generator"])
def test_grain_that_threads_start_at_once_runs_once(made_of: str) -> None:
    ran: list[int] = []

    def steps() -> Iterator[None]:
        ran.append(1)
        yield None

    def prize() -> list[Grain[Any]]:
        return [Grain(steps if made_of == "function" else steps())] * THREADS

    for results in contest([prize() for _ in range(ROUNDS)]):
        assert results.count("ended") == 1
        refusals = [each for each in results if each != "ended"]
        assert all("started" in each for each in refusals)
    assert len(ran) == ROUNDS


def test_generator_in_grains_of_several_threads_is_entered_by_one_at_a_time() -> None:
    """Without the GIL two threads in one generator crash the interpreter."""
    seen: list[int] = []

    def steps() -> Iterator[None]:
        for n in range(20):
            seen.append(n)
            yield None

    def prize(make: Callable[[], Iterator[None]]) -> list[Grain[Any]]:
        shared = make()
        return [Grain(shared) for _ in range(THREADS)]

    for results in contest([prize(steps) for _ in range(ROUNDS)]):
        assert set(results) <= {"ended", "generator already executing"}
    assert sorted(seen) == sorted(list(range(20)) * ROUNDS)


def logging(log: list[int]) -> Iterator[object]:
    log.append(1)
    yield
    log.append(2)


@pytest.mark.parametrize("before", [False, True], ids=["then started", "started"])
def test_grain_that_threads_queue_in_two_pools_at_once_is_in_one(before: bool) -> None:
    """It was in both, and the pools never ended."""
    for _ in range(10):
        logs: list[list[int]] = [[] for _ in range(100)]
        grains = [Grain(logging, log) for log in logs]
        pools = [GrainPool(), GrainPool()]
        taken: list[Grain[Any]] = []
        barrier = threading.Barrier(len(pools))

        def queue_all(
            pool: GrainPool,
            grains: list[Grain[Any]] = grains,
            taken: list[Grain[Any]] = taken,
            barrier: threading.Barrier = barrier,
        ) -> None:
            barrier.wait()
            for grain in grains:
                with suppress(FiberError):
                    pool.queue(grain)
                    taken.append(grain)

        if before:
            for pool in pools:
                pool.start(thread=True)
        threads = [threading.Thread(target=queue_all, args=(pool,)) for pool in pools]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for pool in pools:
            if not before:
                pool.start(thread=True)
            pool.shutdown()
        assert len(taken) == len(grains)
        assert logs == [[1, 2]] * len(grains)
