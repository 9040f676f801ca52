"""TLS of the standard module under the patch."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest

import pyfiber
import pyfiber.ssl
from pyfiber import run, spawn, yield_now
from tests.io.certificates import HOST, certificate, needs_certificates
from tests.patch.test_patched_sockets import in_fiber
from tests.support.subprocesses import run_script

pytestmark = [pytest.mark.usefixtures("patched"), needs_certificates]

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
Pair = tuple[ssl.SSLSocket, ssl.SSLSocket]


def contexts(version: ssl.TLSVersion | None = None) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    client = ssl.create_default_context(cafile=certificate())
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate())
    if version is not None:
        client.minimum_version = client.maximum_version = version
    return client, server


def made_in_fibers(version: ssl.TLSVersion | None = None) -> Pair:
    """In a fiber."""
    client, server = contexts(version)
    left, right = socket.socketpair()
    other = spawn(server.wrap_socket, right, server_side=True)
    return client.wrap_socket(left, server_hostname=HOST), other.result()


def made_in_threads(version: ssl.TLSVersion | None = None) -> Pair:
    """Anywhere else."""
    client, server = contexts(version)
    left, right = socket.socketpair()
    made: list[ssl.SSLSocket] = []
    thread = threading.Thread(
        target=lambda: made.append(server.wrap_socket(right, server_side=True))
    )
    thread.start()
    one = client.wrap_socket(left, server_hostname=HOST)
    thread.join()
    return one, made[0]


def made_elsewhere(version: ssl.TLSVersion | None = None) -> Pair:
    """In a fiber; what is given are standard ones."""
    pair: Pair = pyfiber.to_thread(made_in_threads, version)
    assert {type(each) for each in pair} == {ssl.SSLSocket}
    return pair


MAKERS = pytest.mark.parametrize("make", [made_in_fibers, made_elsewhere])
Maker = Callable[..., Pair]


@MAKERS
@pytest.mark.parametrize("version", VERSIONS)
def test_data_go_both_ways(make: Maker, version: ssl.TLSVersion) -> None:
    def main() -> None:
        left, right = make(version)
        with left, right:
            reader = in_fiber(left.recv, 10)
            right.sendall(b"one")
            assert reader.result() == b"one"
            data = bytes(range(256)) * 8192
            writer = spawn(left.sendall, data)
            got = bytearray()
            while len(got) < len(data):
                got += right.recv(65536)
            writer.result()
            assert got == data

    run(main)


@MAKERS
def test_timeout_and_cancellation_leave_a_connection_that_works(make: Maker) -> None:
    def main() -> None:
        left, right = make()
        with left, right:
            left.settimeout(0.01)
            with pytest.raises(TimeoutError, match="timed out"):
                left.recv(1)
            assert left.gettimeout() == 0.01
            left.settimeout(None)
            reader = in_fiber(left.recv, 1)
            reader.cancel()
            with pytest.raises(pyfiber.FiberCancelled):
                reader.result()
            assert left.gettimeout() is None
            left.settimeout(0)
            with pytest.raises(ssl.SSLWantReadError):
                left.recv(1)
            left.settimeout(None)
            right.sendall(b"x")
            assert left.recv(1) == b"x"

    run(main)


@MAKERS
def test_two_fibers_take_turns(make: Maker) -> None:
    def main() -> None:
        left, right = make()
        with left, right:
            readers = [in_fiber(left.recv, 1) for _ in range(2)]
            right.sendall(b"a")
            yield_now()
            right.sendall(b"b")
            assert {reader.result() for reader in readers} == {b"a", b"b"}
            writers = [spawn(left.sendall, letter * 500_000) for letter in (b"a", b"b")]
            got = bytearray()
            while len(got) < 1_000_000:
                got += right.recv(65536)
            for writer in writers:
                writer.result()
            assert got.count(b"a") == got.count(b"b") == 500_000

    run(main)


@MAKERS
def test_unwrap_parks_and_both_ends_end_tls(make: Maker) -> None:
    def main() -> None:
        left, right = make()
        with left, right:
            other = spawn(right.unwrap)
            plain = left.unwrap()
            plain.sendall(b"plain")
            assert other.result().recv(10) == b"plain"
            plain.close()
            other.result().close()

    run(main)


def test_context_made_before_gives_a_connection_that_parks() -> None:
    client, server = pyfiber.run(contexts)
    assert type(client) is ssl.SSLContext

    def main() -> None:
        left, right = pyfiber.to_thread(socket.socketpair)  # standard ones are taken over
        assert type(left) is socket.socket
        other = spawn(server.wrap_socket, right, server_side=True)
        with client.wrap_socket(left, server_hostname=HOST) as one, other.result() as two:
            assert isinstance(one, pyfiber.ssl.SSLSocket)
            assert isinstance(one, ssl.SSLSocket)
            assert left.fileno() == -1
            two.sendall(b"data")
            assert one.recv(10) == b"data"

    run(main)


def test_handshake_of_a_standard_connection_parks() -> None:
    def wrapped(left: Any) -> ssl.SSLSocket:
        client, _ = contexts()
        return client.wrap_socket(left, server_hostname=HOST, do_handshake_on_connect=False)

    def main() -> None:
        _, server = contexts()
        left, right = socket.socketpair()
        one = pyfiber.to_thread(wrapped, left)
        assert type(one) is ssl.SSLSocket
        one.settimeout(0.01)
        with pytest.raises(TimeoutError, match="handshake"):
            one.do_handshake()
        one.settimeout(0)
        shaking = in_fiber(one.do_handshake, True)
        with server.wrap_socket(right, server_side=True) as two, one:
            shaking.result()
            assert one.gettimeout() == 0
            one.settimeout(None)
            two.sendall(b"x")
            assert one.recv(1) == b"x"

    run(main)


def test_plain_threads_have_standard_connections() -> None:
    left, right = made_in_threads()
    with left, right:
        assert type(left) is ssl.SSLSocket
        right.sendall(b"x")
        assert left.recv(1) == b"x"


def test_patch_after_ssl_was_imported_does_not_recurse() -> None:
    """gevent#1016: a setter of SSLContext that found a replaced SSLContext called itself."""
    done = run_script("""
        import ssl, http.client, urllib.request
        from ssl import SSLContext, create_default_context
        import pyfiber
        early = create_default_context()
        pyfiber.patch()
        def main():
            for context in (early, create_default_context(), SSLContext(ssl.PROTOCOL_TLS_CLIENT)):
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.maximum_version = ssl.TLSVersion.TLSv1_3
                context.options |= ssl.OP_NO_TICKET
                context.verify_mode = ssl.CERT_REQUIRED
                context.verify_flags = ssl.VERIFY_DEFAULT
                print(type(context) is ssl.SSLContext)
        main()
        pyfiber.run(main)
    """)
    assert done.stdout == "True\n" * 6
