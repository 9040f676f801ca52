"""Pools of grains: where they run, who belongs to them, how they end."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import pytest
from grain_makers import POLICIES, steps

import pyfiber
from pyfiber import (
    Cancelled,
    CancelledOutcome,
    FiberError,
    Ok,
    run,
    sleep,
    yield_now,
)
from pyfiber.grains import (
    READY,
    SLEEPING,
    FairShare,
    Grain,
    GrainPool,
    Policy,
    RoundRobin,
    current_grain,
    spawn,
)

# --- on its own thread


@pytest.mark.parametrize("policy", POLICIES)
def test_pool_on_a_thread_of_its_own(policy: Callable[[], Policy]) -> None:
    log: list[Any] = []
    threads: set[int] = set()

    def where() -> Generator[Any, Any, None]:
        threads.add(threading.get_ident())
        yield READY

    pool = GrainPool(policy())
    early = pool.queue(steps, log, "early", 3)
    assert not pool.started
    pool.start()
    assert pool.started
    late = pool.queue(steps, log, "late", 3)
    pool.queue(where)
    pool.shutdown()
    assert (early.result(), late.result()) == ("early", "late")
    assert Counter(log) == {"early": 3, "late": 3}
    assert threads
    assert threading.get_ident() not in threads
    assert len(pool) == 0


def test_pool_as_a_context_manager() -> None:
    log: list[Any] = []
    with GrainPool(name="block") as pool:
        grains = [pool.queue(steps, log, n, n) for n in range(5)]
        assert "block" in repr(pool)
    assert [grain.result() for grain in grains] == list(range(5))
    assert "shut down" in repr(pool)


def test_block_that_raises_interrupts_the_pool() -> None:
    def block() -> None:
        with GrainPool() as pool:
            grains.append(pool.queue([SLEEPING]))
            raise KeyError("block")

    grains: list[Grain[Any]] = []
    with pytest.raises(KeyError, match="block"):
        block()
    assert grains[0].outcome == CancelledOutcome("the pool was interrupted")


def test_grains_are_queued_from_many_threads() -> None:
    log: list[Any] = []
    with GrainPool(FairShare()) as pool:

        def queue_some(first: int) -> None:
            for n in range(first, first + 50):
                pool.queue(steps, log, n, 2)

        threads = [threading.Thread(target=queue_some, args=(n * 50,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert Counter(log) == dict.fromkeys(range(200), 2)


def test_sleeping_pool_uses_no_processor_time() -> None:
    with GrainPool() as pool:
        flag: list[int] = []
        grain = pool.queue(lambda: iter([lambda: flag]))
        pool.queue([0.1, 0.1])
        before = time.process_time()
        threading.Event().wait(0.2)
        used = time.process_time() - before
        flag.append(1)
        pool.queue([READY])  # something runs, so the predicate is asked
        grain.join(5)
    assert used < 0.1


def test_join_of_a_pools_grain_from_another_thread() -> None:
    with GrainPool() as pool:
        grain = pool.queue([0.01])
        assert not grain.join(0)
        assert grain.join(5)
        assert grain.outcome == Ok(None)


def test_join_of_a_pools_grain_from_a_fiber_of_another_thread() -> None:
    with GrainPool() as pool:
        grain = pool.queue([0.02])
        turns = []

        def main() -> None:
            busy = pyfiber.spawn(lambda: [turns.append(1) or sleep(0.001) for _ in range(5)])
            assert grain.join(5)
            busy.join()

        run(main)
        assert grain.done()
        assert len(turns) == 5


# --- inside of a run


@pytest.mark.parametrize("policy", POLICIES)
def test_pool_inside_of_a_run(policy: Callable[[], Policy]) -> None:
    log: list[Any] = []

    def main() -> list[Any]:
        pool = GrainPool(policy()).start()
        grains = [pool.queue(steps, log, n, 2) for n in range(3)]
        pool.shutdown()
        return [grain.result() for grain in grains]

    assert run(main) == [0, 1, 2]
    assert Counter(log) == {0: 2, 1: 2, 2: 2}


@pytest.mark.parametrize("policy", POLICIES)
def test_run_waits_for_the_grains_of_a_pool(policy: Callable[[], Policy]) -> None:
    log: list[Any] = []

    def main() -> None:
        pool = GrainPool(policy()).start()
        pool.queue(steps, log, "a", 5)

    run(main)
    assert log == ["a"] * 5


@pytest.mark.parametrize("policy", POLICIES)
def test_neither_fibers_nor_pools_starve(policy: Callable[[], Policy]) -> None:
    turns: list[int] = []
    stop: list[int] = []

    def busy() -> Generator[Any, Any, int]:
        count = 0
        while not stop:
            count += 1
            yield READY
        return count

    def main() -> list[int]:
        pool = GrainPool(policy()).start()
        grains = [pool.queue(busy) for _ in range(3)]
        for _ in range(100):
            turns.append(1)
            yield_now()
        stop.append(1)
        return [grain.result() for grain in grains]

    counts = run(main)
    assert 290 <= sum(counts) <= 310


def test_thread_can_be_chosen_inside_of_a_run() -> None:
    threads: list[int] = []

    def main() -> None:
        pool = GrainPool().start(thread=True)
        pool.queue(lambda: threads.append(threading.get_ident()) or iter([READY]))
        pool.queue(where)
        pool.shutdown()

    def where() -> Generator[Any, Any, None]:
        threads.append(threading.get_ident())
        yield READY

    run(main)
    assert threads[0] == threading.get_ident()  # functions are called by queue()
    assert threads[1] != threading.get_ident()


def test_thread_false_outside_of_a_run() -> None:
    pool = GrainPool()
    with pytest.raises(FiberError, match="needs a running scheduler"):
        pool.start(thread=False)
    pool.start()
    pool.shutdown()


# --- queue and dequeue


def test_queued_twice() -> None:
    pool = GrainPool()
    grain = pool.queue([READY])
    with pytest.raises(FiberError, match="queued already"):
        pool.queue(grain)
    with pytest.raises(FiberError, match="queued already"):
        GrainPool().queue(grain)
    pool.start()
    pool.shutdown()
    with pytest.raises(FiberError):
        pool.queue(grain)


def test_finished_and_started_grains_are_not_queued() -> None:
    def main() -> None:
        pool = GrainPool().start()
        grain = spawn([READY])
        with pytest.raises(FiberError, match="started without a pool"):
            pool.queue(grain)
        grain.join()
        with pytest.raises(FiberError, match="has finished"):
            pool.queue(grain)

    run(main)


def test_started_while_queued() -> None:
    def main() -> None:
        pool = GrainPool()
        grain = pool.queue([READY])
        with pytest.raises(FiberError, match="queued in a pool"):
            grain.start()
        pool.start()

    run(main)


def test_queue_of_nonsense() -> None:
    pool = GrainPool()
    with pytest.raises(TypeError, match="a grain is made of"):
        pool.queue(5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="must return a generator"):
        pool.queue(lambda: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="for a function"):
        pool.queue(Grain([READY]), 1)  # type: ignore[call-overload]
    assert len(pool) == 0


def test_dequeue_of_the_unknown() -> None:
    pool = GrainPool()
    with pytest.raises(FiberError, match="is not in this pool"):
        pool.dequeue(Grain([READY]))
    with pytest.raises(TypeError, match="expected a Grain"):
        pool.dequeue(5)  # type: ignore[arg-type]
    other = GrainPool()
    grain = other.queue([READY])
    with pytest.raises(FiberError, match="is not in this pool"):
        pool.dequeue(grain)
    other.dequeue(grain)
    with pytest.raises(FiberError, match="is not in this pool"):
        other.dequeue(grain)


@pytest.mark.parametrize("policy", POLICIES)
def test_dequeued_grain_has_no_more_turns(policy: Callable[[], Policy]) -> None:
    log: list[Any] = []

    def main() -> tuple[int, str]:
        pool = GrainPool(policy()).start()
        grain = pool.queue(steps, log, "a", 100)
        for _ in range(3):
            yield_now()
        pool.dequeue(grain)
        count = len(log)
        for _ in range(3):
            yield_now()
        assert len(log) == count
        assert grain.pool is None
        assert len(pool) == 0
        pool.queue(grain)
        for _ in range(3):
            yield_now()
        assert len(log) > count
        grain.cancel()
        return count, grain.state

    count, _ = run(main)
    assert 2 <= count <= 3


@pytest.mark.parametrize("policy", POLICIES)
def test_dequeued_while_it_waits(policy: Callable[[], Policy]) -> None:
    def fiber() -> str:
        sleep(0.005)
        return "fiber"

    def waits() -> Generator[Any, Any, list[Any]]:
        yield 0.005
        return [(yield pyfiber.spawn(fiber)), (yield lambda: "answer"), (yield SLEEPING)]

    def main() -> Any:
        pools = [GrainPool(policy()).start(), GrainPool(policy()).start()]
        grain = pools[0].queue(waits)
        for turn in range(20):
            pools[turn % 2].dequeue(grain)
            assert grain.state == "parked"
            pools[1 - turn % 2].queue(grain)
            sleep(0.001)
            if turn % 7 == 0:  # a sleep begins anew whenever it is queued
                sleep(0.006)
        grain.unpark("unparked")
        return grain.result()

    assert run(main) == ["fiber", "answer", "unparked"]


@pytest.mark.parametrize("policy", POLICIES)
def test_grain_dequeues_itself(policy: Callable[[], Policy]) -> None:
    log: list[Any] = []

    def leaves(pool: GrainPool) -> Generator[Any, Any, None]:
        me = current_grain()
        assert me is not None
        pool.dequeue(me)
        log.append("step goes on")
        yield READY
        log.append("queued again")

    def main() -> None:
        pool = GrainPool(policy()).start()
        grain = pool.queue(leaves, pool)
        sleep(0.001)
        assert log == ["step goes on"]
        assert grain not in pool
        pool.queue(grain)

    run(main)
    assert log == ["step goes on", "queued again"]


def test_dequeue_from_another_thread() -> None:
    with GrainPool() as pool:
        grain = pool.queue([SLEEPING])
        while grain.state != "parked":
            time.sleep(0.001)
        pool.dequeue(grain)
        while grain in pool:
            time.sleep(0.001)
    assert grain.state == "parked"
    grain.cancel()
    assert grain.cancelled()


def test_run_ends_without_the_grains_that_were_dequeued() -> None:
    order = []

    def waits() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        finally:
            order.append("closed")

    def main() -> Grain[Any]:
        pool = GrainPool().start()
        grain = pool.queue(waits)
        sleep(0.001)
        pool.dequeue(grain)
        return grain

    grain = run(main)
    assert grain.state == "parked"
    with pytest.raises(FiberError, match="taken out of its pool"):
        run(grain.join)
    del grain
    gc.collect()
    assert order == ["closed"]


def test_joining_a_dequeued_grain() -> None:
    def main() -> None:
        pool = GrainPool().start()
        grain = pool.queue([SLEEPING])
        yield_now()
        pool.dequeue(grain)
        with pytest.raises(FiberError, match="taken out of its pool"):
            grain.join()

        def waits() -> Generator[Any, Any, str]:
            try:
                yield grain
            except FiberError as exc:
                return str(exc)
            return "nothing"

        assert "taken out of its pool" in spawn(waits).result()

    run(main)


def test_iteration_while_the_pool_runs() -> None:
    def main() -> None:
        pool = GrainPool().start()
        grains = [pool.queue([READY] * n) for n in range(1, 6)]
        seen = []
        for grain in pool:
            seen.append(grain)
            sleep(0.001)
        assert seen == grains
        assert list(pool) == []
        assert bool(pool)

    run(main)


# --- ends


def test_shutdown_without_waiting() -> None:
    def main() -> tuple[bool, Any]:
        pool = GrainPool().start()
        grain = pool.queue([0.005])
        pool.shutdown(wait=False)
        with pytest.raises(FiberError, match="takes no more grains"):
            pool.queue([READY])
        done = grain.done()
        pool.shutdown()
        pool.shutdown()
        return done, grain.outcome

    assert run(main) == (False, Ok(None))


def test_shutdown_of_a_pool_that_was_not_started() -> None:
    pool = GrainPool()
    pool.shutdown()
    pool = GrainPool()
    pool.queue([READY])
    with pytest.raises(FiberError, match="was not started"):
        pool.shutdown()
    with pytest.raises(FiberError, match="started already, or shut down"):
        pool.start()


def test_started_twice() -> None:
    def main() -> None:
        pool = GrainPool().start()
        with pytest.raises(FiberError, match="started already"):
            pool.start()

    run(main)
    with GrainPool() as pool, pytest.raises(FiberError, match="started already"):
        pool.start()


@pytest.mark.parametrize("policy", POLICIES)
def test_shutdown_from_inside_a_grain(policy: Callable[[], Policy]) -> None:
    def ends(pool: GrainPool) -> Generator[Any, Any, str]:
        with pytest.raises(FiberError, match="its own pool"):
            pool.shutdown()
        pool.shutdown(wait=False)
        yield READY
        return "fine"

    with GrainPool(policy()) as pool:
        grain = pool.queue(ends, pool)
        other = pool.queue([READY] * 5)
        grain.join(5)
    assert grain.result() == "fine"
    assert other.outcome == Ok(None)


def test_grain_of_a_pool_that_is_shut_down_may_still_call_others() -> None:
    def inner() -> Generator[Any, Any, int]:
        yield READY
        return 5

    def outer(pool: GrainPool) -> Generator[Any, Any, Any]:
        pool.shutdown(wait=False)
        return (yield pool.queue(inner)) + (yield Grain(inner))

    with GrainPool() as pool:
        grain = pool.queue(outer, pool)
        grain.join(5)
    assert grain.result() == 10


def test_interrupt_from_another_thread() -> None:
    order = []

    def waits() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        except Cancelled as exc:
            order.append(exc.reason)
            yield from ()
            raise

    pool = GrainPool().start()
    grains = [pool.queue(waits) for _ in range(3)]
    while any(grain.state != "parked" for grain in grains):
        time.sleep(0.001)
    pool.interrupt("enough")
    pool.shutdown()
    assert order == ["enough"] * 3
    with pytest.raises(FiberError, match="takes no more grains"):
        pool.queue([READY])


def test_interrupt_before_the_start() -> None:
    pool = GrainPool()
    grain = pool.queue([READY])
    pool.interrupt()
    assert grain.cancelled()
    pool.shutdown()


@pytest.mark.parametrize("policy", POLICIES)
def test_failure_ends_the_grain_alone(policy: Callable[[], Policy]) -> None:
    def fails() -> Generator[Any, Any, None]:
        yield READY
        raise KeyError("mine")

    log: list[Any] = []
    with GrainPool(policy()) as pool:
        bad = pool.queue(fails)
        good = pool.queue(steps, log, "good", 10)
    assert good.result() == "good"
    with pytest.raises(KeyError, match="mine"):
        bad.result()
    assert pool.error is None


@pytest.mark.parametrize("policy", POLICIES)
def test_failure_ends_the_pool_if_it_is_told_so(policy: Callable[[], Policy]) -> None:
    def fails() -> Generator[Any, Any, None]:
        yield READY
        raise KeyError("mine")

    pool = GrainPool(policy(), on_error="pool").start()
    good = pool.queue([SLEEPING])
    pool.queue(fails)
    good.join()
    with pytest.raises(KeyError, match="mine"):
        pool.shutdown()
    assert good.outcome == CancelledOutcome("another grain failed")
    assert isinstance(pool.error, KeyError)
    with pytest.raises(FiberError, match="takes no more grains"):
        pool.queue([READY])


def test_cancelled_grain_is_no_failure() -> None:
    with GrainPool(on_error="pool") as pool:
        grain = pool.queue([SLEEPING])
        grain.cancel()
        other = pool.queue([0.005])
    assert other.outcome == Ok(None)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"on_error": "ignore"}, ValueError),
        ({"policy": 5}, TypeError),
        ({"policy": RoundRobin}, None),
    ],
)
def test_bad_pools(arguments: dict[str, Any], error: type[Exception] | None) -> None:
    if error is not None:
        with pytest.raises(error):
            GrainPool(**arguments)
    else:
        pool = GrainPool(**arguments)  # a class: its methods fail, which is reported
        pool.policy = RoundRobin()


def test_pool_is_initialised_once() -> None:
    pool = GrainPool()
    pool.queue([READY])
    with pytest.raises(FiberError, match="in use"):
        pool.__init__()  # type: ignore[misc]


# --- the end of runs


@pytest.mark.parametrize("policy", POLICIES)
def test_failing_main_ends_the_pool(policy: Callable[[], Policy]) -> None:
    pools = []

    def main() -> None:
        pool = GrainPool(policy()).start()
        pools.append(pool)
        pool.queue([SLEEPING])
        pool.queue([READY] * 1000)
        yield_now()
        raise KeyError("main")

    with pytest.raises(KeyError):
        run(main)
    assert len(pools[0]) == 0
    assert not pools[0].started


def test_pool_can_be_started_again_in_another_run() -> None:
    log: list[Any] = []
    pool = GrainPool(FairShare())
    for name in "ab":

        def main(name: str = name) -> None:
            pool.start()
            pool.queue(steps, log, name, 2)

        run(main)
    assert log == ["a", "a", "b", "b"]


def test_deadlock_names_the_grains_of_a_pool(child: Any) -> None:
    done = child(
        """
        import pyfiber
        from pyfiber.grains import SLEEPING, GrainPool, Priority
        def main():
            GrainPool(Priority()).start().queue([SLEEPING], name="sleeping beauty")
        try:
            pyfiber.run(main)
        except pyfiber.DeadlockError as exc:
            print(exc)
        """
    )
    assert "sleeping beauty" in done.stdout


def test_pool_is_freed() -> None:
    def main() -> Any:
        pool = GrainPool(FairShare()).start()
        pool.queue([READY] * 3)
        pool.shutdown()
        return weakref.ref(pool)

    ref = run(main)
    gc.collect()
    assert ref() is None


def test_scheduler_dropped_with_a_pool_in_it() -> None:
    order = []

    def waits() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        finally:
            order.append("closed")

    def main() -> None:
        pool = GrainPool(FairShare()).start()
        pool.queue(waits)
        pool.queue([READY] * 1000)

    scheduler = pyfiber.Scheduler()
    scheduler.spawn(main)
    for _ in range(5):
        scheduler.run_once()
    del scheduler
    gc.collect()
    assert order == ["closed"]


# --- waiting for the end


def test_shutdown_ends_when_the_last_grain_is_dequeued() -> None:
    """It waited for the end of that grain, which may never come."""

    def main() -> str:
        pool = GrainPool().start()
        grain = pool.queue([SLEEPING])
        waits = pyfiber.spawn(pool.shutdown)
        yield_now()
        yield_now()
        pool.dequeue(grain)
        assert waits.join(5)
        return grain.state

    assert run(main) == "parked"


def test_shutdown_ends_when_another_thread_dequeues_the_last_grain() -> None:
    pool = GrainPool().start()
    grain = pool.queue([SLEEPING])
    timer = threading.Timer(0.01, pool.dequeue, (grain,))
    timer.start()
    pool.shutdown()
    timer.join()
    assert len(pool) == 0
    assert not grain.done()


def test_waiting_fiber_lets_others_run_while_a_pools_thread_works() -> None:
    """join() and shutdown() of a pool with a thread of its own blocked the whole thread."""
    order: list[str] = []

    def main() -> None:
        pool = GrainPool().start(thread=True)
        grain = pool.queue([SLEEPING])
        joins = pyfiber.spawn(lambda: order.append(f"joined {grain.join()}"))
        ends = pyfiber.spawn(lambda: order.append(f"ended {pool.shutdown()}"))
        for _ in range(5):
            sleep(0.001)
        order.append("others")
        grain.unpark()
        joins.join()
        ends.join()

    run(main)
    assert order[0] == "others"
    assert sorted(order[1:]) == ["ended None", "joined True"]


def test_join_with_a_timeout_leaves_nothing_behind() -> None:
    with GrainPool() as pool:
        grain = pool.queue([SLEEPING])
        for _ in range(50):
            assert not grain.join(0)
        callbacks = [ref for ref in gc.get_referents(grain) if isinstance(ref, list)]
        assert [len(each) for each in callbacks] == [1]
        grain.unpark()


def test_join_of_a_grain_whose_pool_starts_later() -> None:
    """On the same thread: it blocked that, so nobody could start the pool."""

    def main() -> Any:
        pool = GrainPool()
        grain = pool.queue(steps, [], "late", 2)
        pyfiber.spawn(pool.start)
        return grain.result(timeout=5)

    assert run(main) == "late"


def test_cancelled_shutdown_leaves_the_pool_running() -> None:
    def main() -> Any:
        pool = GrainPool().start()
        grain = pool.queue([0.01])
        with pytest.raises(TimeoutError), pyfiber.timeout(0.001):
            pool.shutdown()
        assert not grain.done()
        pool.shutdown()
        return grain.outcome

    assert run(main) == Ok(None)


@pytest.mark.parametrize("thread", [False, True], ids=["inside", "own thread"])
def test_cancelled_block_ends_its_pool(thread: bool) -> None:
    """At the end of the block or within it: nobody is left running behind."""
    order: list[str] = []

    def waits() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        finally:
            order.append("cleaned up")

    class Pool(GrainPool):
        def start(self, *, thread: bool | None = thread) -> Any:
            return super().start(thread=thread)

    def at_the_end() -> None:
        with Pool() as pool:
            pool.queue(waits)

    def within() -> None:
        with Pool() as pool:
            pool.queue(waits)
            sleep(10)

    def main() -> None:
        for body in (at_the_end, within):
            with pytest.raises(TimeoutError), pyfiber.timeout(0.01):
                body()
            order.append("left")

    run(main)
    assert order == ["cleaned up", "left"] * 2


def test_block_that_raises_the_pools_own_error_raises_it_once() -> None:
    error = KeyError("grain")

    def fails() -> Generator[Any, Any, None]:
        yield READY
        raise error

    def body() -> None:
        with GrainPool(on_error="pool") as pool:
            pool.queue(fails).result()

    with pytest.raises(KeyError) as info:
        body()
    assert info.value is error
    assert info.value.__context__ is None


def test_block_and_pool_that_both_fail() -> None:
    def fails() -> Generator[Any, Any, None]:
        yield READY
        raise KeyError("grain")

    def body() -> None:
        with GrainPool(on_error="pool") as pool:
            pool.queue(fails).join()
            raise LookupError("block")

    with pytest.raises(KeyError, match="grain") as info:
        body()
    assert isinstance(info.value.__context__, LookupError)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_grain_that_ends_the_run_of_its_pools_thread(
    kind: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """A grain that was queued after that was never heard of again."""

    def grain() -> Generator[Any, Any, None]:
        yield READY
        raise kind

    pool = GrainPool().start()
    other = pool.queue([SLEEPING])
    pool.queue(grain).join()
    assert other.join(5)
    with pytest.raises(kind):
        pool.shutdown()
    with pytest.raises(FiberError, match="takes no more grains"):
        pool.queue([READY])
    assert "was ended" in caplog.text


def test_queued_while_the_thread_ends() -> None:
    """Whatever the order of things: the grain is refused, or it ends."""
    for _ in range(50):
        pool = GrainPool().start()
        grains: list[Grain[Any]] = []

        def queue_many(pool: GrainPool = pool, grains: list[Grain[Any]] = grains) -> None:
            try:
                while True:
                    grains.append(pool.queue([READY]))
            except FiberError:
                pass

        thread = threading.Thread(target=queue_many)
        thread.start()
        pool.shutdown()
        thread.join()
        assert all(grain.join(5) for grain in grains)


def test_open_pool_does_not_keep_the_interpreter_from_exiting(child: Any) -> None:
    done = child(
        """
        import threading
        from pyfiber.grains import SLEEPING, GrainPool
        running = threading.Event()
        def sleeper():
            running.set()
            try:
                yield SLEEPING
            finally:
                print("closed")
        empty, pool = GrainPool().start(), GrainPool().start()
        pool.queue(sleeper)
        running.wait()
        print("end of the program")
        """
    )
    assert done.stdout == "end of the program\nclosed\n"
