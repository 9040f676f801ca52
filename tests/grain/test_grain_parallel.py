"""Grains that several threads begin, or pull values from, at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import FiberError
from pyfiber.grains import Grain
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
