"""CancelScope: what cancelling one reaches, what stops it, who absorbs it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelledOutcome,
    CancelScope,
    Fiber,
    FiberError,
    TaskGroup,
    check_cancelled,
    current,
    current_deadline,
    move_on_after,
    park,
    run,
    shield,
    sleep,
    spawn,
    timeout,
    yield_now,
)
from pyfiber.testing import run as run_virtually

Log = list[Any]


# One scope ----------------------------------------------------------------------------------------


def test_scope_that_is_not_cancelled_does_nothing() -> None:
    def main() -> None:
        with CancelScope() as scope:
            yield_now()
        assert not scope.cancel_called
        assert not scope.cancelled()
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
        assert scope.cancelled()
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
            return scope.cancelled()

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
        assert not scope.cancelled()
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
        assert scope.cancelled()

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
        assert not scope.cancelled()

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
            log.append(scope.cancelled())

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
        assert not scope.cancelled()

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
        assert outer.cancelled()
        assert not middle.cancelled()
        assert not inner.cancelled()

    run(main)


def test_cancelling_the_inner_scope_does_not_touch_the_outer() -> None:
    def main() -> None:
        with CancelScope() as outer:
            with CancelScope() as inner:
                inner.cancel()
                sleep(0)
            assert inner.cancelled()
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
        assert outer.cancelled()
        assert not inner.cancelled()

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
            log.append(inner.cancelled())
            sleep(0)
            log.append("never")
        log.append(outer.cancelled())

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
        assert not scopes[0].cancelled()

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
        assert scope.cancelled()

    run(main)


def test_shield_does_not_stop_what_is_cancelled_inside_of_it() -> None:
    def main() -> None:
        with shield(), CancelScope() as inner:
            inner.cancel()
            sleep(0)
        assert inner.cancelled()

    run(main)


def test_shield_of_some_seconds_gives_up() -> None:
    def main() -> None:
        with CancelScope() as outer:
            outer.cancel()
            with shield(5) as inner:
                park()
            assert inner.cancelled()
            sleep(0)
        assert outer.cancelled()

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
        assert not outer.cancelled()

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
            log.append(outer.cancelled())

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
