"""TLS connections of fibers: what they are, their data, and who may use them."""

from __future__ import annotations

import contextlib
import gc
import os
import socket as standard_socket
import ssl as standard_ssl
import threading
from typing import Any

import pytest

from pyfiber import FiberError, run, socket, spawn, ssl, yield_now
from tests.io.certificates import HOST, certificate, needs_certificates
from tests.io.tls_pairs import VERSIONS, client_context, receive, server_context, tls_pair, wrapped
from tests.support.subprocesses import run_script

pytestmark = needs_certificates

both_versions = pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])


# what it is ---------------------------------------------------------------------------------------


def test_module_has_every_public_name_of_the_standard_one() -> None:
    missing = {name for name in vars(standard_ssl) if name[0] != "_"} - set(vars(ssl))
    assert not missing
    for name in ("_create_unverified_context", "_create_stdlib_context"):
        assert isinstance(getattr(ssl, name)(), ssl.SSLContext)
    assert ssl._create_default_https_context is ssl.create_default_context
    assert ssl.SSLObject is standard_ssl.SSLObject
    assert ssl.MemoryBIO is standard_ssl.MemoryBIO


def test_ssl_is_not_imported_with_pyfiber() -> None:
    done = run_script("""
        import sys
        import pyfiber
        print("ssl" in sys.modules, "pyfiber.ssl" in sys.modules)
    """)
    assert done.stdout == "False False\n"


def test_connection_is_a_standard_one_and_a_socket_of_ours() -> None:
    def main() -> None:
        with tls_pair() as pair:
            for sock in pair:
                assert isinstance(sock, ssl.SSLSocket)
                assert isinstance(sock, standard_ssl.SSLSocket)
                assert isinstance(sock, socket.socket)
                assert isinstance(sock.context, ssl.SSLContext)
            assert pair[1].server_side
            assert pair[0].server_hostname == HOST

    run(main)


def test_standard_context_makes_ours_when_told_to() -> None:
    context = standard_ssl.create_default_context(cafile=certificate())
    context.sslsocket_class = ssl.SSLSocket

    def main() -> None:
        one, other = wrapped(context)  # type: ignore[arg-type]
        with one, other:
            assert type(one) is ssl.SSLSocket
            other.sendall(b"data")
            assert one.recv(10) == b"data"

    run(main)


def test_standard_socket_gets_a_standard_connection() -> None:
    left, right = standard_socket.socketpair()
    with left, right:
        sock = ssl._create_unverified_context().wrap_socket(left, do_handshake_on_connect=False)
        with sock:
            assert type(sock) is standard_ssl.SSLSocket


def test_what_the_standard_module_refuses_is_refused() -> None:
    left, right = socket.socketpair()
    context = client_context()
    with left, right:
        with pytest.raises(ValueError, match="check_hostname requires server_hostname"):
            context.wrap_socket(left)
        with pytest.raises(ValueError, match="server_hostname can only"):
            context.wrap_socket(left, server_side=True, server_hostname=HOST)
        left.settimeout(0)
        with pytest.raises(ValueError, match="should not be specified for non-blocking"):
            context.wrap_socket(left, server_hostname=HOST)
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams,
        pytest.raises(NotImplementedError, match="only stream sockets"),
    ):
        context.wrap_socket(datagrams, server_hostname=HOST)


def test_dropped_connection_closes_its_number() -> None:
    def main() -> None:
        one, other = wrapped(client_context())
        number = one.fileno()
        gc.disable()
        try:
            with pytest.warns(ResourceWarning, match="unclosed"):
                del one
            with pytest.raises(OSError, match=r"Bad file|WinError"):
                standard_socket.socket(fileno=number)
        finally:
            gc.enable()
        other.close()

    run(main)


# data ---------------------------------------------------------------------------------------------


@both_versions
def test_both_ends_send_and_receive_at_the_same_time(version: ssl.TLSVersion) -> None:
    """More than the system's buffers hold: each has to read while it writes."""
    texts = os.urandom(3_000_000), os.urandom(2_000_000)

    def main() -> None:
        with tls_pair(version) as pair:
            assert pair[0].version() == pair[1].version() == version.name.replace("_", ".")
            writers = [spawn(sock.sendall, text) for sock, text in zip(pair, texts, strict=True)]
            readers = [spawn(receive, pair[1 - i], len(texts[i])) for i in range(2)]
            for i in range(2):
                assert readers[i].result() == texts[i]
                writers[i].result()

    run(main)


def test_reader_parks_and_others_run() -> None:
    def main() -> list[str]:
        log: list[str] = []
        with tls_pair() as (one, other):
            reader = spawn(lambda: log.append(one.recv(10).decode()))
            yield_now()
            log.append("others")
            other.sendall(b"data")
            reader.result()
        return log

    assert run(main) == ["others", "data"]


def test_recv_into_makefile_and_sendfile(tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789" * 10_000)

    def main() -> None:
        with tls_pair() as (one, other):
            buffer = bytearray(10)
            other.sendall(b"abcdef")
            assert one.recv_into(buffer, 4) == 4
            assert one.recv_into(memoryview(buffer)[4:]) == 2
            assert buffer[:6] == b"abcdef"
            with one.makefile("rwb") as file, other.makefile("r") as lines:
                file.write(b"one\ntwo\n")
                file.flush()
                assert [next(lines), next(lines)] == ["one\n", "two\n"]
            with path.open("rb") as file:
                writer = spawn(one.sendfile, file, 10)
                assert receive(other, 99_990) == path.read_bytes()[10:]
                assert writer.result() == 99_990

    run(main)


@pytest.mark.parametrize("size", [1, 100, 16384, 16385, 1_000_000])
def test_recv_of_any_size_gives_at_most_a_record(size: int) -> None:
    def main() -> None:
        with tls_pair() as (one, other):
            text = os.urandom(40_000)
            writer = spawn(other.sendall, text)
            got = b""
            while len(got) < len(text):
                part = one.recv(size)
                assert 0 < len(part) <= min(size, 16384)
                got += part
            assert got == text
            writer.result()

    run(main)


def test_pending_tells_of_records_that_came_with_another() -> None:
    """Whoever asks the system whether there is something to read asks this first."""

    def main() -> None:
        with tls_pair() as (one, other):
            other.sendall(b"first")
            other.sendall(b"second")
            assert one.recv(3) == b"fir"
            assert one.pending() == 2
            assert one.recv(10) == b"st"
            assert one.pending() > 0
            assert one.recv(10) == b"second"
            assert one.pending() == 0

    run(main)


def test_socket_that_never_waits_leaves_what_it_does_not_read_to_the_system() -> None:
    import select

    def main() -> None:
        with tls_pair() as (one, other):
            one.settimeout(0)
            other.sendall(b"first")
            other.sendall(b"second")
            assert receive_now(one) == b"first"
            assert select.select([one], [], [], 0)[0] == [one]
            assert receive_now(one) == b"second"

    def receive_now(sock: Any) -> bytes:
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):  # tickets
                data: bytes = sock.recv(100)
                return data

    run(main)


def test_empty_and_odd_data_are_sent() -> None:
    import array

    def main() -> None:
        with tls_pair() as (one, other):
            one.sendall(b"")
            one.sendall(array.array("i", [1, 2]))
            assert other.recv(100) == array.array("i", [1, 2]).tobytes()
            for bad in ("text", None, 3):
                with pytest.raises(TypeError):
                    one.sendall(bad)
                with pytest.raises(TypeError):
                    one.send(bad)
            with pytest.raises(TypeError):
                other.recv("1")
            with pytest.raises(ValueError, match="negative"):
                other.recv(-1)
            with pytest.raises(ValueError, match="non-zero flags"):
                other.recv(1, 1)
            assert other.recv(0) == b""

    run(main)


# misuse, and threads ------------------------------------------------------------------------------


def test_second_reader_and_second_writer_are_refused() -> None:
    def main() -> None:
        with tls_pair() as (one, other):
            reader = spawn(one.recv, 10)
            writer = spawn(one.sendall, bytes(5_000_000))
            yield_now()
            with pytest.raises(FiberError, match="another fiber reads from this socket"):
                one.recv(1)
            with pytest.raises(FiberError, match="another fiber writes to this socket"):
                one.send(b"x")
            other.send(b"x")
            assert reader.result() == b"x"
            assert receive(other, 5_000_000) == bytes(5_000_000)
            writer.result()

    run(main)


@both_versions
def test_plain_threads_block_as_on_a_standard_connection(version: ssl.TLSVersion) -> None:
    text = os.urandom(2_000_000)
    one, other = run(wrapped, client_context(version))
    with one, other:
        threads = [threading.Thread(target=sock.sendall, args=(text,)) for sock in (one, other)]
        got: list[bytes] = []
        threads.append(threading.Thread(target=lambda: got.append(receive(one, len(text)))))
        for thread in threads:
            thread.start()
        assert receive(other, len(text)) == text
        for thread in threads:
            thread.join()
        assert got == [text]


def test_standard_peer_on_a_thread_is_understood() -> None:
    context = standard_ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate())

    def serve(listener: Any) -> None:
        with context.wrap_socket(listener.accept()[0], server_side=True) as sock:
            while data := sock.recv(1000):
                sock.sendall(data)

    with standard_socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()

        def main() -> None:
            sock = socket.create_connection(listener.getsockname())
            with client_context().wrap_socket(sock, server_hostname=HOST) as tls:
                for size in (1, 1000, 50_000):
                    writer = spawn(tls.sendall, bytes(size))
                    assert receive(tls, size) == bytes(size)
                    writer.result()

        run(main)
        thread.join()


def test_certificate_of_a_server_is_fetched() -> None:
    def serve(listener: Any) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as sock:
            server_context().wrap_socket(sock, server_side=True).close()

    def main() -> str:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            fiber = spawn(serve, listener)
            got = ssl.get_server_certificate(listener.getsockname())
            fiber.join()
            return got

    pem = run(main)
    with open(certificate()) as file:
        assert pem.strip() in file.read()
