"""Ordinary code on a fiber: generators, coroutines, async generators suspended inside."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import sys
import types
from collections.abc import AsyncIterator, Generator, Iterator
from typing import Any

import pytest

from pyfiber import Fiber, current

NUMBER: contextvars.ContextVar[int] = contextvars.ContextVar("NUMBER", default=0)


def drive(fiber: Fiber[Any], switches: int) -> Any:
    """Enter the fiber so many times; what the last switch returned."""
    value = None
    for _ in range(switches):
        value = fiber.switch()
    return value


def test_switch_inside_a_generator_suspends_both() -> None:
    main = current()

    def generate() -> Iterator[int]:
        for number in range(3):
            main.switch(f"before {number}")
            yield number
            main.switch(f"after {number}")

    fiber: Fiber[list[int]] = Fiber(lambda: list(generate()))
    seen = [fiber.switch() for _ in range(6)]
    assert seen == [f"{when} {n}" for n in range(3) for when in ("before", "after")]
    assert fiber.switch() == [0, 1, 2]


def test_switch_inside_yield_from_keeps_the_chain() -> None:
    main = current()

    def level(depth: int) -> Generator[int, Any, str]:
        if depth:
            got = yield from level(depth - 1)
            return got + str(depth)
        main.switch()
        sent = yield 1
        main.switch()
        return str(sent)

    def work() -> str:
        generator = level(5)
        assert next(generator) == 1
        try:
            generator.send("sent")
        except StopIteration as stop:
            return stop.value
        return ""

    fiber: Fiber[str] = Fiber(work)
    assert drive(fiber, 3) == "sent12345"


def test_generator_running_on_a_suspended_fiber_cannot_be_entered() -> None:
    main = current()

    def generate() -> Iterator[int]:
        main.switch()
        yield 1

    generator = generate()
    fiber: Fiber[int] = Fiber(next, (generator,))
    fiber.switch()
    with pytest.raises(ValueError, match="already executing"):
        next(generator)
    assert fiber.switch() == 1


def test_generator_is_begun_on_one_fiber_and_goes_on_on_another() -> None:
    def generate() -> Iterator[Any]:
        for _ in range(4):
            yield current()

    generator = generate()
    fibers = [Fiber(next, (generator,)) for _ in range(4)]
    assert [fiber.switch() for fiber in fibers] == fibers


def test_generator_moves_between_fibers_in_the_middle_of_yield_from() -> None:
    main = current()

    def inner() -> Iterator[int]:
        yield 1
        main.switch("inside")
        yield 2

    def outer() -> Iterator[int]:
        yield from inner()

    generator = outer()
    assert next(generator) == 1
    fiber: Fiber[int] = Fiber(next, (generator,))
    assert fiber.switch() == "inside"
    with pytest.raises(ValueError, match="already executing"):
        next(generator)
    assert fiber.switch() == 2
    assert list(generator) == []


def test_generator_throw_and_close_reach_a_generator_that_switched() -> None:
    main = current()
    log = []

    def generate() -> Iterator[int]:
        try:
            yield 1
        except KeyError:
            main.switch()
            log.append("caught")
        try:
            yield 2
        finally:
            main.switch()
            log.append("closed")

    def work() -> str:
        generator = generate()
        next(generator)
        assert generator.throw(KeyError) == 2  # type: ignore[attr-defined]
        generator.close()  # type: ignore[attr-defined]
        return "end"

    fiber: Fiber[str] = Fiber(work)
    assert drive(fiber, 3) == "end"
    assert log == ["caught", "closed"]


def test_generator_expression_switches() -> None:
    main = current()
    fiber: Fiber[int] = Fiber(lambda: sum(main.switch() for _ in range(3)))
    fiber.switch()
    for value in (1, 2):
        fiber.switch(value)
    assert fiber.switch(3) == 6


def test_dropped_fiber_closes_its_generators() -> None:
    main = current()
    log = []

    def generate() -> Iterator[int]:
        try:
            main.switch()
            yield 1
        finally:
            log.append("generator")

    def work() -> None:
        try:
            list(generate())
        finally:
            log.append("fiber")

    fiber: Fiber[None] = Fiber(work)
    fiber.switch()
    del fiber
    assert log == ["generator", "fiber"]


def test_suspended_generator_held_by_a_fiber_is_inspected() -> None:
    main = current()

    def generate() -> Iterator[int]:
        local_value = 5
        main.switch()
        yield local_value

    generator = generate()
    fiber: Fiber[int] = Fiber(next, (generator,))
    fiber.switch()
    assert generator.gi_running  # type: ignore[attr-defined]
    assert generator.gi_frame.f_locals["local_value"] == 5  # type: ignore[attr-defined]
    fiber.switch()


# ------------------------------------------------------------------------ coroutines


@types.coroutine
def pause(value: Any) -> Generator[Any, Any, Any]:
    return (yield value)


def test_coroutine_is_driven_by_hand_while_switching() -> None:
    main = current()

    async def inner() -> str:
        main.switch("switched in a coroutine")
        got = await pause("awaits")
        main.switch(got)
        return "returned"

    async def outer() -> str:
        return await inner()

    def work() -> str:
        coroutine = outer()
        main.switch(coroutine.send(None))
        try:
            coroutine.send("sent")
        except StopIteration as stop:
            return stop.value
        return ""

    fiber: Fiber[str] = Fiber(work)
    seen = [fiber.switch() for _ in range(4)]
    assert seen == ["switched in a coroutine", "awaits", "sent", "returned"]


def test_coroutine_throw_and_close_over_switches() -> None:
    main = current()
    log = []

    async def wait() -> None:
        try:
            await pause(1)
        except KeyError:
            main.switch()
            log.append("thrown")
        try:
            await pause(2)
        finally:
            main.switch()
            log.append("closed")

    def work() -> None:
        coroutine = wait()
        coroutine.send(None)
        assert coroutine.throw(KeyError) == 2
        coroutine.close()

    drive(Fiber(work), 3)
    assert log == ["thrown", "closed"]


def test_coroutine_is_begun_on_one_fiber_and_finished_on_another() -> None:
    async def work() -> tuple[Any, Any]:
        before = current()
        await pause(None)
        return before, current()

    coroutine = work()
    first: Fiber[Any] = Fiber(coroutine.send, (None,))
    first.switch()

    def finish() -> Any:
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value

    second: Fiber[Any] = Fiber(finish)
    assert second.switch() == (first, second)


def test_async_generator_is_driven_by_hand() -> None:
    main = current()

    async def generate() -> AsyncIterator[int]:
        for number in range(3):
            main.switch()
            await pause("awaits")
            yield number

    def work() -> list[Any]:
        generator = generate()
        found: list[Any] = []
        while True:
            step = generator.__anext__()
            try:
                while True:
                    found.append(step.send(None))  # type: ignore[attr-defined]
            except StopIteration as stop:
                found.append(stop.value)
            except StopAsyncIteration:
                return found

    fiber: Fiber[list[Any]] = Fiber(work)
    assert drive(fiber, 4) == ["awaits", 0, "awaits", 1, "awaits", 2]


def test_async_generator_asend_athrow_aclose() -> None:
    main = current()
    log = []

    async def generate() -> Any:
        try:
            got = yield 1
            main.switch()
            log.append(got)
            yield 2
        except KeyError:
            main.switch()
            log.append("thrown")
            yield 3
        finally:
            main.switch()
            log.append("closed")

    def step(awaitable: Any) -> Any:
        try:
            awaitable.send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError

    def work() -> list[Any]:
        generator = generate()
        values = [
            step(generator.asend(None)),
            step(generator.asend("sent")),
            step(generator.athrow(KeyError)),
        ]
        step(generator.aclose())
        return values

    fiber: Fiber[list[Any]] = Fiber(work)
    assert drive(fiber, 4) == [1, 2, 3]
    assert log == ["sent", "thrown", "closed"]


def test_async_generator_hooks_belong_to_the_thread() -> None:
    firsts: list[Any] = []

    async def generate() -> AsyncIterator[int]:
        yield 1

    def work() -> None:
        generator = generate()
        with pytest.raises(StopIteration):
            generator.__anext__().send(None)  # type: ignore[attr-defined]

    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=firsts.append)
    try:
        Fiber(work).switch()
    finally:
        sys.set_asyncgen_hooks(*before)
    assert len(firsts) == 1


def test_event_loop_runs_on_a_fiber() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return "ran"

    assert Fiber(asyncio.run, (work(),)).switch() == "ran"


def test_fiber_switches_inside_a_task() -> None:
    main = current()

    async def work() -> str:
        await asyncio.sleep(0)
        main.switch("out of a task")
        await asyncio.sleep(0)
        return "ran"

    fiber: Fiber[str] = Fiber(asyncio.run, (work(),))
    assert fiber.switch() == "out of a task"
    assert fiber.switch() == "ran"


def test_contextvar_in_a_generator_is_the_fibers() -> None:
    def generate() -> Iterator[int]:
        while True:
            yield NUMBER.get()

    generator = generate()

    def work(number: int) -> int:
        NUMBER.set(number)
        return next(generator)

    assert [Fiber(work, (n,)).switch() for n in (1, 2)] == [1, 2]
    assert next(generator) == 0


def test_generators_survive_collections_while_suspended() -> None:
    main = current()

    def generate() -> Iterator[list[int]]:
        for number in range(10):
            kept = [number]
            main.switch()
            yield kept

    fibers = [Fiber(lambda: [kept[0] for kept in generate()]) for _ in range(10)]
    for _ in range(10):
        for fiber in fibers:
            fiber.switch()
        gc.collect()
    assert all(fiber.switch() == list(range(10)) for fiber in fibers)
