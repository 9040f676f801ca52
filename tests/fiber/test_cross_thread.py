"""What other threads may do to a fiber, what they may not, and that nothing gets lost."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelScope,
    Condition,
    Event,
    Fiber,
    FiberError,
    Lock,
    Scheduler,
    current,
    gather,
    park,
    run,
    sleep,
    spawn,
    to_thread,
    yield_now,
)
from tests.conftest import Child
from tests.support.gil import DROPS_ARE_QUEUED, needs_gil
from tests.support.subprocesses import run_script
from tests.support.threads import in_thread

Log = list[Any]


@pytest.fixture
def hasty_gil() -> Iterator[None]:
    """Threads take turns as often as the interpreter can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


# What is refused ----------------------------------------------------------------------------------

REFUSED: dict[str, Callable[[Fiber[Any]], Any]] = {
    "switch": lambda fiber: fiber.switch(),
    "throw": lambda fiber: fiber.throw(ValueError),
    "join": lambda fiber: fiber.join(),
    "join with timeout": lambda fiber: fiber.join(0.001),
    "result": lambda fiber: fiber.result(),
    "exception": lambda fiber: fiber.exception(),
    "start": lambda fiber: fiber.start(),
    "join inside a run": lambda fiber: run(fiber.join),
    "start inside a run": lambda fiber: run(fiber.start),
    "switch inside a run": lambda fiber: run(fiber.switch),
}


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED.keys())
def test_other_thread_is_refused_on_a_parked_fiber(use: Callable[[Fiber[Any]], Any]) -> None:
    def main() -> str:
        fiber = spawn(park)
        yield_now()
        with pytest.raises(FiberError):
            in_thread(lambda: use(fiber))
        fiber.unpark("unharmed")
        value: str = fiber.result()
        return value

    assert run(main) == "unharmed"


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED.keys())
def test_other_thread_is_refused_on_a_fiber_that_has_not_run(
    use: Callable[[Fiber[Any]], Any],
) -> None:
    def main() -> str:
        fiber = spawn(lambda: "unharmed")
        with pytest.raises(FiberError):
            in_thread(lambda: use(fiber))
        return fiber.result()

    assert run(main) == "unharmed"


@pytest.mark.parametrize("use", REFUSED.values(), ids=REFUSED.keys())
def test_other_thread_is_refused_on_the_running_fiber(use: Callable[[Fiber[Any]], Any]) -> None:
    def main() -> str:
        me = current()
        with pytest.raises(FiberError):
            in_thread(lambda: use(me))
        return "unharmed"

    assert run(main) == "unharmed"


def test_other_thread_may_look() -> None:
    def waits() -> None:
        park()

    def main() -> None:
        fiber = spawn(waits)
        yield_now()

        def look() -> list[Any]:
            repr(fiber)
            return [fiber.state, fiber.done(), fiber.cancelled(), fiber.outcome, fiber.daemon]

        assert in_thread(look) == ["parked", False, False, None, False]
        assert in_thread(lambda: [frame.name for frame in fiber.stack()]) == ["waits"]
        fiber.unpark()

    run(main)


def test_other_thread_may_read_the_result_of_a_finished_fiber() -> None:
    fiber = run(lambda: spawn(lambda: "result"))
    assert in_thread(fiber.result) == "result"
    assert in_thread(fiber.join) is True
    assert in_thread(fiber.exception) is None


def test_other_thread_may_add_a_callback() -> None:
    log: Log = []

    def main() -> None:
        fiber = spawn(park)
        yield_now()
        in_thread(lambda: fiber.add_done_callback(lambda _: log.append(threading.get_ident())))
        fiber.unpark()

    run(main)
    assert log == [threading.get_ident()]


def test_fiber_made_on_another_thread_may_be_started_here() -> None:
    fiber: Fiber[int] = in_thread(lambda: Fiber(lambda: 5))
    assert run(lambda: fiber.start().result()) == 5


def test_fiber_started_here_that_has_ended_is_refused_everywhere() -> None:
    fiber = run(lambda: spawn(lambda: 5))
    with pytest.raises(FiberError, match="finished"):
        in_thread(fiber.switch)


# Wake-ups -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty_gil")
@pytest.mark.parametrize("value", [None, "value"])
def test_wake_ups_from_a_thread_are_never_lost(value: Any) -> None:
    """The sleeper goes to sleep while the waker wakes: each of 2000 must arrive."""
    rounds = 2000
    ready = threading.Semaphore(0)

    def main() -> None:
        me = current()

        def wake() -> None:
            for _ in range(rounds):
                ready.acquire()
                me.unpark(value)

        thread = threading.Thread(target=wake)
        thread.start()
        for _ in range(rounds):
            ready.release()
            assert park(30) is value
        thread.join()

    run(main)


@pytest.mark.usefixtures("hasty_gil")
def test_wake_ups_from_four_threads_to_many_fibers() -> None:
    def main() -> int:
        fibers = [spawn(lambda: [park(30) for _ in range(20)] and 1) for _ in range(40)]
        yield_now()

        def wake(mine: list[Fiber[Any]]) -> None:
            pending = list(mine)
            while pending:
                for fiber in pending:
                    try:
                        fiber.unpark()
                    except FiberError:
                        pending = [fiber for fiber in pending if not fiber.done()]
                        break

        threads = [threading.Thread(target=wake, args=(fibers[i::4],)) for i in range(4)]
        for thread in threads:
            thread.start()
        total = sum(fiber.result() for fiber in fibers)
        for thread in threads:
            thread.join()
        return total

    assert run(main) == 40


@pytest.mark.usefixtures("hasty_gil")
def test_two_runs_on_two_threads_wake_each_other() -> None:
    rounds = 1000
    fibers: dict[str, Fiber[Any]] = {}
    both = threading.Barrier(2)

    def player(name: str, other: str, first: bool) -> int:
        fibers[name] = current()
        both.wait()
        if first:
            fibers[other].unpark(0)
        last = 0
        for _ in range(rounds):
            last = park(30)
            if last < 2 * rounds - 1:
                fibers[other].unpark(last + 1)
        return last

    results: dict[str, int] = {}

    def body(name: str, other: str, first: bool) -> None:
        results[name] = run(player, name, other, first)

    thread = threading.Thread(target=body, args=("b", "a", False))
    thread.start()
    body("a", "b", True)
    thread.join()
    assert results == {"a": 2 * rounds - 1, "b": 2 * rounds - 2}


def test_yielding_fibers_do_not_starve_wake_ups_from_threads() -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        thread = threading.Thread(target=fiber.unpark, args=("value",))
        thread.start()
        while not fiber.done():
            yield_now()
        thread.join()
        assert fiber.result() == "value"

    run(main)


@pytest.mark.usefixtures("hasty_gil")
@pytest.mark.filterwarnings("ignore:unpark.'race'. is dropped:RuntimeWarning")
def test_cancels_from_threads_race_the_end() -> None:
    """A fiber may end while its cancellation is on the way: nothing breaks, nothing hangs."""

    def main() -> None:
        stop = threading.Event()
        box: list[Fiber[Any]] = []

        def canceller() -> None:
            while not stop.is_set():
                for fiber in box[-1:]:
                    fiber.cancel("race")
                    with contextlib.suppress(FiberError):
                        fiber.unpark("race")
                        fiber.unpark()

        thread = threading.Thread(target=canceller)
        thread.start()
        try:
            for i in range(2000):
                fiber = spawn(lambda: (yield_now(), yield_now()))
                box[:] = [fiber]
                if i % 3 == 0:
                    fiber.cancel()
                fiber.join()
                assert fiber.done()
        finally:
            stop.set()
            thread.join()

    run(main)


def test_wake_up_for_a_fiber_that_has_ended_meanwhile_is_dropped() -> None:
    def main() -> None:
        fiber = spawn(yield_now)
        in_thread(lambda: (fiber.unpark("late"), fiber.unpark(), fiber.cancel()))
        fiber.join()
        assert fiber.done()

    run(main)


def test_value_of_a_wake_up_nobody_takes_is_dropped() -> None:
    class Thing:
        pass

    def main() -> weakref.ref[Thing]:
        me = current()
        me.unpark("first")
        box = [Thing()]
        ref = weakref.ref(box[0])
        in_thread(lambda: me.unpark(box.pop()))
        with pytest.warns(RuntimeWarning, match="is dropped"):
            yield_now()
        assert park() == "first"
        return ref

    gone = run(main)
    gc.collect()
    assert gone() is None


def test_wake_up_with_a_value_without_memory_is_a_memory_error(child: Child) -> None:
    """The n-th request for memory fails, for each n until none is left; then it arrives."""
    pytest.importorskip("_testcapi")
    done = child(
        """
        import _testcapi, threading
        from _thread import allocate_lock
        from pyfiber import Scheduler, current, park

        def other():
            scheduler = Scheduler()
            fibers.append(scheduler.spawn(park))
            made.release()
            woken.acquire()
            print(scheduler.run(fibers[0].result))
            scheduler.close()

        def fails_at(n):
            try:
                _testcapi.set_nomemory(n, n + 1)
                fiber.unpark("value")
                return False
            except MemoryError:
                return True
            finally:
                _testcapi.remove_mem_hooks()

        fibers = []
        made, woken = allocate_lock(), allocate_lock()
        made.acquire(), woken.acquire()
        thread = threading.Thread(target=other, daemon=True)
        thread.start()
        made.acquire()
        fiber, = fibers
        current()  # this thread has its record: what follows fails for the wake-up alone
        failed = 0
        while fails_at(failed):
            failed += 1
        print(failed > 0)
        woken.release()
        thread.join()
        """
    )
    assert done.stdout == "True\nvalue\n"


def test_value_of_a_wake_up_while_the_fiber_is_unwound_is_dropped() -> None:
    class Thing:
        pass

    refs: list[weakref.ref[Thing]] = []

    def wake(fiber: Fiber[Any]) -> None:
        thing = Thing()
        refs.append(weakref.ref(thing))
        with contextlib.suppress(FiberError):
            fiber.unpark(thing)

    def body() -> None:
        me = current()
        try:
            park()
        finally:
            in_thread(lambda: wake(me))

    scheduler = Scheduler()
    fiber = scheduler.spawn(body)
    scheduler.run_once()
    scheduler.close()
    in_thread(lambda fiber=fiber: wake(fiber))  # type: ignore[misc]
    del scheduler, fiber
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_wake_up_that_is_overtaken_wakes_from_nothing_else() -> None:
    """A lock comes from another thread; a cancellation lets the fiber see it before the message."""

    def main() -> None:
        lock = Lock()
        lock.acquire()
        scopes: list[CancelScope] = []
        log: Log = []

        def body() -> Any:
            with CancelScope() as scope:
                scopes.append(scope)
                log.append(lock.acquire())
            log.append("parks")
            return park()

        fiber = spawn(body)
        yield_now()
        in_thread(lock.release)
        scopes[0].cancel()
        yield_now()
        assert log == [True, "parks"]
        for _ in range(200):  # the loop looks for messages meanwhile
            yield_now()
        assert fiber.state == "parked"
        fiber.unpark("value")
        assert fiber.result() == "value"

    run(main)


def test_fiber_that_goes_with_its_own_wake_up_in_a_batch() -> None:
    """A batch of messages holds its last reference *and* its own wake-up, further behind."""
    printed = run_script(
        """
        import gc, threading
        from pyfiber import *

        class Gate:
            "Goes while the batch before is worked on; then the other thread posts."
            def __del__(self):
                go.set()
                posted.wait()

        def main():
            me = current()
            me.unpark()
            victims = [spawn(lambda: None)]
            victims[0].cancel()
            gates = [Gate()]
            sent = threading.Event()
            def other():
                victim = victims.pop()
                me.unpark(gates.pop())
                sent.set()
                go.wait()
                victim.cancel("late")
                victim.unpark()
                del victim
                posted.set()
            thread = threading.Thread(target=other)
            thread.start()
            sent.wait()
            yield_now()
            thread.join()
            park()
            for _ in range(10):
                yield_now()

        go, posted = threading.Event(), threading.Event()
        for _ in range(20):
            go.clear()
            posted.clear()
            run(main)
        print(sum(type(it) is Fiber for it in gc.get_objects()))
        """,
        "-Xdev",
        timeout=20,
    ).stdout
    assert int(printed) < 10, "each of 20 runs leaves its victim"


# Last references ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wait",
    [
        yield_now,
        lambda: sleep(0.001),
        lambda: spawn(int).join(),
        lambda: to_thread(int),
        lambda: Event().wait(0.001),
        lambda: spawn(current().unpark) and park(),
        lambda: gather(int),
    ],
)
def test_raw_fiber_dropped_on_another_thread_is_unwound_on_its_own(
    wait: Callable[[], object],
) -> None:
    log: Log = []

    def body(main: Fiber[Any]) -> None:
        try:
            main.switch()
        finally:
            log.append(threading.get_ident())

    def main() -> None:
        box = [Fiber(body, (current(),))]
        box[0].switch()
        in_thread(box.clear)
        for _ in range(3):
            wait()

    run(main)
    assert log == [threading.get_ident()]


@needs_gil(DROPS_ARE_QUEUED)
def test_wait_for_what_a_dropped_fiber_grants_as_it_is_unwound_gets_it() -> None:
    """The wait begins with that, when it is in line already."""
    event = Event()

    def body(main: Fiber[Any]) -> None:
        try:
            main.switch()
        finally:
            event.set()

    def main() -> None:
        box = [Fiber(body, (current(),))]
        box[0].switch()
        in_thread(box.clear)
        assert not event.is_set()
        assert event.wait(30)

    run(main)


def test_raw_fiber_dropped_on_another_thread_is_unwound_before_a_lock_is_taken_back() -> None:
    condition = Condition(Lock())
    box: list[Fiber[Any]] = []
    log: Log = []

    def body(main: Fiber[Any]) -> None:
        try:
            main.switch()
        finally:
            log.append("unwound")

    def waits() -> None:
        with condition:
            log.append(condition.wait())

    def main() -> None:
        waiter = spawn(waits)
        yield_now()
        box.append(Fiber(body, (current(),)))
        box[0].switch()
        with condition:
            spawn(in_thread, box.clear)  # the last that runs before the waiter does
            condition.notify()
            yield_now()
            assert log == ["unwound"]
        waiter.join()

    run(main)
    assert log == ["unwound", True]


def test_spawned_fiber_dropped_on_another_thread_runs_on() -> None:
    def main() -> None:
        me = current()
        box = [spawn(lambda: (sleep(0.001), me.unpark("ran")))]
        yield_now()
        in_thread(box.clear)
        assert park(30) == "ran"

    run(main)


def test_failed_fiber_dropped_on_another_thread_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    box = [run(lambda: spawn(lambda: 1 // 0))]
    in_thread(box.clear)
    assert "ZeroDivisionError" in caplog.text


# Threads that end ---------------------------------------------------------------------------------


def test_thread_that_ends_after_a_run_leaves_usable_results() -> None:
    fiber: Fiber[int] = in_thread(lambda: run(lambda: spawn(lambda: 5)))
    assert fiber.result() == 5
    assert fiber.frame is None
    assert "done" in repr(fiber)
    with pytest.raises(FiberError):
        fiber.unpark()


def test_thread_that_ends_with_parked_fibers_unwinds_them() -> None:
    log: Log = []

    def body() -> None:
        try:
            park()
        finally:
            log.append("unwound")

    def thread() -> Fiber[Any]:
        scheduler = Scheduler()
        fiber = scheduler.spawn(body)
        scheduler.run_once()
        return fiber

    fiber = in_thread(thread)
    assert log == ["unwound"]
    assert fiber.done()
    assert fiber.cancel() is False


@pytest.mark.parametrize(
    "act",
    [lambda fiber: fiber.cancel(), lambda fiber: fiber.unpark(), lambda fiber: fiber.unpark(5)],
    ids=["cancel", "unpark", "unpark with a value"],
)
def test_wake_ups_for_a_thread_that_ended_do_no_harm(act: Callable[[Fiber[Any]], Any]) -> None:
    def thread() -> Fiber[Any]:
        scheduler = Scheduler()
        return scheduler.spawn(park)

    with contextlib.suppress(FiberError):
        act(in_thread(thread))
    gc.collect()


def test_daemon_threads_in_a_run_at_exit_make_no_noise() -> None:
    done = run_script(
        """
        import threading, time
        from pyfiber import *
        started = threading.Semaphore(0)
        def busy():
            started.release()
            while True:
                sum(range(100))
                yield_now()
        def busy_in_a_raw_fiber():
            Fiber(busy).switch()
        def idle():
            started.release()
            park()
        def sleeps():
            started.release()
            sleep(3600)
        bodies = (busy, busy, busy_in_a_raw_fiber, idle, sleeps)
        for body in bodies:
            threading.Thread(target=run, args=(body,), daemon=True).start()
        for _ in bodies:
            started.acquire()
        print("bye")
        """,
        timeout=20,
    )
    assert (done.stdout, done.stderr) == ("bye\n", "")


def test_swallowing_fiber_is_cancelled_again_by_a_thread_without_effect() -> None:
    def main() -> None:
        def body() -> str:
            for _ in range(3):
                with pytest.raises(Cancelled):
                    park()
            return "swallowed"

        fiber = spawn(body)
        yield_now()
        in_thread(fiber.cancel)
        assert fiber.result() == "swallowed"

    run(main)
