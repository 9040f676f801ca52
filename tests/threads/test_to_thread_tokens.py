"""ThreadLimiter when a thread cannot be started, or something comes in between: no token and no
job is lost."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import Fiber, FiberError, current, run, spawn, yield_now
from pyfiber.threads import ThreadLimiter
from tests.conftest import Child
from tests.support.gil import DROPS_ARE_QUEUED, needs_gil
from tests.threads.test_to_thread import Gate, until

START = threading.Thread.start


class Starts:
    """threading.Thread.start, with something before and after it for the first worker."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        before: Callable[[], object] = int,
        after: Callable[[], object] = int,
    ) -> None:
        self.before, self.after = before, after
        self.count = 0
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self.start(thread))

    def start(self, thread: threading.Thread) -> None:
        if not thread.name.startswith("pyfiber-worker"):
            START(thread)
            return
        self.count += 1
        if self.count > 1:
            START(thread)
            return
        self.before()
        START(thread)
        self.after()


def occupy_workers(monkeypatch: pytest.MonkeyPatch, busy: int = 0) -> Gate:
    """In a run: whatever worker is idle gets something to do, so that the next one is new.

    ``busy`` have something already.  Without a GIL one whose result has arrived may not be idle
    yet.
    """
    gate, limiter, starts = Gate(), ThreadLimiter(100), Starts(monkeypatch)
    count = 0
    while not starts.count or count + busy < workers():
        count += 1
        spawn(limiter.to_thread, gate)
        until(lambda: gate.calls >= count)  # noqa: B023
    return gate


def workers() -> int:
    return sum(thread.name.startswith("pyfiber-worker") for thread in threading.enumerate())


@pytest.fixture
def gate() -> Any:
    gate = Gate()
    yield gate
    gate.leave.set()


def refuse() -> None:
    raise RuntimeError("can't start new thread")


def test_token_of_a_thread_that_cannot_be_started_goes_to_who_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others came to wait for it while the start was tried; nobody else would ever wake them."""

    def main() -> None:
        busy = occupy_workers(monkeypatch)
        limiter = ThreadLimiter(1)
        waiting: list[Fiber[int]] = []

        def others_come() -> None:
            waiting.extend(spawn(limiter.to_thread, int, str(i)) for i in range(3))
            yield_now()
            assert limiter.waiting == 3
            refuse()

        Starts(monkeypatch, before=others_come)
        with pytest.raises(RuntimeError, match="can't start"):
            limiter.to_thread(int)
        assert [fiber.result() for fiber in waiting] == [0, 1, 2]
        until(lambda: limiter.borrowed_tokens == 0)
        busy.leave.set()

    run(main)


def test_interrupt_while_a_token_is_passed_on_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes while the thread of another is started: the caller hears its own failure."""
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_type))

    def main() -> None:
        busy = occupy_workers(monkeypatch)
        limiter = ThreadLimiter(1)
        waiting: list[Fiber[int]] = []

        def one_comes() -> None:
            waiting.append(spawn(limiter.to_thread, int, "7"))
            yield_now()
            Starts(monkeypatch, after=interrupt)  # for the next start
            refuse()

        Starts(monkeypatch, before=one_comes)
        with pytest.raises(RuntimeError, match="can't start"):
            limiter.to_thread(int)
        assert told == [Interrupt]
        assert waiting[0].result() == 7
        busy.leave.set()

    run(main)


def test_limiter_that_grows_fails_the_job_whose_thread_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    def main() -> None:
        limiter = ThreadLimiter(1)
        fibers = [spawn(limiter.to_thread, gate)]
        until(gate.begun.is_set)
        busy = occupy_workers(monkeypatch, 1)
        fibers += [spawn(limiter.to_thread, int, str(i)) for i in range(2)]
        until(lambda: limiter.waiting == 2)
        Starts(monkeypatch, before=refuse)
        limiter.total_tokens = 2
        with pytest.raises(RuntimeError, match="can't start"):
            fibers[1].result()
        assert fibers[2].result() == 1
        assert limiter.borrowed_tokens == 1
        gate.leave.set()
        busy.leave.set()
        fibers[0].result()

    run(main)


class Interrupt(Exception):
    """What a signal handler raises."""


def interrupt() -> None:
    raise Interrupt


def test_to_thread_interrupted_when_its_thread_has_begun_keeps_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal handler may raise in Thread.start(), after the thread has taken the job."""

    def main() -> None:
        busy = occupy_workers(monkeypatch)
        limiter = ThreadLimiter(1)
        job = Gate()

        def after() -> None:
            assert job.begun.wait(20)
            interrupt()

        Starts(monkeypatch, after=after)
        with pytest.raises(Interrupt):
            limiter.to_thread(job)
        assert limiter.borrowed_tokens == 1
        waiting = spawn(limiter.to_thread, int, "7")
        until(lambda: limiter.waiting == 1)
        job.leave.set()
        assert waiting.result() == 7
        until(lambda: limiter.borrowed_tokens == 0)
        busy.leave.set()

    run(main)


def test_to_thread_interrupted_before_its_thread_has_begun_calls_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread comes too late for the job: its token has gone to somebody else."""

    def main() -> None:
        busy = occupy_workers(monkeypatch)
        limiter = ThreadLimiter(1)
        late: list[threading.Thread] = []
        calls: list[str] = []

        def start(thread: threading.Thread) -> None:
            late.append(thread)
            interrupt()

        monkeypatch.setattr(threading.Thread, "start", start)
        with pytest.raises(Interrupt):
            limiter.to_thread(calls.append, "called")
        monkeypatch.setattr(threading.Thread, "start", START)
        assert limiter.borrowed_tokens == 0
        late[0].start()
        late[0].join()
        assert limiter.to_thread(int, "3") == 3
        assert calls == []
        busy.leave.set()

    run(main)


def test_limiter_that_grows_interrupted_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    def main() -> None:
        limiter = ThreadLimiter(1)
        job = Gate()
        fibers = [spawn(limiter.to_thread, gate)]
        until(gate.begun.is_set)
        busy = occupy_workers(monkeypatch, 1)
        fibers += [spawn(limiter.to_thread, job), spawn(limiter.to_thread, int)]
        until(lambda: limiter.waiting == 2)

        def after() -> None:
            assert job.begun.wait(20)
            interrupt()

        Starts(monkeypatch, after=after)
        with pytest.raises(Interrupt):
            limiter.total_tokens = 3
        assert fibers[2].result() == 0
        job.leave.set()
        gate.leave.set()
        busy.leave.set()
        for fiber in fibers:
            fiber.result()
        until(lambda: limiter.borrowed_tokens == 0)

    run(main)


@needs_gil(DROPS_ARE_QUEUED)
def test_job_whose_turn_has_come_is_seen_to_its_end_though_it_is_cancelled_then() -> None:
    """Between two jobs the worker drops the first one, which may run code if its run is over."""
    limiter, end = ThreadLimiter(1, abandon_on_cancel=True), Gate()
    calls: list[str] = []

    class Last(Gate):
        def __del__(self) -> None:
            end()

    def abandons(job: Gate) -> None:
        fiber = spawn(limiter.to_thread, job)
        until(job.begun.is_set)
        fiber.cancel()

    def main(leave: threading.Event) -> None:
        fiber = spawn(limiter.to_thread, calls.append, "called")
        until(lambda: limiter.waiting == 1)
        leave.set()
        until(end.begun.is_set)
        job = fiber.waiting_on
        assert (limiter.waiting, job.state) == (0, "running")
        end.leave.set()
        fiber.result()

    job = Last()
    leave = job.leave
    run(abandons, job)
    del job
    run(main, leave)
    assert calls == ["called"]


def test_to_thread_whose_start_leaves_the_run_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Starting a thread runs code, which a tracer, say, may see and switch in."""
    limiter, root = ThreadLimiter(1), current()

    def main() -> Fiber[None]:
        busy = occupy_workers(monkeypatch)
        way_out = current()
        fiber: Fiber[None] = Fiber(limiter.to_thread, (int,))
        fiber.parent = root
        Starts(monkeypatch, after=way_out.switch)
        fiber.switch()
        busy.leave.set()
        return fiber

    fiber = run(main)
    with pytest.raises(FiberError, match="the run was left"):
        fiber.switch()


@pytest.mark.parametrize("before", [0, 2])
def test_call_behind_one_that_was_withdrawn_is_made(gate: Gate, before: int) -> None:
    def main() -> None:
        limiter = ThreadLimiter(1)
        first = spawn(limiter.to_thread, gate)
        until(gate.begun.is_set)
        fibers = [spawn(limiter.to_thread, int, str(i)) for i in range(before)]
        cancelled = spawn(limiter.to_thread, int)
        until(lambda: limiter.waiting == before + 1)
        cancelled.cancel()
        cancelled.join()
        assert limiter.waiting == before
        fibers += [spawn(limiter.to_thread, int, str(before + i)) for i in range(2)]
        until(lambda: limiter.waiting == before + 2)
        gate.leave.set()
        first.result()
        assert [fiber.result() for fiber in fibers] == list(range(before + 2))

    run(main)


def test_call_that_was_withdrawn_does_not_hide_a_deadlock(child: Child) -> None:
    """The run counts on being woken by a call, but not by one that nobody will ever make."""
    done = child(
        """
        import threading
        from pyfiber import *
        from pyfiber.threads import ThreadLimiter
        limiter, leave = ThreadLimiter(1), threading.Event()
        def refuse(self):
            raise RuntimeError("can't start new thread")
        def main():
            threading.Thread.start, start = refuse, threading.Thread.start
            try:
                limiter.to_thread(int)
            except RuntimeError as exc:
                print(exc)
            threading.Thread.start = start
            fibers = [spawn(limiter.to_thread, leave.wait) for _ in range(2)]
            while not limiter.waiting:
                sleep(0.001)
            fibers[1].cancel()
            fibers[1].join()
            leave.set()
            fibers[0].result()
            park()
        try:
            run(main)
        except DeadlockError:
            print("seen")
        """
    )
    assert done.stdout == "can't start new thread\nseen\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@needs_gil(DROPS_ARE_QUEUED)
def test_fork_while_the_context_of_a_job_dies_fails_the_job(child: Child) -> None:
    done = child(
        """
        import contextvars, os, threading, warnings
        from pyfiber import *
        warnings.simplefilter("ignore")
        dying, leave = threading.Event(), threading.Event()
        held = contextvars.ContextVar("held")
        class Last:
            def __del__(self):
                dying.set()
                leave.wait(20)
        def body():
            try:
                to_thread(lambda: held.set(Last()) and None)
                return "result"
            except FiberError as exc:
                return str(exc)
        def main():
            fiber = spawn(body)
            while not dying.is_set():
                sleep(0.001)
            pid = os.fork()
            if pid == 0:
                os._exit(0 if "forked" in fiber.result() else 1)
            leave.set()
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            print(fiber.result())
        run(main)
        """
    )
    assert done.stdout == "0\nresult\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_forgets_who_waits_for_a_token(child: Child) -> None:
    """In the child their calls have failed: they must not be made when a token is free there."""
    done = child(
        """
        import os, threading, warnings
        from pyfiber import *
        from pyfiber.threads import ThreadLimiter
        warnings.simplefilter("ignore")
        limiter, leave, calls = ThreadLimiter(1), threading.Event(), []
        def body(fn, *args):
            try:
                return limiter.to_thread(fn, *args)
            except FiberError:
                return "failed"
        def main():
            fibers = [spawn(body, leave.wait), spawn(body, calls.append, "called")]
            while not limiter.waiting:
                sleep(0.001)
            pid = os.fork()
            if pid == 0:
                failed = [fiber.result() for fiber in fibers] == ["failed"] * 2
                served = [limiter.to_thread(int, 7) for _ in range(2)] == [7, 7]
                os._exit(0 if failed and served and not calls and not limiter.waiting else 1)
            leave.set()
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            for fiber in fibers:
                fiber.result()
        run(main)
        print(calls)
        """
    )
    assert done.stdout == "0\n['called']\n"
