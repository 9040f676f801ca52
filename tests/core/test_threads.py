"""Fibers and threads: whose a fiber is, what happens when its thread goes."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyfiber import Fiber, FiberError, FiberExit, current
from tests.conftest import Child
from tests.support.gil import GIL, needs_gil


def on_thread(function: Callable[[], Any]) -> Any:
    """What `function` returns or raises on a thread of its own."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result()


class Lender:
    """A thread with a fiber suspended on it, which lives until `close()`."""

    def __init__(self, target: Callable[[], Any] | None = None) -> None:
        self.ready = threading.Event()
        self.leave = threading.Event()
        self.fiber: Fiber[Any] | None = None
        self.after: Callable[[], None] | None = None
        self.target = target
        self.thread = threading.Thread(target=self.live)
        self.thread.start()
        self.ready.wait()

    def live(self) -> None:
        self.fiber = Fiber(self.target or current().switch, name="lent")
        self.fiber.switch()
        self.ready.set()
        self.leave.wait()
        if self.after is not None:
            self.after()

    def close(self) -> None:
        self.leave.set()
        self.thread.join()

    def __enter__(self) -> Lender:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


# ---------------------------------------------------------------------- wrong thread


@pytest.mark.parametrize(
    "use",
    [
        lambda fiber: fiber.switch(),
        lambda fiber: fiber.switch(1),
        lambda fiber: fiber.throw(KeyError),
        lambda fiber: fiber.throw(FiberExit()),
        lambda fiber: fiber.result(),
        lambda fiber: fiber.join(),
        lambda fiber: fiber.exception(),
        lambda fiber: fiber.start(),
        lambda fiber: fiber.cancel(),
        lambda fiber: setattr(fiber, "parent", current()),
        lambda fiber: fiber.__init__(int),
    ],
    ids=[
        *("switch", "switch-value", "throw", "throw-exit", "result", "join", "exception"),
        *("start", "cancel", "parent", "init"),
    ],
)
def test_fiber_of_another_thread_refuses(use: Callable[[Fiber[Any]], Any]) -> None:
    with Lender() as lender:
        assert lender.fiber is not None
        with pytest.raises(FiberError):
            use(lender.fiber)
        assert lender.fiber.state == "parked"


def test_fiber_of_another_thread_says_what_to_do() -> None:
    with Lender() as lender:
        assert lender.fiber is not None
        with pytest.raises(FiberError, match="only on the thread that started it"):
            lender.fiber.switch()


def test_fiber_of_another_thread_can_be_looked_at() -> None:
    def work() -> None:
        here = 1
        parent = current().parent
        assert parent is not None
        parent.switch(here)

    with Lender(work) as lender:
        fiber = lender.fiber
        assert fiber is not None
        assert fiber.state == "parked"
        assert fiber.name == "lent"
        assert "lent" in repr(fiber)
        assert fiber.outcome is None
        assert not fiber.done()
        if GIL:
            assert fiber.frame is not None
            assert fiber.frame.f_locals["here"] == 1
        else:
            with pytest.raises(FiberError, match=r"use stack\(\) instead of frame"):
                _ = fiber.frame
        assert [entry.name for entry in fiber.stack()] == ["work"]
        assert fiber.context is not None
        fiber.name = "renamed"
        assert fiber.daemon is False


def test_main_fiber_of_another_thread_refuses() -> None:
    main = current()

    def use() -> None:
        with pytest.raises(FiberError, match="another thread"):
            main.switch()
        with pytest.raises(FiberError, match="another thread"):
            main.throw(KeyError)

    on_thread(use)


def test_finished_fiber_of_another_thread_says_it_has_finished() -> None:
    fiber = on_thread(lambda: [f := Fiber(lambda: 5), f.switch()][0])
    assert fiber.done()
    assert fiber.result() == 5
    with pytest.raises(FiberError, match="finished"):
        fiber.switch()


def test_fresh_fiber_belongs_to_nobody_until_it_starts() -> None:
    fiber: Fiber[Any] = Fiber(threading.get_ident)
    assert on_thread(fiber.switch) != threading.get_ident()


def test_fresh_fiber_with_a_parent_here_started_elsewhere_returns_there() -> None:
    fiber: Fiber[int] = Fiber(lambda: 6)
    assert fiber.parent is current()
    assert on_thread(fiber.switch) == 6


def test_main_fibers_differ_between_threads() -> None:
    main = current()
    other = on_thread(current)
    assert other is not main
    gc.collect()
    assert other.state == "done"
    with pytest.raises(FiberError):
        other.switch()


# ------------------------------------------------------------------- many of each


def test_many_threads_each_with_fibers() -> None:
    def work(seed: int) -> int:
        main = current()

        def count() -> int:
            total = 0
            for _ in range(50):
                total += main.switch(threading.get_ident())
            return total

        fibers = [Fiber(count) for _ in range(20)]
        assert {fiber.switch() for fiber in fibers} == {threading.get_ident()}
        for _ in range(49):
            for fiber in fibers:
                assert fiber.switch(seed) == threading.get_ident()
        return sum(fiber.switch(seed) for fiber in fibers)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40))) == [seed * 1000 for seed in range(40)]


def test_threads_started_inside_of_fibers() -> None:
    def work() -> int:
        return on_thread(lambda: Fiber(lambda: on_thread(lambda: 9)).switch())

    assert Fiber(work).switch() == 9


def test_thousand_threads_one_after_another() -> None:
    for number in range(300):
        found: list[int] = []
        thread = threading.Thread(target=lambda: found.append(Fiber(lambda: 1).switch()))  # noqa: B023
        thread.start()
        thread.join()
        assert found == [1], number


# ------------------------------------------------------------------- the thread ends


def test_thread_exit_runs_the_finally_blocks_of_suspended_fibers() -> None:
    log: list[Any] = []
    kept: list[Fiber[Any]] = []

    def thread() -> None:
        main = current()

        def work(number: int) -> None:
            try:
                main.switch()
            finally:
                log.append((number, threading.get_ident()))

        for number in range(10):
            fiber: Fiber[None] = Fiber(work, (number,))
            fiber.switch()
            kept.append(fiber)
        log.append(threading.get_ident())

    worker = threading.Thread(target=thread)
    worker.start()
    worker.join()
    # join() returns before the thread's state is cleared.
    for _ in range(1000):
        if len(log) == 11:
            break
        threading.Event().wait(0.001)
    ident = log.pop(0)
    assert sorted(log) == [(number, ident) for number in range(10)]
    assert all(fiber.done() for fiber in kept)
    for fiber in kept:
        with pytest.raises(FiberError):
            fiber.switch()


def test_thread_exit_with_a_fiber_that_fails_in_finally(child: Child) -> None:
    done = child(
        """
        import sys, threading
        from pyfiber import Fiber, current
        kept = []
        def thread():
            main = current()
            def work():
                try:
                    main.switch()
                finally:
                    raise KeyError("at thread exit")
            kept.append(Fiber(work))
            kept[0].switch()
        worker = threading.Thread(target=thread)
        worker.start()
        worker.join()
        while not kept[0].done():
            pass
        print(kept[0].outcome)
        """,
        check=False,
    )
    assert done.returncode == 0
    assert "Failed(exception=KeyError('at thread exit'))" in done.stdout
    assert "KeyError" in done.stderr


# --------------------------------------------------------------- dropped elsewhere


def test_last_reference_dropped_elsewhere_is_unwound_by_the_owner() -> None:
    log: list[Any] = []

    def work() -> None:
        parent = current().parent
        assert parent is not None
        try:
            parent.switch()
        finally:
            log.append(threading.get_ident())

    lender = Lender(work)
    dropped = weakref.ref(lender.fiber)  # type: ignore[arg-type]
    checked: list[Any] = []

    def after() -> None:
        checked.append(list(log))
        Fiber(int).switch()  # the owner's next switch
        checked.append(list(log))

    lender.after = after
    lender.fiber = None
    gc.collect()
    assert log == []
    lender.close()
    assert checked == [[], [lender.thread.ident]]
    assert dropped() is None


def test_many_last_references_dropped_elsewhere_while_the_owner_switches() -> None:
    """Both threads at full speed: one makes and suspends, the other drops."""
    import queue

    passed: queue.Queue[Any] = queue.Queue(maxsize=50)
    ended = []

    def drop() -> None:
        while (fiber := passed.get()) is not None:
            del fiber

    dropper = threading.Thread(target=drop)
    dropper.start()
    main = current()

    def work(number: int) -> None:
        try:
            main.switch()
        finally:
            ended.append(number)

    for number in range(2000):
        fiber = Fiber(work, (number,))
        fiber.switch()
        passed.put(fiber)
        del fiber
    passed.put(None)
    dropper.join()
    Fiber(int).switch()
    assert sorted(ended) == list(range(2000))


def test_fresh_fiber_dropped_elsewhere_is_just_freed() -> None:
    box: list[Fiber[int]] = [Fiber(int)]
    alive = weakref.ref(box[0])
    on_thread(box.clear)
    assert alive() is None


def test_finished_fiber_dropped_elsewhere_is_just_freed() -> None:
    box: list[Fiber[int]] = [Fiber(int)]
    box[0].switch()
    alive = weakref.ref(box[0])
    on_thread(box.clear)
    assert alive() is None


def test_reference_dropped_elsewhere_after_the_owner_thread_ended() -> None:
    box: list[Any] = []

    def thread() -> None:
        box.append(Fiber(current().switch))
        box[0].switch()

    worker = threading.Thread(target=thread)
    worker.start()
    worker.join()
    box.clear()
    gc.collect()


def test_memory_that_a_thread_kept_for_new_objects_goes_with_it() -> None:
    def make_and_drop() -> None:
        fibers = [Fiber(int) for _ in range(200)]
        for fiber in fibers:
            fiber.switch()

    def blocks_after(threads: int) -> int:
        for _ in range(threads):
            on_thread(make_and_drop)
        gc.collect()
        return sys.getallocatedblocks()

    before = blocks_after(2)
    assert blocks_after(20) - before < 1000  # each thread had kept 200 fibers


def test_collected_on_another_thread_while_suspended() -> None:
    """The collector of this thread finds garbage that holds a fiber of another."""
    log: list[str] = []

    class Holder:
        pass

    def work() -> None:
        parent = current().parent
        assert parent is not None
        try:
            parent.switch()
        finally:
            log.append("unwound")

    lender = Lender(work)
    holder: Any = Holder()
    holder.itself = holder
    holder.fiber = lender.fiber
    lender.after = lambda: Fiber(int).switch()
    lender.fiber = None
    del holder
    gc.collect()
    assert log == []
    lender.close()
    assert log == ["unwound"]


def test_released_interpreter_lock_lets_other_threads_run_their_fibers() -> None:
    """A fiber blocks in a system call; fibers of another thread go on."""
    started, finish = threading.Event(), threading.Event()
    log: list[str] = []

    def other() -> None:
        started.wait()
        log.append(Fiber(lambda: "other").switch())
        finish.set()

    thread = threading.Thread(target=other)
    thread.start()

    def blocks() -> str:
        started.set()
        finish.wait()
        return "unblocked"

    log.append(Fiber(blocks).switch())
    thread.join()
    assert log == ["other", "unblocked"]


@needs_gil("without it, the memory that fails is other threads' as well")
def test_thread_whose_record_finds_no_memory_gets_an_error(child: Child) -> None:
    """The n-th request for memory fails, for each n; the thread can try again."""
    pytest.importorskip("_testcapi")
    done = child(
        """
        import _testcapi, sys, threading
        import pyfiber
        from tests.support.growth import grows

        def attempt(n, ask):
            try:
                _testcapi.set_nomemory(n, n + 1)
                ask()
            except MemoryError:
                failed.append(n)
            finally:
                _testcapi.remove_mem_hooks()
            assert pyfiber.Fiber(lambda: 5).switch() == 5

        def round():
            for ask in pyfiber.current, waits.unpark:
                for n in range(1, 12):
                    thread = threading.Thread(target=attempt, args=(n, ask))
                    thread.start()
                    thread.join()

        scheduler = pyfiber.Scheduler()
        waits = scheduler.spawn(pyfiber.park)
        failed = []
        round()
        kinds = len(failed)
        print(kinds >= 6, not grows(round, 20))
        scheduler.close()
        """
    )
    assert done.stdout == "True True\n"


def test_thread_whose_first_fiber_is_one_of_the_collectors_leaves_nothing() -> None:
    """The collector's code needs the thread's record in the midst of its making."""
    mains: list[weakref.ref[Any]] = []

    class Garbage:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            mains.append(weakref.ref(current()))

    def first_use(allocations: int) -> None:
        taken = [{} for _ in range(100)]  # what the interpreter has of them in reserve
        Garbage()
        gc.set_threshold(gc.get_count()[0] + allocations)
        try:
            mains.append(weakref.ref(current()))
        finally:
            gc.set_threshold(*before)
            gc.collect()  # where there was no reason to
            assert len(taken) == 100

    before = gc.get_threshold()
    for allocations in range(1, 40):
        on_thread(lambda: first_use(allocations))  # noqa: B023
    gc.collect()
    assert [main() for main in mains] == [None] * len(mains)


def test_thread_whose_dict_outlives_it_names_the_fibers_that_stay(child: Child) -> None:
    done = child(
        """
        import ctypes, gc, io, sys, threading
        import pyfiber

        address_of_dict = ctypes.pythonapi.PyThreadState_GetDict
        address_of_dict.restype = ctypes.c_void_p

        def work():
            fibers.append(pyfiber.Fiber(pyfiber.current().switch, name="stays"))
            fibers[0].switch()
            held.append(ctypes.cast(address_of_dict(), ctypes.py_object).value)

        def tell(info):
            told.append((info.object.name, str(info.exc_value)))
            ended.set()

        sys.unraisablehook = tell
        told, held, fibers = [], [], []
        ended = threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if sys.platform != "win32":  # which tells nobody of a thread's own end
            ended.wait(30)
            ((name, text),) = told
            assert name == "stays" and "can never be unwound" in text
        pyfiber.debug.dump_fibers(io.StringIO(), all_threads=True)
        held.clear()
        gc.collect()
        print(pyfiber.Fiber(lambda: "goes on").switch())
        """
    )
    assert done.stdout == "goes on\n"
