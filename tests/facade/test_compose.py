"""Descriptions of work: what each operator does, what is refused."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    CancelledOutcome,
    Failed,
    FiberCancelled,
    FiberError,
    Ok,
    run,
    sleep,
    spawn,
    spawn_now,
    yield_now,
)
from pyfiber.compose import (
    Work,
    blocking,
    call,
    delay,
    describe,
    fail,
    of_future,
    parallel,
    perform,
    race,
    run_parallel,
    succeed,
    unfold,
)
from pyfiber.testing import run as run_virtually
from tests.facade.compose_makers import outcome
from tests.support.interfering import Interfering, Stop, stop
from tests.support.threads import PATIENCE

# --- one by one


def test_succeed() -> None:
    assert blocking(succeed(5)) == 5


def test_fail_with_an_instance_and_with_a_class() -> None:
    with pytest.raises(KeyError, match="x"):
        blocking(fail(KeyError("x")))
    with pytest.raises(KeyError):
        blocking(fail(KeyError))


def test_fail_performed_twice_does_not_pile_up_tracebacks() -> None:
    work = fail(KeyError("x"))
    depths = []
    for _ in range(3):
        with pytest.raises(KeyError) as info:
            blocking(work)
        depths.append(len(info.traceback))
    assert depths[0] == depths[2]


def test_call_is_made_each_time_it_is_performed() -> None:
    calls: list[Any] = []
    work = call(lambda *args, **kwargs: calls.append((args, kwargs)), 1, a=2)
    assert calls == []
    blocking(work)
    blocking(work)
    assert calls == [((1,), {"a": 2})] * 2


def test_delay() -> None:
    def main() -> tuple[Any, float]:
        return perform(delay(10, "late")), pyfiber.now()

    assert run_virtually(main) == ("late", 10.0)
    assert blocking(delay(0)) is None


def test_map() -> None:
    assert blocking(succeed(5).map(lambda x: x + 1)) == 6
    assert outcome(succeed(5).map(lambda x: x / 0)) == (ZeroDivisionError, "division by zero")
    assert outcome(fail(KeyError("x")).map(lambda x: x)) == (KeyError, "'x'")


def test_bind() -> None:
    assert blocking(succeed(5).bind(lambda x: succeed(x + 1))) == 6
    assert outcome(succeed(5).bind(lambda x: fail(KeyError(x)))) == (KeyError, "5")
    assert outcome(fail(KeyError("x")).bind(succeed)) == (KeyError, "'x'")


def test_combine() -> None:
    order: list[int] = []
    work = call(order.append, 1).combine(call(order.append, 2)).combine(succeed("end"))
    assert blocking(work) == "end"
    assert order == [1, 2]
    assert outcome(fail(KeyError("x")).combine(call(order.append, 3))) == (KeyError, "'x'")
    assert order == [1, 2]


def test_apply() -> None:
    assert blocking(succeed(lambda x: x + 1).apply(succeed(5))) == 6


def test_join() -> None:
    assert blocking(succeed(succeed(5)).join()) == 5


def test_catch() -> None:
    def recover(exc: BaseException) -> Work[Any]:
        return succeed(f"caught {exc!r}")

    assert blocking(fail(KeyError("x")).catch(recover)) == "caught KeyError('x')"
    assert blocking(fail(KeyError("x")).catch(recover, LookupError)) == "caught KeyError('x')"
    assert outcome(fail(KeyError("x")).catch(recover, ValueError)) == (KeyError, "'x'")
    assert blocking(succeed(5).catch(recover)) == 5
    assert blocking(succeed(5).catch(recover).map(lambda x: x + 1)) == 6
    assert outcome(fail(KeyError).catch(lambda exc: fail(ValueError("y")))) == (ValueError, "y")


def test_catch_sees_what_functions_raise() -> None:
    def bad(value: Any) -> Any:
        raise KeyError(value)

    for work in (succeed(1).map(bad), succeed(1).bind(bad), call(bad, 1)):
        assert blocking(work.catch(lambda exc: succeed(exc.args))) == (1,)


def test_exception_in_a_handler_has_the_first_one_as_its_context() -> None:
    def bad(exc: BaseException) -> Any:
        raise ValueError("handler")

    with pytest.raises(ValueError, match="handler") as info:
        blocking(fail(KeyError("first")).catch(bad))
    assert isinstance(info.value.__context__, KeyError)


def test_map_outcome() -> None:
    assert blocking(succeed(5).map_outcome(lambda end: Ok(end))) == Ok(5)
    error = KeyError("x")
    assert blocking(fail(error).map_outcome(lambda end: Ok(end))) == Failed(error)
    with pytest.raises(KeyError):
        blocking(succeed(5).map_outcome(lambda end: Failed(error)))
    with pytest.raises(TypeError, match="must return Ok or Failed"):
        blocking(succeed(5).map_outcome(lambda end: CancelledOutcome()))


def test_unfold() -> None:
    def step(n: int) -> Work[tuple[int, int] | None]:
        return succeed(None if n == 4 else (n + 1, n * n))

    assert blocking(unfold(step, 0)) == [0, 1, 4, 9]
    assert blocking(unfold(step, 4)) == []
    assert outcome(unfold(lambda n: fail(KeyError("x")), 0)) == (KeyError, "'x'")


def test_traced() -> None:
    lines: list[str] = []
    blocking(succeed(5).traced("good", lines.append))
    with pytest.raises(KeyError):
        blocking(fail(KeyError("x")).traced("bad", lines.append))
    assert lines == [
        "good - begins",
        "good - result: 5",
        "bad - begins",
        "bad - failed: KeyError('x')",
    ]


def test_traced_prints_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    blocking(succeed(5).traced("name"))
    assert capsys.readouterr().out == "name - begins\nname - result: 5\n"


def test_traced_tells_of_a_cancellation() -> None:
    lines: list[str] = []

    def main() -> None:
        fiber = spawn(perform, delay(10).traced("slow", lines.append))
        yield_now()
        fiber.cancel("enough")

    run(main)
    assert lines == ["slow - begins", "slow - cancelled: Cancelled('enough')"]


def test_timed() -> None:
    assert run_virtually(blocking, delay(10, 5).timed()) == (10.0, 5)


def test_timed_twice_at_the_same_time_measures_each() -> None:
    def main() -> list[float]:
        work = delay(10).timed()
        first = spawn(perform, work)
        sleep(5)
        second = spawn(perform, work)
        return [first.result()[0], second.result()[0], pyfiber.now()]

    assert run_virtually(main) == [10.0, 10.0, 15.0]


def test_of_future() -> None:
    future: Future[int] = Future()
    thread = threading.Timer(0.005, future.set_result, (5,))
    thread.start()
    assert blocking(of_future(future).map(lambda x: x + 1)) == 6
    assert blocking(of_future(future)) == 5
    thread.join()


def test_of_future_that_failed_or_was_cancelled() -> None:
    failed: Future[int] = Future()
    failed.set_exception(KeyError("x"))
    assert outcome(of_future(failed)) == (KeyError, "'x'")
    cancelled: Future[int] = Future()
    cancelled.cancel()
    with pytest.raises(CancelledError):
        blocking(of_future(cancelled))


# --- do notation


def test_describe() -> None:
    @describe
    def add(a: int, b: int) -> Generator[Work[Any], Any, int]:
        x = yield succeed(a)
        y = yield delay(0.001, b)
        return x + y

    work = add(2, b=3)
    assert blocking(work) == 5
    assert blocking(work) == 5
    assert add.__name__ == "add"


def test_describe_catches_and_cleans_up() -> None:
    order: list[str] = []

    @describe
    def careful() -> Generator[Work[Any], Any, str]:
        try:
            yield fail(KeyError("x"))
        except KeyError:
            order.append("caught")
        try:
            yield fail(ValueError("y"))
        finally:
            yield call(order.append, "cleaned up")
        return "not reached"

    assert outcome(careful()) == (ValueError, "y")
    assert order == ["caught", "cleaned up"]


def test_describe_yields_works_only() -> None:
    order: list[str] = []

    @describe
    def wrong() -> Generator[Work[Any], Any, None]:
        try:
            yield 5  # type: ignore[misc]
        finally:
            order.append("finally")

    assert outcome(wrong()) == (TypeError, "a description yields works, not 5")
    assert order == ["finally"]


def test_describe_with_many_steps() -> None:
    @describe
    def count(n: int) -> Generator[Work[Any], Any, int]:
        total = 0
        for i in range(n):
            total += yield succeed(i)
        return total

    assert blocking(count(50_000)) == 49_999 * 25_000


# --- many at the same time


def test_parallel_keeps_the_order() -> None:
    works = [delay(0.001 * n, n) for n in (3, 1, 2)]
    assert blocking(parallel(*works)) == [3, 1, 2]
    assert blocking(parallel()) == []


def test_parallel_is_parallel() -> None:
    def main() -> float:
        perform(parallel(*[delay(20)] * 50))
        return pyfiber.now()

    assert run_virtually(main) == 20.0


def test_parallel_first_failure_cancels_the_rest() -> None:
    lines: list[str] = []
    work = parallel(
        delay(10).traced("slow", lines.append),
        delay(0.001).combine(fail(KeyError("x"))),
    )
    assert outcome(work) == (KeyError, "'x'")
    assert [line.split(":")[0] for line in lines] == ["slow - begins", "slow - cancelled"]


def test_race_cancels_the_loser() -> None:
    lines: list[str] = []
    work = race(delay(10).traced("slow", lines.append), delay(0.001, "fast"))
    assert blocking(work) == "fast"
    assert [line.split(":")[0] for line in lines] == ["slow - begins", "slow - cancelled"]


def test_race_is_decided_by_a_failure_as_well() -> None:
    assert outcome(race(delay(10), fail(KeyError("x")))) == (KeyError, "'x'")


def test_race_does_not_touch_who_asked() -> None:
    def main() -> str:
        perform(race(delay(10), delay(0)))
        sleep(0)
        return "alive"

    assert run(main) == "alive"


def test_timeout() -> None:
    assert blocking(delay(0, "quick").timeout(PATIENCE)) == "quick"
    assert outcome(delay(5).timeout(0.001)) == (TimeoutError, "not done after 0.001 seconds")
    assert outcome(fail(KeyError("x")).timeout(PATIENCE)) == (KeyError, "'x'")


def test_run_parallel_keeps_so_many_running() -> None:
    begun: list[pyfiber.Fiber[Any]] = []

    def job() -> int:
        begun.append(pyfiber.current())
        return pyfiber.park()

    def main() -> list[int]:
        fiber = spawn(perform, run_parallel(3, [call(job) for _ in range(10)]))
        for n in (1, 0, 3, 2, 5, 4, 7, 6, 9, 8):
            for _ in range(20):
                yield_now()
            released = sum(each.done() for each in begun)
            assert len(begun) == min(released + 3, 10)
            begun[n].unpark(n)
        return fiber.result()

    assert run(main) == list(range(10))


def test_run_parallel_slow_one_holds_up_nobody() -> None:
    order: list[int] = []

    def job(n: int) -> Work[None]:
        return delay(0.05 if n == 0 else 0.001).combine(call(order.append, n))

    blocking(run_parallel(2, [job(n) for n in range(8)]))
    assert order == [1, 2, 3, 4, 5, 6, 7, 0]


def test_run_parallel_failure_begins_no_more() -> None:
    begun: list[int] = []

    def job(n: int) -> Work[None]:
        rest = fail(KeyError(n)) if n == 2 else delay(0.001 if n < 2 else 10)
        return call(begun.append, n).combine(rest)

    assert outcome(run_parallel(2, [job(n) for n in range(9)]))[0] is KeyError
    assert len(begun) <= 5


def test_run_parallel_takes_an_iterator() -> None:
    assert blocking(run_parallel(2, (succeed(n) for n in range(5)))) == [0, 1, 2, 3, 4]


def test_start_child() -> None:
    order: list[str] = []

    def say(word: str) -> Work[str]:
        return delay(0.001).combine(call(order.append, word)).map(lambda _: word)

    @describe
    def both() -> Generator[Work[Any], Any, tuple[str, str]]:
        first = yield say("first").start_child()
        second = yield say("second").start_child()
        order.append("started")
        return (yield first), (yield second)

    assert blocking(both()) == ("first", "second")
    assert order == ["started", "first", "second"]


def test_child_is_waited_for() -> None:
    order: list[str] = []
    blocking(delay(0.005).combine(call(order.append, "child")).start_child())
    assert order == ["child"]


def test_child_can_be_waited_for_twice() -> None:
    @describe
    def twice() -> Generator[Work[Any], Any, Any]:
        child = yield delay(0.001, 5).start_child()
        return (yield child), (yield child)

    assert blocking(twice()) == (5, 5)


def test_failure_of_a_child_comes_where_it_is_waited_for() -> None:
    @describe
    def careful() -> Generator[Work[Any], Any, str]:
        child = yield fail(KeyError("x")).start_child()
        yield delay(0.001)
        try:
            yield child
        except KeyError:
            return "caught"
        return "nothing"

    assert blocking(careful()) == "caught"


def test_children_of_what_fails_are_cancelled() -> None:
    lines: list[str] = []
    child = delay(10).traced("child", lines.append).start_child()
    assert outcome(child.combine(delay(0)).combine(fail(KeyError("x")))) == (KeyError, "'x'")
    assert lines[1].startswith("child - cancelled")


# --- other threads


@pytest.mark.parametrize("move", [Work.on_thread_pool, Work.on_new_thread])
def test_on_another_thread(move: Callable[[Work[Any]], Work[Any]]) -> None:
    here = threading.get_ident()
    there, both, value = blocking(
        parallel(
            move(call(threading.get_ident)),
            move(parallel(delay(0.001, 1), delay(0.001, 2))),
            move(succeed(5).map(lambda x: x + 1)).map(lambda x: (x, threading.get_ident())),
        )
    )
    assert there != here
    assert both == [1, 2]
    assert value == (6, here)


@pytest.mark.parametrize("move", [Work.on_thread_pool, Work.on_new_thread])
def test_failure_on_another_thread(move: Callable[[Work[Any]], Work[Any]]) -> None:
    assert outcome(move(fail(KeyError("there")))) == (KeyError, "'there'")


@pytest.mark.parametrize("move", [Work.on_thread_pool, Work.on_new_thread])
def test_cancellation_reaches_the_other_thread(move: Callable[[Work[Any]], Work[Any]]) -> None:
    log: list[str] = []
    begun = threading.Event()
    work = move(call(begun.set).combine(slow(log, "there")))

    def main() -> Any:
        fiber = spawn(perform, work)
        while not begun.is_set():
            sleep(0.001)
        fiber.cancel("enough")
        fiber.join()
        return fiber.outcome

    assert run(main) == CancelledOutcome("enough")
    assert log == ["there - begins", "there - cancelled: Cancelled('the scheduler was stopped')"]


@pytest.mark.parametrize("move", [Work.on_thread_pool, Work.on_new_thread])
def test_work_on_another_thread_ends_wherever_a_trace_function_raises(
    move: Callable[[Work[Any]], Work[Any]],
) -> None:
    """It went on for ever, and so did the run."""

    def main(interfering: Interfering) -> None:
        fiber = spawn_now(interfering.play, partial(perform, move(delay(3600))))
        fiber.cancel()
        with suppress(Stop, FiberCancelled):
            fiber.result()

    nth = 0
    acted = True
    while acted:
        nth += 1
        interfering = Interfering(nth, stop, "pyfiber._remote")
        run(main, interfering)
        acted = interfering.left <= 0
    assert nth > 10


def test_others_run_while_a_thread_works() -> None:
    order: list[str] = []

    def blocks() -> None:
        threading.Event().wait(0.05)
        order.append("thread")

    blocking(
        parallel(call(blocks).on_thread_pool(), delay(0.001).combine(call(order.append, "fiber")))
    )
    assert order == ["fiber", "thread"]


# --- cancellation reaches every part


def slow(log: list[str], name: str) -> Work[Any]:
    """Never ends by itself; tells when it was cancelled."""
    return delay(1000).traced(name, log.append)


PARTS: dict[str, Callable[[list[str]], Work[Any]]] = {
    "delay": lambda log: slow(log, "a"),
    "map": lambda log: slow(log, "a").map(str),
    "bind": lambda log: succeed(1).bind(lambda _: slow(log, "a")),
    "combine": lambda log: succeed(1).combine(slow(log, "a")),
    "catch": lambda log: slow(log, "a").catch(lambda exc: succeed(1)),
    "map_outcome": lambda log: slow(log, "a").map_outcome(lambda end: Ok(1)),
    "handler": lambda log: fail(KeyError).catch(lambda exc: slow(log, "a")),
    "unfold": lambda log: unfold(lambda n: slow(log, "a").map(lambda _: None), 0),
    "parallel": lambda log: parallel(slow(log, "a"), slow(log, "b"), succeed(1)),
    "race": lambda log: race(slow(log, "a"), slow(log, "b")),
    "timeout": lambda log: slow(log, "a").timeout(500),
    "run_parallel": lambda log: run_parallel(2, [slow(log, n) for n in "ab"]),
    "child": lambda log: slow(log, "a").start_child().join(),
    "forgotten child": lambda log: slow(log, "a").start_child().combine(delay(1000)),
    "tree": lambda log: race(
        parallel(slow(log, "a"), slow(log, "b").timeout(500)),
        run_parallel(1, [race(slow(log, "c"), slow(log, "d"))]),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_cancellation_reaches_every_part(name: str) -> None:
    log: list[str] = []

    def main() -> Any:
        fiber = spawn(perform, PARTS[name](log))
        for _ in range(20):
            yield_now()
        fiber.cancel("enough")
        fiber.join()
        return fiber.outcome

    assert run(main) == CancelledOutcome("enough")
    begun = {line.split()[0] for line in log if line.endswith("begins")}
    ended = {line.split()[0] for line in log if "cancelled" in line}
    assert begun == ended
    assert begun


def test_long_chain_can_be_cancelled_although_it_never_waits() -> None:
    """Each bind asks whether to go on."""
    count = itertools.count()

    def forever(_: Any) -> Work[Any]:
        if next(count) == 1000:
            pyfiber.current().cancel("enough")
        return succeed(None).bind(forever)

    def main() -> Any:
        fiber = spawn(perform, forever(None))
        fiber.join()
        return fiber.outcome

    assert run(main) == CancelledOutcome("enough")
    assert next(count) == 1001


# --- misuse


@pytest.mark.parametrize(
    "make",
    [
        lambda: succeed(1).map(5),
        lambda: succeed(1).bind(None),
        lambda: succeed(1).combine(5),
        lambda: succeed(1).apply(5),
        lambda: succeed(1).catch(5),
        lambda: succeed(1).catch(succeed, 5),
        lambda: succeed(1).map_outcome("x"),
        lambda: succeed(1).traced("x", 5),
        lambda: succeed(1).timeout("1"),
        lambda: fail(5),
        lambda: call(5),
        lambda: delay("1"),
        lambda: of_future(5),
        lambda: parallel(succeed(1), 5),
        lambda: race(5),
        lambda: run_parallel("2", []),
        lambda: run_parallel(True, []),
        lambda: unfold(5, 0),
        lambda: blocking(5),
        lambda: run(perform, 5),
        lambda: blocking(succeed(1).bind(lambda x: x)),
        lambda: blocking(fail(KeyError).catch(lambda x: x)),
        lambda: blocking(unfold(lambda x: x, 0)),
        lambda: blocking(run_parallel(2, [5])),
        lambda: blocking(succeed(5).join()),
    ],
)
def test_wrong_types(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: delay(-1),
        lambda: delay(float("nan")),
        lambda: succeed(1).timeout(-1),
        lambda: race(),
        lambda: run_parallel(0, []),
    ],
)
def test_wrong_values(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


def test_error_names_the_function_that_returned_no_work() -> None:
    def wrong(value: int) -> Any:
        return value

    with pytest.raises(TypeError, match=r"wrong must return a Work, not 'int'"):
        blocking(succeed(1).bind(wrong))


def test_perform_outside_of_a_run() -> None:
    with pytest.raises(FiberError, match="needs a running scheduler"):
        perform(succeed(1))


def test_blocking_inside_of_a_run() -> None:
    assert run(lambda: blocking(delay(0, 5))) == 5
