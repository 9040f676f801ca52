"""FiberExecutor: of a run, with a thread of its own, and when calls come in between."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future
from contextlib import suppress
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Fiber,
    FiberCancelled,
    FiberError,
    await_future,
    current,
    local,
    park,
    run,
    sleep,
    spawn,
    to_thread,
    yield_now,
)
from pyfiber.testing import run as run_virtually
from pyfiber.threads import FiberExecutor
from tests.support.failing import Boom
from tests.support.interfering import Interfering, Stop, stop

Log = list[Any]


# FiberExecutor, inside of a run -------------------------------------------------------------------


def test_executor_in_a_run_uses_its_fibers() -> None:
    here = threading.get_ident()

    def main() -> None:
        with FiberExecutor() as executor:
            future = executor.submit(lambda: (threading.get_ident(), current()))
            ident, fiber = future.result()
            assert ident == here
            assert fiber is not current()

    run(main)


def test_executor_runs_calls_at_the_same_time() -> None:
    def main() -> None:
        meet: list[Fiber[Any]] = []

        def call(n: int) -> int:
            meet.append(current())
            if len(meet) == 3:
                for fiber in meet:
                    if fiber is not current():
                        fiber.unpark()
            else:
                park()
            return n

        with FiberExecutor() as executor:
            assert list(executor.map(call, range(3))) == [0, 1, 2]

    run(main)


def test_executor_limits_how_many_run_at_a_time() -> None:
    now, most, order = 0, 0, []

    def call(n: int) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        order.append(n)
        sleep(1)
        now -= 1

    def main() -> None:
        with FiberExecutor(3) as executor:
            for n in range(20):
                executor.submit(call, n)

    run_virtually(main)
    assert most == 3
    assert order == list(range(20))


def test_executor_carries_the_context() -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    def main() -> None:
        variable.set(1)
        with FiberExecutor(1) as executor:
            first = executor.submit(variable.set, 2)
            assert executor.submit(variable.get).result() == 1
            first.result()
        assert variable.get() == 1

    contextvars.copy_context().run(run, main)


def test_executor_failures_go_to_the_future() -> None:
    def fails(exc: BaseException) -> None:
        raise exc

    def main() -> None:
        with FiberExecutor() as executor:
            for exc in LookupError(), KeyboardInterrupt(), SystemExit(1), GeneratorExit():
                assert executor.submit(fails, exc).exception() is exc

    run(main)


def test_executor_fiber_that_is_cancelled_cancels_the_future() -> None:
    def cancel_me() -> None:
        current().cancel("enough")
        park()

    def main() -> None:
        with FiberExecutor() as executor:
            with pytest.raises(FiberCancelled, match="enough"):
                executor.submit(cancel_me).result()
            with pytest.raises(CancelledError):
                executor.submit(cancel_me).result()

    run(main)


def test_executor_future_cancelled_before_its_turn_never_runs() -> None:
    ran: list[int] = []

    def main() -> None:
        with FiberExecutor(1) as executor:
            first = executor.submit(park, 0.002)
            second = executor.submit(ran.append, 2)
            third = executor.submit(ran.append, 3)
            assert second.cancel()
            with pytest.raises(TimeoutError):
                first.result()
            third.result()

    run(main)
    assert ran == [3]


def test_executor_result_parks_with_a_timeout() -> None:
    waiting: list[Fiber[Any]] = []

    def call() -> Any:
        waiting.append(current())
        return park()

    def main() -> None:
        with FiberExecutor() as executor:
            future = executor.submit(call)
            with pytest.raises(TimeoutError):
                future.result(0.001)
            with pytest.raises(TimeoutError):
                future.exception(-1)  # as concurrent.futures: what is left of a map()'s timeout
            waiting[0].unpark()
            assert future.exception() is None

    run(main)


def test_executor_takes_calls_of_threads() -> None:
    def main() -> None:
        with FiberExecutor(2) as executor:
            results = to_thread(lambda: [executor.submit(pow, n, 2).result() for n in range(20)])
            assert results == [n * n for n in range(20)]

    run(main)


def test_executor_of_a_run_that_is_over_refuses_calls() -> None:
    executors: list[FiberExecutor] = []
    run(lambda: executors.append(FiberExecutor()))
    with pytest.raises(FiberError, match="closed"):
        executors[0].submit(int)
    executors[0].shutdown()


def test_executor_of_a_run_that_fails_completes_its_futures() -> None:
    futures: list[Future[Any]] = []

    def main() -> None:
        executor = FiberExecutor(1)
        futures.extend(executor.submit(park) for _ in range(5))
        yield_now()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main)
    for future in futures:
        assert isinstance(future.exception(0), CancelledError)


def test_executor_calls_are_waited_for_by_the_run() -> None:
    ran: list[int] = []

    def call(n: int) -> None:
        sleep(1)
        ran.append(n)

    def main() -> None:
        executor = FiberExecutor(1)
        for n in range(5):
            executor.submit(call, n)

    run_virtually(main)
    assert ran == list(range(5))


def test_executor_map_stops_when_its_consumer_does() -> None:
    """The calls that have not begun are cancelled when the iterator fails."""
    ran: list[int] = []

    def call(n: int) -> int:
        yield_now()
        ran.append(n)
        return 1 // n

    def main() -> None:
        with FiberExecutor(1) as executor:
            results = executor.map(call, [1, 0, 1, 1, 1])
            assert next(results) == 1
            with pytest.raises(ZeroDivisionError):
                next(results)

    run(main)
    assert ran[:2] == [1, 0]
    assert len(ran) < 5


def test_executor_shutdown_can_cancel_what_waits() -> None:
    def main() -> None:
        executor = FiberExecutor(1)
        first, *others = [executor.submit(sleep, 0.001) for _ in range(5)]
        executor.shutdown(cancel_futures=True)
        assert first.result(0) is None
        assert all(future.cancelled() for future in others)
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(int)
        executor.shutdown()

    run(main)


def test_executor_shutdown_without_wait_returns_at_once() -> None:
    def main() -> None:
        executor = FiberExecutor()
        future = executor.submit(sleep, 0.001)
        executor.shutdown(wait=False)
        assert not future.done()
        future.result()

    run(main)


def test_executor_shutdown_is_a_cancellation_point() -> None:
    def body() -> None:
        executor = FiberExecutor()
        future = executor.submit(park)
        try:
            executor.shutdown()
        except Cancelled:
            assert not future.done()
            raise

    def main() -> None:
        fiber = spawn(body)
        yield_now()
        yield_now()
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()
        raise KeyError  # ends the parked call

    with pytest.raises(KeyError):
        run(main)


# with a thread of its own -------------------------------------------------------------------------


@pytest.fixture
def executor() -> Iterator[FiberExecutor]:
    with FiberExecutor(2, thread_name_prefix="of the test") as executor:
        yield executor


def test_executor_outside_of_a_run_has_a_thread(executor: FiberExecutor) -> None:
    assert "of the test" not in {thread.name for thread in threading.enumerate()}
    assert executor.submit(lambda: threading.current_thread().name).result() == "of the test"
    executor.shutdown()
    assert "of the test" not in {thread.name for thread in threading.enumerate()}


def test_executor_names_its_fibers() -> None:
    def names(executor: FiberExecutor) -> list[str]:
        return [executor.submit(lambda: current().name).result() for _ in range(2)]

    def main() -> None:
        with FiberExecutor(thread_name_prefix="fetch") as executor:
            assert names(executor) == ["fetch_0", "fetch_1"]
        with FiberExecutor() as executor:
            assert all(name.startswith("FiberExecutor-") for name in names(executor))

    run(main)
    with FiberExecutor(3, "elsewhere") as executor:
        assert names(executor) == ["elsewhere_0", "elsewhere_1"]


# initializer --------------------------------------------------------------------------------------


def test_executor_calls_its_initializer_in_each_fiber() -> None:
    request = local()
    log: Log = []

    def begin(user: str) -> None:
        log.append(current())
        request.user = user

    def main() -> None:
        with FiberExecutor(2, initializer=begin, initargs=("ann",)) as executor:
            calls = [executor.submit(lambda: (request.user, current())) for _ in range(3)]
            assert [call.result() for call in calls] == [("ann", fiber) for fiber in log]
        assert len(set(log)) == 3

    run(main)


def test_executor_whose_initializer_fails_is_broken(caplog: pytest.LogCaptureFixture) -> None:
    log: Log = []

    def begin() -> None:
        log.append("once")
        raise Boom

    def main() -> None:
        with FiberExecutor(1, initializer=begin) as executor:
            calls = [executor.submit(log.append, "never") for _ in range(3)]
            for call in calls:
                with pytest.raises(BrokenExecutor, match="initializer failed"):
                    call.result()
            assert isinstance(calls[0].exception().__cause__, Boom)
            with pytest.raises(BrokenExecutor, match="initializer failed"):
                executor.submit(log.append, "never")

    run(main)
    assert log == ["once"]
    assert [record.getMessage() for record in caplog.records] == [
        "an executor's initializer failed"
    ]


def test_executor_cancelled_in_its_initializer_is_whole() -> None:
    def main() -> None:
        fibers: Log = []
        with FiberExecutor(initializer=lambda: (fibers.append(current()), yield_now())) as executor:
            call = executor.submit(int)
            while not fibers:
                yield_now()
            fibers[0].cancel()
            with pytest.raises(FiberCancelled):
                call.result()
            assert executor.submit(int).result() == 0

    run(main)


def test_executor_refuses_an_initializer_that_cannot_be_called() -> None:
    with pytest.raises(TypeError, match="initializer must be a callable"):
        FiberExecutor(initializer="x")  # type: ignore[arg-type]


def test_executor_works_with_the_modules_functions(executor: FiberExecutor) -> None:
    futures = [executor.submit(sleep, n / 1000) for n in (3, 1, 2)]
    done, pending = concurrent.futures.wait(futures, 20)
    assert (len(done), len(pending)) == (3, 0)
    assert set(concurrent.futures.as_completed(futures)) == set(futures)


def test_executor_with_a_thread_serves_fibers_of_other_runs(executor: FiberExecutor) -> None:
    def main() -> None:
        futures = [executor.submit(pow, n, 2) for n in range(20)]
        assert [future.result() for future in futures] == [n * n for n in range(20)]
        assert [await_future(future) for future in futures] == [n * n for n in range(20)]

    run(main)


def test_executor_that_is_dropped_ends_its_thread() -> None:
    executor = FiberExecutor(1, thread_name_prefix="dropped")
    future = executor.submit(int)
    future.result()
    thread = next(thread for thread in threading.enumerate() if thread.name == "dropped")
    gone = weakref.ref(executor)
    del executor
    gc.collect()
    assert gone() is None
    thread.join(20)
    assert not thread.is_alive()


def test_executor_that_its_own_initializer_refers_to_is_collected() -> None:
    class Service:
        def __init__(self) -> None:
            self.executor = FiberExecutor(initializer=self.begin)

        def begin(self) -> None:
            pass

    gone = [weakref.ref(Service())]
    service = run(Service)
    gone.append(weakref.ref(service))
    del service
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


def test_executor_that_is_made_again_ends_its_former_thread() -> None:
    executor = FiberExecutor(thread_name_prefix="former")
    assert executor.submit(int).result() == 0
    (thread,) = (thread for thread in threading.enumerate() if thread.name == "former")
    executor.__init__(thread_name_prefix="latter")  # type: ignore[misc]
    thread.join(20)
    assert not thread.is_alive()
    assert executor.submit(int).result() == 0
    executor.shutdown()


def test_executor_that_was_never_used_starts_no_thread() -> None:
    before = threading.active_count()
    FiberExecutor().shutdown()
    assert threading.active_count() == before


def test_executor_is_used_by_asyncio() -> None:
    async def main() -> int:
        with FiberExecutor() as executor:
            return await asyncio.get_running_loop().run_in_executor(executor, pow, 2, 3)

    assert asyncio.run(main()) == 8


# misuse -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1])
def test_executor_refuses_a_limit_below_one(number: int) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        FiberExecutor(number)


def test_executor_refuses_a_limit_that_is_no_number() -> None:
    for thing in "3", 1.5:
        with pytest.raises(TypeError, match="must be an int or None"):
            FiberExecutor(thing)  # type: ignore[arg-type]


def test_closed_executor_refuses_calls() -> None:
    executor = FiberExecutor()
    executor.shutdown()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(int)
        executor.shutdown()


# Exceptions and calls that come in between --------------------------------------------------------


def slow_square(n: int) -> int:
    yield_now()
    return n * n


def is_interrupted(nth: int, executor: FiberExecutor, *modules: str) -> bool:
    """Use it; nothing waits for what cannot come, whatever is interrupted."""

    def use() -> None:
        with suppress(Stop, FiberCancelled, FiberError):
            futures = [executor.submit(slow_square, n) for n in range(3)]
            assert [future.result(20) for future in futures] == [0, 1, 4]
        with suppress(Stop):
            executor.shutdown()

    interrupted = Interfering(nth, stop, *modules).play(use)
    executor.shutdown()
    return interrupted


def test_executor_of_a_run_ends_wherever_a_trace_function_raises(quiet: Log) -> None:
    modules = "pyfiber._futures", "concurrent.futures._base"
    nth = 1

    def main() -> bool:
        return is_interrupted(nth, FiberExecutor(1), *modules)

    while run(main, on_unhandled=lambda fiber, exc: None):
        nth += 1
    assert nth > 200
    assert set(quiet) <= {Stop}


def test_executor_with_a_thread_ends_wherever_a_trace_function_raises(quiet: Log) -> None:
    """Not in CPython's own part: there a `with` may be left with its lock held."""
    nth = 1
    while is_interrupted(nth, FiberExecutor(1), "pyfiber._futures"):
        nth += 1
    assert nth > 200
    assert set(quiet) <= {Stop}


def test_executor_whose_thread_submits_while_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a finalizer does that runs where the thread allocates something."""
    from pyfiber import _futures

    executor = FiberExecutor()
    extra: list[Future[int]] = []

    def allocate() -> Any:
        extra.append(executor.submit(int, "7"))
        return scheduler()

    scheduler = _futures.Scheduler
    monkeypatch.setattr(_futures, "Scheduler", allocate)
    assert executor.submit(int, "5").result(20) == 5
    assert extra[0].result(20) == 7
    executor.shutdown()


def test_executor_whose_lock_is_held_serves_who_submits_inside_of_it() -> None:
    from pyfiber import _engine

    with FiberExecutor() as executor:
        pool = executor._pool
        future = _engine._holding(pool.lock, executor.submit, int, "5")
        assert future.result(20) == 5


def test_executor_whose_thread_gets_no_scheduler_fails_its_calls(
    monkeypatch: pytest.MonkeyPatch, quiet: Log
) -> None:
    """`quiet`: what the thread ends with."""
    from pyfiber import _futures

    def fails() -> Any:
        raise Boom("no descriptors are left")

    with monkeypatch.context() as patched:
        patched.setattr(_futures, "Scheduler", fails)
        executor = FiberExecutor()
        with pytest.raises(Boom, match="no descriptors"):
            executor.submit(int).result(20)
        for thread in threading.enumerate():
            if thread.name == executor._pool.name:
                thread.join(20)
    assert quiet == [Boom]
    with executor:
        assert executor.submit(int, "5").result(20) == 5
