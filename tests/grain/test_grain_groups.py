"""Grains in task groups, and what a scope's cancellation means to them."""

from __future__ import annotations

import contextlib
import gc
import logging
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    Cancelled,
    CancelledOutcome,
    CancelScope,
    FiberCancelled,
    FiberError,
    Ok,
    TaskGroup,
    current,
    first_success,
    gather,
    move_on_after,
    race,
    run,
    shield,
    sleep,
    timeout,
    yield_now,
)
from pyfiber import spawn as spawn_fiber
from pyfiber.grains import READY, SLEEPING, Grain, GrainPool, current_grain, spawn
from tests.grain.grain_makers import numbers


def tells(log: list[Any], wait: Any = SLEEPING) -> Generator[Any, Any, None]:
    """Waits for ever, and tells what ended that."""
    try:
        yield wait
    except Cancelled as exc:
        log.append(exc.reason)
        raise


def fails(after: int = 0) -> Generator[Any, Any, None]:
    for _ in range(after):
        yield READY
    raise KeyError("grain")


# --- belonging


def test_group_waits_for_its_grains() -> None:
    def main() -> tuple[Any, str]:
        with TaskGroup() as group:
            grain = group.spawn(Grain(numbers, 1, 2))
            fiber = group.spawn(sleep, 0)
        return grain.outcome, fiber.state

    assert run(main) == (Ok((1, 2)), "done")


def test_failing_grain_cancels_the_group() -> None:
    log: list[Any] = []

    def main() -> None:
        with TaskGroup() as group:
            group.spawn(Grain(tells, log))
            group.spawn(lambda: log.append(type(sleeping())))
            bad = group.spawn(Grain(fails, 3))
            bads.append(bad)

    def sleeping() -> Any:
        try:
            sleep(10)
        except Cancelled as exc:
            return exc

    bads: list[Any] = []
    with pytest.raises(ExceptionGroup) as info:
        run(main)
    assert [type(exc) for exc in info.value.exceptions] == [KeyError]
    assert set(log) == {"another fiber of the group failed", Cancelled}


def test_failing_fiber_cancels_the_grains_of_its_group() -> None:
    log: list[Any] = []
    by: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        try:
            yield 10
        except Cancelled as exc:
            by.append(exc.by)
            raise

    def main() -> Any:
        with TaskGroup() as group:
            group.spawn(Grain(tells, log))
            group.spawn(Grain(grain))
            broken.append(group.spawn(lambda: {}["x"]))

    broken: list[Any] = []
    with pytest.raises(ExceptionGroup):
        run(main)
    assert log == ["another fiber of the group failed"]
    assert by == broken


@pytest.mark.parametrize(
    "wait",
    [READY, 10, SLEEPING, lambda: False, None],
    ids=["ready", "seconds", "sleeping", "predicate", "none"],
)
def test_cancelling_a_group_reaches_every_kind_of_wait(wait: Any) -> None:
    log: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        try:
            while True:
                yield wait
        except Cancelled as exc:
            log.append((exc.reason, exc.by))
            raise

    def main() -> Any:
        with TaskGroup() as group:
            inside = group.spawn(Grain(grain))
            yield_now()
            group.cancel("enough")
        return group.cancelled(), inside.outcome, current()

    caught, outcome, by = run(main)
    assert caught
    assert outcome == CancelledOutcome("enough")
    assert log == [("enough", by)]


@pytest.mark.parametrize(
    "scope",
    [lambda: timeout(0.2), lambda: move_on_after(0.2), CancelScope, TaskGroup],
    ids=["timeout", "move_on_after", "CancelScope", "TaskGroup"],
)
def test_what_is_around_the_group_reaches_its_grains(scope: Callable[[], Any]) -> None:
    log: list[Any] = []

    def main() -> None:
        with scope() as outer, TaskGroup() as group:
            group.spawn(Grain(tells, log))
            yield_now()
            if isinstance(outer, TaskGroup) or outer.deadline is None:
                outer.cancel("outer")
            sleep(10)

    try:
        run(main)
    except TimeoutError:
        assert log == ["the deadline has passed"]
    else:
        assert log[0] in ("outer", "the deadline has passed")
    assert len(log) == 1


def test_grain_of_a_cancelled_group_never_runs() -> None:
    log: list[Any] = []

    def main() -> Any:
        with TaskGroup() as group:
            group.cancel("early")
            grain = group.spawn(Grain(lambda: log.append("made") or tells(log)))
        return grain.outcome

    assert run(main) == CancelledOutcome("early")
    assert log == ["made"]  # its function is called by spawn()


def test_shielded_group_protects_its_grains() -> None:
    log: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        yield 0.01
        log.append("done")

    def main() -> None:
        with CancelScope() as scope:
            scope.cancel()
            with TaskGroup(shield=True) as group:
                group.spawn(Grain(grain))
                group.spawn(Grain(tells, log, 0.001))

    run(main)
    assert log == ["done"]


def test_shield_protects_grains_from_the_end_of_the_run() -> None:
    log: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        yield 0.005
        log.append("said goodbye")

    def cleans_up() -> None:
        try:
            sleep(10)
        finally:
            with shield(), TaskGroup() as group:
                group.spawn(Grain(grain))

    def main() -> None:
        spawn_fiber(cleans_up)
        yield_now()
        raise KeyError("main")

    with pytest.raises(KeyError):
        run(main)
    assert log == ["said goodbye"]


def test_lowering_the_shield_lets_the_cancellation_in() -> None:
    log: list[Any] = []

    def main() -> None:
        with CancelScope() as scope, TaskGroup(shield=True) as group:
            group.spawn(Grain(tells, log))
            scope.cancel("outside")
            yield_now()
            assert log == []
            group.shield = False

    run(main)
    assert log == ["outside"]


def test_cancellation_is_level_triggered_until_a_shield_goes_up() -> None:
    """A grain that is cancelled by a scope is no longer when the scope hides from it."""
    got: list[Any] = []

    def grain() -> Generator[Any, Any, str]:
        for _ in range(2):
            try:
                yield 10
            except Cancelled:
                got.append("cancelled")
        inner.shield = True
        yield 0.001
        return "undisturbed"

    def main() -> Any:
        nonlocal inner
        with CancelScope() as outer, TaskGroup() as inner:
            waits = inner.spawn(Grain(grain))
            yield_now()
            outer.cancel()
        return waits.outcome

    inner: Any = None
    assert run(main) == Ok("undisturbed")
    assert got == ["cancelled"] * 2


def test_cancelled_alone_a_grain_leaves_its_group_alone() -> None:
    log: list[Any] = []

    def main() -> Any:
        with TaskGroup() as group:
            one = group.spawn(Grain(tells, log))
            other = group.spawn(Grain(numbers, 1))
            yield_now()
            one.cancel("alone")
        return group.cancelled(), one.outcome, other.outcome

    assert run(main) == (False, CancelledOutcome("alone"), Ok((1,)))
    assert log == ["alone"]


def test_callee_belongs_to_the_group_of_its_caller() -> None:
    order: list[str] = []

    def inner() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        finally:
            order.append("inner")

    def outer() -> Generator[Any, Any, None]:
        try:
            yield Grain(inner)
        finally:
            order.append("outer")

    def main() -> Any:
        with TaskGroup() as group:
            grain = group.spawn(Grain(outer))
            for _ in range(3):
                yield_now()
            group.cancel("tree")
        return grain.outcome

    assert run(main) == CancelledOutcome("tree")
    assert order == ["inner", "outer"]


def test_plain_spawn_in_a_group_belongs_to_the_run() -> None:
    """As a fiber's does."""
    log: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        yield 0.01
        log.append("the run waited")

    def main() -> None:
        with TaskGroup() as group:
            spawn(grain)
            group.cancel()
        log.append("left")

    run(main)
    assert log == ["left", "the run waited"]


def test_grains_of_a_pool_belong_to_the_pool() -> None:
    def main() -> Any:
        with GrainPool() as pool:
            with TaskGroup() as group:
                grain = pool.queue([0.005, READY])
                group.cancel()
                with pytest.raises(FiberError, match="started already"):
                    group.spawn(grain)
            waiting = GrainPool().queue([READY])
            with TaskGroup() as group, pytest.raises(FiberError, match="queued in a pool"):
                group.spawn(waiting)
        return grain.outcome

    assert run(main) == Ok(None)


def test_grain_of_a_group_cannot_be_queued() -> None:
    def main() -> None:
        with TaskGroup() as group:
            grain = group.spawn(Grain(numbers, 1))
            pool = GrainPool()
            with pytest.raises(FiberError, match="started without a pool"):
                pool.queue(grain)

    run(main)


# --- blocking within a step


def test_group_cancels_a_grain_that_blocks_within_its_step() -> None:
    log: list[Any] = []

    def blocks() -> Generator[Any, Any, None]:
        yield READY
        try:
            sleep(10)
        except Cancelled as exc:
            log.append(exc.reason)
            raise

    def main() -> Any:
        with TaskGroup() as group:
            grain = group.spawn(Grain(blocks))
            for _ in range(4):
                yield_now()
            group.cancel("enough")
        # The next one that blocks is not affected.
        other = spawn(lambda: iter([sleep(0.001)]))
        return grain.outcome, other.exception()

    assert run(main) == (CancelledOutcome("enough"), None)
    assert log == ["enough"]


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "in a group"])
def test_clean_up_of_a_cancelled_grain_does_not_block(grouped: bool) -> None:
    """Cancelled is raised by blocking calls as well, until the end; but not in a shield."""
    log: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        finally:
            with shield():
                sleep(0.001)
                log.append("shielded")
            try:
                sleep(10)
            except Cancelled as exc:
                log.append(exc.reason)

    def alone() -> None:
        one = spawn(grain)
        yield_now()
        one.cancel("enough")
        one.join()

    def in_a_group() -> None:
        with TaskGroup() as group:
            group.spawn(Grain(grain))
            yield_now()
            group.cancel("enough")

    run(in_a_group if grouped else alone)
    assert log == ["shielded", "enough"]


def test_cancelled_grain_does_not_cancel_the_steps_of_others() -> None:
    def careless() -> Generator[Any, Any, None]:
        for _ in range(5):
            with contextlib.suppress(Cancelled):
                yield SLEEPING

    def blocks() -> Generator[Any, Any, str]:
        for _ in range(10):
            yield READY
            sleep(0)
        return "fine"

    def main() -> Any:
        with TaskGroup() as group:
            group.spawn(Grain(careless))
            spawned = spawn(blocks)
            yield_now()
            group.cancel()
        return spawned.result()

    assert run(main) == "fine"


def test_deadline_of_the_group_is_seen_within_a_step() -> None:
    def grain() -> Generator[Any, Any, Any]:
        yield READY
        return pyfiber.current_deadline()

    def main() -> Any:
        with timeout(50), TaskGroup() as group:
            inside = group.spawn(Grain(grain))
        outside = spawn(grain)
        return inside.result() - pyfiber.now(), outside.result()

    left, outside = run(main)
    assert 0 < left <= 50
    assert outside is None


# --- ends


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_grain_of_a_group_ends_the_run(kind: type[BaseException]) -> None:
    def grain() -> Generator[Any, Any, None]:
        yield READY
        raise kind

    def main() -> None:
        with TaskGroup() as group:
            group.spawn(Grain(grain))
            sleep(10)

    with pytest.raises(kind):
        run(main)


def test_failure_in_a_group_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        with TaskGroup() as group:
            group.spawn(Grain(fails))

    with caplog.at_level(logging.ERROR, "pyfiber"):
        with pytest.raises(ExceptionGroup):
            run(main)
        gc.collect()
    assert caplog.text == ""


def test_group_left_on_the_wrong_fiber_cancels_its_grains() -> None:
    log: list[Any] = []

    def main() -> None:
        group = TaskGroup()
        group.__enter__()
        group.spawn(Grain(tells, log))
        yield_now()

        def elsewhere() -> None:
            with pytest.raises(FiberError, match="cannot be left on"):
                group.__exit__(None, None, None)

        spawn_fiber(elsewhere).join()

    run(main)
    assert len(log) == 1


def test_group_abandoned_with_grains_in_it() -> None:
    closed: list[int] = []

    def grain() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        finally:
            closed.append(1)

    def main() -> None:
        with TaskGroup() as group:
            for _ in range(3):
                group.spawn(Grain(grain))

    scheduler = pyfiber.Scheduler()
    scheduler.spawn(main)
    for _ in range(4):
        scheduler.run_once()
    scheduler.close()
    assert closed == [1] * 3


def test_grain_of_a_group_is_freed() -> None:
    def main() -> list[Any]:
        refs: list[Any] = []
        with TaskGroup() as group:
            for grain in (group.spawn(Grain(numbers, 1)), group.spawn(Grain(tells, []))):
                refs.append(weakref.ref(grain))
            del grain
            group.cancel()
        return refs

    refs = run(main)
    gc.collect()
    assert [ref() for ref in refs] == [None] * 2


def test_many_grains_in_a_group() -> None:
    def main() -> int:
        with TaskGroup() as group:
            grains = [group.spawn(Grain(tells, [])) for _ in range(2000)]
            done = [group.spawn(Grain(numbers, n)) for n in range(2000)]
            for grain in done[::7]:
                grain.join()
            for grain in grains[::3]:
                grain.cancel()
            yield_now()
            group.cancel()
        return sum(grain.cancelled() for grain in grains)

    assert run(main) == 2000


# --- misuse


def test_spawn_of_a_grain_that_cannot_be() -> None:
    def main() -> None:
        started = spawn(numbers, 1)
        with TaskGroup() as group:
            with pytest.raises(FiberError, match="started already"):
                group.spawn(started)
            with pytest.raises(TypeError, match="has its arguments already"):
                group.spawn(Grain(numbers), 1)  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="when its turn comes"):
                group.spawn_now(Grain(numbers))  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="takes a function"):
                group.spawn(5)  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="must return a generator"):
                group.spawn(Grain(lambda: 5))  # type: ignore[arg-type, return-value]
        with pytest.raises(FiberError, match="has been left"):
            group.spawn(Grain(numbers))
        with pytest.raises(FiberError, match="has not been entered"):
            TaskGroup().spawn(Grain(numbers))

    run(main)


def test_function_of_a_grain_that_leaves_the_group() -> None:
    def main() -> Any:
        group = TaskGroup()
        group.__enter__()

        def start() -> Generator[Any, Any, Any]:
            group.__exit__(None, None, None)
            return numbers()

        grain = Grain(start)
        with pytest.raises(FiberError, match="has been left"):
            group.spawn(grain)
        return grain.state

    assert run(main) == "new"


@pytest.mark.parametrize("act", ["start", "cancel", "queue", "group"])
def test_function_of_a_grain_that_starts_or_cancels_it(act: str) -> None:
    """Started inside of its own start it was linked twice."""
    tries: list[int] = []

    def main() -> str:
        def start() -> Generator[Any, Any, Any]:
            if not tries:
                tries.append(1)
                if act == "queue":
                    pool.queue(grain)
                elif act == "group":
                    with TaskGroup() as group:
                        group.spawn(grain)
                else:
                    getattr(grain, act)()
            return numbers(1)

        grain = Grain(start)
        pool = GrainPool().start()
        with pytest.raises(
            FiberError, match="started or cancelled while its function was being called"
        ):
            grain.start()
        grain.join()
        return grain.state

    assert run(main) == "done"


# --- gather, race, first_success


def test_gather_takes_grains() -> None:
    def main() -> list[Any]:
        started = spawn(numbers, 3)
        return gather(Grain(numbers, 1), lambda: 2, started, spawn_fiber(lambda: 4))

    assert run(main) == [(1,), 2, (3,), 4]


def test_gather_cancels_grains_when_one_fails() -> None:
    log: list[Any] = []

    def main() -> None:
        started = spawn(tells, log)
        with pytest.raises(KeyError, match="grain"):
            gather(Grain(tells, log), started, Grain(fails, 3))
        assert started.cancelled()

    run(main)
    assert log == ["another one failed"] * 2


def test_race_of_grains() -> None:
    log: list[Any] = []

    def main() -> Any:
        return race(Grain(tells, log), Grain(numbers, 1), lambda: sleep(10))

    assert run(main) == (1,)
    assert log == ["another one was faster"]


def test_first_success_of_grains() -> None:
    assert run(lambda: first_success(Grain(fails), Grain(numbers, 1))) == (1,)
    with pytest.raises(ExceptionGroup, match="none of them"):
        run(lambda: first_success(Grain(fails), Grain(fails)))


def test_gather_of_a_grain_in_a_pool_that_is_not_started_yet() -> None:
    def main() -> Any:
        pool = GrainPool()
        grain = pool.queue(numbers, 1)
        spawn_fiber(pool.start)
        return gather(grain, lambda: 2)

    assert run(main) == [(1,), 2]


def test_grain_that_gathers_itself() -> None:
    def grain() -> Generator[Any, Any, None]:
        yield READY
        with pytest.raises(FiberError, match="cannot wait for the fiber that calls it"):
            gather(current_grain())  # type: ignore[arg-type]

    run(lambda: spawn(grain).result())


def test_cancelled_grain_fails_a_gather() -> None:
    def main() -> None:
        grain = spawn(tells, [])
        spawn_fiber(grain.cancel, "by somebody")
        with pytest.raises(FiberCancelled):
            gather(grain)

    run(main)
