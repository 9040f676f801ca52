"""How a run ends while other threads live: who may still be waited for, and who cannot be woken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Event,
    Fiber,
    TaskGroup,
    current,
    park,
    run,
    shield,
    sleep,
    spawn,
    testing,
    yield_now,
)
from tests.support.subprocesses import run_script
from tests.support.threads import PATIENCE


def beside_a_thread(work: Callable[[], Any]) -> Any:
    """`work()` on a thread of its own, which is one of two; its result or exception."""
    outcome: list[Any] = []

    def body() -> None:
        try:
            outcome.append(work())
        except BaseException as exc:
            outcome.append(exc)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the run never ends"
    return outcome[0]


def leaves_for_good(log: list[str]) -> Callable[[], None]:
    """A fiber that switches to a raw one that ends in whoever runs the loop."""
    hub = current()

    def left() -> None:
        raw: Fiber[None] = Fiber(lambda: None)
        raw.parent = hub
        try:
            raw.switch()
        finally:
            log.append("left is unwound")

    return left


def fails() -> None:
    yield_now()
    yield_now()
    raise ValueError("main failed")


def test_failed_run_ends_although_a_fiber_was_left_by_a_direct_switch() -> None:
    log: list[str] = []

    def work() -> None:
        left = leaves_for_good(log)

        def main() -> None:
            spawn(left)
            fails()

        run(main)

    assert str(beside_a_thread(work)) == "main failed"
    assert log == ["left is unwound"]


def test_failed_run_in_virtual_time_ends_although_its_main_was_left_by_a_direct_switch() -> None:
    log: list[str] = []

    def work() -> None:
        left = leaves_for_good(log)

        def late() -> None:
            sleep(3)
            raise SystemExit("late")

        def main() -> None:
            Fiber(late, daemon=True).start()
            left()

        testing.run(main, threads=True)

    outcome = beside_a_thread(work)
    assert isinstance(outcome, SystemExit)
    assert log == ["left is unwound"]


def test_failed_run_ends_although_a_group_waits_for_one_that_was_left() -> None:
    log: list[str] = []

    def work() -> None:
        left = leaves_for_good(log)

        def owner() -> None:
            with TaskGroup() as group:
                group.spawn(left)

        def main() -> None:
            spawn(owner)
            fails()

        run(main)

    assert str(beside_a_thread(work)) == "main failed"
    assert log == ["left is unwound"]


def test_failed_run_ends_although_a_shielded_fiber_waits_for_one_that_was_left() -> None:
    log: list[str] = []

    def work() -> None:
        left = leaves_for_good(log)

        def joins(fiber: Fiber[None]) -> None:
            with shield():
                fiber.join()

        def main() -> None:
            spawn(joins, spawn(left))
            fails()

        run(main)

    assert str(beside_a_thread(work)) == "main failed"
    assert log == ["left is unwound"]


def test_failed_run_cancels_the_raw_fiber_for_which_one_of_its_own_waits() -> None:
    log: list[str] = []

    def work() -> None:
        def waits() -> None:
            try:
                Event().wait()
            except Cancelled:
                log.append("cancelled")
                raise

        def pulls() -> None:
            try:
                Fiber(waits).switch()
            finally:
                log.append("pulls is over")

        def main() -> None:
            spawn(pulls)
            fails()

        run(main)

    assert str(beside_a_thread(work)) == "main failed"
    assert log == ["cancelled", "pulls is over"]


@pytest.mark.parametrize("raw", [False, True], ids=["scheduled", "raw"])
def test_failed_run_waits_for_what_is_shielded_and_woken_by_a_thread(raw: bool) -> None:
    """The other thread sets the event when the run has begun to end: its cancellation says so."""
    log: list[str] = []
    ending = threading.Event()
    event = Event()

    def sets() -> None:
        assert ending.wait(PATIENCE)
        event.set()

    def waits() -> None:
        with shield():
            event.wait()
            log.append("woken")

    def tells() -> None:
        try:
            park()
        finally:
            ending.set()

    def work() -> None:
        left = leaves_for_good(log)

        def main() -> None:
            spawn(left)
            spawn(Fiber(waits).switch if raw else waits)
            spawn(tells)
            fails()

        run(main)

    thread = threading.Thread(target=sets)
    thread.start()
    assert str(beside_a_thread(work)) == "main failed"
    thread.join(PATIENCE)
    assert log == ["woken", "left is unwound"]


def ends_of_a_raw_fiber(how: str, *, beside: bool) -> str:
    """What a raw fiber that waits, and then the caller, get when main fails."""
    return run_script(
        f"""
        import threading
        from pyfiber import *

        def waits():
            try:
                park()
            except BaseException as exc:
                print(type(exc).__name__)
                raise

        def fails(start):
            spawn(start)
            sleep(0)
            raise KeyError

        never = threading.Event()
        if {beside}:
            threading.Thread(target=never.wait, daemon=True).start()
        outer = Fiber(waits)
        try:
            {how}
        except KeyError:
            print("KeyError")
        """
    ).stdout


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a thread"])
def test_failed_run_gives_up_a_raw_fiber_whose_end_leads_out_of_it(beside: bool) -> None:
    """No cancellation reaches it, which would be raised in the midst of the run's caller."""
    how = "Fiber(run, (fails, outer.switch)).switch()"
    assert ends_of_a_raw_fiber(how, beside=beside) == "FiberExit\nKeyError\n"


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a thread"])
def test_failed_run_cancels_a_raw_fiber_whether_or_not_a_thread_lives(beside: bool) -> None:
    how = "run(fails, lambda: Fiber(waits).switch())"
    assert ends_of_a_raw_fiber(how, beside=beside) == "Cancelled\nKeyError\n"
