"""Lock, RLock, Semaphore, Event: what their users see."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import sys
import threading
import weakref

import pytest

import pyfiber
from pyfiber import (
    BoundedSemaphore,
    Cancelled,
    CancelScope,
    Event,
    Fiber,
    FiberError,
    Lock,
    RLock,
    Scheduler,
    Semaphore,
    current,
    park,
    run,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import VirtualClock
from pyfiber.testing import run as run_virtually
from tests.support.threads import PATIENCE, in_thread

LOCKS = [Lock, RLock, Semaphore, BoundedSemaphore]


def take(lock, order, name):
    with lock:
        order.append(name)


def wait_for_timeout():
    """Come back when a timer has fired and the fiber it woke has not run yet."""
    scheduler = SCHEDULER[-1]
    before = scheduler.stats()["timeouts"]
    CLOCK.spend(1)
    while scheduler.stats()["timeouts"] == before:
        yield_now()


SCHEDULER: list[Scheduler] = []
CLOCK = VirtualClock()


def run_watched(fn):
    """run(fn) in virtual time, with the scheduler in SCHEDULER."""
    SCHEDULER.append(Scheduler())
    CLOCK.attach(SCHEDULER[-1])
    try:
        return SCHEDULER[-1].run(fn)
    finally:
        SCHEDULER.pop().close()


@pytest.mark.parametrize("make", LOCKS)
def test_lock_goes_to_who_waits_longest(make):
    def main():
        lock, order = make(), []
        lock.acquire()
        fibers = [spawn(take, lock, order, i) for i in range(5)]
        yield_now()
        assert lock._waiters() == fibers
        lock.release()
        for fiber in fibers:
            fiber.join()
        assert order == [0, 1, 2, 3, 4]
        assert lock.acquire(blocking=False)

    run(main)


@pytest.mark.parametrize("make", LOCKS)
def test_lock_is_handed_over_not_dropped(make):
    """Between release() and the next owner's turn nobody else can take it."""

    def main():
        lock, order = make(), []
        lock.acquire()
        fiber = spawn(take, lock, order, "waiter")
        yield_now()
        lock.release()
        assert lock.acquire(blocking=False) is False
        fiber.join()
        assert order == ["waiter"]

    run(main)


@pytest.mark.parametrize("make", LOCKS)
def test_lock_cancelled_waiter_leaves_the_line(make):
    def main():
        lock, order = make(), []
        lock.acquire()
        first, second = spawn(take, lock, order, 1), spawn(take, lock, order, 2)
        yield_now()
        first.cancel()
        first.join()
        assert first.cancelled()
        lock.release()
        second.join()
        assert order == [2]
        assert lock.acquire(blocking=False)

    run(main)


@pytest.mark.parametrize("make", LOCKS)
def test_lock_given_before_the_cancellation_is_kept(make):
    """The value beats the cancellation, which comes at the next park point."""

    def main():
        lock, seen = make(), []

        def body():
            lock.acquire()
            seen.append("got it")
            try:
                sleep(1)
            except Cancelled:
                seen.append("cancelled")
                lock.release()
                raise

        lock.acquire()
        fiber = spawn(body)
        yield_now()
        lock.release()
        fiber.cancel()
        fiber.join()
        assert seen == ["got it", "cancelled"]
        assert lock.acquire(blocking=False)

    run(main)


@pytest.mark.parametrize("make", LOCKS)
def test_lock_given_after_the_cancellation_is_kept_or_passed_on(make):
    """A cancelled fiber that has not run yet still stands in line."""

    def main():
        lock, order = make(), []
        lock.acquire()
        first, second = spawn(take, lock, order, 1), spawn(take, lock, order, 2)
        yield_now()
        first.cancel()
        lock.release()
        first.join()
        second.join()
        assert order == [1, 2]
        assert lock.acquire(blocking=False)

    run(main)


@pytest.mark.parametrize("make", LOCKS)
def test_lock_given_after_the_timeout_is_kept(make):
    def main():
        lock = make()
        lock.acquire()
        fiber = spawn(lock.acquire, timeout=1)
        yield_now()
        wait_for_timeout()
        lock.release()
        assert fiber.result() is True
        assert lock.acquire(blocking=False) is False

    run_watched(main)


@pytest.mark.parametrize("make", LOCKS)
def test_lock_given_to_a_fiber_that_is_unwound_is_passed_on(make):
    """Its FiberExit comes before it could run; the next in line gets the lock, then nobody."""
    lock, order = make(), []
    scheduler = Scheduler()
    lock.acquire()
    fibers = [scheduler.spawn(take, lock, order, i) for i in range(2)]
    scheduler.run_once()
    assert lock._waiters() == fibers
    lock.release()
    assert lock._waiters() == fibers[1:]
    assert lock._holders() == fibers[:1]
    scheduler.close()
    assert lock._waiters() == lock._holders() == order == []
    assert lock.acquire(blocking=False)


def test_lock_given_to_a_fiber_that_is_unwound_may_be_anothers_by_then():
    """The main thread released the lock before that fiber could run, and took it."""
    lock = Lock()
    scheduler = Scheduler()
    lock.acquire()
    waiter = scheduler.spawn(lock.acquire)
    scheduler.run_once()
    lock.release()
    assert lock._holders() == [waiter]
    lock.release()
    lock.acquire()
    scheduler.close()
    assert lock._holders() == [pyfiber.current()]


@pytest.mark.parametrize("make", LOCKS)
def test_lock_held_by_an_unwound_fiber_goes_through_the_line(make):
    lock = make()
    scheduler = Scheduler()

    def body():
        with lock:
            pyfiber.park()

    for _ in range(3):
        scheduler.spawn(body)
    scheduler.run_once()
    assert len(lock._waiters()) == 2
    scheduler.close()
    assert lock._waiters() == []
    assert lock.acquire(blocking=False)


@pytest.mark.parametrize("make", LOCKS)
def test_lock_timeout(make):
    def main():
        lock = make()
        lock.acquire()
        assert spawn(lock.acquire, timeout=20).result() is False
        assert pyfiber.now() == 20
        assert spawn(lock.acquire, timeout=0).result() is False
        assert lock._waiters() == []

    run_virtually(main)


@pytest.mark.parametrize("make", LOCKS)
@pytest.mark.parametrize("timeout", [-2, -0.5, math.nan, -math.inf])
def test_lock_bad_timeout_is_refused(make, timeout):
    lock = make()
    with pytest.raises(ValueError, match=r"timeout"):
        lock.acquire(timeout=timeout)
    assert lock.acquire(blocking=False), "a refused acquire took it"


@pytest.mark.parametrize("make", LOCKS)
def test_lock_wrong_arguments_are_refused(make):
    lock = make()
    with pytest.raises(TypeError):
        lock.acquire(timeout="x")
    with pytest.raises(TypeError):
        lock.acquire(True, 1, 2)
    with pytest.raises(TypeError):
        lock.acquire(wait=True)
    with pytest.raises(TypeError):
        lock.acquire(True, blocking=True)
    with pytest.raises(ValueError, match="non-blocking"):
        lock.acquire(blocking=False, timeout=1)
    with pytest.raises(TypeError):
        make(1, 2)


@pytest.mark.parametrize("make", [Lock, RLock])
def test_lock_timeout_beyond_the_platform_is_refused(make):
    with pytest.raises(OverflowError):
        make().acquire(timeout=threading.TIMEOUT_MAX * 2)
    assert make().acquire(timeout=threading.TIMEOUT_MAX)


def test_lock_release_of_a_free_one_is_refused():
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        Lock().release()
    with pytest.raises(RuntimeError, match="cannot release un-acquired lock"):
        RLock().release()
    with pytest.raises(ValueError, match="too many times"):
        BoundedSemaphore().release()


def test_lock_may_be_released_by_another_fiber():
    def main():
        lock = Lock()
        lock.acquire()
        spawn(lock.release).join()
        assert not lock.locked()

    run(main)


def test_rlock_belongs_to_a_fiber_not_to_its_thread():
    def main():
        lock = RLock()
        with lock, lock:
            assert lock._recursion_count() == 2
            other = spawn(lock.acquire, blocking=False)
            assert other.result() is False
            with pytest.raises(RuntimeError, match="another fiber"):
                spawn(lock.release).result()
            assert lock._is_owned()
            assert spawn(lock._is_owned).result() is False
            assert lock._holders() == [current()]
        assert lock._holders() == []
        assert spawn(lock.acquire, blocking=False).result() is True
        # Its owner has ended: it is nobody's, and never free again.
        assert lock._holders() == []
        assert not lock.acquire(blocking=False)

    run(main)


def test_rlock_is_not_inherited_by_a_fiber_at_the_same_address():
    def main():
        lock = RLock()
        for _ in range(20):
            spawn(lock.acquire, blocking=False).join()
        assert spawn(lock._is_owned).result() is False

    run(main)


def test_lock_is_not_kept_alive_nor_keeps_its_owner():
    lock = Lock()

    def body():
        with lock:
            pyfiber.current().parent.switch()

    fiber = Fiber(body)
    fiber.switch()
    assert lock._holders() == [fiber]
    gone = weakref.ref(fiber)
    del fiber
    gc.collect()
    assert gone() is None
    assert not lock.locked(), "FiberExit ran the with block's end"


def test_lock_of_plain_code_needs_no_run():
    for make in LOCKS:
        lock = make()
        with lock:
            assert in_thread(lambda lock=lock: lock.acquire(blocking=False)) is False
            assert in_thread(lambda lock=lock: lock.acquire(timeout=0.01)) is False
        assert in_thread(lambda lock=lock: lock.acquire(blocking=False)) is True


def test_raw_fiber_outside_a_run_does_not_block_its_thread():
    lock = Lock()
    lock.acquire()
    errors = []

    def body():
        assert lock.acquire(blocking=False) is False
        try:
            lock.acquire()
        except FiberError as error:
            errors.append(str(error))

    Fiber(body).switch()
    assert "raw fiber outside of a run cannot wait" in errors[0]
    assert lock._waiters() == []


def test_raw_fiber_inside_a_run_waits():
    def main():
        lock = Lock()
        lock.acquire()
        seen = []

        def body():
            with lock:
                seen.append("raw")

        def helper():
            Fiber(body).switch()
            seen.append("helper")

        fiber = spawn(helper)
        yield_now()
        assert len(lock._waiters()) == 1
        lock.release()
        fiber.join()
        assert seen == ["raw", "helper"]

    run(main)


def test_lock_in_a_done_callback_is_refused_if_it_has_to_wait():
    def main():
        lock, errors = Lock(), []
        lock.acquire()

        def callback(fiber):
            try:
                lock.acquire()
            except FiberError as error:
                errors.append(error)

        fiber = spawn(lambda: None)
        fiber.add_done_callback(callback)
        fiber.join()
        assert len(errors) == 1
        assert lock._waiters() == []

    run(main)


@pytest.mark.parametrize("make", [*LOCKS, Event, pyfiber.Condition, pyfiber.Queue, pyfiber.Channel])
def test_primitives_cannot_be_copied_or_pickled(make):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(TypeError):
            pickle.dumps(make(), protocol)
    with pytest.raises(TypeError):
        copy.copy(make())


def test_waiting_on_names_the_primitive():
    def main():
        lock = Lock()
        lock.acquire()
        fiber = spawn(lock.acquire)
        yield_now()
        assert fiber.waiting_on is lock
        assert lock._waiters() == [fiber]
        assert lock._holders() == [current()]
        fiber.cancel()

    run(main)


def test_deadlock_on_a_lock_is_reported(child):
    done = child("""
        import pyfiber

        def main():
            lock = pyfiber.Lock()
            lock.acquire()
            lock.acquire()

        try:
            pyfiber.run(main)
        except pyfiber.DeadlockError as error:
            print(error)
    """)
    assert "locked pyfiber.Lock" in done.stdout
    assert "in main" in done.stdout


def test_lock_dropped_with_the_run_in_which_it_is_waited_for():
    """A run that fails leaves no node behind in the lock."""
    lock = Lock()
    lock.acquire()

    def main():
        spawn(lock.acquire)
        yield_now()
        raise KeyError

    with pytest.raises(KeyError):
        run(main)
    assert lock._waiters() == []
    lock.release()
    assert lock.acquire(blocking=False)


# Semaphore ---------------------------------------------------------------------------------------


def test_semaphore_values():
    with pytest.raises(ValueError, match=">= 0"):
        Semaphore(-1)
    with pytest.raises(TypeError):
        Semaphore("x")
    with pytest.raises(ValueError, match="one or more"):
        Semaphore().release(0)
    with pytest.raises(ValueError, match="one or more"):
        Semaphore().release(-1)
    with pytest.raises(TypeError):
        Semaphore().release("x")
    semaphore = Semaphore(2)
    semaphore.release(n=3)
    assert [semaphore.acquire(blocking=False) for _ in range(6)] == [True] * 5 + [False]


def test_semaphore_overflow_is_refused():
    semaphore = Semaphore(2**62)
    with pytest.raises(OverflowError):
        semaphore.release(2**62)
    with pytest.raises(OverflowError):
        semaphore.release(2**70)
    assert semaphore._value == 2**62


def test_semaphore_release_many_serves_that_many():
    def main():
        semaphore = Semaphore(0)
        fibers = [spawn(semaphore.acquire) for _ in range(5)]
        yield_now()
        semaphore.release(3)
        yield_now()
        assert [fiber.done() for fiber in fibers] == [True] * 3 + [False] * 2
        semaphore.release(3)
        yield_now()
        assert all(fiber.done() for fiber in fibers)
        assert semaphore._value == 1

    run(main)


def test_bounded_semaphore_release_of_too_many_changes_nothing():
    semaphore = BoundedSemaphore(3)
    semaphore.acquire()
    with pytest.raises(ValueError, match="too many times"):
        semaphore.release(2)
    assert semaphore._value == 2
    semaphore.release()
    assert semaphore._value == 3


def test_rlock_comes_back_as_often_as_it_was_held():
    lock = RLock()
    for count in range(1, 4):
        for _ in range(count):
            lock.acquire()
        saved = lock._release_save()
        assert saved == count
        assert not lock.locked()
        lock._acquire_restore(saved)
        assert lock._recursion_count() == count
        for _ in range(count):
            lock.release()
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="_release_save"):
            lock._acquire_restore(wrong)
    assert not lock.locked()


def test_semaphore_forgets_the_holder_that_gives_back_of_more_than_it_knows():
    """It knows eight; who gives one back is taken off all the same, wherever it stands."""

    def main():
        for place in (0, 3, 7):
            semaphore = Semaphore(12)

            def use(semaphore=semaphore):
                semaphore.acquire()
                park()
                semaphore.release()
                park()

            fibers = [spawn(use) for _ in range(10)]
            yield_now()
            known = semaphore._holders()
            assert known == fibers[:8]
            known[place].unpark()
            yield_now()
            assert semaphore._holders() == known[:place] + known[place + 1 :]
            for fiber in fibers:
                fiber.cancel()

    run(main)


def test_semaphore_knows_who_has_taken_it():
    def main():
        semaphore = BoundedSemaphore(2)
        me = current()
        semaphore.acquire()
        assert semaphore._holders() == [me]
        other = spawn(lambda: (semaphore.acquire(), park(), semaphore.release()))
        yield_now()
        third = spawn(lambda: (semaphore.acquire(), park()))
        yield_now()
        assert semaphore._holders() == [me, other]
        assert semaphore._waiters() == [third]
        other.unpark()
        yield_now()
        assert semaphore._holders() == [me, third]  # handed over
        semaphore.release()
        assert semaphore._holders() == [third]
        third.unpark()
        third.join()
        assert semaphore._holders() == []  # it has gone, and not given it back
        semaphore.release()  # in its place
        semaphore.acquire()
        semaphore.acquire()
        assert semaphore._holders() == [me, me]
        semaphore.release(2)
        assert semaphore._holders() == []

    run(main)


def test_semaphore_released_by_others_than_its_holders():
    def main():
        me = current()
        semaphore = Semaphore(1)
        semaphore.release()  # two are there, though it began with one
        semaphore.acquire()
        assert semaphore._holders() == []
        semaphore.acquire()
        assert semaphore._holders() == [me]
        spawn(semaphore.release).join()
        assert semaphore._holders() == []
        signal = Semaphore(0)
        signal.release()
        signal.acquire()
        assert signal._holders() == []
        many = Semaphore(100)
        for _ in range(100):
            many.acquire()
        assert many._holders() == [me] * 8
        spawn(many.release, 95).join()
        assert many._holders() == [me] * 5
        many.release(5)
        assert (many._holders(), many._value) == ([], 100)

    run(main)


def test_deadlock_report_names_who_holds_a_semaphore(child):
    done = child("""
        import re
        from pyfiber import *
        def take(first, second):
            with first:
                yield_now()
                with second:
                    pass
        def main():
            a, b = Semaphore(), BoundedSemaphore()
            Fiber(take, (a, b), name="A").start()
            Fiber(take, (b, a), name="B").start()
        try:
            run(main)
        except DeadlockError as error:
            print(re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)))
    """)
    cycle = done.stdout[done.stdout.index("they wait for each other") :].splitlines()[:3]
    assert cycle == [
        "they wait for each other:",
        "  fiber 'A' waits for <pyfiber.BoundedSemaphore: value=0/1>, held by fiber 'B'",
        "  fiber 'B' waits for <pyfiber.Semaphore: value=0>, held by fiber 'A'",
    ]


def test_semaphore_init_while_somebody_waits_is_refused():
    def main():
        semaphore = Semaphore(0)
        fiber = spawn(semaphore.acquire)
        yield_now()
        with pytest.raises(FiberError, match="somebody waits"):
            semaphore.__init__(5)
        semaphore.release()
        fiber.join()

    run(main)


def test_semaphore_subclass_with_other_arguments():
    class Named(Semaphore):
        def __init__(self, name):
            super().__init__(2)
            self.name = name

    named = Named("x")
    assert (named.name, named._value) == ("x", 2)
    cycle = weakref.ref(named)
    named.itself = named
    del named
    gc.collect()
    assert cycle() is None


# Event -------------------------------------------------------------------------------------------


def test_event_wakes_all_who_wait():
    def main():
        event = Event()
        assert event.wait(timeout=0) is False
        fibers = [spawn(event.wait) for _ in range(3)]
        yield_now()
        event.set()
        event.clear()
        assert [fiber.result() for fiber in fibers] == [True] * 3
        assert not event.is_set()
        assert spawn(event.wait, 0.01).result() is False
        event.set()
        assert event.wait()

    run(main)


def test_event_set_by_a_cancelled_fibers_last_act():
    def main():
        event = Event()

        def body():
            try:
                sleep(10)
            finally:
                event.set()

        fiber = spawn(body)
        yield_now()
        fiber.cancel()
        assert event.wait(PATIENCE)

    run(main)


@pytest.mark.parametrize("timeout", [-1, math.nan, -math.inf])
def test_event_bad_timeout_is_refused(timeout):
    with pytest.raises(ValueError, match="timeout"):
        Event().wait(timeout)


def test_event_wrong_arguments_are_refused():
    with pytest.raises(TypeError):
        Event().wait("x")
    with pytest.raises(TypeError):
        Event(1)
    with pytest.raises(TypeError):
        Event().wait(1, 2)


def test_join_of_many_keeps_the_order():
    def main():
        order = []

        def wait(target, name):
            target.join()
            order.append(name)

        target = spawn(sleep, 0.001)
        fibers = [spawn(wait, target, i) for i in range(4)]
        yield_now()
        fibers[1].cancel()
        for fiber in fibers:
            fiber.join()
        assert order == [0, 2, 3]

    run(main)


def test_event_that_is_set_while_the_cancellation_is_made_has_come_first():
    """By code that the collector runs: on CPython 3.11 in there, on later ones before or after."""
    during, answers = [], []

    def wait_cancelled(allocations):
        event = Event()

        def collects(phase, info):
            during.append(bool(event._waiters()))
            event.set()

        threshold = gc.get_threshold()
        with CancelScope() as scope:
            scope.cancel()
            gc.collect()
            gc.callbacks.append(collects)
            gc.set_threshold(allocations)
            try:
                answers.append(event.wait())
            finally:
                gc.set_threshold(*threshold)
                gc.callbacks.remove(collects)

    run(lambda: [wait_cancelled(n) for n in range(1, 10)] and None)
    assert all(answers)
    assert any(during) or sys.version_info >= (3, 12)
