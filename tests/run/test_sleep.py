"""sleep(), sleep_until(), now(): order, ties, limits, and no starving of timers."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import pytest

from pyfiber import (
    FiberError,
    Scheduler,
    current,
    now,
    park,
    run,
    sleep,
    sleep_until,
    spawn,
    yield_now,
)
from pyfiber.testing import run as run_virtually
from tests.conftest import Child
from tests.support.subprocesses import EMULATED

Log = list[Any]


def test_sleepers_wake_in_the_order_of_their_times() -> None:
    log: Log = []

    def body(seconds: int) -> None:
        sleep(seconds)
        log.append((seconds, now()))

    def main() -> None:
        for seconds in (5, 1, 4, 2, 3):
            spawn(body, seconds)

    run_virtually(main)
    assert log == [(i, float(i)) for i in range(1, 6)]


def test_sleepers_until_the_same_moment_wake_in_the_order_they_came() -> None:
    log: Log = []

    def body(i: int) -> None:
        sleep_until(3600)
        log.append(i)

    def main() -> None:
        for i in range(50):
            spawn(body, i)

    run_virtually(main)
    assert log == list(range(50))


def test_sleep_lasts_at_least_so_long() -> None:
    def main() -> None:
        for seconds in (0.001, 0.0005, 1e-6, 1e-9):
            before = now()
            sleep(seconds)
            assert now() - before >= seconds * 0.999

    run(main)


def test_sleep_returns_none() -> None:
    assert run(lambda: (sleep(0), sleep(0.0001), sleep_until(0), sleep_until(now()))) == (None,) * 4


def test_sleep_zero_goes_to_the_back_of_the_queue() -> None:
    log: Log = []

    def main() -> None:
        spawn(log.append, "other")
        sleep(0)
        log.append("main")

    run(main)
    assert log == ["other", "main"]


@pytest.mark.parametrize("zero", [0, 0.0, -0.0, False])
def test_sleep_of_any_zero_is_a_yield(zero: float) -> None:
    log: Log = []

    def main() -> None:
        spawn(log.append, "other")
        sleep(zero)
        log.append("main")

    run(main)
    assert log == ["other", "main"]


@pytest.mark.parametrize("when", [0, -1, float("-inf"), -1e300])
def test_sleep_until_the_past_is_a_yield(when: float) -> None:
    log: Log = []

    def main() -> None:
        spawn(log.append, "other")
        sleep_until(when)
        log.append("main")

    run(main)
    assert log == ["other", "main"]


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 1e12, 10**25, 2**63 / 1e9])
@pytest.mark.parametrize("wait", [sleep, sleep_until])
def test_sleep_without_end_lasts_until_cancelled(wait: Any, seconds: float) -> None:
    def main() -> None:
        fiber = spawn(wait, seconds)
        for _ in range(200):
            yield_now()
        sleep(3600)
        assert fiber.state == "parked"
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()

    run_virtually(main)


@pytest.mark.parametrize("seconds", [-1, -1e-9, float("-inf")])
def test_sleep_must_not_be_negative(seconds: float) -> None:
    def main() -> None:
        with pytest.raises(ValueError, match="must not be negative"):
            sleep(seconds)

    run(main)


@pytest.mark.parametrize("wait", [sleep, sleep_until])
def test_sleep_must_not_be_nan(wait: Any) -> None:
    def main() -> None:
        with pytest.raises(ValueError, match="must not be NaN"):
            wait(float("nan"))

    run(main)


@pytest.mark.parametrize("seconds", ["1", None, [], object(), 1j])
@pytest.mark.parametrize("wait", [sleep, sleep_until])
def test_sleep_must_be_a_number(wait: Any, seconds: Any) -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="must be a number"):
            wait(seconds)

    run(main)


def test_sleep_takes_what_converts_to_a_float() -> None:
    class Short:
        def __float__(self) -> float:
            return 0.0001

    from fractions import Fraction

    run(lambda: (sleep(Short()), sleep(Fraction(1, 10000)), sleep(True - 1)))  # type: ignore[arg-type]


def test_sleep_with_a_conversion_that_fails() -> None:
    class Bad:
        def __float__(self) -> float:
            raise LookupError("mine")

    def main() -> None:
        with pytest.raises(LookupError, match="mine"):
            sleep(Bad())  # type: ignore[arg-type]

    run(main)


def test_sleep_with_a_conversion_that_sleeps() -> None:
    class Sleeps:
        def __float__(self) -> float:
            sleep(0.0005)
            return 0.0001

    run(lambda: sleep(Sleeps()))  # type: ignore[arg-type]


@pytest.mark.parametrize("wait", [sleep, sleep_until])
def test_sleep_outside_of_a_run_is_refused(wait: Any) -> None:
    with pytest.raises(FiberError, match="needs a running scheduler"):
        wait(0)


def test_now_is_the_monotonic_clock_inside_and_outside() -> None:
    outside = now()
    inside = run(now)
    assert isinstance(outside, float)
    assert outside <= inside <= now()


def test_now_rises_while_a_fiber_is_busy() -> None:
    def main() -> None:
        before = now()
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        assert now() > before

    run(main)


def test_yielding_fibers_do_not_starve_a_sleeper() -> None:
    log: Log = []

    def sleeper() -> None:
        sleep(0.001)
        log.append("slept")

    def main() -> None:
        fiber = spawn(sleeper)
        limit = now() + 30
        while not fiber.done():
            yield_now()
            assert now() < limit

    run(main)
    assert log == ["slept"]


def test_ping_pong_does_not_starve_a_sleeper() -> None:
    """Fibers that hand control to each other never come by the loop."""

    def partner(other: Any) -> None:
        while not sleeper_done:
            other.unpark()
            park(60)
        other.unpark()

    sleeper_done: Log = []

    def main() -> None:
        spawn(lambda: (sleep(0.001), sleeper_done.append(1)))
        limit = now() + 30
        other = spawn(partner, current())
        while not sleeper_done:
            park(60)
            if not other.done():
                other.unpark()
            assert now() < limit

    run(main)


def test_sleepers_do_not_starve_those_who_yield() -> None:
    log: Log = []

    def rests() -> None:
        for _ in range(20):
            sleep(1e-9)

    def main() -> None:
        for _ in range(20):
            spawn(rests)
        for i in range(20):
            yield_now()
            log.append(i)

    run(main)
    assert log == list(range(20))


def test_sleep_many_wake_in_the_order_of_their_times() -> None:
    log: Log = []

    def body(when: int) -> None:
        sleep_until(when)
        log.append(when)

    def main() -> None:
        for i in range(1000):
            spawn(body, i * 7919 % 1000 + 1)

    run_virtually(main)
    assert log == list(range(1, 1001))


def test_timers_are_gone_after_the_sleeps() -> None:
    scheduler = Scheduler()
    scheduler.run(lambda: [spawn(sleep, 0.0001 * i) for i in range(10)])
    assert scheduler.stats()["timers"] == 0
    assert scheduler.stats()["timeouts"] >= 9
    scheduler.close()


@pytest.mark.parametrize("seconds", [0, 0.001])
def test_sleep_where_the_fiber_must_not_be_left_is_refused(seconds: float) -> None:
    refused: list[FiberError] = []

    def callback(_: object) -> None:
        try:
            sleep(seconds)
        except FiberError as exc:
            refused.append(exc)

    run(lambda: spawn(int).add_done_callback(callback))
    assert len(refused) == 1


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or EMULATED,
    reason="reads /proc, sets RLIMIT_AS, which qemu does not obey",
)
def test_wait_without_memory_for_its_timer_is_a_memory_error(child: Child) -> None:
    """The table of timers is full, and the process may have no more memory than it has."""
    done = child(
        """
        import resource
        from pyfiber import CancelScope, Event, now, park, run, sleep

        soft, hard = resource.getrlimit(resource.RLIMIT_AS)

        def attempt(wait):
            try:
                return wait(60)
            except MemoryError:
                return "no memory"

        def main():
            later = now() + 1000
            scopes = [CancelScope(deadline=later) for _ in range(1 << 17)]
            for scope in scopes:
                scope.__enter__()
            waits = sleep, park, Event().wait
            with open("/proc/self/statm") as statm:
                used = int(statm.read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used, hard))
            answers = [attempt(wait) for wait in waits]
            resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            print(answers)
            while scopes:
                scopes.pop().__exit__(None, None, None)
            sleep(0.001)

        run(main)
        """,
        # A sanitizer's malloc() would end the process.
        env={"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":allocator_may_return_null=1"},
    )
    assert done.stdout == "['no memory', 'no memory', 'no memory']\n"
