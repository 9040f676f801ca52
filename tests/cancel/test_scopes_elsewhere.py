"""Scopes not at home: other threads and runs, raw fibers, deaf ones, left in odd places."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelScope,
    Failed,
    Fiber,
    FiberError,
    FiberExit,
    Scheduler,
    TaskGroup,
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
from pyfiber.testing import run as run_virtually
from tests.support.threads import PATIENCE

Log = list[Any]


# Threads, raw fibers, other runs ------------------------------------------------------------------


def test_cancel_from_another_thread_wakes_the_fiber() -> None:
    def main() -> None:
        with CancelScope() as scope:
            thread = threading.Thread(target=scope.cancel, args=("thread",))
            thread.start()
            park()
        thread.join()
        assert scope.cancelled()
        assert scope.reason == "thread"

    run(main)


def test_cancel_from_another_thread_of_a_busy_fiber() -> None:
    def main() -> None:
        end = time.monotonic() + PATIENCE
        with CancelScope() as scope:
            thread = threading.Thread(target=scope.cancel)
            thread.start()
            while time.monotonic() < end:
                yield_now()
        thread.join()
        assert scope.cancelled()

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
        assert scope.cancelled()
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
        return scope.cancelled()

    assert run(main)


def test_scope_of_a_raw_fiber_reaches_its_own_waiting() -> None:
    def main() -> None:
        def raw() -> None:
            with move_on_after(2) as scope:
                park()
            log.append((scope.cancelled(), now()))

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
        assert scope.cancelled()
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
    assert not log[0].cancelled()
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
        assert scope.cancelled()

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
        with shield() as safe:
            assert repr(safe).startswith("<shield() entered")
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


def test_fiber_that_is_slowed_down_is_unwound_with_its_scheduler(scheduler: Scheduler) -> None:
    ends: list[type[BaseException]] = []

    def deaf() -> None:
        while True:
            try:
                yield_now()
            except Cancelled:
                pass
            except BaseException as exc:
                ends.append(type(exc))
                raise

    logging.getLogger("pyfiber").disabled = True
    try:
        fiber = scheduler.spawn(deaf)
        scheduler.run_once()
        fiber.cancel()
        while fiber.state != "parked":
            scheduler.run_once(0)
        scheduler.close()
    finally:
        logging.getLogger("pyfiber").disabled = False
    assert ends == [FiberExit]


def test_interrupt_while_a_fiber_is_reported_comes_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It swallows Cancelled, and that is logged in the midst of its wait."""
    got: list[type[BaseException]] = []

    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    def deaf() -> None:
        while not got:
            try:
                yield_now()
            except Cancelled:
                pass
            except BaseException as exc:
                got.append(type(exc))

    def main() -> None:
        fiber = spawn(deaf)
        yield_now()
        fiber.cancel()
        fiber.join()

    monkeypatch.setattr(logging.getLogger("pyfiber"), "handle", interrupted)
    run(main)
    assert got == [KeyboardInterrupt]


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


def test_scope_that_a_done_callback_enters_is_left_when_its_fiber_is_freed() -> None:
    """Nobody leaves it, and it must not go on pointing to the fiber."""
    scope = CancelScope()

    def main() -> None:
        fiber = spawn(lambda: None)
        fiber.add_done_callback(lambda _: scope.__enter__() and None)
        fiber.join()

    scheduler = Scheduler()
    scheduler.run(main)
    gone = weakref.ref(scheduler)
    del scheduler
    gc.collect()
    assert gone() is None
    with pytest.raises(FiberError, match="left"):
        scope.deadline = 1.0
