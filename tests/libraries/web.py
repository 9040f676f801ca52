"""A server of HTTP and one of websockets for the tests of their clients: threads, as they come.

`/ask/N` gives N back; `/wait` is answered when the gate is opened. Everything else is S3's, as far
as one object goes.
"""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
from collections.abc import Iterator

from tests.io.certificates import certificate


class Gate:
    """Who comes waits until it is opened for a moment."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._opened = 0
        self.waiting = 0

    def pass_through(self) -> None:
        with self._changed:
            seen = self._opened
            self.waiting += 1
            try:
                assert self._changed.wait_for(lambda: self._opened != seen, 100)
            finally:
                self.waiting -= 1

    def open(self) -> None:
        with self._changed:
            self._opened += 1
            self._changed.notify_all()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    gate: Gate

    def do_GET(self) -> None:
        if self.path.startswith("/wait"):
            self.gate.pass_through()
        number = self.path.removeprefix("/ask/")
        self._answer(number.encode() if number.isdecimal() else b"object")

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Nothing: the tests say what is wrong."""


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 300
    daemon_threads = True

    def handle_error(self, *args: object) -> None:
        """A client was cancelled, or would not speak TLS to a stranger."""


@contextlib.contextmanager
def serving(tls: bool = False) -> Iterator[tuple[str, Gate]]:
    """Its URL, and the gate."""
    gate = Gate()
    handler = type("Handler", (_Handler,), {"gate": gate})
    with _Server(("127.0.0.1", 0), handler) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate("localhost"))
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            host = "https://localhost" if tls else "http://127.0.0.1"
            yield f"{host}:{server.server_address[1]}", gate
        finally:
            gate.open()
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def serving_websockets() -> Iterator[tuple[str, Gate]]:
    """Its URL, and the gate: what is sent comes back, "wait" when the gate is opened."""
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import ServerConnection, serve

    gate = Gate()

    def handler(connection: ServerConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            for message in connection:
                if message == "wait":
                    gate.pass_through()
                connection.send(message)

    with serve(handler, "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}", gate
        finally:
            gate.open()
            server.shutdown()
            thread.join()
