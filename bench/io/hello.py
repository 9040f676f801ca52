"""Parses as much HTTP/1.1 as a hello server needs: requests without a body."""

from __future__ import annotations

BODY = b"Hello, world!"
END = b"\r\n\r\n"

#: What a client sends, and what must come back.
REQUEST = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: load\r\nAccept: */*\r\n"
    b"Accept-Encoding: gzip\r\nConnection: keep-alive" + END
)
RESPONSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 13" + END + BODY
NOT_FOUND = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0" + END


def parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, target and headers of a request; names of headers in small letters."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return method, target, headers


def respond(head: bytes) -> bytes:
    """The answer to one request."""
    method, target, headers = parse(head)
    known = method == "GET" and target == "/" and "host" in headers
    return RESPONSE if known else NOT_FOUND


class Requests:
    """The bytes of a connection that are not answered yet."""

    def __init__(self) -> None:
        self.rest = b""

    def answers(self, data: bytes) -> bytes:
        """The answers to all requests that are complete with these data."""
        data = self.rest + data
        answers = b""
        while (end := data.find(END)) >= 0:
            answers += respond(data[:end])
            data = data[end + len(END) :]
        self.rest = data
        return answers
