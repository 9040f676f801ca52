"""Real threads and calls that block in real time, in a run that has virtual time: refused, told."""

from __future__ import annotations

import _thread
import concurrent.futures
import importlib
import multiprocessing
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from time import monotonic as imported_monotonic
from time import sleep as imported_sleep
from typing import Any

import pytest

import pyfiber
from pyfiber import FiberError, now, sleep, spawn, yield_now
from pyfiber.testing import ScheduleFailure, VirtualClock, explore, guards, run

PLACES = [
    (time, "sleep"),
    (time, "time"),
    (threading, "Lock"),
    (threading.Thread, "start"),
    (threading.Thread, "join"),
    (threading.Condition, "wait"),
    (_thread, "start_new_thread"),
    (select, "select"),
    (subprocess.Popen, "__init__"),
    (socket.socket, "recv"),
    (sys.modules[__name__], "imported_sleep"),
]


def things_in_place() -> list[object]:
    return [vars(owner).get(name) for owner, name in PLACES]


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    before = things_in_place()
    yield
    assert things_in_place() == before
    assert guards.RULES == {}


def wait_for_a_thread() -> None:
    STARTED.join()


def wait_for_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_a_socket() -> None:
    a, b = socket.socketpair()
    with closing(a), closing(b):
        a.recv(1)


def wait_for_a_readable_socket() -> None:
    a, b = socket.socketpair()
    with closing(a), closing(b):
        select.select([a], [], [], 60)


def accept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.accept()


def connect() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket() as client:
        client.connect(server.getsockname())


BLOCKING: dict[str, tuple[Callable[[], object], str]] = {
    "sleep": (lambda: time.sleep(60), r"time.sleep\(\) would block .* use pyfiber.sleep\(\)"),
    "event": (lambda: threading.Event().wait(), "a wait of threading's would block every fiber"),
    "event with timeout": (lambda: threading.Event().wait(60), "a wait of threading's"),
    "condition": (lambda: wait_in(threading.Condition()), "a wait of threading's"),
    "semaphore": (lambda: threading.Semaphore(0).acquire(), "a wait of threading's"),
    "barrier": (lambda: threading.Barrier(2).wait(), "a wait of threading's"),
    "queue": (lambda: queue.Queue[int]().get(), "a wait of threading's"),
    "queue with timeout": (lambda: queue.Queue[int]().get(timeout=60), "a wait of threading's"),
    "future": (lambda: concurrent.futures.Future[int]().result(), "a wait of threading's"),
    "lock": (wait_for_a_lock, "of a threading.Lock that is held .* use pyfiber.Lock"),
    "join": (wait_for_a_thread, r"join\(\) of a thread"),
    "select": (wait_for_a_readable_socket, r"select.select\(\)"),
    "recv": (wait_for_a_socket, r"recv\(\) of a socket"),
    "accept": (accept, r"accept\(\) of a socket"),
    "connect": (connect, r"connect\(\) of a socket"),
    "subprocess": (lambda: subprocess.run([sys.executable, "-V"]), "a subprocess"),
}

if hasattr(signal, "sigwait"):
    BLOCKING["sigwait"] = (
        lambda: signal.sigwait([signal.SIGUSR1]),
        r"signal.sigwait\(\) would block",
    )


def wait_in(condition: threading.Condition) -> None:
    with condition:
        condition.wait()


@pytest.fixture(scope="module")
def _thread_that_runs() -> Iterator[None]:
    """For join() to wait for."""
    global STARTED
    stop = threading.Event()
    STARTED = threading.Thread(target=stop.wait)
    STARTED.start()
    yield
    stop.set()
    STARTED.join()


STARTED: threading.Thread


@pytest.mark.usefixtures("_thread_that_runs")
@pytest.mark.parametrize(("call", "text"), BLOCKING.values(), ids=BLOCKING)
def test_call_that_blocks_in_real_time_is_refused_where_it_is_made(
    call: Callable[[], object], text: str
) -> None:
    with pytest.raises(FiberError, match=text):
        run(call)
    with pytest.raises(ScheduleFailure, match=r"threads=True"):
        explore(call, 5)


def test_call_is_refused_after_a_patch_ended_within_a_run() -> None:
    def end_the_patch() -> None:
        patch.undo()

    patch = pyfiber.patch()
    run(end_the_patch)
    for name in ("sleep", "event", "select", "recv"):
        call, text = BLOCKING[name]
        with pytest.raises(FiberError, match=text):
            run(call)


def test_names_that_a_patch_left_in_a_module_are_virtual(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_while_patched.py").write_text(
        "from time import sleep\ndef work(wait=sleep):\n  sleep(3600)\n  wait(3600)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pyfiber.patch():
        module = importlib.import_module("imported_while_patched")

    def main() -> None:
        module.work()
        assert now() == 7200

    run(main, virtualize_time=True)


def test_call_of_another_fiber_is_refused_too() -> None:
    with pytest.raises(FiberError, match=r"time.sleep\(\)"):
        run(lambda: spawn(time.sleep, 60).result())

    def raw() -> None:
        pyfiber.Fiber(lambda: time.sleep(60)).switch()

    with pytest.raises(FiberError, match=r"time.sleep\(\)"):
        run(raw)


def test_call_that_would_not_wait_is_none() -> None:
    a, b = socket.socketpair()

    def main() -> bytes:
        time.sleep(0)
        lock = threading.Lock()
        with lock:
            assert lock.locked()
            assert not lock.acquire(blocking=False)
            assert not lock.acquire(timeout=0)
        assert "unlocked" in repr(lock)
        with pytest.raises(RuntimeError):
            lock.release()
        event = threading.Event()
        assert not event.wait(0)
        event.set()
        assert event.wait()
        items = queue.Queue[int]()
        items.put(1)
        assert items.get() == 1
        with pytest.raises(queue.Empty):
            items.get_nowait()
        assert select.select([a], [], [], 0) == ([], [], [])
        assert select.select([], [a], [], 60) == ([], [a], [])
        threading.RLock().acquire()
        b.send(b"x")
        return a.recv(1)

    with closing(a), closing(b):
        assert run(main) == b"x"


def test_lock_of_two_fibers_is_refused_where_it_would_hang() -> None:
    def main() -> None:
        lock = threading.Lock()

        def use() -> None:
            with lock:
                yield_now()

        first, second = spawn(use), spawn(use)
        first.result()
        second.result()

    with pytest.raises(FiberError, match=r"use pyfiber\.Lock"):
        run(main)


def test_lock_made_in_a_run_is_good_afterwards() -> None:
    lock = run(threading.Lock)
    assert type(threading.Lock()) is type(_thread.allocate_lock())
    lock.acquire()
    threading.Timer(0, lock.release).start()
    assert lock.acquire(timeout=60)


@pytest.mark.parametrize("options", [{"threads": True}, {"clock": "real"}])
def test_real_waiting_is_allowed_if_asked_for(options: Any) -> None:
    def main() -> None:
        time.sleep(0.0001)
        threading.Event().wait(0.0001)

    run(main, **options)


def test_calls_of_other_threads_are_their_own_business() -> None:
    def elsewhere() -> None:
        time.sleep(0.0001)
        assert not threading.Event().wait(0.0001)
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        done.append(time.monotonic())

    done: list[float] = []
    start = threading.Event()
    thread = threading.Thread(target=lambda: (start.wait(), elsewhere()))
    thread.start()

    def main() -> None:
        start.set()
        end = imported_clock() + 60
        while not done and imported_clock() < end:
            yield_now()

    run(main)
    thread.join()
    assert done


def imported_clock() -> float:
    return imported_monotonic()


def test_thread_started_by_its_lowest_name_is_refused() -> None:
    with pytest.raises(FiberError, match="starts a real thread"):
        run(lambda: _thread.start_new_thread(print, ()))
    with pytest.raises(FiberError, match="starts a real thread"):
        run(lambda: concurrent.futures.ThreadPoolExecutor(1).submit(print))
    with pytest.raises(FiberError, match="starts a real thread"):
        run(lambda: threading.Thread(target=print).start(), clock="real")


def test_two_threads_run_at_once_and_the_first_to_begin_ends_first() -> None:
    both_inside, first_is_out = threading.Barrier(2), threading.Event()
    refused: list[str] = []

    def first() -> None:
        with guards.in_force(guards.Rules(threads=False, guarded=True, clock=None)):
            both_inside.wait()
        first_is_out.set()

    def program() -> None:
        try:
            time.sleep(60)
        except FiberError as exc:
            refused.append(str(exc))

    def second() -> None:
        rules = guards.Rules(threads=False, guarded=True, clock=None)
        with guards.in_force(rules):
            both_inside.wait()
            first_is_out.wait()
            rules.active = True
            program()

    threads = [threading.Thread(target=target) for target in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1


# ------------------------------------------------------------------- virtualized time


def test_names_imported_before_follow_the_clock_if_time_is_virtualized() -> None:
    def main() -> list[float]:
        spawn(imported_sleep, 1e6).join()
        return [now(), imported_monotonic(), imported_clock()]

    assert run(main, virtualize_time=True) == [1e6] * 3


def test_setup_and_check_see_virtualized_time_too() -> None:
    seen: list[float] = []

    def setup() -> None:
        time.sleep(3)
        seen.append(time.monotonic())

    def main(_: None) -> None:
        sleep(4)

    def check(_: None) -> None:
        seen.append(time.monotonic())

    explore(main, 1, setup=setup, check=check, virtualize_time=True, clock=VirtualClock(10))
    assert seen == [13, 17, 13, 17] or seen == [13, 17]


def test_real_wait_in_virtualized_time_is_refused() -> None:
    with pytest.raises(FiberError, match="a wait of threading's"):
        run(lambda: threading.Event().wait(60), virtualize_time=True)


def test_virtualized_sleep_of_something_impossible_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        run(lambda: time.sleep(-1), virtualize_time=True)
    with pytest.raises(TypeError):
        run(lambda: time.sleep("1"), virtualize_time=True)  # type: ignore[arg-type]


def test_changes_may_be_entered_again_while_they_are_made() -> None:
    """As by a finalizer that runs a test of its own."""
    from pyfiber.testing import guards

    entered: list[int] = []

    def changes() -> list[guards.Change]:
        if not entered:
            entered.append(1)
            with shared:
                entered.append(2)
        return []

    shared = guards.Shared(changes)
    with shared:
        assert entered == [1, 2]
    assert shared.users == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
@pytest.mark.parametrize(
    "start",
    [
        lambda: os.fork() or os._exit(0),
        lambda: subprocess.run([sys.executable, "-c", ""]),
        lambda: multiprocessing.get_context("fork").Process(target=len, args=("",)).start(),
        lambda: multiprocessing.get_context("spawn").Process(target=len, args=("",)).start(),
    ],
    ids=["fork", "subprocess", "multiprocessing", "spawn"],
)
def test_process_is_refused_among_simulated_threads(start: Callable[[], object]) -> None:
    with pytest.raises(FiberError, match="starts a process, whose timing no schedule controls"):
        run(start, threads="simulated")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_process_is_allowed_among_simulated_threads_with_a_real_clock() -> None:
    def main() -> None:
        assert subprocess.run([sys.executable, "-c", ""]).returncode == 0

    run(main, threads="simulated", clock="real")


def test_native_thread_is_refused_among_simulated_threads() -> None:
    thread = pyfiber.native_thread(lambda: None)
    with pytest.raises(FiberError, match="starts a native thread"):
        run(lambda: thread.start(), threads="simulated")
    thread.start()
    thread.join()


def test_native_thread_that_outlives_a_run_is_found_in_the_tables_of_threading(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = _thread.allocate_lock()
    begun.acquire()

    def main() -> threading.Thread:
        thread = pyfiber.native_thread(begun.acquire)
        thread.start()
        threads[thread] = True
        return thread

    threads: dict[threading.Thread, bool] = {}
    thread = run(main, threads="simulated", clock="real")
    assert threads[thread]
    begun.release()
    thread.join()
    assert thread not in threading.enumerate()
    assert capsys.readouterr().err == ""


def test_read_of_an_empty_pipe_is_refused_and_of_others_is_not(tmp_path: Path) -> None:
    def main() -> bytes:
        reader, writer = os.pipe()
        with pytest.raises(FiberError, match=r"os\.read\(\) of a descriptor without data"):
            os.read(reader, 1)
        os.write(writer, b"1")
        found = os.read(reader, 1)
        os.close(writer)
        found += os.read(reader, 1)
        os.close(reader)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.read(reader, 1)
        with (tmp_path / "file").open("w+b", buffering=0) as file:
            return found + os.read(file.fileno(), 1)

    for threads in (False, "simulated"):
        assert run(main, threads=threads) == b"1"
