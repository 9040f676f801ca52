"""Pools of grains: where they run, who belongs to them, how they end."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import pytest

import pyfiber
from pyfiber import (
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
    current_grain,
    spawn,
)
from pyfiber.testing import run as run_virtually
from tests.grain.grain_makers import POLICIES, steps
from tests.support.threads import PATIENCE

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
        grain.join(PATIENCE)
    assert used < 0.1


def test_join_of_a_pools_grain_from_another_thread() -> None:
    with GrainPool() as pool:
        grain = pool.queue([0.01])
        assert not grain.join(0)
        assert grain.join(PATIENCE)
        assert grain.outcome == Ok(None)


def test_join_of_a_pools_grain_from_a_fiber_of_another_thread() -> None:
    with GrainPool() as pool:
        grain = pool.queue([0.02])
        turns = []

        def main() -> None:
            busy = pyfiber.spawn(lambda: [turns.append(1) or sleep(0.001) for _ in range(5)])
            assert grain.join(PATIENCE)
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
        sleep(5)
        return "fiber"

    def waits() -> Generator[Any, Any, list[Any]]:
        yield 5
        return [(yield pyfiber.spawn(fiber)), (yield lambda: "answer"), (yield SLEEPING)]

    def main() -> Any:
        pools = [GrainPool(policy()).start(), GrainPool(policy()).start()]
        grain = pools[0].queue(waits)
        for turn in range(20):
            pools[turn % 2].dequeue(grain)
            assert grain.state == "parked"
            pools[1 - turn % 2].queue(grain)
            sleep(1)
            if turn % 7 == 0:  # a sleep begins anew whenever it is queued
                sleep(6)
        grain.unpark("unparked")
        return grain.result()

    assert run_virtually(main) == ["fiber", "answer", "unparked"]


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
        sleep(1)
        assert log == ["step goes on"]
        assert grain not in pool
        pool.queue(grain)

    run_virtually(main)
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
        sleep(1)
        pool.dequeue(grain)
        return grain

    grain = run_virtually(main)
    assert grain.state == "parked"
    with pytest.raises(FiberError, match="taken out of its pool"):
        run_virtually(grain.join)
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
            sleep(1)
        assert seen == grains
        assert list(pool) == []
        assert bool(pool)

    run_virtually(main)
