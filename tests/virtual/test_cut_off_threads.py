"""Daemon threads that do not end when the program does: they are left where they are.

Each program runs in a process of its own, whose timeout fails a test of a thread that would keep
the program from ending.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from tests.conftest import Child

Command = Callable[..., tuple[int, str, str]]

PRELUDE = """
import sys, threading, time
import pyfiber
begun = threading.Semaphore(0)
def start(function, *args):
    threading.Thread(target=function, args=args, daemon=True).start()
    begun.acquire()
"""

#: Functions of daemons. None of them ends, whatever is raised in it.
STUBBORN = {
    "sleeps": """
        def stay():
            while True:
                try:
                    begun.release()
                    time.sleep(0.001)
                except BaseException:
                    pass
    """,
    "acquires a lock": """
        lock = threading.Lock()
        lock.acquire()
        def stay():
            while True:
                try:
                    begun.release()
                    lock.acquire()
                except BaseException:
                    pass
    """,
    "waits for an event": """
        event = threading.Event()
        def stay():
            while True:
                try:
                    begun.release()
                    event.wait()
                except BaseException:
                    pass
    """,
    "reads from a socket": """
        import socket
        ours, theirs = socket.socketpair()
        def stay():
            while True:
                try:
                    begun.release()
                    ours.recv(1)
                except BaseException:
                    pass
    """,
    "selects": """
        import select, socket
        ours, theirs = socket.socketpair()
        def stay():
            while True:
                try:
                    begun.release()
                    select.select([ours], [], [])
                except BaseException:
                    pass
    """,
    "parks in a queue of pyfiber": """
        queue = pyfiber.Queue()
        def stay():
            while True:
                try:
                    begun.release()
                    queue.get()
                except BaseException:
                    pass
    """,
    "waits for a call in a thread": """
        def stay():
            while True:
                try:
                    begun.release()
                    pyfiber.to_thread(time.monotonic)
                    time.sleep(60)
                except BaseException:
                    pass
    """,
    "sleeps in a finally block": """
        def stay():
            try:
                begun.release()
                time.sleep(3600)
            finally:
                time.sleep(3600)
    """,
    "joins the main thread": """
        def stay():
            try:
                begun.release()
                time.sleep(3600)
            finally:
                threading.main_thread().join()
                time.sleep(3600)
    """,
    "computes in a handler": """
        def stay():
            try:
                begun.release()
                time.sleep(3600)
            except BaseException:
                while True:
                    pass
    """,
    "computes in calls": """
        def work():
            return 1
        def stay():
            while True:
                try:
                    begun.release()
                    time.sleep(3600)
                except BaseException:
                    while True:
                        work()
    """,
}


@pytest.mark.parametrize("stay", STUBBORN.values(), ids=STUBBORN)
def test_program_ends_though_a_daemon(command: Command, stay: str) -> None:
    source = PRELUDE + textwrap.dedent(stay) + "start(stay)\nprint('end')\n"
    assert command(source) == (0, "end\n", "")


def run(child: Child, source: str) -> list[str]:
    return child(PRELUDE + textwrap.dedent(source)).stdout.splitlines()


def test_block_ends_and_the_next_one_works(child: Child) -> None:
    assert run(
        child,
        """
        lock, mine = threading.Lock(), threading.Lock()
        mine.acquire()
        def stay(wait):
            while True:
                try:
                    begun.release()
                    wait()
                except BaseException:
                    pass
        def work():
            time.sleep(0.001)
            with lock:
                print("works")
        for _ in range(2):
            with pyfiber.virtual_threads():
                for wait in (mine.acquire, lambda: time.sleep(0.001), lambda: time.sleep(60)):
                    start(stay, wait)
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
        mine.release()
        with lock, mine:
            print(threading.active_count())
        """,
    ) == ["works", "works", "1"]


def test_thread_that_is_left_has_ended_for_others(child: Child) -> None:
    assert run(
        child,
        """
        def stay():
            fibers.append(pyfiber.current())
            while True:
                try:
                    begun.release()
                    time.sleep(60)
                except BaseException:
                    pass
        fibers = []
        with pyfiber.virtual_threads():
            start(stay)
            thread = next(each for each in threading.enumerate() if each.daemon)
        thread.join()
        print(thread.is_alive(), fibers[0].done())
        """,
    ) == ["False True"]


def test_locks_of_a_thread_that_is_left_stay_held(child: Child) -> None:
    assert run(
        child,
        """
        lock, rlock = threading.Lock(), threading.RLock()
        def stay():
            with lock, rlock:
                try:
                    begun.release()
                    time.sleep(60)
                finally:
                    time.sleep(60)
        with pyfiber.virtual_threads():
            start(stay)
        with pyfiber.virtual_threads():
            print(lock.acquire(timeout=0.001), rlock.acquire(timeout=0.001))
        """,
    ) == ["False False"]


def test_thread_takes_a_free_lock_in_a_finally_block(child: Child) -> None:
    assert run(
        child,
        """
        condition = threading.Condition()
        def close():
            try:
                begun.release()
                time.sleep(60)
            finally:
                with threading.Lock(), threading.RLock(), condition:
                    condition.notify()
                print("closed")
        with pyfiber.virtual_threads():
            start(close)
        """,
    ) == ["closed"]


def test_thread_that_runs_a_process_ends_it(child: Child) -> None:
    assert run(
        child,
        """
        import subprocess
        endless = "import time; time.sleep(600)"
        def work():
            with subprocess.Popen([sys.executable, "-c", endless], stdout=-1, stderr=-1) as process:
                try:
                    begun.release()
                    process.communicate()
                finally:
                    print(process.returncode is not None)
        with pyfiber.virtual_threads():
            start(work)
        """,
    ) == ["True"]


def test_finally_block_may_compute_for_several_slices(child: Child) -> None:
    assert run(
        child,
        """
        def work():
            try:
                begun.release()
                time.sleep(60)
            finally:
                until = time.process_time() + 0.005
                while time.process_time() < until:
                    pass
                print("done")
        with pyfiber.virtual_threads(time_slice=0.002):
            start(work)
        """,
    ) == ["done"]


def test_nothing_of_a_thread_that_is_left_is_unwound(child: Child) -> None:
    """Its objects live on, and its frames can be looked at, also by the collector."""
    assert run(
        child,
        """
        import gc, weakref
        class Thing:
            def __init__(self):
                self.me = self
        def numbers():
            try:
                yield from range(3)
            finally:
                print("generator closed")
        def stay(deeper):
            if deeper:
                return stay(deeper - 1)
            thing = Thing()
            things.append(weakref.ref(thing))
            for number in numbers():
                try:
                    begun.release()
                    time.sleep(60)
                except BaseException as exc:
                    raised.append(exc)
        things, raised = [], []
        for _ in range(2):
            with pyfiber.virtual_threads():
                for _ in range(3):
                    start(stay, 50)
            gc.collect()
        print(sum(ref() is not None for ref in things))
        for exc in raised:
            depth, frame = 0, exc.__traceback__.tb_frame
            while frame is not None and frame.f_code is stay.__code__:
                depth, frame = depth + len(frame.f_locals), frame.f_back
            assert depth >= 51, depth
        del raised, frame, exc
        gc.collect()
        """,
    ) == ["6"]


def test_thread_that_is_left_shares_its_stack_with_others(child: Child) -> None:
    """Such a stack is put aside for other fibers, with the frames on it."""
    assert run(
        child,
        """
        import gc
        def stay():
            try:
                begun.release()
                time.sleep(60)
            except BaseException as exc:
                raised.append(exc)
                time.sleep(60)
        def work(number):
            time.sleep(0.001)
            done.append(number)
        raised, done = [], []
        with pyfiber.virtual_threads():
            for _ in range(40):
                start(stay)
        with pyfiber.virtual_threads():
            threads = [threading.Thread(target=work, args=(n,)) for n in range(40)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        gc.collect()
        print(len(done), {exc.__traceback__.tb_frame.f_code.co_name for exc in raised})
        """,
    ) == ["40 {'stay'}"]


@pytest.mark.parametrize("how", ["in a sort", "in a finalizer", "in a finalizer of the collector"])
def test_thread_waits_below_c_code(child: Child, how: str) -> None:
    assert run(
        child,
        f"""
        import gc
        how = {how!r}
        def wait(ignored=None):
            begun.release()
            time.sleep(0.001)
            return 0
        class Waits:
            __del__ = wait
        def stay():
            try:
                begun.release()
                time.sleep(60)
            finally:
                if how == "in a sort":
                    [2, 1].sort(key=wait)
                waits = Waits()
                if how == "in a finalizer of the collector":
                    waits.me = waits
                del waits
                gc.collect()
                print("goes on")
        with pyfiber.virtual_threads():
            start(stay)
        gc.collect()
        print("end")
        """,
    ) == (["goes on", "end"] if "collector" in how else ["end"])
