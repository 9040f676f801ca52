"""A generator and a fiber that several threads begin at the same moment: one gets it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pyfiber import Fiber, FiberError, emit, generator
from tests.support.parallel import THREADS, in_parallel

ROUNDS = 200


@generator
def numbers(count: int) -> None:
    for n in range(count):
        emit(n)


def contest(prize: Callable[[], Any], attempt: Callable[[Any], Any]) -> list[list[Any]]:
    """For each round, what the attempts of all threads at the same prize came to."""
    barrier = threading.Barrier(THREADS)
    prizes = [prize() for _ in range(ROUNDS)]
    results: list[list[Any]] = [[] for _ in range(ROUNDS)]

    def body(i: int) -> None:
        for r in range(ROUNDS):
            barrier.wait()
            try:
                results[r].append(attempt(prizes[r]))
            except FiberError:
                results[r].append(FiberError)

    in_parallel(body)
    return results


def test_generator_that_threads_pull_from_at_once_belongs_to_one() -> None:
    def attempt(gen: Any) -> list[int]:
        values = list(gen)
        assert repr(gen)
        return values

    for results in contest(lambda: numbers(3), attempt):
        assert results.count([0, 1, 2]) == 1
        assert all(each in ([0, 1, 2], [], FiberError) for each in results)


def test_generator_is_closed_by_one_thread_while_another_pulls() -> None:
    attempts = iter(range(THREADS * ROUNDS))
    lock = threading.Lock()

    def attempt(gen: Any) -> Any:
        with lock:
            closes = next(attempts) % 2
        return gen.close() if closes else next(gen, "over")

    for results in contest(lambda: numbers(3), attempt):
        assert set(map(str, results)) <= {"0", "over", "None", str(FiberError)}


def test_fiber_that_threads_enter_or_start_at_once_runs_once() -> None:
    ran: list[int] = []

    attempts = iter(range(THREADS * ROUNDS))
    lock = threading.Lock()

    def attempt(fiber: Fiber[Any]) -> str:
        with lock:
            starts = next(attempts) % 2
        if starts:
            fiber.start()
        else:
            fiber.switch()
        return "mine"

    results = contest(lambda: Fiber(ran.append, (1,)), attempt)
    assert all(each.count("mine") == 1 for each in results)
    assert len(ran) == ROUNDS
