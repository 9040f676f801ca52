"""pyfiber.net with TLS: whom it trusts, how a connection ends, and who never shakes hands."""

from __future__ import annotations

import contextlib
import errno
import logging
import ssl as standard_ssl
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import (
    FiberError,
    gather,
    move_on_after,
    net,
    run,
    sleep,
    socket,
    spawn,
    ssl,
    testing,
    timeout,
    yield_now,
)
from pyfiber.net import _server, _stream
from tests.io.certificates import HOST as NAME
from tests.io.certificates import certificate, needs_certificates
from tests.io.tls_pairs import VERSIONS, client_context, server_context, tls_pair
from tests.support.threads import in_thread
from tests.support.wine import is_wine

pytestmark = needs_certificates

HOST = "127.0.0.1"
TLS13 = ssl.TLSVersion.TLSv1_3

both_versions = pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])


def echo(stream: net.Stream) -> None:
    while data := stream.read():
        stream.write(data)


def connect(server: net.Server, tls: Any = None, **options: Any) -> net.Stream:
    options.setdefault("server_hostname", NAME)
    return net.connect(*server.address, tls=tls or client_context(), **options)


def ask(server: net.Server, text: bytes = b"hello") -> bytes:
    """Say something, and return the answer up to its end."""
    with connect(server) as stream:
        stream.write(text)
        stream.close_write()
        return b"".join(iter(stream.read, b""))


@contextlib.contextmanager
def plain_streams() -> Iterator[tuple[net.Stream, net.Stream]]:
    """Both ends of a connection."""
    with net.listen(HOST, 0) as listener:
        first = net.connect(*listener.address)
        second = listener.accept()
    with first, second:
        yield first, second


@contextlib.contextmanager
def streams(version: ssl.TLSVersion | None = None) -> Iterator[tuple[net.Stream, net.Stream]]:
    """The same with TLS: the client's end, and the server's."""
    with plain_streams() as (first, second):
        other = spawn(second.start_tls, server_context(), server_side=True)
        first.start_tls(client_context(version), server_hostname=NAME)
        other.result()
        yield first, second


def until(condition: Callable[[], object]) -> None:
    with timeout(30):
        while not condition():
            sleep(0.0005)


# who is trusted -----------------------------------------------------------------------------------


def test_server_with_a_known_certificate_is_talked_to() -> None:
    def main() -> None:
        with net.serve(echo, HOST, 0, tls=server_context()) as server:
            assert gather(*[lambda i=i: ask(server, b"%d" % i) for i in range(20)]) == [
                b"%d" % i for i in range(20)
            ]

    run(main)


def failure_of_connecting(server_name: str = NAME, **options: Any) -> BaseException:
    """What a client is told, after the server has been told as well."""
    told: list[Exception] = []

    def main() -> BaseException:
        def note(exc: Exception, peer: Any) -> None:
            told.append(exc)

        with net.serve(echo, HOST, 0, tls=server_context(server_name), on_error=note) as server:
            with pytest.raises(ssl.SSLError) as caught:
                connect(server, **options)
            until(lambda: told)
            if server_name == NAME:
                assert ask(server) == b"hello"
        return caught.value

    failure: BaseException = run(main)
    assert isinstance(told[0], ssl.SSLError)
    return failure


def test_certificate_of_another_host_is_refused() -> None:
    failure = failure_of_connecting(server_hostname="else.invalid")
    assert isinstance(failure, ssl.SSLCertVerificationError)
    assert "Hostname mismatch" in str(failure)


def test_certificate_of_an_unknown_authority_is_refused() -> None:
    failure = failure_of_connecting("other.invalid", server_hostname="other.invalid")
    assert isinstance(failure, ssl.SSLCertVerificationError)
    assert "self-signed" in str(failure) or "self signed" in str(failure)


def test_true_verifies() -> None:
    """By the authorities of the system, which do not know this one."""
    failure = failure_of_connecting(tls=True)
    assert isinstance(failure, ssl.SSLCertVerificationError)


def test_true_trusts_what_the_system_trusts_and_checks_the_name(child: Any) -> None:
    """The name is the host that was connected to, unless another one is given."""
    child(
        """
        import sys
        from pyfiber import net, run, ssl

        def main():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(sys.argv[1])
            answer = lambda stream: stream.write(b"fine")
            with net.serve(
                answer, "127.0.0.1", 0, tls=context, on_error=lambda *_: None
            ) as server:
                with net.connect(
                    *server.address, tls=True, server_hostname=sys.argv[2]
                ) as stream:
                    assert stream.read() == b"fine"
                try:
                    net.connect(*server.address, tls=True)
                except ssl.SSLCertVerificationError as exc:
                    assert "IP address mismatch" in str(exc), exc
                else:
                    raise AssertionError("no name was checked")

        run(main)
        """,
        certificate(),
        NAME,
        env={"SSL_CERT_FILE": certificate()},
    )


def test_context_of_the_standard_module_parks_as_well() -> None:
    serving = standard_ssl.SSLContext(standard_ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate())
    asking = standard_ssl.create_default_context(cafile=certificate())

    def main() -> None:
        with net.serve(echo, HOST, 0, tls=serving) as server, connect(server, asking) as stream:
            reader = spawn(stream.read)
            yield_now()
            stream.write(b"x")
            assert reader.result() == b"x"

    run(main)


@pytest.mark.parametrize(
    ("tls", "error", "text"),
    [(True, ValueError, "needs a certificate"), ("yes", TypeError, "SSLContext, not 'str'")],
)
def test_server_without_a_context_is_refused_at_once(tls: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        net.serve(echo, HOST, 0, tls=tls)


def test_client_with_a_wrong_context_is_refused_and_nothing_is_left_open() -> None:
    def main() -> None:
        with net.listen(HOST, 0) as listener:
            with pytest.raises(TypeError, match="SSLContext, not 'str'"):
                net.connect(*listener.address, tls="yes")  # type: ignore[arg-type]
            with listener.accept() as accepted:
                assert accepted.read() == b""

    run(main)


def test_connection_tells_its_protocols() -> None:
    serving, asking = server_context(), client_context()
    serving.set_alpn_protocols(["h2", "http/1.1"])
    asking.set_alpn_protocols(["http/1.1"])
    seen = []

    def handler(stream: net.Stream) -> None:
        assert stream.is_tls
        seen.append(stream.socket.selected_alpn_protocol())  # type: ignore[attr-defined]

    def main() -> None:
        with net.serve(handler, HOST, 0, tls=serving) as server:
            stream = connect(server, asking)
            assert stream.is_tls
            assert stream.socket.selected_alpn_protocol() == "http/1.1"  # type: ignore[attr-defined]
            assert stream.peer == server.address
            assert repr(stream) == f"<pyfiber.net.Stream to {HOST}:{stream.peer[1]}, TLS>"
            assert stream.read() == b""
            stream.close()

    run(main)
    assert seen == ["http/1.1"]


# reading and writing ------------------------------------------------------------------------------


def test_all_reads_and_writes_are_encrypted_alike() -> None:
    def main() -> None:
        with streams() as (one, other):
            one.write([b"GET\n", b"12345678", bytearray(b"rest\n"), memoryview(b"more")])
            assert next(other) == b"GET\n"
            assert other.read_exactly(8) == b"12345678"
            assert other.read_until(b"\n") == b"rest\n"
            assert other.read_exactly(4) == b"more"
            text = bytes(range(256)) * 5000
            writer = spawn(one.write, [text, text])
            assert other.read_exactly(2 * len(text)) == text + text
            writer.result()

    run(main)


def test_starting_tls_in_the_middle_of_a_connection() -> None:
    def handler(stream: net.Stream) -> None:
        assert next(stream) == b"STARTTLS\n"
        stream.write(b"go\n")
        stream.start_tls(server_context(), server_side=True)
        stream.write(next(stream).upper())

    def main() -> None:
        with net.serve(handler, HOST, 0) as server, net.connect(*server.address) as stream:
            stream.write(b"STARTTLS\n")
            assert next(stream) == b"go\n"
            stream.start_tls(client_context(), server_hostname=NAME)
            stream.write(b"secret\n")
            assert list(stream) == [b"SECRET\n"]

    run(main)


def test_plain_data_that_came_too_early_are_not_taken_for_encrypted_ones() -> None:
    def main() -> None:
        with plain_streams() as (stream, accepted):
            stream.write(b"STARTTLS\nRSET\n")
            assert next(accepted) == b"STARTTLS\n"
            with pytest.raises(FiberError, match="would take plain data"):
                accepted.start_tls(server_context(), server_side=True)
            assert next(accepted) == b"RSET\n"

    run(main)


def test_connection_in_use_does_not_start_tls() -> None:
    def main() -> None:
        with plain_streams() as (stream, accepted):
            reader = spawn(next, stream)
            yield_now()
            with pytest.raises(FiberError, match="another fiber uses this stream"):
                stream.start_tls(client_context(), server_hostname=NAME)
            accepted.write(b"line\n")
            assert reader.result() == b"line\n"

    run(main)


@pytest.mark.parametrize("way", [run, in_thread], ids=["fiber", "thread"])
def test_streams_outside_of_a_run_block_their_thread(way: Callable[..., Any]) -> None:
    listener = net.listen(HOST, 0)

    def serve() -> None:
        with listener.accept() as stream:
            stream.start_tls(server_context(), server_side=True)
            echo(stream)

    def main() -> None:
        with net.connect(
            *listener.address, tls=client_context(), server_hostname=NAME, timeout=30
        ) as stream:
            stream.write(b"hello")
            stream.close_write()
            assert b"".join(iter(stream.read, b"")) == b"hello"

    import threading

    with listener:
        server = threading.Thread(target=serve)
        server.start()
        way(main)
        server.join()


# the end ------------------------------------------------------------------------------------------


@both_versions
def test_close_write_leaves_the_other_direction(version: ssl.TLSVersion) -> None:
    def main() -> None:
        with streams(version) as (one, other):
            one.write(b"question")
            one.close_write()
            assert [other.read(), other.read(), other.read()] == [b"question", b"", b""]
            for text in (b"long ", b"answer"):
                other.write(text)
                assert one.read() == text
            with pytest.raises(ssl.SSLError, match=r"(?i)shutdown"):
                one.write(b"more")
            other.close()
            assert [one.read(), one.read()] == [b"", b""]

    run(main)


@both_versions
def test_both_ends_close_write(version: ssl.TLSVersion) -> None:
    def main() -> None:
        with streams(version) as (one, other):
            one.close_write()
            other.close_write()
            assert [one.read(), other.read(), one.read(), other.read()] == [b""] * 4
            other.close_write()

    run(main)


@both_versions
def test_close_write_loses_nothing_that_has_come(version: ssl.TLSVersion) -> None:
    """Neither what is in a record that has been read in part, nor in records behind it."""

    def main() -> None:
        with streams(version) as (one, other):
            for part in (b"first", b"second", b"third"):
                other.write(part)
            assert one.read(2) == b"fi"
            one.close_write()
            assert one.socket.pending() == len(b"rstsecondthird")  # type: ignore[attr-defined]
            other.write(b"fourth")
            other.close()
            assert one.read(1) == b"r"
            buffer = bytearray(3)
            assert one.socket.recv_into(buffer, 2) == 2
            assert one.socket.recv_into(memoryview(buffer)[2:]) == 1
            assert bytes(buffer) == b"sts"
            assert one.read_exactly(16) == b"econdthirdfourth"
            assert one.read() == b""

    run(main)


@both_versions
@pytest.mark.parametrize("parked", [True, False])
def test_close_write_beside_a_reader_takes_nothing_from_it(
    version: ssl.TLSVersion, parked: bool
) -> None:
    def main() -> None:
        with streams(version) as (one, other):
            reader = spawn(one.read_exactly, 12)
            if parked:
                yield_now()
                other.write(b"abcd")
                sleep(0)
            other.write(b"efgh" if parked else b"abcdefgh")
            one.close_write()
            other.write(b"ijkl")
            assert reader.result() == b"abcdefghijkl"
            assert other.read() == b""

    run(main)


def test_close_write_waits_until_all_can_go() -> None:
    def main() -> None:
        with streams() as (one, other):
            with move_on_after(0.001):
                while True:
                    one.write(bytes(100_000))
            ending = spawn(one.close_write)
            yield_now()
            assert not ending.done()
            with pytest.raises(FiberError, match="another fiber writes to this stream"):
                one.write(b"x")
            while other.read():
                pass
            ending.result()

    run(main)


def test_closed_stream_tells_its_end_and_a_failed_one_does_not() -> None:
    def main() -> None:
        with streams() as (one, other):
            one.write(b"all")
            one.close()
            assert other.read_exactly(3) == b"all"
            assert other.read() == b""
        with streams() as (one, other):
            with contextlib.suppress(LookupError), one:
                one.write(b"a part")
                raise LookupError
            assert other.read_exactly(6) == b"a part"
            with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
                other.read()

    run(main)


def test_handler_that_fails_does_not_make_its_answer_look_complete() -> None:
    def handler(stream: net.Stream) -> None:
        stream.write(b"a part")
        raise LookupError

    def main() -> None:
        server = net.serve(handler, HOST, 0, tls=server_context(), on_error=lambda *_: None)
        with server, connect(server) as stream:
            assert stream.read_exactly(6) == b"a part"
            with pytest.raises(ssl.SSLEOFError):
                stream.read()

    run(main)


def test_closing_with_a_write_under_way_does_not_tell_an_end() -> None:
    def main() -> None:
        with streams() as (one, other):
            writer = spawn(one.write, bytes(10_000_000))
            yield_now()
            one.close()
            with pytest.raises(OSError, match="closed by another fiber"):
                writer.result()
            with pytest.raises((ssl.SSLError, ConnectionError)):
                list(iter(other.read, b""))

    run(main)


def test_second_writer_and_a_close_write_meanwhile_are_refused() -> None:
    def main() -> None:
        with streams() as (one, other):
            writer = spawn(one.write, bytes(10_000_000))
            yield_now()
            with pytest.raises(FiberError, match="another fiber writes to this stream"):
                one.close_write()
            writer.cancel()
            writer.join()
            del other

    run(main)


def test_what_writing_was_ended_with_is_the_native_sockets_as_well() -> None:
    """The standard module's own way to the same is unwrap(), which waits for the other end."""

    def main() -> None:
        with tls_pair() as (one, other):
            other.sendall(b"data")
            one._end_write()
            assert one.recv(2) == b"da"
            assert one.recv(1 << 40) == b"ta"
            assert other.recv(10) == b""
            ending = spawn(other.unwrap)
            assert one.recv(10) == b""
            assert one.recv(10) == b""
            ending.result()

    run(main)


# the handshake ------------------------------------------------------------------------------------


def test_time_out_of_connecting_includes_the_handshake() -> None:
    """In time that stands until nothing is left to do."""

    def main() -> None:
        with net.listen(HOST, 0) as listener:
            with pytest.raises(TimeoutError):
                net.connect(*listener.address, tls=client_context(), timeout=10)
            with listener.accept() as accepted:
                assert list(iter(accepted.read, b""))  # it was begun, and is at its end

    testing.run(main, network=True)


def test_cancelled_handshake_closes_the_connection() -> None:
    def main() -> None:
        with net.listen(HOST, 0) as listener:
            stream = net.connect(*listener.address)
            shaking = spawn(stream.start_tls, server_hostname=NAME)
            accepted = listener.accept()
            assert accepted.read()
            assert stream.fileno() >= 0
            shaking.cancel()
            shaking.join()
            assert shaking.cancelled()
            assert stream.fileno() == -1
            with pytest.raises(OSError, match="Bad file"):
                stream.write(b"plain text")
            assert accepted.read() == b""
            accepted.close()

    run(main)


def test_stream_that_is_closed_during_the_handshake_stays_closed() -> None:
    def main() -> None:
        with net.listen(HOST, 0) as listener:
            stream = net.connect(*listener.address)
            shaking = spawn(stream.start_tls, server_hostname=NAME)
            yield_now()
            with pytest.raises(FiberError, match="another fiber reads from this stream"):
                stream.read()
            stream.close()
            with pytest.raises(OSError, match=f"Errno {errno.EBADF}"):
                shaking.result()
            assert stream.fileno() == -1

    run(main)


def test_failed_handshake_is_told_and_the_server_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def main() -> None:
        with net.serve(echo, HOST, 0, tls=server_context()) as server:
            with net.connect(*server.address) as stream:
                stream.write(b"GET / HTTP/1.1\r\n\r\n")
                place = "{}:{}".format(*stream.local)
                with contextlib.suppress(ConnectionError):
                    while stream.read():
                        pass
            until(lambda: caplog.records)
            assert ask(server) == b"hello"
        record = caplog.records[0]
        assert record.levelno == logging.WARNING
        assert record.exc_info is None
        assert record.getMessage().startswith(f"the connection of {place} was lost:")
        assert "HTTP_REQUEST" in record.getMessage().upper().replace(" ", "_")

    run(main)


@pytest.mark.parametrize("drips", [False, True])
def test_client_that_never_shakes_hands_is_left_after_a_while(drips: bool) -> None:
    told: list[Exception] = []

    def drip(stream: net.Stream) -> None:
        """A handshake that goes on, a byte at a time."""
        with contextlib.suppress(OSError):
            for byte in b"\x16\x03\x01\x40\x00" + bytes(16384):
                stream.write(bytes([byte]))
                sleep(0.001)

    def main() -> None:
        with (
            net.serve(
                echo,
                HOST,
                0,
                tls=server_context(),
                on_error=lambda exc, peer: told.append(exc),
                handshake_timeout=0.01,
            ) as server,
            net.connect(*server.address) as stream,
        ):
            if drips:
                spawn(drip, stream)
            with contextlib.suppress(ConnectionResetError):
                assert stream.read() == b""

    run(main)
    assert isinstance(told[0], ConnectionAbortedError)
    assert told[0].errno == errno.ECONNABORTED
    assert "no TLS handshake within 0.01 seconds" in str(told[0])


def test_large_buffers_are_encrypted_without_a_copy_of_all() -> None:
    large, small = bytes(100_000), b"x" * 100
    buffers = [small, small, large, small, large, large, b"", small]
    pieces = list(_stream._pieces([memoryview(each) for each in buffers]))
    assert [getattr(piece, "obj", piece) for piece in pieces] == [
        small + small,
        large,
        small,
        large,
        large,
        small,
    ]
    assert all(piece.obj is large for piece in pieces if isinstance(piece, memoryview))

    def main() -> None:
        with (
            net.serve(echo, HOST, 0, tls=server_context()) as server,
            connect(server) as stream,
        ):
            spawn(stream.write, buffers)
            assert stream.read_exactly(300_400) == b"".join(buffers)

    run(main)


@pytest.mark.parametrize("grace", [0, 0.005])
def test_clients_that_never_shake_hands_keep_nobody_waiting(grace: float) -> None:
    def main() -> None:
        with net.serve(echo, HOST, 0, tls=server_context(), grace=grace) as server:
            silent = [net.connect(*server.address) for _ in range(20)]
            until(lambda: server.connections == 20)
            assert ask(server) == b"hello"
        for stream in silent:
            assert stream.read() == b""
            stream.close()

    with timeout_of_a_test():
        run(main)


@contextlib.contextmanager
def timeout_of_a_test() -> Iterator[None]:
    """Far less than the minute that a handshake may take."""
    import time

    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < _server.HANDSHAKE / 2


@pytest.mark.skipif(is_wine(), reason="a reset is no error to its reader there")
def test_peer_that_resets_in_the_handshake_is_a_lost_connection() -> None:
    import struct

    told: list[Exception] = []

    def main() -> None:
        with net.serve(
            echo, HOST, 0, tls=server_context(), on_error=lambda exc, peer: told.append(exc)
        ) as server:
            stream = net.connect(*server.address)
            until(lambda: server.connections)
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.close()
            until(lambda: told)
            assert ask(server) == b"hello"

    run(main)
    assert isinstance(told[0], ConnectionResetError)
