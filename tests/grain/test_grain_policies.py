"""Whose turn it is in a pool: round robin, priority, fair share, and policies that fail."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
import weakref
from collections import Counter
from collections.abc import Callable, Generator
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    FiberError,
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
    Priority,
    RoundRobin,
    spawn,
    until,
)
from pyfiber.testing import VirtualClock
from pyfiber.testing import run as run_virtually
from tests.grain.grain_makers import POLICIES, steps

# --- round robin, priority, fair share


def test_round_robin_goes_round() -> None:
    log: list[Any] = []

    def main() -> None:
        pool = GrainPool(RoundRobin()).start()
        for name in "abc":
            pool.queue(steps, log, name, 3)

    run(main)
    assert "".join(log) == "abcabcabc"


def test_round_robin_as_a_policy_object_goes_round_as_well() -> None:
    class Mine(RoundRobin):
        pass

    log: list[Any] = []

    def main() -> None:
        pool = GrainPool(Mine()).start()
        for name in "abc":
            pool.queue(steps, log, name, 3)

    run(main)
    assert "".join(log) == "abcabcabc"


def test_priority_by_numbers() -> None:
    log: list[Any] = []

    def main() -> None:
        policy = Priority()
        pool = GrainPool(policy)
        for name, number in (("c", 3), ("a", -1), ("b", 2), ("A", -1)):
            policy.set(pool.queue(steps, log, name, 2), number)
        pool.queue(steps, log, "0", 1)
        pool.start()

    run(main)
    assert "".join(log) == "aAaA0bbcc"


def test_priority_by_function() -> None:
    log: list[Any] = []

    def main() -> None:
        pool = GrainPool(Priority(lambda grain: -len(grain.name)))
        for name in ("x", "xxx", "xx"):
            pool.queue(steps, log, name, 2, name=name)
        pool.start()

    run(main)
    assert log == ["xxx", "xxx", "xx", "xx", "x", "x"]


def test_fair_share_gives_a_slow_grain_fewer_turns() -> None:
    """By hand: a grain whose steps take three times as long gets a third of the turns."""
    policy = FairShare()
    fast, slow = Grain([READY]), Grain([READY])
    cost = {fast: 1.0, slow: 3.0}
    turns: Counter[Grain[Any]] = Counter()
    policy.add(fast)
    policy.add(slow)
    for _ in range(400):
        grain = policy.take()
        turns[grain] += 1
        policy.ran(grain, cost[grain])
        policy.add(grain)
    assert turns == {fast: 300, slow: 100}


@pytest.mark.parametrize(("cost", "share"), [(3, 1 / 3), (1, 1), (10, 1 / 10)])
def test_fair_share_by_a_virtual_clock(cost: float, share: float) -> None:
    """The pool measures each step: who takes three times as long has a third of the turns."""
    clock = VirtualClock()

    def worker(seconds: float) -> Generator[Any, Any, int]:
        turns = 0
        while clock.now() < 100:
            clock.spend(seconds)
            turns += 1
            yield READY
        return turns

    def main() -> tuple[int, int]:
        pool = GrainPool(FairShare()).start()
        greedy, modest = pool.queue(worker, 0.01 * cost), pool.queue(worker, 0.01)
        return greedy.result(), modest.result()

    greedy, modest = run_virtually(main, clock=clock)
    assert abs(greedy / modest - share) < 0.01


def test_fair_share_of_a_grain_that_comes_later() -> None:
    clock = VirtualClock()

    def worker(until: float) -> Generator[Any, Any, int]:
        turns = 0
        while clock.now() < until:
            clock.spend(0.01)
            turns += 1
            yield READY
        return turns

    def main() -> tuple[int, int]:
        pool = GrainPool(FairShare()).start()
        first = pool.queue(worker, 20)
        sleep(10)
        second = pool.queue(worker, 20)
        return first.result(), second.result()

    first, second = run_virtually(main, clock=clock)
    assert abs(first - 1500) < 5
    assert abs(second - 500) < 5


def test_fair_share_weights() -> None:
    light, heavy = Grain([READY]), Grain([READY])
    policy = FairShare(weight=lambda grain: 2 if grain is heavy else 1)
    turns: Counter[Grain[Any]] = Counter()
    policy.add(light)
    policy.add(heavy)
    for _ in range(300):
        grain = policy.take()
        turns[grain] += 1
        policy.ran(grain, 1.0)
        policy.add(grain)
    assert turns == {light: 100, heavy: 200}


def test_fair_share_gives_no_credit_for_sleeping() -> None:
    policy = FairShare()
    busy, sleeper = Grain([READY]), Grain([READY])
    policy.add(busy)
    for _ in range(100):
        policy.ran(policy.take(), 1.0)
        policy.add(busy)
    policy.add(sleeper)
    taken = []
    for _ in range(10):
        grain = policy.take()
        taken.append(grain)
        policy.ran(grain, 1.0)
        policy.add(grain)
    assert taken.count(busy) >= 4


@pytest.mark.parametrize("kind", [Priority, FairShare])
def test_policy_arguments_must_be_callable(kind: Any) -> None:
    with pytest.raises(TypeError, match="must be callable"):
        kind(5)


def test_weights_must_be_positive(caplog: pytest.LogCaptureFixture) -> None:
    log: list[Any] = []

    def main() -> None:
        GrainPool(FairShare(weight=lambda grain: 0)).start().queue(steps, log, "a", 2)

    run(main)
    assert log == ["a"] * 2
    assert "must be positive" in caplog.text


@pytest.mark.parametrize("policy", POLICIES)
def test_everything_a_grain_waits_for_works_in_a_pool(policy: Callable[[], Policy]) -> None:
    def inner(x: int) -> Generator[Any, Any, int]:
        yield 1
        return x

    def outer(pool: GrainPool) -> Generator[Any, Any, list[Any]]:
        got = [
            (yield inner(1)),
            (yield Grain(inner, 2)),
            (yield spawn(inner, 3)),
            (yield pool.queue(inner, 4)),
            (yield pyfiber.spawn(lambda: 5)),
            (yield lambda: 6),
        ]
        sleep(1)
        return got

    async def coroutine() -> str:
        await until(1)
        return "coroutine"

    def main() -> Any:
        pool = GrainPool(policy()).start()
        grains = [pool.queue(outer, pool), pool.queue(coroutine)]
        parked = pool.queue(lambda: iter([SLEEPING]))
        yield_now()
        yield_now()
        parked.unpark()
        pool.shutdown()
        return [grain.result() for grain in grains]

    assert run_virtually(main) == [[1, 2, 3, 4, 5, 6], "coroutine"]


@pytest.mark.parametrize("policy", POLICIES)
def test_step_that_blocks_does_not_hold_up_the_pool(policy: Callable[[], Policy]) -> None:
    log: list[Any] = []

    def blocks() -> Generator[Any, Any, None]:
        sleep(10)
        log.append("blocked")
        yield READY

    def main() -> None:
        pool = GrainPool(policy()).start()
        pool.queue(blocks)
        pool.queue(steps, log, "a", 3)
        pool.queue(steps, log, "b", 3)

    run_virtually(main)
    assert log[-1] == "blocked"


# --- policies that fail


class Broken(RoundRobin):
    """A policy that fails in one of its methods, every time."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.method = method

    def fail(self, method: str) -> None:
        if method == self.method:
            raise LookupError(f"broken {method}")

    def add(self, grain: Grain[Any]) -> None:
        super().add(grain)
        self.fail("add")

    def take(self) -> Grain[Any]:
        self.fail("take")
        return super().take()

    def remove(self, grain: Grain[Any]) -> None:
        super().remove(grain)
        self.fail("remove")

    def ran(self, grain: Grain[Any], seconds: float) -> None:
        assert seconds >= 0
        self.fail("ran")


@pytest.mark.parametrize("method", ["add", "take", "remove", "ran"])
def test_policy_that_raises(method: str, caplog: pytest.LogCaptureFixture) -> None:
    log: list[Any] = []

    def main() -> list[Any]:
        pool = GrainPool(Broken(method)).start()
        grains = [pool.queue(steps, log, n, 3) for n in range(3)]
        gone = pool.queue([SLEEPING])
        yield_now()
        pool.queue(leaving := Grain([READY] * 9))
        pool.dequeue(leaving)
        gone.cancel()
        return [grain.result() for grain in grains]

    with caplog.at_level(logging.ERROR, "pyfiber"):
        assert run(main) == [0, 1, 2]
    assert f"broken {method}" in caplog.text
    assert Counter(log) == {0: 3, 1: 3, 2: 3}


@pytest.mark.parametrize("foreign", [None, 5, "grain", "sleeper"])
def test_policy_that_returns_a_foreign_grain(
    foreign: Any, caplog: pytest.LogCaptureFixture
) -> None:
    log: list[Any] = []

    class Foreign(RoundRobin):
        def take(self) -> Any:
            return others.get(foreign, foreign)

    others: dict[Any, Any] = {"grain": Grain([READY])}

    def main() -> list[Any]:
        pool = GrainPool(Foreign()).start()
        others["sleeper"] = pool.queue([SLEEPING])
        yield_now()
        grains = [pool.queue(steps, log, n, 2) for n in range(3)]
        results = [grain.result() for grain in grains]
        pool.interrupt()
        return results

    with caplog.at_level(logging.ERROR, "pyfiber"):
        assert run(main) == [0, 1, 2]
    assert "not a ready grain of its pool" in caplog.text


def test_failing_policy_ends_the_pool_if_it_is_told_so(caplog: pytest.LogCaptureFixture) -> None:
    with (
        pytest.raises(LookupError, match="broken take"),
        GrainPool(Broken("take"), on_error="pool") as pool,
    ):
        grain = pool.queue([SLEEPING])
    assert grain.cancelled()


def test_abstract_policy_says_so(caplog: pytest.LogCaptureFixture) -> None:
    run(lambda: GrainPool(Policy()).start().queue([READY]) and None)
    assert "NotImplementedError" in caplog.text


# --- policies that do things


class Meddling(RoundRobin):
    """Does anything to the grains of its pool whenever it is asked for advice."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.pool: GrainPool | None = None

    def meddle(self) -> None:
        assert self.pool is not None
        grains = list(self.pool)
        pick = self.random.random()
        if not grains or pick < 0.7:
            return
        grain = self.random.choice(grains)
        with contextlib.suppress(FiberError):
            if pick < 0.78:
                self.pool.dequeue(grain)
            elif pick < 0.84:
                grain.cancel()
            elif pick < 0.9:
                self.pool.queue([READY] * 3)
            elif pick < 0.98:
                sleep(0)
            else:
                raise LookupError("meddling")

    def add(self, grain: Grain[Any]) -> None:
        self.meddle()
        super().add(grain)

    def take(self) -> Grain[Any]:
        self.meddle()
        return super().take()

    def remove(self, grain: Grain[Any]) -> None:
        self.meddle()
        super().remove(grain)

    def ran(self, grain: Grain[Any], seconds: float) -> None:
        self.meddle()


@pytest.mark.parametrize("seed", range(10))
def test_policy_that_meddles(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    """Grains were left twice, stepped when they had left, or queued in two places: crashes."""
    policy = Meddling(seed)

    def worker() -> Generator[Any, Any, None]:
        for _ in range(20):
            yield policy.random.choice([READY, None, 0, 0.0001, lambda: True])

    def main() -> list[Grain[Any]]:
        pool = policy.pool = GrainPool(policy).start()
        grains = []
        for _ in range(20):
            with contextlib.suppress(FiberError):
                grains.append(pool.queue(worker))
        for _ in range(200):
            yield_now()
        pool.interrupt()
        return grains

    for grain in run(main):
        assert grain.done() or grain.pool is None


def test_ready_grain_of_a_policy_that_waits_is_not_queued_twice() -> None:
    """Its timer made it ready while its policy was told how long the step took."""

    class Slow(RoundRobin):
        def ran(self, grain: Grain[Any], seconds: float) -> None:
            sleep(0.002)

    log: list[Any] = []

    def worker(name: str) -> Generator[Any, Any, None]:
        for _ in range(3):
            log.append(name)
            yield 0.0005

    def main() -> None:
        pool = GrainPool(Slow()).start()
        grains = [pool.queue(worker, name) for name in "ab"]
        for grain in grains:
            grain.join()

    run(main)
    assert Counter(log) == {"a": 3, "b": 3}


def test_policy_that_dequeues_what_it_is_told_to_start() -> None:
    """start() gives a pool's grains to the scheduler one by one; some may have left by then."""

    class Picky(RoundRobin):
        def add(self, grain: Grain[Any]) -> None:
            super().add(grain)
            for other in list(pool):
                if other is not grain:
                    pool.dequeue(other)

    pool = GrainPool(Picky())
    grains = [pool.queue(steps, [], n, 1) for n in range(3)]
    run(lambda: pool.start() and None)
    assert [grain.done() for grain in grains] == [True, False, False]


@pytest.mark.parametrize("policy", [Priority, FairShare])
def test_removed_grains_are_let_go(policy: Callable[[], Any]) -> None:
    mine = policy()
    stays = Grain([READY])
    mine.add(stays)
    refs = []
    for _ in range(20):
        grain = Grain([READY])
        mine.add(grain)
        mine.remove(grain)
        refs.append(weakref.ref(grain))
        del grain
    gc.collect()
    assert sum(ref() is not None for ref in refs) <= 2
    assert mine.take() is stays
    with pytest.raises(IndexError):
        mine.take()


def test_what_a_policy_knows_of_a_grain_ends_with_it() -> None:
    """A grain that was dequeued and dropped left a number that another one inherited."""
    priority, share = Priority(), FairShare()
    for _ in range(10):
        grain = Grain([READY])
        priority.set(grain, 5)
        share.add(grain)
        share.ran(share.take(), 1.0)
        del grain
    assert len(priority._numbers) == len(share._used) == 0
