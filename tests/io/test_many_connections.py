"""Sockets by the thousand, opened and dropped: no descriptor, fiber or memory is left."""

from __future__ import annotations

import contextlib
import gc
import os
import struct
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import Semaphore, TaskGroup, current_scheduler, run, socket, spawn, testing
from tests.support.growth import grows
from tests.support.wine import is_wine

HOST = "127.0.0.1"
AT_ONCE = 50


def descriptors() -> int:
    """How many the process has, where the system tells."""
    if is_wine() or not os.path.isdir("/proc/self/fd"):  # Wine shows its own
        return 0
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Some are dropped without close()."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield


class Many:
    """A server, and clients that leave in different ways."""

    def __init__(self) -> None:
        self.answered = 0
        self.handled = 0
        self.listener = socket.create_server((HOST, 0), backlog=AT_ONCE)

    def handle(self, sock: Any) -> None:
        self.handled += 1
        number = self.handled
        with contextlib.suppress(ConnectionError):
            while data := sock.recv(100):
                sock.sendall(data)
        if number % 3:  # every third one is dropped
            sock.close()

    def serve(self) -> None:
        with TaskGroup() as handlers, contextlib.suppress(OSError):
            while True:
                handlers.spawn(self.handle, self.listener.accept()[0])

    def visit(self, number: int) -> None:
        """A reset mostly, or the system would run out of ports, which it keeps for a minute."""
        sock = socket.create_connection(self.listener.getsockname())
        way = number % 16
        if way != 0:
            sock.sendall(b"hello")
            assert sock.recv(5) == b"hello"
            self.answered += 1
        if way == 1:
            sock.shutdown(socket.SHUT_WR)
            assert sock.recv(1) == b""
        if way == 2:
            return
        if way >= 3:
            sock.setsockopt(
                socket.SOL_SOCKET,
                socket.SO_LINGER,
                struct.pack("hh" if os.name == "nt" else "ii", 1, 0),
            )
        if way < 10:
            sock.close()

    def visit_in_turn(self, number: int, slots: Semaphore) -> None:
        with slots:
            self.visit(number)

    def main(self, count: int) -> None:
        server = spawn(self.serve)
        slots = Semaphore(AT_ONCE)
        with TaskGroup() as visitors:
            for number in range(count):
                visitors.spawn(self.visit_in_turn, number, slots)
        self.listener.close()
        server.join()
        assert len(current_scheduler().fibers()) == 1
        assert self.handled == count
        assert self.answered == count - -(-count // 16)


def few() -> None:
    Many().main(16)


def played(main: Callable[[], Any], memory: bool) -> Any:
    return testing.run(main, network=True) if memory else run(main)


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("count", [200, pytest.param(10_000, marks=pytest.mark.slow)])
def test_connections_that_are_dropped_leave_no_descriptor(memory: bool, count: int) -> None:
    def main() -> int:
        few()  # the loop opens descriptors of its own
        gc.collect()
        before = descriptors()
        Many().main(count)
        gc.collect()
        return descriptors() - before

    assert played(main, memory) == 0


@pytest.mark.slow
@pytest.mark.parametrize("memory", [False, True])
def test_connections_leave_no_memory(memory: bool) -> None:
    assert not played(lambda: grows(few, 150), memory)
