"""What ends an operation of a TLS connection, and how the connection itself ends."""

from __future__ import annotations

import contextlib
import errno
import os
import socket as standard_socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import Cancelled, Fiber, run, socket, spawn, ssl, testing, timeout, yield_now
from tests.io.certificates import HOST, needs_certificates
from tests.io.tls_pairs import VERSIONS, client_context, receive, server_context, tls_pair, wrapped
from tests.support.threads import in_thread
from tests.support.wine import is_wine

pytestmark = needs_certificates

both_versions = pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])


# timeouts and cancellation ------------------------------------------------------------------------


@pytest.mark.parametrize("way", [run, in_thread], ids=["fiber", "thread"])
def test_timeouts_say_what_timed_out(way: Callable[..., Any]) -> None:
    def handshake() -> None:
        left, right = socket.socketpair()
        left.settimeout(0.001)
        with right, pytest.raises(TimeoutError, match="The handshake operation timed out"):
            client_context().wrap_socket(left, server_hostname=HOST)

    way(handshake)
    one, other = run(wrapped, client_context())

    def others() -> None:
        one.settimeout(0.001)
        with pytest.raises(TimeoutError, match="The read operation timed out"):
            one.recv(1)
        with pytest.raises(TimeoutError, match="The write operation timed out"):
            one.sendall(bytes(10_000_000))

    with one, other:
        way(others)


def test_timeout_is_of_the_schedulers_clock() -> None:
    def main() -> None:
        with tls_pair() as (one, _):
            one.settimeout(1000)
            with pytest.raises(TimeoutError, match="The read operation timed out"):
                one.recv(1)

    before = time.monotonic()
    testing.run(main)
    assert time.monotonic() - before < 500


def test_cancelled_read_leaves_the_data() -> None:
    def main() -> None:
        with tls_pair() as (one, other):
            reader = spawn(one.recv, 10)
            yield_now()
            reader.cancel()
            reader.join()
            assert reader.cancelled()
            with pytest.raises(TimeoutError), timeout(0.001):
                one.recv(10)
            other.sendall(b"kept")
            assert one.recv(10) == b"kept"

    run(main)


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_sendall_that_is_ended_tells_what_need_not_be_sent_again(how: str) -> None:
    text = os.urandom(5_000_000)

    def write(sock: Any, told: list[int]) -> None:
        try:
            sock.sendall(text)
        except (Cancelled, TimeoutError) as exc:
            told.append(exc.sent)  # type: ignore[union-attr]
            raise

    def main() -> None:
        with tls_pair() as (one, other):
            told: list[int] = []
            if how == "timeout":
                one.settimeout(0.001)
            writer = spawn(write, one, told)
            yield_now()
            if how == "cancel":
                writer.cancel()
            writer.join()
            with contextlib.suppress(BaseException):
                writer.result()
            one.settimeout(None)
            rest = spawn(one.sendall, text[told[0] :])
            assert receive(other, len(text)) == text
            rest.result()

    run(main)


def fill(sock: Any) -> bytes:
    """Send, with a timeout, until nothing more goes; what has been reported as sent."""
    sent = b""
    i = 0
    while True:
        data = bytes([i % 256]) * 10_000
        try:
            count = sock.send(data)
        except (TimeoutError, ssl.SSLWantWriteError):
            return sent
        sent += data[:count]
        i += 1


@pytest.mark.parametrize("limit", [0, 0.001])
def test_send_that_is_tried_again_sends_once(limit: float) -> None:
    def main() -> None:
        with tls_pair() as (one, other):
            one.settimeout(limit)
            sent = fill(one)
            again = bytes([len(sent) // 10_000 % 256]) * 10_000
            one.settimeout(None)
            reader = spawn(receive, other, len(sent) + len(again) + 4)
            assert one.send(again) == len(again)
            one.sendall(b"more")
            assert reader.result() == sent + again + b"more"

    run(main)


def test_other_data_after_a_failed_send_come_behind_what_was_encrypted() -> None:
    def main() -> None:
        with tls_pair() as (one, other):
            one.settimeout(0.001)
            sent = fill(one)
            one.settimeout(None)
            reader = spawn(receive, other, len(sent) + 10_000 + 5)
            one.sendall(b"other")
            got = reader.result()
            assert got[: len(sent)] == sent
            assert got[-5:] == b"other"

    run(main)


def test_reader_does_not_wait_for_what_a_writer_left_behind() -> None:
    def main() -> None:
        with tls_pair() as (one, other):
            one.settimeout(0.001)
            fill(one)
            one.settimeout(None)
            other.sendall(b"data")
            assert one.recv(10) == b"data"

    run(main)


def test_cancelled_handshake_goes_on_when_it_is_asked_again() -> None:
    def main() -> None:
        left, right = socket.socketpair()
        client = client_context().wrap_socket(
            left, server_hostname=HOST, do_handshake_on_connect=False
        )
        shaking = spawn(client.do_handshake)
        yield_now()
        shaking.cancel()
        shaking.join()
        assert shaking.cancelled()
        server = spawn(server_context().wrap_socket, right, server_side=True)
        client.do_handshake()
        with client, server.result() as other:
            other.sendall(b"data")
            assert client.recv(10) == b"data"

    run(main)


def test_socket_that_never_waits_says_what_it_wants() -> None:
    def main() -> None:
        left, right = socket.socketpair()
        left.settimeout(0)
        right.settimeout(0)
        options = {"do_handshake_on_connect": False}
        client = client_context().wrap_socket(left, server_hostname=HOST, **options)
        server = server_context().wrap_socket(right, server_side=True, **options)
        with client, server:
            done = set()
            with pytest.raises(ssl.SSLWantReadError) as caught:
                client.do_handshake()
            assert caught.value.errno == ssl.SSL_ERROR_WANT_READ
            while len(done) < 2:
                for sock in (server, client):
                    with contextlib.suppress(ssl.SSLWantReadError):
                        sock.do_handshake()
                        done.add(sock)
            for _ in range(2):
                with pytest.raises(ssl.SSLWantReadError):
                    client.recv(10)
            fill(client)
            with pytest.raises(ssl.SSLWantWriteError) as full:
                client.send(b"x")
            assert full.value.errno == ssl.SSL_ERROR_WANT_WRITE
            assert full.value.reason is full.value.library is None

    run(main)
    in_thread(main)


# the end ------------------------------------------------------------------------------------------


@both_versions
def test_after_unwrap_the_connection_is_a_plain_one(version: ssl.TLSVersion) -> None:
    def main() -> None:
        with tls_pair(version) as (one, other):
            ending = spawn(other.unwrap)
            assert one.unwrap() is one
            assert ending.result() is other
            one.sendall(b"plain")
            assert other.recv(10) == b"plain"
            assert other.version() is None
            with pytest.raises(ValueError, match="No SSL wrapper"):
                one.unwrap()

    run(main)


def test_plain_data_behind_the_end_of_tls_are_not_lost() -> None:
    """They come together with it, and the reader had asked for more than a record."""

    def main() -> None:
        with tls_pair() as (one, other):
            other.sendall(b"data")
            ending = spawn(other.unwrap)
            yield_now()
            number = standard_socket.socket(fileno=socket.dup(other.fileno()))
            with number:
                number.send(b"behind the end")
            assert one.recv(100) == b"data"
            assert one.recv(100) == b""
            assert one.unwrap() is one
            ending.result()
            assert one.recv(6) == b"behind"
            buffer = bytearray(100)
            assert one.recv_into(buffer) == 8
            assert buffer[:8] == b" the end"
            other.sendall(b"more")
            assert one.recv(100) == b"more"

    run(main)


def test_tls_begins_again_on_what_came_behind_its_end() -> None:
    def main() -> None:
        with tls_pair() as (one, other):
            other.sendall(b"data")
            ending = spawn(other.unwrap)
            yield_now()
            assert one.recv(4) == b"data"
            one.unwrap()
            ending.result()
            one, other = wrapped(client_context(), sockets=(one, other))
            with one, other:
                other.sendall(b"again")
                assert one.recv(10) == b"again"

    run(main)


@both_versions
def test_close_notify_is_an_empty_read_for_ever(version: ssl.TLSVersion) -> None:
    def main() -> None:
        with tls_pair(version) as (one, other):
            other.sendall(b"last")
            ending = spawn(other.unwrap)
            yield_now()
            assert [one.recv(10), one.recv(10), one.recv(10)] == [b"last", b"", b""]
            one.unwrap()
            ending.result()

    run(main)


@both_versions
@pytest.mark.parametrize("suppress", [True, False])
def test_ragged_end(version: ssl.TLSVersion, suppress: bool) -> None:
    def main() -> None:
        with tls_pair(version, suppress_ragged_eofs=suppress) as (one, other):
            other.sendall(b"last")
            other.close()
            assert one.recv(10) == b"last"
            for _ in range(2):
                if suppress:
                    assert one.recv(10) == b""
                    assert one.recv_into(bytearray(3)) == 0
                else:
                    with pytest.raises(ssl.SSLEOFError):
                        one.recv(10)

    run(main)


def test_reader_and_who_ends_the_connection_do_not_disturb_each_other() -> None:
    def main() -> None:
        with tls_pair() as (one, other):
            reader = spawn(one.recv, 10)
            yield_now()
            ending = spawn(one.unwrap)
            yield_now()
            assert other.recv(10) == b""
            other.unwrap()
            ending.result()
            assert reader.join(5)

    run(main)


@pytest.mark.skipif(is_wine(), reason="a reset is no error to its reader there")
def test_reset_connection_is_told() -> None:
    def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            left = socket.create_connection(listener.getsockname())
            one, other = wrapped(client_context(), sockets=(left, listener.accept()[0]))
        with one:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            other.close()
            with pytest.raises(ConnectionResetError):
                one.recv(10)

    run(main)


def test_closed_connection_is_refused() -> None:
    def main() -> None:
        one, other = wrapped(client_context())
        one.close()
        other.close()
        for act in (lambda: one.recv(1), lambda: one.sendall(b"x")):
            with pytest.raises(OSError, match="Bad file"):
                act()
        with pytest.raises(ValueError, match="closed or unwrapped"):
            one.read()

    run(main)


def test_closing_wakes_the_reader_and_the_writer() -> None:
    def main() -> None:
        one, other = wrapped(client_context())
        waiting: list[Fiber[Any]] = [spawn(one.recv, 1), spawn(one.sendall, bytes(10_000_000))]
        yield_now()
        one.close()
        for fiber in waiting:
            with pytest.raises(OSError, match="closed by another fiber") as caught:
                fiber.result()
            assert caught.value.errno == errno.EBADF
        other.close()

    run(main)
