"""pyfiber.selectors: the standard selectors, select() and poll(), whose waits park."""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors as standard
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import Fiber, FiberCancelled, run, selectors, sleep, socket, spawn, testing, yield_now

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


SELECTORS = [
    name
    for name in ("SelectSelector", "PollSelector", "EpollSelector", "KqueueSelector")
    if hasattr(selectors, name)
]


def with_selector(name: str) -> Callable[[socket.socket, float | None], bool]:
    def wait(sock: socket.socket, timeout: float | None) -> bool:
        with getattr(selectors, name)() as selector:
            selector.register(sock, standard.EVENT_READ, "data")
            found = selector.select(timeout)
            assert [(key.data, events) for key, events in found] in (
                [],
                [("data", standard.EVENT_READ)],
            )
            return bool(found)

    return wait


def with_select(sock: socket.socket, timeout: float | None) -> bool:
    special = [sock] if selectors._HAS_ONE_FOR_MANY else []
    found = selectors.select([sock], [], special, timeout)
    assert found in (([], [], []), ([sock], [], []))
    return any(found)


def with_poll(sock: socket.socket, timeout: float | None) -> bool:
    poll = selectors.poll()
    poll.register(sock, 1)
    poll.modify(sock, 1)
    found = poll.poll(None if timeout is None else timeout * 1000)
    assert found in ([], [(sock.fileno(), 1)])
    poll.unregister(sock)
    return bool(found)


def with_epoll(sock: socket.socket, timeout: float | None) -> bool:
    with selectors.epoll() as epoll:
        epoll.register(sock, 1)
        found = epoll.poll(timeout)
        assert found in ([], [(sock.fileno(), 1)])
        return bool(found)


def without_one_for_many(
    way: Callable[[socket.socket, float | None], bool],
) -> Callable[[socket.socket, float | None], bool]:
    """As on Windows."""

    def wait(sock: socket.socket, timeout: float | None) -> bool:
        before = selectors._HAS_ONE_FOR_MANY
        selectors._HAS_ONE_FOR_MANY = False
        try:
            return way(sock, timeout)
        finally:
            selectors._HAS_ONE_FOR_MANY = before

    return wait


WAYS: dict[str, Callable[[socket.socket, float | None], bool]] = {
    **{name: with_selector(name) for name in SELECTORS},
    "select": with_select,
    "each of SelectSelector": without_one_for_many(with_selector("SelectSelector")),
    "each of select": without_one_for_many(with_select),
    **({"poll": with_poll} if hasattr(selectors, "poll") else {}),
    **({"epoll": with_epoll} if sys.platform == "linux" else {}),
}


@pytest.mark.parametrize("way", WAYS)
def test_wait_parks_and_others_run(pair: Pair, way: str) -> None:
    def main() -> None:
        waits: Fiber[bool] = spawn(WAYS[way], pair[0], None)
        yield_now()
        yield_now()
        assert not waits.done()
        pair[1].send(b"x")
        assert waits.result()
        assert WAYS[way](pair[0], None)
        assert WAYS[way](pair[0], 0)

    run(main)


@pytest.mark.parametrize("way", WAYS)
def test_wait_times_out(pair: Pair, way: str) -> None:
    for timeout in (0, 0.001):
        assert not run(WAYS[way], pair[0], timeout)
        assert not WAYS[way](pair[0], timeout)


@pytest.mark.parametrize("way", WAYS)
def test_timeout_is_of_the_schedulers_clock(pair: Pair, way: str) -> None:
    assert testing.run(WAYS[way], pair[0], 1000) is False


@pytest.mark.parametrize("way", WAYS)
def test_wait_is_cancelled(pair: Pair, way: str) -> None:
    def main() -> None:
        waits: Fiber[bool] = spawn(WAYS[way], pair[0], None)
        yield_now()
        waits.cancel()
        with pytest.raises(FiberCancelled):
            waits.result()

    run(main)


@pytest.mark.parametrize("way", WAYS)
def test_asking_in_a_loop_lets_others_run(pair: Pair, way: str) -> None:
    def main() -> None:
        spawn(pair[1].send, b"x")
        while not WAYS[way](pair[0], 0):
            pass

    run(main)


@pytest.mark.parametrize("way", WAYS)
def test_outside_of_a_run_the_thread_waits(pair: Pair, way: str) -> None:
    pair[1].send(b"x")
    assert WAYS[way](pair[0], None)


def test_many_sockets_and_both_directions(pair: Pair) -> None:
    def main() -> None:
        found: Fiber[Any] = spawn(selectors.select, [pair[0]], [pair[0], pair[1]], [])
        assert found.result() == ([], [pair[0], pair[1]], [])

    run(main)


@pytest.mark.parametrize("event", [standard.EVENT_READ, standard.EVENT_WRITE])
def test_fiber_stands_at_many_sockets(monkeypatch: pytest.MonkeyPatch, event: int) -> None:
    monkeypatch.setattr(selectors, "_HAS_ONE_FOR_MANY", False)

    def main() -> None:
        pairs = [socket.socketpair() for _ in range(40)]
        with selectors.SelectSelector() as selector:
            for one, _ in pairs:
                if event == standard.EVENT_WRITE:
                    fill(one)
                selector.register(one, event)
            for wanted in (7, 33):
                waits = spawn(selector.select)
                yield_now()
                assert not waits.done()
                one, other = pairs[wanted]
                if event == standard.EVENT_READ:
                    other.send(b"x")
                else:
                    empty(other)
                assert [key.fileobj for key, _ in waits.result()] == [one]
                selector.unregister(one)
        for sock in itertools.chain(*pairs):
            sock.close()

    run(main)


def fill(sock: socket.socket) -> None:
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(65536))


def empty(sock: socket.socket) -> None:
    sock.settimeout(0.01)
    with contextlib.suppress(TimeoutError):
        while True:
            sock.recv(65536)


def test_socket_that_is_closed_ends_the_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    monkeypatch.setattr(selectors, "_HAS_ONE_FOR_MANY", False)

    def main() -> None:
        reader = spawn(pair[0].recv, 1)
        yield_now()
        waits = spawn(selectors.select, [pair[0], pair[1]], [], [])
        yield_now()
        pair[0].close()
        with pytest.raises((OSError, ValueError)):
            waits.result()
        with pytest.raises(OSError, match="closed"):
            reader.result()

    run(main)


@pytest.mark.skipif(os.name == "nt", reason="only sockets are selected there")
def test_regular_file_is_always_ready(tmp_path: Any) -> None:
    with open(tmp_path / "file", "w+") as file:
        assert run(selectors.select, [file], [file], []) == ([file], [file], [])


def test_module_has_every_name_of_the_standard_one() -> None:
    assert {name for name in dir(standard) if not name.startswith("_")} <= {
        *dir(selectors),
        *("ABCMeta", "Mapping", "abstractmethod", "namedtuple", "math", "select", "sys"),
    }
    assert issubclass(selectors.DefaultSelector, standard.DefaultSelector)


def test_sleepers_run_while_a_selector_waits(pair: Pair) -> None:
    def main() -> None:
        def later() -> None:
            sleep(5)
            pair[1].send(b"x")

        spawn(later)
        assert WAYS["select"](pair[0], None)

    testing.run(main)


@pytest.mark.parametrize("kind", ["DefaultSelector", "SelectSelector"])
def test_timeout_of_nan_is_refused(pair: Pair, kind: str) -> None:
    def main() -> None:
        with getattr(selectors, kind)() as selector:
            selector.register(pair[0], selectors.EVENT_READ)
            with pytest.raises(ValueError, match="NaN"):
                selector.select(float("nan"))

    run(main)
