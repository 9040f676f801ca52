"""How a pool of grains ends, and who waits for that."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest

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
)
from pyfiber.testing import run as run_virtually
from tests.grain.grain_makers import POLICIES, steps
from tests.support.threads import PATIENCE

# --- ends


def test_shutdown_without_waiting() -> None:
    def main() -> tuple[bool, Any]:
        pool = GrainPool().start()
        grain = pool.queue([5])
        pool.shutdown(wait=False)
        with pytest.raises(FiberError, match="takes no more grains"):
            pool.queue([READY])
        done = grain.done()
        pool.shutdown()
        pool.shutdown()
        return done, grain.outcome

    assert run_virtually(main) == (False, Ok(None))


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


def test_started_again_by_its_policy_while_it_starts() -> None:
    refusals = []

    class Starts(RoundRobin):
        def add(self, grain: Grain[Any]) -> None:
            with pytest.raises(FiberError, match="started already") as refusal:
                pool.start()
            refusals.append(refusal)
            super().add(grain)

    pool = GrainPool(Starts())
    grain = pool.queue([READY])

    def main() -> None:
        pool.start()
        grain.join()

    run(main)
    assert refusals


def test_a_start_that_failed_may_be_tried_again() -> None:
    pool = GrainPool()
    with pytest.raises(FiberError, match="starting a pool"):
        pool.start(thread=False)  # outside of a run
    with pool:
        assert pool.queue([READY]).join(PATIENCE)


@pytest.mark.parametrize("policy", POLICIES)
def test_shutdown_from_inside_a_grain(policy: Callable[[], Policy]) -> None:
    def ends(pool: GrainPool) -> Generator[Any, Any, str]:
        with pytest.raises(FiberError, match="its own pool"):
            pool.shutdown()
        pool.shutdown(wait=False)
        yield READY
        return "fine"

    pool = GrainPool(policy())
    grain = pool.queue(ends, pool)
    other = pool.queue([READY] * 5)  # before the pool's own thread, which runs beside, ends it
    with pool:
        grain.join(PATIENCE)
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
        grain.join(PATIENCE)
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


@pytest.mark.filterwarnings("ignore:.*dropped without close:ResourceWarning")
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
        assert waits.join(PATIENCE)
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
        return grain.result(timeout=PATIENCE)

    assert run(main) == "late"


def test_cancelled_shutdown_leaves_the_pool_running() -> None:
    def main() -> Any:
        pool = GrainPool().start()
        grain = pool.queue([SLEEPING])
        with pytest.raises(TimeoutError), pyfiber.timeout(0.001):
            pool.shutdown()
        assert not grain.done()
        grain.unpark()
        pool.shutdown()
        return grain.outcome

    assert run(main) == Ok(None)


@pytest.mark.parametrize("thread", [False, True], ids=["inside", "own thread"])
def test_cancelled_block_ends_its_pool(thread: bool) -> None:
    """At the end of the block or within it: nobody is left running behind."""
    order: list[str] = []

    def waits(begun: pyfiber.Event) -> Generator[Any, Any, None]:
        try:
            begun.set()
            yield SLEEPING
        finally:
            order.append("cleaned up")

    class Pool(GrainPool):
        def start(self, *, thread: bool | None = thread) -> Any:
            return super().start(thread=thread)

    def at_the_end(begun: pyfiber.Event) -> None:
        with Pool() as pool:
            pool.queue(waits, begun)

    def within(begun: pyfiber.Event) -> None:
        with Pool() as pool:
            pool.queue(waits, begun)
            sleep(10)

    def main() -> None:
        for body in (at_the_end, within):
            begun = pyfiber.Event()
            fiber = pyfiber.spawn(body, begun)
            begun.wait()
            fiber.cancel()
            fiber.join()
            assert fiber.cancelled()
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
    assert other.join(PATIENCE)
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
        assert all(grain.join(PATIENCE) for grain in grains)


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


def test_exit_after_a_start_that_a_trace_function_ended_ends_the_pools_thread(child: Any) -> None:
    done = child(
        """
        import sys
        from tests.support.interfering import Interfering, Stop, stop
        from pyfiber.grains import GrainPool

        def start(pool, nth):
            interfering = Interfering(nth, stop, "pyfiber.grains")
            sys.settrace(interfering)
            try:
                pool.start()
            except Stop:
                pass
            finally:
                sys.settrace(None)
            return interfering.left <= 0

        pools = [GrainPool()]
        while start(pools[-1], len(pools)):
            pools.append(GrainPool())
        print(len(pools) > 10)
        """
    )
    assert done.stdout == "True\n"
