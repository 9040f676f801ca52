"""pyfiber.net among peers that fail: nothing hangs, is left, or is lost that was served."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber import (
    TaskGroup,
    current_scheduler,
    move_on_after,
    net,
    run,
    sleep,
    socket,
    spawn,
    timeout,
    yield_now,
)
from tests.support.growth import grows

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("pyfiber")
    logger.setLevel(logging.CRITICAL)
    yield
    logger.setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _no_descriptor_is_left(_quiet: None) -> Iterator[None]:
    before = descriptors()
    yield
    assert descriptors() == before


def descriptors() -> set[str]:
    """Those that are sockets."""
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/self/fd/{number}")
                found |= {target} if target.startswith("socket:") else set()
    return found


def reset(stream: net.Stream) -> None:
    """Close it so that the peer gets an error."""
    stream.socket.setsockopt(
        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
    )
    stream.close()


def echo(stream: net.Stream) -> None:
    while data := stream.read():
        stream.write(data)


def test_peer_that_says_nothing_is_left_after_a_time_out() -> None:
    def impatient(stream: net.Stream) -> None:
        with timeout(0.002):
            next(stream)

    def main() -> None:
        failures: list[Exception] = []
        with net.serve(
            impatient, HOST, 0, on_error=lambda exc, peer: failures.append(exc)
        ) as server:
            silent = [net.connect(*server.address) for _ in range(10)]
            for stream in silent:
                assert stream.read() == b""
                stream.close()
        assert [type(exc) for exc in failures] == [TimeoutError] * 10

    run(main)


def test_peer_that_reads_nothing_does_not_keep_the_server_from_its_end() -> None:
    """Its handler is cancelled in mid-write."""

    def main() -> None:
        sent = []

        def pour(stream: net.Stream) -> None:
            try:
                stream.write(bytes(10**7))
            except BaseException as exc:
                sent.append(exc.sent)  # type: ignore[attr-defined]
                raise

        with net.serve(pour, HOST, 0, grace=0.002) as server:
            streams = [net.connect(*server.address) for _ in range(3)]
            for stream in streams:
                stream.read_exactly(1)
        assert len(sent) == 3
        for stream, went in zip(streams, sent, strict=True):
            assert len(b"".join(iter(stream.read, b""))) == went - 1 > 0
            stream.close()

    run(main)


def test_peer_that_resets_the_connection_while_it_is_written_to() -> None:
    def main() -> None:
        failures: list[Exception] = []
        with net.serve(
            lambda stream: stream.write(bytes(10**7)),
            HOST,
            0,
            on_error=lambda exc, peer: failures.append(exc),
        ) as server:
            stream = net.connect(*server.address)
            stream.read_exactly(1)
            reset(stream)
        assert isinstance(failures[0], ConnectionError)

    run(main)


def test_many_connections_opened_and_dropped_leave_nothing() -> None:
    ends = []

    def main() -> None:
        with net.serve(lambda stream: ends.append(stream.read()), HOST, 0, limit=50) as server:

            def open_and_drop(n: int) -> None:
                for i in range(n):
                    stream = net.connect(*server.address)
                    if i % 3 == 0:
                        stream.write(b"x")
                    if i % 2:
                        reset(stream)
                    else:
                        stream.close()

            with TaskGroup() as group:
                for _ in range(20):
                    group.spawn(open_and_drop, 50)
        assert server.connections == 0
        assert len(current_scheduler().fibers()) == 1

    run(main)
    assert len(ends) > 300  # those that were reset before are lost


def test_streams_and_servers_leave_no_objects() -> None:
    def main() -> None:
        with net.serve(echo, HOST, 0, grace=0) as server:
            for _ in range(2):
                with net.connect(*server.address) as stream:
                    stream.write([b"he", b"llo\n"])
                    assert next(stream) == b"hello\n"
            with move_on_after(0.0001):
                net.connect(*server.address).close()
        with contextlib.suppress(ConnectionRefusedError):
            net.connect(*server.address)

    assert not grows(lambda: run(main), 150)


# a server stopped under load ----------------------------------------------------------------------


def test_no_connection_that_was_told_it_is_served_is_dropped_at_the_end() -> None:
    """The first byte says so; then the whole answer comes, though the server is being stopped."""
    text = bytes(range(256)) * 2000

    def handler(stream: net.Stream) -> None:
        stream.write(b"!")
        for _ in range(3):
            stream.write(text)
            yield_now()

    def client(server: net.Server) -> None:
        with contextlib.suppress(ConnectionError), net.connect(*server.address) as stream:
            if stream.read(1) == b"!":
                told.append(stream)
                assert stream.read_exactly(3 * len(text)) == 3 * text
                served.append(stream)

    told: list[net.Stream] = []
    served: list[net.Stream] = []

    def main() -> None:
        with (
            TaskGroup() as clients,
            net.serve(handler, HOST, 0, limit=10, grace=60) as server,
        ):
            for _ in range(40):
                clients.spawn(client, server)
            while len(told) < 15:
                yield_now()
        assert 15 <= len(told) == len(served)

    run(main)


# chaos --------------------------------------------------------------------------------------------


class Chaos:
    """Clients and handlers that do what the seed says."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.limit = self.draw.choice([None, 1, 3, 20])
        self.grace = self.draw.choice([0, 0.003, 0.02])
        self.handled = 0
        self.good = 0

    def handler(self, stream: net.Stream) -> None:
        self.handled += 1
        for line in stream:
            match self.draw.randrange(8):
                case 0:
                    raise ValueError("broken")
                case 1:
                    return
                case 2:
                    sleep(60)
                case 3:
                    stream.write(bytes(3 * 10**6))
                case 4:
                    reset(stream)
                case _:
                    stream.write([b"> ", line])

    def client(self, server: net.Server) -> None:
        with (
            contextlib.suppress(OSError, EOFError, net.LimitExceeded),
            move_on_after(self.draw.random() / 20),
            net.connect(*server.address) as stream,
        ):
            self.talk(stream)

    def talk(self, stream: net.Stream) -> None:
        for _ in range(self.draw.randrange(10)):
            match self.draw.randrange(8):
                case 0:
                    return reset(stream)
                case 1:
                    return
                case 2:
                    stream.close_write()
                case 3:
                    for byte in b"slow\n":
                        stream.write(bytes([byte]))
                        yield_now()
                case 4:
                    stream.write(b"no end")
                case _:
                    stream.write(b"hello\n")
                    self.good += stream.read_until(b"\n") == b"> hello\n"
        return None

    def main(self) -> None:
        with timeout(60), TaskGroup() as clients:
            end = self.draw.choice(["left", "cancelled", "stopped"])
            with (
                move_on_after(60) as outer,
                net.serve(
                    self.handler, HOST, 0, limit=self.limit, grace=self.grace, backlog=20
                ) as server,
            ):
                for _ in range(60):
                    clients.spawn(self.client, server)
                    if self.draw.random() < 0.3:
                        sleep(self.draw.random() / 1000)
                if end == "cancelled":
                    outer.cancel()
                elif end == "stopped":
                    spawn(server.stop)
                    server.wait()
            assert server.connections == 0
        assert len(current_scheduler().fibers()) == 1


@pytest.mark.parametrize("seed", range(6))
def test_chaos_leaves_nothing(seed: int) -> None:
    chaos = Chaos(seed)
    run(chaos.main)
    assert chaos.handled > 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 200))
def test_much_chaos_leaves_nothing(seed: int) -> None:
    run(Chaos(seed).main)


def test_connection_that_a_listener_loses_does_not_hang_its_client() -> None:
    def main() -> Any:
        listener = net.listen(HOST, 0)
        stream = net.connect(*listener.address)
        listener.close()  # nobody has accepted it
        with stream, contextlib.suppress(ConnectionError):
            return stream.read()

    assert not run(main)
