"""Grains: what can be yielded, who runs when, how a grain ends."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import logging
import pickle
import sys
import threading
import weakref
from collections.abc import Generator, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    Cancelled,
    CancelledOutcome,
    Failed,
    FiberCancelled,
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
    STOPPED,
    Grain,
    GrainState,
    current_grain,
    spawn,
    until,
)
from pyfiber.testing import run as run_virtually


def result_of(start: Any, *args: Any) -> Any:
    """What a grain comes to in a run of its own."""
    return run(lambda: spawn(start, *args).result())


def deadlock(child: Any, step: str) -> str:
    """The text of the DeadlockError of a grain; in a process that has no other thread."""
    program = f"""
        import pyfiber
        from pyfiber.grains import SLEEPING, spawn
        def inner():
            yield SLEEPING
        def stuck():
            {step}
        try:
            pyfiber.run(lambda: spawn(stuck) and None)
        except pyfiber.DeadlockError as exc:
            print(exc)
        """
    text: str = child(program).stdout
    return text


# --- starting


def numbers(*values: Any) -> Generator[Any, Any, Any]:
    for _ in values:
        yield READY
    return values


def test_grain_of_a_function() -> None:
    assert result_of(numbers) == ()


def test_grain_of_a_function_with_arguments() -> None:
    assert result_of(numbers, 1, 2) == (1, 2)


def test_grain_started_with_an_argument() -> None:
    assert run(lambda: Grain(numbers).start(7).result()) == (7,)


def test_grain_given_arguments_twice() -> None:
    with pytest.raises(TypeError, match="given to Grain"):
        run(lambda: Grain(numbers, 1).start(2))


def test_grain_of_a_generator() -> None:
    assert result_of(numbers(3)) == (3,)


def test_grain_of_an_iterable() -> None:
    assert result_of([READY, 0, READY]) is None


def test_grain_of_an_iterator() -> None:
    it = iter([READY, READY])
    assert result_of(it) is None
    assert next(it, "exhausted") == "exhausted"


def test_grain_of_a_function_that_returns_an_iterable() -> None:
    assert result_of(lambda n: [READY] * n, 3) is None


def test_grain_of_a_coroutine_function() -> None:
    async def answer(n: int) -> int:
        return n

    assert result_of(answer, 42) == 42


def test_grain_of_a_coroutine() -> None:
    async def answer() -> int:
        return 42

    assert result_of(answer()) == 42


def test_grain_of_an_awaitable() -> None:
    class Answer:
        def __await__(self) -> Generator[Any, Any, int]:
            yield READY
            return 42

    assert result_of(Answer()) == 42


def test_grain_of_a_python_iterator_with_send() -> None:
    class Echo:
        def __init__(self) -> None:
            self.sent: list[Any] = []

        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            return self.send(None)

        def send(self, value: Any) -> Any:
            self.sent.append(value)
            if len(self.sent) == 3:
                raise StopIteration(self.sent)
            return numbers(len(self.sent))

    assert result_of(Echo()) == [None, (1,), (2,)]


@pytest.mark.parametrize("nonsense", [5, None, 2.5, ...], ids=repr)
def test_grain_of_nonsense(nonsense: Any) -> None:
    with pytest.raises(TypeError, match="a grain is made of"):
        Grain(nonsense)


def test_grain_of_nothing() -> None:
    with pytest.raises(TypeError, match="needs a function"):
        Grain()  # type: ignore[call-overload]


@pytest.mark.parametrize("name", [5, b"x"], ids=repr)
def test_grain_with_a_bad_name(name: Any) -> None:
    with pytest.raises(TypeError, match="name must be a str"):
        Grain(numbers, name=name)


def test_grain_of_a_function_that_returns_nonsense() -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="must return a generator"):
            spawn(lambda: 5)

    run(main)


def test_grain_of_a_function_that_raises_can_be_started_again() -> None:
    tries = []

    def start() -> Generator[Any, Any, int]:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        return numbers()

    def main() -> Any:
        grain = Grain(start)
        with pytest.raises(ValueError, match="not yet"):
            grain.start()
        assert grain.state == "new"
        return grain.start().result()

    assert run(main) == ()


def test_iterable_takes_no_arguments() -> None:
    with pytest.raises(TypeError, match="arguments are for functions"):
        result_of([READY], 1)


def test_start_outside_of_a_run() -> None:
    with pytest.raises(FiberError, match=r"needs a running scheduler"):
        Grain(numbers).start()
    with pytest.raises(FiberError, match=r"needs a running scheduler"):
        spawn(numbers)


def test_start_twice() -> None:
    def main() -> None:
        grain = spawn(numbers)
        with pytest.raises(FiberError, match="started already"):
            grain.start()
        grain.join()
        with pytest.raises(FiberError, match="started already"):
            grain.start()

    run(main)


def test_grain_can_be_made_outside_of_a_run() -> None:
    grain = Grain(numbers, 1)
    assert grain.state == "new"
    assert grain.last_known_state is STOPPED
    assert run(lambda: grain.start().result()) == (1,)


# --- turns


def test_grains_and_fibers_take_turns() -> None:
    order: list[str] = []

    def grain(name: str) -> Generator[Any, Any, None]:
        for i in range(3):
            order.append(f"{name}{i}")
            yield READY

    def fiber(name: str) -> None:
        for i in range(3):
            order.append(f"{name}{i}")
            yield_now()

    def main() -> None:
        spawn(grain, "g")
        spawn_fiber(fiber, "f")
        spawn(grain, "h")

    run(main)
    assert order == ["g0", "f0", "h0", "g1", "f1", "h1", "g2", "f2", "h2"]


def test_yield_without_a_value_is_a_turn() -> None:
    def bare() -> Generator[Any, Any, Any]:
        got = yield
        return got

    assert result_of(bare) is None


def test_busy_grain_does_not_keep_timers_waiting() -> None:
    """In real time: virtual time stands while anything is busy."""
    done: list[bool] = []

    def busy() -> Generator[Any, Any, int]:
        steps = 0
        while not done:
            steps += 1
            yield READY
        return steps

    def main() -> int:
        grain = spawn(busy)
        sleep(0.005)
        done.append(True)
        return grain.result()

    assert run(main) > 1


def test_stopped_ends_the_grain_after_its_finally() -> None:
    order = []

    def stops() -> Generator[Any, Any, int]:
        try:
            yield STOPPED
        finally:
            order.append("finally")
        return 5

    def main() -> Any:
        grain = spawn(stops)
        grain.join()
        return grain.outcome

    assert run(main) == Ok(None)
    assert order == ["finally"]


def test_stopped_ends_the_callers_as_well() -> None:
    order = []

    def inner() -> Generator[Any, Any, None]:
        try:
            yield STOPPED
        finally:
            order.append("inner")

    def outer() -> Generator[Any, Any, None]:
        try:
            yield inner()
        finally:
            order.append("outer")

    assert result_of(outer) is None
    assert order == ["inner", "outer"]


def test_what_a_finally_raises_at_stopped_is_the_outcome() -> None:
    def stops() -> Generator[Any, Any, None]:
        try:
            yield STOPPED
        finally:
            raise KeyError("late")

    with pytest.raises(KeyError, match="late"):
        result_of(stops)


# --- time


def test_seconds() -> None:
    def sleeper(seconds: float) -> Generator[Any, Any, float]:
        start = pyfiber.now()
        yield seconds
        return pyfiber.now() - start

    assert result_of(sleeper, 0.01) >= 0.01
    assert result_of(sleeper, 0) < 1


def test_sleepers_wake_in_order() -> None:
    woken: list[int] = []

    def sleeper(n: int) -> Generator[Any, Any, None]:
        yield n / 1000
        woken.append(n)

    run(lambda: [spawn(sleeper, n) for n in (9, 3, 6)])
    assert woken == [3, 6, 9]


@pytest.mark.parametrize(
    ("seconds", "error"), [(-1, ValueError), (-0.5, ValueError), (float("nan"), ValueError)]
)
def test_bad_seconds_are_raised_at_the_yield(seconds: float, error: type[Exception]) -> None:
    def sleeper() -> Generator[Any, Any, str]:
        try:
            yield seconds
        except error as exc:
            return str(exc)
        return "nothing"

    assert "must not be NaN" in result_of(sleeper) or "negative" in result_of(sleeper)


def test_endless_sleep_is_a_deadlock(child: Any) -> None:
    assert "has yielded inf" in deadlock(child, "yield float('inf')")


# --- nonsense


@pytest.mark.parametrize("nonsense", [True, "a", {}, [1], 1j, ...], ids=repr)
def test_nonsense_is_raised_at_the_yield(nonsense: Any) -> None:
    def grain() -> Generator[Any, Any, str]:
        try:
            yield nonsense
        except TypeError as exc:
            return str(exc)
        return "nothing"

    assert f"not '{type(nonsense).__name__}'" in result_of(grain)


def test_nonsense_of_a_plain_iterator_ends_the_grain() -> None:
    with pytest.raises(TypeError, match="not 'str'"):
        result_of("abc")


def test_grain_that_insists_on_nonsense_starves_nobody() -> None:
    def insists() -> Generator[Any, Any, None]:
        while True:
            with contextlib.suppress(TypeError):
                yield {}

    def main() -> str:
        grain = spawn(insists)
        for _ in range(10):
            yield_now()
        grain.cancel()
        grain.join()
        return grain.state

    assert run(main) == "done"


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
        errors.append(other.exception(1))
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
        waits = [spawn(lambda: wait_for(first)) for _ in range(3)]
        return [grain.result() for grain in waits]

    def wait_for(grain: Grain[Any]) -> Generator[Any, Any, Any]:
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


# --- fibers and futures


def test_grain_waits_for_a_fiber() -> None:
    def grain() -> Generator[Any, Any, Any]:
        first = spawn_fiber(lambda: sleep(0.001) or "slow")
        second = spawn_fiber(lambda: "fast")
        return (yield first), (yield second)

    assert result_of(grain) == ("slow", "fast")


def test_exception_of_a_fiber_is_raised_in_the_grain() -> None:
    def fails() -> None:
        raise KeyError("fiber")

    def grain() -> Generator[Any, Any, str]:
        try:
            yield spawn_fiber(fails)
        except KeyError:
            return "caught"
        return "nothing"

    assert result_of(grain) == "caught"


def test_cancelled_fiber_is_raised_in_the_grain() -> None:
    def grain() -> Generator[Any, Any, Any]:
        fiber = spawn_fiber(sleep, 10)
        fiber.cancel("enough")
        try:
            yield fiber
        except FiberCancelled as exc:
            return exc.reason

    assert result_of(grain) == "enough"


def test_fiber_waits_for_a_grain() -> None:
    def main() -> tuple[bool, bool, Any]:
        def slow() -> Generator[Any, Any, int]:
            yield 10
            return 3

        grain = spawn(slow)
        return grain.join(0), grain.join(), grain.result()

    assert run_virtually(main) == (False, True, 3)


def test_raw_fiber_cannot_be_waited_for() -> None:
    def grain() -> Generator[Any, Any, str]:
        try:
            yield pyfiber.Fiber(lambda: None)
        except FiberError as exc:
            return str(exc)
        return "nothing"

    assert "not started on a scheduler" in result_of(grain)


def test_future_that_is_done() -> None:
    future: Future[int] = Future()
    future.set_result(5)

    def grain() -> Generator[Any, Any, Any]:
        return (yield future)

    assert result_of(grain) == 5


def test_future_completed_by_a_thread() -> None:
    future: Future[str] = Future()

    def grain() -> Generator[Any, Any, Any]:
        thread.start()
        return (yield future)

    thread = threading.Thread(target=future.set_result, args=("from a thread",))
    assert result_of(grain) == "from a thread"
    thread.join()


def test_future_that_fails() -> None:
    future: Future[int] = Future()
    future.set_exception(KeyError("future"))

    def grain() -> Generator[Any, Any, str]:
        try:
            yield future
        except KeyError:
            return "caught"
        return "nothing"

    assert result_of(grain) == "caught"


def test_future_that_is_cancelled() -> None:
    future: Future[int] = Future()
    future.cancel()

    def grain() -> Generator[Any, Any, str]:
        try:
            yield future
        except CancelledError:
            return "caught"
        return "nothing"

    assert result_of(grain) == "caught"


def test_future_done_after_the_grain_was_cancelled() -> None:
    future: Future[int] = Future()

    def grain() -> Generator[Any, Any, Any]:
        try:
            yield future
        finally:
            future.set_result(1)

    def main() -> Any:
        waits = spawn(grain)
        yield_now()
        waits.cancel()
        waits.join()
        return waits.outcome

    assert run(main) == CancelledOutcome(None)


def test_future_whose_add_done_callback_raises() -> None:
    class Broken:
        def add_done_callback(self, fn: Any) -> None:
            raise LookupError("broken")

    class Rude(Broken):
        def add_done_callback(self, fn: Any) -> None:
            fn(self)
            super().add_done_callback(fn)

    def grain(future: Any) -> Generator[Any, Any, str]:
        try:
            yield future
        except LookupError as exc:
            return str(exc)
        return "nothing"

    assert result_of(grain, Broken()) == "broken"
    assert result_of(grain, Rude()) == "broken"


def test_waiting_for_a_future_that_nobody_completes_is_no_deadlock() -> None:
    """A future is completed from outside; the loop waits until something else ends the run."""
    future: Future[int] = Future()

    def grain() -> Generator[Any, Any, Any]:
        yield future

    def main() -> None:
        waits = spawn(grain)
        assert not waits.join(0.005)
        waits.cancel()

    run(main)


# --- events and channels


def test_grain_waits_for_an_event() -> None:
    def grain(event: pyfiber.Event) -> Generator[Any, Any, Any]:
        first = yield event
        second = yield event
        return first, second

    def main() -> list[Any]:
        event = pyfiber.Event()
        grains = [spawn(grain, event) for _ in range(3)]
        sleep(1)
        assert all(each.last_known_state is SLEEPING for each in grains)
        assert event._waiters() == grains
        event.set()
        return [each.result() for each in grains]

    assert run_virtually(main) == [(True, True)] * 3


def test_event_set_by_another_thread() -> None:
    def main() -> Any:
        event = pyfiber.Event()
        grain = spawn(lambda: iter([event]))
        thread = threading.Timer(0.005, event.set)
        thread.start()
        grain.join()
        thread.join()
        return grain.outcome

    assert run(main) == Ok(None)


def test_cancelled_while_it_waits_for_an_event_that_a_thread_sets() -> None:
    """The wake-up that a thread has posted may come when the grain is gone."""

    def main() -> None:
        for _ in range(50):
            event = pyfiber.Event()
            grain = spawn(lambda event=event: iter([event]))
            yield_now()
            thread = threading.Thread(target=event.set)
            thread.start()
            grain.cancel()
            del grain
            yield_now()
            thread.join()

    run(main)


def test_grains_talk_through_a_channel() -> None:
    def sender(channel: pyfiber.Channel[int]) -> Generator[Any, Any, None]:
        for n in range(5):
            yield channel.sending(n)
        channel.close()

    def receiver(channel: pyfiber.Channel[int]) -> Generator[Any, Any, list[int]]:
        got: list[int] = []
        while True:
            try:
                got.append((yield channel.receiving()))
            except pyfiber.ChannelClosed:
                return got

    def main(capacity: int) -> list[int]:
        channel: pyfiber.Channel[int] = pyfiber.Channel(capacity)
        grain = spawn(receiver, channel)
        spawn(sender, channel)
        result: list[int] = grain.result()
        return result

    for capacity in (0, 1, 10):
        assert run(main, capacity) == [0, 1, 2, 3, 4]


def test_grain_and_fiber_talk_through_a_channel() -> None:
    def echo(
        inbox: pyfiber.Channel[int], outbox: pyfiber.Channel[int]
    ) -> Generator[Any, Any, None]:
        with contextlib.suppress(pyfiber.ChannelClosed):
            while True:
                yield outbox.sending(-(yield inbox.receiving()))

    def main() -> list[int]:
        there: pyfiber.Channel[int] = pyfiber.Channel()
        back: pyfiber.Channel[int] = pyfiber.Channel()
        spawn(echo, there, back)
        got = []
        for n in range(5):
            there.send(n)
            got.append(back.receive())
        there.close()
        return got

    assert run(main) == [0, -1, -2, -3, -4]


def test_coroutine_receives() -> None:
    async def receiver(channel: pyfiber.Channel[int]) -> int:
        return await until(channel.receiving()) + await until(channel.receiving())

    def main() -> int:
        channel: pyfiber.Channel[int] = pyfiber.Channel()
        grain = spawn(receiver, channel)
        channel.send(1)
        channel.send(2)
        return grain.result()

    assert run(main) == 3


def test_value_received_before_the_cancellation_is_delivered() -> None:
    got: list[int] = []

    def receiver(channel: pyfiber.Channel[int]) -> Generator[Any, Any, None]:
        got.append((yield channel.receiving()))
        yield channel.receiving()

    def main() -> Any:
        channel: pyfiber.Channel[int] = pyfiber.Channel()
        grain = spawn(receiver, channel)
        yield_now()
        channel.send(5)
        grain.cancel()
        grain.join()
        return grain.outcome

    assert run(main) == CancelledOutcome(None)
    assert got == [5]


def test_cancelled_receiver_and_sender_take_and_leave_nothing() -> None:
    def main() -> int:
        channel: pyfiber.Channel[int] = pyfiber.Channel()
        waits = [spawn(lambda: iter([channel.receiving()]))]
        yield_now()
        waits[0].cancel()
        waits.append(spawn(lambda: iter([channel.sending(1)])))
        sleep(1)
        waits[1].cancel()
        sleep(1)
        assert channel._waiters() == []
        spawn(lambda: iter([channel.sending(2)]))
        return channel.receive()

    assert run_virtually(main) == 2


def test_value_of_an_abandoned_receiver_goes_back() -> None:
    channel: pyfiber.Channel[int] = pyfiber.Channel()
    scheduler = pyfiber.Scheduler()
    scheduler.spawn(lambda: spawn(lambda: iter([channel.receiving()])) and None)
    for _ in range(3):
        scheduler.run_once()
    channel.send(5)
    scheduler.close()
    assert run(channel.receive, 0) == 5


# --- predicates


def test_predicate_is_asked_until_it_is_true() -> None:
    asked: list[int] = []

    def grain() -> Generator[Any, Any, Any]:
        return (yield lambda: asked.append(1) or (len(asked) >= 3 and "yes"))

    def main() -> Any:
        waits = spawn(grain)
        for _ in range(5):
            yield_now()
        return waits.result()

    assert run(main) == "yes"
    assert len(asked) == 3


def test_predicate_answers_with_states() -> None:
    answers = [SLEEPING, SLEEPING, READY]

    def grain() -> Generator[Any, Any, Any]:
        got = yield lambda: answers.pop(0)
        return got, "went on"

    def main() -> Any:
        waits = spawn(grain)
        sleep(1)
        sleep(1)
        return waits.result()

    assert run_virtually(main) == (None, "went on")


def test_predicate_says_stopped() -> None:
    order = []

    def grain() -> Generator[Any, Any, str]:
        try:
            yield lambda: STOPPED
        finally:
            order.append("finally")
        return "went on"

    assert result_of(grain) is None
    assert order == ["finally"]


def test_predicate_that_raises() -> None:
    def grain() -> Generator[Any, Any, str]:
        try:
            yield lambda: 1 / 0
        except ZeroDivisionError:
            return "caught"
        return "nothing"

    assert result_of(grain) == "caught"


def test_predicate_is_not_polled_while_nothing_happens() -> None:
    """In real time: it is about a loop that blocks."""
    asked: list[float] = []
    flag: list[bool] = []

    def grain() -> Generator[Any, Any, None]:
        yield lambda: asked.append(pyfiber.now()) or bool(flag)

    def main() -> None:
        waits = spawn(grain)
        sleep(0.05)
        flag.append(True)
        waits.join()

    run(main)
    assert len(asked) <= 4


def test_predicate_is_asked_while_others_are_busy() -> None:
    asked: list[int] = []
    stop: list[bool] = []

    def busy() -> None:
        while not stop:
            yield_now()

    def grain() -> Generator[Any, Any, None]:
        yield lambda: asked.append(1) or len(asked) == 20
        stop.append(True)

    def main() -> None:
        spawn_fiber(busy)
        spawn(grain)

    run(main)
    assert len(asked) == 20


def test_predicate_is_asked_when_a_timer_makes_another_busy() -> None:
    """The asker sleeps when a timer wakes a fiber that never parks again."""
    stop: list[bool] = []
    flag: list[bool] = []

    def busy() -> None:
        sleep(5)
        flag.append(True)
        while not stop:
            yield_now()

    def grain() -> Generator[Any, Any, None]:
        yield lambda: bool(flag)
        stop.append(True)

    def main() -> None:
        spawn(grain)
        spawn_fiber(busy)

    run_virtually(main)


def test_predicate_that_is_never_true_is_a_deadlock(child: Any) -> None:
    assert "has yielded <function" in deadlock(child, "yield lambda: False")


def test_predicate_that_cancels_its_own_grain() -> None:
    def grain() -> Generator[Any, Any, None]:
        me = current_grain()
        assert me is not None
        yield lambda: me.cancel("by itself")

    def main() -> Any:
        waits = spawn(grain)
        waits.join()
        return waits.outcome

    assert run(main) == CancelledOutcome("by itself")


def test_predicate_that_blocks() -> None:
    order: list[str] = []

    def slow() -> bool:
        sleep(5)
        order.append("answer")
        return True

    def grain() -> Generator[Any, Any, None]:
        yield slow

    def main() -> None:
        waits = spawn(grain)
        spawn(lambda: iter([READY, READY])).join()
        order.append("others")
        waits.join()

    run_virtually(main)
    assert order == ["others", "answer"]


def test_many_predicates_are_each_asked_once_a_round() -> None:
    asked = [0] * 50
    turn: list[int] = []

    def grain(n: int) -> Generator[Any, Any, None]:
        def mine() -> bool:
            asked[n] += 1
            return len(turn) > n

        yield mine

    def main() -> None:
        grains = [spawn(grain, n) for n in range(50)]
        while not all(each.done() for each in grains):
            turn.append(1)
            yield_now()

    run(main)
    assert asked == sorted(asked)


# --- parking


def test_sleeping_waits_for_unpark() -> None:
    def grain() -> Generator[Any, Any, Any]:
        return (yield SLEEPING)

    def main() -> tuple[Any, ...]:
        waits = spawn(grain)
        yield_now()
        return waits.last_known_state, waits.unpark("now"), waits.unpark("late"), waits.result()

    assert run(main) == (SLEEPING, True, False, "now")


def test_early_unpark_is_not_lost() -> None:
    def grain() -> Generator[Any, Any, Any]:
        yield READY
        return (yield SLEEPING)

    def main() -> Any:
        waits = spawn(grain)
        waits.unpark("early")
        return waits.result()

    assert run(main) == "early"


def test_unpark_from_a_thread() -> None:
    def grain() -> Generator[Any, Any, Any]:
        return (yield SLEEPING)

    def main() -> Any:
        waits = spawn(grain)
        thread = threading.Thread(target=waits.unpark, args=("thread",))
        thread.start()
        value = waits.result()
        thread.join()
        return value

    assert run(main) == "thread"


def test_unpark_of_a_grain_that_does_not_run() -> None:
    with pytest.raises(FiberError, match="has not been started"):
        Grain(numbers).unpark()

    def main() -> None:
        grain = spawn(numbers)
        grain.join()
        with pytest.raises(FiberError, match="has finished"):
            grain.unpark()

    run(main)


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


# --- cancelling


def test_cancelled_before_its_first_turn_never_runs() -> None:
    ran = []

    def main() -> Any:
        grain = spawn(lambda: iter(ran.append(1) or [READY] for _ in range(1)))
        assert grain.cancel("early")
        grain.join()
        assert not grain.cancel()
        return grain.outcome, grain.cancelled(), ran

    assert run(main) == (CancelledOutcome("early"), True, [])


@pytest.mark.parametrize(
    "wait",
    [READY, 10, SLEEPING, lambda: False, None],
    ids=["ready", "seconds", "sleeping", "predicate", "none"],
)
def test_cancelled_at_every_kind_of_wait(wait: Any) -> None:
    order: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        try:
            while True:
                yield wait
        except Cancelled as exc:
            order.append((exc.reason, exc.by))
            raise

    def main() -> Any:
        waits = spawn(grain)
        yield_now()
        waits.cancel("reason")
        waits.join()
        return waits.outcome, current()

    outcome, by = run(main)
    assert outcome == CancelledOutcome("reason")
    assert order == [("reason", by)]


def test_cancellation_is_raised_at_every_yield() -> None:
    count = []

    def stubborn() -> Generator[Any, Any, str]:
        for wait in (10, SLEEPING, lambda: False, READY):
            try:
                yield wait
            except Cancelled:
                count.append(wait)
        return "done"

    def main() -> Any:
        grain = spawn(stubborn)
        yield_now()
        grain.cancel()
        return grain.result()

    assert run(main) == "done"
    assert len(count) == 4


def test_result_that_came_first_is_delivered() -> None:
    got = []

    def grain() -> Generator[Any, Any, None]:
        got.append((yield SLEEPING))
        yield READY

    def main() -> Any:
        waits = spawn(grain)
        yield_now()
        waits.unpark("value")
        waits.cancel()
        waits.join()
        return waits.outcome

    assert run(main) == CancelledOutcome(None)
    assert got == ["value"]


def test_cancelling_the_caller_cancels_the_callee_first() -> None:
    order = []

    def inner() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        except Cancelled as exc:
            order.append(f"inner {exc.reason}")
            raise

    def middle() -> Generator[Any, Any, None]:
        yield Grain(inner)

    def outer() -> Generator[Any, Any, None]:
        try:
            yield Grain(middle)
        except Cancelled as exc:
            order.append(f"outer {exc.reason}")
            raise

    def main() -> Any:
        grain = spawn(outer)
        for _ in range(5):
            yield_now()
        grain.cancel("tree")
        grain.join()
        return grain.outcome

    assert run(main) == CancelledOutcome("tree")
    assert order == ["inner tree", "outer tree"]


def test_cancelling_who_waits_leaves_the_other_alone() -> None:
    def slow() -> Generator[Any, Any, int]:
        yield 5
        return 1

    def waits(grain: Any) -> Generator[Any, Any, Any]:
        return (yield grain)

    def main() -> Any:
        target = spawn(slow)
        waiter = spawn(waits, target)
        yield_now()
        yield_now()
        waiter.cancel()
        waiter.join()
        return waiter.cancelled(), target.result()

    assert run_virtually(main) == (True, 1)


def test_long_chain_of_called_grains_is_cancelled() -> None:
    def down(n: int) -> Generator[Any, Any, None]:
        yield SLEEPING if n == 0 else Grain(down, n - 1)

    def main() -> Any:
        grain = spawn(down, 20_000)
        for _ in range(20_050):
            yield_now()
        grain.cancel()
        grain.join()
        return grain.outcome

    assert run(main) == CancelledOutcome(None)


def test_cancel_from_a_thread() -> None:
    def main() -> Any:
        grain = spawn(lambda: iter([10]))
        thread = threading.Thread(target=grain.cancel, args=("thread",))
        thread.start()
        grain.join()
        thread.join()
        return grain.outcome

    assert run(main) == CancelledOutcome("thread")


def test_cancel_of_a_grain_that_was_never_started() -> None:
    grain = Grain(numbers)
    assert grain.cancel("never")
    assert grain.done()
    assert grain.outcome == CancelledOutcome("never")
    with pytest.raises(FiberCancelled):
        grain.result()


# --- ends


def test_outcomes() -> None:
    def fails() -> Generator[Any, Any, None]:
        yield READY
        raise error

    error = KeyError("x")

    def main() -> tuple[Any, ...]:
        good, bad = spawn(numbers, 1), spawn(fails)
        assert good.outcome is None
        good.join()
        bad.join()
        return good.outcome, bad.outcome, good.exception(), bad.exception()

    assert run(main) == (Ok((1,)), Failed(error), None, error)


def test_result_times_out() -> None:
    def main() -> None:
        grain = spawn(lambda: iter([10]))
        with pytest.raises(TimeoutError):
            grain.result(0)
        with pytest.raises(TimeoutError):
            grain.exception(timeout=1)
        assert not grain.join(1)
        grain.cancel()

    run_virtually(main)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), ("1", TypeError)])
def test_bad_timeouts(timeout: Any, error: type[Exception]) -> None:
    def main() -> None:
        grain = spawn(numbers)
        for wait in (grain.join, grain.result, grain.exception):
            with pytest.raises(error):
                wait(timeout)

    run(main)


def test_waiting_for_an_unstarted_grain() -> None:
    def main() -> None:
        with pytest.raises(FiberError, match="was not started"):
            Grain(numbers).join()

    run(main)


def test_joined_by_another_thread() -> None:
    results: list[Any] = []

    def main() -> None:
        grain = spawn(lambda: iter([0.005]))
        thread = threading.Thread(target=lambda: results.append((grain.join(5), grain.result())))
        thread.start()
        grain.join()
        thread.join()

    run(main)
    assert results == [(True, None)]


def test_done_callbacks() -> None:
    got: list[Any] = []

    def main() -> None:
        grain = spawn(numbers)
        grain.add_done_callback(got.append)
        grain.join()
        grain.add_done_callback(got.append)
        assert got == [grain, grain]
        with pytest.raises(TypeError, match="must be callable"):
            grain.add_done_callback(5)  # type: ignore[arg-type]

    run(main)


def test_done_callback_must_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        grain = spawn(numbers)
        grain.add_done_callback(lambda _: sleep(0))
        grain.join()

    with caplog.at_level(logging.ERROR, "pyfiber"):
        run(main)
    assert "a done-callback of" in caplog.text


def test_failure_nobody_looked_at_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Generator[Any, Any, None]:
        yield READY
        raise KeyError("lost")

    with caplog.at_level(logging.ERROR, "pyfiber"):
        run(lambda: spawn(fails) and None)
        gc.collect()
    assert "fails" in caplog.text
    assert "lost" in caplog.text


def test_run_waits_for_grains() -> None:
    done: list[int] = []

    def slow() -> Generator[Any, Any, None]:
        yield 5
        done.append(1)

    run_virtually(lambda: spawn(slow) and None)
    assert done == [1]


def test_failing_main_cancels_grains() -> None:
    order = []

    def grain() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        except Cancelled as exc:
            order.append(exc.reason)
            raise

    def main() -> None:
        spawn(grain)
        yield_now()
        raise KeyError("main")

    with pytest.raises(KeyError):
        run(main)
    assert order == ["another fiber ended the run"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_grain_ends_the_run(kind: type[BaseException]) -> None:
    def grain() -> Generator[Any, Any, None]:
        yield READY
        raise kind

    def main() -> None:
        spawn(grain)
        sleep(10)

    with pytest.raises(kind):
        run(main)


def test_deadlock_report_lists_grains(child: Any) -> None:
    text = deadlock(child, "yield inner()")
    assert text.startswith("1 grain waits and nothing can wake one")
    assert "has yielded SLEEPING" in text
    assert "in stuck" in text
    assert "in inner" in text


def test_grain_left_at_the_end_is_closed() -> None:
    order = []

    def grain() -> Generator[Any, Any, None]:
        while True:
            try:
                yield SLEEPING
            except Cancelled:
                order.append("no")
                if len(order) > 2:
                    raise

    def main() -> None:
        spawn(grain)
        yield_now()
        raise KeyError("main")

    with pytest.raises(KeyError):
        run(main)
    assert order == ["no"] * 3


# --- looking at one


def test_states() -> None:
    seen: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        me = current_grain()
        assert me is not None
        seen.append((me.state, me.last_known_state))
        yield 1

    def main() -> None:
        one = Grain(grain)
        seen.append((one.state, one.last_known_state, one.suspended_state))
        one.start()
        seen.append((one.state, one.last_known_state))
        yield_now()
        seen.append((one.state, one.last_known_state, one.suspended_state))
        one.join()
        seen.append((one.state, one.last_known_state, one.suspended_state))

    run_virtually(main)
    assert seen == [
        ("new", STOPPED, None),
        ("ready", READY),
        ("running", READY),
        ("parked", SLEEPING, 1),
        ("done", STOPPED, None),
    ]


def test_names() -> None:
    async def coroutine() -> None: ...

    assert Grain(numbers).name == "numbers"
    assert Grain(numbers()).name == "numbers"
    assert Grain([READY]).name == "list"
    assert Grain(numbers, name="mine").name == "mine"
    made = coroutine()
    assert Grain(made).name.endswith("coroutine")
    made.close()

    def main() -> str:
        grain = spawn(numbers)
        before = repr(grain)
        grain.name = "other"
        with pytest.raises(TypeError):
            grain.name = 5  # type: ignore[assignment]
        with pytest.raises(TypeError):
            del grain.name
        grain.join()
        assert "'other' done" in repr(grain)
        return before

    assert run(main).startswith("<pyfiber.grains.Grain 'numbers' ready at")


def test_stack_shows_every_generator() -> None:
    def inner() -> Generator[Any, Any, None]:
        yield SLEEPING

    def middle() -> Generator[Any, Any, None]:
        yield from inner()

    def outer() -> Generator[Any, Any, None]:
        yield middle()

    async def awaits() -> None:
        await deeper()

    async def deeper() -> None:
        await until(SLEEPING)

    def main() -> list[list[str]]:
        grains = [spawn(outer), spawn(awaits)]
        yield_now()
        names = [[entry.name for entry in grain.stack()] for grain in grains]
        for grain in grains:
            grain.unpark()
        return names

    assert run(main) == [["outer", "middle", "inner"], ["awaits", "deeper"]]


def test_grain_cannot_be_copied() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(Grain(numbers))


def test_grain_cannot_be_subclassed() -> None:
    with pytest.raises(TypeError):
        type("Sub", (Grain,), {})


def test_grain_state_has_three_members() -> None:
    assert list(GrainState) == [READY, SLEEPING, STOPPED]
    assert repr(READY) == "READY"


# --- contexts


def test_each_grain_has_a_context_of_its_own() -> None:
    var = contextvars.ContextVar("var", default="default")
    seen: dict[str, list[str]] = {}

    def grain(name: str) -> Generator[Any, Any, None]:
        seen[name] = [var.get()]
        var.set(name)
        for _ in range(3):
            yield READY
            seen[name].append(var.get())

    def main() -> str:
        var.set("main")
        first, second = spawn(grain, "a"), spawn(grain, "b")
        var.set("changed")
        first.join()
        second.join()
        return var.get()

    assert run(main) == "changed"
    assert seen == {name: ["main", name, name, name] for name in "ab"}


def test_predicates_are_asked_in_the_grains_context() -> None:
    var = contextvars.ContextVar("var", default="default")

    def grain() -> Generator[Any, Any, Any]:
        var.set("mine")
        return (yield lambda: var.get())

    assert result_of(grain) == "mine"


# --- memory


def test_dropped_grain_is_freed() -> None:
    grain = Grain(numbers)
    ref = weakref.ref(grain)
    del grain
    assert ref() is None


def test_finished_grain_is_freed() -> None:
    refs: list[Any] = []

    def main() -> None:
        grain = spawn(numbers)
        refs.append(weakref.ref(grain))
        grain.join()

    run(main)
    assert refs[0]() is None


def test_cycle_through_a_grain_is_collected() -> None:
    holder: list[Any] = []

    def grain(hold: list[Any]) -> Generator[Any, Any, None]:
        yield READY

    one = Grain(grain, holder)
    holder.append(one)
    ref = weakref.ref(one)
    del one, holder
    gc.collect()
    assert ref() is None


def test_scheduler_dropped_with_grains_in_it_closes_them() -> None:
    order = []

    def grain() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        finally:
            order.append("closed")

    def futures() -> Generator[Any, Any, None]:
        try:
            yield Future()
        finally:
            order.append("closed")

    scheduler = pyfiber.Scheduler()
    scheduler.spawn(lambda: [spawn(grain), spawn(futures), spawn(lambda: iter([10]))])
    for _ in range(4):
        scheduler.run_once()
    del scheduler
    gc.collect()
    assert order == ["closed"] * 2


def test_hosted_scheduler_runs_grains() -> None:
    got: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        yield READY
        got.append((yield lambda: len(got) or "asked"))

    scheduler = pyfiber.Scheduler()
    scheduler.spawn(lambda: spawn(grain) and None)
    while scheduler.run_once(timeout=0.01):
        pass
    scheduler.close()
    assert got == ["asked"]


def test_grain_is_small() -> None:
    def waits() -> Generator[Any, Any, None]:
        yield 1000

    generator = waits()
    assert sys.getsizeof(Grain(generator)) + sys.getsizeof(generator) <= 500


def test_grains_at_interpreter_exit(child: Any) -> None:
    done = child(
        """
        import pyfiber
        from pyfiber.grains import SLEEPING, spawn
        def grain():
            try:
                yield SLEEPING
            finally:
                print("closed")
        scheduler = pyfiber.Scheduler()
        scheduler.spawn(lambda: spawn(grain) and None)
        scheduler.run_once(); scheduler.run_once(); scheduler.run_once()
        """
    )
    assert done.stdout == "closed\n"


def test_import_of_pyfiber_leaves_grains_out(child: Any) -> None:
    done = child(
        """
        import sys, pyfiber
        print("pyfiber.grains" in sys.modules, "enum" in sys.modules, "typing" in sys.modules)
        print(pyfiber.grains.READY)
        """
    )
    assert done.stdout.splitlines()[1] == "GrainState.READY"
    assert done.stdout.split()[0] == "False"
