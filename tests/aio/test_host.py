"""Host: pyfiber's fibers in the turns of asyncio's loop."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import sys
import threading
from typing import Any

import pytest

import pyfiber
from pyfiber import Cancelled, FiberError, sleep
from pyfiber.aio import Host, await_, run_in_fiber
from tests.aio.conftest import Run
from tests.support.threads import PATIENCE

pytestmark = pytest.mark.skipif(os.name == "nt", reason="loops of Windows watch no descriptors")

VAR = contextvars.ContextVar("VAR", default="unset")

EAGER = pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks begin at the next turn there")


async def later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def hosted(arun: Run, fn: Any, *args: Any, **options: Any) -> Any:
    """The result of a function in a fiber of a Host."""

    async def main() -> Any:
        async with Host(**options) as host:
            return await host.run(fn, *args)

    return arun(main())


# fibers on the loop -------------------------------------------------------------------------------


def test_fibers_of_a_host_have_all_of_pyfiber(arun: Run) -> None:
    def main() -> list[Any]:
        queue: pyfiber.Queue[int] = pyfiber.Queue()
        with pyfiber.TaskGroup() as group:
            group.spawn(lambda: queue.put(queue.qsize()))
            sleep(0.001)
            with pyfiber.move_on_after(0.001) as scope:
                pyfiber.Event().wait()
        return [
            queue.get(),
            scope.cancelled(),
            pyfiber.to_thread(lambda: 3),
            *pyfiber.gather(lambda: await_(later(4)), lambda: await_(later(5))),
        ]

    assert hosted(arun, main) == [0, True, 3, 4, 5]


def test_host_result_and_failure_reach_the_coroutine(arun: Run) -> None:
    def fails() -> None:
        raise LookupError("told")

    async def main() -> None:
        async with Host() as host:
            assert await host.run(int, "7") == 7
            fiber = host.spawn(int, "8")
            assert await host.result(fiber) == 8
            assert await host.result(fiber) == 8
            with pytest.raises(LookupError, match="told"):
                await host.run(fails)

    arun(main())


def test_fibers_and_tasks_take_turns(arun: Run) -> None:
    log: list[str] = []

    def fiber() -> None:
        for _ in range(3):
            log.append("fiber")
            pyfiber.yield_now()

    async def main() -> None:
        async with Host() as host:
            host.spawn(fiber)
            for _ in range(12):
                await asyncio.sleep(0)
                log.append("task")

    arun(main())
    assert log.count("fiber") == 3
    assert "task" in log[log.index("fiber") : -log[::-1].index("fiber")]


def test_wake_ups_between_turns_reach_the_fibers(arun: Run) -> None:
    async def main() -> list[Any]:
        async with Host() as host:
            event, got = pyfiber.Event(), list[Any]()
            fibers = [host.spawn(lambda: got.append(event.wait())) for _ in range(3)]
            fibers.append(host.spawn(lambda: got.append(pyfiber.park())))
            await asyncio.sleep(0.001)
            event.set()
            fibers[-1].unpark("here")
            for fiber in fibers:
                await host.result(fiber)
            return got

    assert arun(main()) == [True, True, True, "here"]


def test_other_threads_reach_the_fibers(arun: Run) -> None:
    async def main() -> Any:
        async with Host() as host:
            fiber = host.spawn(pyfiber.park)
            await asyncio.sleep(0.001)
            thread = threading.Thread(target=fiber.unpark, args=("from a thread",))
            thread.start()
            result = await host.result(fiber)
            thread.join()
            return result

    assert arun(main()) == "from a thread"


def test_sleeps_of_any_order_end_in_time(arun: Run) -> None:
    def main() -> list[int]:
        order: list[int] = []

        def wait(ms: int) -> None:
            sleep(ms / 1000)
            order.append(ms)

        with pyfiber.TaskGroup() as group:
            for ms in (30, 3, 16, 9):
                group.spawn(wait, ms)
        return order

    assert hosted(arun, main) == [3, 9, 16, 30]


def test_turns_are_not_announced_by_system_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """What await_() waits for asks the loop for a turn; the descriptor stays silent."""
    readers: list[Any] = []
    loop = asyncio.new_event_loop()
    add_reader = loop.add_reader

    def watched(fd: int, callback: Any, *args: Any) -> None:
        add_reader(fd, lambda: (readers.append(fd), callback(*args)))

    monkeypatch.setattr(loop, "add_reader", watched)

    def main() -> None:
        readers.clear()
        for i in range(50):
            future = loop.create_future()
            loop.call_soon(future.set_result, i)
            assert await_(future) == i
            pyfiber.yield_now()

    async def host_it() -> None:
        async with Host() as host:
            await host.run(main)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(host_it())
    assert readers == []


def test_sockets_of_fibers_wake_the_loop(arun: Run) -> None:
    """In a turn of its own: nothing else happens on the loop."""
    from pyfiber import socket

    def answer(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(100):
                connection.sendall(data.upper())

    def ask(address: tuple[str, int]) -> list[bytes]:
        with socket.create_connection(address) as connection:
            got = []
            for word in (b"spam", b"egg"):
                connection.sendall(word)
                got.append(connection.recv(100))
                sleep(0.001)
            return got

    async def main() -> Any:
        async with Host() as host:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                host.spawn(answer, listener)
                return await host.run(ask, listener.getsockname())

    assert arun(main()) == [b"SPAM", b"EGG"]


def test_several_hosts_share_a_loop(arun: Run) -> None:
    async def main() -> Any:
        async with Host() as one, Host() as two:
            return await one.run(lambda: await_(two.run(lambda: await_(later("both")))))

    assert arun(main()) == "both"


# await_() -----------------------------------------------------------------------------------------


def test_await_in_a_host_takes_whatever_can_be_awaited(arun: Run) -> None:
    class Thing:
        def __await__(self) -> Any:
            return later("thing").__await__()

    def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        return [
            await_(later("coroutine")),
            await_(asyncio.ensure_future(later("task"))),
            await_(loop.run_in_executor(None, lambda: "future")),
            await_(Thing()),
            await_(asyncio.gather(later(1), later(2))),
        ]

    assert hosted(arun, main) == ["coroutine", "task", "future", "thing", [1, 2]]


def test_fault_12_await_of_a_done_future_logs_nothing(
    arun: Run, caplog: pytest.LogCaptureFixture
) -> None:
    def main() -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(1)
        return await_(future)

    with caplog.at_level(logging.DEBUG):
        assert hosted(arun, main) == 1
        assert hosted(arun, lambda: await_(asyncio.sleep(0, "twice"))) == "twice"
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []


def test_fault_12_time_limit_around_await_ends_the_task(arun: Run) -> None:
    log: list[Any] = []

    async def slow() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            log.append("cancelled")
            await asyncio.sleep(0.001)
            log.append("cleaned up")
            raise

    def main() -> None:
        with pytest.raises(TimeoutError), pyfiber.timeout(0.001):
            await_(slow())
        log.append("timed out")

    hosted(arun, main)
    assert log == ["cancelled", "cleaned up", "timed out"]


def test_fault_12_cancelled_task_that_awaits_a_fiber_cancels_it(arun: Run) -> None:
    log: list[Any] = []

    def waits() -> None:
        try:
            sleep(PATIENCE)
        except Cancelled as exc:
            log.append(exc.reason)
            with pyfiber.shield():
                sleep(0.001)
            log.append("cleaned up")
            raise

    async def main() -> None:
        async with Host() as host:
            task = asyncio.ensure_future(host.run(waits))
            await asyncio.sleep(0.001)
            task.cancel("enough")
            with pytest.raises(asyncio.CancelledError):
                await task
            log.append("end")

    arun(main())
    assert log == ["enough", "cleaned up", "end"]


def test_cancelled_fiber_cancels_what_it_awaits_and_who_awaits_it(arun: Run) -> None:
    async def main() -> None:
        async with Host() as host:
            future = asyncio.get_running_loop().create_future()
            fiber = host.spawn(await_, future)
            await asyncio.sleep(0.001)
            fiber.cancel("no longer needed")
            with pytest.raises(asyncio.CancelledError, match="no longer needed"):
                await host.result(fiber)
            assert future.cancelled()

    arun(main())


def test_task_that_ends_well_when_it_is_cancelled_gives_its_value(arun: Run) -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    def main() -> list[Any]:
        with pyfiber.move_on_after(0.001) as scope:
            got = await_(stubborn())
            pyfiber.check_cancelled()
        return [got, scope.cancelled()]

    assert hosted(arun, main) == ["done all the same", True]


def test_fiber_that_ends_well_when_its_task_is_cancelled_gives_its_value(arun: Run) -> None:
    def stubborn() -> str:
        try:
            sleep(PATIENCE)
        except Cancelled:
            return "done all the same"
        return "never"

    async def main() -> str:
        async with Host() as host:
            task = asyncio.ensure_future(host.run(stubborn))
            await asyncio.sleep(0.001)
            task.cancel()
            return await task

    assert arun(main()) == "done all the same"


def test_failure_of_a_cancelled_task_is_raised(arun: Run) -> None:
    async def fails() -> None:
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            raise LookupError("while cleaning up")

    def main() -> None:
        with pyfiber.move_on_after(0.001), pytest.raises(LookupError, match="cleaning up"):
            await_(fails())

    hosted(arun, main)


def test_task_cancelled_by_others_raises_in_the_fiber(arun: Run) -> None:
    def main() -> str:
        task = asyncio.ensure_future(asyncio.sleep(PATIENCE))
        asyncio.get_running_loop().call_soon(task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await_(task)
        return "went on"

    assert hosted(arun, main) == "went on"


def test_permit_of_the_fiber_is_left_alone_by_await(arun: Run) -> None:
    def main() -> Any:
        me = pyfiber.current()
        asyncio.get_running_loop().call_soon(me.unpark, "mine")
        await_(asyncio.sleep(0.001))
        return pyfiber.park()

    assert hosted(arun, main) == "mine"


def test_future_of_another_loop_and_what_cannot_be_awaited_are_refused(arun: Run) -> None:
    def main() -> None:
        other = asyncio.new_event_loop()
        with pytest.raises(ValueError, match="another loop"):
            await_(other.create_future())
        other.close()
        with pytest.raises(TypeError, match="await"):
            await_(5)  # type: ignore[arg-type]

    hosted(arun, main)


@EAGER
def test_coroutine_that_never_waits_takes_no_turn(arun: Run) -> None:
    async def at_once() -> str:
        return "at once"

    def main() -> list[str]:
        log: list[str] = []
        asyncio.get_running_loop().call_soon(log.append, "a turn")
        pyfiber.spawn(log.append, "another fiber")
        log.append(await_(at_once()))
        return log

    assert hosted(arun, main)[0] == "at once"


@EAGER
def test_task_whose_first_step_waits_for_fibers_is_not_the_task_of_others(arun: Run) -> None:
    seen: list[Any] = []

    async def parks() -> None:
        me = asyncio.current_task()
        assert me is not None
        pyfiber.sleep(0.001)
        assert asyncio.current_task() is me
        await asyncio.sleep(0)
        assert asyncio.current_task() is me

    def main() -> None:
        pyfiber.spawn(lambda: seen.append(asyncio.current_task()))
        await_(parks())
        assert asyncio.current_task() is None

    hosted(arun, main)
    assert seen == [None]


def test_await_in_a_coroutine_of_a_host_is_refused(arun: Run) -> None:
    async def wrong() -> None:
        awaitable = asyncio.get_running_loop().create_future()
        with pytest.raises(FiberError, match=r"write `await` instead"):
            await_(awaitable)

    hosted(arun, lambda: await_(wrong()))


def test_coroutine_has_the_context_of_the_fiber(arun: Run) -> None:
    async def coroutine(expected: str) -> None:
        assert VAR.get() == expected
        await asyncio.sleep(0)
        VAR.set("coroutine")

    def main() -> None:
        assert VAR.get() == "task"
        VAR.set("fiber")
        await_(coroutine("fiber"))
        assert VAR.get() == "coroutine"
        contextvars.copy_context().run(lambda: await_(coroutine("coroutine")))

    async def task() -> None:
        VAR.set("task")
        async with Host() as host:
            await host.run(main)
        assert VAR.get() == "task"

    arun(task())


def test_fibers_of_both_kinds_wait_for_each_other(arun: Run) -> None:
    async def main() -> Any:
        async with Host() as host:

            def inner() -> str:
                return await_(later("inner"))  # type: ignore[no-any-return]

            def outer() -> str:
                return await_(host.run(inner))

            return await host.run(lambda: await_(run_in_fiber(outer)))

    assert arun(main()) == "inner"


# the end ------------------------------------------------------------------------------------------


def test_end_of_the_block_cancels_and_joins_what_is_left(arun: Run) -> None:
    log: list[Any] = []

    def left(n: int) -> None:
        try:
            await_(asyncio.sleep(PATIENCE))
        finally:
            with pyfiber.shield():
                sleep(0.001)
            log.append(n)

    async def main() -> None:
        async with Host() as host:
            for n in range(3):
                host.spawn(left, n)
            await asyncio.sleep(0.001)
        log.append("end")

    arun(main())
    assert sorted(log[:3]) == [0, 1, 2]
    assert log[3:] == ["end"]


def test_fibers_started_while_the_block_ends_are_ended_too(arun: Run) -> None:
    log: list[Any] = []

    def child() -> None:
        try:
            sleep(PATIENCE)
        finally:
            log.append("child")

    def left() -> None:
        try:
            sleep(PATIENCE)
        finally:
            pyfiber.spawn(child)

    async def main() -> None:
        async with Host() as host:
            host.spawn(left)
            await asyncio.sleep(0.001)

    arun(main())
    assert log in (["child"], [])  # begun, or cancelled before


def test_cancelled_end_of_the_block_waits_all_the_same(arun: Run) -> None:
    log: list[Any] = []

    def slow_to_end() -> None:
        try:
            sleep(PATIENCE)
        finally:
            with pyfiber.shield():
                sleep(0.005)
            log.append("ended")

    async def block() -> None:
        async with Host() as host:
            host.spawn(slow_to_end)
            await asyncio.sleep(0.001)
            log.append("leaves")

    async def main() -> None:
        task = asyncio.ensure_future(block())
        while "leaves" not in log:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert log == ["leaves", "ended"]

    arun(main())


def test_failure_nobody_looks_at_is_reported(arun: Run) -> None:
    told: list[Any] = []

    def fails() -> None:
        raise LookupError("unseen")

    async def main() -> None:
        async with Host(on_unhandled=lambda fiber, exc: told.append(str(exc))) as host:
            host.spawn(fails)
            await asyncio.sleep(0.001)

    arun(main())
    assert told == ["unseen"]


def test_host_outside_of_its_block_is_refused(arun: Run) -> None:
    async def main() -> None:
        host = Host()
        with pytest.raises(FiberError, match="async with"):
            host.spawn(int)
        async with host:
            pass
        with pytest.raises(FiberError, match="over"):
            host.spawn(int)
        with pytest.raises(FiberError, match="make another"):
            async with host:
                pass

    arun(main())


def test_host_of_another_thread_is_refused(arun: Run) -> None:
    async def main() -> None:
        async with Host() as host:

            def elsewhere() -> str:
                with pytest.raises(FiberError, match="another thread") as caught:
                    host.spawn(int)
                return str(caught.value)

            assert await asyncio.get_running_loop().run_in_executor(None, elsewhere)
            loop = asyncio.get_running_loop()
            done = loop.create_future()
            await loop.run_in_executor(
                None, loop.call_soon_threadsafe, host.spawn, done.set_result, "there"
            )
            assert await done == "there"

    arun(main())


def test_loop_that_cannot_watch_descriptors_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        def refuses(*_: Any) -> None:
            raise NotImplementedError

        monkeypatch.setattr(asyncio.get_running_loop(), "add_reader", refuses)
        with pytest.raises(NotImplementedError, match="in another"):
            async with Host():
                pass

    asyncio.run(main())
