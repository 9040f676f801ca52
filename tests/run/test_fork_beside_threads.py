"""Forks in a fiber while other threads use fibers: the child has only its own, and can go on."""

from __future__ import annotations

import os
import textwrap

import pytest

from tests.support.subprocesses import run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

PROGRAM = """
    import gc, io, os, sys, threading
    import pyfiber
    from pyfiber import Channel, Event, Lock, TaskGroup, local, spawn, to_thread
    from pyfiber.debug import dump_fibers
    from pyfiber import yield_now

    over = threading.Event()
    lock = Lock()
    shared = local()
    began = threading.Barrier(7)

    def busy(lock):
        channel = Channel(1)

        def child(n):
            with lock:
                shared.n = n
                yield_now()
            channel.send(n)

        with TaskGroup() as group:
            for n in range(4):
                group.spawn(child, n)
            assert sorted(channel.receive() for _ in range(4)) == [0, 1, 2, 3]

    def beside():
        began.wait()
        while not over.is_set():
            busy(lock)
            to_thread(len, "")

    def in_child():
        busy(Lock())
        return to_thread(len, "ab")

    def forks():
        began.wait()
        for _ in range(FORKS):
            busy(lock)
            pid = os.fork()
            if pid == 0:
                assert pyfiber.run(in_child) == 2
                gc.collect()
                dump_fibers(io.StringIO(), all_threads=True)
                over.set()
                sys.exit(7)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == 7, status
        over.set()

    threads = [threading.Thread(target=pyfiber.run, args=(beside,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    pyfiber.run(forks)
    for thread in threads:
        thread.join()
    print("done")
"""


def test_children_of_a_fork_beside_busy_threads_run_and_exit() -> None:
    program = textwrap.dedent(PROGRAM).replace("FORKS", "6")
    done = run_python("-W", "ignore::DeprecationWarning", "-c", program)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
