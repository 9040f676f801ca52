"""threading's locks, conditions, threads, and what is made of them, in fibers of a run."""

from __future__ import annotations

import gc
import queue
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import pytest

import pyfiber
from pyfiber import _engine
from pyfiber.testing import run

LOCKS = [threading.Lock, threading.RLock]
EARLY_LOCK = threading.Lock()
EARLY_ACQUIRE, EARLY_RELEASE = EARLY_LOCK.acquire, EARLY_LOCK.release
EARLY_CONDITIONS = [threading.Condition(), threading.Condition(threading.Lock())]


@pytest.fixture(autouse=True)
def patched() -> Iterator[None]:
    with pyfiber.patch(time=True, threading=True, queue=True):
        yield
    gc.collect()
    assert _engine._lot_count() == 0


def spawn_all(*fns: Callable[[], Any]) -> list[pyfiber.Fiber[Any]]:
    fibers = [pyfiber.spawn(fn) for fn in fns]
    pyfiber.sleep(0.01)
    return fibers


# locks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LOCKS)
def test_lock_parks_and_is_given_in_turn(kind: Callable[[], Any]) -> None:
    lock, order = kind(), []

    def worker(name: str) -> None:
        for _ in range(3):
            with lock:
                order.append(name)
                pyfiber.sleep(1)

    run(lambda: spawn_all(*(lambda name=name: worker(name) for name in "abc")))
    assert "".join(order) == "abc" * 3


def test_lock_made_before_the_patch_parks() -> None:
    def main() -> None:
        assert EARLY_ACQUIRE()
        waiter, _ = spawn_all(EARLY_ACQUIRE, EARLY_RELEASE)
        assert waiter.result() is True
        EARLY_RELEASE()

    run(main)
    assert not EARLY_LOCK.locked()


@pytest.mark.parametrize("kind", LOCKS)
def test_acquire_times_out_by_the_clock_of_the_run(kind: Callable[[], Any]) -> None:
    lock = kind()

    def waiter() -> None:
        begun = pyfiber.now()
        assert lock.acquire(timeout=3) is False
        assert pyfiber.now() - begun == 3
        assert lock.acquire(False) is False
        assert lock.acquire(blocking=False) is False
        assert lock.acquire(True, 0) is False

    def main() -> None:
        with lock:
            pyfiber.spawn(waiter).result()

    run(main)


@pytest.mark.parametrize("kind", LOCKS)
@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((False, 1), ValueError),
        ((True, -2), ValueError),
        ((True, 1e30), OverflowError),
        ((True, "x"), TypeError),
        ((1, 2, 3), TypeError),
    ],
)
def test_acquire_refuses_what_it_refused(
    kind: Callable[[], Any], args: tuple[Any, ...], error: type[Exception]
) -> None:
    lock = kind()

    def main() -> None:
        with pytest.raises(error):
            lock.acquire(*args)
        with pytest.raises(TypeError):
            lock.acquire(unknown=1)

    run(main)
    main()
    assert lock.acquire(False)
    lock.release()


@pytest.mark.parametrize("kind", LOCKS)
def test_acquire_is_cancelled_while_it_waits(kind: Callable[[], Any]) -> None:
    lock = kind()

    def main() -> None:
        with lock:
            first, second = spawn_all(lock.acquire, lambda: lock.acquire() and lock.release())
            first.cancel()
            assert first.join()
            assert first.cancelled()
        second.result()

    run(main)
    assert lock.acquire(False)
    lock.release()


def test_lock_that_came_before_the_cancellation_is_taken() -> None:
    lock = threading.Lock()

    def waiter() -> None:
        with lock:
            got.append(True)
            pyfiber.sleep(1)

    def main() -> None:
        lock.acquire()
        (fiber,) = spawn_all(waiter)
        lock.release()
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()
        assert got

    got: list[bool] = []
    run(main)
    assert not lock.locked()


def test_waiter_that_is_unwound_wakes_the_next() -> None:
    lock = threading.Lock()
    lock.acquire()
    waits, done = threading.Event(), threading.Event()

    def elsewhere() -> None:
        pyfiber.spawn(pyfiber.yield_now)
        waits.set()
        with lock:
            done.set()

    scheduler = pyfiber.Scheduler()
    scheduler.spawn(lock.acquire)
    scheduler.run_once()
    thread = threading.Thread(target=pyfiber.run, args=(elsewhere,))
    thread.start()
    waits.wait()
    while len(_engine._lot_waiters(lock)) < 2:
        time.sleep(0.001)
    lock.release()  # the first is woken and does not run any more
    scheduler.close()
    assert done.wait(30)
    thread.join()


def test_releaser_that_acquires_at_once_does_not_come_first() -> None:
    lock, turns = threading.Lock(), []

    def greedy() -> None:
        for _ in range(5):
            with lock:
                turns.append("greedy")
                pyfiber.sleep(1)

    def main() -> None:
        pyfiber.spawn(greedy)
        pyfiber.sleep(0.5)
        with lock:
            turns.append("main")

    run(main)
    assert turns[:2] == ["greedy", "main"]


@pytest.mark.parametrize("kind", LOCKS)
def test_thread_that_uses_a_patched_lock(kind: Callable[[], Any]) -> None:
    """Plain threads and fibers of two runs: nobody is left, and never two at once."""
    lock, inside, count = kind(), [], 0

    def worker(rest: Callable[[], object]) -> None:
        nonlocal count
        for _ in range(30):
            with lock:
                inside.append(1)
                assert len(inside) == 1
                rest()
                inside.pop()
                count += 1

    def in_run() -> None:
        for _ in range(4):
            pyfiber.spawn(worker, lambda: pyfiber.sleep(0))

    threads = [threading.Thread(target=worker, args=(lambda: time.sleep(0),)) for _ in range(3)]
    threads += [threading.Thread(target=pyfiber.run, args=(in_run,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count == 30 * (3 + 8)


def test_thread_releases_what_a_fiber_waits_for() -> None:
    lock = threading.Lock()

    def main() -> None:
        lock.acquire()
        threading.Timer(0.01, lock.release).start()
        lock.acquire()
        lock.release()

    pyfiber.run(main)


def test_release_of_a_free_lock_is_refused() -> None:
    def main() -> None:
        for lock in (threading.Lock(), threading.RLock()):
            with pytest.raises(RuntimeError):
                lock.release()

    run(main)


def test_deadlock_tells_the_lock_and_who_holds_it(child: Callable[[str], Any]) -> None:
    """In a process of its own: a thread of the test runner, say, might release the lock."""
    done = child("""
        import threading
        import pyfiber

        def holder(lock):
            lock.acquire()
            pyfiber.park()

        def main(lock):
            pyfiber.spawn(holder, lock).name = "holder"
            pyfiber.sleep(0)
            lock.acquire()

        pyfiber.patch(threading=True)
        for lock in (threading.Lock(), threading.RLock()):
            try:
                pyfiber.run(main, lock)
            except pyfiber.DeadlockError as error:
                print(error)
    """)
    assert "waits for <locked _thread.lock object" in done.stdout
    assert re.search(r"RLock object .*, held by fiber 'holder'", done.stdout)


# RLock --------------------------------------------------------------------------------------------


def test_rlock_is_the_fibers_not_the_threads() -> None:
    lock: Any = threading.RLock()

    def other() -> None:
        assert not lock.acquire(False)
        assert not lock._is_owned()
        assert lock._recursion_count() == 0
        with pytest.raises(RuntimeError, match="un-acquired"):
            lock.release()
        with pytest.raises(RuntimeError, match="un-acquired"):
            lock._release_save()

    def main() -> None:
        with lock, lock:
            assert lock._is_owned()
            assert lock._recursion_count() == 2
            pyfiber.spawn(other).result()
        assert not lock._is_owned()
        pyfiber.spawn(lambda: lock.acquire(False) and lock.release()).result()

    run(main)


def test_rlock_held_around_the_run_is_its_fibers_too_one_at_a_time() -> None:
    lock: Any = threading.RLock()
    elsewhere: list[bool] = []

    def inner(name: str) -> None:
        with lock:
            assert lock._recursion_count() == 1
            order.append(name)
            pyfiber.sleep(1)
            order.append(name)

    order: list[str] = []
    with lock:
        run(lambda: spawn_all(lambda: inner("a"), lambda: inner("b")))
        thread = threading.Thread(target=lambda: elsewhere.append(lock.acquire(False)))
        thread.start()
        thread.join()
        assert lock._recursion_count() == 1
    assert order == ["a", "a", "b", "b"]
    assert elsewhere == [False]


def test_rlock_of_a_fiber_that_has_ended_is_not_kept() -> None:
    lock = threading.RLock()
    known = weakref.ref(lock)
    pyfiber.run(lambda held: held.acquire(), lock)
    assert _engine._lot_count() == 0
    assert lock._is_owned()  # type: ignore[attr-defined]  # the thread's, as without a patch
    del lock
    assert known() is None


def test_rlock_of_one_fiber_excludes_other_threads() -> None:
    lock, tried = threading.RLock(), []

    def main() -> None:
        with lock:
            thread = threading.Thread(target=lambda: tried.append(lock.acquire(False)))
            thread.start()
            thread.join()

    pyfiber.run(main)
    assert tried == [False]


def test_rlock_dies_after_its_holder_was_unwound() -> None:
    lock = threading.RLock()
    scheduler = pyfiber.Scheduler()

    def holder() -> None:
        with lock, lock:
            pyfiber.park()

    scheduler.spawn(holder)
    scheduler.run_once()
    assert lock._is_owned()  # type: ignore[attr-defined]
    scheduler.close()
    assert not lock._is_owned()  # type: ignore[attr-defined]


# conditions ---------------------------------------------------------------------------------------


def conditions() -> list[threading.Condition]:
    return [
        threading.Condition(),
        threading.Condition(threading.Lock()),
        threading.Condition(pyfiber.Lock()),  # type: ignore[arg-type]
        *EARLY_CONDITIONS,
    ]


CONDITIONS = pytest.mark.parametrize("at", range(5))


@CONDITIONS
def test_condition_waits_and_is_notified(at: int) -> None:
    condition, items = conditions()[at], []

    def taker() -> int:
        with condition:
            while not items:
                condition.wait()
            return items.pop()

    def main() -> None:
        fibers = spawn_all(taker, taker)
        for item in range(2):
            with condition:
                items.append(item)
                condition.notify()
        assert sorted(fiber.result() for fiber in fibers) == [0, 1]

    run(main)


@CONDITIONS
def test_condition_times_out_by_the_clock_of_the_run(at: int) -> None:
    condition = conditions()[at]

    def main() -> None:
        begun = pyfiber.now()
        with condition:
            assert condition.wait(2) is False
            assert condition.wait_for(lambda: False, 3) is False
        assert pyfiber.now() - begun == 5

    run(main)


@CONDITIONS
def test_cancelled_waiter_has_the_lock_again(at: int) -> None:
    """Somebody holds it when the cancellation comes: it is waited for, whatever happens."""
    condition, log = conditions()[at], []

    def waiter() -> None:
        with condition:
            try:
                condition.wait()
            finally:
                log.append("waiter has it")

    def main() -> None:
        (fiber,) = spawn_all(waiter)
        with condition:
            fiber.cancel()
            pyfiber.sleep(1)
            fiber.cancel()
            pyfiber.sleep(1)
            log.append("main lets go")
        fiber.join()
        assert fiber.cancelled()
        assert condition.acquire(False)
        condition.release()

    run(main)
    assert log == ["main lets go", "waiter has it"]


@CONDITIONS
def test_notification_of_a_cancelled_waiter_goes_to_the_next(at: int) -> None:
    condition, woken = conditions()[at], []

    def waiter(name: str) -> None:
        with condition:
            condition.wait()
            woken.append(name)

    def main() -> None:
        first, second = spawn_all(lambda: waiter("first"), lambda: waiter("second"))
        with condition:
            first.cancel()
            pyfiber.sleep(1)  # it is cancelled, and waits for the lock
            condition.notify()
        second.result(timeout=5)
        assert first.cancelled()

    run(main)
    assert woken == ["second"]


@CONDITIONS
def test_dying_waiter_does_not_release_what_is_anothers(at: int) -> None:
    if at == 2:
        pytest.skip("pyfiber's Lock knows this by itself, within pyfiber's Condition")
    condition = conditions()[at]
    scheduler = pyfiber.Scheduler()

    def waiter() -> None:
        with condition:
            condition.wait()

    def holder() -> None:
        condition.acquire()
        pyfiber.park()

    scheduler.spawn(waiter)
    scheduler.run_once()
    thread_has_it, let_go = threading.Event(), threading.Event()

    def thread() -> None:
        with condition:
            thread_has_it.set()
            let_go.wait()

    other = threading.Thread(target=thread)
    other.start()
    thread_has_it.wait()
    scheduler.close()
    assert not condition.acquire(False)
    let_go.set()
    other.join()
    assert condition.acquire(False)
    condition.release()


def test_wait_without_the_lock_is_refused() -> None:
    def main() -> None:
        for condition in conditions():
            with pytest.raises(RuntimeError, match="un-acquired"):
                condition.wait()

    run(main)


# what is made of them -----------------------------------------------------------------------------


def test_event_semaphore_and_barrier_wait_in_fibers() -> None:
    event, semaphore, barrier = threading.Event(), threading.Semaphore(2), threading.Barrier(3)
    most = running = 0

    def limited() -> None:
        nonlocal most, running
        with semaphore:
            running += 1
            most = max(most, running)
            pyfiber.sleep(1)
            running -= 1

    def main() -> None:
        begun = pyfiber.now()
        assert not event.wait(2)
        assert not threading.Semaphore(0).acquire(timeout=3)
        with pytest.raises(threading.BrokenBarrierError):
            threading.Barrier(2).wait(4)
        assert pyfiber.now() - begun == 9
        waiters = spawn_all(event.wait, event.wait)
        event.set()
        assert all(fiber.result() for fiber in waiters)
        for fiber in [pyfiber.spawn(limited) for _ in range(6)]:
            fiber.result()
        assert sorted(each.result() for each in spawn_all(*[barrier.wait] * 3)) == [0, 1, 2]

    run(main)
    assert most == 2


def test_semaphore_loses_nothing_when_its_waiters_are_cancelled() -> None:
    semaphore = threading.Semaphore(0)

    def main() -> None:
        fibers = spawn_all(*[semaphore.acquire] * 20)
        with semaphore._cond:
            for at, fiber in enumerate(fibers):
                if at % 2:
                    fiber.cancel()
            pyfiber.sleep(1)  # they are cancelled, and wait for the lock
            semaphore._value += 10
            semaphore._cond.notify(10)
        for fiber in fibers:
            fiber.join()
        assert sum(not fiber.cancelled() for fiber in fibers) == 10
        assert not semaphore.acquire(False)

    run(main)


@pytest.mark.parametrize("kind", [queue.Queue, queue.LifoQueue, queue.PriorityQueue])
def test_queue_parks_both_ways(kind: Callable[[int], Any]) -> None:
    q = kind(2)

    def main() -> None:
        producer = pyfiber.spawn(lambda: [q.put(item) for item in range(10)])
        taken = []
        for _ in range(10):
            pyfiber.sleep(1)
            taken.append(q.get())
            q.task_done()
        producer.result()
        assert sorted(taken) == list(range(10))
        q.join()
        begun = pyfiber.now()
        with pytest.raises(queue.Empty):
            q.get(timeout=7)
        q.put(1), q.put(2)
        with pytest.raises(queue.Full):
            q.put(3, timeout=7)
        assert pyfiber.now() - begun == 14

    run(main)


def test_item_is_not_lost_to_a_getter_that_is_cancelled() -> None:
    q: queue.Queue[int] = queue.Queue()

    def main() -> None:
        first, second = spawn_all(q.get, q.get)
        q.put(1)
        first.cancel()
        first.join()
        assert first.cancelled() or first.result() == 1
        q.put(2)
        assert second.result(timeout=5) in (1, 2)

    run(main)


def test_exhausted_pool_of_connections_blocks_the_fiber_alone() -> None:
    """urllib3's pool with block=True is a LifoQueue; all of it on one thread (gevent#1957)."""
    pool: queue.LifoQueue[str] = queue.LifoQueue(2)
    for name in "ab":
        pool.put(name)
    most: list[int] = []

    def request() -> None:
        connection = pool.get(block=True, timeout=60)
        try:
            most.append(2 - pool.qsize())
            pyfiber.sleep(1)
        finally:
            pool.put(connection, block=False)

    def main() -> None:
        fibers = spawn_all(*[request] * 10)
        fibers[5].cancel()
        for fiber in fibers:
            fiber.join()

    run(main)
    assert pool.qsize() == 2
    assert max(most) == 2


def test_simple_queue_parks() -> None:
    q: queue.SimpleQueue[int] = queue.SimpleQueue()

    def main() -> None:
        first, second, third = spawn_all(q.get, q.get, q.get)
        q.put(1)
        first.cancel()  # the item came first
        second.cancel()
        pyfiber.sleep(0)
        q.put_nowait(2)
        assert first.result() == 1
        assert third.result(timeout=1) == 2
        assert second.cancelled()
        begun = pyfiber.now()
        with pytest.raises(queue.Empty):
            q.get(timeout=3)
        with pytest.raises(queue.Empty):
            q.get(False)
        with pytest.raises(queue.Empty):
            q.get(block=True, timeout=0)
        with pytest.raises(ValueError, match="non-negative"):
            q.get(timeout=-1)
        assert pyfiber.now() - begun == 3

    run(main)


def test_simple_queue_between_a_thread_and_fibers() -> None:
    there: queue.SimpleQueue[int] = queue.SimpleQueue()
    back: queue.SimpleQueue[int] = queue.SimpleQueue()

    def echo() -> None:
        while (item := there.get()) >= 0:
            back.put(item + 1)

    def main() -> None:
        thread = threading.Thread(target=echo)
        thread.start()
        for item in range(50):
            there.put(item)
            assert back.get() == item + 1
        there.put(-1)
        thread.join()

    pyfiber.run(main)


# futures ------------------------------------------------------------------------------------------


def test_futures_are_waited_for_in_fibers() -> None:
    events = [threading.Event() for _ in range(5)]

    def job(at: int) -> int:
        events[at].wait()
        return at

    def main() -> None:
        with futures.ThreadPoolExecutor(5) as executor:
            jobs = [executor.submit(job, at) for at in range(5)]
            order = pyfiber.spawn(
                lambda: [each.result() for each in futures.as_completed(jobs[:3])]
            )
            for at in (2, 0, 1):
                with pytest.raises(TimeoutError):
                    jobs[at].result(timeout=0.001)
                pyfiber.spawn(events[at].set)
                assert jobs[at].result() == at
            assert order.result() == [2, 0, 1]
            with pytest.raises(TimeoutError):
                list(futures.as_completed([jobs[3]], timeout=0.001))
            assert not futures.wait([jobs[3]], timeout=0.001).done
            pyfiber.spawn(events[3].set)
            assert futures.wait([jobs[3]]).done
            assert list(executor.map(job, [1, 2])) == [1, 2]
            (waiting,) = spawn_all(jobs[4].result)
            waiting.cancel()
            waiting.join()
            assert waiting.cancelled()
            events[4].set()

    pyfiber.run(main)


# threads ------------------------------------------------------------------------------------------


def test_many_fibers_join_threads_at_once() -> None:
    go = threading.Event()
    threads = [threading.Thread(target=go.wait) for _ in range(150)]

    def main() -> None:
        for thread in threads:
            thread.start()
        joins = [pyfiber.spawn(thread.join) for thread in threads for _ in range(2)]
        pyfiber.sleep(0.01)
        assert not any(fiber.done() for fiber in joins)
        assert pyfiber.spawn(time.sleep, 0).join(5)
        assert _engine.Fiber is not None
        assert pyfiber.to_thread(lambda: 3) == 3
        go.set()
        for fiber in joins:
            fiber.result()
        assert not any(thread.is_alive() for thread in threads)

    pyfiber.run(main)


def test_join_times_out_and_is_cancelled() -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)

    def main() -> None:
        with pytest.raises(RuntimeError, match="before it is started"):
            thread.join()
        thread.start()
        thread.join(0.005)
        assert thread.is_alive()
        thread.join(0)
        (waiting,) = spawn_all(thread.join)
        waiting.cancel()
        assert waiting.join(5)
        assert waiting.cancelled()
        with pytest.raises(RuntimeError, match="join current thread"):
            threading.current_thread().join()
        go.set()
        thread.join()
        assert not thread.is_alive()
        thread.join()

    pyfiber.run(main)
    assert "_delete" not in vars(thread)


def test_thread_that_is_ending_already_is_joined() -> None:
    def main() -> None:
        go = threading.Event()
        thread = threading.Thread(target=go.wait)
        thread.start()
        with threading._active_limbo_lock:  # type: ignore[attr-defined]
            go.set()
            while not in_delete(thread):
                time.sleep(0)
            (joins,) = spawn_all(lambda: thread.join())
            pyfiber.sleep(0.001)
        joins.result()

    def in_delete(thread: threading.Thread) -> bool:
        frame = sys._current_frames().get(thread.ident or 0)
        names = []
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return "_delete" in names

    pyfiber.run(main)


def test_thread_that_was_joined_in_its_last_moment_is_freed_without_the_collector() -> None:
    past, go = threading.Event(), threading.Event()

    class Lingers(threading.Thread):
        def _delete(self) -> None:
            super()._delete()  # type: ignore[misc]
            past.set()
            go.wait()

    def main() -> weakref.ref[threading.Thread]:
        thread = Lingers()
        thread.start()
        past.wait()
        (waiting,) = spawn_all(thread.join)
        go.set()
        waiting.result()
        return weakref.ref(thread)

    gc.disable()
    try:
        assert pyfiber.run(main)() is None
    finally:
        gc.enable()


def test_thread_is_started_by_a_cancelled_fiber_or_not_at_all() -> None:
    ran = threading.Event()

    def starter() -> None:
        with pyfiber.CancelScope() as scope:
            scope.cancel()
            threading.Thread(target=ran.set).start()
            started.append(True)

    started: list[bool] = []
    pyfiber.run(starter)
    assert started
    assert ran.wait(30)


def test_thread_is_the_same_in_its_fibers() -> None:
    here, ident = threading.current_thread(), threading.get_ident()

    def main() -> None:
        assert threading.current_thread() is here
        assert threading.get_ident() == ident

    run(main)


# the patch ----------------------------------------------------------------------------------------


def test_undone_patch_lets_those_who_wait_finish() -> None:
    lock, rlock, q = threading.Lock(), threading.RLock(), queue.SimpleQueue[int]()
    condition = threading.Condition()

    def waits() -> None:
        with condition:
            condition.wait()

    def main() -> None:
        lock.acquire()
        rlock.acquire()
        fibers = spawn_all(lock.acquire, lambda: rlock.acquire() and rlock.release(), q.get, waits)
        with pyfiber.patch(time=True):
            pass
        _engine._patch_methods("LockType", False)
        _engine._patch_methods("RLock", False)
        _engine._patch_methods("SimpleQueue", False)
        lock.release()
        rlock.release()
        q.put(1)
        with condition:
            condition.notify()
        for fiber in fibers:
            fiber.result(timeout=10)

    run(main)
    assert not isinstance(threading.Thread.join, _engine.Gate)


def test_plain_threads_notice_nothing() -> None:
    """They block each other, by the real clock, and keep their idents (gevent#2026)."""
    lock = threading.Lock()
    with lock:
        begun = time.monotonic()
        assert not lock.acquire(timeout=0.02)
        assert time.monotonic() - begun >= 0.019
    names: list[str] = []
    threads = [
        threading.Thread(target=lambda: names.append(threading.current_thread().name), name=name)
        for name in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(names) == ["a", "b", "c"]
    assert type(threading.Lock()).__module__ == "_thread"
    with pytest.raises(queue.Empty):
        queue.Queue().get(timeout=0.001)
