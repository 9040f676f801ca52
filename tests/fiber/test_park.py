"""park() and unpark(): one sticky permit, from any thread, and nothing else is woken by it."""

from __future__ import annotations

import threading
import time
import warnings
from typing import Any

import pytest

from pyfiber import (
    Fiber,
    FiberError,
    Scheduler,
    current,
    park,
    run,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import VirtualClock
from pyfiber.testing import run as run_virtually
from tests.support.subprocesses import run_script
from tests.support.threads import PATIENCE

Log = list[Any]


def test_park_returns_the_value_of_unpark() -> None:
    thing = object()

    def main() -> None:
        fiber = spawn(park)
        yield_now()
        assert fiber.unpark(thing) is True
        assert fiber.result() is thing

    run(main)


def test_park_returns_none_by_default() -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        fiber.unpark()
        assert fiber.result() is None

    run(main)


def test_unpark_by_keyword() -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        fiber.unpark(value="named")
        assert fiber.result() == "named"

    run(main)


def test_early_unpark_is_not_lost() -> None:
    def main() -> None:
        fiber = spawn(park)
        assert fiber.unpark("early") is True
        assert fiber.result() == "early"

    run(main)


def test_unpark_of_oneself_makes_the_next_park_return() -> None:
    def main() -> None:
        current().unpark("mine")
        assert park() == "mine"

    run(main)


def test_park_with_a_permit_does_not_let_others_run() -> None:
    log: Log = []

    def main() -> None:
        spawn(log.append, "other")
        current().unpark()
        park()
        log.append("main")

    run(main)
    assert log == ["main", "other"]


def test_second_unpark_says_false_and_keeps_the_first_value() -> None:
    def body() -> Any:
        value = park()
        with pytest.raises(TimeoutError):
            park(0)
        return value

    def main() -> None:
        fiber = spawn(body)
        assert fiber.unpark("first") is True
        with pytest.warns(RuntimeWarning, match=r"unpark\('second'\) is dropped.*Queue"):
            assert fiber.unpark("second") is False
        assert fiber.result() == "first"

    run(main)


@pytest.mark.parametrize("is_error", [False, True])
def test_second_unpark_from_a_thread_is_told(
    is_error: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is seen where the request arrives: nobody could catch an error there."""
    told: list[str] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: told.append(str(args.exc_value)))

    def unparks(fiber: Fiber[Any]) -> None:
        fiber.unpark("first")
        fiber.unpark("second")
        fiber.unpark()

    def main() -> None:
        thread = threading.Thread(target=unparks, args=(current(),))
        thread.start()
        thread.join()
        assert park() == "first"

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("error" if is_error else "always")
        run(main)
    told += [str(warning.message) for warning in caught]
    assert len(told) == 1
    assert told[0].startswith("unpark('second') is dropped: <pyfiber.Fiber")
    assert capsys.readouterr().err == ""


def test_second_unpark_without_a_value_says_false_and_nothing_else() -> None:
    def main() -> None:
        assert current().unpark("first") is True
        assert current().unpark() is False
        assert park() == "first"

    run(main)


def test_second_unpark_whose_warning_is_an_error_keeps_the_first_value() -> None:
    def main() -> None:
        current().unpark("first")
        with pytest.raises(RuntimeWarning, match="is dropped"):
            current().unpark("second")
        assert park() == "first"

    run(main)


def test_second_unpark_of_a_parked_fiber_says_false() -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        assert fiber.unpark("first") is True
        assert fiber.state == "ready"
        assert fiber.unpark() is False
        assert fiber.result() == "first"

    run(main)


def test_permit_is_used_up_by_one_park() -> None:
    def main() -> None:
        current().unpark()
        park()
        with pytest.raises(TimeoutError):
            park(0)

    run(main)


def test_unpark_of_a_finished_fiber_is_refused() -> None:
    def main() -> Fiber[int]:
        fiber = spawn(lambda: 1)
        fiber.join()
        with pytest.raises(FiberError, match="nothing to unpark"):
            fiber.unpark()
        return fiber

    fiber = run(main)
    with pytest.raises(FiberError, match="nothing to unpark"):
        fiber.unpark()
    assert fiber.result() == 1


def test_permit_does_not_show_in_the_outcome() -> None:
    """The value of a permit nobody used must not be taken for the result."""

    def main() -> None:
        fiber = spawn(lambda: "result")
        fiber.unpark("value")
        assert fiber.result() == "result"

    run(main)


def test_permit_unused_when_the_fiber_fails_or_is_cancelled() -> None:
    def main() -> None:
        failing, cancelled = spawn(lambda: 1 // 0), spawn(park)
        failing.unpark("value")
        cancelled.unpark("value")
        cancelled.cancel()
        assert isinstance(failing.exception(), ZeroDivisionError)
        cancelled.join()
        assert cancelled.cancelled()

    run(main)


def test_unparked_fibers_run_in_the_order_of_the_unparks() -> None:
    log: Log = []

    def main() -> None:
        fibers = [spawn(lambda i=i: (park(), log.append(i))) for i in range(5)]
        yield_now()
        for i in (3, 1, 4, 0, 2):
            fibers[i].unpark()

    run(main)
    assert log == [3, 1, 4, 0, 2]


def test_ping_pong() -> None:
    def pong(partner: Fiber[Any]) -> None:
        for i in range(1000):
            assert park() == i
            partner.unpark(i)

    def main() -> None:
        other = spawn(pong, current())
        for i in range(1000):
            other.unpark(i)
            assert park() == i

    run(main)


# Timeouts -----------------------------------------------------------------------------------------


def test_park_timeout_raises_timeout_error() -> None:
    def main() -> None:
        with pytest.raises(TimeoutError, match=r"park\(\) timed out"):
            park(1)
        with pytest.raises(TimeoutError, match=r"park\(\) timed out"):
            park(timeout=1)

    run_virtually(main)


def test_park_timeout_zero_lets_others_run_and_times_out() -> None:
    def main() -> None:
        with pytest.raises(TimeoutError):
            park(0)

    run(main)


def test_park_where_the_fiber_must_not_be_left_does_not_take_the_permit() -> None:
    """The callback runs in passing on a fiber that is about to wait for its permit."""
    errors: list[FiberError] = []

    def callback(_: object) -> None:
        try:
            park()
        except FiberError as exc:
            errors.append(exc)

    def main() -> str:
        done = spawn(int)
        done.join()
        current().unpark("mine")
        done.add_done_callback(callback)
        return park()

    assert run(main) == "mine"
    assert len(errors) == 1


def test_park_with_a_permit_ignores_its_timeout() -> None:
    def main() -> None:
        current().unpark("value")
        assert park(0) == "value"

    run(main)


def test_unpark_before_the_timeout_wins_and_the_timer_is_gone() -> None:
    scheduler = Scheduler()

    def main() -> None:
        fiber = spawn(park, 3600)
        yield_now()
        fiber.unpark("value")
        assert fiber.result() == "value"
        assert scheduler.stats()["timers"] == 0

    scheduler.run(main)
    scheduler.close()


def test_unpark_after_the_timeout_fired_but_before_it_ran_is_delivered() -> None:
    """The fiber has not run yet: the value may still be handed over, and is not lost."""

    def body() -> Any:
        try:
            return park(1)
        except TimeoutError:
            return park(60)

    clock = VirtualClock()

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        clock.spend(1)
        while fiber.state == "parked":
            yield_now()
        assert fiber.unpark("value") is True
        assert fiber.result() == "value"

    run_virtually(main, clock=clock)


def test_unpark_racing_the_timeout_loses_nothing() -> None:
    def body() -> Any:
        for _ in range(2):
            try:
                return park(1e-6)
            except TimeoutError:
                yield_now()
        return park(60)

    def main() -> None:
        for _ in range(500):
            fiber = spawn(body)
            yield_now()
            assert fiber.unpark("value") is True
            assert fiber.result() == "value"

    run(main)


@pytest.mark.parametrize("timeout", [-1, -1e-9, float("nan"), float("-inf")])
def test_park_timeout_must_not_be_negative_or_nan(timeout: float) -> None:
    def main() -> None:
        with pytest.raises(ValueError, match="must not be"):
            park(timeout)

    run_virtually(main)


@pytest.mark.parametrize("timeout", ["soon", [], object(), 1j])
def test_park_timeout_must_be_a_number(timeout: Any) -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="must be a number"):
            park(timeout)

    run(main)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**30, 2.0**63])
def test_park_timeout_may_be_huge(timeout: float) -> None:
    def main() -> None:
        fiber = spawn(park, timeout)
        yield_now()
        assert fiber.state == "parked"
        fiber.unpark("value")
        assert fiber.result() == "value"

    run(main)


def test_park_timeouts_and_sleeps_share_one_order() -> None:
    log: Log = []

    def parks(timeout: float) -> None:
        with pytest.raises(TimeoutError):
            park(timeout)
        log.append(timeout)

    def main() -> None:
        for timeout in (3, 1):
            spawn(parks, timeout)
        spawn(lambda: (sleep(2), log.append(2)))

    run_virtually(main)
    assert log == [1, 2, 3]


# What unpark does not wake ------------------------------------------------------------------------


def test_stray_unpark_does_not_wake_a_join() -> None:
    log: Log = []

    def main() -> None:
        target = spawn(park)
        joiner = spawn(lambda: (target.join(), log.append("joined"), park())[2])
        yield_now()
        joiner.unpark("kept")
        for _ in range(5):
            yield_now()
        assert log == []
        target.unpark()
        assert joiner.result() == "kept"

    run(main)


def test_stray_unpark_does_not_wake_a_sleep() -> None:
    def main() -> None:
        sleeper = spawn(lambda: (park(), sleep(2), park())[2])
        yield_now()
        sleeper.unpark("used")
        yield_now()
        assert sleeper.unpark("kept") is True
        for _ in range(5):
            yield_now()
        assert sleeper.state == "parked"
        assert sleeper.result() == "kept"

    run_virtually(main)


def test_stray_unpark_does_not_move_a_ready_fiber() -> None:
    log: Log = []

    def body(name: str) -> None:
        yield_now()
        log.append(name)

    def main() -> None:
        a, b = spawn(body, "a"), spawn(body, "b")
        yield_now()
        b.unpark()
        a.unpark()
        a.join()
        b.join()

    run(main)
    assert log == ["a", "b"]


# From elsewhere -----------------------------------------------------------------------------------


def test_park_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError, match=r"park\(\) needs a running scheduler"):
        park()


def test_unpark_of_a_new_fiber_is_kept_until_it_runs() -> None:
    fiber: Fiber[Any] = Fiber(park)
    assert fiber.unpark("early") is True
    assert fiber.unpark() is False
    assert run(lambda: fiber.start().result()) == "early"


@pytest.mark.parametrize("value", [None, "value"])
def test_unpark_from_another_thread(value: Any) -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        thread = threading.Thread(target=fiber.unpark, args=(value,))
        thread.start()
        assert fiber.result() is value
        thread.join()

    run(main)


@pytest.mark.parametrize("value", [None, "value"])
def test_early_unpark_from_another_thread_is_not_lost(value: Any) -> None:
    def main() -> None:
        me = current()
        answers: Log = []
        thread = threading.Thread(target=lambda: answers.append(me.unpark(value)))
        thread.start()
        thread.join()
        assert answers == [True]
        assert park() is value

    run(main)


@pytest.mark.parametrize("value", [None, "value"])
def test_raw_fiber_gets_the_permit_of_another_thread_while_it_waits_in_no_run(value: Any) -> None:
    """It has none to be posted to: its thread gives it the permit, before it waits."""
    raw: Fiber[Any] = Fiber(lambda: (current().parent.switch(), park())[1])  # type: ignore[union-attr]
    raw.switch()
    thread = threading.Thread(target=raw.unpark, args=(value,))
    thread.start()
    thread.join()

    def main() -> Any:
        raw.parent = current()
        return raw.switch()

    assert run(main) is value


def test_raw_fiber_unparked_by_another_thread_as_it_begins_to_wait_goes_on() -> None:
    rounds = 300
    turns: Log = []

    def body() -> None:
        for _ in range(rounds):
            current().parent.switch()  # type: ignore[union-attr]
            assert park(timeout=PATIENCE) is None

    raw: Fiber[None] = Fiber(body)
    raw.switch()

    def unparks() -> None:
        for number in range(rounds):
            while len(turns) <= number:
                time.sleep(0)
            raw.unpark()

    thread = threading.Thread(target=unparks)
    thread.start()

    def main() -> None:
        raw.parent = current()
        turns.append(1)
        raw.switch()

    for _ in range(rounds):
        run(main)
    thread.join()
    assert raw.done()


def test_unpark_from_another_thread_does_not_wake_a_sleep() -> None:
    def main() -> None:
        me = current()
        thread = threading.Thread(target=me.unpark)
        sleeper = spawn(sleep, 0.003)
        thread.start()
        assert sleeper.join(60)
        thread.join()
        assert park(0.5) is None

    run(main)


def test_unpark_from_another_thread_of_a_finished_fiber_is_refused() -> None:
    def main() -> None:
        fiber = spawn(lambda: None)
        fiber.join()
        errors: Log = []

        def other() -> None:
            with pytest.raises(FiberError) as caught:
                fiber.unpark()
            errors.append(caught.value)

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert len(errors) == 1

    run(main)


# Raw fibers that park -----------------------------------------------------------------------------


def test_raw_fiber_that_parks_lets_the_others_run() -> None:
    log: Log = []

    def main() -> None:
        raw: Fiber[Any] = Fiber(park)
        spawn(lambda: (log.append("other"), raw.unpark("value")))
        assert raw.switch() == "value"
        log.append("main")

    run(main)
    assert log == ["other", "main"]


def test_raw_fiber_that_is_parked_cannot_be_switched_to() -> None:
    def main() -> None:
        box: list[Fiber[Any]] = []

        def holds() -> Any:
            box.append(Fiber(park))
            return box[0].switch()

        holder = spawn(holds)
        yield_now()
        assert box[0].state == "parked"
        with pytest.raises(FiberError, match="unpark"):
            box[0].switch()
        box[0].unpark(5)
        assert holder.result() == 5

    run(main)


def test_raw_fiber_that_sleeps_yields_and_joins() -> None:
    def body() -> list[Any]:
        sleep(1)
        yield_now()
        fiber = spawn(lambda: "joined")
        return [fiber.result(), current().state]

    assert run_virtually(lambda: Fiber(body).switch()) == ["joined", "running"]


def test_raw_generator_pattern_inside_scheduled_fibers() -> None:
    """Each scheduled fiber drives raw ones of its own while the others take turns."""

    def produce(consumer: Fiber[Any], name: str) -> str:
        for i in range(3):
            yield_now()
            consumer.switch(f"{name}{i}")
        return "end"

    def consume(name: str) -> list[str]:
        raw: Fiber[str] = Fiber(produce, (current(), name))
        return [raw.switch() for _ in range(4)]

    def main() -> list[list[str]]:
        fibers = [spawn(consume, name) for name in "abc"]
        return [fiber.result() for fiber in fibers]

    assert run(main) == [[f"{name}{i}" for i in range(3)] + ["end"] for name in "abc"]


def test_raw_fiber_failure_comes_to_the_scheduled_one_that_entered_it() -> None:
    def body() -> None:
        sleep(0)
        raise ValueError("raw")

    def main() -> str:
        with pytest.raises(ValueError, match="raw"):
            Fiber(body).switch()
        return "fine"

    assert run(main) == "fine"


def test_raw_fiber_parked_when_the_run_ends_is_unwound() -> None:
    """Who switched to the fiber that waits for it was left for good: the run ends with that."""
    printed = run_script(
        """
        from pyfiber import *

        def body():
            try:
                park()
            finally:
                print("unwound")

        def main():
            raw = Fiber(body)
            spawn(current().switch)
            raw.switch()

        try:
            run(main)
        except DeadlockError:
            print("deadlock")
        """,
        timeout=20,
    ).stdout
    assert printed.split() == ["unwound", "deadlock"]
