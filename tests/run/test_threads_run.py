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
from tests.support.subprocesses import run_script

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
        return scope.cancelled()

    assert run(main, threads=2)


@pytest.mark.parametrize("threads", [2, 40], ids=["two", "many"])
def test_deadlock_is_found_over_all_threads(threads):
    """In a process of its own: any other thread could wake a fiber. Of many threads, those from
    the 17th on counted as such.
    """
    done = run_script(f"""
import threading, pyfiber
from pyfiber import run, spawn

def waits(barrier):
    barrier.wait(30)
    pyfiber.park()

def main():
    barrier = threading.Barrier({threads})
    for fiber in [spawn(waits, barrier) for _ in range({threads})]:
        fiber.join()

try:
    run(main, threads={threads})
except pyfiber.DeadlockError as exc:
    print(exc)
""")
    assert "waits in park()" in done.stdout, done.stderr
    if threads == 2:
        assert done.stdout.count("waits in park()") + done.stdout.count("like it") == 2
    assert "_keep" not in done.stdout


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


def _on_two_threads(first, second):
    """Their results, in order: each runs with the fiber of the other, on a thread of its own."""
    meeting, fibers = Meeting(), []

    def begin(work, other):
        meeting.meet()
        return work(fibers[other])

    fibers += [spawn(begin, first, 1), spawn(begin, second, 0)]
    return [fiber.result() for fiber in fibers]


def test_given_fiber_spawns_in_the_group_it_is_in():
    def child(group, meeting, depth):
        if meeting is not None:
            meeting.meet()
        if depth == 0:
            return 1
        return sum(f.result() for f in [group.spawn(child, group, None, depth - 1) for _ in "ab"])

    def main():
        meeting = Meeting()
        with TaskGroup() as group:
            fibers = [group.spawn(child, group, meeting, 4) for _ in range(2)]
        return [fiber.result() for fiber in fibers]

    assert run(main, threads=2) == [16, 16]


def test_failure_of_what_a_given_fiber_spawns_fails_the_group():
    def fails():
        raise ValueError("spawned elsewhere")

    def child(group, meeting):
        where = meeting.meet()
        group.spawn(fails if where != threading.main_thread().ident else int)

    def main():
        meeting = Meeting()
        with TaskGroup() as group:
            group.spawn(child, group, meeting)
            group.spawn(child, group, meeting)

    with pytest.raises(ExceptionGroup) as caught:
        run(main, threads=2)
    assert caught.group_contains(ValueError, match="spawned elsewhere")


def test_child_for_a_cancelled_group_does_not_run():
    ran = []

    def child(group, meeting):
        where = meeting.meet()
        if where == threading.main_thread().ident:
            return None
        group.cancel("enough")
        return group.spawn(ran.append, 1)

    def main():
        meeting = Meeting()
        with TaskGroup() as group:
            fibers = [group.spawn(child, group, meeting) for _ in range(2)]
        late = next(f.result() for f in fibers if f.result() is not None)
        return late.cancelled()

    assert run(main, threads=2)
    assert ran == []


def test_child_for_a_group_that_was_left_meanwhile_fails():
    def main():
        gate, over = threading.Event(), threading.Event()
        group = TaskGroup()

        def leaves():
            with group:
                gate.set()
                over.wait(LONG)  # blocks the thread: what is posted here arrives later

        def spawns():
            gate.wait(LONG)
            child = group.spawn(int)
            over.set()
            return type(child.exception())

        meeting = Meeting()
        fibers = [spawn(lambda f=f: (meeting.meet(), f())[1]) for f in (leaves, spawns)]
        return [fiber.result() for fiber in fibers][1]

    assert run(main, threads=2) is pyfiber.FiberError


def test_grain_and_spawn_now_stay_with_the_groups_own_thread():
    """Limits, told of in docs/parallel.md."""

    def grain():
        yield

    def child(group, meeting):
        if meeting.meet() == threading.main_thread().ident:
            return
        for spawn_there in (
            lambda: group.spawn_now(int),
            lambda: group.spawn(pyfiber.grains.Grain(grain)),
        ):
            with pytest.raises(pyfiber.FiberError, match="belongs to another run"):
                spawn_there()

    def main():
        meeting = Meeting()
        with TaskGroup() as group:
            group.spawn(child, group, meeting)
            group.spawn(child, group, meeting)

    run(main, threads=2)


def test_result_of_a_fiber_of_another_thread():
    """What each spawns stays on its own thread, which has nothing else to give."""

    def main():
        meeting, there, done = Meeting(), {}, threading.Barrier(2)

        def work(name, other):
            meeting.meet()
            pyfiber.yield_now()
            there[name] = spawn(lambda: name)
            done.wait(LONG)
            return there[other].result()

        return [f.result() for f in [spawn(work, "a", "b"), spawn(work, "b", "a")]]

    assert run(main, threads=2) == ["b", "a"]


def test_failure_of_a_fiber_of_another_thread_is_seen_there():
    told = []

    def main():
        meeting, there, done = Meeting(), {}, threading.Barrier(2)

        def fails():
            raise ValueError

        def work(name, other):
            meeting.meet()
            there[name] = spawn(fails)
            done.wait(LONG)
            return type(there[other].exception())

        return [f.result() for f in [spawn(work, "a", "b"), spawn(work, "b", "a")]]

    result = run(main, threads=2, on_unhandled=lambda fiber, exc: told.append(exc))
    assert result == [ValueError, ValueError]
    assert told == []


def test_join_of_a_fiber_of_another_thread_times_out_and_may_be_cancelled():
    def main():
        event = pyfiber.Event()

        def waits(other):
            event.wait()
            return "done"

        def joins(other):
            seen = [other.join(timeout=0.001), other.join(timeout=0)]
            with pyfiber.move_on_after(0.001) as scope:
                other.join()
            seen.append(scope.cancelled())
            event.set()
            # (The other is the double of the one that it is joined by.)
            return [*seen, other.result(timeout=LONG)]

        return _on_two_threads(waits, joins)[1]

    assert run(main, threads=2) == [False, False, True, "done"]


def test_what_waits_for_a_fiber_of_another_thread_leaves_nothing_there():
    def main():
        meeting, event, there = Meeting(), pyfiber.Event(), []

        def owns():
            meeting.meet()
            there.append(spawn(event.wait))
            pyfiber.yield_now()
            meeting.meet()
            event.wait()

        def joins():
            meeting.meet()
            meeting.meet()
            for _ in range(50):
                there[0].join(timeout=0)
                there[0].join(timeout=1e-6)
            there[0].cancel()  # posted behind all that
            there[0].join()
            event.set()

        for fiber in [spawn(owns), spawn(joins)]:
            fiber.join()
        return there[0].cancelled()

    assert run(main, threads=2)


def test_done_callback_from_another_thread_runs_on_the_fibers_own():
    def main():
        meeting, event, there, seen = Meeting(), pyfiber.Event(), [], []
        told = threading.Event()

        def called(fiber):
            seen.append(threading.get_ident())
            told.set()

        def owns():
            where = meeting.meet()
            there.append(spawn(event.wait))
            meeting.meet()
            there[0].join()
            return where

        def adds():
            meeting.meet()
            meeting.meet()
            there[0].add_done_callback(called)
            event.set()
            assert told.wait(LONG)

        fibers = [spawn(owns), spawn(adds)]
        return next(fiber.result() for fiber in fibers), seen

    where, seen = run(main, threads=2)
    assert seen == [where]


def test_given_fiber_is_unparked_by_another_one_and_by_a_plain_thread():
    def main():
        def waits(other):
            return [pyfiber.park(), pyfiber.park()]

        def unparks(other):
            other.unpark("by a fiber")
            pyfiber.sleep(0.01)
            thread = threading.Thread(target=other.unpark, args=("by a thread",))
            thread.start()
            thread.join()

        return _on_two_threads(waits, unparks)[0]

    assert run(main, threads=2) == ["by a fiber", "by a thread"]


def test_gather_takes_a_fiber_of_another_thread():
    def main():
        meeting, there, done = Meeting(), {}, threading.Barrier(2)

        def work(name, other):
            meeting.meet()
            there[name] = spawn(lambda: name)
            done.wait(LONG)
            return pyfiber.gather(there[other], lambda: name)

        return [f.result() for f in [spawn(work, "a", "b"), spawn(work, "b", "a")]]

    assert run(main, threads=2) == [["b", "a"], ["a", "b"]]


def test_scope_of_another_thread_is_cancelled():
    def main():
        scopes, meeting = [], Meeting()

        def waits():
            meeting.meet()
            with pyfiber.CancelScope() as scope:
                scopes.append(scope)
                meeting.meet()
                pyfiber.park()
            return scope.cancelled()

        def cancels():
            meeting.meet()
            meeting.meet()
            with pytest.raises(pyfiber.FiberError, match="in use on another thread"):
                scopes[0].deadline = 1.0
            scopes[0].cancel("from there")

        return next(f.result() for f in [spawn(waits), spawn(cancels)])

    assert run(main, threads=2)


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


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="sends a signal")
def test_second_interrupt_leaves_the_other_threads_as_they_are():
    """One blocks its thread instead of ending, so the first interrupt is not enough."""
    done = run_script("""
import signal, threading, pyfiber
from pyfiber import run, spawn

both, stuck, never = threading.Barrier(3), threading.Event(), threading.Event()

def waits():
    both.wait(30)
    try:
        pyfiber.park()
    finally:
        if threading.current_thread() is not threading.main_thread():
            stuck.set()
            never.wait()

def interrupts():
    both.wait(30)
    for ready in (None, stuck):
        assert ready is None or ready.wait(30)
        print("interrupt", flush=True)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

def main():
    threading.Thread(target=interrupts).start()
    for fiber in [spawn(waits) for _ in range(2)]:
        fiber.join()

try:
    run(main, threads=2)
except KeyboardInterrupt:
    left = [t.name for t in threading.enumerate() if t.name.startswith("pyfiber-run")]
    print("ended", left)
print(run(lambda: 1), run(lambda: 2, threads=2))
""")
    assert done.stdout == "interrupt\ninterrupt\nended ['pyfiber-run-2']\n1 2\n"
    assert done.stderr == ""


def test_no_member_gets_two_while_another_has_none():
    """What waits behind a fiber that blocks its thread would be stuck."""

    def main(count):
        meeting = Meeting(count)
        fibers = [spawn(meeting.meet) for _ in range(count)]
        pyfiber.sleep(0)
        return len({fiber.result() for fiber in fibers})

    assert [run(main, n, threads=n) for n in (2, 3, 4)] == [2, 3, 4]


def _others():
    return {t.name for t in threading.enumerate() if t.name.startswith("pyfiber-run")}


def test_threads_none_is_the_number_of_processors():
    from pyfiber import _team

    def main():
        for fiber in [spawn(int), spawn(int)]:
            fiber.join()
        return _others()

    assert len(run(main, threads=None)) == _team.processors() - 1


def test_threads_begin_when_there_is_something_to_give():
    def main():
        alone = _others()
        spawn(int).join()
        still = _others()
        for fiber in [spawn(int), spawn(int)]:
            fiber.join()
        return alone, still, len(_others())

    assert run(main, threads=3) == (set(), set(), 2)


def test_thread_that_cannot_be_started_fails_the_run(monkeypatch):
    start = threading.Thread.start

    def refused(self):
        if self.name == "pyfiber-run-3":
            raise RuntimeError("can't start new thread")
        start(self)

    def main():
        fibers = [spawn(pyfiber.park) for _ in range(2)]
        monkeypatch.setattr(threading.Thread, "start", refused)
        fibers[0].join()

    with pytest.raises(RuntimeError, match="can't start"):
        run(main, threads=3)
    assert _others() == set()


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
