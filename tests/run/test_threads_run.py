"""run(main, threads=N): schedulers on several threads share fibers that have not begun.

A fiber is made to run elsewhere by a meeting: two fibers that each block their whole thread until
the other one is there can only get on if they are on two threads.
"""

from __future__ import annotations

import contextvars
import gc
import os
import random
import signal
import threading
import traceback
import warnings
import weakref

import pytest

import pyfiber
import pyfiber.testing
from pyfiber import TaskGroup, run, spawn
from tests.support.gil import needs_gil
from tests.support.subprocesses import run_script

pytestmark = needs_gil("run(threads=) counts on the GIL")

#: A hang fails the test instead of the suite.
LONG = 30


class Meeting:
    """meet() blocks its thread, not its fiber, until `count` have called it."""

    def __init__(self, count: int = 2) -> None:
        self._barrier = threading.Barrier(count)

    def meet(self) -> int:
        self._barrier.wait(LONG)
        return threading.get_ident()


def test_two_fibers_run_on_two_threads():
    def main():
        meeting = Meeting()
        fibers = [spawn(meeting.meet) for _ in range(2)]
        return {fiber.result() for fiber in fibers}

    assert len(run(main, threads=2)) == 2


def test_tree_gives_the_same_result_on_any_number_of_threads():
    def tree(depth):
        if depth == 0:
            return 1
        return sum(f.result() for f in [spawn(tree, depth - 1) for _ in range(3)])

    assert [run(tree, 6, threads=n) for n in (1, 2, 4)] == [729] * 3


@pytest.mark.parametrize("wrong", ["2", 2.0, True])
def test_threads_must_be_an_int(wrong):
    with pytest.raises(TypeError, match="threads"):
        run(lambda: 1, threads=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 100_000])
def test_threads_must_be_a_sensible_number(wrong):
    with pytest.raises(ValueError, match="threads"):
        run(lambda: 1, threads=wrong)


def test_failure_elsewhere_comes_with_its_traceback():
    def failing(meeting):
        meeting.meet()
        raise ValueError("over there")

    def main():
        meeting = Meeting()
        fibers = [spawn(failing, meeting), spawn(failing, meeting)]
        errors = [fiber.exception() for fiber in fibers]
        return ["".join(traceback.format_exception(e)) for e in errors]

    for text in run(main, threads=2):
        assert "in failing" in text
        assert "over there" in text


def test_failure_in_a_group_cancels_those_on_other_threads():
    ended = []

    def waits(meeting):
        meeting.meet()
        try:
            pyfiber.park()
        except pyfiber.Cancelled as exc:
            ended.append(exc.reason)
            raise

    def fails(meeting):
        meeting.meet()
        raise ValueError

    def main():
        meeting = Meeting()
        with TaskGroup() as group:
            group.spawn(waits, meeting)
            group.spawn(fails, meeting)

    with pytest.raises(ExceptionGroup):
        run(main, threads=2)
    assert len(ended) == 1


def test_cancel_reaches_a_fiber_that_is_away():
    def waits(meeting):
        meeting.meet()
        pyfiber.park()

    def main():
        meeting = Meeting()
        fibers = [spawn(waits, meeting) for _ in range(2)]
        spawn(lambda: None).join()
        pyfiber.sleep(0)
        for fiber in fibers:
            fiber.cancel("enough")
        for fiber in fibers:
            fiber.join()
        return [fiber.cancelled() for fiber in fibers]

    assert run(main, threads=2) == [True, True]


def test_deadline_reaches_a_fiber_that_is_away():
    def waits(meeting):
        meeting.meet()
        pyfiber.park()

    def main():
        meeting = Meeting()
        with pyfiber.move_on_after(0.05) as scope, TaskGroup() as group:
            group.spawn(waits, meeting)
            group.spawn(waits, meeting)
        return scope.cancelled_caught

    assert run(main, threads=2)


def test_deadlock_is_found_over_all_threads():
    """In a process of its own: any other thread could wake a fiber."""
    done = run_script("""
import threading, pyfiber
from pyfiber import run, spawn

def waits(barrier):
    barrier.wait(30)
    pyfiber.park()

def main():
    barrier = threading.Barrier(2)
    for fiber in [spawn(waits, barrier) for _ in range(2)]:
        fiber.join()

try:
    run(main, threads=2)
except pyfiber.DeadlockError as exc:
    print(exc)
""")
    assert "waits" in done.stdout


def test_run_waits_for_fibers_that_others_have_spawned():
    done = []

    def late():
        pyfiber.sleep(0.02)
        done.append(1)

    def spawns(meeting):
        meeting.meet()
        spawn(late)

    def main():
        meeting = Meeting()
        spawn(spawns, meeting)
        spawn(spawns, meeting)

    run(main, threads=2)
    assert done == [1, 1]


def test_failure_of_main_cancels_what_others_run():
    ended = []

    def waits(meeting):
        meeting.meet()
        try:
            pyfiber.park()
        finally:
            ended.append(1)

    def main():
        meeting = Meeting()
        for fiber in [spawn(waits, meeting) for _ in range(2)]:
            fiber.join(timeout=0.01)
        raise ValueError("main")

    with pytest.raises(ValueError, match="main"):
        run(main, threads=2)
    assert ended == [1, 1]


def test_context_goes_with_the_fiber():
    var = contextvars.ContextVar("var")

    def look(meeting):
        meeting.meet()
        return var.get()

    def main():
        var.set("mine")
        meeting = Meeting()
        return [f.result() for f in [spawn(look, meeting) for _ in range(2)]]

    assert run(main, threads=2) == ["mine", "mine"]


def test_subclass_runs_as_itself():
    class Mine(pyfiber.Fiber):
        def run(self):
            meeting.meet()
            return self

    meeting = Meeting()

    def main():
        fibers = [Mine().start() for _ in range(2)]
        return all(fiber.result() is fiber for fiber in fibers)

    assert run(main, threads=2)


def test_channel_between_threads():
    def main():
        channel = pyfiber.Channel(1)
        meeting = Meeting()

        def sends():
            meeting.meet()
            for i in range(100):
                channel.send(i)
            channel.close()

        def sums():
            meeting.meet()
            return sum(channel)

        return [f.result() for f in [spawn(sends), spawn(sums)]][1]

    assert run(main, threads=2) == sum(range(100))


def test_exit_elsewhere_ends_the_run():
    def leaves(meeting):
        meeting.meet()
        raise SystemExit(3)

    def main():
        meeting = Meeting()
        for fiber in [spawn(leaves, meeting) for _ in range(2)]:
            fiber.join()

    with pytest.raises(SystemExit):
        run(main, threads=2)


def test_no_thread_is_left_behind():
    run(lambda: None, threads=4)
    assert not [t for t in threading.enumerate() if t.name.startswith("pyfiber-run")]


def _node(seed: int, depth: int) -> int:
    """A random tree of fibers, groups and pmap; some fail."""
    choose = random.Random(seed)
    total, kind = seed % 97, choose.randrange(3)
    kids = [choose.randrange(1 << 30) for _ in range(choose.randrange(4))] if depth else []
    if choose.random() < 0.3:
        pyfiber.yield_now()
    if choose.random() < 0.1:
        raise ValueError(seed)
    if kind == 0:
        fibers = [spawn(_safe, kid, depth - 1) for kid in kids]
        return total + sum(fiber.result() for fiber in fibers)
    if kind == 1:
        return total + sum(pyfiber.pmap(lambda kid: _safe(kid, depth - 1), kids, limit=2))
    try:
        with TaskGroup() as group:
            fibers = [group.spawn(_node, kid, depth - 1) for kid in kids]
        return total + sum(fiber.result() for fiber in fibers)
    except ExceptionGroup:
        return 13


def _safe(seed: int, depth: int) -> int:
    try:
        return _node(seed, depth)
    except ValueError:
        return 5


def test_random_trees_give_what_one_thread_gives():
    for seed in range(60):
        assert run(_safe, seed, 5, threads=3) == run(_safe, seed, 5)


def test_group_of_another_thread_refuses_to_spawn():
    """A limit, told of in docs/parallel.md."""

    def child(group, meeting):
        meeting.meet()
        group.spawn(lambda: None)

    def main():
        meeting = Meeting()
        with TaskGroup() as group:
            group.spawn(child, group, meeting)
            group.spawn(child, group, meeting)

    with pytest.raises(ExceptionGroup) as caught:
        run(main, threads=2)
    assert caught.group_contains(pyfiber.FiberError, match="belongs to another run")


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends a signal")
def test_interrupt_cancels_those_on_other_threads():
    ended = []

    def waits(meeting, both):
        meeting.meet()
        try:
            both.wait(LONG)
            pyfiber.park()
        finally:
            ended.append(1)

    def main():
        meeting, both = Meeting(), threading.Barrier(3)

        def interrupts():
            both.wait(LONG)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        threading.Thread(target=interrupts).start()
        for fiber in [spawn(waits, meeting, both) for _ in range(2)]:
            fiber.join()

    with pytest.raises(KeyboardInterrupt):
        run(main, threads=2)
    assert ended == [1, 1]


def test_no_member_gets_two_while_another_has_none():
    """What waits behind a fiber that blocks its thread would be stuck."""

    def main(count):
        meeting = Meeting(count)
        fibers = [spawn(meeting.meet) for _ in range(count)]
        pyfiber.sleep(0)
        return len({fiber.result() for fiber in fibers})

    assert [run(main, n, threads=n) for n in (2, 3, 4)] == [2, 3, 4]


def test_threads_none_is_the_number_of_processors():
    def names():
        return {t.name for t in threading.enumerate() if t.name.startswith("pyfiber-run")}

    from pyfiber import _cluster

    assert len(run(names, threads=None)) == _cluster.processors() - 1


def test_run_under_test_refuses_a_number_of_threads():
    with pytest.raises(TypeError, match="one scheduler"):
        pyfiber.testing.run(lambda: None, threads=2)


def test_daemon_fiber_stays_and_does_not_keep_the_run():
    def background(seen):
        seen.append(threading.get_ident())
        pyfiber.park()

    def main():
        meeting, seen = Meeting(), []
        for _ in range(2):
            fiber = pyfiber.Fiber(lambda: background(seen))
            fiber.daemon = True
            fiber.start()
        for fiber in [spawn(meeting.meet) for _ in range(2)]:
            fiber.join()
        pyfiber.sleep(0)
        return seen

    assert run(main, threads=2) == [threading.get_ident()] * 2


def test_done_callback_runs_on_the_thread_that_spawned():
    def main():
        meeting, seen = Meeting(), []
        fibers = [spawn(meeting.meet) for _ in range(2)]
        pyfiber.yield_now()  # one is given away here
        for fiber in fibers:
            fiber.add_done_callback(lambda f: seen.append((f.result(), threading.get_ident())))
        for fiber in fibers:
            fiber.join()
        return seen

    seen = run(main, threads=2)
    assert len({where for where, _ in seen}) == 2
    assert {thread for _, thread in seen} == {threading.get_ident()}


def test_handles_may_be_dropped():
    done = []

    def work(meeting):
        meeting.meet()
        done.append(1)

    def main():
        meeting = Meeting()
        for _ in range(2):
            spawn(work, meeting)

    run(main, threads=2)
    assert done == [1, 1]


def test_one_and_its_double_are_freed_after_the_run():
    def main():
        meeting = Meeting()
        fibers = [spawn(meeting.meet) for _ in range(2)]
        for fiber in fibers:
            fiber.join()
        return [weakref.ref(fiber) for fiber in fibers]

    refs = run(main, threads=2)
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_failure_elsewhere_that_nobody_sees_is_told_once():
    told = []

    def fails(meeting):
        meeting.meet()
        raise ValueError

    def main():
        meeting = Meeting()
        for _ in range(2):
            spawn(fails, meeting)

    run(main, threads=2, on_unhandled=lambda fiber, exc: told.append(type(exc)))
    assert told == [ValueError, ValueError]


def _fork_and_wait(child):
    """os.fork(): the exit status of the child, which does not return."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        code = 99
        try:
            signal.alarm(LONG)
            code = child()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def _away():
    """Two fibers on two threads, past their meeting, and what lets them end."""
    meeting, event = Meeting(), pyfiber.Event()

    def work():
        where = meeting.meet()
        event.wait()
        return where

    fibers = [spawn(work) for _ in range(2)]
    pyfiber.sleep(0)
    return fibers, event


@forks
def test_fiber_that_is_away_ends_with_an_error_in_the_child_of_a_fork():
    def child(fibers, event):
        event.set()
        errors = [type(fiber.exception()) for fiber in fibers]
        return (
            7
            if sorted(map(str, errors)) == sorted(map(str, [type(None), pyfiber.FiberError]))
            else 8
        )

    def main():
        fibers, event = _away()
        code = _fork_and_wait(lambda: child(fibers, event))
        event.set()
        return code, len({fiber.result() for fiber in fibers})

    assert run(main, threads=2) == (7, 2)


@forks
def test_run_in_the_child_of_a_fork_ends():
    parent = os.getpid()

    def main():
        _, event = _away()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            signal.alarm(LONG)
        event.set()
        return pid

    pid = run(main, threads=2)
    if os.getpid() != parent:
        os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5


@forks
def test_member_may_fork_and_run_on_in_the_child():
    def forks_there(meeting):
        where = meeting.meet()

        def child():
            return 6 if spawn(lambda: 1).result() == 1 else 8

        return _fork_and_wait(child) if where != threading.main_thread().ident else 6

    def main():
        meeting = Meeting()
        return [f.result() for f in [spawn(forks_there, meeting) for _ in range(2)]]

    assert run(main, threads=2) == [6, 6]


@forks
def test_run_of_a_member_ends_in_the_child_of_a_fork(tmp_path):
    """In a process of its own: when the child's only thread ends, the C library runs what all
    libraries have left for exit(). That of libuv waits for its threads, which a child has not, and
    crashes: so would any child of a process that has used uvloop, without fibers as well."""
    told = tmp_path / "told"
    done = run_script(f"""
import os, pathlib, signal, threading, warnings
from pyfiber import run, spawn

warnings.simplefilter("ignore", DeprecationWarning)

def forks_there(barrier):
    barrier.wait({LONG})
    if threading.current_thread() is threading.main_thread():
        return None
    pid = os.fork()
    if pid == 0:
        signal.alarm({LONG})
        spawn(lambda: pathlib.Path({str(told)!r}).write_text("child"))
        return None
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def main():
    barrier = threading.Barrier(2)
    return [f.result() for f in [spawn(forks_there, barrier) for _ in range(2)]]

print(sorted(run(main, threads=2), key=str))
""")
    assert done.stdout == "[0, None]\n"
    assert told.read_text() == "child"
