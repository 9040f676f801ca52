"""pyfiber.testing's virtual clock: time stands while anything can run, and then jumps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    DeadlockError,
    FiberError,
    Scheduler,
    current,
    move_on_after,
    now,
    park,
    sleep,
    sleep_until,
    spawn,
    yield_now,
)
from pyfiber.grains import Grain
from pyfiber.testing import VirtualClock, run

YEAR = 365 * 86400


def test_sleep_of_a_year_takes_no_time_and_moves_the_clock_by_a_year() -> None:
    before = time.monotonic()
    assert run(lambda: (sleep(YEAR), now())[1]) == YEAR
    assert time.monotonic() - before < 5


def test_time_stands_still_while_a_fiber_runs_or_yields() -> None:
    def main() -> list[float]:
        times = [now()]
        for _ in range(200):
            yield_now()
            times.append(now())
        return times

    assert set(run(main)) == {0.0}


def test_sleepers_wake_in_the_order_of_their_times_at_exactly_these() -> None:
    woken: list[tuple[int, float]] = []

    def main() -> None:
        for seconds in (30, 10, 20, 10):
            spawn(lambda seconds=seconds: (sleep(seconds), woken.append((seconds, now()))))

    run(main)
    assert woken == [(10, 10.0), (10, 10.0), (20, 20.0), (30, 30.0)]


def test_timer_does_not_fire_while_another_fiber_can_run() -> None:
    def main() -> float:
        sleeper = spawn(lambda: (sleep(1), now())[1])
        for _ in range(1000):
            yield_now()
        assert not sleeper.done()
        return sleeper.result()

    assert run(main) == 1.0


WAITS: dict[str, Callable[[], object]] = {
    "park": lambda: park(timeout=5),
    "join": lambda: spawn(lambda: sleep(60)).result(timeout=5),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_timeouts_end_at_their_virtual_time(wait: Callable[[], object]) -> None:
    def main() -> float:
        with pytest.raises(TimeoutError):
            wait()
        return now()

    assert run(main) == 5.0


def test_sleep_until_and_join_with_a_timeout_go_by_the_clock() -> None:
    def main() -> tuple[float, bool, float]:
        sleep_until(7.5)
        fiber = spawn(sleep, 2)
        joined = fiber.join(timeout=1)
        return 7.5, joined, now()

    assert run(main) == (7.5, False, 8.5)


def test_start_in_seconds_is_the_first_value_of_now() -> None:
    assert run(now, clock=1234.5) == 1234.5
    clock = VirtualClock(1_700_000_000)
    assert clock.now() == clock.time() == 1_700_000_000


def test_clock_that_starts_before_zero_goes_on() -> None:
    """Whatever was to happen, was beyond the end of time."""
    clock = VirtualClock(-5.0)
    clock.advance(1)
    assert clock.now() == -4.0

    def naps() -> Iterator[Any]:
        yield 1

    def main() -> float:
        sleep(1)
        with move_on_after(1):
            park()
        with pytest.raises(TimeoutError):
            park(timeout=1)
        spawn(lambda: clock.advance(1)).join()
        Grain(naps).start().join()
        return now()

    assert run(main, clock=clock) == 0.0
    with pytest.raises(DeadlockError):
        run(lambda: sleep(float("inf")), clock=VirtualClock(-5.0))
    with pytest.raises(OverflowError, match="beyond the end of time"):
        clock.advance(float("inf"))


@pytest.mark.parametrize(
    "start",
    [
        datetime(2030, 1, 1),
        datetime(2030, 1, 1, tzinfo=UTC),
        datetime(2030, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_start_as_a_datetime_sets_the_wall_clock(start: datetime) -> None:
    clock = VirtualClock(start)
    assert clock.datetime() == datetime(2030, 1, 1, tzinfo=UTC)
    assert clock.now() == 0.0
    run(lambda: sleep(3600), clock=clock)
    assert clock.datetime() == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert clock.time_ns() == round(clock.time() * 10**9)


@pytest.mark.parametrize(
    ("start", "error"),
    [
        ("now", TypeError),
        (True, TypeError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        (1e300, ValueError),
    ],
)
def test_clock_with_a_bad_start_is_refused(start: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        VirtualClock(start)


def test_run_with_an_unknown_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="'virtual', 'real' or a VirtualClock"):
        run(now, clock="fast")  # type: ignore[arg-type]


def test_run_with_the_real_clock_takes_real_time() -> None:
    before = time.monotonic()
    run(lambda: sleep(0.001), clock="real")
    assert time.monotonic() - before >= 0.001


# ---------------------------------------------------------------------- by hand


def test_advance_lets_everything_happen_that_is_due_meanwhile_in_order() -> None:
    clock = VirtualClock()
    log: list[object] = []

    def tick() -> None:
        while True:
            sleep(10)
            log.append(now())

    def main() -> None:
        pyfiber.Fiber(tick, daemon=True).start()
        clock.advance(35)
        log.append(("advanced", now()))
        clock.advance(5)
        log.append(("advanced", now()))

    run(main, clock=clock)
    assert log == [10.0, 20.0, 30.0, ("advanced", 35.0), 40.0, ("advanced", 40.0)]


def test_standing_clock_moves_by_advance_alone() -> None:
    clock = VirtualClock(auto=False)

    def main() -> tuple[bool, bool]:
        sleeper = spawn(sleep, 10)
        clock.advance(9.5)
        early = sleeper.done()
        clock.advance(0.5)
        return early, sleeper.done()

    assert run(main, clock=clock) == (False, True)


def test_standing_clock_nobody_advances_is_an_error() -> None:
    with pytest.raises(FiberError, match="the clock stands"):
        run(lambda: sleep(1), clock=VirtualClock(auto=False))


def test_run_until_idle_lets_the_others_run_until_they_wait() -> None:
    clock = VirtualClock()
    log: list[int] = []

    def work() -> None:
        for i in range(50):
            yield_now()
            log.append(i)
        sleep(1)
        log.append(-1)

    def main() -> tuple[int, float]:
        fiber = spawn(work)
        clock.run_until_idle()
        seen = len(log), now()
        fiber.join()
        return seen

    assert run(main, clock=clock) == (50, 0.0)
    assert log[-1] == -1


def test_several_fibers_may_advance_at_once() -> None:
    clock = VirtualClock()
    log: list[tuple[int, float]] = []

    def main() -> None:
        for seconds in (3, 1, 2, 1):
            spawn(lambda seconds=seconds: (clock.advance(seconds), log.append((seconds, now()))))

    run(main, clock=clock)
    assert log == [(1, 1.0), (1, 1.0), (2, 2.0), (3, 3.0)]


def test_fiber_in_advance_can_be_cancelled() -> None:
    clock = VirtualClock()

    def main() -> tuple[bool, float]:
        fiber = spawn(clock.advance, 100)
        yield_now()
        assert fiber.waiting_on == "clock.advance()"
        fiber.cancel()
        fiber.join()
        sleep(1)
        return fiber.cancelled(), now()

    assert run(main, clock=clock) == (True, 1.0)


@pytest.mark.parametrize(
    ("seconds", "error", "text"),
    [
        (-1, ValueError, "time does not go backwards"),
        (float("nan"), ValueError, "NaN"),
        ("1", TypeError, "must be a number"),
        (float("inf"), OverflowError, "the end of time"),
        (1e30, OverflowError, "the end of time"),
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_advance_by_something_impossible_is_refused(
    seconds: Any, error: type[Exception], text: str, inside: bool
) -> None:
    clock = VirtualClock()

    def attempt() -> None:
        with pytest.raises(error, match=text):
            clock.advance(seconds)

    if inside:
        run(attempt, clock=clock)
    else:
        attempt()
    assert clock.now() == 0.0


def test_run_until_idle_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError, match="from a fiber of a run that has this clock"):
        VirtualClock().run_until_idle()


def test_advance_outside_of_a_run_sets_the_clock_and_reset_sets_it_back() -> None:
    clock = VirtualClock(5)
    clock.advance(2.5)
    assert clock.now() == 7.5
    assert repr(clock) == "<VirtualClock at 7.5 s>"
    clock.reset()
    assert clock.now() == 5.0


def test_reset_during_a_run_is_refused() -> None:
    clock = VirtualClock()

    def main() -> None:
        with pytest.raises(FiberError, match="a run uses this clock"):
            clock.reset()
        with pytest.raises(FiberError, match="a run uses this clock"):
            VirtualClock.__init__(clock)

    run(main, clock=clock)


def test_clock_of_a_run_on_another_thread_is_refused() -> None:
    clock = VirtualClock()
    errors: list[str] = []

    def elsewhere() -> None:
        for use in (lambda: clock.advance(1), clock.run_until_idle, lambda: run(now, clock=clock)):
            try:
                use()
            except FiberError as exc:
                errors.append(str(exc))

    def main() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    run(main, clock=clock, threads=True)
    assert len(errors) == 3
    assert "another thread" in errors[0]


def test_clock_is_free_again_after_a_run_that_failed() -> None:
    clock = VirtualClock()

    def fail() -> None:
        sleep(1)
        raise ValueError

    for _ in range(2):
        with pytest.raises(ValueError, match=r"^$"):
            run(fail, clock=clock)
    assert clock.now() == 1.0


# ------------------------------------------------------------------ embedded


def test_attached_scheduler_goes_by_the_clock() -> None:
    clock = VirtualClock()
    scheduler = Scheduler()
    log: list[float] = []
    clock.attach(scheduler)
    scheduler.spawn(lambda: (sleep(10), log.append(now())))
    assert scheduler.run_once()
    assert scheduler.next_timeout() == 10.0
    assert scheduler.run_once()
    clock.advance(10)
    assert not scheduler.run_once()
    assert log == [10.0]
    clock.detach()
    scheduler.close()


def test_attached_scheduler_that_waits_jumps_no_further_than_its_timeout() -> None:
    clock = VirtualClock()
    scheduler = Scheduler()
    clock.attach(scheduler)
    scheduler.spawn(lambda: sleep(10))
    scheduler.run_once()
    scheduler.run_once(timeout=4)
    assert clock.now() == 4.0
    scheduler.run_once(timeout=None)
    assert clock.now() == 10.0
    scheduler.close()


def test_attach_twice_or_detach_with_timers_is_refused() -> None:
    clock = VirtualClock()
    scheduler = Scheduler()
    clock.attach(scheduler)
    with pytest.raises(FiberError, match="in use"):
        clock.attach(scheduler)
    with pytest.raises(TypeError, match="expected a Scheduler"):
        VirtualClock().attach("scheduler")  # type: ignore[arg-type]
    scheduler.spawn(lambda: sleep(1))
    scheduler.run_once()
    with pytest.raises(FiberError, match="still wait for this clock"):
        clock.detach()
    scheduler.close()
    clock.detach()
    clock.detach()
    VirtualClock().detach()


def test_scheduler_dropped_with_a_clock_frees_it() -> None:
    clock = VirtualClock()
    clock.attach(Scheduler())
    clock.attach(Scheduler())


# --------------------------------------------------------------- the time module


def test_virtualized_time_module_follows_the_clock() -> None:
    def main() -> list[float]:
        seen = [time.time(), time.monotonic(), time.perf_counter()]
        time.sleep(100)
        return [*seen, time.time(), time.monotonic_ns() / 1e9, time.time_ns() / 1e9]

    start = datetime(2030, 1, 1, tzinfo=UTC)
    wall = start.timestamp()
    found = run(main, clock=VirtualClock(start), virtualize_time=True)
    assert found == [wall, 0.0, 0.0, wall + 100, 100.0, wall + 100]


def test_virtualized_sleep_stops_one_fiber_only() -> None:
    log: list[str] = []

    def main() -> None:
        spawn(lambda: (time.sleep(2), log.append("late")))
        spawn(lambda: (time.sleep(1), log.append("early")))

    run(main, virtualize_time=True)
    assert log == ["early", "late"]


def test_time_module_is_real_again_afterwards_and_on_other_threads() -> None:
    names = ["time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "sleep"]
    before = [getattr(time, name) for name in names]
    elsewhere: list[float] = []

    def main() -> None:
        thread = threading.Thread(target=lambda: elsewhere.append(time.time()))
        thread.start()
        thread.join()
        raise KeyError

    with pytest.raises(KeyError):
        run(main, virtualize_time=True, threads=True)
    assert [getattr(time, name) for name in names] == before
    assert elsewhere[0] > 1e9


def test_virtualized_time_without_a_virtual_clock_is_refused() -> None:
    with pytest.raises(ValueError, match="needs a virtual clock"):
        run(now, clock="real", virtualize_time=True)


# -------------------------------------------------------------- the outside world


def test_idle_virtual_run_with_threads_allowed_waits_for_them() -> None:
    def main() -> tuple[object, float]:
        me = current()
        thread = threading.Thread(target=lambda: me.unpark("from outside"))
        thread.start()
        value = park()
        thread.join()
        return value, now()

    assert run(main, threads=True) == ("from outside", 0.0)


def test_thread_started_in_a_virtual_run_is_refused_where_it_starts() -> None:
    def main() -> None:
        threading.Thread(target=lambda: None).start()

    with pytest.raises(FiberError, match="starts a real thread") as caught:
        run(main)
    assert caught.traceback[-2].name == "main"


def test_thread_of_the_test_outside_of_the_run_may_start() -> None:
    run(lambda: None)
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert threading.Thread.start.__name__ == "start"


def test_deadlock_names_other_threads_that_are_not_waited_for() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="helper thread")
    thread.start()
    try:
        with pytest.raises(pyfiber.DeadlockError) as caught:
            run(park)
    finally:
        stop.set()
        thread.join()
    assert any("helper thread" in note for note in caught.value.__notes__)


def test_run_inside_of_a_run_is_refused_and_leaves_the_outer_one_intact() -> None:
    def main() -> float:
        with pytest.raises(FiberError):
            run(now)
        sleep(1)
        return now()

    assert run(main) == 1.0


def test_arguments_and_result_and_exception_pass_through() -> None:
    assert run(lambda a, b: (b, a), 1, 2) == (2, 1)
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 // 0)


def test_spend_lets_nothing_else_run():
    order = []
    clock = VirtualClock()

    def other():
        sleep(1)
        order.append(clock.now())

    def main():
        fiber = spawn(other)
        yield_now()
        clock.spend(5)
        order.append("spent")
        fiber.join()

    run(main, clock=clock)
    assert order == ["spent", 5.0]


@pytest.mark.parametrize(("seconds", "error"), [(-1, ValueError), ("1", TypeError)])
def test_spend_refuses(seconds, error):
    with pytest.raises(error):
        VirtualClock().spend(seconds)
