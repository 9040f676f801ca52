"""What went wrong where others patched locks and threads: each trap by its name."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import queue
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyfiber
from pyfiber import _engine

EARLY_LOGGER = logging.getLogger("tests.patch.early")
EARLY_STREAM = io.StringIO()
EARLY_HANDLER = logging.StreamHandler(EARLY_STREAM)
EARLY_LOGGER.addHandler(EARLY_HANDLER)
EARLY_LOGGER.propagate = False


@pytest.fixture(autouse=True)
def patched() -> Iterator[None]:
    with pyfiber.patch():
        yield
    assert _engine._lot_count() == 0


# logging ------------------------------------------------------------------------------------------


class Slow(logging.Handler):
    """Its emit() waits, as one that sends records over a network."""

    def __init__(self, rest: Callable[[], object]) -> None:
        super().__init__()
        self.rest = rest
        self.inside = 0
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.inside += 1
        assert self.inside == 1, "the handler's lock does not exclude"
        self.rest()
        self.seen.append(record.getMessage())
        self.inside -= 1


def test_handler_that_parks_in_emit_is_used_by_one_at_a_time() -> None:
    """Two fibers, and a plain thread, log at once."""
    handler = Slow(lambda: time.sleep(0.001))
    logger = logging.Logger("slow")
    logger.addHandler(handler)

    def log(name: str) -> None:
        for number in range(5):
            logger.warning("%s %d", name, number)

    def main() -> None:
        thread = threading.Thread(target=log, args=("thread",))
        thread.start()
        for name in ("a", "b"):
            pyfiber.spawn(log, name)
        thread.join()

    pyfiber.run(main)
    assert len(handler.seen) == 15
    for name in ("a", "b", "thread"):
        assert [each for each in handler.seen if each.startswith(name + " ")] == [
            f"{name} {number}" for number in range(5)
        ]


def test_handler_made_before_the_patch_serves_fibers() -> None:
    def log(name: str) -> None:
        with EARLY_HANDLER.lock:  # type: ignore[union-attr]
            pyfiber.sleep(0.001)
            EARLY_LOGGER.warning(name)  # takes it once more

    pyfiber.run(lambda: [pyfiber.spawn(log, name) for name in "abc"])
    assert EARLY_STREAM.getvalue().split() == ["a", "b", "c"]


def test_failure_is_logged_while_a_fiber_is_in_emit() -> None:
    """The loop logs: it is the thread's code, and no fiber that could wait."""
    handler = Slow(pyfiber.yield_now)
    handler.emit = lambda record: handler.seen.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("pyfiber")
    logger.addHandler(handler)
    logger.propagate = False

    def holder() -> None:
        with handler.lock:  # type: ignore[union-attr]
            pyfiber.spawn(lambda: 1 / 0)
            pyfiber.sleep(0.01)

    try:
        pyfiber.run(holder)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    assert len(handler.seen) == 1


# fork ---------------------------------------------------------------------------------------------

FORK = """
import os, sys, threading, logging, queue, time
import pyfiber
pyfiber.patch()

lock, rlock, handler = threading.Lock(), threading.RLock(), logging.NullHandler()
os.register_at_fork(after_in_child=lock._at_fork_reinit)
os.register_at_fork(after_in_child=rlock._at_fork_reinit)
handler.createLock()

def holds():
    with lock, rlock, handler.lock:
        pyfiber.sleep(0.2)

def waits():
    with lock:
        return "waiter"

def main():
    holder = pyfiber.spawn(holds)
    pyfiber.sleep(0.01)
    waiter = pyfiber.spawn(waits)
    pyfiber.sleep(0.01)
    elsewhere = threading.Thread(target=pyfiber.run, args=(waits,))
    elsewhere.start()
    time.sleep(0.01)
    child = os.fork()
    if child == 0:
        # Fresh locks for who asks for that; the waiter, who was woken, looks again.
        assert not lock.locked() or waiter.done()
        with rlock:
            pass
        assert waiter.result(timeout=5) == "waiter"
        assert pyfiber.spawn(waits).result(timeout=5) == "waiter"
        elsewhere.join()
        os._exit(7)
    assert os.waitstatus_to_exitcode(pyfiber.to_thread(os.waitpid, child, 0)[1]) == 7
    holder.join(); elsewhere.join()
    assert waiter.result() == "waiter"

pyfiber.run(main)
print("good")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork_with_a_lock_held_by_another_fiber(child: Any) -> None:
    done = child(FORK, check=False)
    assert done.stdout == "good\n", done.stderr


# those who are in no fiber ------------------------------------------------------------------------


def test_threads_and_asyncio_notice_nothing() -> None:
    """gevent#2026, temporalio/sdk-python#291: loops and executors of other threads go on."""
    here = threading.get_ident()

    async def work() -> tuple[int, str, bool]:
        lock = asyncio.Lock()
        async with lock:
            ident = await asyncio.to_thread(threading.get_ident)
        q: queue.Queue[str] = queue.Queue()
        asyncio.get_running_loop().call_later(0.001, q.put, "item")
        item = await asyncio.to_thread(q.get)
        return ident, item, asyncio.get_running_loop() is asyncio._get_running_loop()

    def loop_in_a_thread() -> None:
        results.append(asyncio.run(work()))

    results: list[tuple[int, str, bool]] = []
    thread = threading.Thread(target=loop_in_a_thread)

    def main() -> None:
        thread.start()
        thread.join()

    pyfiber.run(main)
    ident, item, running = results[0]
    assert ident not in (here, thread.ident)
    assert (item, running) == ("item", True)
    assert asyncio.run(work())[1:] == ("item", True)


def test_future_of_another_threads_loop_is_waited_for_in_a_fiber() -> None:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    ticks: list[int] = []

    async def work() -> str:
        await asyncio.sleep(0.02)
        return "done"

    def tick() -> None:
        for _ in range(5):
            ticks.append(1)
            pyfiber.sleep(0.001)

    def main() -> None:
        thread.start()
        pyfiber.spawn(tick)
        assert asyncio.run_coroutine_threadsafe(work(), loop).result() == "done"
        assert len(ticks) == 5
        loop.call_soon_threadsafe(loop.stop)
        thread.join()

    pyfiber.run(main)
    loop.close()


# imports ------------------------------------------------------------------------------------------


def test_module_half_imported_by_another_fiber_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.05)\nvalue = 3\n")
    (tmp_path / "circular_a.py").write_text("import time; time.sleep(0.01)\nimport circular_b\n")
    (tmp_path / "circular_b.py").write_text("import time; time.sleep(0.01)\nimport circular_a\n")
    monkeypatch.syspath_prepend(tmp_path)

    def use() -> int:
        import slow_to_import  # type: ignore[import-not-found]

        return slow_to_import.value  # type: ignore[no-any-return]

    def main() -> None:
        fibers = [pyfiber.spawn(use) for _ in range(3)]
        thread_result: list[int] = []
        thread = threading.Thread(target=lambda: thread_result.append(use()))
        thread.start()
        assert [fiber.result() for fiber in fibers] == [3, 3, 3]
        thread.join()
        assert thread_result == [3]
        # Each waits for what the other is importing: the import system finds that out.
        both = [pyfiber.spawn(__import__, f"circular_{name}") for name in "ab"]
        for fiber in both:
            fiber.result(timeout=10)

    try:
        pyfiber.run(main)
    finally:
        for name in ("slow_to_import", "circular_a", "circular_b"):
            sys.modules.pop(name, None)


def test_import_that_is_cancelled_leaves_the_next_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slowly.py").write_text("import time\ntime.sleep(0.02)\nvalue = 3\n")
    monkeypatch.syspath_prepend(tmp_path)

    def main() -> None:
        first = pyfiber.spawn(__import__, "slowly")
        pyfiber.sleep(0.005)
        first.cancel()
        assert first.join()
        assert first.cancelled()
        assert pyfiber.spawn(__import__, "slowly").result().value == 3

    try:
        pyfiber.run(main)
    finally:
        sys.modules.pop("slowly", None)


def test_import_in_a_raw_fiber_is_that_of_the_fiber_that_entered_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them at once: nobody sees half a module. Its own module it sees, as ever."""
    (tmp_path / "raw_slow.py").write_text("import time\ntime.sleep(0.02)\nvalue = 3\n")
    (tmp_path / "raw_inner.py").write_text(
        "import pyfiber\npart = 1\n"
        "seen = pyfiber.Fiber(lambda: __import__('raw_inner').part).switch()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def in_raw_fiber(name: str) -> Any:
        return pyfiber.Fiber(__import__, (name,)).switch()

    def main() -> None:
        fibers = [pyfiber.spawn(in_raw_fiber, "raw_slow") for _ in range(2)]
        assert [fiber.result(10).value for fiber in fibers] == [3, 3]
        assert pyfiber.spawn(__import__, "raw_inner").result(10).seen == 1

    try:
        pyfiber.run(main)
    finally:
        for name in ("raw_slow", "raw_inner"):
            sys.modules.pop(name, None)


def test_module_whose_import_begins_a_run_is_imported_in_that_run(
    tmp_path: Path, child: Any
) -> None:
    """The run cannot wait for the import, which waits for the run."""
    (tmp_path / "begins_a_run.py").write_text(
        "import pyfiber\npart = 1\n"
        "def use():\n    import begins_a_run\n    return begins_a_run.part\n"
        "seen = pyfiber.run(lambda: pyfiber.spawn(use).result())\n"
    )
    done = child(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import pyfiber
        with pyfiber.patch():
            import begins_a_run
        print(begins_a_run.seen)
        """
    )
    assert done.stdout == "1\n"


def test_module_that_patches_is_imported_in_a_run(tmp_path: Path, child: Any) -> None:
    """So is one that unpatches, and one whose import has begun the run that patches."""
    (tmp_path / "patches.py").write_text(
        "import pyfiber; patch = pyfiber.patch(); import colorsys\n"
    )
    (tmp_path / "unpatches.py").write_text("import patches; patches.patch.undo(); import cmd\n")
    (tmp_path / "outer.py").write_text(
        "import pyfiber\ndef main():\n    import patches, unpatches\n    pyfiber.patch()\n"
        "pyfiber.run(main)\n"
    )
    done = child(
        f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import outer
        import importlib
        importlib.reload(outer)
        print("good")
        """
    )
    assert done.stdout == "good\n"


# raw fibers ---------------------------------------------------------------------------------------


def wait_in_many_ways(lock: Any, q: queue.Queue[int], sock: socket.socket) -> bytes:
    """Each takes what another thread, or another fiber, gives."""
    time.sleep(0.001)
    with lock:
        q.get()
    return sock.recv(1)


def test_raw_fiber_in_a_run_parks_as_pyfibers_own_waits_do() -> None:
    lock, q, turns = threading.Lock(), queue.Queue[int](), []
    near, far = socket.socketpair()

    def other() -> None:
        pyfiber.sleep(0.003)
        lock.release()
        pyfiber.sleep(0.003)
        turns.append("other")
        q.put(1)
        far.send(b"x")

    def main() -> None:
        lock.acquire()
        pyfiber.spawn(other)
        raw: pyfiber.Fiber[bytes] = pyfiber.Fiber(wait_in_many_ways, (lock, q, near))
        assert raw.switch() == b"x"
        turns.append("main")

    with near, far:
        pyfiber.run(main)
    assert turns == ["other", "main"]


def test_raw_fiber_outside_of_a_run_blocks_as_without_a_patch() -> None:
    lock, q = threading.Lock(), queue.Queue[int]()
    near, far = socket.socketpair()
    lock.acquire()

    def thread() -> None:
        lock.release()
        q.put(1)
        far.send(b"x")

    with near, far:
        timer = threading.Timer(0.01, thread)
        timer.start()
        raw: pyfiber.Fiber[bytes] = pyfiber.Fiber(wait_in_many_ways, (lock, q, near))
        assert raw.switch() == b"x"
        timer.join()


# programs -----------------------------------------------------------------------------------------


def test_late_patch_in_the_middle_of_a_run(child: Any) -> None:
    """Locks are held, and waited for, when it comes."""
    done = child(
        textwrap.dedent(
            """
            import threading, queue
            import pyfiber
            lock, rlock, condition, q = (
                threading.Lock(), threading.RLock(), threading.Condition(), queue.Queue()
            )

            def main():
                lock.acquire()
                rlock.acquire()
                with condition:
                    pyfiber.patch()
                    condition.notify()
                getter = pyfiber.spawn(q.get)
                waiter = pyfiber.spawn(lock.acquire)
                pyfiber.sleep(0)
                rlock.release()
                lock.release()
                q.put(1)
                assert getter.result() == 1 and waiter.result()

            pyfiber.run(main)
            print("good")
            """
        )
    )
    assert done.stdout == "good\n"


def test_subinterpreter_blocks_as_without_a_patch(child: Any) -> None:
    """Its locks have the same methods. It is entered by a fiber, while others wait for locks."""
    pytest.importorskip("_testcapi")
    done = child(
        """
        import threading, pyfiber
        from _testcapi import run_in_subinterp

        CODE = '''
        import queue, threading
        lock, rlock, q, condition = (
            threading.Lock(), threading.RLock(), queue.SimpleQueue(), threading.Condition()
        )
        lock.acquire()
        threads = [threading.Timer(0.01, lock.release), threading.Timer(0.02, q.put, (1,))]
        for thread in threads:
            thread.start()
        with lock, rlock, rlock, condition:
            assert condition._is_owned()
            condition.wait(0.001)
        assert q.get() == 1
        for thread in threads:
            thread.join()
        '''

        def waiter():
            with lock, rlock:
                pass

        def main():
            with rlock:
                lock.acquire()
                fiber = pyfiber.spawn(waiter)
                other = pyfiber.spawn(pyfiber.sleep, 0.001)
                pyfiber.sleep(0)
                print(run_in_subinterp(CODE))
                assert not fiber.done() and not other.done(), "it must not be left"
                lock.release()
            fiber.result()

        pyfiber.patch()
        lock, rlock = threading.Lock(), threading.RLock()
        pyfiber.run(main)
        print("good")
        """
    )
    assert done.stdout == "0\ngood\n"


def test_exit_with_fibers_in_the_lot_is_quiet(child: Any) -> None:
    done = child(
        """
        import threading, pyfiber
        pyfiber.patch()
        lock, rlock, condition = threading.Lock(), threading.RLock(), threading.Condition()
        lock.acquire()
        scheduler = pyfiber.Scheduler()

        def waits():
            with rlock, condition:
                condition.wait()

        scheduler.spawn(lock.acquire)
        scheduler.spawn(waits)
        scheduler.spawn(waits)
        scheduler.run_once()
        print("good")
        """
    )
    assert done.stdout == "good\n"
