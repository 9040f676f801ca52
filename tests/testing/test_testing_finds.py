"""What pyfiber.testing finds by itself: deadlock, livelock, lost failures..."""

from __future__ import annotations

import gc
import random
import re
import threading
import time
import weakref
from typing import Any

import pytest

import pyfiber
from pyfiber import Fiber, FiberError, Lock, current, park, sleep, spawn, yield_now
from pyfiber.testing import (
    LeftRunningError,
    LivelockError,
    NeverAwaitedError,
    ScheduleFailure,
    VirtualClock,
    explore,
    replay,
    run,
)
from tests.support.gil import needs_gil


def failure_of(fn: Any, **options: Any) -> ScheduleFailure:
    with pytest.raises(ScheduleFailure) as failure:
        explore(fn, **options)
    return failure.value


def test_deadlock_is_found_with_who_waits_where() -> None:
    def main() -> None:
        a, b = Lock(), Lock()

        def take(first: Lock, second: Lock) -> None:
            with first:
                sleep(1)
                with second:
                    pass

        one = spawn(take, a, b)
        sleep(2)
        two = spawn(take, b, a)
        one.join()
        two.join()

    assert explore(main).schedules == 1000

    def broken() -> None:
        a, b = Lock(), Lock()

        def take(first: Lock, second: Lock) -> None:
            with first:
                yield_now()
                with second:
                    pass

        one, two = spawn(take, a, b), spawn(take, b, a)
        one.join()
        two.join()

    failure = failure_of(broken)
    assert isinstance(failure.exception, pyfiber.DeadlockError)
    assert "3 fibers wait" in str(failure)
    assert "with second:" in str(failure)


def test_lost_wake_up_is_found() -> None:
    def main() -> None:
        ready = False
        waiters: list[Fiber[Any]] = []

        def wait() -> None:
            if not ready:
                yield_now()  # something that takes time between the look and the wait
                waiters.append(current())
                park()

        def notify() -> None:
            nonlocal ready
            yield_now()
            yield_now()
            ready = True
            for waiter in waiters:
                waiter.unpark()

        waiter = spawn(wait)
        spawn(notify).join()
        waiter.join()

    assert explore(main, strategy="fifo").schedules == 1
    assert isinstance(failure_of(main).exception, pyfiber.DeadlockError)


def test_livelock_is_found_and_names_who_runs() -> None:
    def main() -> None:
        def spin() -> None:
            while True:
                yield_now()

        spawn(spin)

    failure = failure_of(main, max_steps=500)
    assert isinstance(failure.exception, LivelockError)
    assert "within 500 steps" in str(failure)
    assert re.search(r"spin' ready at \w+> could go on\n.*in spin\n *yield_now\(\)", str(failure))
    assert "runner.py" not in str(failure)


def test_livelock_in_virtual_time_is_found() -> None:
    def main() -> None:
        while True:
            sleep(1)

    with pytest.raises(LivelockError):
        run(main, max_steps=1000)


def test_livelock_of_a_fiber_that_ignores_cancellation_ends_too() -> None:
    exits = []

    def main() -> None:
        while True:
            try:
                yield_now()
            except pyfiber.Cancelled:
                pass
            except pyfiber.FiberExit:
                exits.append(1)
                raise

    with pytest.raises(LivelockError):
        run(main, max_steps=1000)
    assert exits == [1]


def test_failure_nobody_asked_for_is_found() -> None:
    def main() -> None:
        def fail() -> None:
            raise ValueError("unheard")

        spawn(fail)

    failure = failure_of(main)
    assert isinstance(failure.exception, NeverAwaitedError)
    assert isinstance(failure.exception.__cause__, ValueError)
    assert "unheard" in str(failure)
    with pytest.raises(NeverAwaitedError):
        run(main)


def test_failure_somebody_looked_at_is_none() -> None:
    def main() -> None:
        def fail() -> None:
            raise ValueError("heard")

        fibers = [spawn(fail) for _ in range(2)]
        with pytest.raises(ValueError, match="heard"):
            fibers[0].result()
        assert isinstance(fibers[1].exception(), ValueError)

    assert explore(main, 20).schedules == 20


def test_failure_beside_the_first_one_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        def fail() -> None:
            raise ValueError("second")

        spawn(fail)
        yield_now()
        raise KeyError("first")

    with pytest.raises(KeyError) as failure:
        run(main)
    assert any("second" in note for note in failure.value.__notes__)
    assert caplog.records == []


def test_fibers_left_running_are_found_if_asked_for() -> None:
    def main() -> None:
        spawn(sleep, 5)

    assert explore(main, 5).schedules == 5
    failure = failure_of(main, leftovers="error")
    assert isinstance(failure.exception, LeftRunningError)
    assert "left 1 running" in str(failure)
    with pytest.raises(LeftRunningError):
        run(main, leftovers="error")

    def daemon() -> None:
        Fiber(lambda: sleep(5), daemon=True).start()

    with pytest.raises(LeftRunningError):
        run(daemon, leftovers="error")
    run(lambda: spawn(sleep, 1).join(), leftovers="error")


# ------------------------------------------------------------------ cleanliness


def test_guards_are_gone_after_a_failed_exploration() -> None:
    before = (threading.Thread.start, time.time, random.random, gc.isenabled())
    failure_of(lambda: [][0])  # type: ignore[index]
    assert (threading.Thread.start, time.time, random.random, gc.isenabled()) == before


@pytest.mark.parametrize("strategy", ["fifo", "random", "pct"])
def test_thousands_of_ready_fibers_taken_in_any_order(strategy: Any) -> None:
    """A long queue is prefetched along its links, which a choice from its middle cuts."""

    def main() -> None:
        for fiber in [spawn(yield_now) for _ in range(3000)]:
            fiber.join()

    assert explore(main, 3, strategy).steps > 6000
    pyfiber.run(main)


def test_exploration_frees_what_its_runs_made() -> None:
    class Thing:
        pass

    things: list[weakref.ref[Thing]] = []

    def main() -> None:
        thing = Thing()
        things.append(weakref.ref(thing))
        spawn(lambda: (yield_now(), thing))

    explore(main, 300)
    gc.collect()
    assert [thing for thing in things if thing() is not None] == []


def test_clock_given_to_explore_starts_anew_for_each_schedule() -> None:
    clock = VirtualClock(100)
    times = set()

    def main() -> None:
        times.add(clock.now())
        sleep(5)

    explore(main, 20, clock=clock)
    assert times == {100.0}


def test_to_thread_in_a_virtual_run_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(FiberError, match=r"threads=True"):
        run(lambda: pyfiber.to_thread(time.time))
    assert run(lambda: pyfiber.to_thread(lambda: 5), threads=True) == 5
    # The worker is there already now, and would be done at once without a GIL.
    never = threading.Event()
    with pytest.raises(FiberError, match=r"waits for another thread .* threads=True"):
        run(lambda: pyfiber.to_thread(never.wait, 0.2))


@needs_gil("without it, the worker may be done before the fiber would wait")
def test_explored_programs_may_use_workers_if_threads_are_allowed() -> None:
    def main() -> None:
        assert pyfiber.to_thread(lambda: 5) == 5

    clock = VirtualClock()
    for _ in range(20):
        run(main, threads=True)
        run(main, threads=True, clock=clock)
    assert not clock.threads
    with pytest.raises(FiberError, match="waits for another thread"):
        run(main, clock=clock)
    clock.threads = True
    run(main, clock=clock)
    assert clock.threads


def test_waiting_for_a_thread_is_an_error_that_says_what_to_do() -> None:
    capi = pytest.importorskip("pyfiber.capi")

    def main() -> None:
        me = capi.as_handle(current())
        capi.check_errno(capi.lib.pyfiber_hold(me))  # "somebody outside will wake me"
        try:
            park()
        finally:
            capi.check_errno(capi.lib.pyfiber_release(me))

    with pytest.raises(FiberError, match=r"waits for another thread .* threads=True"):
        run(main)


def test_replay_finds_the_same_without_exploring() -> None:
    def main() -> None:
        spawn(yield_now)
        park()

    failure = failure_of(main)
    with pytest.raises(ScheduleFailure, match="DeadlockError"):
        replay(main, failure.schedule)
    with pytest.raises(FiberError):
        run(lambda: run(main))
