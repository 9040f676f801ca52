"""pyfiber.selectors: the standard selectors, select() and poll(), whose waits park."""

from __future__ import annotations

import os
import selectors as standard
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import Fiber, FiberCancelled, run, selectors, sleep, socket, spawn, testing, yield_now

Pair = tuple[socket.socket, socket.socket]
pytestmark = pytest.mark.skipif(os.name == "nt", reason="a thread waits there")


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
    found = selectors.select([sock], [], [sock], timeout)
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


WAYS: dict[str, Callable[[socket.socket, float | None], bool]] = {
    **{name: with_selector(name) for name in SELECTORS},
    "select": with_select,
    "poll": with_poll,
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
