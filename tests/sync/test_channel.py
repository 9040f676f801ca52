"""Channel: what its users see."""

from __future__ import annotations

import gc
import math
import weakref

import pytest

from pyfiber import (
    Cancelled,
    Channel,
    ChannelClosed,
    Fiber,
    FiberError,
    Scheduler,
    now,
    run,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import run as run_virtually
from tests.support.threads import PATIENCE, in_thread


def test_rendezvous_sender_waits_for_its_receiver():
    def main():
        channel, order = Channel(), []

        def send():
            channel.send("x")
            order.append("sent")

        fiber = spawn(send)
        yield_now()
        assert order == []
        assert channel._waiters() == [fiber]
        assert channel.receive() == "x"
        assert order == []
        fiber.join()
        assert order == ["sent"]

    run(main)


def test_buffered_sender_waits_for_a_place():
    def main():
        channel = Channel(2)
        channel.send(1)
        channel.send(2)
        assert len(channel) == 2
        assert bool(Channel())
        fiber = spawn(channel.send, 3)
        yield_now()
        assert not fiber.done()
        assert channel.receive() == 1
        assert len(channel) == 2
        assert fiber.join(PATIENCE)
        assert [channel.receive(), channel.receive()] == [2, 3]

    run(main)


@pytest.mark.parametrize("capacity", [0, 1, 5])
def test_many_senders_and_receivers_lose_nothing(capacity):
    def main():
        channel, got = Channel(capacity), []

        def send(base):
            for i in range(20):
                channel.send(base + i)

        def receive():
            for value in channel:
                got.append(value)
                sleep(0)

        senders = [spawn(send, 100 * i) for i in range(5)]
        receivers = [spawn(receive) for _ in range(3)]
        for fiber in senders:
            fiber.result()
        channel.close()
        for fiber in receivers:
            fiber.result()
        assert sorted(got) == sorted(100 * i + j for i in range(5) for j in range(20))
        for i in range(5):
            mine = [value for value in got if value // 100 == i]
            assert mine == sorted(mine)

    run(main)


def test_receivers_are_served_in_the_order_of_coming():
    def main():
        channel, got = Channel(), []
        fibers = [spawn(lambda i=i: got.append((i, channel.receive()))) for i in range(3)]
        yield_now()
        for value in range(3):
            channel.send(value)
        for fiber in fibers:
            fiber.join()
        assert got == [(0, 0), (1, 1), (2, 2)]

    run(main)


def test_close_ends_iteration_after_the_last_value():
    def main():
        with Channel(3) as channel:
            for i in range(3):
                channel.send(i)
        assert channel.closed
        assert list(channel) == [0, 1, 2]
        with pytest.raises(ChannelClosed) as caught:
            channel.receive()
        assert caught.value.channel is channel
        channel.close()

    run(main)


def test_close_wakes_who_waits():
    def main():
        channel = Channel()
        receivers = [spawn(channel.receive) for _ in range(2)]
        looping = spawn(list, channel)
        yield_now()
        channel.close()
        for fiber in receivers:
            assert isinstance(fiber.exception(timeout=PATIENCE), ChannelClosed)
        assert looping.result(timeout=PATIENCE) == []
        channel = Channel(1)
        channel.send(1)
        sender = spawn(channel.send, 2)
        yield_now()
        channel.close()
        assert isinstance(sender.exception(timeout=PATIENCE), ChannelClosed)
        assert list(channel) == [1]

    run(main)


def test_send_on_a_closed_channel_is_refused():
    channel = Channel(1)
    channel.close()
    with pytest.raises(ChannelClosed, match="closed") as caught:
        channel.send(1)
    assert caught.value.channel is channel
    with pytest.raises(ChannelClosed):
        channel.send(1, timeout=0)
    assert len(channel) == 0


def test_channel_closed_of_another_channel_passes_through_a_loop():
    def main():
        inner, outer = Channel(), Channel(1)
        inner.close()
        outer.send(1)

        def loop():
            for _ in outer:
                inner.receive()

        with pytest.raises(ChannelClosed) as caught:
            loop()
        assert caught.value.channel is inner

    run(main)


def test_timeout_means_that_nothing_happened():
    def main():
        channel = Channel()
        with pytest.raises(TimeoutError, match="receive"):
            channel.receive(timeout=10)
        with pytest.raises(TimeoutError, match="send"):
            channel.send(1, timeout=10)
        assert now() == 20
        with pytest.raises(TimeoutError):
            channel.receive(timeout=0)
        with pytest.raises(TimeoutError):
            channel.send(1, timeout=0)
        fiber = spawn(channel.receive)
        yield_now()
        channel.send(2, timeout=0)
        assert fiber.result() == 2

    run_virtually(main)


def test_cancelled_sender_sent_nothing():
    def main():
        channel = Channel()
        fiber = spawn(channel.send, 1)
        yield_now()
        fiber.cancel()
        fiber.join()
        with pytest.raises(TimeoutError):
            channel.receive(timeout=0)

    run(main)


def test_value_given_before_the_cancellation_is_delivered():
    def main():
        channel, got = Channel(), []

        def body():
            got.append(channel.receive())
            with pytest.raises(Cancelled):
                channel.receive()

        fiber = spawn(body)
        yield_now()
        channel.send("x")
        fiber.cancel()
        fiber.join()
        assert got == ["x"]

    run(main)


@pytest.mark.parametrize("capacity", [0, 2])
def test_value_given_to_an_unwound_fiber_is_not_lost(capacity):
    channel = Channel(capacity)
    scheduler = Scheduler()
    scheduler.spawn(channel.receive)
    scheduler.spawn(channel.receive)
    scheduler.run_once()
    channel.send(1, timeout=0)
    channel.send(2, timeout=0)
    scheduler.close()
    assert len(channel) == 2
    with pytest.raises(TimeoutError):
        channel.send(3, timeout=0)
    assert [channel.receive(), channel.receive()] == [1, 2]


@pytest.mark.parametrize("capacity", [0, 2])
def test_value_given_to_an_unwound_fiber_goes_to_who_waits_behind_it(capacity):
    """The next in line is given it, as it would have been without the first."""
    channel = Channel(capacity)
    scheduler, later = Scheduler(), Scheduler()
    scheduler.spawn(channel.receive)
    scheduler.run_once()
    behind = later.spawn(channel.receive)
    later.run_once()
    channel.send(1)
    scheduler.close()
    assert len(channel) == 0
    assert channel._waiters() == []
    later.run_once()
    assert behind.result() == 1
    later.close()


@pytest.mark.parametrize("capacity", [-1, -(2**40)])
def test_negative_capacity_is_refused(capacity):
    with pytest.raises(ValueError, match="capacity"):
        Channel(capacity)


@pytest.mark.parametrize("capacity", ["x", 1.5, None, math.inf])
def test_capacity_of_a_wrong_type_is_refused(capacity):
    with pytest.raises(TypeError):
        Channel(capacity)
    with pytest.raises(OverflowError):
        Channel(2**70)


@pytest.mark.parametrize("timeout", [-1, math.nan, -math.inf])
def test_bad_timeout_is_refused(timeout):
    channel = Channel(1)
    with pytest.raises(ValueError, match="timeout"):
        channel.receive(timeout)
    with pytest.raises(ValueError, match="timeout"):
        channel.send(1, timeout)
    assert len(channel) == 0


def test_wrong_arguments_are_refused():
    channel = Channel(1)
    with pytest.raises(TypeError):
        channel.send()
    with pytest.raises(TypeError):
        channel.send(1, 2, 3)
    with pytest.raises(TypeError):
        channel.receive(timeout="x")
    with pytest.raises(AttributeError):
        channel.capacity = 3
    assert len(channel) == 0


def test_plain_threads_may_use_it():
    channel = Channel()

    def main():
        fiber = spawn(in_thread_later, channel)
        return [channel.receive() for _ in range(3)], fiber.result()

    assert run(main) == ([0, 1, 2], None)
    with pytest.raises(TimeoutError):
        in_thread(lambda: channel.receive(timeout=0.01))


def in_thread_later(channel):
    import threading

    threading.Thread(target=lambda: [channel.send(i) for i in range(3)]).start()


def test_raw_fiber_outside_a_run_does_not_wait():
    channel, errors = Channel(), []

    def body():
        for operation in (channel.receive, lambda: channel.send(1)):
            try:
                operation()
            except FiberError as error:
                errors.append(error)

    Fiber(body).switch()
    assert len(errors) == 2
    assert channel._waiters() == []


def test_channel_in_a_cycle_is_collected():
    channel = Channel(1)
    channel.send(channel)
    gone = weakref.ref(channel)
    del channel
    gc.collect()
    assert gone() is None


def test_channel_lets_go_of_values():
    class Value:
        pass

    def main():
        channel, value = Channel(), Value()
        gone = weakref.ref(value)
        fiber = spawn(channel.send, value, 0.001)
        fiber.join()
        fiber = spawn(channel.receive)
        yield_now()
        channel.send(value)
        fiber.join()
        del value, fiber
        yield_now()
        gc.collect()
        assert gone() is None

    run(main)
