"""A client that sends plain bytes, and takes answers apart by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pyfiber import net, sleep, testing, wsgi

HOST = "127.0.0.1"
HELLO = b"Hello, world!"
GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

App = Callable[..., Iterable[bytes]]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes
    complete: bool = True


def hello(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [HELLO]


def take_chunks(data: bytes) -> tuple[bytes, bytes, bool]:
    """The body, what follows it, and whether it is complete."""
    body = b""
    while True:
        line, found, data = data.partition(b"\r\n")
        if not found:
            return body, b"", False
        size = int(line, 16)
        body += data[:size]
        assert data[size : size + 2] in (b"\r\n", b""), data
        if len(data) < size + 2:
            return body, b"", False
        data = data[size + 2 :]
        if not size:
            return body, data, True


def take(data: bytes, method: str = "GET") -> tuple[Reply, bytes]:
    """The first answer, and what follows it."""
    head, found, rest = data.partition(b"\r\n\r\n")
    assert found, data
    first, *lines = head.decode("latin-1").split("\r\n")
    assert first.startswith("HTTP/1.1 "), first
    status = int(first[9:12])
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(": ")
        assert name.lower() not in headers, line
        headers[name.lower()] = value
    reply = Reply(status, headers, b"")
    if status in (100, 204, 304) or method == "HEAD":
        return reply, rest
    if headers.get("transfer-encoding") == "chunked":
        reply.body, rest, reply.complete = take_chunks(rest)
        return reply, rest
    size = int(headers.get("content-length", len(rest)))
    reply.body = rest[:size]
    reply.complete = len(reply.body) == size
    return reply, rest[size:]


def replies(data: bytes, method: str = "GET") -> list[Reply]:
    found = []
    while data:
        reply, data = take(data, method)
        found.append(reply)
    return found


def read_all(stream: net.Stream) -> bytes:
    data = b""
    try:
        while piece := stream.read():
            data += piece
    except ConnectionResetError:
        data += b"(reset)"
    return data


def converse(app: App, client: Callable[[net.Stream], Any], **options: Any) -> Any:
    """What the client returns, in a network in memory, in virtual time."""

    def main() -> Any:
        with wsgi.serve(app, HOST, 80, **options) as server, net.connect(*server.address) as stream:
            return client(stream)

    return testing.run(main, network=True)


def talk(app: App, *pieces: bytes, ends: bool = True, **options: Any) -> bytes:
    """Send the pieces, each of which arrives by itself; all that comes back till the end."""

    def client(stream: net.Stream) -> bytes:
        for piece in pieces:
            stream.write(piece)
            sleep(0.001)  # till the other end has read it
        if ends:
            stream.close_write()
        return read_all(stream)

    return converse(app, client, **options)


def ask(app: App, *pieces: bytes, method: str = "GET", **options: Any) -> Reply:
    """The only answer."""
    (reply,) = replies(talk(app, *pieces, **options), method)
    return reply
