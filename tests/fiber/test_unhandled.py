"""Failures that nobody looks at: each is told of once, and `on_unhandled` says how."""

from __future__ import annotations

import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    DeadlockError,
    Fiber,
    FiberError,
    Scheduler,
    TaskGroup,
    current,
    gather,
    park,
    run,
    sleep,
    spawn,
    testing,
    yield_now,
)
from pyfiber.grains import Grain
from pyfiber.threads import Portal
from tests.support.failing import Boom, fails, leaves

kept: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    """Whoever `keeps` is held until the test is over."""
    kept.clear()
    yield
    kept.clear()


def fails_as_grain(error: BaseException) -> Iterator[float]:
    yield 0
    raise error


def starts_fiber(error: BaseException) -> Fiber[None]:
    return spawn(fails, error)


def starts_grain(error: BaseException) -> Grain[None]:
    return Grain(fails_as_grain, error).start()


#: What can fail: both kinds are told of in the same way.
starts = pytest.mark.parametrize("start", [starts_fiber, starts_grain])
Start = Callable[[BaseException], Any]


def keeps(start: Start, *errors: BaseException) -> None:
    """The body of a run in which these fail and are held."""
    kept.extend(start(error) for error in errors)
    for _ in range(4):
        yield_now()


def told(caplog: pytest.LogCaptureFixture) -> list[BaseException | None]:
    """The exceptions that were logged as nobody's."""
    assert all("nobody looked at it" in record.getMessage() for record in caplog.records)
    assert {record.name for record in caplog.records} <= {"pyfiber"}
    return [record.exc_info[1] for record in caplog.records if record.exc_info]


def suppressed(look: Callable[[], object]) -> None:
    with pytest.raises(Boom):
        look()


def run_all(scheduler: Scheduler) -> None:
    """As an embedder does."""
    while scheduler.run_once():
        pass


class Heard:
    """An on_unhandled function that keeps what it is told."""

    def __init__(self, act: Callable[[], object] = lambda: None) -> None:
        self.calls: list[tuple[Any, BaseException]] = []
        self.act = act

    def __call__(self, task: Any, exc: BaseException) -> None:
        self.calls.append((task, exc))
        self.act()


# a failure that somebody holds --------------------------------------------------------------------


@starts
def test_held_failure_is_logged_when_the_run_ends(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """It was never told of while the list kept the fiber."""
    errors = [Boom(1), Boom(2)]

    def main() -> None:
        keeps(start, *errors)
        assert caplog.records == []  # somebody may still look

    run(main)
    assert told(caplog) == errors  # in the order in which they failed
    assert "in fails" in caplog.text  # with the traceback
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


@starts
def test_held_failure_is_told_of_once(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    run(keeps, start, Boom())
    kept.clear()
    gc.collect()
    run(yield_now)
    assert len(told(caplog)) == 1


@starts
@pytest.mark.parametrize(
    "look",
    [
        lambda task: suppressed(task.result),
        lambda task: task.exception(),
        lambda task: task.outcome,
    ],
    ids=["result", "exception", "outcome"],
)
def test_failure_that_was_looked_at_is_not_told_of(
    start: Start, look: Callable[[Any], object], caplog: pytest.LogCaptureFixture
) -> None:
    def main() -> None:
        keeps(start, Boom(), Boom())
        look(kept[1])

    run(main)
    assert len(told(caplog)) == 1
    kept.clear()
    assert len(told(caplog)) == 1


def test_failure_in_a_group_is_looked_at_by_the_group(caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        with pytest.raises(ExceptionGroup), TaskGroup() as group:
            kept.append(group.spawn(fails, Boom()))
        with pytest.raises(Boom):
            gather(lambda: fails(Boom()))

    run(main, on_unhandled="raise")
    assert told(caplog) == []


def test_join_does_not_look(caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        keeps(starts_fiber, Boom())
        kept[0].join()
        assert kept[0].done()

    run(main)
    assert len(told(caplog)) == 1


def test_failure_of_main_is_the_runs_own(caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        kept.append(current())
        raise Boom

    with pytest.raises(Boom):
        run(main)
    assert told(caplog) == []


@starts
def test_failure_while_the_run_is_cancelled_is_told_of(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that fail because the run ends, in their cleanup."""

    def stubborn() -> None:
        try:
            park()
        except Cancelled:
            raise Boom from None

    def main() -> None:
        kept.append(Fiber(stubborn, daemon=True).start())
        yield_now()

    run(main)
    assert [type(exc) for exc in told(caplog)] == [Boom]


@starts
def test_failures_of_the_embedded_are_logged_when_their_scheduler_closes(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler()
    scheduler.spawn(keeps, start, Boom())
    run_all(scheduler)
    assert told(caplog) == []
    scheduler.close()
    assert len(told(caplog)) == 1
    scheduler.close()
    assert len(told(caplog)) == 1


@starts
def test_failures_are_logged_when_their_scheduler_is_dropped(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = Scheduler()
    scheduler.spawn(keeps, start, Boom())
    run_all(scheduler)
    del scheduler
    kept.clear()
    gc.collect()
    assert len(told(caplog)) == 1


def test_failures_are_logged_when_their_thread_ends(caplog: pytest.LogCaptureFixture) -> None:
    def serve() -> None:
        scheduler = Scheduler()
        kept.append(scheduler)
        scheduler.spawn(keeps, starts_fiber, Boom())
        while scheduler.run_once():
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert len(told(caplog)) == 1


def test_failure_that_is_logged_as_its_thread_ends_leaves_no_thread_behind(child: Any) -> None:
    """threading had forgotten that thread already, and made up another one for the log record."""
    done = child(
        """
        import threading
        from pyfiber import Scheduler
        kept = []
        def fails():
            raise ValueError("told")
        def serve():
            scheduler = Scheduler()
            kept.append(scheduler)
            scheduler.spawn(lambda: kept.append(scheduler.spawn(fails)))
            while scheduler.run_once():
                pass
        thread = threading.Thread(target=serve)
        thread.start()
        thread.join()
        print(len(threading.enumerate()))
        """,
        check=False,
    )
    assert "ValueError: told" in done.stderr
    assert "Exception ignored" not in done.stderr
    if sys.version_info >= (3, 13):
        assert done.stdout == "1\n"


def test_failures_are_logged_when_the_interpreter_ends(child: Any) -> None:
    done = child(
        """
        import logging
        from pyfiber import Scheduler
        kept = []
        def fails():
            raise ValueError("told at exit")
        scheduler = Scheduler()
        scheduler.spawn(lambda: kept.append(scheduler.spawn(fails)))
        while scheduler.run_once():
            pass
        print("end")
        """,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "end\n")
    assert "nobody looked at it" in done.stderr
    assert done.stderr.count("ValueError: told at exit") == 1


def test_service_whose_fiber_died_is_told_of(child: Any) -> None:
    """The usual style, `self.task = spawn(...)`, hid every failure for ever."""
    done = child(
        """
        from pyfiber import run, sleep, spawn
        class Service:
            def start(self):
                self.task = spawn(self.serve)
            def serve(self):
                raise ValueError("the server fiber died")
        def main():
            service = Service()
            service.start()
            sleep(0)
            return service
        service = run(main)
        """,
        check=False,
    )
    assert done.returncode == 0
    assert "ValueError: the server fiber died" in done.stderr


def test_failure_of_a_subclass_with_a_finalizer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """`__del__` takes the place of the finalizer that logs."""

    class Special(Fiber[None]):
        def __del__(self) -> None:
            kept.append("finalized")

    def main() -> None:
        fiber = Special(fails, (Boom(),)).start()
        fiber.join()
        del fiber
        assert kept == ["finalized"]
        assert len(told(caplog)) == 1

    run(main)
    assert len(told(caplog)) == 1


@starts
def test_failure_of_one_that_was_garbage_before_it_failed_is_logged(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The collector finalizes an object once in its life."""

    class Saves:
        def __init__(self, task: Any) -> None:
            self.task = task
            self.me = self

        def __del__(self) -> None:
            kept.append(self.task)

    def main() -> None:
        fresh = Fiber(fails, (Boom(),)) if start is starts_fiber else Grain(fails_as_grain, Boom())
        Saves(fresh)
        del fresh
        gc.collect()
        task = kept.pop().start()
        task.join()
        del task
        assert len(told(caplog)) == 1

    run(main)


def test_failure_dropped_by_another_thread_is_logged_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def main() -> None:
        keeps(starts_fiber, Boom())
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
        assert len(told(caplog)) == 1

    run(main)


def test_failure_that_a_thread_waits_for_is_looked_at_by_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The run may be over before the thread goes on and raises it."""
    raised: list[BaseException] = []

    def calls(portal: Portal) -> None:
        try:
            portal.call(fails, Boom())
        except Boom as exc:
            raised.append(exc)

    def main() -> None:
        thread = threading.Thread(target=calls, args=(Portal(),))
        thread.start()
        kept.append(thread)
        while not raised:
            sleep(0.001)

    run(main, on_unhandled="raise")
    kept[0].join()
    assert len(raised) == 1
    assert told(caplog) == []


def test_many_held_failures_are_all_told_of() -> None:
    heard = Heard()
    run(keeps, starts_fiber, *(Boom(i) for i in range(10_000)), on_unhandled=heard)
    assert [exc.args[0] for _, exc in heard.calls] == list(range(10_000))


def test_dropping_held_failures_in_any_order_leaves_the_others() -> None:
    heard = Heard()

    def main() -> None:
        keeps(starts_fiber, *(Boom(i) for i in range(8)))
        for i in (0, 7, 3, 4):
            kept[i] = None
        assert [exc.args[0] for _, exc in heard.calls] == [0, 7, 3, 4]

    run(main, on_unhandled=heard)
    assert [exc.args[0] for _, exc in heard.calls] == [0, 7, 3, 4, 1, 2, 5, 6]


# a function ---------------------------------------------------------------------------------------


@starts
def test_handler_gets_the_fiber_and_the_exception(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    error = Boom()
    run(keeps, start, error, on_unhandled=heard)
    assert heard.calls == [(kept[0], error)]
    assert told(caplog) == []


@starts
def test_handler_is_called_as_soon_as_the_last_reference_goes(start: Start) -> None:
    heard = Heard()

    def main() -> None:
        keeps(start, Boom())
        kept.clear()
        assert [type(exc) for _, exc in heard.calls] == [Boom]

    run(main, on_unhandled=heard)
    assert len(heard.calls) == 1
    ((task, exc),) = heard.calls
    assert task.exception() is exc  # it may be kept


def test_handler_that_drops_and_looks_at_others(caplog: pytest.LogCaptureFixture) -> None:
    """Who is told may look at those that were to be told next, and drop others."""

    def act() -> None:
        if len(heard.calls) == 1:
            kept[1].exception()
            kept[2] = None

    heard = Heard(act)
    run(keeps, starts_fiber, *(Boom(i) for i in range(5)), on_unhandled=heard)
    assert [exc.args[0] for _, exc in heard.calls] == [0, 2, 3, 4]


@pytest.mark.parametrize("how", ["at the end", "when dropped"])
def test_handler_must_not_switch_wait_or_run(how: str) -> None:
    refused: list[str] = []

    def act() -> None:
        for forbidden in (yield_now, lambda: sleep(1), lambda: run(yield_now)):
            with pytest.raises(FiberError) as caught:
                forbidden()
            refused.append(str(caught.value))

    def main() -> None:
        keeps(starts_fiber, Boom())
        if how == "when dropped":
            kept.clear()

    run(main, on_unhandled=Heard(act))
    assert len(refused) == 3


@pytest.mark.parametrize("how", ["at the end", "when dropped"])
def test_handler_that_fails_is_logged_and_so_is_the_failure(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def main() -> str:
        keeps(starts_fiber, Boom())
        if how == "when dropped":
            kept.clear()
        return "result"

    assert run(main, on_unhandled=Heard(lambda: 1 / 0)) == "result"
    handler, failure = caplog.records
    assert "on_unhandled" in handler.getMessage()
    assert handler.exc_info is not None
    assert handler.exc_info[0] is ZeroDivisionError
    assert "nobody looked at it" in failure.getMessage()
    assert failure.exc_info is not None
    assert failure.exc_info[0] is Boom


@pytest.mark.parametrize("how", ["at the end", "when dropped"])
@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])
def test_handler_that_raises_what_ends_programs_ends_the_run(
    how: str, ends: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def main() -> None:
        keeps(starts_fiber, Boom(1), Boom(2))
        if how == "when dropped":
            kept[0] = None
            sleep(60)

    def stop() -> None:
        if len(heard.calls) == 1:
            raise ends

    heard = Heard(stop)
    with pytest.raises(ends):
        run(main, on_unhandled=heard)
    assert heard.calls[0][1].args == (1,)
    kept.clear()
    assert len(heard.calls) + len(told(caplog)) == 2  # the other one was not lost


def test_handler_of_an_embedded_scheduler() -> None:
    heard = Heard()
    scheduler = Scheduler(on_unhandled=heard)
    scheduler.run(keeps, starts_fiber, Boom(1))
    assert len(heard.calls) == 1
    scheduler.spawn(keeps, starts_fiber, Boom(2))
    run_all(scheduler)
    assert len(heard.calls) == 1
    scheduler.close()
    assert [exc.args[0] for _, exc in heard.calls] == [1, 2]


def test_logging_handler_may_drop_and_look(caplog: pytest.LogCaptureFixture) -> None:
    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if kept:
                kept.pop(0).exception()

    handler = Handler()
    logger = logging.getLogger("pyfiber")
    logger.addHandler(handler)
    try:
        run(keeps, starts_fiber, *(Boom(i) for i in range(6)))
    finally:
        logger.removeHandler(handler)
    # The first is told of; its handler looks at itself, the second's at the second, and so on.
    assert [exc.args[0] for exc in told(caplog) if exc] == list(range(6))


# "raise" ------------------------------------------------------------------------------------------


@starts
def test_raise_ends_the_run_when_a_failure_is_dropped(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    ended: list[str] = []

    def waits() -> None:
        try:
            park()
        except Cancelled:
            ended.append("cancelled")
            raise

    def main() -> None:
        spawn(waits)
        start(Boom())
        park()  # for ever

    with pytest.raises(ExceptionGroup, match="nobody looked at the failure of") as caught:
        run(main, on_unhandled="raise")
    assert [type(leaf) for leaf in leaves(caught.value)] == [Boom]
    assert ended == ["cancelled"]  # and joined
    assert told(caplog) == []


@starts
def test_raise_raises_at_the_end_what_is_held(start: Start) -> None:
    errors = [Boom(1), Boom(2)]
    with pytest.raises(ExceptionGroup) as caught:
        run(keeps, start, *errors, on_unhandled="raise")
    assert leaves(caught.value) == errors


def test_raise_says_who_failed_and_how_to_catch_it() -> None:
    def main() -> None:
        for i in range(7):
            kept.append(Fiber(fails, (Boom(),), name=f"worker {i}").start())
        yield_now()

    with pytest.raises(ExceptionGroup) as caught:
        run(main, on_unhandled="raise")
    assert caught.value.message == (
        "nobody looked at the failure of 'worker 0', 'worker 1', 'worker 2', 'worker 3', "
        "'worker 4', 2 more; catch with \"except* Boom:\""
    )


def test_raise_with_a_failed_main_has_that_first() -> None:
    def main() -> None:
        keeps(starts_fiber, Boom("fiber"))
        raise Boom("main")

    with pytest.raises(ExceptionGroup) as caught:
        run(main, on_unhandled="raise")
    assert [leaf.args[0] for leaf in leaves(caught.value)] == ["main", "fiber"]


def test_raise_with_nothing_unhandled_is_as_usual() -> None:
    def looks() -> int:
        keeps(starts_fiber, Boom())
        kept[0].exception()
        return 7

    assert run(looks, on_unhandled="raise") == 7
    with pytest.raises(Boom):
        run(fails, Boom(), on_unhandled="raise")


def test_raise_has_a_deadlock_beside_its_cause(child: Any) -> None:
    done = child("""
        from pyfiber import *
        kept = []
        def main():
            event = Event()
            kept.append(spawn(lambda: 1 / 0 and event.set()))
            event.wait()
        try:
            run(main, on_unhandled="raise")
        except ExceptionGroup as group:
            print([type(exc).__name__ for exc in group.exceptions])
        """)
    assert done.stdout == "['DeadlockError', 'ZeroDivisionError']\n"
    assert DeadlockError.__name__ in done.stdout


@pytest.mark.parametrize("ends", [KeyboardInterrupt, SystemExit])
def test_raise_lets_out_what_ends_programs_with_the_failures_as_context(
    ends: type[BaseException],
) -> None:
    def main() -> None:
        keeps(starts_fiber, Boom())
        raise ends

    with pytest.raises(ends) as caught:
        run(main, on_unhandled="raise")
    assert isinstance(caught.value.__context__, ExceptionGroup)
    assert [type(leaf) for leaf in leaves(caught.value.__context__)] == [Boom]


def test_raise_when_another_thread_drops_the_failure_wakes_the_loop() -> None:
    """While it waits, without a timer."""

    def main() -> None:
        keeps(starts_fiber, Boom())
        thread = threading.Thread(target=kept.clear)
        me = current()
        me.add_done_callback(lambda _: thread.join())
        thread.start()
        park(60)

    with pytest.raises(ExceptionGroup):
        run(main, on_unhandled="raise")


def test_raise_of_an_embedded_scheduler() -> None:
    scheduler = Scheduler(on_unhandled="raise")
    with pytest.raises(ExceptionGroup):
        scheduler.run(keeps, starts_fiber, Boom(1))
    scheduler.spawn(lambda: spawn(fails, Boom(2)) and None)
    with pytest.raises(ExceptionGroup) as caught:
        run_all(scheduler)
    assert [leaf.args[0] for leaf in leaves(caught.value)] == [2]
    scheduler.spawn(keeps, starts_fiber, Boom(3))
    run_all(scheduler)
    with pytest.raises(ExceptionGroup) as caught:
        scheduler.close()
    assert [leaf.args[0] for leaf in leaves(caught.value)] == [3]
    with pytest.raises(FiberError, match="closed"):
        scheduler.run(yield_now)
    scheduler.close()


def test_raise_where_nobody_can_be_raised_at_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler(on_unhandled="raise")
    scheduler.spawn(keeps, starts_fiber, Boom())
    run_all(scheduler)
    del scheduler
    kept.clear()
    gc.collect()
    (record,) = caplog.records
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], Boom | ExceptionGroup)


# the argument -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error"),
    [("ignore", ValueError), ("", ValueError), (None, TypeError), (1, TypeError)],
)
def test_wrong_on_unhandled_is_refused_before_anything_starts(
    wrong: Any, error: type[Exception]
) -> None:
    for refused in (
        lambda: run(kept.append, 1, on_unhandled=wrong),
        lambda: Scheduler(on_unhandled=wrong),
    ):
        with pytest.raises(error, match="on_unhandled must be 'log', 'raise' or a function, not"):
            refused()
    assert kept == []


def test_log_may_be_said(caplog: pytest.LogCaptureFixture) -> None:
    run(keeps, starts_fiber, Boom(), on_unhandled="log")
    assert len(told(caplog)) == 1


def test_on_unhandled_is_not_passed_on_and_other_arguments_are() -> None:
    def main(*args: object, **kwargs: object) -> tuple[object, object]:
        return args, kwargs

    assert run(main, 1, a=2, on_unhandled="log", b=3) == ((1,), {"a": 2, "b": 3})
    assert run(main, on_unhandled="log") == ((), {})
    assert Scheduler().run(main, on_unhandled="log") == ((), {"on_unhandled": "log"})


# runs under test ----------------------------------------------------------------------------------


def test_testing_run_has_an_error_of_its_own() -> None:
    with pytest.raises(testing.NeverAwaitedError):
        testing.run(keeps, starts_fiber, Boom())


@starts
def test_testing_run_does_what_on_unhandled_says(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    testing.run(keeps, start, Boom(), on_unhandled="log")
    assert len(told(caplog)) == 1
    with pytest.raises(ExceptionGroup):
        testing.run(keeps, start, Boom(), on_unhandled="raise")
    heard = Heard()
    testing.run(keeps, start, Boom(), on_unhandled=heard)
    assert len(heard.calls) == 1
    assert len(told(caplog)) == 1
    with pytest.raises(ValueError, match="on_unhandled"):
        testing.run(keeps, start, Boom(), on_unhandled="no")  # type: ignore[arg-type]


def test_testing_run_that_raises_ends_early() -> None:
    def main() -> None:
        spawn(fails, Boom())
        park()

    with pytest.raises(ExceptionGroup):
        testing.run(main, on_unhandled="raise")
