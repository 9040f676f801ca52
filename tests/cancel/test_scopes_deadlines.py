"""Deadlines of scopes: timeout(), move_on_after(), deadlines that change."""

from __future__ import annotations

from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelScope,
    Scheduler,
    TaskGroup,
    current_deadline,
    move_on_after,
    now,
    park,
    run,
    shield,
    sleep,
    spawn,
    timeout,
)
from pyfiber.testing import VirtualClock
from pyfiber.testing import run as run_virtually

Log = list[Any]


# Deadlines ----------------------------------------------------------------------------------------


def test_deadline_cancels() -> None:
    def main() -> None:
        with CancelScope(5) as scope:
            assert scope.deadline == 5
            park()
        assert now() == 5
        assert scope.cancelled()
        assert scope.reason == "the deadline has passed"

    run_virtually(main)


@pytest.mark.parametrize("deadline", [0, -5.0, float("-inf")])
def test_deadline_in_the_past_cancels_at_the_first_park_point(deadline: float) -> None:
    log: Log = []

    def main() -> None:
        with CancelScope(deadline=deadline) as scope:
            log.append("ran")
            sleep(0)
            log.append("never")
        assert scope.cancelled()

    run(main)
    assert log == ["ran"]


@pytest.mark.parametrize("deadline", [None, float("inf")])
def test_no_deadline(deadline: float | None) -> None:
    def main() -> None:
        with CancelScope(deadline) as scope:
            assert scope.deadline is None
            assert current_deadline() is None
            sleep(0)
        assert not scope.cancel_called

    run(main)


def test_deadline_moved_later_counts() -> None:
    def main() -> None:
        with CancelScope(now() + 2) as scope:
            scope.deadline = now() + 60
            sleep(10)
        assert not scope.cancel_called

    run_virtually(main)


def test_deadline_moved_earlier_counts() -> None:
    def main() -> None:
        with CancelScope(now() + 60) as scope:
            scope.deadline = now() + 2
            park()
        assert scope.cancelled()

    run_virtually(main)


def test_deadline_moved_into_the_past_cancels_at_once() -> None:
    def main() -> None:
        with CancelScope() as scope:
            scope.deadline = now() - 1
            assert scope.cancel_called
            sleep(0)
        assert scope.cancelled()

    run_virtually(main)


def test_deadline_taken_away() -> None:
    scheduler = Scheduler()
    VirtualClock().attach(scheduler)

    def main() -> None:
        with CancelScope(now() + 2) as scope:
            assert scheduler.stats()["timers"] == 1
            scope.deadline = None
            assert scheduler.stats()["timers"] == 0
            sleep(5)
        assert not scope.cancel_called

    scheduler.run(main)
    scheduler.close()


def test_deadline_set_before_entering() -> None:
    def main() -> None:
        scope = move_on_after(60)
        scope.deadline = now() - 1
        with scope:
            sleep(0)
        assert scope.cancelled()

    run_virtually(main)


def test_leaving_takes_the_timer_away() -> None:
    scheduler = Scheduler()

    def main() -> None:
        for _ in range(10):
            with timeout(60), move_on_after(30), CancelScope(now() + 20):
                assert scheduler.stats()["timers"] == 3
        assert scheduler.stats()["timers"] == 0

    scheduler.run(main)
    scheduler.close()


def test_body_that_ends_when_the_deadline_passes_was_not_caught() -> None:
    clock = VirtualClock()

    def main() -> None:
        with move_on_after(1) as scope:
            clock.spend(5)
        assert not scope.cancelled()

        with move_on_after(1) as scope:
            fiber = spawn(sleep, 2)
            with shield():
                fiber.join()
        assert scope.cancel_called
        assert not scope.cancelled()

    run_virtually(main, clock=clock)


def test_effective_deadline_is_the_earliest_of_all_around() -> None:
    def main() -> None:
        with CancelScope(now() + 60) as a, CancelScope(now() + 30) as b:
            assert current_deadline() == b.deadline
            with CancelScope(now() + 90):
                assert current_deadline() == b.deadline
            b.deadline = None
            assert current_deadline() == a.deadline
        assert current_deadline() is None

    run_virtually(main)


def test_effective_deadline_ends_at_a_shield() -> None:
    def main() -> None:
        with CancelScope(now() + 10), CancelScope(now() + 30, shield=True) as inner:
            assert current_deadline() == inner.deadline
            with shield():
                assert current_deadline() is None

    run_virtually(main)


def test_effective_deadline_of_a_group_s_fiber_is_that_around_the_group() -> None:
    def main() -> None:
        with timeout(60) as around, TaskGroup() as group:
            assert group.spawn(current_deadline).result() == around.deadline
            assert spawn(current_deadline).result() is None

    run(main)


def test_earliest_enclosing_deadline_wins_whoever_waits() -> None:
    def main() -> None:
        with move_on_after(3) as outer:
            with move_on_after(60) as inner:
                park()
            pytest.fail("went on inside")
        assert now() == 3
        assert outer.cancelled()
        assert not inner.cancel_called

    run_virtually(main)


# timeout, move_on_after ---------------------------------------------------------------------------


def test_timeout_raises_timeout_error_from_the_cancellation() -> None:
    def main() -> None:
        scope = timeout(2)
        message = r"not done after 2\.0 seconds"
        with pytest.raises(TimeoutError, match=message) as caught, scope:
            park()
        assert scope.cancelled()
        assert isinstance(caught.value.__cause__, Cancelled)

    run_virtually(main)


def test_timeout_that_is_not_reached_does_nothing() -> None:
    def main() -> str:
        with timeout(60):
            sleep(0)
            return "result"

    assert run(main) == "result"


def test_timeout_counts_from_the_entering() -> None:
    def main() -> None:
        scope = timeout(5)
        assert scope.deadline is None
        sleep(10)
        with scope:
            sleep(0)
        assert not scope.cancel_called

    run_virtually(main)


def test_timeout_with_a_deadline_instead() -> None:
    def main() -> None:
        scope = timeout(None)
        scope.deadline = now() + 1
        with pytest.raises(TimeoutError, match="not done at its deadline"), scope:
            park()

    run_virtually(main)


def test_timeout_cancelled_by_hand_raises_as_well() -> None:
    """Whoever comes after the block may rely on its having run to its end."""

    def main() -> None:
        scope = timeout(60)
        scope.cancel("bored")
        with pytest.raises(TimeoutError, match="cancelled before the timeout: bored"), scope:
            sleep(0)

    run(main)


def test_timeout_passes_other_errors_on() -> None:
    def main() -> None:
        with pytest.raises(ValueError, match="mine"), timeout(0):
            raise ValueError("mine")

    run(main)


def test_timeout_of_the_outer_block_is_not_the_inner_one_s() -> None:
    def main() -> None:
        with move_on_after(2) as outer, timeout(60):
            park()
        assert outer.cancelled()

    run_virtually(main)


def test_timeout_error_of_the_body_is_its_own() -> None:
    def main() -> None:
        with pytest.raises(TimeoutError, match="park"), timeout(60):
            park(1)

    run_virtually(main)


@pytest.mark.parametrize("limit", [0, 0.0])
def test_move_on_after_0_ends_at_the_first_park_point(limit: float) -> None:
    log: Log = []

    def main() -> None:
        with move_on_after(limit) as scope:
            log.append("ran")
            sleep(0)
            log.append("never")
        assert scope.cancelled()

    run(main)
    assert log == ["ran"]


def test_move_on_after_does_not_raise() -> None:
    def main() -> None:
        with move_on_after(2) as scope:
            park()
        assert scope.cancelled()
        assert scope.deadline is not None

    run_virtually(main)


@pytest.mark.parametrize("limit", [None, float("inf"), 1e300])
def test_no_limit(limit: float | None) -> None:
    def main() -> None:
        with timeout(limit) as a, move_on_after(limit), shield(limit):
            assert a.deadline is None
            sleep(0)

    run(main)


def test_outermost_of_many_timeouts_that_passed_absorbs() -> None:
    def main() -> None:
        caught = []

        def nest(depth: int) -> None:
            if depth == 0:
                park()
            with move_on_after(1) as scope:
                nest(depth - 1)
            caught.append((depth, scope.cancelled()))

        nest(100)
        assert caught == [(100, True)]

    run_virtually(main)
