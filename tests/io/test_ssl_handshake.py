"""How TLS connections of fibers begin: who is refused, callbacks, sessions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from pyfiber import Event, Fiber, FiberError, run, socket, spawn, ssl, yield_now
from tests.io.certificates import HOST, certificate, needs_certificates
from tests.io.tls_pairs import VERSIONS, client_context, server_context, wrapped
from tests.support.threads import in_thread

pytestmark = needs_certificates

both_versions = pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])


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
