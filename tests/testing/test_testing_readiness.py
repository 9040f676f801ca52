"""Selectors, poll objects and select() with sockets of a network in memory."""

from __future__ import annotations

import os
import select as system
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import (
    DeadlockError,
    FiberError,
    now,
    selectors,
    sleep,
    socket,
    spawn,
    testing,
    yield_now,
)
from pyfiber.selectors import EVENT_READ, EVENT_WRITE

CLASSES = [
    getattr(selectors, name)
    for name in ("SelectSelector", "PollSelector", "EpollSelector", "KqueueSelector")
    if hasattr(selectors, name)
]
needs_poll = pytest.mark.skipif(not hasattr(system, "poll"), reason="Windows has no poll()")


def in_memory(function: Callable[..., None]) -> Callable[..., None]:
    """A test that runs in virtual time on a network in memory."""

    def test(**fixtures: Any) -> None:
        testing.run(lambda: function(**fixtures), network=True)

    test.__name__ = function.__name__
    return test


def later(seconds: float, function: Callable[..., Any], *arguments: Any) -> None:
    def wait() -> None:
        sleep(seconds)
        function(*arguments)

    spawn(wait)


@pytest.mark.parametrize("kind", CLASSES)
def test_selector_reports_a_socket_when_it_becomes_ready(kind: type[Any]) -> None:
    def main() -> None:
        left, right = socket.socketpair()
        with left, right, kind() as selector:
            selector.register(left, EVENT_READ, "data")
            assert selector.select(5) == []
            assert now() == 5
            later(2, right.send, b"x")
            ((key, events),) = selector.select()
            assert (key.fileobj, key.data, events, now()) == (left, "data", EVENT_READ, 7)
            selector.modify(left, EVENT_READ | EVENT_WRITE)
            assert selector.select(0)[0][1] == EVENT_READ | EVENT_WRITE
            left.recv(1)
            selector.modify(left, EVENT_WRITE)
            assert selector.select()[0][1] == EVENT_WRITE
            selector.unregister(left)
            assert selector.select(0) == []

    testing.run(main, network=True)


@pytest.mark.parametrize("kind", CLASSES)
def test_selector_forgets_a_socket_that_was_closed(kind: type[Any]) -> None:
    def main() -> None:
        left, right = socket.socketpair()
        with right, kind() as selector:
            selector.register(left, EVENT_READ)
            later(1, left.close)
            assert selector.select(3) == []
            assert now() == 3
            selector.unregister(left)
            assert not selector.get_map()

    testing.run(main, network=True)


def test_fiber_that_selects_in_a_deadlock_is_said_to_do_so() -> None:
    def main() -> None:
        left, right = socket.socketpair()
        with left, right, selectors.SelectSelector() as selector:
            selector.register(left, EVENT_READ)
            selector.select()

    with pytest.raises(DeadlockError, match=r"waits in select\(\)"):
        testing.run(main, network=True)


@pytest.mark.skipif(os.name == "nt", reason="selects among pipes")
@pytest.mark.parametrize("kind", CLASSES)
def test_selector_takes_descriptors_of_the_system_beside_them(kind: type[Any]) -> None:
    reader, writer = os.pipe()

    def main() -> None:
        left, right = socket.socketpair()
        with left, right, kind() as selector:
            selector.register(reader, EVENT_READ)
            selector.register(left, EVENT_READ)
            later(1, os.write, writer, b"x")
            assert [key.fd for key, _ in selector.select()] == [reader]
            right.send(b"x")
            assert [key.fd for key, _ in selector.select()] == [reader, left.fileno()]

    testing.run(main, network=True)
    os.close(reader)
    os.close(writer)


@in_memory
def test_select_returns_what_is_ready() -> None:
    left, right = socket.socketpair()
    with left, right, socket.create_server(("127.0.0.1", 80)) as listener:
        assert selectors.select([left, listener], [], [left], 5) == ([], [], [])
        assert selectors.select([left], [left], [], 5) == ([], [left], [])
        later(1, right.send, b"x")
        assert selectors.select([left, listener], [], []) == ([left], [], [])
        later(1, connect_and_close)
        assert selectors.select([listener], [], []) == ([listener], [], [])
        assert now() == 7


def connect_and_close() -> None:
    socket.create_connection(("127.0.0.1", 80)).close()


@needs_poll
@in_memory
def test_poll_reports_events_and_errors() -> None:
    left, right = socket.socketpair()
    poll = selectors.poll()
    with right:
        with left:
            poll.register(left, system.POLLIN)
            assert poll.poll(1000) == []
            later(1, right.send, b"x")
            assert poll.poll() == [(left.fileno(), system.POLLIN)]
            poll.modify(left, system.POLLOUT)
            assert poll.poll(0) == [(left.fileno(), system.POLLOUT)]
            number = left.fileno()
        assert poll.poll(0) == [(number, system.POLLNVAL)]
        poll.unregister(number)
        with pytest.raises(KeyError):
            poll.unregister(number)
        with pytest.raises(OSError, match=r"No such file"):
            poll.modify(number, system.POLLIN)
        poll.register(right)
        ((_, events),) = poll.poll()
        assert events & system.POLLHUP


@in_memory
def test_several_fibers_wait_for_one_socket() -> None:
    left, right = socket.socketpair()
    with left, right:
        waiting = [spawn(selectors.select, [left], [], []) for _ in range(3)]
        reader = spawn(left.recv, 10)
        yield_now()
        right.send(b"x")
        assert reader.result() == b"x"
        right.send(b"y")
        assert [fiber.result() for fiber in waiting] == [([left], [], [])] * 3


def test_a_socket_of_another_thread_is_refused() -> None:
    made: list[Any] = []

    def main() -> None:
        made.extend(socket.socketpair())
        refused: list[BaseException] = []

        def elsewhere() -> None:
            from pyfiber._engine import _wait_any

            try:
                testing.run(_wait_any, [made[0]._endpoint.end], [], 0)
            except FiberError as exc:
                refused.append(exc)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "nowhere else" in str(refused[0])

    testing.run(main, network=True, threads=True)
    for sock in made:
        sock.close()


def race() -> None:
    """A server that looks at readiness once for two clients, and reads from both."""
    pairs = [socket.socketpair() for _ in range(2)]
    with selectors.DefaultSelector() as selector:
        for left, _ in pairs:
            selector.register(left, EVENT_READ)
        for _, right in pairs:
            spawn(right.send, b"x")
        ready = selector.select()
    for pair in pairs:
        for sock in pair:
            sock.close()
    assert len(ready) == 2, len(ready)


def test_the_moment_of_readiness_is_explored_and_replayed() -> None:
    with pytest.raises(testing.ScheduleFailure) as caught:
        testing.explore(race, 200, network=True, preempt=True)
    with pytest.raises(testing.ScheduleFailure) as again:
        testing.replay(race, caught.value.schedule, network=True)
    assert again.value.log == caught.value.log
