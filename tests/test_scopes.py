"""CancelScope: what cancelling one reaches, what stops it, who absorbs it."""

from __future__ import annotations

import gc
import logging
import threading
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelledOutcome,
    CancelScope,
    Failed,
    Fiber,
    FiberError,
    Scheduler,
    TaskGroup,
    check_cancelled,
    current,
    current_deadline,
    move_on_after,
    now,
    park,
    run,
    shield,
    sleep,
    spawn,
    timeout,
    yield_now,
)
from pyfiber.testing import VirtualClock
from pyfiber.testing import run as run_virtually

Log = list[Any]


# One scope ----------------------------------------------------------------------------------------


def test_scope_that_is_not_cancelled_does_nothing() -> None:
    def main() -> None:
        with CancelScope() as scope:
            yield_now()
        assert not scope.cancel_called
        assert not scope.cancelled_caught
        assert scope.reason is None

    run(main)


def test_enter_returns_the_scope() -> None:
    def main() -> None:
        scope = CancelScope()
        with scope as entered:
            assert entered is scope

    run(main)


def test_cancelled_scope_ends_its_block_at_the_next_park_point() -> None:
    log: Log = []

    def main() -> None:
        with CancelScope() as scope:
            assert scope.cancel("enough")
            log.append("still here")
            yield_now()
            log.append("never")
        assert scope.cancel_called
        assert scope.cancelled_caught
        assert scope.reason == "enough"
        yield_now()
        log.append("after")

    run(main)
    assert log == ["still here", "after"]


def test_scope_cancelled_by_another_fiber_wakes_the_one_that_waits_in_it() -> None:
    def main() -> Fiber[Any]:
        scopes: list[CancelScope] = []

        def body() -> bool:
            with CancelScope() as scope:
                scopes.append(scope)
                park()
            return scope.cancelled_caught

        fiber = spawn(body)
        yield_now()
        scopes[0].cancel()
        assert fiber.result() is True
        return fiber

    assert not run(main).cancelled()


def test_scope_raises_at_every_park_point_until_it_is_left() -> None:
    raised = 0

    def main() -> None:
        nonlocal raised
        with CancelScope() as scope:
            scope.cancel()
            for _ in range(5):
                with pytest.raises(Cancelled):
                    sleep(0)
                with pytest.raises(Cancelled):
                    check_cancelled()
                raised += 1
        assert not scope.cancelled_caught
        sleep(0)

    run(main)
    assert raised == 5


def test_scope_cancelled_before_it_is_entered_ends_its_block_at_once() -> None:
    def main() -> None:
        scope = CancelScope()
        assert scope.cancel("before")
        with scope:
            sleep(0)
            pytest.fail("not cancelled")
        assert scope.cancelled_caught

    run(main)


def test_cancelled_carries_the_scope_s_reason_and_who_asked() -> None:
    def main() -> None:
        with CancelScope() as scope:
            scope.cancel(["why"])
            with pytest.raises(Cancelled) as caught:
                sleep(0)
        assert caught.value.reason == ["why"]
        assert caught.value.by is current()
        assert caught.value.args == (["why"],)

    run(main)


def test_first_reason_stays() -> None:
    def main() -> None:
        with CancelScope() as scope:
            assert scope.cancel("first") is True
            assert scope.cancel("second") is True
        assert scope.reason == "first"
        assert scope.cancel("third") is False

    run(main)


def test_error_beats_the_cancellation() -> None:
    scope = CancelScope()

    def body() -> None:
        with scope:
            scope.cancel()
            try:
                sleep(0)
            finally:
                raise ValueError("real")

    def main() -> None:
        with pytest.raises(ValueError, match="real") as caught:
            body()
        assert isinstance(caught.value.__context__, Cancelled)
        assert not scope.cancelled_caught

    run(main)


def test_value_that_arrived_beats_the_cancellation() -> None:
    log: Log = []

    def main() -> None:
        def body() -> None:
            with CancelScope() as scope:
                scopes.append(scope)
                log.append(park())
                log.append("no park point")
                park()
            log.append(scope.cancelled_caught)

        scopes: list[CancelScope] = []
        fiber = spawn(body)
        yield_now()
        fiber.unpark("value")
        scopes[0].cancel()
        fiber.result()

    run(main)
    assert log == ["value", "no park point", True]


def test_finally_that_parks_raises_again_unless_shielded() -> None:
    log: Log = []

    def main() -> None:
        with CancelScope() as scope:
            scope.cancel()
            try:
                sleep(0)
            finally:
                try:
                    sleep(0)
                except Cancelled:
                    log.append("again")
                    with shield():
                        sleep(0)
                        log.append("shielded")
                    raise

    run(main)
    assert log == ["again", "shielded"]


def test_scope_without_a_park_point_catches_nothing() -> None:
    def main() -> None:
        with CancelScope() as scope:
            scope.cancel()
        assert scope.cancel_called
        assert not scope.cancelled_caught

    run(main)


def test_cancelled_raised_by_hand_is_no_scope_s() -> None:
    def body() -> None:
        with CancelScope() as scope:
            scope.cancel()
            raise Cancelled("by hand")

    def main() -> None:
        fiber = spawn(body)
        fiber.join()
        assert fiber.cancelled()

    run(main)


# Scopes in scopes ---------------------------------------------------------------------------------


def test_only_the_owning_scope_absorbs() -> None:
    def main() -> None:
        with CancelScope() as outer:
            with CancelScope() as middle, CancelScope() as inner:
                outer.cancel()
                sleep(0)
            pytest.fail("absorbed too early")
        assert outer.cancelled_caught
        assert not middle.cancelled_caught
        assert not inner.cancelled_caught

    run(main)


def test_cancelling_the_inner_scope_does_not_touch_the_outer() -> None:
    def main() -> None:
        with CancelScope() as outer:
            with CancelScope() as inner:
                inner.cancel()
                sleep(0)
            assert inner.cancelled_caught
            sleep(0)
        assert not outer.cancel_called

    run(main)


def test_outermost_of_two_cancelled_scopes_absorbs() -> None:
    def main() -> None:
        with CancelScope() as outer:
            with CancelScope() as inner:
                inner.cancel("inner")
                outer.cancel("outer")
                sleep(0)
            pytest.fail("went on inside of a cancelled scope")
        assert outer.cancelled_caught
        assert not inner.cancelled_caught

    run(main)


def test_outer_cancelled_while_the_inner_one_unwinds_raises_after_it() -> None:
    log: Log = []

    def main() -> None:
        with CancelScope() as outer:
            with CancelScope() as inner:
                inner.cancel()
                try:
                    sleep(0)
                finally:
                    outer.cancel()
            log.append(inner.cancelled_caught)
            sleep(0)
            log.append("never")
        log.append(outer.cancelled_caught)

    run(main)
    assert log == [True, True]


def test_leaving_an_uncancelled_scope_keeps_the_outer_cancellation() -> None:
    def main() -> None:
        with CancelScope() as outer:
            outer.cancel()
            with CancelScope():
                pass
            with pytest.raises(Cancelled):
                sleep(0)

    run(main)


def test_cancel_of_the_fiber_goes_through_its_scopes() -> None:
    def body() -> None:
        with CancelScope(), CancelScope() as scope:
            scopes.append(scope)
            park()

    scopes: list[CancelScope] = []

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.cancel("whole")
        fiber.join()
        assert fiber.outcome == CancelledOutcome("whole")
        assert not scopes[0].cancelled_caught

    run(main)


def test_fiber_s_cancellation_beats_the_one_of_its_scope() -> None:
    def body() -> None:
        with CancelScope() as scope:
            scope.cancel("scope")
            current().cancel("fiber")
            sleep(0)

    def main() -> None:
        fiber = spawn(body)
        fiber.join()
        assert fiber.outcome == CancelledOutcome("fiber")

    run(main)


def test_deep_nesting_on_one_fiber() -> None:
    depth = 2000

    def main() -> None:
        scopes = [CancelScope() for _ in range(depth)]
        for scope in scopes:
            scope.__enter__()
        scopes[depth // 2].cancel()
        with pytest.raises(Cancelled) as caught:
            sleep(0)
        for i, scope in enumerate(reversed(scopes)):
            absorbed = scope.__exit__(Cancelled, caught.value, None)
            assert absorbed is (depth - 1 - i == depth // 2)
        sleep(0)

    run(main)


# Shields ------------------------------------------------------------------------------------------


def test_shield_keeps_the_outer_cancellation_out() -> None:
    log: Log = []

    def main() -> None:
        with CancelScope() as scope:
            scope.cancel()
            with CancelScope(shield=True) as inner:
                sleep(0)
                log.append("inside")
            assert inner.shield
            sleep(0)
            log.append("never")

    run(main)
    assert log == ["inside"]


def test_shield_keeps_the_fiber_s_cancellation_out() -> None:
    log: Log = []

    def body() -> None:
        with shield():
            log.append(park())
        park()

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        yield_now()
        assert fiber.state == "parked"
        fiber.unpark("value")
        fiber.join()
        assert fiber.cancelled()

    run(main)
    assert log == ["value"]


def test_shield_does_not_stop_its_own_cancellation() -> None:
    def main() -> None:
        with CancelScope(shield=True) as scope:
            scope.cancel()
            sleep(0)
            pytest.fail("not cancelled")
        assert scope.cancelled_caught

    run(main)


def test_shield_does_not_stop_what_is_cancelled_inside_of_it() -> None:
    def main() -> None:
        with shield(), CancelScope() as inner:
            inner.cancel()
            sleep(0)
        assert inner.cancelled_caught

    run(main)


def test_shield_of_some_seconds_gives_up() -> None:
    def main() -> None:
        with CancelScope() as outer:
            outer.cancel()
            with shield(5) as inner:
                park()
            assert inner.cancelled_caught
            sleep(0)
        assert outer.cancelled_caught

    run_virtually(main)


def test_shield_can_be_raised_and_lowered() -> None:
    def main() -> None:
        with CancelScope() as outer, CancelScope() as inner:
            outer.cancel()
            inner.shield = True
            sleep(0)
            inner.shield = False
            with pytest.raises(Cancelled):
                sleep(0)
            inner.shield = True
            sleep(0)
        assert not outer.cancelled_caught

    run(main)


def test_shield_lowered_by_another_fiber_lets_the_cancellation_in() -> None:
    def main() -> None:
        scopes: list[CancelScope] = []

        def body() -> None:
            with shield() as scope:
                scopes.append(scope)
                park()

        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        yield_now()
        assert fiber.state == "parked"
        scopes[0].shield = False
        fiber.join()
        assert fiber.cancelled()

    run(main)


def test_shield_raised_after_the_wake_up_comes_too_late() -> None:
    """Level-triggered, but what has been delivered stays delivered, with its owner."""

    def main() -> None:
        scopes: list[CancelScope] = []
        log: Log = []

        def body() -> None:
            with CancelScope() as outer:
                with CancelScope() as inner:
                    scopes.extend((outer, inner))
                    park()
                log.append("never")
            log.append(outer.cancelled_caught)

        fiber = spawn(body)
        yield_now()
        scopes[0].cancel("why")
        assert fiber.state == "ready"
        scopes[1].shield = True
        fiber.result()
        assert log == [True]

    run(main)


def test_shield_holds_up_the_end_of_the_run() -> None:
    log: Log = []

    def cleans_up() -> None:
        try:
            park()
        finally:
            with shield(5):
                sleep(2)
                log.append("cleaned up")

    def main() -> None:
        spawn(cleans_up)
        yield_now()
        raise ValueError("main")

    with pytest.raises(ValueError, match="main"):
        run_virtually(main)
    assert log == ["cleaned up"]


# Deadlines ----------------------------------------------------------------------------------------


def test_deadline_cancels() -> None:
    def main() -> None:
        with CancelScope(5) as scope:
            assert scope.deadline == 5
            park()
        assert now() == 5
        assert scope.cancelled_caught
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
        assert scope.cancelled_caught

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
        assert scope.cancelled_caught

    run_virtually(main)


def test_deadline_moved_into_the_past_cancels_at_once() -> None:
    def main() -> None:
        with CancelScope() as scope:
            scope.deadline = now() - 1
            assert scope.cancel_called
            sleep(0)
        assert scope.cancelled_caught

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
        assert scope.cancelled_caught

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
        assert not scope.cancelled_caught

        with move_on_after(1) as scope:
            fiber = spawn(sleep, 2)
            with shield():
                fiber.join()
        assert scope.cancel_called
        assert not scope.cancelled_caught

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
        assert outer.cancelled_caught
        assert not inner.cancel_called

    run_virtually(main)


# timeout, move_on_after ---------------------------------------------------------------------------


def test_timeout_raises_timeout_error_from_the_cancellation() -> None:
    def main() -> None:
        scope = timeout(2)
        message = r"not done after 2\.0 seconds"
        with pytest.raises(TimeoutError, match=message) as caught, scope:
            park()
        assert scope.cancelled_caught
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
        assert outer.cancelled_caught

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
        assert scope.cancelled_caught

    run(main)
    assert log == ["ran"]


def test_move_on_after_does_not_raise() -> None:
    def main() -> None:
        with move_on_after(2) as scope:
            park()
        assert scope.cancelled_caught
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
            caught.append((depth, scope.cancelled_caught))

        nest(100)
        assert caught == [(100, True)]

    run_virtually(main)


# Threads, raw fibers, other runs ------------------------------------------------------------------


def test_cancel_from_another_thread_wakes_the_fiber() -> None:
    def main() -> None:
        with CancelScope() as scope:
            thread = threading.Thread(target=scope.cancel, args=("thread",))
            thread.start()
            park()
        thread.join()
        assert scope.cancelled_caught
        assert scope.reason == "thread"

    run(main)


def test_cancel_from_another_thread_of_a_busy_fiber() -> None:
    def main() -> None:
        with CancelScope() as scope:
            thread = threading.Thread(target=scope.cancel)
            thread.start()
            while True:
                yield_now()
        thread.join()
        assert scope.cancelled_caught

    run(main)


def test_cancel_from_another_thread_that_comes_after_the_leaving() -> None:
    def main() -> None:
        for _ in range(50):
            with CancelScope() as scope:
                thread = threading.Thread(target=scope.cancel)
                thread.start()
            thread.join()
            sleep(0)

    run(main)


def test_cancel_by_many_threads_at_once() -> None:
    def main() -> None:
        with CancelScope() as scope:
            threads = [threading.Thread(target=scope.cancel, args=(i,)) for i in range(8)]
            for thread in threads:
                thread.start()
            park()
        for thread in threads:
            thread.join()
        assert scope.cancelled_caught
        assert scope.reason in range(8)

    run(main)


def test_cancel_before_the_run_from_another_thread() -> None:
    scope = CancelScope()
    thread = threading.Thread(target=scope.cancel)
    thread.start()
    thread.join()

    def main() -> bool:
        with scope:
            sleep(0)
        return scope.cancelled_caught

    assert run(main)


def test_scope_of_a_raw_fiber_reaches_its_own_waiting() -> None:
    def main() -> None:
        def raw() -> None:
            with move_on_after(2) as scope:
                park()
            log.append((scope.cancelled_caught, now()))

        log: Log = []
        Fiber(raw).switch()
        yield_now()
        while not log:
            sleep(0.5)
        assert log == [(True, 2)]

    run_virtually(main)


def test_scope_around_a_switch_to_a_raw_fiber_and_back() -> None:
    def main() -> None:
        me = current()

        def raw() -> None:
            me.switch("back")
            pytest.fail("entered again")

        with move_on_after(0) as scope:
            other = Fiber(raw)
            assert other.switch() == "back"
            sleep(0)
        assert scope.cancelled_caught
        del other

    run(main)


def test_scope_of_a_raw_fiber_that_outlives_the_run() -> None:
    """Its timer went with the run's scheduler; leaving it later must not touch that."""
    keep: list[Fiber[Any]] = []

    def main() -> None:
        me = current()

        def raw() -> None:
            with timeout(60) as scope:
                me.switch()
            assert not scope.cancel_called

        keep.append(Fiber(raw))
        keep[0].parent = me
        keep[0].switch()

    run(main)
    gc.collect()

    def again() -> None:
        keep[0].parent = current()
        keep[0].switch()

    run(again)
    assert keep[0].done()


def test_fiber_exit_leaves_the_scopes() -> None:
    log: Log = []
    scheduler = Scheduler()

    def body() -> None:
        with timeout(60), CancelScope() as scope:
            try:
                park()
            finally:
                log.append(scope)

    scheduler.spawn(body)
    scheduler.run_once()
    assert scheduler.stats()["timers"] == 1
    scheduler.close()
    assert scheduler.stats()["timers"] == 0
    assert not log[0].cancelled_caught
    assert log[0].cancel() is False


def test_raw_fiber_dropped_inside_of_a_scope_is_unwound() -> None:
    def main() -> None:
        me = current()
        log: Log = []

        def raw() -> None:
            try:
                with timeout(60):
                    me.switch()
            finally:
                log.append("unwound")

        Fiber(raw).switch()
        assert log == ["unwound"]

    run(main)


def test_scope_and_fiber_in_a_cycle_are_collected() -> None:
    import weakref

    class Marked(CancelScope):
        pass

    def main() -> weakref.ref[Marked]:
        scope = Marked()
        reason: Log = [scope]
        with scope:
            scope.cancel(reason)
        ref = weakref.ref(scope)
        del scope, reason
        gc.collect()
        assert ref() is None
        return ref

    run(main)


def test_subclass_of_a_scope() -> None:
    class Mine(CancelScope):
        def __init__(self, label: str) -> None:
            super().__init__(deadline=0)
            self.label = label

    def main() -> None:
        with Mine("x") as scope:
            sleep(0)
        assert scope.label == "x"
        assert scope.cancelled_caught

    run(main)


def test_scopes_in_great_numbers_leave_nothing_behind() -> None:
    def main() -> None:
        gc.collect()
        before = len(gc.get_objects())
        for _ in range(10_000):
            with timeout(60), CancelScope():
                pass
        gc.collect()
        assert len(gc.get_objects()) < before + 100

    run(main)


def test_repr_names_kind_state_and_fiber() -> None:
    def main() -> None:
        scope = timeout(1.5)
        assert repr(scope).startswith("<timeout(1.5) not entered at ")
        with scope:
            assert "<timeout(1.5) entered by 'test_repr_names" in repr(scope)
            scope.cancel()
            assert ", cancelled at" in repr(scope)
        assert "left, cancelled" in repr(scope)
        assert repr(CancelScope()).startswith("<CancelScope not entered")
        assert repr(shield()).startswith("<shield() ")
        assert repr(TaskGroup()).startswith("<TaskGroup ")

    run(main)


# Fibers that do not listen ------------------------------------------------------------------------


@pytest.mark.parametrize("point", [yield_now, lambda: sleep(0), lambda: sleep(1), park])
def test_fiber_that_swallows_cancelled_is_reported_and_slowed_down(
    point: Any, caplog: pytest.LogCaptureFixture
) -> None:
    swallowed = 0
    others = 0
    stop = False

    def deaf() -> None:
        nonlocal swallowed
        while not stop:
            try:
                point()
            except Cancelled:
                swallowed += 1

    def main() -> None:
        nonlocal others, stop
        fiber = spawn(deaf)
        yield_now()
        fiber.cancel()
        for _ in range(20):
            sleep(0.001)
            others += 1
        stop = True
        fiber.join()

    with caplog.at_level(logging.WARNING, "pyfiber"):
        run_virtually(main)
    assert 100 <= swallowed < 200
    assert others == 20
    reports = [record for record in caplog.records if record.name == "pyfiber"]
    assert len(reports) == 1
    assert "catches Cancelled and goes on" in reports[0].getMessage()
    assert "deaf" in reports[0].getMessage()


def test_value_reaches_a_fiber_that_is_slowed_down() -> None:
    """It is delivered, not lost, although the fiber is cancelled."""
    logging.getLogger("pyfiber").disabled = True
    try:

        def deaf() -> Any:
            while True:
                try:
                    return park()
                except Cancelled:
                    pass

        def main() -> None:
            fiber = spawn(deaf)
            yield_now()
            fiber.cancel()
            sleep(5)
            fiber.unpark("value")
            assert fiber.result() == "value"

        run_virtually(main)
    finally:
        logging.getLogger("pyfiber").disabled = False


def test_cancellations_that_end_their_scopes_are_no_reason_for_a_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def main() -> None:
        for _ in range(500):
            with move_on_after(0):
                sleep(0)

    with caplog.at_level(logging.WARNING, "pyfiber"):
        run(main)
    assert not caplog.records


# Left where they should not be --------------------------------------------------------------------


def test_scope_entered_twice_is_refused() -> None:
    def main() -> None:
        with CancelScope() as scope, pytest.raises(FiberError, match="been entered already"):
            scope.__enter__()
        with pytest.raises(FiberError, match="has been left already"), scope:
            pass

    run(main)


def test_scope_not_entered_cannot_be_left() -> None:
    def main() -> None:
        with pytest.raises(FiberError, match="has not been entered"):
            CancelScope().__exit__(None, None, None)

    run(main)


def test_scope_left_twice_is_refused() -> None:
    def main() -> None:
        with CancelScope() as scope:
            pass
        with pytest.raises(FiberError, match="has been left already"):
            scope.__exit__(None, None, None)

    run(main)


def test_scopes_left_in_the_wrong_order_are_both_named() -> None:
    def main() -> None:
        outer, inner = timeout(1), timeout(2)
        outer.__enter__()
        inner.__enter__()
        with pytest.raises(FiberError) as caught:
            outer.__exit__(None, None, None)
        assert "timeout(1.0)" in str(caught.value)
        assert "timeout(2.0)" in str(caught.value)
        outer.cancel()
        sleep(0)  # it is out of the way
        inner.cancel()
        with pytest.raises(Cancelled):
            sleep(0)
        inner.__exit__(None, None, None)
        sleep(0)

    run(main)


def test_scope_in_a_suspended_generator_is_noticed() -> None:
    def generator() -> Any:
        with timeout(60):
            yield 1

    def main() -> None:
        items = generator()
        message = r"is left while the fiber is still in .*timeout"
        with pytest.raises(FiberError, match=message), CancelScope():
            next(items)
        items.close()
        sleep(0)

    run(main)


def test_scope_left_on_another_fiber_names_both() -> None:
    def generator() -> Any:
        with timeout(60):
            yield 1

    def main() -> None:
        items = generator()
        next(items)
        assert current_deadline() is not None
        fiber = spawn(items.close)
        error = fiber.exception()
        assert isinstance(error, FiberError)
        assert "cannot be left on" in str(error)
        assert repr(current())[:20] in str(error)
        assert current_deadline() is None  # this fiber is not in it for ever

    run(main)


def test_scope_left_on_another_thread_names_both_and_frees_the_fiber() -> None:
    errors: Log = []

    def main() -> None:
        scope = timeout(60)
        scope.__enter__()

        def elsewhere() -> None:
            try:
                scope.__exit__(None, None, None)
            except FiberError as error:
                errors.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        yield_now()
        assert current_deadline() is None

    run(main)
    assert "cannot be left on" in errors[0]


def test_fiber_that_ends_inside_of_a_scope_leaves_it() -> None:
    scheduler = Scheduler()
    scopes: list[CancelScope] = []

    def body() -> None:
        scopes.append(timeout(60))
        scopes[0].__enter__()

    def main() -> None:
        fiber = spawn(body)
        fiber.result()
        assert scheduler.stats()["timers"] == 0
        with pytest.raises(FiberError, match="the fiber that entered it has ended"):
            scopes[0].__exit__(None, None, None)

    scheduler.run(main)
    scheduler.close()


def test_cancellation_by_a_scope_nobody_leaves_is_a_failure() -> None:
    """Else the fiber would seem to have been cancelled, by nobody."""

    def generator() -> Any:
        with timeout(1):
            yield 1

    def body() -> None:
        next(items)
        park()

    items = generator()

    def main() -> None:
        fiber = spawn(body)
        fiber.join()
        assert isinstance(fiber.outcome, Failed)
        assert isinstance(fiber.outcome.exception, FiberError)
        assert "never left" in str(fiber.outcome.exception)
        assert isinstance(fiber.outcome.exception.__cause__, Cancelled)
        with pytest.raises(FiberError):
            items.close()

    run_virtually(main)


def test_scope_whose_exit_is_never_called_is_freed_with_its_fiber() -> None:
    def main() -> None:
        spawn(lambda: CancelScope(now() + 60).__enter__()).join()

    run_virtually(main)


# Bad arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [timeout, move_on_after, shield])
def test_bad_limits_are_refused(make: Any) -> None:
    with pytest.raises(ValueError, match="negative"):
        make(-1)
    with pytest.raises(ValueError, match="NaN"):
        make(float("nan"))
    with pytest.raises(TypeError, match="number"):
        make("1")
    with pytest.raises(TypeError):
        make(1, 2)
    with pytest.raises(TypeError):
        make(seconds=1)
    with pytest.raises(OverflowError):
        make(10**400)


@pytest.mark.parametrize("make", [timeout, move_on_after])
def test_limits_are_required(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize("cls", [CancelScope, TaskGroup])
def test_bad_constructor_arguments_are_refused(cls: Any) -> None:
    with pytest.raises(ValueError, match="deadline must not be NaN"):
        cls(float("nan"))
    with pytest.raises(TypeError, match="deadline must be a number"):
        cls(deadline="soon")
    with pytest.raises(TypeError):
        cls(1, True, 3)
    with pytest.raises(TypeError):
        cls(limit=3)


def test_bad_deadline_is_refused() -> None:
    def main() -> None:
        with CancelScope() as scope:
            with pytest.raises(ValueError, match="NaN"):
                scope.deadline = float("nan")
            with pytest.raises(TypeError):
                scope.deadline = "soon"  # type: ignore[assignment]
            with pytest.raises(AttributeError):
                del scope.deadline
            with pytest.raises(AttributeError):
                del scope.shield
            assert scope.deadline is None
        with pytest.raises(FiberError, match="has been left"):
            scope.deadline = 1
        with pytest.raises(FiberError, match="has been left"):
            scope.shield = True

    run(main)


def test_deadline_and_shield_are_the_thread_s() -> None:
    errors: Log = []

    def main() -> None:
        with CancelScope() as scope:

            def elsewhere() -> None:
                for name in ("deadline", "shield"):
                    try:
                        setattr(scope, name, 1)
                    except FiberError as error:
                        errors.append(str(error))

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

    run(main)
    assert len(errors) == 2
    assert "only cancel()" in errors[0]


@pytest.mark.parametrize("make", [CancelScope, TaskGroup, shield, lambda: timeout(1)])
def test_entering_needs_a_run(make: Any) -> None:
    with pytest.raises(FiberError, match="needs a running scheduler"), make():
        pass
    with pytest.raises(FiberError, match="needs a running scheduler"):
        current_deadline()


def test_init_of_an_entered_scope_is_refused() -> None:
    def main() -> None:
        with CancelScope() as scope, pytest.raises(FiberError, match="too late"):
            scope.__init__(shield=True)  # type: ignore[misc]

    run(main)


def test_exit_takes_three_arguments() -> None:
    def main() -> None:
        with CancelScope() as scope, pytest.raises(TypeError, match="3 arguments"):
            scope.__exit__(None, None)  # type: ignore[call-arg]
        with TaskGroup() as group, pytest.raises(TypeError, match="3 arguments"):
            group.__exit__()  # type: ignore[call-arg]

    run(main)
