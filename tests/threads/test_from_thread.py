"""`from_thread()` and Portal: calls from other threads into a running scheduler."""

from __future__ import annotations

import contextvars
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelScope,
    Fiber,
    FiberCancelled,
    FiberError,
    Scheduler,
    check_cancelled,
    current,
    current_scheduler,
    from_thread,
    move_on_after,
    now,
    park,
    run,
    shield,
    sleep,
    spawn,
    testing,
    to_thread,
    yield_now,
)
from pyfiber.threads import Portal, ThreadLimiter
from tests.conftest import Child
from tests.support.subprocesses import run_script


class Caller:
    """A plain thread that calls one function; `outcome` is what came of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function
        self.outcome: Any = None
        self.thread = threading.Thread(target=self.live)
        self.thread.start()

    def live(self) -> None:
        try:
            self.outcome = self.function()
        except BaseException as exc:
            self.outcome = exc

    def join(self) -> Any:
        self.thread.join(20)
        assert not self.thread.is_alive()
        return self.outcome


def test_from_thread_runs_in_a_fiber_of_the_loop() -> None:
    here = threading.get_ident()

    def back(x: int, *, y: int) -> tuple[int, int, bool]:
        sleep(0)
        return x + y, threading.get_ident(), current() is main_fiber[0]

    main_fiber: list[Fiber[Any]] = []

    def main() -> Any:
        main_fiber.append(current())
        return to_thread(lambda: from_thread(back, 1, y=2))

    assert run(main) == (3, here, False)


def test_from_thread_raises_what_the_function_raises() -> None:
    def fails() -> None:
        raise LookupError("in the loop")

    def main() -> None:
        with pytest.raises(LookupError, match="in the loop"):
            to_thread(from_thread, fails)

    run(main)


def test_from_thread_sees_the_threads_context() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    def function() -> int:
        variable.set(5)
        return from_thread(variable.get)

    assert run(lambda: to_thread(function)) == 5


def test_threads_and_fibers_call_each_other_deeply() -> None:
    def down(n: int) -> int:
        return 0 if n == 0 else 1 + to_thread(lambda: from_thread(down, n - 1))

    assert run(down, 10) == 10


def test_from_thread_in_a_fiber_is_refused() -> None:
    with pytest.raises(FiberError, match="is for other threads"):
        run(lambda: from_thread(int))


def test_from_thread_elsewhere_is_refused() -> None:
    with pytest.raises(FiberError, match="give other threads a Portal"):
        from_thread(int)
    assert isinstance(Caller(lambda: from_thread(int)).join(), FiberError)


def test_from_thread_cancelled_fiber_is_an_error_in_the_thread() -> None:
    def cancel_me() -> None:
        current().cancel("not now")
        park()

    def main() -> None:
        with pytest.raises(FiberCancelled, match="not now"):
            to_thread(from_thread, cancel_me)

    run(main)


@pytest.mark.parametrize("by", ["scope", "fiber"])
def test_cancelling_the_caller_reaches_what_its_thread_has_called(by: str) -> None:
    log: list[Any] = []

    def called() -> None:
        try:
            fibers.append(current())
            park()
        except Cancelled as exc:
            log.append(("called", exc.reason))
            raise

    def in_thread() -> None:
        try:
            from_thread(called)
        finally:
            log.append("thread")

    def caller() -> None:
        with CancelScope() as scope:
            scopes.append(scope)
            to_thread(in_thread)
        log.append(("caught", scope.cancelled()))
        check_cancelled()

    def main() -> None:
        fiber = spawn(caller)
        while not fibers:
            sleep(0.001)
        assert (scopes[0] if by == "scope" else fiber).cancel("enough")
        fiber.join()
        assert fiber.cancelled() is (by == "fiber")

    fibers: list[Any] = []
    scopes: list[CancelScope] = []
    run(main)
    assert log[:2] == [("called", "enough"), "thread"]
    assert log[2:] == ([("caught", True)] if by == "scope" else [])


def test_caller_cancelled_before_its_thread_calls() -> None:
    """The function never runs; a thread can ask so whether it is still wanted."""
    log: list[Any] = []
    go = threading.Event()

    def in_thread() -> str:
        go.wait()
        for _ in range(2):
            try:
                from_thread(log.append, "it ran")
            except Cancelled as exc:
                log.append(exc.reason)
        return "result"

    def main() -> None:
        with CancelScope() as scope:
            fiber = current()

            def cancel() -> None:
                scope.cancel("enough")
                yield_now()
                go.set()

            spawn(cancel)
            assert to_thread(in_thread) == "result"
            assert current() is fiber
            yield_now()
        assert scope.cancelled()

    run(main)
    assert log == ["enough", "enough"]


def test_error_of_the_thread_beats_the_cancellation_of_its_caller() -> None:
    def in_thread() -> None:
        try:
            from_thread(park)
        except Cancelled:
            raise ValueError("while it unwinds") from None

    def main() -> None:
        with move_on_after(0.01), pytest.raises(ValueError, match="while it unwinds"):
            to_thread(in_thread)

    run(main)


def test_called_back_fiber_that_shields_is_waited_for() -> None:
    def main() -> None:
        def called() -> str:
            with shield():
                scope.cancel()
                sleep(0.03)
            return "done"

        results = []
        with CancelScope() as scope:
            results.append(to_thread(from_thread, called))
            yield_now()
        assert results == ["done"]
        assert scope.cancelled()

    run(main)


def test_from_thread_after_the_run_is_refused() -> None:
    from pyfiber.threads import ThreadLimiter

    begun, leave, over = threading.Event(), threading.Event(), threading.Event()
    caught: list[BaseException] = []

    def function() -> None:
        begun.set()
        leave.wait(20)
        try:
            from_thread(int)
        except BaseException as exc:
            caught.append(exc)
        over.set()

    def main() -> None:
        fiber = spawn(ThreadLimiter(1, abandon_on_cancel=True).to_thread, function)
        while not begun.is_set():
            sleep(0.001)
        fiber.cancel()

    run(main)
    leave.set()
    assert over.wait(20)
    (exc,) = caught
    assert isinstance(exc, FiberError)
    assert "closed" in str(exc)


# The run goes on as if a thread that waits for it were not there ----------------------------------


def portal_call(function: Callable[[], Any]) -> Any:
    return portals[-1].call(function)


portals: list[Portal] = []


@pytest.mark.parametrize("call", [from_thread, portal_call])
def test_virtual_time_goes_on_while_a_thread_waits_for_its_run(call: Callable[..., Any]) -> None:
    def main() -> float:
        portals[:] = [Portal()]
        spawn(sleep, 7200)
        to_thread(call, lambda: sleep(3600))
        return now()

    assert testing.run(main, threads=True) == 3600


def test_virtual_time_stands_while_a_thread_works_after_its_call() -> None:
    def main() -> float:
        late = spawn(sleep, 3600)
        to_thread(in_thread)
        assert not late.done()
        return now()

    def in_thread() -> None:
        from_thread(sleep, 5)
        time.sleep(0.02)
        from_thread(sleep, 5)
        time.sleep(0.02)

    assert testing.run(main, threads=True) == 10


@pytest.mark.parametrize("runs", ["run(main)", "testing.run(main, threads=True)"])
@pytest.mark.parametrize("call", ["from_thread", "Portal().call"])
def test_deadlock_of_a_thread_that_waits_for_its_run(call: str, runs: str) -> None:
    """Where no thread of the test runner could wake the fiber."""
    done = run_script(
        f"""
        from pyfiber import *
        from pyfiber import testing
        from pyfiber.threads import Portal
        def main():
            to_thread({call}, park)
        try:
            {runs}
        except DeadlockError as exc:
            print(exc)
        """
    )
    assert "waits in park()" in done.stdout


def test_abandoned_thread_that_waits_for_its_run_is_not_waited_for() -> None:
    """What it has lent and its caller has given up does not come back."""
    limiter = ThreadLimiter(1, abandon_on_cancel=True)
    ended = threading.Event()

    def in_thread() -> None:
        from_thread(called)
        ended.set()

    def called() -> None:
        fiber.cancel()
        fiber.join()

    def caller() -> None:
        limiter.to_thread(in_thread)

    def main() -> None:
        nonlocal fiber
        fiber = spawn(caller)
        fiber.join()
        assert current_scheduler().stats()["fibers"] >= 1

    fiber: Fiber[Any]
    run(main)
    assert ended.wait(20)


# Portal -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", ["here", "fiber", "scheduler"])
def test_portal_calls_from_a_plain_thread(of: str) -> None:
    scheduler = Scheduler()
    here = threading.get_ident()

    def main() -> Any:
        portal = {"here": Portal, "fiber": lambda: Portal(current())}.get(
            of, lambda: Portal(scheduler)
        )()
        caller = Caller(lambda: portal.call(threading.get_ident))
        to_thread(caller.thread.join)
        return caller.outcome

    assert scheduler.run(main) == here
    scheduler.close()


def test_portal_spawn_does_not_wait() -> None:
    def main() -> None:
        portal = Portal()
        fiber = Caller(lambda: portal.spawn(pow, 2, 5)).join()
        assert fiber.result() == 32

    run(main)


def test_portal_call_ends_though_a_trace_function_raises_in_its_callback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def raises(frame: FrameType, event: str, arg: object) -> None:
        if frame.f_globals["__name__"] == "pyfiber._threads":
            raise ZeroDivisionError

    def main() -> None:
        portal = Portal()
        before = sys.gettrace()
        sys.settrace(raises)
        try:
            assert run_in_new_thread(lambda: portal.call(lambda: 5)) == 5
        finally:
            sys.settrace(before)

    def run_in_new_thread(call: Callable[[], int]) -> int:
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
        thread.start()
        with move_on_after(20):
            while thread.is_alive():
                sleep(0.001)
        return results[0]

    run(main)
    assert "ZeroDivisionError" in caplog.text


def test_portal_call_on_the_loops_own_thread_is_refused() -> None:
    def main() -> None:
        with pytest.raises(FiberError, match="own thread"):
            Portal().call(int)
        assert Portal().spawn(int, 4).result() == 4

    run(main)
    scheduler = Scheduler()
    with pytest.raises(FiberError, match="own thread"):
        Portal(scheduler).call(int)
    scheduler.close()


def test_portal_to_a_closed_scheduler_is_refused() -> None:
    portals: list[Portal] = []
    run(lambda: portals.append(Portal()))
    with pytest.raises(FiberError, match="closed"):
        portals[0].call(int)
    with pytest.raises(FiberError, match="closed"):
        portals[0].spawn(int)


def test_portal_call_ends_when_the_scheduler_closes_before_its_turn() -> None:
    scheduler = Scheduler()
    portal = Portal(scheduler)
    started = threading.Event()

    def call() -> None:
        fiber = portal.spawn(int)
        fiber.add_done_callback(lambda _: started.set())

    Caller(call).join()
    caller = Caller(lambda: portal.call(int))
    while scheduler.next_timeout() != 0.0 or scheduler.stats()["messages"]:
        pass
    scheduler.close()
    assert started.is_set()
    assert isinstance(caller.join(), FiberCancelled | FiberError)


def test_portal_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError, match="no scheduler to lead to"):
        Portal()
    with pytest.raises(FiberError, match="no scheduler to lead to"):
        Portal(Fiber(int))
    for thing in 3, "fiber", threading.current_thread():
        with pytest.raises(TypeError, match="takes a fiber or a Scheduler"):
            Portal(thing)  # type: ignore[arg-type]


def test_portal_refuses_what_is_no_function() -> None:
    def main() -> None:
        for method in Portal().call, Portal().spawn:
            with pytest.raises(TypeError, match="function"):
                to_thread(method, 3)  # type: ignore[arg-type]

    run(main)


def test_interrupted_call_cancels_its_fiber(child: Child) -> None:
    """The main thread waits for a loop on another one when Ctrl-C comes."""
    if not hasattr(signal, "pthread_kill"):
        pytest.skip("needs pthread_kill")
    done = child(
        """
        import signal, threading
        from pyfiber import *
        from pyfiber.threads import Portal
        scheduler, waiting, log = [], threading.Event(), []
        def main():
            scheduler.append(Portal())
            waiting.set()
            park()
        def body():
            sleep(0.1)  # a signal just before a lock blocks does not interrupt it
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            try:
                park()
            except Cancelled as exc:
                log.append("cancelled")
                fiber.unpark()
                raise
        def loop():
            global fiber
            def main():
                global fiber
                fiber = current()
                scheduler.append(Portal())
                waiting.set()
                park()
            run(main)
        thread = threading.Thread(target=loop)
        thread.start()
        waiting.wait()
        try:
            scheduler[0].call(body)
        except KeyboardInterrupt:
            log.append("KeyboardInterrupt")
        thread.join()
        print(sorted(log))
        """
    )
    assert done.stdout == "['KeyboardInterrupt', 'cancelled']\n"
