"""OneThread: functions that all run on one and the same thread."""

from __future__ import annotations

import contextvars
import gc
import os
import signal
import sqlite3
import threading
import time
import weakref
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelScope,
    Event,
    Fiber,
    FiberError,
    check_cancelled,
    current,
    from_thread,
    gather,
    move_on_after,
    run,
    spawn,
    to_thread,
    yield_now,
)
from pyfiber.threads import OneThread
from tests.conftest import Child
from tests.support.failing import Boom, fails
from tests.support.gil import DROPS_ARE_QUEUED, needs_gil
from tests.support.growth import BLOCKS_ARE_COUNTED, grows
from tests.support.subprocesses import run_script
from tests.support.threads import PATIENCE, in_thread

Log = list[Any]
here = threading.get_ident


class Gate:
    """A function for a thread that says when it has begun and waits until it may end."""

    def __init__(self) -> None:
        self.begun = Event()
        self.open = threading.Event()

    def __call__(self) -> str:
        self.begun.set()
        assert self.open.wait(60)
        return "through"


@pytest.fixture
def gate() -> Any:
    made = Gate()
    yield made
    made.open.set()


def test_calls_of_fibers_run_on_one_thread() -> None:
    def main() -> None:
        with OneThread() as one:
            fibers = [spawn(one.run, here) for _ in range(20)]
            idents = {fiber.result() for fiber in fibers}
            assert len(idents) == 1
            assert here() not in idents
            assert to_thread(here) not in idents, "nobody else uses it"

    run(main)


def test_sqlite_connection_stays_on_its_thread() -> None:
    def main() -> None:
        with OneThread("database") as one:
            db = one.run(sqlite3.connect, ":memory:")
            one.run(db.execute, "create table t (n)")
            gather(
                *[
                    lambda n=n: one.run(db.execute, "insert into t values (?)", (n,))
                    for n in range(9)
                ]
            )
            rows = one.run(lambda: db.execute("select sum(n) from t").fetchone())
            one.run(db.close)
        assert rows == (36,)

    run(main)


def test_calls_run_one_at_a_time_in_the_order_they_came(gate: Gate) -> None:
    log: Log = []

    def main() -> None:
        with OneThread() as one:
            first = spawn(one.run, gate)
            gate.begun.wait()
            rest = [spawn(one.run, log.append, n) for n in range(5)]
            yield_now()
            assert log == []
            gate.open.set()
            assert first.result() == "through"
            for fiber in rest:
                fiber.join()

    run(main)
    assert log == [0, 1, 2, 3, 4]


def test_fibers_run_while_one_waits(gate: Gate) -> None:
    def main() -> None:
        with OneThread() as one:
            fiber = spawn(one.run, gate)
            gate.begun.wait()
            yield_now()
            assert not fiber.done()
            gate.open.set()
            assert fiber.result() == "through"

    run(main)


def test_failure_comes_out_with_its_traceback() -> None:
    def main() -> None:
        with OneThread() as one:
            with pytest.raises(Boom) as caught:
                one.run(fails, Boom("told"))
            assert caught.traceback[-1].name == "fails"
            assert one.run(int) == 0, "it goes on"

    run(main)


def test_calls_see_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def main() -> None:
        variable.set("caller's")
        with OneThread() as one:
            assert one.run(variable.get) == "caller's"

    run(main)


def test_thread_has_the_name_and_is_an_ordinary_one() -> None:
    with OneThread("database") as one:
        assert one.name == "database"
        assert one.run(threading.current_thread).name == "database"
        assert repr(one) == "<pyfiber.threads.OneThread 'database'>"
    assert repr(one) == "<pyfiber.threads.OneThread 'database', closed>"
    first, second = OneThread(), OneThread()
    assert first.name != second.name
    assert first.name.startswith("pyfiber-thread-")


def test_plain_threads_may_call() -> None:
    with OneThread() as one:
        assert one.run(here) == in_thread(lambda: one.run(here)) == run(one.run, here)
        assert one.run(here) != here()
        with pytest.raises(Boom):
            one.run(fails, Boom())


def test_runs_of_several_threads_may_call() -> None:
    with OneThread() as one:

        def main() -> set[int]:
            return set(gather(*[lambda: one.run(here)] * 10))

        results: Log = []
        threads = [threading.Thread(target=lambda: results.append(run(main))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set.union(*results)) == 1


def test_call_on_the_thread_itself_is_just_called() -> None:
    with OneThread() as one:
        assert one.run(lambda: one.run(here)) == one.run(here)
        assert one.run(run, one.run, here) == one.run(here), "also in a run there"


def test_from_thread_works_there() -> None:
    def main() -> None:
        with OneThread() as one:
            assert one.run(lambda: from_thread(lambda: (yield_now(), here())[1])) == here()

    run(main)


# Cancellation -------------------------------------------------------------------------------------


def test_cancelled_while_it_waits_for_its_turn_never_runs(gate: Gate) -> None:
    log: Log = []

    def main() -> None:
        with OneThread() as one:
            first = spawn(one.run, gate)
            gate.begun.wait()
            with move_on_after(0.01) as scope:
                one.run(log.append, "never")
            assert scope.cancelled()
            gate.open.set()
            assert first.result() == "through"

    run(main)
    assert log == []


def test_cancelled_while_it_runs_is_waited_for(gate: Gate) -> None:
    def main() -> None:
        with OneThread() as one, CancelScope() as scope:

            def cancel() -> None:
                gate.begun.wait()
                scope.cancel()
                gate.open.set()

            spawn(cancel)
            assert one.run(gate) == "through"
            with pytest.raises(Cancelled):
                check_cancelled()

    run(main)


def test_cancelled_while_it_runs_with_abandon_raises_at_once(gate: Gate) -> None:
    def main() -> None:
        one = OneThread(abandon_on_cancel=True)
        with CancelScope() as scope:
            spawn(lambda: (gate.begun.wait(), scope.cancel()))
            one.run(gate)
        assert scope.cancelled()
        assert not gate.open.is_set()
        gate.open.set()
        one.close()

    run(main)


# close --------------------------------------------------------------------------------------------


def alive(one: OneThread) -> bool:
    return one.name in {thread.name for thread in threading.enumerate()}


def test_thread_starts_with_the_first_call_and_ends_with_close() -> None:
    one = OneThread("short")
    assert not alive(one)
    one.run(int)
    assert alive(one)
    one.close()
    assert one.closed
    assert not alive(one)
    one.close()
    OneThread().close()


def test_call_after_close_is_refused() -> None:
    one = OneThread("done")
    one.run(int)
    one.close()
    for call in (lambda: one.run(int), lambda: run(one.run, int)):
        with pytest.raises(FiberError, match=r"'done', closed.*another OneThread"):
            call()


def test_call_that_passed_the_closing_of_another_thread_is_refused() -> None:
    one = OneThread()
    one.run(int)
    one.close()
    one._closed = False  # as it was when the other thread looked
    with pytest.raises(FiberError, match="closed"):
        one.run(int)


def test_call_that_meets_the_close_of_one_never_started_starts_no_thread() -> None:
    """It has seen that the OneThread is open; then another thread closes it."""
    thread = OneThread()
    call = thread._limiter.to_thread
    thread.close()
    with pytest.raises(FiberError, match="takes no more calls"):
        run(call, int)
    assert thread._threads == []


def test_close_waits_for_what_came_before(gate: Gate) -> None:
    log: Log = []

    def main() -> None:
        one = OneThread()
        fibers = [spawn(one.run, gate), spawn(one.run, log.append, "second")]
        gate.begun.wait()
        closer = spawn(one.close)
        yield_now()
        with pytest.raises(FiberError, match="no more calls"):
            one.run(int)
        assert not closer.done()
        gate.open.set()
        closer.join()
        assert log == ["second"]
        assert [fiber.done() for fiber in fibers] == [True, True]
        assert not alive(one)

    run(main)


def test_close_waits_although_it_is_cancelled(gate: Gate) -> None:
    def main() -> None:
        one = OneThread()
        fiber = spawn(one.run, gate)
        gate.begun.wait()
        with CancelScope() as scope:
            spawn(lambda: (scope.cancel(), gate.open.set()))
            one.close()
        assert not alive(one)
        assert fiber.result() == "through"

    run(main)


def test_close_on_the_thread_itself_is_refused() -> None:
    with OneThread() as one, pytest.raises(FiberError, match="wait for it"):
        one.run(one.close)


def test_dropped_without_close_ends_its_thread() -> None:
    one = OneThread("dropped")
    thread = one.run(threading.current_thread)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert gone() is None
    thread.join(20)
    assert not thread.is_alive()


def test_dropped_by_its_own_last_call_ends_its_thread() -> None:
    def main() -> threading.Thread:
        box = [OneThread()]
        fiber = spawn(box[0].run, lambda: (box.clear(), threading.current_thread())[1])
        return fiber.result()

    thread = run(main)
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()


@needs_gil(DROPS_ARE_QUEUED)
def test_dropped_during_a_call_that_outlives_its_run_ends_its_thread(gate: Gate) -> None:
    """Nobody is left to tell the thread: it drops the last reference itself, before it is idle."""
    threads: Log = []

    def body() -> None:
        threads.append(threading.current_thread())
        gate()

    def main() -> None:
        one = OneThread(abandon_on_cancel=True)
        with CancelScope() as scope:
            spawn(lambda: (gate.begun.wait(), scope.cancel()))
            one.run(body)
        assert scope.cancelled()

    run(main)
    gc.collect()
    gate.open.set()
    threads[0].join(20)
    assert not threads[0].is_alive()


def test_many_in_a_row_leave_no_thread() -> None:
    many = [OneThread() for _ in range(50)]
    for one in many:
        with one:
            assert one.run(int) == 0
    assert not any(map(alive, many))


def test_thread_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    one = OneThread()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            run(one.run, int)
    assert one.run(int) == 0
    one.close()


# Its neighbours -----------------------------------------------------------------------------------


def test_idle_thread_does_not_hide_a_deadlock(child: Child) -> None:
    done = child(
        """
        from pyfiber import DeadlockError, park, run
        from pyfiber.threads import OneThread

        def main():
            one = OneThread()
            one.run(int)
            try:
                park()
            finally:
                one.close()

        try:
            run(main)
        except DeadlockError as error:
            print("seen")
        """
    )
    assert done.stdout == "seen\n"


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "after another has ended"])
def test_thread_in_a_later_call_counts_as_one_that_may_wake_a_fiber(others: int) -> None:
    """It was idle before, and nobody waits for the call: it was abandoned."""
    done = run_script(
        f"""
        import threading, time
        from pyfiber import *
        from pyfiber.threads import OneThread
        def wakes(fiber, begun):
            begun.set()
            while fiber.waiting_on != "park()":
                time.sleep(0.001)
                assert not fiber.done()
            fiber.unpark("awake")
        def main():
            one = OneThread(abandon_on_cancel=True)
            one.run(int)
            one.run(int)
            for _ in range({others}):
                with OneThread() as other:
                    other.run(int)
            begun = Event()
            with CancelScope() as scope:
                spawn(lambda: (begun.wait(), scope.cancel()))
                one.run(wakes, current(), begun)
            print(park())
            one.close()
        run(main)
        """
    )
    assert done.stdout == "awake\n", done.stderr


def test_left_open_at_exit_is_quiet(child: Child) -> None:
    done = child(
        """
        from pyfiber import run
        from pyfiber.threads import OneThread
        kept = OneThread()
        print(run(kept.run, int), kept.run(int))
        """
    )
    assert done.stdout == "0 0\n"


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
def test_idle_thread_outlives_signals() -> None:
    before = signal.signal(signal.SIGUSR1, lambda *ignored: None)
    try:
        with OneThread() as one:
            thread = one.run(threading.current_thread)
            for _ in range(20):  # at least the later ones meet it in its wait
                time.sleep(0.002)
                assert thread.is_alive()
                assert thread.ident is not None
                signal.pthread_kill(thread.ident, signal.SIGUSR1)
            assert one.run(threading.current_thread) is thread
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_is_told(child: Child) -> None:
    done = child(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from pyfiber import FiberError, run
        from pyfiber.threads import OneThread

        def main():
            one = OneThread()
            one.run(int)
            pid = os.fork()
            if pid == 0:
                try:
                    one.run(int)
                except FiberError as error:
                    print(error, flush=True)
                one.close()
                with OneThread() as other:
                    print(other.run(int), flush=True)
                os._exit(0)
            os.waitpid(pid, 0)
            print(one.run(int))
            one.close()

        run(main)
        """
    )
    told, *rest = done.stdout.splitlines()
    assert "forked" in told
    assert "another OneThread" in told
    assert rest == ["0", "0"]


@pytest.mark.parametrize("fibers", [3, 300])
def test_calls_from_many_fibers_and_threads_lose_nothing(fibers: int) -> None:
    counted: Log = []

    def main(one: OneThread) -> None:
        gather(*[lambda n=n: one.run(counted.append, n) for n in range(fibers)])

    with OneThread() as one:
        threads = [threading.Thread(target=run, args=(main, one)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(counted) == sorted([*range(fibers)] * 3)


def test_deadlock_while_the_thread_is_started_is_noticed() -> None:
    """No thread has the call yet that could end the wait of a trace function in there."""
    done = run_script(
        """
        import sys
        from pyfiber import *
        from pyfiber.threads import OneThread
        def parks(frame, event, arg):
            if frame.f_code.co_name == "_start_own":
                sys.settrace(None)
                park()
        def main():
            sys.settrace(parks)
            OneThread().run(int)
        try:
            run(main)
        except DeadlockError as exc:
            print(exc)
        """
    )
    assert "waits in park()" in done.stdout


@pytest.mark.skipif(not BLOCKS_ARE_COUNTED, reason="PYTHONMALLOC is malloc: nothing is counted")
def test_threads_that_have_ended_leave_nothing_behind() -> None:
    """Each left an object, as did each idle worker of to_thread() that ended."""

    def act() -> None:
        with OneThread() as one:
            one.run(int)
            one.run(int)  # it has waited for that

    assert not run(grows, act, 100)


@needs_gil(DROPS_ARE_QUEUED)
def test_fiber_left_by_a_call_and_dropped_elsewhere_is_ended_by_the_next_call() -> None:
    """A thread that only runs functions never switches: nothing else would end it."""
    log: list[Any] = []
    left: list[Fiber[None]] = []

    def leaves() -> None:
        back = current().switch

        def body() -> None:
            try:
                back()
            finally:
                log.append(here())

        left.append(Fiber(body))
        left[0].switch()

    def main() -> None:
        with OneThread() as one:
            one.run(leaves)
            left.clear()
            assert not log
            assert one.run(log.copy) == [one.run(here)]

    run(main)


def test_runs_of_several_threads_share_a_thread_that_never_ends_early() -> None:
    """A wake-up left from an earlier call once ended it, without a GIL: the next call was lost."""
    one, results = OneThread(), []

    def main() -> None:
        for number in range(500):
            results.append(one.run(int, number) == number)

    threads = [threading.Thread(target=run, args=(main,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    assert results == [True] * 2000
    one.close()
