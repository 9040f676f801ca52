"""spawn_now(): the new fiber runs first."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    Cancelled,
    CancelledOutcome,
    Failed,
    Fiber,
    FiberError,
    FiberExit,
    Ok,
    TaskGroup,
    current,
    move_on_after,
    park,
    run,
    sleep,
    spawn,
    spawn_now,
    yield_now,
)
from pyfiber.testing import explore
from pyfiber.testing import run as run_virtually


def in_a_group(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Fiber[Any]:
    with TaskGroup() as group:
        return group.spawn_now(fn, *args, **kwargs)


def live_stacks() -> int:
    return sum(pool["live"] for pool in pyfiber.debug.stack_stats())


both = pytest.mark.parametrize("start", [spawn_now, in_a_group])


@both
def test_new_fiber_has_ended_when_spawn_now_returns(start: Any) -> None:
    log: list[str] = []

    def main() -> None:
        spawn(log.append, "other")
        fiber = start(log.append, "child")
        log.append("parent")
        assert fiber.outcome == Ok(None)

    run(main)
    assert log == ["child", "parent", "other"]


def test_caller_goes_on_before_all_others_when_the_new_fiber_waits() -> None:
    log: list[str] = []

    def child() -> str:
        log.append("child")
        yield_now()
        log.append("child again")
        return "result"

    def main() -> str:
        spawn(log.append, "other")
        fiber = spawn_now(child)
        log.append("parent")
        return fiber.result()

    assert run(main) == "result"
    assert log == ["child", "parent", "other", "child again"]


@both
def test_arguments_are_passed(start: Any) -> None:
    assert run(lambda: start(dict, [("a", 1)], b=2).result()) == {"a": 1, "b": 2}


def test_failure_stays_in_the_fiber() -> None:
    def main() -> None:
        fiber = spawn_now(int, "x")
        assert isinstance(fiber.outcome, Failed)
        with pytest.raises(ValueError, match="invalid literal"):
            fiber.result()

    run(main)


def test_failure_in_a_group_cancels_the_group() -> None:
    seen: list[str] = []

    def grouped() -> None:
        with TaskGroup() as group:
            group.spawn_now(int, "x")
            seen.append("no cancellation point")
            sleep(1)
            seen.append("never")

    def main() -> None:
        with pytest.raises(ExceptionGroup) as caught:
            grouped()
        assert isinstance(caught.value.exceptions[0], ValueError)

    run(main)
    assert seen == ["no cancellation point"]


def test_cancelled_group_does_not_run_the_fiber() -> None:
    def main() -> None:
        with TaskGroup() as group:
            group.cancel()
            fiber = group.spawn_now(pytest.fail, "it ran")
            assert isinstance(fiber.outcome, CancelledOutcome)

    run(main)


def test_spawn_now_is_no_cancellation_point() -> None:
    log: list[str] = []

    def main() -> None:
        with move_on_after(0):
            spawn_now(log.append, "child")
            log.append("parent")
            yield_now()
            log.append("never")

    run(main)
    assert log == ["child", "parent"]


def test_fiber_that_cancels_its_caller_finds_it_at_its_next_park_point() -> None:
    def main() -> None:
        me = current()
        spawn_now(me.cancel)
        with pytest.raises(Cancelled):
            sleep(1)
        raise KeyError("real")

    with pytest.raises(KeyError):
        run(lambda: spawn(main).result())


def test_deep_chain_unwinds_in_order() -> None:
    def deeper(left: int) -> int:
        return 0 if left == 0 else 1 + spawn_now(deeper, left - 1).result()

    assert run(deeper, 5_000) == 5_000


def test_stacks_are_reused_by_children_that_end() -> None:
    def main() -> None:
        spawn_now(int).join()
        before = live_stacks()
        for _ in range(1_000):
            spawn_now(int)
        assert live_stacks() == before

    run(main)


def test_timers_fire_while_children_are_spawned_one_after_the_other() -> None:
    woken: list[float] = []

    def sleeper() -> None:
        sleep(1)
        woken.append(pyfiber.now())

    def main() -> None:
        fiber = spawn(sleeper)
        yield_now()
        for _ in range(100):
            spawn_now(int)
        fiber.join()

    run_virtually(main)
    assert len(woken) == 1


def test_raw_fiber_of_a_run_may_spawn_now() -> None:
    log: list[str] = []

    def raw() -> str:
        spawn_now(log.append, "child")
        log.append("raw")
        return "back"

    assert run(lambda: Fiber(raw).switch()) == "back"
    assert log == ["child", "raw"]


def test_caller_thrown_away_meanwhile_is_unwound() -> None:
    log: list[str] = []

    def raw() -> None:
        try:
            spawn_now(park)
            current().parent.switch()  # type: ignore[union-attr]
        except FiberExit:
            log.append("unwound")
            raise

    def main() -> None:
        fiber = Fiber(raw)
        fiber.switch()
        del fiber
        gc.collect()
        assert log == ["unwound"]

    # Virtual time waits for no other thread, of which a test runner may have some.
    with pytest.raises(pyfiber.DeadlockError):
        run_virtually(main)


@pytest.mark.parametrize(
    "leave",
    [lambda main: spawn_now(main.switch), lambda main: (spawn(main.switch), yield_now())],
    ids=["in spawn_now()", "in yield_now()"],
)
def test_raw_fiber_thrown_away_while_it_is_ready_is_unwound(
    leave: Callable[[Fiber[Any]], object],
) -> None:
    log: list[str] = []

    def raw(main: Fiber[Any]) -> None:
        try:
            leave(main)
            log.append("went on")
        except FiberExit:
            log.append("unwound")
            raise

    def main() -> None:
        fiber = Fiber(raw, (current(),))
        fiber.switch()
        assert fiber.state == "ready"
        del fiber
        log.append("main")

    with pytest.raises(pyfiber.DeadlockError):  # who switched to main is left for good
        run_virtually(main)
    assert log == ["unwound", "main"]


def test_every_schedule_has_the_same_result() -> None:
    def main() -> None:
        log: list[int] = []

        def child(number: int) -> None:
            log.append(number)
            yield_now()
            log.append(number)

        fibers = [spawn_now(child, number) for number in range(3)]
        for fiber in fibers:
            fiber.join()
        assert sorted(log) == [0, 0, 1, 1, 2, 2]

    explore(main, 200, "random")


def test_spawn_now_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError, match=r"spawn_now\(\)"):
        spawn_now(int)


@pytest.mark.parametrize("bad", [None, 1, "int", Fiber(int)])
def test_spawn_now_of_what_cannot_be_called_is_a_type_error(bad: Any) -> None:
    with pytest.raises(TypeError, match=r"spawn_now\(\) takes a function"):
        run(lambda: spawn_now(bad))


def test_spawn_now_without_a_function_is_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"spawn_now\(\) needs a function"):
        run(lambda: spawn_now())  # type: ignore[call-arg]


def test_groups_refuse_what_is_no_function() -> None:
    def main() -> None:
        with TaskGroup() as group:
            with pytest.raises(TypeError):
                group.spawn_now(1)  # type: ignore[call-overload]
            with pytest.raises(TypeError):
                group.spawn_now()  # type: ignore[call-overload]
        with pytest.raises(FiberError, match="has been left"):
            group.spawn_now(int)

    run(main)


def test_group_takes_a_fiber_that_was_made_before() -> None:
    def main() -> int:
        with TaskGroup() as group:
            fiber = group.spawn_now(Fiber(lambda: 7, name="seven"))
            assert fiber.name == "seven"
            assert fiber.outcome == Ok(7)
            with pytest.raises(FiberError, match="started already"):
                group.spawn_now(fiber)
        return fiber.result()

    assert run(main) == 7


def test_group_of_another_run_is_refused() -> None:
    def main() -> None:
        caught: list[BaseException] = []

        def elsewhere() -> None:
            try:
                run(group.spawn_now, int)
            except FiberError as error:
                caught.append(error)

        with TaskGroup() as group:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()
        assert len(caught) == 1

    run(main)


@pytest.mark.parametrize("grouped", [False, True])
def test_spawn_now_where_nobody_may_be_switched_to_is_refused(grouped: bool) -> None:
    refused: list[str] = []

    def main() -> None:
        def on_done(_: object) -> None:
            try:
                (group.spawn_now if grouped else spawn_now)(pytest.fail, "it ran")
            except FiberError as error:
                refused.append(str(error))

        with TaskGroup() as group:
            fiber = group.spawn(int)
            fiber.add_done_callback(on_done)
            yield_now()
            yield_now()

    run(main)
    assert len(refused) == 1
    assert "done-callback" in refused[0]


def test_children_see_the_callers_context() -> None:
    from contextvars import ContextVar

    name = ContextVar("name", default="nobody")

    def main() -> str:
        name.set("caller")
        fiber = spawn_now(name.get)
        return fiber.result()

    assert run(main) == "caller"


@pytest.mark.parametrize("act", [lambda: spawn_now(int), yield_now, lambda: sleep(0.001)])
def test_raw_fiber_is_its_owners_again_after_it(act: Callable[[], object]) -> None:
    """While it waits it is the scheduler's, which unwinds its own when the run ends."""

    def main() -> tuple[str, Fiber[Any]]:
        me = current()

        def body() -> str:
            act()
            me.switch("left")
            return "ended"

        raw: Fiber[Any] = Fiber(body)
        return raw.switch(), raw

    said, raw = run(main)
    assert said == "left"
    assert raw.switch() == "ended"
