"""run_in_fiber() and await_()."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Generator
from typing import Any

import pytest

import pyfiber
from pyfiber import Fiber, FiberError, FiberExit, current
from pyfiber.aio import await_, run_in_fiber
from tests.aio.conftest import Run
from tests.support.gil import DROPS_ARE_QUEUED, needs_gil
from tests.support.subprocesses import run_script
from tests.support.threads import PATIENCE

VAR = contextvars.ContextVar("VAR", default="unset")


class Once:
    """Yields a message to whoever drives the coroutine; returns the answer."""

    def __init__(self, message: Any = None) -> None:
        self.message = message

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self.message)


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def fails(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


# values and exceptions ----------------------------------------------------------------------------


def test_await_in_a_fiber_returns_what_a_coroutine_would_get(arun: Run) -> None:
    def plain(a: int, *, b: int) -> int:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, a)
        return await_(future) + await_(later(b)) + await_(asyncio.ensure_future(later(1)))

    async def main() -> int:
        return await run_in_fiber(plain, 300, b=20)

    assert arun(main()) == 321


def test_await_waits_deep_in_the_stack_below_c_code(arun: Run) -> None:
    def plain() -> list[str]:
        return sorted(["Lancelot", "Tim"], key=lambda name: await_(later(len(name))))

    assert arun(run_in_fiber(plain)) == ["Tim", "Lancelot"]


def test_other_tasks_run_while_a_fiber_waits(arun: Run) -> None:
    def plain(event: asyncio.Event, log: list[str]) -> None:
        log.append("waits")
        await_(event.wait())
        log.append("woken")

    async def main() -> list[str]:
        event, log = asyncio.Event(), list[str]()
        task = asyncio.ensure_future(run_in_fiber(plain, event, log))
        await asyncio.sleep(0)
        log.append("others")
        event.set()
        await task
        return log

    assert arun(main()) == ["waits", "others", "woken"]


def test_function_that_never_waits_takes_no_turn_of_the_loop(arun: Run) -> None:
    with pytest.raises(StopIteration) as caught:
        run_in_fiber(int, "7").send(None)
    assert caught.value.value == 7


def test_exceptions_pass_both_ways_with_their_tracebacks(arun: Run) -> None:
    def plain() -> None:
        with pytest.raises(KeyError) as caught:
            await_(fails(KeyError("inner")))
        assert caught.traceback[-1].name == "fails"
        raise LookupError("outer")

    async def main() -> None:
        with pytest.raises(LookupError, match="outer") as caught:
            await run_in_fiber(plain)
        assert caught.traceback[-1].name == "plain"
        assert caught.value.__context__ is None

    arun(main())


def test_fiber_runs_in_its_task(arun: Run) -> None:
    async def main() -> None:
        tasks = await run_in_fiber(lambda: (asyncio.current_task(), await_(later(0)))), 0
        assert tasks[0][0] is asyncio.current_task()

    arun(main())


def test_what_cannot_be_awaited_is_a_type_error(arun: Run) -> None:
    def plain() -> str:
        with pytest.raises(TypeError, match="await"):
            await_(5)  # type: ignore[arg-type]
        return "went on"

    assert arun(run_in_fiber(plain)) == "went on"


def test_async_function_and_no_function_are_refused(arun: Run) -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match=r"later\(\) is an async one: await it"):
            await run_in_fiber(later, 1)
        with pytest.raises(TypeError, match=r"run_in_fiber\(\) takes a function"):
            await run_in_fiber(5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="argument"):
            await run_in_fiber(lambda: None, 5)  # type: ignore[call-arg]

    arun(main())


# cancellation -------------------------------------------------------------------------------------


def test_cancelled_task_raises_in_the_fiber_with_its_message(arun: Run) -> None:
    log: list[Any] = []

    def plain() -> None:
        try:
            await_(asyncio.sleep(PATIENCE))
        except asyncio.CancelledError as exc:
            log.append(exc.args)
            log.append(await_(later("cleaned up")))
            raise

    async def main() -> None:
        task = asyncio.ensure_future(run_in_fiber(plain))
        await asyncio.sleep(0)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()

    arun(main())
    assert log == [("enough",), "cleaned up"]


def test_cancellation_reaches_what_the_fiber_waits_for(arun: Run) -> None:
    async def main() -> None:
        future = asyncio.get_running_loop().create_future()
        task = asyncio.ensure_future(run_in_fiber(await_, future))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert future.cancelled()

    arun(main())


def test_fiber_may_swallow_a_cancellation(arun: Run) -> None:
    def plain() -> str:
        with pytest.raises(asyncio.CancelledError):
            await_(asyncio.sleep(PATIENCE))
        return "went on"

    async def main() -> str:
        task = asyncio.ensure_future(run_in_fiber(plain))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    assert arun(main()) == "went on"


def test_timeout_of_asyncio_ends_a_wait(arun: Run) -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(run_in_fiber(await_, asyncio.sleep(PATIENCE)), 0.001)

    arun(main())


# context variables --------------------------------------------------------------------------------


def test_context_is_the_tasks_own(arun: Run) -> None:
    async def coroutine() -> None:
        assert VAR.get() == "fiber"
        await asyncio.sleep(0)
        VAR.set("coroutine")

    def plain() -> None:
        assert VAR.get() == "task"
        VAR.set("fiber")
        await_(coroutine())
        assert VAR.get() == "coroutine"
        VAR.set("end")

    async def main() -> None:
        VAR.set("task")
        await run_in_fiber(plain)
        assert VAR.get() == "end"

    arun(main())


def test_context_entered_in_a_fiber_stays_its_own_while_it_waits(arun: Run) -> None:
    def inside() -> None:
        VAR.set("inside")
        await_(later(0))
        assert VAR.get() == "inside"

    async def main() -> None:
        await run_in_fiber(contextvars.copy_context().run, inside)
        assert VAR.get() == "unset"

    arun(main())


# nesting, and fibers inside -----------------------------------------------------------------------


def test_nested_fibers_wait_through_each_other(arun: Run) -> None:
    def plain(depth: int) -> int:
        if depth == 0:
            return await_(later(0))
        return 1 + await_(run_in_fiber(plain, depth - 1))

    async def main() -> int:
        return await run_in_fiber(plain, 20)

    assert arun(main()) == 20


def test_raw_fibers_and_generators_inside_of_a_fiber_wait_too(arun: Run) -> None:
    @pyfiber.generator
    def numbers() -> None:
        for i in range(3):
            pyfiber.emit(await_(later(i)))

    def fails_inside() -> None:
        with pytest.raises(KeyError):
            await_(fails(KeyError()))

    def plain() -> list[int]:
        Fiber(fails_inside).switch()
        return [*numbers(), Fiber(lambda: await_(later(3))).switch(), await_(later(4))]

    assert arun(run_in_fiber(plain)) == [0, 1, 2, 3, 4]


def test_coroutine_may_be_continued_on_another_fiber() -> None:
    """A loop that one fiber has run is run by another next time."""
    home: list[Any] = []

    def plain() -> str:
        return await_(Once(1)) + await_(Once(2))  # type: ignore[no-any-return]

    coroutine = run_in_fiber(plain)
    assert coroutine.send(None) == 1
    assert Fiber(lambda: coroutine.send("a")).switch() == 2

    def end() -> None:
        with pytest.raises(StopIteration) as caught:
            coroutine.send("b")
        home.append((caught.value.value, current()))

    fiber = Fiber(end)
    fiber.switch()
    assert home == [("ab", fiber)]


# messages of others -------------------------------------------------------------------------------


def test_messages_between_awaitable_and_driver_pass_unchanged() -> None:
    coroutine = run_in_fiber(lambda: await_(Once("to the driver")))
    assert coroutine.send(None) == "to the driver"
    with pytest.raises(StopIteration) as caught:
        coroutine.send("from the driver")
    assert caught.value.value == "from the driver"


def test_switch_of_others_to_the_driver_is_told_to_whoever_made_it() -> None:
    def plain() -> Any:
        with pytest.raises(FiberError, match="left by a switch"):
            current().parent.switch("not ours")  # type: ignore[union-attr]
        return await_(Once())

    coroutine = run_in_fiber(plain)
    coroutine.send(None)
    with pytest.raises(StopIteration) as caught:
        coroutine.send("end")
    assert caught.value.value == "end"


def test_await_elsewhere_says_what_to_do(arun: Run) -> None:
    async def main() -> None:
        awaitable = Once()
        with pytest.raises(FiberError, match=r"in a coroutine, write `await`"):
            await_(awaitable)
        with pytest.raises(FiberError, match=r"run_in_fiber"):
            Fiber(lambda: await_(awaitable)).switch()

        def in_a_coroutine() -> None:
            async def coroutine() -> None:
                await_(awaitable)

            await_(coroutine())

        with pytest.raises(FiberError, match=r"in a coroutine, write `await`"):
            await run_in_fiber(in_a_coroutine)

    arun(main())
    with pytest.raises(FiberError, match=r"run_in_fiber"):
        pyfiber.run(lambda: await_(Once()))


# a fiber left behind ------------------------------------------------------------------------------


class Left:
    """A function that waits for ever, and what its wait was ended by."""

    def __init__(self) -> None:
        self.ended_by: list[type[BaseException]] = []

    def __call__(self) -> None:
        try:
            await_(Once())
        except BaseException as exc:
            self.ended_by.append(type(exc))
            raise

    def begun(self) -> Any:
        coroutine = run_in_fiber(self)
        coroutine.send(None)
        return coroutine


def switch_somewhere() -> None:
    """What other threads have dropped is unwound when its owner next switches."""
    Fiber(lambda: None).switch()


@pytest.fixture
def left() -> Left:
    return Left()


def test_fiber_of_a_closed_coroutine_is_unwound(left: Left) -> None:
    coroutine = left.begun()
    coroutine.close()
    assert left.ended_by == [GeneratorExit]
    coroutine.close()
    with pytest.raises(RuntimeError, match="reuse"):
        coroutine.send(None)


def test_fiber_of_a_dropped_coroutine_is_unwound(left: Left) -> None:
    coroutine = left.begun()
    del coroutine
    assert left.ended_by == [GeneratorExit]


def test_fiber_of_a_coroutine_in_garbage_is_unwound(left: Left) -> None:
    ring = [left.begun()]
    ring.append(ring)
    del ring
    gc.collect()
    switch_somewhere()
    assert left.ended_by == [FiberExit]


@needs_gil(DROPS_ARE_QUEUED)
def test_fiber_of_a_coroutine_closed_on_another_thread_is_unwound_on_its_own(left: Left) -> None:
    coroutine = left.begun()
    thread = threading.Thread(target=coroutine.close)
    thread.start()
    thread.join()
    assert left.ended_by == []
    switch_somewhere()
    assert left.ended_by == [FiberExit]


def test_coroutine_continued_on_another_thread_is_refused(left: Left) -> None:
    coroutine = left.begun()
    told: list[str] = []

    def elsewhere() -> None:
        with pytest.raises(FiberError) as caught:
            coroutine.send(None)
        told.append(str(caught.value))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "another thread" in told[0]
    gc.collect()  # the exception and its traceback
    switch_somewhere()
    assert left.ended_by == [FiberExit]


def test_task_destroyed_while_its_fiber_waits_unwinds_it() -> None:
    done = run_script("""
        import asyncio
        from pyfiber.aio import await_, run_in_fiber

        def plain():
            try:
                await_(loop.create_future())
            finally:
                print("unwound")

        loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda loop, context: print(context["message"]))
        task = loop.create_task(run_in_fiber(plain))
        loop.call_soon(loop.stop)
        loop.run_forever()
        del task
        loop.close()
    """)
    assert {*done.stdout.splitlines()} == {"Task was destroyed but it is pending!", "unwound"}


def test_fiber_that_waits_again_while_its_coroutine_is_closed_is_an_error() -> None:
    def stubborn() -> None:
        try:
            await_(Once())
        finally:
            await_(Once())

    coroutine = run_in_fiber(stubborn)
    coroutine.send(None)
    with pytest.raises(RuntimeError, match="ignored GeneratorExit"):
        coroutine.close()
    with pytest.raises(GeneratorExit):
        coroutine.send(None)


def test_nothing_of_a_finished_call_is_kept() -> None:
    class Thing:
        pass

    def plain(thing: Thing) -> None:
        for _ in range(2):
            with pytest.raises(KeyError):
                await_(fails_now())

    async def fails_now() -> None:
        raise KeyError

    thing = Thing()
    gone = weakref.ref(thing)
    with pytest.raises(StopIteration):
        run_in_fiber(plain, thing).send(None)
    del thing
    gc.collect()
    assert gone() is None


def test_import_of_pyfiber_does_not_bring_asyncio() -> None:
    done = run_script("import sys, pyfiber; print({'asyncio', 'pyfiber.aio'} & {*sys.modules})")
    assert done.stdout == "set()\n"
