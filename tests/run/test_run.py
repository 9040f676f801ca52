"""run(): what it returns and raises, whom it waits for, whom it cancels, where it is refused."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import os
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Fiber,
    FiberError,
    current,
    park,
    run,
    sleep,
    spawn,
    yield_now,
)
from tests.support.growth import BLOCKS_ARE_COUNTED, grows
from tests.support.subprocesses import run_script
from tests.support.threads import PATIENCE

Log = list[Any]


def park_and_log(log: Log, name: str) -> None:
    """Park for ever; tell how it ended."""
    try:
        park()
    except Cancelled:
        log.append(name)
        raise


# What it answers ----------------------------------------------------------------------------------


def test_run_returns_the_functions_result() -> None:
    assert run(lambda: 42) == 42


def test_run_passes_args_and_kwargs() -> None:
    def fn(*args: int, **kwargs: int) -> tuple[Any, Any]:
        return args, kwargs

    assert run(fn, 1, 2, a=3, fn=4) == ((1, 2), {"a": 3, "fn": 4})


def test_run_returns_the_very_object() -> None:
    thing = object()
    assert run(lambda: thing) is thing


def test_run_raises_the_very_exception() -> None:
    error = ValueError("mine")

    def fail() -> None:
        raise error

    with pytest.raises(ValueError, match="mine") as caught:
        run(fail)
    assert caught.value is error


def test_run_failure_has_the_traceback_of_the_function() -> None:
    def fail() -> None:
        raise ValueError

    with pytest.raises(ValueError) as caught:  # noqa: PT011
        run(fail)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[0] == "test_run_failure_has_the_traceback_of_the_function"
    assert names[-1] == "fail"


def test_run_failure_while_handling_another_chains_to_nothing_unexpected() -> None:
    def fail() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None

    with pytest.raises(ValueError, match="second") as caught:
        run(fail)
    assert isinstance(caught.value.__context__, KeyError)
    assert caught.value.__suppress_context__


def test_run_several_in_a_row() -> None:
    assert [run(lambda n=n: n * n) for n in range(50)] == [n * n for n in range(50)]


def test_run_after_a_failed_run() -> None:
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 // 0)
    assert run(lambda: spawn(lambda: 7).result()) == 7


def test_run_function_runs_in_a_fiber_of_its_own() -> None:
    root = current()
    inside = run(current)
    assert inside is not root
    assert inside.done()
    assert current() is root


def test_run_takes_a_callable_object() -> None:
    class Callable_:
        def __call__(self, value: int) -> int:
            yield_now()
            return value

    assert run(Callable_(), 3) == 3


def test_run_takes_a_class() -> None:
    assert run(dict, a=1) == {"a": 1}


# Whom it waits for --------------------------------------------------------------------------------


def test_run_awaits_fibers_that_outlive_the_function() -> None:
    log: Log = []

    def late() -> None:
        for _ in range(5):
            yield_now()
        log.append("late")

    def main() -> str:
        spawn(late)
        return "result"

    assert run(main) == "result"
    assert log == ["late"]


def test_run_awaits_fibers_spawned_by_fibers() -> None:
    log: Log = []

    def chain(n: int) -> None:
        log.append(n)
        if n:
            spawn(chain, n - 1)

    run(chain, 5)
    assert log == [5, 4, 3, 2, 1, 0]


def test_run_cancels_daemons_at_the_end() -> None:
    log: Log = []

    def main() -> None:
        daemon = Fiber(park_and_log, (log, "daemon"), daemon=True).start()
        yield_now()
        assert daemon.state == "parked"

    run(main)
    assert log == ["daemon"]


def test_run_cancels_a_daemon_that_never_ran() -> None:
    log: Log = []

    def main() -> Fiber[None]:
        return Fiber(log.append, ("ran",), daemon=True).start()

    fiber = run(main)
    assert fiber.done()


def test_run_daemon_is_left_alone_while_others_run() -> None:
    log: Log = []

    def main() -> None:
        Fiber(park_and_log, (log, "daemon"), daemon=True).start()
        spawn(lambda: [yield_now() for _ in range(5)] and log.append("work"))

    run(main)
    assert log == ["work", "daemon"]


def test_run_joins_daemons_it_cancelled() -> None:
    log: Log = []

    def stubborn() -> None:
        try:
            park()
        except Cancelled:
            for _ in range(3):
                with pytest.raises(Cancelled):
                    yield_now()
            log.append("cleaned up")

    def main() -> Fiber[None]:
        fiber = Fiber(stubborn, daemon=True).start()
        yield_now()
        return fiber

    assert run(main).done()
    assert log == ["cleaned up"]


def test_run_failure_cancels_and_joins_the_others() -> None:
    log: Log = []

    def main() -> None:
        for name in ("a", "b"):
            spawn(park_and_log, log, name)
        yield_now()
        raise ValueError("main failed")

    with pytest.raises(ValueError, match="main failed"):
        run(main)
    assert sorted(log) == ["a", "b"]


def test_run_failure_of_another_fiber_does_not_end_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def main() -> str:
        spawn(lambda: 1 // 0)
        yield_now()
        yield_now()
        return "fine"

    assert run(main) == "fine"
    assert "ZeroDivisionError" in caplog.text


def test_run_failure_keeps_the_others_outcomes() -> None:
    fibers: list[Fiber[Any]] = []

    def main() -> None:
        fibers.append(spawn(park))
        fibers.append(spawn(lambda: "quick"))
        yield_now()
        raise ValueError

    with pytest.raises(ValueError):  # noqa: PT011
        run(main)
    assert fibers[0].cancelled()
    assert fibers[1].result() == "quick"


def test_run_failure_cancels_what_cleanups_spawn() -> None:
    """Started after "cancel everything", it must not keep the run alive, nor hide its error."""

    def cleanup() -> None:
        try:
            park()
        finally:
            spawn(park)

    def main() -> None:
        spawn(cleanup)
        yield_now()
        raise ValueError("main failed")

    with pytest.raises(ValueError, match="main failed"):
        run(main)


# Exceptions that end everything -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_run_ends_when_one_escapes_any_fiber(kind: type[BaseException]) -> None:
    log: Log = []

    def exits() -> None:
        raise kind("out")

    def main() -> None:
        spawn(exits)
        park_and_log(log, "main")

    with pytest.raises(kind, match="out"):
        run(main)
    assert log == ["main"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_run_ends_when_one_escapes_a_daemon(kind: type[BaseException]) -> None:
    def exits() -> None:
        raise kind("out")

    def main() -> None:
        Fiber(exits, daemon=True).start()
        park()

    with pytest.raises(kind, match="out"):
        run(main)


def test_run_first_escaping_exception_wins() -> None:
    def main() -> None:
        spawn(sys.exit, "first")
        spawn(sys.exit, "second")
        park()

    with pytest.raises(SystemExit, match="first"):
        run(main)


def test_run_exit_beats_the_functions_result() -> None:
    def main() -> str:
        spawn(sys.exit, "exit")
        return "result"

    with pytest.raises(SystemExit, match="exit"):
        run(main)


def test_run_escaping_exception_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SystemExit):
        run(lambda: spawn(sys.exit) and park())
    assert caplog.text == ""


def test_run_other_base_exceptions_end_only_their_fiber() -> None:
    class Mine(BaseException):
        pass

    def fails() -> None:
        raise Mine

    def main() -> str:
        assert isinstance(spawn(fails).exception(), Mine)
        return "fine"

    assert run(main) == "fine"


def test_run_of_a_cancelled_function_raises_fiber_cancelled() -> None:
    from pyfiber import FiberCancelled

    def main() -> None:
        current().cancel("enough")
        park()

    with pytest.raises(FiberCancelled, match="enough") as caught:
        run(main)
    assert caught.value.reason == "enough"


# Where it is refused, and where not ---------------------------------------------------------------


def test_run_inside_a_run_is_refused() -> None:
    def main() -> str:
        with pytest.raises(FiberError, match=r"run\(\) inside of a run"):
            run(lambda: 1)
        return "fine"

    assert run(main) == "fine"


def test_run_inside_a_raw_fiber_inside_a_run_is_refused() -> None:
    def raw() -> None:
        with pytest.raises(FiberError, match=r"run\(\) inside of a run"):
            run(lambda: 1)

    run(lambda: Fiber(raw).switch())


def test_run_inside_a_raw_fiber() -> None:
    def raw() -> list[int]:
        return run(lambda: [spawn(lambda n=n: n).result() for n in range(5)])

    assert Fiber(raw).switch() == [0, 1, 2, 3, 4]


def test_run_inside_a_raw_fiber_twice_with_a_visit_between() -> None:
    root = current()

    def raw() -> str:
        first = run(lambda: spawn(lambda: sleep(0.001) or "a").result())
        second = root.switch(first)
        return run(lambda: first + second)

    fiber: Fiber[str] = Fiber(raw)
    assert fiber.switch() == "a"
    assert fiber.switch("b") == "ab"


def test_run_inside_a_raw_fiber_that_fails() -> None:
    with pytest.raises(ZeroDivisionError):
        Fiber(lambda: run(lambda: 1 // 0)).switch()
    assert run(lambda: 1) == 1


def test_run_is_refused_while_another_is_suspended_in_a_raw_fiber() -> None:
    root = current()
    raw: Fiber[str] = Fiber(lambda: run(lambda: "main got " + root.switch(current())))
    inner: Fiber[str] = raw.switch()
    with pytest.raises(FiberError, match="runs a scheduler's loop"):
        raw.switch()
    with pytest.raises(FiberError, match="inside of a run"):
        run(lambda: 1)
    assert inner.switch("a value") == "main got a value"
    assert run(lambda: 1) == 1


@pytest.mark.parametrize("bad", [None, 1, "name", object()])
def test_run_of_what_cannot_be_called_is_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError, match="takes a function"):
        run(bad)
    assert run(lambda: 1) == 1


def test_run_without_a_function_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="needs a function"):
        run()  # type: ignore[call-arg]


def test_run_of_a_fiber_object_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="takes a function"):
        run(Fiber(lambda: 1))  # type: ignore[arg-type]


def test_run_wrong_arguments_for_the_function_are_its_failure() -> None:
    with pytest.raises(TypeError, match="positional argument"):
        run(lambda: 1, 2)  # type: ignore[call-arg]


def test_run_leaves_no_descriptor_open() -> None:
    if sys.platform == "win32" or not os.path.isdir("/proc/self/fd"):  # (Wine shows its own)
        pytest.skip("needs /proc")
    run(lambda: 1)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        run(lambda: sleep(0))
        with pytest.raises(ZeroDivisionError):
            run(lambda: 1 // 0)
    assert len(os.listdir("/proc/self/fd")) <= before


# Contexts and threads -----------------------------------------------------------------------------

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def test_run_sees_the_callers_context_and_keeps_its_changes() -> None:
    token = variable.set("outer")

    def main() -> str:
        seen = variable.get()
        variable.set("inner")
        return seen

    try:
        assert run(main) == "outer"
        assert variable.get() == "outer"
    finally:
        variable.reset(token)


def in_threads(*functions: Callable[[], Any]) -> list[Any]:
    """The results of the functions, each run in a thread of its own, all at once."""
    barrier = threading.Barrier(len(functions))
    results: list[Any] = [None] * len(functions)

    def body(i: int, fn: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[i] = fn()
        except BaseException as exc:
            results[i] = exc

    threads = [threading.Thread(target=body, args=item) for item in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_run_on_several_threads_at_once() -> None:
    def main(n: int) -> int:
        fibers = [spawn(lambda i=i: (yield_now(), sleep(0), i)[2]) for i in range(n)]
        return sum(fiber.result() for fiber in fibers)

    results = in_threads(*(lambda n=n: run(main, n) for n in (10, 20, 30, 40)))
    assert results == [45, 190, 435, 780]


def test_run_on_a_thread_while_the_main_thread_runs_one() -> None:
    def main() -> Any:
        return in_threads(lambda: run(lambda: spawn(lambda: "theirs").result()))

    assert run(main) == ["theirs"]


def test_run_thread_ends_with_nothing_left_behind() -> None:
    def body() -> str:
        run(lambda: spawn(yield_now))
        return "done"

    for _ in range(20):
        assert in_threads(body) == ["done"]


def test_run_interleaves_with_gil_switches_of_other_threads() -> None:
    """The interpreter hands the GIL over at any bytecode: nothing of a fiber may get mixed up."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def worker() -> int:
            def body(n: int) -> int:
                total = 0
                for i in range(100):
                    total += i * n
                    yield_now()
                return total

            return run(lambda: sum(spawn(body, n).result() for n in range(10)))

        assert in_threads(*[worker] * 4) == [4950 * 45] * 4
    finally:
        sys.setswitchinterval(interval)


# A run that a raw fiber's end reaches: in interpreters of their own lest a bug hang the tests ----

PRELUDE = """
import sys
from pyfiber import *
root = current()
log = []
def raw(fn):
    fiber = Fiber(fn)
    fiber.parent = root
    return fiber
"""


def script(code: str) -> str:
    """What the script prints, without the end of the line."""
    return run_script(PRELUDE + textwrap.dedent(code), timeout=PATIENCE).stdout.rstrip()


def test_run_raises_what_a_raw_fiber_of_the_hub_raises() -> None:
    """Its parent runs the loop: the failure must not be lost, nor the run hang."""
    printed = script("""
        try:
            run(lambda: raw(lambda: 1 // 0).switch())
        except ZeroDivisionError:
            print("raised", run(lambda: 1))
    """)
    assert printed == "raised 1"


def test_run_reports_who_was_left_for_a_raw_fiber_of_the_hub() -> None:
    """It returned into the loop, so nobody switches back: the others go on, then that is told."""
    printed = script("""
        def main():
            spawn(lambda: print("alive"))
            raw(lambda: None).switch()
        try:
            run(main)
        except DeadlockError as exc:
            print("main" in str(exc) and "left by a direct switch" in str(exc))
    """)
    assert printed.split() == ["alive", "True"]


def test_run_loses_no_fiber_when_a_raw_fiber_ends_into_a_hub_that_is_queued() -> None:
    printed = script("""
        def ends():
            park()
            spawn(lambda: log.append("behind the hub"))
        def main():
            fiber = raw(ends)
            enters = spawn(fiber.switch)
            yield_now()
            fiber.unpark()
            spawn(sys.exit, "ended")
        try:
            run(main)
        except SystemExit as exc:
            print(exc)
    """)
    assert printed == "ended"


def test_run_exit_with_a_fiber_left_by_a_direct_switch_unwinds_it() -> None:
    """Nothing can wake it any more."""
    printed = script("""
        def left():
            try:
                raw(lambda: None).switch()
            finally:
                print("unwound")
        def main():
            spawn(left)
            yield_now()
            sys.exit("ended")
        try:
            run(main)
        except SystemExit as exc:
            print(exc)
    """)
    assert printed.split() == ["unwound", "ended"]


def test_run_stopped_ends_beside_a_thread_although_main_was_left_by_a_direct_switch() -> None:
    """No cancellation reaches main, and no thread can wake it: only abandoning it ends the run."""
    printed = script("""
        import threading
        over = threading.Event()
        thread = threading.Thread(target=over.wait)
        thread.start()
        def main():
            spawn(current_scheduler().stop)
            try:
                raw(lambda: None).switch()
            finally:
                print("unwound")
        try:
            run(main)
        except BaseException as exc:
            print(type(exc).__name__)
        over.set()
        thread.join()
    """)
    assert printed.split() == ["unwound", "FiberCancelled"]


def test_run_inside_a_raw_fiber_takes_the_strays_of_its_fibers() -> None:
    """The end of a raw fiber without a parent comes to the loop, not to the thread's own stack."""
    printed = script("""
        def main():
            box = []
            def owner():
                box.append(Fiber(lambda: (park(), "stray")[1]))
                box[0].parent = current()
                box.append(spawn(box[0].switch))
                yield_now()
                yield_now()
            spawn(owner).join()
            box[0].unpark()
            yield_now()
            yield_now()
            print("goes on")
        try:
            Fiber(lambda: run(main)).switch()
        except DeadlockError as exc:
            print("left by a direct switch" in str(exc))
    """)
    assert printed.splitlines() == ["goes on", "True"]


def test_run_in_a_raw_fiber_that_is_dropped_ends() -> None:
    printed = script("""
        def main():
            try:
                root.switch("left")
            finally:
                print("unwound")
        fiber = Fiber(lambda: run(main))
        print(fiber.switch())
        del fiber
        print(run(lambda: "free again"))
    """)
    assert printed.splitlines() == ["left", "unwound", "free again"]


def test_run_in_a_raw_fiber_suspended_at_exit_ends_quietly() -> None:
    done = run_script(
        PRELUDE + 'f = Fiber(lambda: run(lambda: root.switch("left"))); print(f.switch())',
        timeout=PATIENCE,
    )
    assert (done.stdout, done.stderr) == ("left\n", "")


# Nothing is kept for ever -------------------------------------------------------------------------


@pytest.mark.skipif(not BLOCKS_ARE_COUNTED, reason="the C library's malloc does not count")
def test_measure_of_growth_sees_one_block_a_round_and_only_that() -> None:
    kept: list[object] = []
    assert grows(lambda: kept.append(object()), 100)
    assert not grows(object, 100)


def run_and_fail() -> None:
    with contextlib.suppress(ZeroDivisionError):
        run(lambda: 1 // 0)


def run_daemons() -> None:
    run(lambda: Fiber(park, daemon=True).start())


def run_cancelled() -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        fiber.cancel("reason")

    run(main)


def run_with_late_wake_ups() -> None:
    """Another thread's wake-ups that arrive when the run is over."""

    def main() -> None:
        me = current()
        thread = threading.Thread(target=lambda: (me.unpark("value"), me.cancel(), me.unpark()))
        thread.start()
        thread.join()

    run(main)


@pytest.mark.parametrize(
    "act",
    [lambda: run(lambda: 1), run_and_fail, run_daemons, run_cancelled, run_with_late_wake_ups],
)
def test_run_over_and_over_does_not_grow(act: Callable[[], object]) -> None:
    assert not grows(act, 300)


@pytest.mark.slow
def test_run_ten_thousand_times_does_not_grow() -> None:
    assert not grows(lambda: run(lambda: None), 10_000)


@pytest.mark.slow
def test_spawn_a_hundred_thousand_does_not_grow() -> None:
    def main() -> bool:
        return grows(lambda: spawn(lambda: None).result(), 100_000)

    assert not run(main)
