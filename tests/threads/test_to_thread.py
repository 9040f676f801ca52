"""`to_thread()` and ThreadLimiter: functions in threads, and fibers that wait for them."""

from __future__ import annotations

import contextvars
import gc
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Fiber,
    FiberCancelled,
    FiberError,
    FiberExit,
    Scheduler,
    check_cancelled,
    current,
    park,
    run,
    sleep,
    spawn,
    to_thread,
    yield_now,
)
from pyfiber.threads import ThreadLimiter, default_thread_limiter
from tests.conftest import Child
from tests.support.gil import DROPS_ARE_QUEUED, needs_gil
from tests.support.threads import PATIENCE


class Gate:
    """A function for a thread: says that it has begun, and stays until it is let go."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.leave = threading.Event()
        self.ended = threading.Event()
        self.calls = 0

    def __call__(self, value: Any = None) -> Any:
        self.calls += 1
        self.begun.set()
        assert self.leave.wait(20)
        self.ended.set()
        if isinstance(value, BaseException):
            raise value
        return value


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.leave.set()


def until(condition: Callable[[], object]) -> None:
    """In a fiber: let others run until it holds."""
    for _ in range(20_000):
        if condition():
            return
        sleep(0.001)
    raise AssertionError("it never came true")


# results ------------------------------------------------------------------------------------------


def test_to_thread_returns_the_result() -> None:
    assert run(lambda: to_thread(pow, 2, 10)) == 1024
    assert run(lambda: to_thread(dict, a=1, b=2)) == {"a": 1, "b": 2}
    assert run(lambda: to_thread(divmod, 7, 2)) == (3, 1)


def test_to_thread_runs_elsewhere_while_fibers_run_here(gate: Gate) -> None:
    here = threading.get_ident()

    def main() -> None:
        fiber = spawn(to_thread, lambda: (gate(), threading.get_ident())[1])
        until(gate.begun.is_set)
        assert fiber.state == "parked"
        gate.leave.set()
        assert fiber.result() != here

    run(main)


def test_exception_of_the_function_is_raised_with_its_traceback() -> None:
    def fails() -> None:
        raise LookupError("in the thread")

    def main() -> None:
        with pytest.raises(LookupError, match="in the thread") as caught:
            to_thread(fails)
        assert "fails" in {entry.name for entry in caught.traceback}

    run(main)


def test_base_exceptions_come_back_as_well() -> None:
    def main() -> None:
        with pytest.raises(KeyboardInterrupt):
            to_thread(raising, KeyboardInterrupt())
        with pytest.raises(SystemExit):
            to_thread(raising, SystemExit(3))

    def raising(exc: BaseException) -> None:
        raise exc

    run(main)


def test_worker_is_a_named_daemon_thread() -> None:
    thread = run(lambda: to_thread(threading.current_thread))
    assert thread.daemon
    assert thread.name.startswith("pyfiber-worker-")


@needs_gil("without it, the last worker may not be idle yet")
def test_workers_are_used_again() -> None:
    def main() -> set[int]:
        return {to_thread(threading.get_ident) for _ in range(50)}

    assert len(run(main)) == 1


def test_arguments_and_results_are_let_go() -> None:
    class Thing:
        pass

    def main() -> list[weakref.ref[Thing]]:
        thing = Thing()
        to_thread(lambda *things: None, Thing(), thing)
        return [weakref.ref(thing), weakref.ref(to_thread(Thing))]

    references = run(main)
    gc.collect()
    assert [reference() for reference in references] == [None, None]


def test_many_fibers_and_threads_mix() -> None:
    def body(n: int) -> int:
        total = 0
        for i in range(20):
            total += to_thread(int.__add__, n, i)
            yield_now()
        return total

    def main() -> list[int]:
        return [fiber.result() for fiber in [spawn(body, n) for n in range(60)]]

    assert run(main) == [20 * n + 190 for n in range(60)]


def test_raw_fiber_of_a_run_can_wait_for_a_thread() -> None:
    assert run(lambda: Fiber(lambda: to_thread(pow, 3, 3)).switch()) == 27


def test_run_inside_of_a_thread_is_a_run_of_its_own() -> None:
    def inner() -> int:
        return run(lambda: spawn(to_thread, pow, 2, 5).result())

    assert run(lambda: to_thread(inner)) == 32


def test_embedded_scheduler_waits_for_threads() -> None:
    scheduler = Scheduler()
    fiber = scheduler.spawn(to_thread, pow, 2, 8)
    while scheduler.run_once(None):
        pass
    assert fiber.result() == 256
    scheduler.close()


# contextvars --------------------------------------------------------------------------------------

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="default")


def test_context_is_carried_over_and_changes_stay_there() -> None:
    def function() -> str:
        seen = VARIABLE.get()
        VARIABLE.set("changed in the thread")
        return seen

    def main() -> None:
        assert to_thread(function) == "default"
        assert to_thread(VARIABLE.get) == "default"  # the same worker
        VARIABLE.set("set in the fiber")
        assert to_thread(function) == "set in the fiber"
        assert VARIABLE.get() == "set in the fiber"

    contextvars.copy_context().run(run, main)


# cancellation -------------------------------------------------------------------------------------


def test_cancel_waits_for_the_function_and_keeps_its_result(gate: Gate) -> None:
    log: list[Any] = []

    def body() -> None:
        log.append(to_thread(gate, "result"))
        try:
            check_cancelled()
        finally:
            log.append("cancelled at the next park point")

    def main() -> None:
        fiber = spawn(body)
        until(gate.begun.is_set)
        fiber.cancel("enough")
        for _ in range(5):
            yield_now()
        assert fiber.state == "parked"
        gate.leave.set()
        with pytest.raises(FiberCancelled, match="enough"):
            fiber.result()

    run(main)
    assert log == ["result", "cancelled at the next park point"]


def test_result_that_comes_between_the_cancellation_and_the_fibers_turn_is_kept(gate: Gate) -> None:
    limiter = ThreadLimiter(1)
    log: list[str] = []

    def body() -> None:
        log.append(limiter.to_thread(gate, "result"))
        try:
            yield_now()
        except Cancelled:
            log.append("cancelled")

    def main() -> None:
        fiber = spawn(body)
        until(gate.begun.is_set)
        for _ in range(500):  # they run first, and the loop looks for messages meanwhile
            spawn(yield_now)
        fiber.cancel()
        gate.leave.set()
        while limiter.borrowed_tokens:
            time.sleep(0.001)  # no fiber runs
        fiber.join()

    run(main)
    assert log == ["result", "cancelled"]


def test_cancel_with_abandon_raises_at_once(gate: Gate) -> None:
    limiter = ThreadLimiter(1, abandon_on_cancel=True)

    def main() -> None:
        fiber = spawn(limiter.to_thread, gate)
        until(gate.begun.is_set)
        fiber.cancel("enough")
        with pytest.raises(FiberCancelled, match="enough"):
            fiber.result()
        assert not gate.ended.is_set()
        assert limiter.borrowed_tokens == 1  # until the thread is done with it
        gate.leave.set()
        until(lambda: limiter.borrowed_tokens == 0)

    run(main)


def test_failure_of_an_abandoned_function_is_logged(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = ThreadLimiter(1, abandon_on_cancel=True)

    def main() -> None:
        fiber = spawn(limiter.to_thread, gate, ValueError("too late"))
        until(gate.begun.is_set)
        fiber.cancel()
        fiber.join()
        gate.leave.set()
        until(lambda: caplog.records)

    with caplog.at_level(logging.ERROR, "pyfiber"):
        run(main)
    (record,) = caplog.records
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "too late"


def test_abandoned_function_may_outlive_the_run(
    gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    limiter = ThreadLimiter(1, abandon_on_cancel=True)

    def main() -> None:
        fiber = spawn(limiter.to_thread, gate, ValueError("after the run"))
        until(gate.begun.is_set)
        fiber.cancel()

    run(main)
    gate.leave.set()
    run(lambda: until(lambda: limiter.borrowed_tokens == 0 and "after the run" in caplog.text))


def test_result_of_an_abandoned_function_is_let_go(gate: Gate) -> None:
    limiter = ThreadLimiter(1, abandon_on_cancel=True)
    values = [Gate()]
    gone = weakref.ref(values[0])

    def main() -> None:
        fiber = spawn(limiter.to_thread, gate, values.pop())
        until(gate.begun.is_set)
        fiber.cancel()
        fiber.join()
        gate.leave.set()
        until(lambda: limiter.borrowed_tokens == 0)

    run(main)
    gc.collect()
    assert gone() is None


@needs_gil(DROPS_ARE_QUEUED)
def test_arguments_of_an_abandoned_function_die_in_its_thread(gate: Gate) -> None:
    died: list[int] = []

    class Thing:
        def __del__(self) -> None:
            died.append(threading.get_ident())

    def waits(*args: Any, **kwargs: Any) -> None:
        gate()

    limiter = ThreadLimiter(1, abandon_on_cancel=True)

    def main() -> None:
        fiber = spawn(limiter.to_thread, waits, Thing(), name=Thing())
        until(gate.begun.is_set)
        fiber.cancel()
        fiber.join()
        del fiber
        gate.leave.set()
        until(lambda: limiter.borrowed_tokens == 0)

    run(main)
    gc.collect()
    assert len(died) == 2
    assert threading.get_ident() not in died


def test_cancelled_before_the_call_the_function_never_runs(gate: Gate) -> None:
    def body() -> None:
        try:
            park()
        except Cancelled:
            to_thread(gate)

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()

    run(main)
    assert gate.calls == 0


def test_cancelled_while_it_waits_for_a_token_the_function_never_runs(gate: Gate) -> None:
    limiter = ThreadLimiter(1)

    def main() -> None:
        first = spawn(limiter.to_thread, gate)
        until(gate.begun.is_set)
        others = [spawn(limiter.to_thread, gate) for _ in range(3)]
        until(lambda: limiter.waiting == 3)
        for fiber in others[1], others[0], others[2]:
            fiber.cancel()
            fiber.join()
            assert fiber.cancelled()
        assert limiter.waiting == 0
        gate.leave.set()
        first.result()

    run(main)
    assert gate.calls == 1


def test_fiber_unwound_in_to_thread_abandons_it(gate: Gate) -> None:
    scheduler = Scheduler()
    fiber = scheduler.spawn(to_thread, gate)
    while not gate.begun.is_set():
        scheduler.run_once()
    scheduler.close()
    assert fiber.cancelled()
    gate.leave.set()
    assert gate.ended.wait(20)


def test_main_that_fails_waits_for_the_threads_of_others(gate: Gate) -> None:
    def main() -> None:
        spawn(to_thread, gate)
        until(gate.begun.is_set)
        threading.Timer(0.01, gate.leave.set).start()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)
    assert gate.ended.is_set()


# the limiter --------------------------------------------------------------------------------------


def test_limiter_bounds_how_many_run_at_a_time() -> None:
    limiter = ThreadLimiter(3)
    lock = threading.Lock()
    together = threading.Barrier(3)  # as many as there are tokens meet, each time
    now, most = 0, 0

    def function(n: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        together.wait(PATIENCE)
        with lock:
            now -= 1
        return n

    def main() -> list[int]:
        return [f.result() for f in [spawn(limiter.to_thread, function, n) for n in range(21)]]

    assert run(main) == list(range(21))
    assert most == 3
    assert (limiter.borrowed_tokens, limiter.available_tokens, limiter.waiting) == (0, 3, 0)


def test_limiter_serves_in_order() -> None:
    limiter, order = ThreadLimiter(1), list[int]()

    def main() -> None:
        for fiber in [spawn(limiter.to_thread, order.append, n) for n in range(50)]:
            fiber.join()

    run(main)
    assert order == list(range(50))


def test_limiter_that_grows_lets_waiting_ones_begin(gate: Gate) -> None:
    limiter = ThreadLimiter(1)
    second = Gate()

    def main() -> None:
        fibers = [spawn(limiter.to_thread, gate), spawn(limiter.to_thread, second)]
        until(gate.begun.is_set)
        until(lambda: limiter.waiting == 1)
        limiter.total_tokens = 2
        until(second.begun.is_set)
        limiter.total_tokens = 1
        assert limiter.borrowed_tokens == 2
        assert limiter.available_tokens == 0
        third = spawn(limiter.to_thread, gate)
        until(lambda: limiter.waiting == 1)
        gate.leave.set()
        fibers[0].result()
        assert limiter.waiting == 1  # one token was taken away
        second.leave.set()
        fibers[1].result()
        third.result()

    run(main)
    assert limiter.borrowed_tokens == 0


def test_limiter_serves_schedulers_of_several_threads() -> None:
    limiter = ThreadLimiter(2)
    results: list[int] = []

    def body(base: int) -> None:
        def main() -> None:
            fibers = [spawn(limiter.to_thread, pow, base, 2) for _ in range(30)]
            results.append(sum(fiber.result() for fiber in fibers))

        run(main)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 30, 120]
    assert limiter.borrowed_tokens == 0


def test_limiter_describes_itself() -> None:
    limiter = ThreadLimiter(5)
    assert repr(limiter) == "<ThreadLimiter, 0 of 5 tokens borrowed, 0 waiting>"
    assert limiter.abandon_on_cancel is False
    assert default_thread_limiter().total_tokens == 40


def test_limiter_can_be_collected() -> None:
    def main() -> weakref.ref[ThreadLimiter]:
        limiter = ThreadLimiter(1)
        limiter.to_thread(int)
        return weakref.ref(limiter)

    gone = run(main)
    gc.collect()
    assert gone() is None


# what it waits on, and deadlocks ------------------------------------------------------------------


def test_waiting_fiber_names_the_job(gate: Gate) -> None:
    limiter = ThreadLimiter(1)

    def main() -> None:
        fibers = [spawn(limiter.to_thread, gate) for _ in range(2)]
        until(gate.begun.is_set)
        until(lambda: limiter.waiting == 1)
        first, second = (fiber.waiting_on for fiber in fibers)
        assert (first.state, second.state) == ("running", "queued")
        assert first.function is gate
        assert first.limiter is limiter
        assert first.thread in {thread.ident for thread in threading.enumerate()}
        assert second.thread is None
        assert repr(gate) in repr(first)
        assert "running" in repr(first)
        gate.leave.set()

    run(main)


def test_idle_workers_do_not_hide_a_deadlock(child: Child) -> None:
    done = child(
        """
        import threading
        from pyfiber import *
        def main():
            to_thread(int)
            park()
        try:
            run(main)
        except DeadlockError as exc:
            print(len(threading.enumerate()), "threads:", str(exc).splitlines()[0])
        """
    )
    assert done.stdout.startswith("2 threads: 1 fiber waits"), "it waits until the worker ends"


def test_deadlock_is_seen_when_an_abandoned_function_returns(child: Child) -> None:
    """Until then its thread might have woken somebody."""
    done = child(
        """
        import threading
        from pyfiber import *
        from pyfiber.threads import ThreadLimiter
        limiter = ThreadLimiter(1, abandon_on_cancel=True)
        begun, leave = threading.Event(), threading.Event()
        def function():
            begun.set()
            leave.wait()
        class LastStep(Fiber):
            def run(self):
                leave.set()
                park()
        def main():
            fiber = spawn(limiter.to_thread, function)
            while not begun.is_set():
                sleep(0.001)
            fiber.cancel()
            fiber.join()
            LastStep().start()
            park()
        try:
            run(main)
        except DeadlockError as exc:
            print(str(exc).splitlines()[0])
        """
    )
    assert done.stdout.startswith("2 fibers wait")


# misuse -------------------------------------------------------------------------------------------


def test_to_thread_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError, match="needs a running scheduler"):
        to_thread(int)


def test_to_thread_without_a_function_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a function"):
        to_thread()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes a function, not 'int'"):
        run(lambda: to_thread(3))  # type: ignore[arg-type]


def test_to_thread_where_the_fiber_must_not_be_left_calls_nothing(gate: Gate) -> None:
    errors: list[FiberError] = []

    limiter = ThreadLimiter(1)

    def callback(_: object) -> None:
        try:
            limiter.to_thread(gate)
        except FiberError as exc:
            errors.append(exc)

    gate.leave.set()
    run(lambda: spawn(int).add_done_callback(callback))
    assert len(errors) == 1
    assert limiter.borrowed_tokens == 0
    run(lambda: limiter.to_thread(int))  # it would come after that one
    assert gate.calls == 0


@pytest.mark.parametrize("number", [0, -1])
def test_limiter_without_tokens_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        ThreadLimiter(number)
    limiter = ThreadLimiter(2)
    with pytest.raises(ValueError, match="at least 1"):
        limiter.total_tokens = number
    assert limiter.total_tokens == 2


def test_limiter_refuses_what_is_no_number() -> None:
    for thing in "3", 1.5, None:
        with pytest.raises(TypeError):
            ThreadLimiter(thing)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ThreadLimiter()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        del ThreadLimiter(1).total_tokens


def test_thread_that_cannot_be_started_is_an_error(child: Child) -> None:
    done = child(
        """
        import threading
        from pyfiber import *
        from pyfiber.threads import ThreadLimiter
        def refuse(self):
            raise RuntimeError("can't start new thread")
        threading.Thread.start, start = refuse, threading.Thread.start
        limiter = ThreadLimiter(1)
        def main():
            try:
                limiter.to_thread(int)
            except RuntimeError as exc:
                print(exc, limiter.borrowed_tokens)
            threading.Thread.start = start
            print(limiter.to_thread(int, 5))
        run(main)
        """
    )
    assert done.stdout == "can't start new thread 0\n5\n"


def test_thread_whose_start_was_an_error_finds_nothing_to_do() -> None:
    calls: list[int] = []
    begun: list[Callable[[], object]] = []

    def start(run_jobs: Callable[[], object]) -> None:
        begun.append(run_jobs)
        raise InterruptedError

    limiter = ThreadLimiter(1)
    limiter._own_thread(start)  # type: ignore[attr-defined]
    with pytest.raises(InterruptedError):
        run(limiter.to_thread, calls.append, 1)
    late = threading.Thread(target=begun[0], daemon=True)
    late.start()
    late.join(PATIENCE)
    assert calls == []
    assert limiter.borrowed_tokens == 0


# processes ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_fails_what_the_parents_threads_run(child: Child) -> None:
    done = child(
        """
        import os, threading, warnings
        from pyfiber import *
        from pyfiber.threads import ThreadLimiter
        warnings.simplefilter("ignore")
        limiter, leave = ThreadLimiter(1), threading.Event()
        def body():
            try:
                limiter.to_thread(leave.wait)
                return "result"
            except FiberError as exc:
                return str(exc)
        def main():
            fibers = [spawn(body) for _ in range(2)]
            while not limiter.waiting:
                sleep(0.001)
            pid = os.fork()
            if pid == 0:
                texts = [fiber.result() for fiber in fibers]
                ok = all("forked" in text for text in texts) and to_thread(int, 7) == 7
                os._exit(0 if ok and limiter.borrowed_tokens == 0 else 1)
            leave.set()
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            print([fiber.result() for fiber in fibers])
        run(main)
        """
    )
    assert done.stdout == "0\n['result', 'result']\n"


def test_interpreter_exits_with_idle_and_busy_workers(child: Child) -> None:
    done = child(
        """
        import threading
        from pyfiber import *
        from pyfiber.threads import ThreadLimiter
        limiter, begun = ThreadLimiter(2, abandon_on_cancel=True), threading.Event()
        def forever():
            begun.set()
            threading.Event().wait()
        def main():
            to_thread(int)
            fiber = spawn(limiter.to_thread, forever)
            while not begun.is_set():
                sleep(0.001)
            fiber.cancel()
        run(main)
        print("end")
        """
    )
    assert done.stdout == "end\n"


def test_current_fiber_of_a_worker_is_its_own() -> None:
    def main() -> None:
        mine = current()
        theirs = to_thread(current)
        assert theirs is not mine
        with pytest.raises(FiberError, match="another thread"):
            theirs.switch()

    run(main)


def test_result_that_comes_as_the_fiber_is_unwound_does_not_keep_it_going(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second Ctrl-C came between; FiberExit was lost, and what failed in the thread is told."""
    log: list[Any] = []
    one = ThreadLimiter(1)
    arrived = threading.Event()

    def waits(fn: Callable[[], object]) -> None:
        try:
            log.append(one.to_thread(fn))
        except BaseException as exc:
            log.append(type(exc))
            raise

    def main() -> None:
        for fn in (int, lambda: 1 / 0, arrived.set):
            spawn(waits, fn)
        yield_now()
        assert arrived.wait(PATIENCE)  # the others have sent their results
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        yield_now()

    with pytest.raises(KeyboardInterrupt):
        run(main)
    assert log == [FiberExit] * 3
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [
        ZeroDivisionError
    ]
