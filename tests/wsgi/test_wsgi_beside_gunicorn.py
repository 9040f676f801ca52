"""pyfiber.wsgi beside gunicorn's own code: the same bytes are the same requests, or refused.

Each case goes to both. Where gunicorn refuses, so does this server, but for what is in TAKEN and
does no harm. Where both serve, the application sees the same requests. This server may refuse more.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.wsgi.talking import GET, take, talk
from tests.wsgi.test_wsgi_refused import CASES, SMUGGLED, Seen, get, post, witness

pytest.importorskip("gunicorn", reason="gunicorn is NOT INSTALLED")

CHUNKED = b"Transfer-Encoding: chunked"
ABC = b"3\r\nabc\r\n0\r\n\r\n"
LINES_END = b"\r\nHost: a\r\n\r\n"


def chunked(body: bytes) -> bytes:
    return post(CHUNKED, body=body) + SMUGGLED


def coded(coding: bytes) -> bytes:
    return post(b"Transfer-Encoding: " + coding, body=ABC) + SMUGGLED


def field(line: bytes) -> bytes:
    return post(line, body=b"abc") + SMUGGLED


#: What may stand behind a name, or in place of a line; each is a case.
CODINGS = [
    b"chunked\r\nTransfer-Encoding:",
    b"\r\nTransfer-Encoding: chunked",
    b",chunked",
    b"chunked,",
    b"chunked;q=1",
    b"\tchunked",
    b"chunked\t ",
    b"",
    b"chunked, chunked",
    b"identity, chunked",
    b"chunked, identity",
    b"chunked\r\nTransfer-Encoding: identity",
    b"chu\tnked",
    b"\0chunked",
    b"chunked\x85",
    b"\xa0chunked",
    b"\xef\xbb\xbfchunked",
    b"chunked\x1c",
]
SIZES = [
    b"3;\r\n",
    b"3 ;x\r\n",
    b"3; x\r\n",
    b"3\t\r\n",
    b"0003\r\n",
    b"3\r\r\n",
    b"00000000000000003\r\n",
    b'3;a="\r\n',
    b'3;a="x\\"y"\r\n',
    b'3;a="\x7f"\r\n',
    b"3;=\r\n",
    b"3;;;\r\n",
    b"3;a=\r\n",
    b"3h\r\n",
    b"3.\r\n",
    b"3,\r\n",
    b"\xef\xbc\x93\r\n",
    b"3\x0b\r\n",
    b"3\0\r\n",
    b"#3\r\n",
    b"\n3\r\n",
    b"\r3\r\n",
    b"0x3\r\n",
    b"ffffffffffffffff3\r\n",
    b"ffffffffffffffff\r\n",
]
LAST_CHUNKS = [
    b"00\r\n\r\n",
    b"0;x\r\n\r\n",
    b"0 \r\n\r\n",
    b"-0\r\n\r\n",
    b"0x0\r\n\r\n",
    b"0\r\n\r\r\n",
    b"0\r\r\n\r\n",
    b"0\n\r\n",
    b"0\r\n\n",
    b"0\r\nX: y\r\n\r\n",
    b"0\r\nX: y\n\r\n",
    b"0\r\nHost: b\r\n\r\n",
    b"0\r\nAuthorization: b\r\n\r\n",
    b"0\r\nTE: trailers\r\n\r\n",
    b"0\r\nContent-Length: 5\r\n\r\n",
    b"0\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"0\r\n X: y\r\n\r\n",
    b"0\r\nX\r\n\r\n",
    b"0\r\n: y\r\n\r\n",
    b"0\r\nX: \0\r\n\r\n",
    b"0\r\nX: y\r\n z\r\n\r\n",
    b"0\r\nGET / HTTP/1.1\r\n\r\n",
]
LENGTHS = [
    b"3\r\nContent-Length: 3",
    b"3\r\nContent-Length: 4",
    b"3\r\nContent-Length:",
    b"\r\nContent-Length: 3",
    b"3,",
    b",3",
    b"3;",
    b"3 3",
    b"3\0",
    b"\xa03",
    b"3\x85",
    b"-0",
    b"+0",
    b"0_0",
    b"3.0",
    b"3e0",
    b"0x3",
    b"\xef\xbc\x93",
    b"0000000003",
    b"3\t",
]
FIELDS = [
    b"Content-Length : 3",
    b"Content-Length\t: 3",
    b"Content-Length\r\n: 3",
    b"Content_Length: 3",
    b"content-length: 3",
    b"Content-Length:3",
    b"X: \r\n Content-Length: 3",
    b" Content-Length: 3",
    b"\tContent-Length: 3",
    b"X: y\nContent-Length: 3",
    b"X: y\rContent-Length: 3",
    b"X\0Content-Length: 3",
    b"Content-Length\0: 3",
    b"(Content-Length): 3",
    b"Content-Length:\r\n 3",
    b"Content-Length:\r\n\t3",
    b"X: y\x0bContent-Length: 3",
    b"Content-Length\xa0: 3",
    b'"Content-Length": 3',
    b"Content-Length=3",
    b"Content-Length:: 3",
    b"Expect: 100-continue\r\nContent-Length: 3",
    b"Expect: 100-Continue\r\nContent-Length: 3",
    b"Expect: 200-ok\r\nContent-Length: 3",
    b"Expect: 100-continue, other\r\nContent-Length: 3",
    b"Expect:\r\nContent-Length: 3",
]
FIRST_LINES = [
    b"GET //b/x HTTP/1.1",
    b"GET http://b/x?y HTTP/1.1",
    b"GET http://b HTTP/1.1",
    b"GET http://b?y HTTP/1.1",
    b"GET HTTP://b/x HTTP/1.1",
    b"GET http://u:p@b/x HTTP/1.1",
    b"GET http://a%2fb/x HTTP/1.1",
    b"GET http://a/x%2fy%3fz HTTP/1.1",
    b"GET http:/x HTTP/1.1",
    b"GET http%3A//b/x HTTP/1.1",
    b"GET /%00%0d%0a HTTP/1.1",
    b"GET /..//../x HTTP/1.1",
    b"GET /% HTTP/1.1",
    b"GET ?x HTTP/1.1",
    b"GET /\x7f HTTP/1.1",
    b"GET /x\tHTTP/1.1",
    b"GET  / HTTP/1.1",
    b"GET /  HTTP/1.1",
    b"GET / HTTP/1.1 ",
    b"GET / HTTP/1.",
    b"GET / HTTP/1.1x",
    b"GET / HTTP/01.1",
    b"GET / HTTPS/1.1",
    b"GET /",
    b"GET",
    b"\nGET / HTTP/1.1",
    b"\rGET / HTTP/1.1",
    b"PRI * HTTP/1.1",
    b"CONNECT / HTTP/1.1",
    b"CONNECT b:80 HTTP/1.1",
    b"CONNECT http://b/ HTTP/1.1",
    b"OPTIONS * HTTP/1.1",
    b"OPTIONS http://b HTTP/1.1",
]

REQUESTS = {
    **{name: data for name, (data, _, _) in CASES.items()},
    **{f"coding {each!r}": coded(each) for each in CODINGS},
    **{f"size {each!r}": chunked(each + b"abc\r\n0\r\n\r\n") for each in SIZES},
    **{f"last chunk {each!r}": chunked(b"3\r\nabc\r\n" + each) for each in LAST_CHUNKS},
    **{f"length {each!r}": field(b"Content-Length: " + each) for each in LENGTHS},
    **{f"field {each!r}": field(each) for each in FIELDS},
    **{f"line {each!r}": each + LINES_END + SMUGGLED for each in FIRST_LINES},
    "no coding, and a length": post(b"Transfer-Encoding:", b"Content-Length: 3", body=b"abc"),
    "identity, and a length": post(
        b"Transfer-Encoding: identity", b"Content-Length: 3", body=b"abc"
    ),
    "two requests": get() + SMUGGLED,
}

#: Served here, though gunicorn refuses it, and why that does no harm.
TAKEN = {
    "chunks": "a trailer that names trailers is read past",
    "Expect 100-continue twice": "it is one expectation",
    "empty lines before the request": "RFC 9112, 2.2",
    "line b'\\nGET / HTTP/1.1'": "an empty line before the request",
    "line b'\\rGET / HTTP/1.1'": "an empty line before the request",
    "line b'GET  / HTTP/1.1'": "words are taken apart at their spaces (RFC 9112, 3)",
    "line b'GET /  HTTP/1.1'": "words are taken apart at their spaces (RFC 9112, 3)",
    "size b'3;=\\r\\n'": "an extension is passed over",
    "size b'3;a=\\r\\n'": "an extension is passed over",
}


def read_by_gunicorn(data: bytes) -> tuple[list[Seen], bool]:
    """The requests that an application would see, and whether the next one is refused."""
    from gunicorn.config import Config
    from gunicorn.http.errors import ParseException
    from gunicorn.http.parser import RequestParser
    from gunicorn.http.wsgi import create

    cfg, seen = Config(), []
    sock = SimpleNamespace(send=len, sendall=len)
    address = ("127.0.0.1", 80)
    try:
        for request in RequestParser(cfg, iter([data]), address):
            _, environ = create(request, sock, address, address, cfg)
            body = environ["wsgi.input"].read()
            seen.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], body))
            if request.should_close():
                break
    except StopIteration:
        pass
    except (ParseException, OSError):
        return seen, True
    return seen, False


def read_here(data: bytes) -> tuple[list[Seen], bool]:
    """The same of this server, by its answers."""
    seen: list[Seen] = []
    rest, status = talk(witness(seen), data), 0
    while rest:
        reply, rest = take(rest)
        status = reply.status
    return seen, status >= 400


def alike(request: Seen) -> Seen:
    """gunicorn leaves the path of "http://host" and that of "*" as they are."""
    method, path, body = request
    return method, "" if path in ("/", "*") else path, body


@pytest.mark.parametrize("name", REQUESTS)
def test_request_is_read_as_gunicorn_reads_it_or_refused(name: str) -> None:
    here, refused = read_here(REQUESTS[name])
    there, refused_there = read_by_gunicorn(REQUESTS[name])
    if refused_there:
        assert refused == (name not in TAKEN)
    if refused:
        assert list(map(alike, here)) == list(map(alike, there))[: len(here)]
    elif not refused_there:
        assert list(map(alike, here)) == list(map(alike, there))


# what applications say ----------------------------------------------------------------------------


class Other(str):
    """Shows itself differently from what it is."""

    __slots__ = ()

    def __str__(self) -> str:
        return "x\r\nInjected: y"

    def __format__(self, spec: str) -> str:
        return str(self)


NAMES = ["X\r\nY", "X:", "", " X", "X ", "X\tY", "X\0", "X\n", "X\x7f", "X\xe9", "X(", "\u212aX", 3]
VALUES = [
    "a\r\nB: c",
    "a\nB: c",
    "a\rB",
    "a\0",
    "a\x0b",
    "a\x7f",
    "\u560d\u560a",
    "\ud800",
    3,
    b"a",
]
VALUES += ["a\r\n b", "\u2028", "\xe9", "", "a b"]
STATUSES = [
    "200 OK\r\nX: y",
    "200 OK\nX: y",
    "OK",
    "20 OK",
    "2000 OK",
    " 200 OK",
    "200 \u560a",
    200,
]
LENGTHS_TOLD = ["-1", "+3", "3,3", "", "\uff13", "0x3", "3\r\nX: y", 3]

TOLD: list[tuple[Any, list[tuple[Any, Any]]]] = [
    *[("200 OK", [(name, "y")]) for name in NAMES],
    *[("200 OK", [("X", value)]) for value in VALUES],
    *[(status, []) for status in STATUSES],
    *[("200 OK", [("Content-Length", length)]) for length in LENGTHS_TOLD],
    ("200 OK", [("Content-Length", "3"), ("content-length", "4")]),
    ("200 OK", [("Transfer-Encoding", "chunked")]),
]


def refused_by_gunicorn(status: Any, headers: Any) -> bool:
    from gunicorn.config import Config
    from gunicorn.http.wsgi import Response

    request = SimpleNamespace(method="GET", version=(1, 1), should_close=lambda: False)
    request.should_upgrade = lambda: False
    try:
        response = Response(request, SimpleNamespace(send=len, sendall=len), Config())
        response.start_response(status, headers)
        response.write(b"abc")
        response.close()
    except Exception:
        return True
    return False


@pytest.mark.parametrize("number", range(len(TOLD)), ids=lambda number: ascii(TOLD[number]))
def test_head_of_an_answer_that_gunicorn_refuses_is_refused(number: int) -> None:
    status, headers = TOLD[number]

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response(status, headers)
        return iter([b"abc"])

    data = talk(app, GET)
    if not data.startswith(b"HTTP/1.1 500 "):
        assert not refused_by_gunicorn(status, headers)
        reply, rest = take(data)
        assert (reply.status, reply.body, rest) == (200, b"abc", b"")
        assert set(reply.headers) <= {"x", "date", "server", "content-length", "transfer-encoding"}


@pytest.mark.parametrize("place", ["name", "value", "status"])
def test_line_break_of_a_derived_str_is_not_sent(place: str) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        status = Other("200 OK") if place == "status" else "200 OK"
        name = Other("X") if place == "name" else "X"
        value = Other("y") if place == "value" else "y"
        start_response(status, [(name, value)])
        return [b"abc"]

    reply, rest = take(talk(app, GET))
    assert (reply.status, reply.headers["x"], reply.body, rest) == (200, "y", b"abc", b"")
    assert "injected" not in reply.headers
