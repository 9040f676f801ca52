"""select(): what its users see; test_select_model.py has the interleavings."""

from __future__ import annotations

import copy
import gc
import math
import pickle
import threading
import weakref

import pytest

from pyfiber import (
    Cancelled,
    Channel,
    ChannelClosed,
    Fiber,
    FiberError,
    Joined,
    Lock,
    Received,
    Receiving,
    Scheduler,
    Sending,
    Sent,
    current,
    now,
    run,
    select,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import run as run_virtually
from tests.support.threads import PATIENCE, in_thread


def test_select_matches():
    def main():
        numbers, words, worker = Channel(1), Channel(1), spawn(sleep, 0)
        numbers.send(3)
        seen = []
        for _ in range(3):
            match select(numbers.receiving(), words.sending("x"), worker):
                case Received(channel, value):
                    seen.append((channel is numbers, value))
                case Sent(channel=channel, index=1):
                    seen.append(channel is words)
                case Joined(fiber):
                    seen.append(fiber is worker)
        assert seen == [(True, 3), True, True]

    run(main)


def test_select_first_possible_case_is_taken_alone():
    a, b = Channel(1), Channel(1)
    a.send(1)
    b.send(2)
    result = select(b.receiving(), a.receiving())
    assert (result.channel, result.value, result.index) == (b, 2, 0)
    assert (len(a), len(b)) == (1, 0)


def test_select_waits_in_all_and_leaves_all():
    def main():
        channels = [Channel() for _ in range(12)]
        fiber = spawn(select, *(channel.receiving() for channel in channels))
        yield_now()
        assert all(channel._waiters() == [fiber] for channel in channels)
        assert fiber.waiting_on[3].__class__ is Receiving
        channels[7].send("x")
        assert all(channel._waiters() == [] for channel in channels)
        result = fiber.result()
        assert (result.channel, result.value, result.index) == (channels[7], "x", 7)

    run(main)


def test_select_with_select():
    def main():
        channel, other = Channel(), Channel()
        fiber = spawn(select, other.receiving(), channel.sending("x"))
        yield_now()
        assert select(channel.receiving(), other.receiving()).value == "x"
        assert fiber.result().index == 1
        assert other._waiters() == []

    run(main)


def test_select_timeout():
    def main():
        channel = Channel()
        assert select(channel.receiving(), timeout=10) is None
        assert now() == 10
        assert select(channel.receiving(), channel.sending(1), timeout=0) is None
        assert channel._waiters() == []

    run_virtually(main)


def test_select_the_same_channel_twice():
    """Both ways at once: it serves others, never itself."""

    def main():
        channel = Channel()
        fiber = spawn(select, channel.receiving(), channel.sending("mine"), channel.receiving())
        yield_now()
        assert not fiber.done()
        channel.send("yours")
        assert (fiber.result().value, fiber.result().index) == ("yours", 0)
        fiber = spawn(select, channel.receiving(), channel.sending("mine"))
        yield_now()
        assert channel.receive() == "mine"
        assert isinstance(fiber.result(), Sent)
        assert channel._waiters() == []

    run(main)


def test_select_cancelled_did_nothing():
    def main():
        a, b = Channel(), Channel()
        fiber = spawn(select, a.receiving(), b.sending(1))
        yield_now()
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()
        assert a._waiters() == b._waiters() == []

    run(main)


def test_select_value_beats_a_cancellation():
    def main():
        a, b, got = Channel(), Channel(), []

        def body():
            got.append(select(a.receiving(), b.receiving()).value)
            with pytest.raises(Cancelled):
                select(a.receiving())

        fiber = spawn(body)
        yield_now()
        b.send(5)
        fiber.cancel()
        fiber.join()
        assert got == [5]

    run(main)


def test_select_value_given_to_an_unwound_fiber_goes_back():
    a, b = Channel(), Channel()
    scheduler = Scheduler()
    scheduler.spawn(select, a.receiving(), b.receiving())
    scheduler.run_once()
    b.send(5, timeout=0)
    scheduler.close()
    assert b.receive(timeout=0) == 5


def test_select_closed_channel_is_an_error_that_names_it():
    def main():
        a, b = Channel(), Channel(1)
        b.close()
        with pytest.raises(ChannelClosed) as caught:
            select(a.receiving(), b.receiving())
        assert caught.value.channel is b
        with pytest.raises(ChannelClosed):
            select(a.receiving(), b.sending(1))
        fiber = spawn(select, a.receiving(), current())
        yield_now()
        a.close()
        assert fiber.exception(timeout=PATIENCE).channel is a

    run(main)


def test_select_fiber_that_failed_is_joined_all_the_same():
    def main():
        fiber = spawn(lambda: 1 // 0)
        result = select(Channel().receiving(), fiber)
        assert isinstance(result, Joined)
        with pytest.raises(ZeroDivisionError):
            result.fiber.result()
        assert select(fiber).index == 0

    run(main)


def test_select_fibers_first_to_end():
    def main():
        slow, quick = spawn(sleep, 1), spawn(sleep, 0.001)
        assert select(slow, quick).fiber is quick
        slow.cancel()

    run(main)


@pytest.mark.parametrize("thing", [Channel(), Lock(), 3, None, "x", Channel])
def test_select_foreign_object_is_refused(thing):
    channel = Channel(1)
    channel.send(1)
    with pytest.raises(TypeError, match="receiving"):
        select(channel.receiving(), thing)
    assert len(channel) == 1, "nothing was done"


def test_select_without_a_case_is_refused():
    with pytest.raises(TypeError, match="case"):
        select()
    with pytest.raises(TypeError, match="case"):
        select(timeout=1)
    with pytest.raises(TypeError):
        select(Channel().receiving(), wait=1)


@pytest.mark.parametrize("timeout", [-1, math.nan])
def test_select_bad_timeout_is_refused(timeout):
    channel = Channel(1)
    with pytest.raises(ValueError, match="timeout"):
        select(channel.sending(1), timeout=timeout)
    assert len(channel) == 0
    with pytest.raises(TypeError):
        select(channel.sending(1), timeout="x")


def test_select_fiber_that_cannot_be_joined_is_refused():
    with pytest.raises(FiberError, match="not started"):
        select(Fiber(print))

    def main():
        with pytest.raises(FiberError, match="its own end"):
            select(current())
        fiber = spawn(sleep, 5)
        with pytest.raises(FiberError, match="another thread"):
            in_thread(lambda: select(fiber))
        fiber.cancel()

    run(main)


def test_select_outside_a_run():
    channel = Channel(1)
    assert select(channel.sending(1)).index == 0
    assert in_thread(lambda: select(channel.receiving()).value) == 1
    timer = threading.Timer(0.01, channel.send, (2,))
    timer.start()
    assert select(Channel().receiving(), channel.receiving()).value == 2
    timer.join()
    errors = []

    def raw():
        try:
            select(channel.receiving())
        except FiberError as error:
            errors.append(error)

    Fiber(raw).switch()
    assert len(errors) == 1
    assert channel._waiters() == []


def test_select_cases_and_results_are_plain_objects():
    channel = Channel(1)
    case = channel.sending(1)
    assert repr(case).startswith("<pyfiber.Sending <pyfiber.Channel at ")
    result = select(case)
    assert select(channel.receiving()).value == 1
    assert repr(result).startswith("<pyfiber.Sent <pyfiber.Channel at ")
    assert select(case).channel is channel, "a case may be used again"
    for kind in (Receiving, Sending, Received, Sent, Joined):
        with pytest.raises(TypeError):
            kind()
        assert kind[int].__origin__ is kind
    for thing in (case, result):
        with pytest.raises(TypeError):
            pickle.dumps(thing)
        with pytest.raises(TypeError):
            copy.copy(thing)
    with pytest.raises(AttributeError):
        result.channel = None


def test_select_keeps_nothing_alive():
    class Value:
        pass

    def main():
        channel, value = Channel(1), Value()
        gone = weakref.ref(value)
        select(channel.sending(value), channel.receiving())
        select(Channel().sending(value), channel.receiving())
        fiber = spawn(select, Channel().sending(value), channel.receiving(), timeout=1)
        assert fiber.result() is None
        del value, fiber
        yield_now()
        gc.collect()
        assert gone() is None

    run_virtually(main)
