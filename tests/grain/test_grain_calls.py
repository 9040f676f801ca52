"""Grains that call: generators, other grains, functions that block; and coroutines."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    CancelledOutcome,
    FiberError,
    Ok,
    current,
    run,
    sleep,
    yield_now,
)
from pyfiber import spawn as spawn_fiber
from pyfiber.grains import (
    READY,
    SLEEPING,
    Grain,
    current_grain,
    spawn,
    until,
)
from pyfiber.testing import run as run_virtually
from tests.grain.grain_makers import numbers, result_of
from tests.support.threads import PATIENCE

# --- callees


def test_callee_returns_a_result() -> None:
    def inner(x: int) -> Generator[Any, Any, int]:
        yield READY
        return 2 * x

    def outer() -> Generator[Any, Any, int]:
        return (yield inner(4)) + (yield inner(5))

    assert result_of(outer) == 18


def test_callee_runs_at_once() -> None:
    order = []

    def inner() -> Generator[Any, Any, None]:
        order.append("inner")
        yield READY

    def outer() -> Generator[Any, Any, None]:
        order.append("outer")
        yield inner()
        order.append("after")

    def main() -> None:
        spawn(outer)
        spawn_fiber(order.append, "fiber")

    run(main)
    assert order == ["outer", "inner", "fiber", "after"]


def test_exception_of_a_callee_arrives_in_the_caller() -> None:
    def inner() -> Generator[Any, Any, None]:
        yield READY
        raise KeyError("inner")

    def outer() -> Generator[Any, Any, str]:
        try:
            yield inner()
        except KeyError as exc:
            return f"caught {exc}"
        return "nothing"

    assert result_of(outer) == "caught 'inner'"


def test_traceback_names_every_generator_in_between() -> None:
    def inner() -> Generator[Any, Any, None]:
        yield READY
        raise KeyError("inner")

    def middle() -> Generator[Any, Any, None]:
        yield inner()

    def outer() -> Generator[Any, Any, None]:
        yield middle()

    with pytest.raises(KeyError) as info:
        result_of(outer)
    names = [entry.name for entry in info.traceback]
    assert [name for name in names if name in ("inner", "middle", "outer")] == [
        "outer",
        "middle",
        "inner",
    ]


def test_deep_calls_use_no_stack() -> None:
    def down(n: int) -> Generator[Any, Any, int]:
        return n if n == 0 else 1 + (yield down(n - 1))

    assert result_of(down, 50_000) == 50_000


def test_deep_calls_that_are_dropped() -> None:
    def down(n: int) -> Generator[Any, Any, None]:
        yield SLEEPING if n == 0 else down(n - 1)

    def main() -> None:
        spawn(down, 20_000)
        for _ in range(300):
            yield_now()
        raise LookupError("over")

    with pytest.raises(LookupError):
        run(main)


def test_calls_that_return_at_once_starve_nobody() -> None:
    stop: list[bool] = []

    def nothing() -> Generator[Any, Any, None]:
        return
        yield

    def calls() -> Generator[Any, Any, None]:
        while not stop:
            yield nothing()

    def main() -> None:
        grain = spawn(calls)
        for _ in range(5):
            yield_now()
        stop.append(True)
        grain.join()

    run(main)


def test_generator_that_calls_itself() -> None:
    def grain() -> Generator[Any, Any, str]:
        me: Any = current_grain()
        assert me is not None
        try:
            yield holder[0]
        except ValueError as exc:
            return str(exc)
        return "nothing"

    holder: list[Any] = []
    generator = grain()
    holder.append(generator)
    assert "cannot call itself" in result_of(generator)


def test_generator_that_runs_elsewhere() -> None:
    def outer() -> Generator[Any, Any, None]:
        other = Grain(holder[0]).start()
        sleep(0)  # the other one has its turn in the middle of this step
        errors.append(other.exception(PATIENCE))
        yield READY

    holder: list[Any] = []
    errors: list[Any] = []
    generator = outer()
    holder.append(generator)
    run(lambda: spawn(generator).join())
    assert "already executing" in str(errors[0])


def test_grain_called_by_a_grain() -> None:
    def inner(x: int) -> Generator[Any, Any, int]:
        yield 0.001
        return x + 1

    def outer() -> Generator[Any, Any, Any]:
        callee = Grain(inner, 1)
        got = yield callee
        return got, callee.outcome

    assert result_of(outer) == (2, Ok(2))


def test_grain_that_waits_for_a_started_one() -> None:
    def main() -> list[Any]:
        first = spawn(numbers, 1, 2)
        waits = [spawn(lambda: await_future(first)) for _ in range(3)]
        return [grain.result() for grain in waits]

    def await_future(grain: Grain[Any]) -> Generator[Any, Any, Any]:
        return (yield grain)

    assert run(main) == [(1, 2)] * 3


def test_grain_that_waits_for_itself() -> None:
    def grain() -> Generator[Any, Any, str]:
        try:
            yield current_grain()
        except FiberError as exc:
            return str(exc)
        return "nothing"

    assert "its own end" in result_of(grain)


def test_grain_that_joins_itself() -> None:
    def grain() -> Generator[Any, Any, str]:
        yield READY
        me = current_grain()
        assert me is not None
        with pytest.raises(FiberError, match="its own end"):
            me.join()
        return "fine"

    assert result_of(grain) == "fine"


# --- blocking calls in a step


def test_grain_may_call_what_blocks() -> None:
    order: list[str] = []

    def blocks() -> Generator[Any, Any, None]:
        yield READY
        sleep(5)
        order.append("blocked")
        yield READY

    def others() -> Generator[Any, Any, None]:
        for _ in range(3):
            yield READY
        order.append("others")

    def main() -> None:
        spawn(blocks)
        spawn(others)

    run_virtually(main)
    assert order == ["others", "blocked"]


def test_many_grains_block_at_once() -> None:
    def blocks(n: int) -> Generator[Any, Any, int]:
        sleep(1 * (n % 7))
        yield READY
        return n

    assert (
        run_virtually(lambda: sum(g.result() for g in [spawn(blocks, n) for n in range(100)]))
        == 4950
    )


def test_cancelling_a_grain_that_blocks() -> None:
    def blocks() -> Generator[Any, Any, None]:
        yield READY
        sleep(10)

    def main() -> Any:
        grain = spawn(blocks)
        spawn(numbers, 1, 2, 3).join()
        grain.cancel("enough")
        grain.join()
        # The next one that blocks is not affected.
        other = spawn(lambda: iter([sleep(1)]))
        return grain.outcome, other.exception()

    assert run_virtually(main) == (CancelledOutcome("enough"), None)


def test_grain_that_cancels_itself_blocks_no_more() -> None:
    def grain() -> Generator[Any, Any, None]:
        me = current_grain()
        assert me is not None
        me.cancel("myself")
        sleep(10)
        yield READY

    def main() -> Any:
        other = spawn(grain)
        other.join()
        return other.outcome

    assert run(main) == CancelledOutcome("myself")


def test_permit_of_a_step_does_not_leak_into_the_next_grain() -> None:
    def leaves_a_permit() -> Generator[Any, Any, None]:
        current().unpark("stray")
        yield READY

    def parks() -> Generator[Any, Any, str]:
        with pytest.raises(TimeoutError):
            pyfiber.park(0)
        yield READY
        return "fine"

    def main() -> str:
        spawn(leaves_a_permit)
        return spawn(parks).result()

    assert run(main) == "fine"


def test_raw_fibers_within_a_step() -> None:
    def grain() -> Generator[Any, Any, list[int]]:
        me = current()

        def count() -> None:
            for n in range(3):
                me.switch(n)

        fiber = pyfiber.Fiber(count)
        got = [fiber.switch(), fiber.switch(), fiber.switch()]
        yield READY
        fiber.switch()
        return got

    assert result_of(grain) == [0, 1, 2]


def test_current_grain() -> None:
    def grain() -> Generator[Any, Any, Any]:
        first = current_grain()
        yield READY
        return first, current_grain()

    def main() -> None:
        assert current_grain() is None
        me = spawn(grain)
        assert me.result() == (me, me)
        assert current_grain() is None

    run(main)


def test_scopes_within_a_step() -> None:
    def grain() -> Generator[Any, Any, str]:
        with pytest.raises(TimeoutError), pyfiber.timeout(0.001):
            sleep(10)
        with pyfiber.TaskGroup() as group:
            fiber = group.spawn(sleep, 0)
        yield READY
        return fiber.state

    assert result_of(grain) == "done"


@pytest.mark.parametrize("scope", [pyfiber.CancelScope, pyfiber.TaskGroup])
def test_yield_inside_of_a_scope_is_refused(scope: Any) -> None:
    def grain() -> Generator[Any, Any, str]:
        try:
            with scope():
                yield READY
        except FiberError as exc:
            return str(exc)
        except ExceptionGroup as group:
            return str(group.exceptions[0])
        return "nothing"

    assert "cannot yield inside of a CancelScope" in result_of(grain)
    with pytest.raises(FiberError, match="cannot yield inside"):
        result_of(leaves_open, scope)


def leaves_open(scope: Any) -> Generator[Any, Any, None]:
    scope().__enter__()
    yield READY


# --- coroutines


def test_coroutine_awaits_everything() -> None:
    def generator() -> Generator[Any, Any, str]:
        yield READY
        return "generator"

    async def inner() -> str:
        await until(READY)
        return "coroutine"

    future: Future[str] = Future()
    future.set_result("future")
    flag: list[str] = []

    async def outer() -> list[Any]:
        spawn_fiber(flag.append, "predicate")
        return [
            await inner(),
            await until(inner()),
            await until(generator()),
            await spawn(generator),
            await Grain(generator),
            await spawn_fiber(lambda: "fiber"),
            await until(future),
            await until(0.001),
            await until(lambda: flag and flag[0]),
            await asyncio.sleep(0),
        ]

    assert result_of(outer) == [
        "coroutine",
        "coroutine",
        "generator",
        "generator",
        "generator",
        "fiber",
        "future",
        None,
        "predicate",
        None,
    ]


def test_exception_in_an_awaited_grain() -> None:
    def fails() -> Generator[Any, Any, None]:
        yield READY
        raise KeyError("awaited")

    async def outer() -> str:
        try:
            await spawn(fails)
        except KeyError:
            return "caught"
        return "nothing"

    assert result_of(outer) == "caught"


def test_until_is_awaited_once() -> None:
    async def outer() -> None:
        once = until(READY)
        await once
        await once

    with pytest.raises(RuntimeError, match="awaited already"):
        result_of(outer)


def test_until_can_be_yielded_by_a_generator() -> None:
    def grain() -> Generator[Any, Any, Any]:
        return (yield until(spawn_fiber(lambda: 5)))

    def delegates() -> Generator[Any, Any, Any]:
        return (yield from until(spawn_fiber(lambda: 6)).__await__())

    assert result_of(grain) == 5
    assert result_of(delegates) == 6


def test_until_needs_an_argument() -> None:
    with pytest.raises(TypeError):
        until()  # type: ignore[call-overload]


def test_coroutine_is_cancelled() -> None:
    order = []

    async def sleeps() -> None:
        try:
            await until(10)
        finally:
            order.append("finally")

    def main() -> Any:
        grain = spawn(sleeps)
        yield_now()
        grain.cancel()
        grain.join()
        return grain.outcome

    assert run(main) == CancelledOutcome(None)
    assert order == ["finally"]
