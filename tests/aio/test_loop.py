"""new_event_loop(): asyncio's loop in a fiber, beside other fibers."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

import pyfiber
from pyfiber import Cancelled, net, sleep, spawn, testing
from pyfiber.aio import _loop, await_, new_event_loop, run_in_fiber
from tests.support.subprocesses import run_script
from tests.support.threads import PATIENCE

posix = pytest.mark.skipif(
    os.name == "nt", reason="asyncio's SelectorEventLoop cannot do that there"
)


def arun(main: Coroutine[Any, Any, Any]) -> Any:
    """In a fiber, as asyncio.run()."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)


def running_loop() -> Any:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


async def later(value: Any) -> Any:
    await asyncio.sleep(0.001)
    return value


# beside other fibers ------------------------------------------------------------------------------


def test_fibers_run_while_the_loop_waits_and_the_loop_while_they_do() -> None:
    log: list[Any] = []

    async def ticks() -> None:
        for _ in range(3):
            await asyncio.sleep(0.001)
            log.append("task")

    def main() -> None:
        loop = spawn(arun, ticks())
        while not loop.done():
            log.append("fiber")
            sleep(0.001)

    pyfiber.run(main)
    assert log.count("task") == 3
    assert "fiber" in log[log.index("task") :]


def test_busy_loop_lets_fibers_run_after_each_batch_of_callbacks() -> None:
    async def busy() -> int:
        batches = 0
        while not fiber.done():
            await asyncio.sleep(0)
            batches += 1
        return batches

    def main() -> int:
        nonlocal fiber
        fiber = spawn(lambda: [pyfiber.yield_now() for _ in range(20)])
        return arun(busy())  # type: ignore[no-any-return]

    fiber: Any = None
    assert 20 <= pyfiber.run(main) <= 25


def test_busy_loop_lets_fibers_wake_from_sleep() -> None:
    async def busy() -> None:
        while not fiber.done():
            await asyncio.sleep(0)

    def main() -> None:
        nonlocal fiber
        fiber = spawn(sleep, 0.001)
        arun(busy())

    fiber: Any = None
    pyfiber.run(main)


def test_several_loops_run_on_one_thread() -> None:
    async def echo(reader: Any, writer: Any) -> None:
        writer.write(await reader.readline())
        writer.close()

    async def ask(address: Any, n: int) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"%d\n" % n)
        answer: bytes = await reader.readline()
        writer.close()
        return answer

    async def serve(address: Any, stop: list[Any]) -> None:
        stop += [asyncio.get_running_loop(), asyncio.Event()]
        async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
            address.put(server.sockets[0].getsockname())
            await stop[1].wait()

    def main() -> list[bytes]:
        addresses: pyfiber.Queue[Any] = pyfiber.Queue()
        stop: list[Any] = []
        server = spawn(arun, serve(addresses, stop))
        address = addresses.get()
        clients = [spawn(arun, ask(address, n)) for n in range(5)]
        answers = [client.result() for client in clients]
        stop[0].call_soon(stop[1].set)
        server.result()
        return answers

    assert pyfiber.run(main) == [b"%d\n" % n for n in range(5)]


@pytest.mark.parametrize("how", ["call_soon", "call_later", "future", "task", "threadsafe", "stop"])
def test_sleeping_loop_is_woken_by_a_call_of_another_fiber(how: str) -> None:
    got: list[Any] = []

    async def waits() -> Any:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        got.extend((loop, future))
        return await future

    def main() -> Any:
        fiber = spawn(arun, waits())
        sleep(0.001)
        loop, future = got
        if how == "call_soon":
            loop.call_soon(future.set_result, how)
        elif how == "call_later":
            loop.call_later(0.001, future.set_result, how)
        elif how == "future":
            future.set_result(how)
        elif how == "task":
            loop.create_task(later(how)).add_done_callback(
                lambda task: future.set_result(task.result())
            )
        elif how == "threadsafe":
            loop.call_soon_threadsafe(future.set_result, how)
        else:
            loop.stop()
            with pytest.raises(RuntimeError, match="stopped before Future completed"):
                fiber.result()
            return how
        return fiber.result()

    assert pyfiber.run(main) == how


def test_call_of_a_fiber_that_runs_while_the_loop_yields_is_not_slept_over() -> None:
    """The loop has decided how long to sleep, and lets others run before it does."""
    got: list[Any] = []

    async def waits() -> Any:
        future = asyncio.get_running_loop().create_future()
        got.append(future)
        return await future

    def main() -> Any:
        fiber = spawn(arun, waits())
        while not got:
            pyfiber.yield_now()
        got[0].set_result("heard")
        return fiber.result()

    assert pyfiber.run(main) == "heard"


def test_fibers_wait_for_coroutines_of_the_loop() -> None:
    got: list[Any] = []

    async def serves() -> None:
        got.append(asyncio.get_running_loop())
        got.append(asyncio.Event())
        await got[1].wait()

    def main() -> Any:
        fiber = spawn(arun, serves())
        sleep(0.001)
        loop, event = got
        answer = pyfiber.await_future(asyncio.run_coroutine_threadsafe(later("answer"), loop))
        event.set()
        fiber.result()
        return answer

    assert pyfiber.run(main) == "answer"


# whose loop is it ---------------------------------------------------------------------------------


def test_other_fibers_see_no_running_loop_and_no_task() -> None:
    seen: list[Any] = []

    async def waits() -> None:
        await asyncio.sleep(0.002)
        sleep(0.002)  # in the midst of a step
        assert asyncio.current_task() is not None
        assert running_loop() is not None

    def looks() -> None:
        for _ in range(5):
            seen.append(running_loop())
            seen.append(sys.get_asyncgen_hooks().firstiter)
            sleep(0.001)

    def main() -> None:
        fiber = spawn(looks)
        arun(waits())
        fiber.join()
        assert running_loop() is None

    pyfiber.run(main)
    assert seen == [None] * 10


def test_loops_in_debug_mode_track_origins_in_their_own_fibers_only() -> None:
    depth = sys.get_coroutine_origin_tracking_depth
    seen: list[tuple[bool, int]] = []

    async def waits(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append((True, depth()))

    def in_debug_mode(main: Coroutine[Any, Any, Any]) -> None:
        with asyncio.Runner(debug=True, loop_factory=new_event_loop) as runner:
            runner.run(main)

    def looks() -> None:
        sleep(0.001)
        seen.append((False, depth()))

    def main() -> None:
        # The loop that begins first ends first.
        fibers = [spawn(in_debug_mode, waits(seconds)) for seconds in (0.002, 0.004)]
        for fiber in [*fibers, spawn(looks)]:
            fiber.join()

    outside = depth()
    pyfiber.run(main)
    assert [(inside, found != outside) for inside, found in seen] == [
        (False, False),
        (True, True),
        (True, True),
    ]
    assert depth() == outside


def test_task_that_waits_for_fibers_holds_up_only_its_own_loop() -> None:
    log: list[Any] = []

    async def blocks(lock: pyfiber.Lock) -> None:
        me, loop = asyncio.current_task(), asyncio.get_running_loop()
        asyncio.get_running_loop().call_soon(log.append, "its own loop")
        with lock:
            log.append("has the lock")
        assert (asyncio.current_task(), asyncio.get_running_loop()) == (me, loop)

    async def other() -> None:
        await asyncio.sleep(0.001)
        log.append("the other loop")

    def main() -> None:
        lock = pyfiber.Lock()
        lock.acquire()
        blocked = spawn(arun, blocks(lock))
        pyfiber.yield_now()
        arun(other())
        lock.release()
        blocked.result()

    pyfiber.run(main)
    assert log == ["the other loop", "has the lock", "its own loop"]


def test_asynchronous_generators_belong_to_the_loop_that_began_them() -> None:
    closed: list[Any] = []

    async def numbers() -> Any:
        try:
            for i in range(9):
                await asyncio.sleep(0)
                yield i
        finally:
            await asyncio.sleep(0)
            closed.append(asyncio.get_running_loop())

    async def abandons() -> Any:
        async for i in numbers():
            sleep(0.001)  # the other loop runs
            if i == 2:
                break
        gc.collect()
        await asyncio.sleep(0.001)
        return asyncio.get_running_loop()

    def main() -> set[Any]:
        return {fiber.result() for fiber in [spawn(arun, abandons()) for _ in range(3)]}

    assert pyfiber.run(main) == {*closed}
    assert len(closed) == 3


def test_run_in_fiber_on_such_a_loop_may_wait_for_both() -> None:
    def plain() -> str:
        sleep(0.001)
        got: str = await_(later("both"))
        sleep(0.001)
        assert asyncio.current_task() is not None
        return got

    assert pyfiber.run(arun, run_in_fiber(plain)) == "both"


def test_loop_outside_of_a_run_blocks_as_any_loop_does() -> None:
    async def main() -> str:
        assert running_loop() is not None
        return await asyncio.to_thread(lambda: "outside")

    assert arun(main()) == "outside"


# what asyncio can do ------------------------------------------------------------------------------


@posix
def test_executor_subprocess_and_threads_work() -> None:
    async def main() -> Any:
        loop = asyncio.get_running_loop()
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "print('child')", stdout=asyncio.subprocess.PIPE
        )
        out, _ = await process.communicate()
        future = loop.create_future()
        thread = threading.Thread(
            target=loop.call_soon_threadsafe, args=(future.set_result, "thread")
        )
        thread.start()
        executor = await loop.run_in_executor(None, lambda: "executor")
        result = [out.split(), process.returncode, await future, executor]
        thread.join()
        return result

    assert pyfiber.run(arun, main()) == [[b"child"], 0, "thread", "executor"]


@posix
def test_signal_handlers_of_the_loop_are_called_and_the_runs_own_are_back_afterwards() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGUSR1)

    async def hears(sig: int) -> Any:
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.add_signal_handler(sig, future.set_result, sig)
        sleeping = asyncio.get_running_loop().call_later(0.001, signal.raise_signal, sig)
        got = await future
        sleeping.cancel()
        assert loop.remove_signal_handler(sig)
        return got

    def main() -> None:
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        ours = signal.getsignal(signal.SIGINT)
        assert arun(hears(signal.SIGUSR1)) == signal.SIGUSR1
        assert arun(hears(signal.SIGINT)) == signal.SIGINT
        assert signal.getsignal(signal.SIGINT) == ours
        now = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(now, warn_on_full_buffer=False)
        assert now == wakeup

    pyfiber.run(main)
    assert before == (signal.getsignal(signal.SIGINT), signal.SIG_DFL)


def test_control_c_cancels_the_main_task_and_ends_the_run() -> None:
    log: list[Any] = []

    async def waits() -> None:
        asyncio.get_running_loop().call_later(0.001, signal.raise_signal, signal.SIGINT)
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            await asyncio.sleep(0.001)
            log.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        pyfiber.run(arun, waits())
    assert log == ["cleaned up"]


def test_loop_runs_in_virtual_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        before = loop.time()
        await asyncio.gather(*(asyncio.sleep(3600 * i) for i in range(24)))
        return loop.time() - before

    assert testing.run(arun, main()) == 23 * 3600


# cancellation and the end -------------------------------------------------------------------------


async def cleans_up(log: list[Any]) -> None:
    try:
        await asyncio.sleep(PATIENCE)
    except asyncio.CancelledError as exc:
        log.append(exc.args)
        await asyncio.sleep(0.001)
        log.append("cleaned up")
        raise


def test_cancelled_fiber_cancels_the_main_task_and_waits_for_it() -> None:
    log: list[Any] = []

    def body() -> None:
        try:
            arun(cleans_up(log))
        except Cancelled as exc:
            log.append(exc.reason)
            raise

    def main() -> None:
        fiber = spawn(body)
        sleep(0.001)
        fiber.cancel("enough")
        fiber.join()
        assert fiber.cancelled()

    pyfiber.run(main)
    assert log == [("enough",), "cleaned up", "enough"]


def test_time_limit_around_a_loop_ends_it_and_another_one_may_run() -> None:
    log: list[Any] = []

    def main() -> Any:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            with pyfiber.move_on_after(0.001) as scope:
                runner.run(cleans_up(log))
            assert scope.cancelled()
            return runner.run(later("again"))

    assert pyfiber.run(main) == "again"
    assert log[1:] == ["cleaned up"]


def test_another_call_of_the_runner_in_a_cancelled_fiber_is_cancelled_at_once() -> None:
    log: list[Any] = []

    def main() -> None:
        with (
            pyfiber.move_on_after(0.001) as scope,
            asyncio.Runner(loop_factory=new_event_loop) as runner,
        ):
            for _ in range(2):
                with pytest.raises(Cancelled):
                    runner.run(cleans_up(log))
            pyfiber.check_cancelled()
        assert scope.cancelled()

    pyfiber.run(main)
    assert log[1:] == ["cleaned up"]


def test_other_tasks_of_a_cancelled_fiber_are_cancelled_once_and_waited_for() -> None:
    log: list[Any] = []

    async def begin() -> None:
        tasks = [asyncio.ensure_future(cleans_up(log)) for _ in range(3)]
        await asyncio.sleep(PATIENCE)
        del tasks

    def main() -> None:
        with pyfiber.move_on_after(0.002):
            arun(begin())

    pyfiber.run(main)
    assert log == [()] * 3 + ["cleaned up"] * 3


def test_run_forever_of_a_cancelled_fiber_stops() -> None:
    def main() -> None:
        loop = new_event_loop()
        with pyfiber.move_on_after(0.001) as scope:
            loop.run_forever()
        assert scope.cancelled()
        loop.close()

    pyfiber.run(main)


def test_main_task_that_swallows_the_cancellation_gives_its_result() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            await asyncio.sleep(0.001)
        return "done all the same"

    def main() -> None:
        with pyfiber.move_on_after(0.001) as scope:
            assert arun(stubborn()) == "done all the same"
            pyfiber.check_cancelled()
        assert scope.cancelled()

    pyfiber.run(main)


def test_end_of_the_run_winds_the_loop_down() -> None:
    log: list[Any] = []

    def main() -> None:
        spawn(arun, cleans_up(log))
        sleep(0.001)
        raise LookupError("the end")

    with pytest.raises(LookupError):
        pyfiber.run(main)
    assert log[1:] == ["cleaned up"]


def test_failure_of_the_main_task_is_told_once() -> None:
    done = run_script("""
        import asyncio, pyfiber
        from pyfiber.aio import new_event_loop

        async def fails():
            raise SystemExit(7)

        def main():
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                try:
                    runner.run(fails())
                except SystemExit as exc:
                    print(exc.code)

        pyfiber.run(main)
    """)
    assert (done.stdout, done.stderr) == ("7\n", "")


def test_loop_of_an_unwound_fiber_is_left() -> None:
    scheduler = pyfiber.Scheduler()
    log: list[Any] = []

    async def left() -> None:
        log.append("begun")
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            log.append("finally")

    def body() -> None:
        loop = new_event_loop()
        task = loop.create_task(left())
        try:
            loop.run_until_complete(task)
        except pyfiber.FiberExit:
            log.append("unwound")
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            raise
        finally:
            loop.close()

    scheduler.spawn(body)
    while not log:
        scheduler.run_once()
    scheduler.close()
    assert "unwound" in log
    assert running_loop() is None


@pytest.fixture
def without_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Windows."""
    monkeypatch.setattr(_loop, "Selector", _loop.StandingSelector)


@pytest.mark.usefixtures("without_descriptor")
def test_loop_whose_selector_has_no_descriptor_serves_beside_fibers() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line.upper())
        writer.close()

    async def main(clients: list[Any]) -> None:
        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
            address = server.sockets[0].getsockname()
            clients += [spawn(ask, address) for _ in range(5)]
            while not all(client.done() for client in clients):
                await asyncio.sleep(0.001)

    def ask(address: Any) -> list[bytes]:
        with net.connect(*address) as stream:
            answers = []
            for word in (b"one\n", b"two\n"):
                stream.write(word)
                answers.append(stream.read_exactly(4))
            return answers

    def both() -> list[Any]:
        clients: list[Any] = []
        arun(main(clients))
        return [client.result() for client in clients]

    assert pyfiber.run(both) == [[b"ONE\n", b"TWO\n"]] * 5


@pytest.mark.usefixtures("without_descriptor")
def test_loop_hears_of_a_descriptor_that_another_fiber_adds_while_it_sleeps() -> None:
    left, right = socket.socketpair()
    left.setblocking(False)

    def main() -> Any:
        made: list[Any] = []

        async def wait() -> Any:
            loop = asyncio.get_running_loop()
            made.extend([loop, loop.create_future()])
            return await made[1]

        running = spawn(arun, wait())
        while not made:
            pyfiber.yield_now()
        for _ in range(5):
            pyfiber.yield_now()  # it sleeps

        def come() -> None:
            made[0].remove_reader(left)
            made[1].set_result(left.recv(10))

        made[0].add_reader(left, come)
        sleep(0.001)
        right.send(b"heard")
        return running.result()

    assert pyfiber.run(main) == b"heard"
    left.close()
    right.close()
