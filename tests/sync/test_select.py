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
    Case,
    Channel,
    ChannelClosed,
    Event,
    Fiber,
    FiberError,
    Lock,
    Scheduler,
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
            match select(numbers.receiving(), words.sending("x"), worker.joining()):
                case 0, number:
                    seen.append(number)
                case 1, nothing:
                    seen.append(("sent", nothing))
                case 2, nothing:
                    seen.append(("joined", nothing, worker.done()))
        assert seen == [3, ("sent", None), ("joined", None, True)]

    run(main)


def test_select_first_possible_case_is_taken_alone():
    a, b = Channel(1), Channel(1)
    a.send(1)
    b.send(2)
    assert select(b.receiving(), a.receiving()) == (0, 2)
    assert (len(a), len(b)) == (1, 0)


def test_select_waits_in_all_and_leaves_all():
    def main():
        channels = [Channel() for _ in range(12)]
        fiber = spawn(select, *(channel.receiving() for channel in channels))
        yield_now()
        assert all(channel._waiters() == [fiber] for channel in channels)
        assert fiber.waiting_on[3].__class__ is Case
        channels[7].send("x")
        assert all(channel._waiters() == [] for channel in channels)
        assert fiber.result() == (7, "x")

    run(main)


def test_select_with_select():
    def main():
        channel, other = Channel(), Channel()
        fiber = spawn(select, other.receiving(), channel.sending("x"))
        yield_now()
        assert select(channel.receiving(), other.receiving()) == (0, "x")
        assert fiber.result() == (1, None)
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
        assert fiber.result() == (0, "yours")
        fiber = spawn(select, channel.receiving(), channel.sending("mine"))
        yield_now()
        assert channel.receive() == "mine"
        assert fiber.result() == (1, None)
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
            got.append(select(a.receiving(), b.receiving())[1])
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
        fiber = spawn(select, a.receiving(), current().joining())
        yield_now()
        a.close()
        assert fiber.exception(timeout=PATIENCE).channel is a

    run(main)


def test_select_fiber_that_failed_is_joined_all_the_same():
    def main():
        fiber = spawn(lambda: 1 // 0)
        assert select(Channel().receiving(), fiber.joining()) == (1, None)
        with pytest.raises(ZeroDivisionError):
            fiber.result()
        assert select(fiber.joining()) == (0, None)

    run(main)


def test_select_fibers_first_to_end():
    def main():
        slow, quick = spawn(sleep, 1), spawn(sleep, 0.001)
        assert select(slow.joining(), quick.joining()) == (1, None)
        slow.cancel()

    run(main)


@pytest.mark.parametrize("thing", [Channel(), Lock(), Event(), Fiber(print), 3, None, "x", Channel])
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
        select(Fiber(print).joining())

    def main():
        with pytest.raises(FiberError, match="its own end"):
            select(current().joining())
        fiber = spawn(sleep, 5)
        with pytest.raises(FiberError, match="another thread"):
            in_thread(lambda: select(fiber.joining()))
        fiber.cancel()

    run(main)


def test_select_outside_a_run():
    channel = Channel(1)
    assert select(channel.sending(1)) == (0, None)
    assert in_thread(lambda: select(channel.receiving())) == (0, 1)
    timer = threading.Timer(0.01, channel.send, (2,))
    timer.start()
    assert select(Channel().receiving(), channel.receiving()) == (1, 2)
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


def test_select_cases_are_of_one_class_and_say_what_they_are():
    channel = Channel(1)
    case = channel.sending(1)
    assert repr(case).startswith("<pyfiber.Case sending of <pyfiber.Channel at ")
    assert repr(Fiber(print).joining()).startswith("<pyfiber.Case joining of <pyfiber.Fiber ")
    assert select(case) == (0, None)
    assert select(channel.receiving()) == (0, 1)
    assert select(case) == (0, None), "a case may be used again"
    with pytest.raises(TypeError):
        Case()
    assert Case[int].__origin__ is Case
    with pytest.raises(TypeError):
        pickle.dumps(case)
    with pytest.raises(TypeError):
        copy.copy(case)
    with pytest.raises(AttributeError):
        case.source = None


def test_select_of_many_cases_says_which():
    """Also beyond the numbers that the interpreter keeps."""
    channels = [Channel(1) for _ in range(1000)]
    channels[-1].send("x")
    assert select(*[channel.receiving() for channel in channels]) == (999, "x")


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
