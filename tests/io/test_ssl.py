"""TLS connections of fibers."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import socket as standard_socket
import ssl as standard_ssl
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Event,
    Fiber,
    FiberError,
    run,
    socket,
    spawn,
    ssl,
    testing,
    timeout,
    yield_now,
)
from tests.io.certificates import HOST, certificate
from tests.io.tls_pairs import (
    VERSIONS,
    client_context,
    receive,
    server_context,
    tls_pair,
    wrapped,
)
from tests.support.subprocesses import run_script

both_versions = pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])


def in_thread(fn: Callable[[], Any]) -> Any:
    """What it returns, or raises; this thread waits."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(fn).result()


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
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(number)
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


# the handshake ------------------------------------------------------------------------------------


@both_versions
@pytest.mark.parametrize("way", ["explicit", "read", "write"])
def test_handshake_that_comes_later(version: ssl.TLSVersion, way: str) -> None:
    def main() -> None:
        left, right = socket.socketpair()
        options = {"do_handshake_on_connect": False}
        client = client_context(version).wrap_socket(left, server_hostname=HOST, **options)
        server = server_context().wrap_socket(right, server_side=True, **options)
        with client, server:
            if way == "explicit":
                other = spawn(server.do_handshake)
                client.do_handshake()
                other.result()
            reader = spawn(client.recv, 10)
            if way == "read":
                other = spawn(server.recv, 10)
                assert reader.join(0.01) is False
                client.send(b"x")
                assert other.result() == b"x"
            server.sendall(b"data")
            assert reader.result() == b"data"

    run(main)


def test_connect_and_accept_shake_hands() -> None:
    def serve(listener: Any) -> None:
        with listener.accept()[0] as sock:
            assert type(sock) is ssl.SSLSocket
            sock.sendall(sock.recv(10))

    def main() -> None:
        with server_context().wrap_socket(
            socket.create_server(("127.0.0.1", 0)), server_side=True
        ) as listener:
            for connect in ("connect", "connect_ex"):
                server = spawn(serve, listener)
                with client_context().wrap_socket(socket.socket(), server_hostname=HOST) as sock:
                    assert not getattr(sock, connect)(listener.getsockname())
                    with pytest.raises(ValueError, match="already-connected"):
                        sock.connect(listener.getsockname())
                    sock.sendall(b"hello")
                    assert sock.recv(10) == b"hello"
                server.result()

    run(main)


def test_untrusted_certificate_is_refused_on_both_sides() -> None:
    def main() -> None:
        left, right = socket.socketpair()
        server = spawn(server_context("other.invalid").wrap_socket, right, server_side=True)
        with pytest.raises(ssl.SSLCertVerificationError):
            client_context().wrap_socket(left, server_hostname=HOST)
        with pytest.raises(ssl.SSLError, match=r"(?i)alert.unknown.ca"):
            server.result()

    run(main)


def test_wrong_name_is_refused() -> None:
    def main() -> None:
        left, right = socket.socketpair()
        server = spawn(server_context().wrap_socket, right, server_side=True)
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            client_context().wrap_socket(left, server_hostname="else.invalid")
        with pytest.raises(ssl.SSLError):
            server.result()

    run(main)


@pytest.mark.parametrize("way", [run, in_thread], ids=["fiber", "thread"])
def test_peer_that_does_not_speak_tls_is_refused_at_once(way: Callable[..., Any]) -> None:
    def main() -> None:
        left, right = socket.socketpair()
        with left:
            left.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with pytest.raises(ssl.SSLError, match=r"(?i)http.request"):
                server_context().wrap_socket(right, server_side=True)

    way(main)


def test_peer_that_goes_in_the_handshake_is_an_eof() -> None:
    def main() -> None:
        left, right = socket.socketpair()
        right.close()
        with pytest.raises((ssl.SSLEOFError, ConnectionError)):
            client_context().wrap_socket(left, server_hostname=HOST)
        left, right = socket.socketpair()
        server = spawn(server_context().wrap_socket, right, server_side=True)
        yield_now()
        left.close()
        with pytest.raises(ssl.SSLEOFError):
            server.result()

    run(main)


def test_name_callback_may_park_and_choose_another_context() -> None:
    seen: list[Any] = []
    other_context = server_context()
    other_context.set_alpn_protocols(["chosen"])

    def choose(sock: Any, name: str, context: ssl.SSLContext) -> None:
        seen.append((type(sock), name))
        for _ in range(3):
            yield_now()
        sock.context = other_context

    def main() -> None:
        context = server_context()
        context.sni_callback = choose
        client = client_context()
        client.set_alpn_protocols(["chosen"])
        one, other = wrapped(client, context)
        with one, other:
            assert other.context is other_context
            assert one.selected_alpn_protocol() == "chosen"
        assert seen == [(ssl.SSLSocket, HOST)]

    run(main)


def test_nobody_enters_a_connection_whose_callback_is_parked() -> None:
    def main() -> None:
        inside, leave = Event(), Event()

        def park(*_: Any) -> None:
            inside.set()
            leave.wait()

        context = server_context()
        context.sni_callback = park
        left, right = socket.socketpair()
        server = context.wrap_socket(right, server_side=True, do_handshake_on_connect=False)
        shaking = spawn(server.do_handshake)
        client = spawn(client_context().wrap_socket, left, server_hostname=HOST)
        inside.wait()
        reader: Fiber[bytes] = spawn(server.recv, 10)
        writer: Fiber[int] = spawn(server.send, b"from the server")
        for _ in range(3):
            yield_now()
        assert server.pending() == 0
        assert not reader.done()
        leave.set()
        shaking.result()
        with client.result() as sock, server:
            sock.sendall(b"data")
            assert reader.result() == b"data"
            assert writer.result() == 15
            assert sock.recv(100) == b"from the server"

    run(main)


def test_callback_that_uses_its_own_connection_is_refused() -> None:
    failures: list[BaseException] = []

    def use(sock: Any, *_: Any) -> None:
        for act in (sock.recv, partial(sock.send, b"x"), sock.unwrap, sock.do_handshake):
            try:
                act()
            except FiberError as exc:
                failures.append(exc)

    def main() -> None:
        context = server_context()
        context.sni_callback = use
        one, other = wrapped(client_context(), context)
        one.close()
        other.close()

    run(main)
    assert len(failures) == 4
    assert all("callback of a TLS connection" in str(exc) for exc in failures)


@both_versions
def test_session_is_resumed(version: ssl.TLSVersion) -> None:
    def main() -> None:
        client, server = client_context(version), server_context()
        one, other = wrapped(client, server)
        with one, other:
            other.sendall(b"x")
            assert one.recv(1) == b"x"
            assert not one.session_reused
            session = one.session
        one, other = wrapped(client, server, session=session)
        with one, other:
            assert one.session_reused
            assert other.session_reused

    run(main)


def test_what_a_connection_tells_of_itself() -> None:
    def main() -> None:
        client, server = client_context(ssl.TLSVersion.TLSv1_2), server_context()
        client.set_alpn_protocols(["a", "b"])
        server.set_alpn_protocols(["b"])
        one, other = wrapped(client, server)
        with one, other:
            assert one.selected_alpn_protocol() == other.selected_alpn_protocol() == "b"
            assert one.cipher() == other.cipher()
            assert one.cipher() in other.shared_ciphers()
            assert one.compression() is None
            binding = one.get_channel_binding("tls-unique")
            assert binding
            assert binding == other.get_channel_binding("tls-unique")
            assert one.getpeercert()["subjectAltName"] == (("DNS", HOST),)
            assert other.getpeercert() is None
            assert "pyfiber.ssl.SSLSocket" in repr(one)
            with pytest.raises(NotImplementedError):
                one.dup()

    run(main)


@pytest.mark.parametrize("given", [True, False])
def test_client_is_asked_for_a_certificate_after_the_handshake(given: bool) -> None:
    def main() -> None:
        client, server = client_context(), server_context()
        server.load_verify_locations(certificate())
        client.post_handshake_auth = server.post_handshake_auth = True
        server.verify_mode = ssl.CERT_REQUIRED
        if given:
            client.load_cert_chain(certificate())
        one, other = wrapped(client, server)
        with one, other:
            assert not other.getpeercert()
            reader = spawn(one.recv, 10)
            other.verify_client_post_handshake()
            other.sendall(b"asked")
            assert reader.result() == b"asked"
            one.sendall(b"x")
            if given:
                assert other.recv(10) == b"x"
                assert other.getpeercert()["subjectAltName"] == (("DNS", HOST),)
            else:
                with pytest.raises(ssl.SSLError, match=r"(?i)did.not.return.a.certificate"):
                    other.recv(10)
                with pytest.raises(ssl.SSLError, match=r"(?i)certificate.required"):
                    one.recv(10)

    run(main)


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
            number = standard_socket.socket(fileno=os.dup(other.fileno()))
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
        waiting: list[Fiber[Any]] = [
            spawn(one.recv, 1),
            spawn(one.sendall, bytes(10_000_000)),
        ]
        yield_now()
        one.close()
        for fiber in waiting:
            with pytest.raises(OSError, match="closed by another fiber") as caught:
                fiber.result()
            assert caught.value.errno == errno.EBADF
        other.close()

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
