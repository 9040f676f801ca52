"""Grains whose functions, iterators, futures, policies and finalizers change what is under way.

Each test lets code run where the engine cannot help running it, and has that code start, cancel or
take away the grain that the engine is working on.
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import Any

import pytest

import pyfiber
from pyfiber import Fiber, FiberError, TaskGroup, current, run, sleep, yield_now
from pyfiber.grains import (
    READY,
    SLEEPING,
    Grain,
    GrainPool,
    Policy,
    Priority,
    RoundRobin,
    current_grain,
)
from tests.conftest import Child


def ready(times: int = 1) -> Any:
    for _ in range(times):
        yield READY
    return "done"


def test_start_of_a_grain_whose_class_starts_it_first() -> None:
    begun = []

    class Steps:
        def __new__(cls, *args: Any) -> Any:
            if not begun:
                begun.append(True)
                grain.start()
            return super().__new__(cls)

        def __init__(self, *args: Any) -> None:
            assert args == ("a", "b")

        def __iter__(self) -> Any:
            return ready()

    grain: Grain[Any] = Grain(Steps, "a", "b")

    def main() -> None:
        with pytest.raises(FiberError, match="while its function was being called"):
            grain.start()
        assert grain.result() == "done"

    run(main)


def test_start_of_a_grain_whose_arguments_start_it_as_they_are_dropped() -> None:
    class Argument:
        def __del__(self) -> None:
            grain.start()

    def main() -> None:
        with pytest.raises(FiberError, match="has been started"):
            grain.start()
        assert grain.result() == "done"

    made: list[Argument] = [Argument()]
    grain: Grain[Any] = Grain(lambda argument: ready(), made.pop())
    run(main)


def test_start_of_a_grain_whose_iterators_name_starts_it() -> None:
    class Maker:
        def __call__(self) -> Any:
            return ready()

        def __getattr__(self, name: str) -> Any:
            if not started:
                started.append(True)
                grain.start()
            raise AttributeError(name)

    started: list[bool] = []
    grain: Grain[Any] = Grain(Maker())

    def main() -> None:
        with pytest.raises(FiberError):
            grain.start()
        assert grain.result() == "done"

    run(main)


def test_start_of_a_grain_whose_function_leaves_the_run() -> None:
    outside = current()

    def leaves() -> Any:
        outside_of_run.switch()
        return ready()

    grain: Grain[Any] = Grain(leaves)
    begins: Fiber[Any] = Fiber(grain.start)
    outside_of_run: Any = None

    def main() -> None:
        nonlocal outside_of_run
        outside_of_run = current()
        begins.switch()

    run(main)
    begins.parent = outside
    with pytest.raises(FiberError, match="running scheduler"):
        begins.switch()
    assert grain.state == "new"


def test_repr_of_a_grain_whose_iterators_name_cancels_it() -> None:
    class Steps:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            return READY

        def __getattr__(self, name: str) -> Any:
            grain.cancel()
            raise AttributeError(name)

    grain: Grain[Any] = Grain(Steps())
    assert "Steps" in repr(grain) or "grain" in repr(grain)
    assert grain.cancelled()


class Future:
    """Done when told so; runs a function where the grain registers or asks for the result."""

    def __init__(self, registering: Any = None, asking: Any = None) -> None:
        self.registering, self.asking = registering, asking
        self.callbacks: list[Any] = []

    def add_done_callback(self, fn: Any) -> None:
        self.callbacks.append(fn)
        if self.registering is not None:
            self.registering(fn)

    def result(self) -> Any:
        if self.asking is not None:
            self.asking()
        return "result"


def waits_for(future: Any, then: Any = ()) -> Any:
    got = yield future
    yield from then
    return got


def test_future_that_calls_back_lets_others_run_and_fails() -> None:
    def registering(fn: Any) -> None:
        fn(None)
        for _ in range(3):
            yield_now()
        raise ValueError("not registered")

    def main() -> None:
        grain = Grain(waits_for, Future(registering)).start()
        with pytest.raises(ValueError, match="not registered"):
            grain.result()

    run(main)


def test_future_that_calls_back_and_lets_others_run() -> None:
    def registering(fn: Any) -> None:
        fn(None)
        for _ in range(3):
            yield_now()

    def main() -> None:
        grain = Grain(waits_for, Future(registering), [READY, 0.001]).start()
        assert grain.result() == "result"

    run(main)


def test_future_that_cancels_the_grain_as_it_registers() -> None:
    def main() -> None:
        grain: Grain[Any] = Grain(waits_for, Future(lambda fn: grain.cancel("no")))
        grain.start().join()
        assert grain.cancelled()

    run(main)


def test_future_whose_result_takes_the_grain_out_of_its_pool() -> None:
    def main() -> None:
        pool = GrainPool().start()
        future = Future(asking=lambda: pool.dequeue(grain))
        grain = pool.queue(waits_for(future, [READY]))
        yield_now()
        for fn in future.callbacks:
            fn(None)
        for _ in range(3):
            yield_now()
        assert grain.pool is None
        pool.queue(grain)
        assert grain.result() == "result"

    run(main)


def test_future_whose_result_waits_when_the_run_ends() -> None:
    def main() -> None:
        future = Future(asking=lambda: sleep(3600))
        grain = Grain(waits_for, future, [READY]).start()
        yield_now()
        for fn in future.callbacks:
            fn(None)
        yield_now()
        grains.append(grain)
        raise SystemExit

    grains: list[Grain[Any]] = []
    with pytest.raises(SystemExit):
        run(main)
    assert grains[0].done()


def test_future_whose_registering_waits_when_the_run_ends() -> None:
    def main() -> None:
        grains.append(Grain(waits_for, Future(lambda fn: sleep(3600))).start())
        yield_now()
        raise SystemExit

    grains: list[Grain[Any]] = []
    with pytest.raises(SystemExit):
        run(main)
    assert grains[0].done()


class Seconds:
    """A number of seconds that runs a function when it is converted."""

    def __init__(self, value: float, first: Any) -> None:
        self.value, self.first = value, first

    def __float__(self) -> float:
        self.first()
        return float(self.value)


def test_sleep_whose_number_cancels_the_grain() -> None:
    def main() -> None:
        grain: Grain[Any] = Grain(iter([Seconds(3600, lambda: grain.cancel("no"))]))
        grain.start().join()
        assert grain.cancelled()

    run(main)


def test_call_of_a_grain_whose_function_cancels_the_caller() -> None:
    def called() -> Any:
        caller.cancel("no")
        return iter([3600.0])

    caller: Grain[Any] = Grain(lambda: (x for x in [Grain(called)]))

    def main() -> None:
        caller.start().join()
        assert caller.cancelled()

    run(main)


def test_done_callback_that_takes_the_grain_out_of_its_pool() -> None:
    def leave(grain: Any) -> None:
        with pytest.raises(FiberError, match="not in this pool"):
            pool.dequeue(grain)
        seen.append(grain.done())

    seen: list[bool] = []
    pool = GrainPool()

    def main() -> None:
        with pool:
            grain = pool.queue(ready())
            grain.add_done_callback(leave)
        assert seen == [True]
        assert grain.done()

    run(main)


class Once(Policy):
    """Runs a function the first time that a grain is added, and then forgets the rest."""

    def __init__(self, action: Any) -> None:
        self.action = action
        self.grains: list[Any] = []

    def add(self, grain: Any) -> None:
        self.grains.append(grain)
        if self.action is not None:
            action, self.action = self.action, None
            action(grain)

    def take(self) -> Any:
        return self.grains.pop(0)

    def remove(self, grain: Any) -> None:
        if grain in self.grains:
            self.grains.remove(grain)


def test_policy_that_takes_a_grain_out_as_it_is_added() -> None:
    def main() -> None:
        pool = GrainPool(Once(lambda grain: grain.pool.dequeue(grain)))
        taken_out = pool.queue(ready())
        pool.start()
        stays = pool.queue(ready())
        assert stays.result() == "done"
        assert taken_out.pool is None

    run(main)


@pytest.mark.parametrize("policy", [None, Priority()])
def test_grain_taken_out_of_its_pool_by_what_it_waits_for_as_it_is_queued(
    policy: Policy | None,
) -> None:
    """It had one more turn."""
    log: list[str] = []
    pool = GrainPool(policy)

    class TakesOut:
        grain: Grain | None = None

        def __float__(self) -> float:
            if self.grain is not None:
                pool.dequeue(self.grain)
            return 0.001

    time = TakesOut()

    def naps() -> Any:
        yield time
        log.append("one more turn")

    def main() -> None:
        grain = pool.queue(naps)
        pool.start()
        yield_now()
        pool.dequeue(grain)
        time.grain = grain
        pool.queue(grain)
        assert len(pool) == 0
        sleep(0.01)
        assert log == []
        time.grain = None
        pool.queue(grain)
        grain.join()

    run(main)
    assert log == ["one more turn"]


def test_predicate_that_lets_its_grain_wait_for_another() -> None:
    answers = {"first": False, "second": False}

    def first() -> bool:
        grain.cancel("ask something else")
        for _ in range(5):
            yield_now()
        return True

    def second() -> bool:
        return answers["second"]

    def body() -> Any:
        with contextlib.suppress(pyfiber.Cancelled):
            yield first
        seen.append((yield second))

    seen: list[Any] = []
    grain: Grain[Any] = Grain(body)

    def main() -> None:
        grain.start()
        for _ in range(10):
            yield_now()
        assert True not in seen

    run(main)


def test_predicate_that_waits_keeps_its_grains_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")

    def slowly() -> bool:
        seen.append(variable.get())
        sleep(0.001)
        return True

    def body(name: str) -> Any:
        variable.set(name)
        yield slowly
        seen.append(variable.get())

    seen: list[str] = []

    def main() -> None:
        with TaskGroup() as group:
            group.spawn(Grain(body, "a"))
            group.spawn(Grain(body, "b"))
        assert sorted(seen) == ["a", "a", "b", "b"]
        assert variable.get() == "none"

    run(main)


def test_runners_function_called_by_a_grain() -> None:
    import gc

    def body() -> Any:
        mine = [f for f in gc.get_referents(current()) if type(f) is type(len)]
        for function in mine:
            with pytest.raises(FiberError, match="only the scheduler"):
                function()
        yield READY
        return len(mine)

    def main() -> None:
        assert Grain(body).start().result() == 1

    run(main)


def test_group_spawns_a_grain_whose_function_leaves_it() -> None:
    def leaves() -> Any:
        group.__exit__(None, None, None)
        return ready()

    group = TaskGroup()

    def main() -> None:
        group.__enter__()
        with pytest.raises(FiberError, match="has been left"):
            group.spawn(Grain(leaves))

    run(main)


def test_generator_shared_by_two_grains() -> None:
    shared = (READY for _ in range(3))

    def main() -> None:
        first, second = Grain(shared).start(), Grain(shared).start()
        first.join()
        second.join()
        assert first.done()
        assert second.done()

    run(main)


def test_generator_that_waits_and_is_shared_by_two_grains() -> None:
    def slow() -> Any:
        sleep(0.001)
        yield SLEEPING

    shared = slow()

    def main() -> None:
        first, second = Grain(shared).start(), Grain(shared).start()
        with pytest.raises(ValueError, match="already executing"):
            second.result()
        first.cancel()
        first.join()

    run(main)


def test_generator_that_drops_the_last_reference_to_its_grain() -> None:
    def body() -> Any:
        holder.clear()
        yield READY
        seen.append(True)

    seen: list[bool] = []
    holder: list[Any] = []

    def main() -> None:
        holder.append(Grain(body).start())
        for _ in range(3):
            yield_now()

    run(main)
    assert seen == [True]


def test_cancellation_by_a_callback_that_runs_before_a_grains_turn(child: Child) -> None:
    """A fiber ends, a grain is next, and the weak reference's callback runs where that is stepped:
    it must not put into the ready queue who is about to run.
    """
    done = child(
        """
        import weakref
        from pyfiber import CancelScope, current, grains, run, spawn, yield_now

        def callback(ref):
            with CancelScope() as scope:
                scope.cancel()
            current().unpark()
            log.append("called")

        def steps():
            for _ in range(3):
                log.append("step")
                yield

        def main():
            reference = weakref.ref(spawn(lambda: None), callback)
            grain = grains.spawn(steps())
            yield_now()
            for _ in range(20):
                spawn(lambda: None)
            grain.join()

        log = []
        run(main)
        print(*log)
        """
    )
    assert done.stdout == "called step step step\n"


def test_grain_that_starts_a_fiber_as_it_is_closed_with_its_run(child: Child) -> None:
    """The fiber ends with the run, and is in the ready queue no more when it is freed."""
    done = child(
        """
        from pyfiber import Fiber, current, grains, run, spawn, yield_now

        def sleeps():
            try:
                yield grains.SLEEPING
            finally:
                spawn(print, "never")

        def main():
            for _ in range(3):
                grains.spawn(sleeps())
            yield_now()
            root.switch()

        root = current()
        fiber = Fiber(lambda: run(main))
        fiber.switch()
        del fiber
        print(run(lambda: "the next run"))
        """
    )
    assert done.stdout == "the next run\n"


def test_grain_that_ends_while_its_policy_still_adds_it_stays_ended() -> None:
    """It has taken itself out of the pool, too: that was made up for when it was done."""

    class Slow(RoundRobin):
        def add(self, grain: Grain[Any]) -> None:
            super().add(grain)
            for _ in range(5):
                yield_now()

    def main() -> None:
        pool = GrainPool(Slow()).start()

        def body() -> Any:
            pool.dequeue(current_grain())
            return "ended"
            yield

        grain = pool.queue(body)
        assert grain.result() == "ended"
        assert grain.done()

    run(main)
