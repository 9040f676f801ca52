"""Done-callbacks, and the log of failures that nobody looked at."""

from __future__ import annotations

import ast
import contextlib
import gc
import logging
from typing import Any

import pytest

from pyfiber import (
    Fiber,
    FiberError,
    Ok,
    check_cancelled,
    current,
    park,
    run,
    sleep,
    spawn,
    yield_now,
)

Log = list[Any]


# Done-callbacks -----------------------------------------------------------------------------------


def test_callbacks_run_in_order_before_those_who_wait() -> None:
    log: Log = []

    def main() -> None:
        fiber = spawn(park)
        for i in range(3):
            fiber.add_done_callback(lambda done, i=i: log.append((i, done is fiber)))
        waiter = spawn(lambda: (fiber.join(), log.append("joined")))
        yield_now()
        fiber.unpark()
        waiter.join()

    run(main)
    assert log == [(0, True), (1, True), (2, True), "joined"]


def test_callback_sees_the_fiber_done() -> None:
    seen: Log = []

    def main() -> None:
        fiber = spawn(lambda: 5)
        fiber.add_done_callback(lambda done: seen.append((done.done(), done.state, done.result())))

    run(main)
    assert seen == [(True, "done", 5)]


def test_callback_of_a_failed_and_of_a_cancelled_fiber() -> None:
    seen: Log = []

    def main() -> None:
        failing, parked, fresh = spawn(lambda: 1 // 0), spawn(park), spawn(park)
        for fiber in (failing, parked, fresh):
            fiber.add_done_callback(lambda done: seen.append((done.name, done.cancelled())))
        fresh.cancel()
        yield_now()
        parked.cancel()

    run(main)
    assert sorted(flag for _, flag in seen) == [False, True, True]


def test_callback_that_fails_is_logged_and_the_next_runs(caplog: pytest.LogCaptureFixture) -> None:
    log: Log = []

    def main() -> int:
        fiber = spawn(lambda: 5)
        fiber.add_done_callback(lambda done: 1 // 0)
        fiber.add_done_callback(lambda done: log.append("second"))
        return fiber.result()

    assert run(main) == 5
    assert log == ["second"]
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pyfiber", logging.ERROR)
    assert "done-callback" in record.getMessage()
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "leave",
    [
        yield_now,
        park,
        lambda: sleep(0),
        lambda: sleep(0.001),
        lambda: Fiber(lambda: None).switch(),
        lambda: spawn(lambda: None).join(),
        lambda: Fiber(lambda: None).throw(ValueError),
    ],
)
def test_callback_cannot_leave_the_fiber(leave: Any) -> None:
    errors: list[FiberError] = []

    def callback(done: Fiber[Any]) -> None:
        with pytest.raises(FiberError, match="while a fiber ends") as caught:
            leave()
        errors.append(caught.value)

    def main() -> None:
        fiber = spawn(lambda: None)
        fiber.add_done_callback(callback)
        unstarted = spawn(lambda: None)
        unstarted.add_done_callback(callback)
        unstarted.cancel()

    run(main)
    assert len(errors) == 2


def test_callback_may_spawn_unpark_and_cancel() -> None:
    log: Log = []

    def main() -> None:
        me = current()
        other = spawn(park)

        def callback(done: Fiber[Any]) -> None:
            spawn(log.append, "spawned")
            other.cancel()
            me.unpark("from the callback")

        fiber = spawn(lambda: None)
        fiber.add_done_callback(callback)
        assert park() == "from the callback"
        other.join()
        assert other.cancelled()

    run(main)
    assert log == ["spawned"]


def test_callback_added_by_a_callback_runs() -> None:
    log: Log = []

    def main() -> None:
        fiber = spawn(lambda: None)
        fiber.add_done_callback(lambda done: done.add_done_callback(lambda _: log.append("inner")))

    run(main)
    assert log == ["inner"]


def test_callback_added_after_the_end_runs_at_once() -> None:
    log: Log = []
    fiber = run(lambda: spawn(lambda: 5))
    assert fiber.add_done_callback(lambda done: log.append(done.result())) is None
    assert log == [5]


def test_callback_added_after_the_end_that_fails_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fiber = run(lambda: spawn(lambda: 5))
    fiber.add_done_callback(lambda done: 1 // 0)
    assert "ZeroDivisionError" in caplog.text


def test_callback_added_after_the_end_returns_none() -> None:
    fiber = run(lambda: spawn(lambda: 5))
    assert fiber.add_done_callback(lambda done: "a value") is None


def test_callback_added_after_the_end_cannot_leave_the_fiber() -> None:
    errors: list[FiberError] = []

    def callback(done: Fiber[Any]) -> None:
        with pytest.raises(FiberError) as caught:
            yield_now()
        errors.append(caught.value)

    def main() -> None:
        fiber = spawn(lambda: 5)
        fiber.join()
        fiber.add_done_callback(callback)

    run(main)
    assert len(errors) == 1


@pytest.mark.parametrize("bad", [None, 1, "name"])
def test_callback_must_be_callable(bad: Any) -> None:
    def main() -> None:
        fiber = spawn(lambda: None)
        with pytest.raises(TypeError, match="must be callable"):
            fiber.add_done_callback(bad)

    run(main)


def test_callback_of_a_raw_fiber_runs() -> None:
    log: Log = []
    fiber = Fiber(lambda: "value")
    fiber.add_done_callback(lambda done: log.append(done.outcome))
    assert fiber.switch() == "value"
    assert log == [Ok("value")]


# Failures nobody looked at ------------------------------------------------------------------------


def failing(message: str = "nobody looks") -> None:
    raise ValueError(message)


def test_lost_failure_is_logged_once_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    run(lambda: spawn(failing) and None)
    gc.collect()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("pyfiber", logging.ERROR)
    assert "nobody looked at it" in record.getMessage()
    assert "failing" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ValueError)
    assert "in failing" in caplog.text


def test_lost_failure_is_logged_when_the_fiber_goes(caplog: pytest.LogCaptureFixture) -> None:
    """Until then somebody may still look."""

    def main() -> None:
        fiber = spawn(failing)
        fiber.join()
        assert caplog.records == []
        del fiber
        assert len(caplog.records) == 1

    run(main)
    assert len(caplog.records) == 1


def test_lost_failure_that_is_logged_while_code_is_parsed_breaks_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The parser raised SystemError: the traceback was parsed within a collection within it."""

    def fails() -> float:
        return 1 + (2 / 0) + 3  # not the whole line: the traceback gets carets

    def main() -> None:
        cycle: list[Any] = [spawn(fails)]
        cycle.append(cycle)
        yield_now()
        del cycle
        assert caplog.records == []
        gc.set_threshold(1)
        gc.enable()
        ast.parse("x = [1, 2, (3, f(4), g(5)[6])]\n" * 20)

    threshold = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        run(main)
    finally:
        gc.enable()
        gc.set_threshold(*threshold)
    assert "ZeroDivisionError" in caplog.text
    assert "return 1 + (2 / 0) + 3" in caplog.text


def test_joined_but_never_looked_at_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    run(lambda: spawn(failing).join())
    assert len(caplog.records) == 1


def asks_for_the_result(fiber: Fiber[Any]) -> None:
    with pytest.raises(ValueError, match="nobody looks"):
        fiber.result()


@pytest.mark.parametrize(
    "look",
    [
        lambda fiber: fiber.exception(),
        lambda fiber: fiber.outcome,
        asks_for_the_result,
    ],
)
def test_failure_looked_at_is_not_logged(look: Any, caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        fiber = spawn(failing)
        fiber.join()
        look(fiber)

    run(main)
    gc.collect()
    assert caplog.records == []


def test_failure_of_a_cancelled_fiber_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails_in_cleanup() -> None:
        try:
            park()
        finally:
            failing("cleanup failed")

    def main() -> None:
        fiber = spawn(fails_in_cleanup)
        yield_now()
        fiber.cancel()

    run(main)
    assert "cleanup failed" in caplog.text


@pytest.mark.parametrize("cancel_when_parked", [False, True])
def test_cancellation_nobody_looked_at_is_not_logged(
    cancel_when_parked: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def main() -> None:
        fiber = spawn(park)
        if cancel_when_parked:
            yield_now()
        fiber.cancel()

    run(main)
    assert caplog.records == []


def test_failure_of_the_runs_function_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ValueError, match="nobody"):
        run(failing)
    gc.collect()
    assert caplog.records == []


def test_lost_failure_with_a_logging_handler_that_parks() -> None:
    """Handlers run where the last reference went, maybe in the middle of a switch."""
    errors: list[BaseException] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                park(0.001)
            except BaseException as exc:
                errors.append(exc)

    handler = Handler()
    logger = logging.getLogger("pyfiber")
    logger.addHandler(handler)
    try:

        def main() -> None:
            me = current()

            def child() -> None:
                me.unpark("value")
                failing()

            for _ in range(50):
                spawn(child)
                assert park(30) == "value"

        run(main)
    finally:
        logger.removeHandler(handler)
    assert len(errors) == 50


class Restless:
    """What it does when it goes, where the interpreter lets it go."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def __del__(self) -> None:
        with contextlib.suppress(FiberError):
            self.act()


@pytest.mark.parametrize(
    "act",
    [
        yield_now,
        check_cancelled,
        lambda: sleep(0.0001),
        lambda: park(0.0001),
        lambda: Fiber(lambda: "inner").switch(),
        lambda: spawn(lambda: None),
        lambda: current().unpark(),
        lambda: gc.collect(0),
    ],
)
@pytest.mark.filterwarnings("ignore:unpark:RuntimeWarning")
def test_result_whose_finalizer_acts_disturbs_nobody(act: Any) -> None:
    """The result of a fiber nobody holds is dropped while the next one is being entered."""

    def main() -> None:
        me = current()

        def unparks() -> Restless:
            me.unpark("value")
            return Restless(act)

        for _ in range(20):
            spawn(unparks)
            assert park(30) in ("value", None)
            me.unpark("mine")  # a finalizer may have been faster
            assert park(30) in ("mine", None, "value")
            spawn(Restless, act)
            yield_now()
            fiber = Fiber(lambda: (yield_now(), 42)[1])
            spawn(Restless, act)
            assert fiber.switch() == 42
            spawn(Restless, act)
            assert spawn(lambda: (yield_now(), "x")[1]).result(30) == "x"

    run(main)
