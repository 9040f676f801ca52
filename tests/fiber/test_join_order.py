"""Whoever is waited for before it has begun begins next; others have their turns all the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Fiber,
    FiberError,
    Scheduler,
    _engine,
    park,
    run,
    spawn,
    spawn_now,
    yield_now,
)
from pyfiber.testing import run as run_virtually

Log = list[Any]

WAITS: dict[str, Callable[[Fiber[Any]], Any]] = {
    "join": lambda fiber: fiber.join(),
    "join with timeout": lambda fiber: fiber.join(60),
    "result": lambda fiber: fiber.result(),
    "exception": lambda fiber: fiber.exception(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_waiting_for_a_fresh_fiber_starts_it_next_and_goes_on_at_its_end(
    wait: Callable[[Fiber[Any]], Any],
) -> None:
    log: Log = []

    def main() -> None:
        spawn(log.append, "first")
        fresh = spawn(log.append, "fresh")
        spawn(log.append, "last")
        wait(fresh)
        log.append("joiner")

    run(main)
    assert log == ["fresh", "joiner", "first", "last"]


def test_waiting_for_the_first_in_the_queue_changes_no_order() -> None:
    log: Log = []

    def main() -> None:
        fibers = [spawn(log.append, i) for i in range(5)]
        fibers[0].join()
        log.append("joiner")

    run(main)
    assert log == [0, 1, 2, 3, 4, "joiner"]


def test_waiting_for_a_fiber_that_has_begun_changes_no_order() -> None:
    log: Log = []

    def begun() -> None:
        yield_now()
        log.append("begun")

    def main() -> None:
        fiber = spawn(begun)
        yield_now()
        spawn(log.append, "other")
        yield_now()
        log.append("joiner")
        fiber.join()

    run(main)
    assert log == ["begun", "other", "joiner"]


def test_preferred_fiber_that_waits_lets_its_joiner_go_first_when_it_ends() -> None:
    log: Log = []

    def fresh() -> None:
        log.append("begins")
        yield_now()
        spawn(log.append, "late")
        log.append("ends")

    def main() -> None:
        spawn(log.append, "other")
        spawn(fresh).join()
        log.append("joiner")

    run(main)
    assert log == ["begins", "other", "ends", "joiner", "late"]


def test_second_joiner_waits_for_its_turn() -> None:
    log: Log = []

    def waits(fiber: Fiber[None], name: str) -> None:
        fiber.join()
        log.append(name)

    def main() -> None:
        target = Fiber(yield_now)
        for name in "ab":
            spawn(waits, target, name)
        target.start()
        yield_now()
        spawn(log.append, "other")

    run(main)
    assert log == ["a", "other", "b"]


def turns_beside(keep_busy: Callable[[], None]) -> int:
    """How many turns another fiber has until `keep_busy` is done."""
    turns = 0

    def other(busy: Fiber[None]) -> None:
        nonlocal turns
        while not busy.done():
            turns += 1
            yield_now()

    def main() -> None:
        spawn(other, spawn(keep_busy))

    run(main)
    return turns


def test_fibers_that_are_waited_for_at_once_starve_nobody() -> None:
    def keep_busy() -> None:
        for _ in range(10_000):
            spawn(int).join()

    assert 20_000 // 257 <= turns_beside(keep_busy) < 200  # each wait is two passes


def test_spawn_now_among_waits_starves_nobody() -> None:
    """The turn that a refusal makes must not be the caller's of spawn_now(), which goes first."""
    rounds = 200

    def flush() -> None:
        spawn(int).join()

    def keep_busy() -> None:
        for _ in range(rounds):
            for _ in range(128):
                spawn(int).join()
            spawn_now(flush)

    assert turns_beside(keep_busy) >= rounds


def test_wait_that_is_refused_changes_no_order() -> None:
    log: Log = []

    def main() -> None:
        ends = spawn(int)
        fibers = [spawn(log.append, name) for name in "abc"]

        def refused(_: Fiber[int]) -> None:
            with pytest.raises(FiberError):
                fibers[2].join()

        ends.add_done_callback(refused)

    run(main)
    assert log == ["a", "b", "c"]


def test_wait_of_a_cancelled_fiber_changes_no_order() -> None:
    log: Log = []
    fibers: list[Fiber[None]] = []

    def waits() -> None:
        with pytest.raises(Cancelled):
            park()
        with pytest.raises(Cancelled):
            fibers[2].join()

    def main() -> None:
        waiter = spawn(waits)
        yield_now()
        waiter.cancel()
        fibers.extend(spawn(log.append, name) for name in "abc")

    run(main)
    assert log == ["a", "b", "c"]


def test_join_of_the_chosen_fiber_by_a_trace_function_is_harmless() -> None:
    """It is ready, but no longer in the queue."""
    log: Log = []
    scheduler = Scheduler()
    explorer = _engine._Explorer(scheduler, lambda: RuntimeError("too long"), lambda fiber: False)

    def trace(what: int, fiber: Fiber[Any] | None, *_: Any) -> None:
        if fiber is not None and fiber.state == "ready":
            with suppress(FiberError):
                fiber.join()

    explorer.configure(strategy=0, trace=trace, max_steps=1000)

    def main() -> None:
        for name in "abc":
            spawn(log.append, name)
        yield_now()
        log.append("main")

    explorer.run(None, main)
    assert log == ["a", "b", "c", "main"]


def test_tree_is_walked_in_depth() -> None:
    """In breadth, as many are under way as its widest level has nodes, 1,000."""
    under_way = most = 0

    def tree(levels: int) -> int:
        nonlocal under_way, most
        if levels == 0:
            return 1
        under_way += 1
        most = max(most, under_way)
        children = [spawn(tree, levels - 1) for _ in range(10)]
        leaves = sum(child.result() for child in children)
        under_way -= 1
        return leaves

    assert run(tree, 4) == 10_000
    assert most < 250


def test_explored_run_prefers_as_a_usual_one_does() -> None:
    log: Log = []

    def main() -> None:
        spawn(log.append, "other")
        spawn(log.append, "fresh").join()

    run_virtually(main)
    assert log == ["fresh", "other"]


def test_fiber_of_another_scheduler_stays_where_it_is() -> None:
    log: Log = []
    idle = Scheduler()
    idle.spawn(log.append, "a")
    theirs = idle.spawn(log.append, "b")

    def main() -> None:
        assert theirs.join(0) is False

    Scheduler().run(main)
    idle.run_once()
    assert log == ["a", "b"]
