"""cancel(): when Cancelled is raised, what beats it, what it leaves behind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import copy
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelledOutcome,
    Failed,
    Fiber,
    FiberCancelled,
    FiberError,
    Ok,
    Scheduler,
    TaskGroup,
    check_cancelled,
    current,
    now,
    park,
    run,
    sleep,
    sleep_until,
    spawn,
    timeout,
    yield_now,
)
from pyfiber.grains import Grain
from pyfiber.testing import VirtualClock
from pyfiber.testing import run as run_virtually

Log = list[Any]


def take_turns() -> None:
    for _ in range(3):
        yield_now()


PARK_POINTS: dict[str, Callable[[], Any]] = {
    "park": park,
    "park with timeout": lambda: park(60),
    "park with timeout 0": lambda: park(0),
    "sleep": lambda: sleep(60),
    "sleep 0": lambda: sleep(0),
    "sleep without end": lambda: sleep(float("inf")),
    "sleep_until": lambda: sleep_until(now() + 60),
    "sleep_until the past": lambda: sleep_until(0),
    "yield_now": yield_now,
    "check_cancelled": check_cancelled,
    "join": lambda: spawn(take_turns).join(),
    "join with timeout": lambda: spawn(take_turns).join(60),
    "result": lambda: spawn(take_turns).result(),
    "exception": lambda: spawn(take_turns).exception(),
}
each_park_point = pytest.mark.parametrize("point", PARK_POINTS.values(), ids=PARK_POINTS.keys())
DO_NOT_WAIT = ("check_cancelled", "park with timeout 0")
BLOCKING = {name: point for name, point in PARK_POINTS.items() if name not in DO_NOT_WAIT}


# When it is delivered -----------------------------------------------------------------------------


def test_cancel_of_a_fiber_that_has_not_run_keeps_it_from_running() -> None:
    log: Log = []

    def main() -> None:
        fiber = spawn(log.append, "ran")
        assert fiber.cancel() is True
        assert not fiber.done()
        fiber.join()
        assert fiber.cancelled()
        assert fiber.outcome == CancelledOutcome()

    run(main)
    assert log == []


def test_cancel_of_a_fresh_fiber_keeps_the_reason() -> None:
    def main() -> None:
        fiber = spawn(park)
        fiber.cancel("early")
        fiber.join()
        assert fiber.outcome == CancelledOutcome("early")

    run(main)


@pytest.mark.parametrize("point", list(BLOCKING.values()), ids=list(BLOCKING))
def test_cancel_of_a_waiting_fiber_raises_where_it_waits(point: Callable[[], Any]) -> None:
    log: Log = []

    def body() -> None:
        try:
            point()
        except Cancelled:
            log.append("cancelled")
            raise

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        assert fiber.cancel()
        fiber.join()
        assert fiber.cancelled()

    run(main)
    assert log == ["cancelled"]


@each_park_point
def test_cancel_is_raised_at_every_park_point_until_the_end(point: Callable[[], Any]) -> None:
    counted: Log = []

    def body() -> str:
        with pytest.raises(Cancelled):
            park()
        for _ in range(3):
            with pytest.raises(Cancelled):
                point()
            counted.append(1)
        return "end"

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        assert fiber.result() == "end"

    run(main)
    assert len(counted) == 3


@each_park_point
def test_cancel_of_the_running_fiber_raises_at_its_next_park_point(
    point: Callable[[], Any],
) -> None:
    log: Log = []

    def body() -> None:
        assert current().cancel("mine") is True
        log.append("still running")
        point()
        log.append("never")

    def main() -> None:
        fiber = spawn(body)
        fiber.join()
        assert fiber.outcome == CancelledOutcome("mine")

    run(main)
    assert log == ["still running"]


def test_cancel_of_a_ready_fiber_that_yielded_raises_in_the_yield() -> None:
    def main() -> None:
        fiber = spawn(yield_now)
        yield_now()
        assert fiber.state == "ready"
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()

    run(main)


def test_cancel_does_not_raise_where_nothing_parks() -> None:
    def body() -> str:
        current().cancel()
        return "result"

    def main() -> None:
        fiber = spawn(body)
        assert fiber.result() == "result"
        assert fiber.outcome == Ok("result")
        assert not fiber.cancelled()

    run(main)


def test_cancel_wakes_in_turn_and_does_not_run_at_once() -> None:
    log: Log = []

    def body(name: str) -> None:
        try:
            park()
        finally:
            log.append(name)

    def main() -> None:
        fibers = [spawn(body, name) for name in "abc"]
        yield_now()
        for fiber in reversed(fibers):
            fiber.cancel()
            log.append("asked")

    run(main)
    assert log == ["asked"] * 3 + ["c", "b", "a"]


def test_check_cancelled_of_a_fiber_that_is_not_does_nothing() -> None:
    assert run(check_cancelled) is None


def test_cancel_when_done_says_false() -> None:
    def main() -> None:
        fiber = spawn(lambda: 1)
        fiber.join()
        assert fiber.cancel() is False
        assert fiber.outcome == Ok(1)

    run(main)


def test_cancel_twice_keeps_the_first_reason() -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        assert fiber.cancel("first") is True
        assert fiber.cancel("second") is True
        fiber.join()
        assert fiber.cancel("third") is False
        assert fiber.outcome == CancelledOutcome("first")

    run(main)


def test_cancelled_is_false_before_the_end() -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        fiber.cancel()
        assert not fiber.cancelled()
        fiber.join()
        assert fiber.cancelled()

    run(main)


def test_cancel_of_one_does_not_touch_others() -> None:
    def main() -> None:
        one, two = spawn(park), spawn(park)
        yield_now()
        one.cancel()
        one.join()
        assert two.state == "parked"
        two.unpark("value")
        assert two.result() == "value"

    run(main)


def test_cancel_of_a_joiner_leaves_the_target_alone() -> None:
    def main() -> None:
        target = spawn(park)
        joiner = spawn(target.join)
        yield_now()
        joiner.cancel()
        joiner.join()
        assert target.state == "parked"
        target.unpark()
        assert target.join()

    run(main)


def test_cancel_of_a_target_wakes_its_joiner() -> None:
    def main() -> None:
        target = spawn(park)
        joiner = spawn(target.join)
        yield_now()
        target.cancel()
        assert joiner.result() is True

    run(main)


# What it carries ----------------------------------------------------------------------------------


def test_cancelled_carries_reason_and_who() -> None:
    caught: list[Cancelled] = []

    def body() -> None:
        try:
            park()
        except Cancelled as exc:
            caught.append(exc)
            raise

    def main() -> Fiber[Any]:
        fiber = spawn(body)
        yield_now()
        fiber.cancel(("any", "object"))
        fiber.join()
        return current()

    asker = run(main)
    assert caught[0].reason == ("any", "object")
    assert caught[0].by is asker


def test_cancelled_without_a_reason_has_none() -> None:
    def body() -> None:
        with pytest.raises(Cancelled) as caught:
            park()
        assert caught.value.reason is None
        assert caught.value.args == ()

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        fiber.result()

    run(main)


def test_cancel_reason_by_keyword() -> None:
    def main() -> None:
        fiber = spawn(park)
        fiber.cancel(reason="named")
        fiber.join()
        assert fiber.outcome == CancelledOutcome("named")

    run(main)


def test_cancelled_is_not_an_exception_that_broad_handlers_catch() -> None:
    assert issubclass(Cancelled, BaseException)
    assert not issubclass(Cancelled, Exception)


def test_fiber_cancelled_is_the_one_of_concurrent_futures() -> None:
    assert issubclass(FiberCancelled, concurrent.futures.CancelledError)


def test_fiber_cancelled_is_not_the_injected_cancelled() -> None:
    """Raised in the fiber that asks, it must not look like that fiber's own cancellation."""

    def main() -> None:
        target = spawn(park)
        target.cancel()
        with pytest.raises(FiberCancelled) as caught:
            target.result()
        assert not isinstance(caught.value, Cancelled)

    run(main)


def test_fiber_cancelled_escaping_a_fiber_is_its_failure() -> None:
    def main() -> None:
        target = spawn(park)
        target.cancel("reason")
        asks = spawn(target.result)
        asks.join()
        assert isinstance(asks.outcome, Failed)
        assert isinstance(asks.exception(), FiberCancelled)

    run(main)


# What beats it ------------------------------------------------------------------------------------


def test_value_that_came_first_beats_cancel() -> None:
    def body() -> str:
        value: str = park()
        with pytest.raises(Cancelled):
            park()
        return value

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.unpark("value")
        fiber.cancel()
        assert fiber.result() == "value"

    run(main)


def test_cancel_that_came_first_leaves_the_value_for_the_next_park() -> None:
    """Cancelled means the park did not happen: the permit is still there."""

    def body() -> str:
        with pytest.raises(Cancelled):
            park()
        return park()

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        fiber.unpark("value")
        assert fiber.result() == "value"

    run(main)


def test_joined_end_that_came_first_beats_cancel() -> None:
    log: Log = []

    def joins(target: Fiber[Any]) -> None:
        log.append(target.join())
        yield_now()

    def main() -> None:
        target = spawn(park)
        joiner = spawn(joins, target)
        yield_now()
        target.unpark()
        yield_now()
        assert joiner.state == "ready"
        joiner.cancel()
        joiner.join()
        assert joiner.cancelled()

    run(main)
    assert log == [True]


def test_timeout_that_came_first_beats_cancel() -> None:
    log: Log = []

    def sleeper() -> None:
        sleep(1)
        log.append("slept")
        yield_now()

    clock = VirtualClock()

    def main() -> None:
        fiber = spawn(sleeper)
        yield_now()
        clock.spend(1)
        while fiber.state == "parked":
            yield_now()
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()

    run_virtually(main, clock=clock)
    assert log == ["slept"]


def test_error_while_unwinding_beats_cancel() -> None:
    def body() -> None:
        try:
            park()
        finally:
            raise ValueError("in cleanup")

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        error = fiber.exception()
        assert isinstance(error, ValueError)
        assert isinstance(error.__context__, Cancelled)
        assert not fiber.cancelled()

    run(main)


def test_swallowed_cancel_ends_ok() -> None:
    def body() -> str:
        with contextlib.suppress(Cancelled):
            park()
        return "swallowed"

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        assert fiber.result() == "swallowed"
        assert fiber.outcome == Ok("swallowed")

    run(main)


def test_finally_that_parks_gets_cancelled_again_and_still_runs_to_its_end() -> None:
    log: Log = []

    def body() -> None:
        try:
            park()
        finally:
            try:
                sleep(60)
            finally:
                log.append("inner")
        log.append("never")

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()

    run(main)
    assert log == ["inner"]


def test_cancelled_raised_by_hand_counts_as_cancellation() -> None:
    def body() -> None:
        raise Cancelled("by hand")

    def main() -> None:
        fiber = spawn(body)
        fiber.join()
        assert fiber.cancelled()
        with pytest.raises(FiberCancelled):
            fiber.result()

    run(main)


def test_cancel_through_generators_closes_them() -> None:
    log: Log = []

    def generator() -> Any:
        try:
            while True:
                yield park()
        finally:
            log.append("closed")

    def main() -> None:
        fiber = spawn(lambda: list(generator()))
        yield_now()
        fiber.cancel()
        fiber.join()

    run(main)
    assert log == ["closed"]


# Who may ask --------------------------------------------------------------------------------------


def test_cancel_from_another_thread() -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        thread = threading.Thread(target=fiber.cancel, args=("from a thread",))
        thread.start()
        fiber.join()
        thread.join()
        assert fiber.outcome == CancelledOutcome("from a thread")

    run(main)


def test_cancel_from_another_thread_of_the_only_fiber() -> None:
    def main() -> None:
        me = current()
        thread = threading.Thread(target=lambda: me.cancel("main"))
        thread.start()
        try:
            park()
        finally:
            thread.join()

    with pytest.raises(FiberCancelled, match="main"):
        run(main)


def test_cancel_from_another_thread_of_a_busy_fiber() -> None:
    def busy() -> None:
        asked.set()
        while True:
            yield_now()

    asked = threading.Event()

    def main() -> None:
        fiber = spawn(busy)
        thread = threading.Thread(target=lambda: asked.wait() and fiber.cancel())
        thread.start()
        fiber.join()
        thread.join()
        assert fiber.cancelled()

    run(main)


def test_cancel_from_outside_of_the_run_between_passes() -> None:
    from pyfiber import Scheduler

    scheduler = Scheduler()
    fiber = scheduler.spawn(park)
    scheduler.run_once()
    assert fiber.cancel("outside")
    assert scheduler.run_once() is False
    assert fiber.outcome == CancelledOutcome("outside")
    scheduler.close()


def test_cancel_of_a_raw_fiber_is_refused() -> None:
    raw: Fiber[None] = Fiber(lambda: None)
    with pytest.raises(FiberError, match="only a fiber of a scheduler"):
        raw.cancel()
    with pytest.raises(FiberError, match="only a fiber of a scheduler"):
        current().cancel()


def test_cancel_of_a_finished_raw_fiber_says_false() -> None:
    raw: Fiber[None] = Fiber(lambda: None)
    raw.switch()
    assert raw.cancel() is False


def test_cancel_inside_a_raw_fiber_hits_the_raw_fiber_when_it_parks() -> None:
    """A raw fiber has no cancellation of its own: its scheduled fiber gets it when it is back."""

    def main() -> None:
        box: list[Fiber[Any]] = []

        def raw_body() -> Any:
            box.append(current())
            return park()

        def body() -> None:
            assert Fiber(raw_body).switch() == "value"
            yield_now()

        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        box[0].unpark("value")
        fiber.join()
        assert fiber.cancelled()

    run(main)


def test_cancel_many_at_once() -> None:
    def main() -> int:
        fibers = [spawn(park) for _ in range(1000)]
        yield_now()
        for fiber in fibers:
            fiber.cancel()
        for fiber in fibers:
            fiber.join()
        return sum(fiber.cancelled() for fiber in fibers)

    assert run(main) == 1000


def test_cancel_removes_the_timer() -> None:
    from pyfiber import Scheduler

    scheduler = Scheduler()

    def main() -> None:
        fibers = [spawn(sleep, 3600) for _ in range(50)]
        yield_now()
        assert scheduler.stats()["timers"] == 50
        for fiber in fibers:
            fiber.cancel()
        yield_now()
        assert scheduler.stats()["timers"] == 0

    scheduler.run(main)
    scheduler.close()


# what result() says of a cancelled one ------------------------------------------------------------


def why_cancelled(task: Any) -> FiberCancelled:
    """What result() raises; exception() raises the same."""
    with pytest.raises(FiberCancelled) as by_result:
        task.result()
    with pytest.raises(FiberCancelled) as by_exception:
        task.exception()
    assert str(by_result.value) == str(by_exception.value)
    return by_result.value


def test_fiber_cancelled_tells_who_was_cancelled_by_whom_and_why() -> None:
    """It was empty."""
    why = object()

    def main() -> None:
        fiber = Fiber(park, name="worker").start()
        yield_now()
        fiber.cancel("no longer needed")
        exc = why_cancelled(fiber)
        assert str(exc) == "fiber 'worker' was cancelled by fiber 'boss': no longer needed"
        assert (exc.reason, exc.by) == ("no longer needed", current())

        fiber = spawn(park)
        fiber.cancel(why)
        exc = why_cancelled(fiber)
        assert str(exc) == f"fiber 'park' was cancelled by fiber 'boss': {why}"
        assert exc.reason is why

        fiber = spawn(park)
        fiber.cancel()
        exc = why_cancelled(fiber)
        assert str(exc) == "fiber 'park' was cancelled by fiber 'boss'"
        assert exc.reason is None

    run(named, "boss", main)


def named(name: str, fn: Any) -> None:
    current().name = name
    fn()


def test_fiber_cancelled_by_itself_by_a_deadline_and_by_the_run() -> None:
    def cancels_itself() -> None:
        current().cancel()
        park()

    def main() -> Any:
        fiber = spawn(cancels_itself)
        fiber.join()
        assert str(why_cancelled(fiber)).endswith("cancels_itself' was cancelled by itself")
        with pytest.raises(TimeoutError), timeout(0.001), TaskGroup() as group:
            fiber = group.spawn(park)
        exc = why_cancelled(fiber)
        assert str(exc) == "fiber 'park' was cancelled: the deadline has passed"
        assert exc.by is None
        return Fiber(park, daemon=True, name="daemon").start()

    left = run(main)
    assert str(why_cancelled(left)) == "fiber 'daemon' was cancelled: the run is over"


def test_fiber_cancelled_of_a_grain() -> None:
    def sleeps() -> Any:
        yield 1000

    def main() -> None:
        grain = Grain(sleeps, name="small").start()
        yield_now()
        grain.cancel("enough")
        grain.join()
        exc = why_cancelled(grain)
        assert str(exc) == f"grain 'small' was cancelled by fiber {current().name!r}: enough"
        assert (exc.reason, exc.by) == ("enough", current())

    run(main)


def test_fiber_cancelled_of_one_that_was_unwound() -> None:
    scheduler = Scheduler()
    fiber = scheduler.spawn(park)
    fiber.name = "left"
    scheduler.run_once()
    scheduler.close()
    assert str(why_cancelled(fiber)) == "fiber 'left' was unwound before it had a result"


def test_fiber_cancelled_whose_reason_has_no_text() -> None:
    class Silent:
        def __str__(self) -> str:
            raise ValueError

    def main() -> str:
        fiber = spawn(park)
        fiber.cancel(Silent())
        return str(why_cancelled(fiber))

    assert run(main).endswith(": a Silent, whose str() raised ValueError")


def test_fiber_cancelled_can_be_copied_and_pickled_without_the_fiber() -> None:
    def main() -> FiberCancelled:
        fiber = spawn(park)
        fiber.cancel("why")
        return why_cancelled(fiber)

    exc = run(main)
    for twin in (copy.copy(exc), pickle.loads(pickle.dumps(exc))):
        assert (type(twin), twin.args, twin.reason) == (FiberCancelled, exc.args, "why")
        assert twin.by is None
    assert (FiberCancelled("mine").reason, FiberCancelled.__module__) == (None, "pyfiber")
