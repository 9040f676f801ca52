"""`await_future()` a concurrent.futures.Future."""

from __future__ import annotations

import asyncio
import math
import threading
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from pyfiber import FiberCancelled, FiberError, await_future, park, run, spawn, yield_now
from tests.conftest import Child
from tests.support.interfering import Interfering, Stop, stop

Log = list[Any]


def test_wait_for_a_future_completed_by_a_thread() -> None:
    future: Future[int] = Future()

    def main() -> int:
        threading.Timer(0.005, future.set_result, (5,)).start()
        return await_future(future)

    assert run(main) == 5


def test_wait_for_a_future_completed_by_a_fiber() -> None:
    future: Future[str] = Future()

    def main() -> list[str]:
        waiting = [spawn(await_future, future) for _ in range(5)]
        yield_now()
        future.set_result("for all")
        return [fiber.result() for fiber in waiting]

    assert run(main) == ["for all"] * 5


def test_wait_for_lets_other_fibers_run() -> None:
    future: Future[list[int]] = Future()
    log: list[int] = []

    def other() -> None:
        for n in range(3):
            log.append(n)
            yield_now()
        future.set_result(log)

    def main() -> None:
        spawn(other)
        assert await_future(future) == [0, 1, 2]

    run(main)


def test_wait_for_raises_the_futures_exception() -> None:
    future: Future[int] = Future()

    def main() -> None:
        threading.Timer(0.005, future.set_exception, (LookupError("there"),)).start()
        with pytest.raises(LookupError, match="there"):
            await_future(future)

    run(main)


def test_wait_for_a_cancelled_future() -> None:
    future: Future[int] = Future()

    def main() -> None:
        fiber = spawn(await_future, future)
        yield_now()
        future.cancel()
        with pytest.raises(CancelledError):
            fiber.result()
        assert not fiber.cancelled()  # it failed; nobody cancelled the fiber

    run(main)


def test_wait_for_with_a_timeout() -> None:
    future: Future[int] = Future()

    def main() -> None:
        for timeout in 0, 0.001:
            with pytest.raises(TimeoutError, match="not done yet"):
                await_future(future, timeout)
        future.set_result(1)
        assert await_future(future, 0) == 1

    run(main)


def test_wait_for_cancelled_leaves_the_future_alone() -> None:
    future: Future[int] = Future()

    def main() -> None:
        fiber = spawn(await_future, future)
        yield_now()
        fiber.cancel()
        with pytest.raises(FiberCancelled):
            fiber.result()
        assert not future.done()
        future.set_result(2)
        assert await_future(future) == 2

    run(main)


def test_wait_for_a_done_future_works_anywhere() -> None:
    future: Future[int] = Future()
    future.set_result(3)
    assert await_future(future) == 3


def test_wait_for_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError, match="needs a running scheduler"):
        await_future(Future())


def test_wait_for_does_not_take_park_permits() -> None:
    future: Future[int] = Future()

    def main() -> None:
        fiber = spawn(lambda: (await_future(future), park()))
        yield_now()
        fiber.unpark("permit")
        yield_now()
        assert fiber.state == "parked"
        future.set_result(1)
        assert fiber.result() == (1, "permit")

    run(main)


def test_wait_for_often_leaves_nothing_on_the_future() -> None:
    future: Future[int] = Future()

    def main() -> None:
        for _ in range(100):
            with pytest.raises(TimeoutError):
                await_future(future, 0)

    run(main)
    assert len(future._done_callbacks) == 1  # type: ignore[attr-defined]


def test_wait_for_many_futures_of_threads() -> None:
    def main() -> int:
        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(pow, n, 2) for n in range(300)]
            return sum(fiber.result() for fiber in [spawn(await_future, f) for f in futures])

    assert run(main) == sum(n * n for n in range(300))


def test_wait_for_refuses_other_objects() -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="a fiber has result"):
            await_future(spawn(int))  # type: ignore[arg-type]
        loop = asyncio.new_event_loop()
        for thing in None, 3, loop.create_future(), int:
            with pytest.raises(TypeError, match="expected a concurrent"):
                await_future(thing)  # type: ignore[arg-type]
        loop.close()

    run(main)


@pytest.mark.parametrize("done", [False, True])
def test_wait_for_refuses_odd_timeouts(done: bool) -> None:
    future: Future[int] = Future()
    if done:
        future.set_result(1)

    def main() -> None:
        for timeout in -1, -0.5, math.nan:
            with pytest.raises(ValueError, match="timeout must not be"):
                await_future(future, timeout)
        with pytest.raises(TypeError, match="timeout must be a number"):
            await_future(future, "1")  # type: ignore[arg-type]

    run(main)


def test_wait_for_in_a_done_callback_is_refused() -> None:
    caught: list[BaseException] = []

    def callback(_: object) -> None:
        try:
            await_future(Future())
        except FiberError as exc:
            caught.append(exc)

    run(lambda: spawn(int).add_done_callback(callback))
    assert len(caught) == 1


def test_wait_for_what_nobody_completes_is_a_deadlock(child: Child) -> None:
    done = child(
        """
        from concurrent.futures import Future
        from pyfiber import *
        try:
            run(await_future, Future())
        except DeadlockError as exc:
            print("waits for <Future at" in str(exc))
        """
    )
    assert done.stdout == "True\n"


def test_wait_for_ends_wherever_a_trace_function_raises_in_it(quiet: Log) -> None:
    nth = 1

    def main() -> bool:
        future: Future[int] = Future()

        def wait() -> None:
            with suppress(Stop):
                assert await_future(future) == 5

        def waits_twice() -> None:
            spawn(wait)
            spawn(wait)
            yield_now()
            future.set_result(5)
            yield_now()

        return Interfering(nth, stop, "pyfiber._futures").play(waits_twice)

    while run(main):
        nth += 1
    assert nth > 20
    assert not quiet
