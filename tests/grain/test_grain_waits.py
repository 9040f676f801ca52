"""What a grain waits for: fibers, futures, events, channels, predicates, unpark()."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    CancelledOutcome,
    FiberCancelled,
    FiberError,
    Ok,
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
    GrainPool,
    current_grain,
    spawn,
    until,
)
from pyfiber.testing import run as run_virtually
from tests.grain.grain_makers import deadlock, numbers, result_of

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
        return waits.last_known_state, waits.unpark("now"), waits.unpark(), waits.result()

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


def test_second_unpark_of_a_grain_from_a_thread_is_told() -> None:
    def grain() -> Generator[Any, Any, Any]:
        return (yield SLEEPING)

    def main() -> Any:
        waits = spawn(grain)
        for value in "first", "second":
            thread = threading.Thread(target=waits.unpark, args=(value,))
            thread.start()
            thread.join()
        with pytest.warns(RuntimeWarning, match=r"unpark\('second'\) is dropped.*Queue"):
            return waits.result()

    assert run(main) == "first"


def test_unpark_of_a_finished_grain() -> None:
    def main() -> None:
        grain = spawn(numbers)
        grain.join()
        with pytest.raises(FiberError, match="has finished"):
            grain.unpark()

    run(main)


def test_unpark_before_the_start_is_not_lost() -> None:
    """In a pool with a thread of its own nobody can tell whether a grain has come there yet."""

    def waits() -> Generator[Any, Any, Any]:
        return (yield SLEEPING)

    def main() -> Any:
        grain = Grain(waits)
        assert grain.unpark("early")
        assert not grain.unpark()
        with pytest.warns(RuntimeWarning, match=r"unpark\('second'\) is dropped.*Queue"):
            assert not grain.unpark("second")
        return grain.start().result()

    assert run(main) == "early"
    with GrainPool() as pool:
        grains = [pool.queue(waits) for _ in range(50)]
        for n, grain in enumerate(grains):
            grain.unpark(n)
    assert [grain.result() for grain in grains] == list(range(50))


def test_unpark_of_a_dequeued_grain_is_not_lost() -> None:
    def waits() -> Generator[Any, Any, Any]:
        return (yield SLEEPING)

    def main() -> Any:
        pool = GrainPool().start()
        grain = pool.queue(waits)
        yield_now()
        pool.dequeue(grain)
        grain.unpark("value")
        pool.queue(grain)
        return grain.result()

    assert run(main) == "value"
