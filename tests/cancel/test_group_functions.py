"""gather, race, first_success: results in order, who wins, and that nobody is left behind."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelScope,
    Fiber,
    FiberCancelled,
    FiberError,
    Scheduler,
    current,
    first_success,
    gather,
    move_on_after,
    park,
    pmap,
    race,
    run,
    shield,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.grains import Grain
from pyfiber.testing import run as run_virtually
from tests.support.failing import Boom

Log = list[Any]
FUNCTIONS = pytest.mark.parametrize("function", [gather, race, first_success])


def after(turns: int, value: Any) -> Callable[[], Any]:
    """A function that returns, or raises, its value after so many turns."""

    def body() -> Any:
        for _ in range(turns):
            yield_now()
        if isinstance(value, BaseException):
            raise value
        return value

    return body


def recorder(log: Log, name: str) -> Callable[[], None]:
    """A function that waits until it is cancelled, and takes its time then."""

    def body() -> None:
        try:
            park()
        except Cancelled as exc:
            with shield():
                sleep(1)
            log.append((name, exc.reason))
            raise

    return body


# gather -------------------------------------------------------------------------------------------


def test_gather_gives_results_in_the_order_of_the_arguments() -> None:
    assert run(lambda: gather(after(3, "a"), after(1, "b"), after(2, "c"))) == ["a", "b", "c"]


def test_gather_of_nothing() -> None:
    assert run(gather) == []


def test_gather_takes_functions_and_fibers_of_every_age() -> None:
    def main() -> None:
        over = spawn(after(0, "over"))
        over.join()
        running = spawn(after(3, "running"))
        raw = Fiber(after(0, "raw"))
        raw.switch()
        fresh = Fiber(after(1, "fresh"))
        results = gather(after(1, "function"), over, running, fresh, raw, running)
        assert results == ["function", "over", "running", "fresh", "raw", "running"]

    run(main)


def test_gather_runs_all_at_once() -> None:
    log: Log = []

    def body(name: str) -> None:
        for _ in range(2):
            log.append(name)
            yield_now()

    run(lambda: gather(*[lambda name=name: body(name) for name in "abc"]))
    assert "".join(log) == "abcabc"


def test_gather_raises_the_first_failure_and_ends_the_rest() -> None:
    log: Log = []
    error = Boom()

    def main() -> None:
        running = spawn(recorder(log, "running"))
        with pytest.raises(Boom) as caught:
            gather(recorder(log, "function"), running, after(2, error))
        assert caught.value is error
        assert running.cancelled()

    run_virtually(main)
    assert sorted(log) == [(name, "another one failed") for name in ("function", "running")]


def test_gather_logs_further_failures(caplog: pytest.LogCaptureFixture) -> None:
    def second() -> None:
        try:
            park()
        finally:
            raise KeyError("second")

    def main() -> None:
        with pytest.raises(Boom):
            gather(second, after(1, Boom()))

    run(main)
    gc.collect()
    assert len(caplog.records) == 1
    assert "KeyError" in str(caplog.records[0].exc_info)


def test_gather_of_a_fiber_that_is_cancelled_has_failed() -> None:
    def main() -> None:
        fiber = spawn(park)
        spawn(fiber.cancel, "by somebody")
        with pytest.raises(FiberCancelled, match="by somebody"):
            gather(park, fiber)

    run(main)


def test_gather_cancelled_from_outside_cancels_fibers_started_before() -> None:
    log: Log = []

    def main() -> None:
        fiber = spawn(recorder(log, "started"))
        with move_on_after(2) as scope:
            gather(fiber, recorder(log, "function"))
        assert scope.cancelled()
        assert fiber.cancelled()

    run_virtually(main)
    assert sorted(name for name, reason in log) == ["function", "started"]


def test_gather_of_many() -> None:
    assert run(lambda: sum(gather(*[lambda i=i: i for i in range(10_000)]))) == sum(range(10_000))


def test_gather_in_gather() -> None:
    def tree(depth: int) -> int:
        if not depth:
            return 1
        return sum(gather(*[lambda: tree(depth - 1)] * 3))

    assert run(tree, 5) == 3**5


def test_gather_return_exceptions_puts_failures_in_their_places() -> None:
    error = Boom()

    def main() -> None:
        slow = spawn(after(5, "slow"))
        results = gather(after(1, "a"), after(0, error), slow, return_exceptions=True)
        assert results == ["a", error, "slow"], "nobody was cancelled"

    run(main)


def test_gather_return_exceptions_of_nothing_and_of_successes() -> None:
    def main() -> None:
        assert gather(return_exceptions=True) == []
        assert gather(after(1, "a"), after(0, "b"), return_exceptions=True) == ["a", "b"]

    run(main)


def test_gather_return_exceptions_takes_grains() -> None:
    def steps(value: Any) -> Any:
        yield
        if isinstance(value, BaseException):
            raise value
        return value

    error = Boom()

    def main() -> None:
        works = [Grain(steps, 1), Grain(steps, error), after(0, 3)]
        assert gather(*works, return_exceptions=True) == [1, error, 3]

    run(main)


def test_gather_return_exceptions_of_cancelled_ones_has_fiber_cancelled() -> None:
    def main() -> None:
        early, late = Fiber(park), spawn(park)
        spawn(early.cancel, "early")
        spawn(late.cancel, "late")
        results = gather(early, late, after(3, "whole"), return_exceptions=True)
        assert [type(result) for result in results] == [FiberCancelled, FiberCancelled, str]
        assert [getattr(result, "reason", None) for result in results] == ["early", "late", None]

    run(main)


def test_gather_return_exceptions_cancelled_from_outside_raises() -> None:
    log: Log = []

    def main() -> None:
        with move_on_after(1) as scope:
            gather(recorder(log, "a"), after(0, "b"), return_exceptions=True)
            log.append("never")
        assert scope.cancelled()

    run_virtually(main)
    assert [name for name, reason in log] == ["a"]


def test_gather_return_exceptions_cancelled_from_outside_logs_failures(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def main() -> None:
        with CancelScope() as scope:
            spawn(after(3, None)).add_done_callback(lambda _: scope.cancel())
            gather(park, after(0, Boom("told")), return_exceptions=True)

    run(main)
    gc.collect()
    assert ["told" in str(record.exc_info) for record in caplog.records] == [True]


def test_gather_return_exceptions_raises_what_is_no_exception() -> None:
    class Ended(BaseException):
        pass

    log: Log = []

    def main() -> None:
        with pytest.raises(Ended):
            gather(recorder(log, "a"), after(1, Ended()), return_exceptions=True)

    run_virtually(main)
    assert log == [("a", "another one failed")]
    with pytest.raises(SystemExit):
        run(lambda: gather(after(1, SystemExit(1)), park, return_exceptions=True))


def test_gather_return_exceptions_leaves_no_cycle() -> None:
    class Told(Exception):
        pass

    def fail() -> None:
        raise Told

    def main() -> None:
        results = gather(int, fail, return_exceptions=True)
        gone = [weakref.ref(result) for result in results if isinstance(result, Told)]
        del results
        yield_now()
        assert [ref() for ref in gone] == [None]

    gc.collect()
    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()


# race ---------------------------------------------------------------------------------------------


def test_race_gives_the_first_and_ends_the_rest() -> None:
    log: Log = []

    def main() -> None:
        running = spawn(recorder(log, "running"))
        result = race(recorder(log, "a"), after(2, "winner"), running, after(5, "late"))
        assert result == "winner"
        assert running.cancelled()

    run_virtually(main)
    assert sorted(log) == [(name, "another one was faster") for name in ("a", "running")]


def test_race_raises_when_the_first_to_end_fails() -> None:
    def main() -> None:
        with pytest.raises(Boom):
            race(park, after(1, Boom()), after(2, "late"))

    run(main)


def test_race_is_won_by_a_fiber_that_is_over() -> None:
    def main() -> None:
        fiber = spawn(after(0, "over"))
        fiber.join()
        assert race(after(3, "late"), fiber) == "over"

    run(main)


def test_race_of_which_the_loser_succeeds_all_the_same() -> None:
    def stubborn() -> str:
        try:
            park()
        except Cancelled:
            return "too late"
        return "never"

    assert run(lambda: race(stubborn, after(1, "winner"))) == "winner"


def test_race_of_which_the_loser_fails_logs_that(caplog: pytest.LogCaptureFixture) -> None:
    def stubborn() -> None:
        try:
            park()
        finally:
            raise Boom("loser")

    assert run(lambda: race(stubborn, after(1, "winner"))) == "winner"
    gc.collect()
    assert len(caplog.records) == 1


def test_race_does_not_touch_who_is_around_it() -> None:
    def main() -> None:
        with CancelScope() as scope:
            race(park, after(1, "winner"))
            sleep(0)
        assert not scope.cancel_called

    run(main)


def test_race_cancelled_from_outside() -> None:
    log: Log = []

    def main() -> None:
        with move_on_after(1) as scope:
            race(recorder(log, "a"), recorder(log, "b"))
        assert scope.cancelled()

    run_virtually(main)
    assert len(log) == 2


def test_race_without_losers_left_behind_by_the_thousand() -> None:
    scheduler = Scheduler()

    def main() -> None:
        for i in range(300):
            assert race(park, after(1, i), park) == i
            assert scheduler.stats()["fibers"] == 1

    scheduler.run(main)
    scheduler.close()


# first_success ------------------------------------------------------------------------------------


def test_first_success_passes_over_failures(caplog: pytest.LogCaptureFixture) -> None:
    log: Log = []

    def main() -> None:
        result = first_success(
            after(1, Boom()), after(3, "winner"), after(2, KeyError()), recorder(log, "loser")
        )
        assert result == "winner"

    run_virtually(main)
    gc.collect()
    assert log == [("loser", "another one succeeded")]
    assert not caplog.records


def test_first_success_of_failures_raises_all_in_the_order_they_came() -> None:
    def main() -> None:
        with pytest.raises(ExceptionGroup, match="none of them succeeded") as caught:
            first_success(after(2, Boom("b")), after(1, Boom("a")), after(3, Boom("c")))
        assert [error.args[0] for error in caught.value.exceptions] == ["a", "b", "c"]

    run(main)


def test_first_success_counts_a_cancelled_fiber_as_a_failure() -> None:
    def main() -> None:
        fiber = spawn(park)
        fiber.cancel("gone")
        with pytest.raises(ExceptionGroup) as caught:
            first_success(fiber)
        assert isinstance(caught.value.exceptions[0], FiberCancelled)

    run(main)


def test_first_success_cancelled_from_outside() -> None:
    log: Log = []

    def main() -> None:
        with move_on_after(2) as scope:
            first_success(after(1, Boom()), recorder(log, "a"))
        assert scope.cancelled()

    run_virtually(main)
    assert len(log) == 1


# All of them --------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [race, first_success])
def test_nothing_to_choose_from_is_refused(function: Any) -> None:
    def main() -> None:
        with pytest.raises(ValueError, match="at least one"):
            function()

    run(main)


@FUNCTIONS
def test_what_is_neither_function_nor_fiber_is_refused(function: Any) -> None:
    log: Log = []

    def main() -> None:
        with pytest.raises(TypeError, match="not 'int'"):
            function(lambda: log.append(1), 3)
        yield_now()

    run(main)
    assert log == []


@FUNCTIONS
def test_fibers_that_cannot_be_waited_for_are_refused(function: Any) -> None:
    def main() -> None:
        me = current()
        with pytest.raises(FiberError, match="the fiber that calls it"):
            function(me)
        raw: Fiber[Any] = Fiber(lambda: me.switch())
        raw.switch()
        with pytest.raises(FiberError, match="not started on the scheduler"):
            function(int, raw)
        raw.switch()

    run(main)


@FUNCTIONS
def test_fiber_of_another_thread_is_refused(function: Any) -> None:
    def main() -> None:
        fiber = spawn(park)
        errors: Log = []

        def elsewhere() -> None:
            try:
                run(function, fiber)
            except FiberError as error:
                errors.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        fiber.cancel()
        assert len(errors) == 1

    run(main)


@FUNCTIONS
def test_outside_of_a_run_is_refused(function: Any) -> None:
    with pytest.raises(FiberError, match="needs a running scheduler"):
        function(int)


@FUNCTIONS
def test_inside_of_a_cancelled_scope_nobody_runs(function: Any) -> None:
    log: Log = []

    def main() -> None:
        with CancelScope() as scope:
            scope.cancel()
            function(lambda: log.append(1), lambda: log.append(2))
            log.append("never")
        assert scope.cancelled()

    run(main)
    assert log == []


@FUNCTIONS
def test_cancelled_raised_by_hand_is_a_failure(function: Any) -> None:
    def main() -> None:
        with pytest.raises((FiberCancelled, ExceptionGroup)):
            function(after(0, Cancelled("by hand")))

    run(main)


@FUNCTIONS
def test_interrupt_ends_the_run(function: Any) -> None:
    with pytest.raises(SystemExit):
        run(function, after(1, SystemExit(1)), park)


# An own callback that fails ---------------------------------------------------------------------


def failing_once(name: str) -> Callable[..., Any]:
    """A trace function that lets the first call of pyfiber's function `name` fail."""
    left = [Boom("traced")]

    def trace(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_name == name and left:
            raise left.pop()

    return trace


def traced(trace: Callable[..., Any], function: Callable[[], Any]) -> None:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)


@FUNCTIONS
def test_a_callback_that_fails_ends_the_function(function: Any) -> None:
    log: Log = []

    def main() -> None:
        function(after(1, "first"), recorder(log, "second"))

    with pytest.raises(ExceptionGroup) as caught:
        run(lambda: traced(failing_once("on_done"), main))
    assert [str(exc) for exc in caught.value.exceptions] == ["traced"]
    assert [name for name, _ in log] == ["second"]


def test_a_callback_that_fails_ends_a_pmap() -> None:
    results: Log = []

    def main() -> None:
        results.extend(pmap(str, [1, 2, 3], limit=1))

    with pytest.raises(ExceptionGroup) as caught:
        run(lambda: traced(failing_once("ended"), main))
    assert [str(exc) for exc in caught.value.exceptions] == ["traced"]
    assert results == []
