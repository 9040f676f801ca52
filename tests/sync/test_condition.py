"""Condition and Barrier: what their users see."""

from __future__ import annotations

import math
import sys
import threading

import pytest

from pyfiber import (
    Barrier,
    Cancelled,
    Condition,
    FiberError,
    FiberExit,
    Lock,
    RLock,
    Scheduler,
    current,
    now,
    park,
    run,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import run as run_virtually
from tests.support.threads import PATIENCE, in_thread

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork")

KINDS = [Lock, RLock, threading.Lock, threading.RLock]


def waiter(condition, order, name, timeout=None):
    with condition:
        order.append((name, condition.wait(timeout)))


@pytest.mark.parametrize("kind", KINDS)
def test_condition_notifies_in_order(kind):
    def main():
        condition, order = Condition(kind()), []
        if kind is threading.RLock:
            pytest.skip("belongs to the thread, so it keeps fibers of one thread from nothing")
        fibers = [spawn(waiter, condition, order, i) for i in range(4)]
        yield_now()
        assert condition._waiters() == fibers
        with condition:
            condition.notify(2)
        for _ in range(6):
            yield_now()
        assert order == [(0, True), (1, True)]
        with condition:
            condition.notify_all()
        for fiber in fibers:
            fiber.join()
        assert order == [(i, True) for i in range(4)]

    run(main)


@pytest.mark.parametrize("make", [Lock, RLock, threading.Lock])
def test_condition_is_locked_while_its_lock_is(make):
    condition = Condition(make())
    assert not condition.locked()
    with condition:
        assert condition.locked()
    assert not condition.locked()


def test_condition_default_lock_is_an_rlock_released_whole():
    def main():
        condition, order = Condition(), []

        def twice():
            with condition, condition:
                order.append(condition.wait())
                assert condition._is_owned()

        fiber = spawn(twice)
        yield_now()
        with condition:
            condition.notify()
        fiber.join()
        assert order == [True]
        assert spawn(condition.acquire, blocking=False).result()

    run(main)


def test_condition_cancelled_waiter_holds_the_lock_when_cancelled_is_raised():
    """The re-acquisition is shielded: it waits for the lock although the fiber is cancelled."""

    def main():
        lock = Lock()
        condition, seen = Condition(lock), []

        def body():
            with condition:
                try:
                    condition.wait()
                except Cancelled:
                    seen.append((lock.locked(), lock._holders() == [fiber]))
                    raise

        fiber = spawn(body)
        yield_now()
        lock.acquire()
        fiber.cancel()
        for _ in range(3):
            yield_now()
        assert not fiber.done(), "it waits for the lock"
        lock.release()
        fiber.join()
        assert fiber.cancelled()
        assert seen == [(True, True)]
        assert not lock.locked()

    run(main)


def test_condition_notification_beats_a_cancellation():
    def main():
        condition, order = Condition(), []
        first = spawn(waiter, condition, order, 1)
        yield_now()
        with condition:
            condition.notify()
        first.cancel()
        first.join()
        assert order == [(1, True)]

    run(main)


def test_condition_cancelled_waiter_does_not_swallow_a_notification():
    def main():
        condition, order = Condition(), []
        first, second = spawn(waiter, condition, order, 1), spawn(waiter, condition, order, 2)
        yield_now()
        first.cancel()
        first.join()
        with condition:
            condition.notify()
        second.join()
        assert order == [(2, True)]

    run(main)


def test_condition_unwound_waiter_passes_its_notification_on():
    condition, order = Condition(), []
    schedulers = [Scheduler(), Scheduler()]
    for i, scheduler in enumerate(schedulers):
        scheduler.spawn(waiter, condition, order, i)
        scheduler.run_once()
    with condition:
        condition.notify()
    schedulers[0].close()  # its fiber was notified and could not run
    schedulers[1].run_once()
    assert order == [(1, True)]
    assert condition.acquire(blocking=False)
    schedulers[1].close()


def test_condition_unwound_waiter_does_not_release_what_another_holds(caplog):
    """It cannot wait for its lock any more; leaving the with block must not free it."""
    for make in (Lock, RLock):
        lock = make()
        condition = Condition(lock)
        scheduler = Scheduler()
        fibers = [scheduler.spawn(waiter, condition, [], 1), scheduler.spawn(hold, lock)]
        scheduler.run_once()
        assert lock._holders() == [fibers[1]]
        in_order = scheduler.fibers()
        assert set(in_order) == set(fibers)
        lock_before = lock._holders()
        assert lock_before
        scheduler.close()
        assert [fiber.cancelled() for fiber in fibers] == [True, True]
        assert lock.acquire(blocking=False)


def hold(lock):
    with lock:
        park()


def test_condition_wait_for():
    def main():
        condition, items = Condition(), []

        def consume():
            with condition:
                return condition.wait_for(lambda: items and items.pop())

        fiber = spawn(consume)
        yield_now()
        with condition:
            condition.notify()
        yield_now()
        assert not fiber.done()
        with condition:
            items.append("x")
            condition.notify()
        assert fiber.result() == "x"

        with condition:
            assert condition.wait_for(lambda: False, timeout=20) is False
            assert now() == 20
            assert condition.wait_for(lambda: "at once", timeout=0) == "at once"
            with pytest.raises(KeyError):
                condition.wait_for(lambda: {}["x"])

    run_virtually(main)


@pytest.mark.parametrize("timeout", [None, 0])
def test_condition_wait_where_the_fiber_must_not_be_left_waits_for_nothing(timeout):
    """Not for its lock either, which went to who waited for it: both are refused."""
    log = []

    def wants(condition):
        with condition:
            log.append("other")

    def main():
        condition = Condition(Lock())
        condition.acquire()
        other = spawn(wants, condition)
        yield_now()

        def callback(_):
            with pytest.raises(FiberError, match="cannot leave this fiber"):
                condition.wait(timeout)
            log.append("refused")

        done = spawn(int)
        done.add_done_callback(callback)
        done.join()
        other.join()
        assert condition._waiters() == []
        assert not condition.locked()

    run(main)
    assert log == ["refused", "other"]


def test_condition_waiter_is_unwound_while_it_takes_the_lock_back(scheduler):
    log = []
    condition = Condition(Lock())

    def waits():
        condition.acquire()
        try:
            log.append(condition.wait())
        except FiberExit:
            log.append("unwound")
            raise

    def keeps():
        condition.acquire()
        condition.notify()
        park()

    scheduler.spawn(waits)
    scheduler.run_once()
    scheduler.spawn(keeps)
    scheduler.run_once()
    scheduler.run_once(0)
    assert condition._waiters() == []
    assert log == []
    scheduler.close()
    assert log == ["unwound"]


class Reluctant:
    """A lock that some do not get back."""

    def __init__(self):
        self.refused = []

    def acquire(self, *args):
        return True

    def release(self):
        pass

    def _is_owned(self):
        return True

    def _release_save(self):
        return current()

    def _acquire_restore(self, state):
        if state in self.refused:
            raise LookupError


def test_condition_whose_lock_fails_to_come_back_says_so():
    lock = Reluctant()
    condition = Condition(lock)
    lock.refused.append(current())
    for _ in range(2):
        with pytest.raises(LookupError):
            condition.wait(0)
        with pytest.raises(LookupError):
            condition.wait_for(lambda: False, 0.001)
    lock.refused.clear()
    assert condition.wait(0) is False


def test_condition_notification_of_a_waiter_whose_lock_fails_goes_to_the_next():
    def main():
        lock = Reluctant()
        condition = Condition(lock)
        first, second = spawn(condition.wait), spawn(condition.wait)
        yield_now()
        lock.refused.append(first)
        condition.notify()
        assert isinstance(first.exception(), LookupError)
        assert second.result() is True

    run_virtually(main)


def test_condition_notification_of_a_waiter_that_cannot_release_goes_to_the_next():
    """It was first in line when it began to let go of the lock."""

    class Stuck(Reluctant):
        def _release_save(self):
            if current() in self.refused:
                yield_now()  # the other comes to wait
                condition.notify()
                raise LookupError

    lock = Stuck()
    condition = Condition(lock)

    def main():
        first, second = spawn(condition.wait), spawn(condition.wait)
        lock.refused.append(first)
        assert isinstance(first.exception(), LookupError)
        assert second.result() is True

    run_virtually(main)


def test_condition_tells_how_many_wait():
    def main():
        condition, order = Condition(Lock()), []
        assert ", 0) at" in repr(condition)
        for count in range(1, 4):
            spawn(waiter, condition, order, count)
            yield_now()
            assert f", {count}) at" in repr(condition)
        with condition:
            condition.notify_all()

    run(main)


def test_condition_timeout():
    def main():
        condition, order = Condition(), []
        spawn(waiter, condition, order, 1, 10).join()
        assert order == [(1, False)]
        assert now() == 10
        assert condition._waiters() == []

    run_virtually(main)


@pytest.mark.parametrize("kind", KINDS)
def test_condition_without_the_lock_is_refused(kind):
    condition = Condition(kind())
    with pytest.raises(RuntimeError, match="cannot wait on un-acquired lock"):
        condition.wait()
    with pytest.raises(RuntimeError, match="cannot notify on un-acquired lock"):
        condition.notify()
    with pytest.raises(RuntimeError, match="cannot notify on un-acquired lock"):
        condition.notify_all()
    with pytest.raises(RuntimeError, match="cannot wait on un-acquired lock"):
        condition.wait_for(lambda: False)


def test_condition_of_another_fiber_is_refused():
    def main():
        condition = Condition()
        with condition, pytest.raises(RuntimeError, match="un-acquired"):
            spawn(condition.notify).result()

    run(main)


@pytest.mark.parametrize("timeout", [-1, math.nan])
def test_condition_bad_timeout_is_refused(timeout):
    condition = Condition()
    with condition:
        with pytest.raises(ValueError, match="timeout"):
            condition.wait(timeout)
        with pytest.raises(ValueError, match="timeout"):
            condition.wait_for(lambda: False, timeout)
        assert condition._is_owned()


def test_condition_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="needs a lock"):
        Condition(3)
    with pytest.raises(TypeError):
        Condition().wait_for()
    condition = Condition()
    with condition, pytest.raises(TypeError):
        condition.notify("x")
    with pytest.raises(RuntimeError, match="__init__"):
        Condition.__new__(Condition).acquire()


def test_condition_lock_that_fails_to_release():
    class Broken:
        def acquire(self, blocking=True):
            return True

        def release(self):
            raise OSError("broken")

        def _is_owned(self):
            return True

    condition = Condition(Broken())
    with pytest.raises(OSError, match="broken"):
        condition.wait()
    assert condition._waiters() == []


def test_condition_lock_that_notifies_while_it_is_released():
    """Code of a foreign lock runs between standing in line and waiting."""

    class Eager:
        def acquire(self, blocking=True):
            return True

        def release(self):
            condition.notify()

        def _is_owned(self):
            return True

    condition = Condition(Eager())
    assert run(condition.wait) is True
    assert condition.wait() is True


def test_condition_between_threads_and_fibers():
    condition, items = Condition(), []

    def produce():
        for i in range(100):
            with condition:
                items.append(i)
                condition.notify()

    def consume():
        got = []
        while len(got) < 100:
            with condition:
                condition.wait_for(lambda: items)
                got.append(items.pop(0))
        return got

    thread = threading.Thread(target=produce)

    def main():
        fiber = spawn(consume)
        thread.start()
        return fiber.result()

    assert run(main) == list(range(100))
    thread.join()
    thread = threading.Thread(target=lambda: run(produce))
    thread.start()
    assert consume() == list(range(100))
    thread.join()


# Barrier -----------------------------------------------------------------------------------------


def test_barrier_lets_all_through_at_once():
    def main():
        calls = []
        barrier = Barrier(3, action=lambda: calls.append(barrier.n_waiting))
        for turn in range(3):
            fibers = [spawn(barrier.wait) for _ in range(2)]
            yield_now()
            assert (barrier.n_waiting, barrier.broken) == (2, False)
            assert barrier.wait() == 2
            assert [fiber.result() for fiber in fibers] == [0, 1]
            assert len(calls) == turn + 1
            assert barrier.n_waiting == 0

    run(main)


def test_barrier_timeout_breaks_it():
    def main():
        barrier = Barrier(2, timeout=10)
        with pytest.raises(threading.BrokenBarrierError):
            barrier.wait()
        assert barrier.broken
        with pytest.raises(threading.BrokenBarrierError):
            barrier.wait(10)
        barrier.reset()
        fiber = spawn(barrier.wait, 5)
        assert {barrier.wait(PATIENCE), fiber.result()} == {0, 1}

    run_virtually(main)


def test_barrier_cancelled_waiter_breaks_it():
    def main():
        barrier = Barrier(3)
        first, second = spawn(barrier.wait), spawn(barrier.wait)
        yield_now()
        first.cancel()
        assert first.join(PATIENCE)
        assert first.cancelled()
        with pytest.raises(threading.BrokenBarrierError):
            second.result()
        assert barrier.broken

    run(main)


def test_barrier_failing_action_breaks_it():
    def main():
        barrier = Barrier(2, action=lambda: 1 // 0)
        fiber = spawn(barrier.wait)
        yield_now()
        with pytest.raises(ZeroDivisionError):
            barrier.wait()
        with pytest.raises(threading.BrokenBarrierError):
            fiber.result()

    run(main)


def test_barrier_abort_and_reset():
    def main():
        barrier = Barrier(2)
        for end in (barrier.abort, barrier.reset):
            fiber = spawn(barrier.wait)
            yield_now()
            end()
            with pytest.raises(threading.BrokenBarrierError):
                fiber.result()
            assert barrier.n_waiting == 0
            assert barrier.broken is (end == barrier.abort)
            barrier.reset()

    run(main)


def test_barrier_between_threads():
    barrier = Barrier(3)
    threads = [
        threading.Thread(target=barrier.wait),
        threading.Thread(target=run, args=(barrier.wait,)),
    ]
    for thread in threads:
        thread.start()
    assert run(barrier.wait) in range(3)
    for thread in threads:
        thread.join()


def test_barrier_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="parties"):
        Barrier(0)
    with pytest.raises(TypeError):
        Barrier("x")
    with pytest.raises(TypeError):
        Barrier(2, action=3)
    barrier = Barrier(2)
    with pytest.raises(ValueError, match="timeout"):
        barrier.wait(-1)
    assert barrier.broken, "as in threading: a wait that fails breaks it"


def test_condition_in_a_raw_fiber_outside_a_run_keeps_its_lock():
    from pyfiber import Fiber

    condition, seen = Condition(), []

    def body():
        with condition:
            try:
                condition.wait()
            except FiberError:
                seen.append(condition._is_owned())

    Fiber(body).switch()
    assert seen == [True]
    assert in_thread(lambda: condition.acquire(blocking=False))


def test_condition_many_fibers_hand_round_a_turn():
    def main():
        condition, turns = Condition(), []
        count = 10

        def player(me):
            for turn in range(me, 100, count):
                with condition:
                    condition.wait_for(lambda turn=turn: len(turns) == turn)
                    turns.append(me)
                    condition.notify_all()
                sleep(0)

        fibers = [spawn(player, i) for i in range(count)]
        for fiber in fibers:
            fiber.result()
        assert turns == [i % count for i in range(100)]

    run(main)


# in the child of fork -----------------------------------------------------------------------------


@posix
def test_condition_whose_foreign_lock_is_released_is_left_by_fork(child):
    """Both waits of the other threads end: during release(), and after it."""
    done = child(
        """
        import os, resource, threading, time, warnings
        from pyfiber import Condition

        class SlowLock:
            def acquire(self, *args): return True
            __enter__ = __exit__ = _is_owned = acquire
            def release(self):
                begun.set()
                leave.wait()

        def waits(condition):
            with condition:
                condition.wait()

        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))  # of a child that does not come back
        begun, leave, quick = threading.Event(), threading.Event(), threading.Lock()
        conditions = [Condition(SlowLock()), Condition(quick)]
        threads = [threading.Thread(target=waits, args=(it,)) for it in conditions]
        for thread in threads:
            thread.start()
        begun.wait()
        while not conditions[1]._waiters():
            time.sleep(0.001)
        quick.acquire()  # it waits: it has released that
        quick.release()
        pid = os.fork()
        if pid == 0:
            left = [it._waiters() for it in conditions]
            os._exit(7 if left == [[], []] else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        leave.set()
        for it in conditions:
            with it:
                it.notify()
        for thread in threads:
            thread.join()
        """
    )
    assert done.stdout == "7\n"


@posix
def test_waits_in_a_signal_handler_hide_no_wait_from_fork(child):
    """The wait that the handler interrupted is still the thread's when the handler has waited."""
    done = child(
        """
        import os, signal, threading, time, warnings
        from pyfiber import Condition, Event, Queue

        def handle(*ignored):
            Event().wait(0.001)
            condition = Condition(threading.Lock())
            with condition:
                condition.wait(0.001)
            handled.set()

        def forks():
            while not queue._waiters():
                time.sleep(0.001)
            while not handled.wait(0.01):  # the first may come before it really waits
                signal.pthread_kill(main, signal.SIGUSR1)
            pid = os.fork()
            if pid == 0:
                os._exit(1 if queue._waiters() else 7)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            queue.put("item")

        warnings.simplefilter("ignore")
        main, queue, handled = threading.get_ident(), Queue(), threading.Event()
        signal.signal(signal.SIGUSR1, handle)
        thread = threading.Thread(target=forks)
        thread.start()
        assert queue.get() == "item"
        thread.join()
        """
    )
    assert done.stdout == "7\n"
