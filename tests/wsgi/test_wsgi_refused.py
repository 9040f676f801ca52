"""pyfiber.wsgi: requests that are malformed, or are read differently by different programs.

The cases are those of RFC 9112 and of the literature on request smuggling: if a proxy in front of
the server and the server itself disagree on where a request ends, the rest of one client's body is
taken for another client's request. So each case says all that the application may see.
"""

from __future__ import annotations

from typing import Any

import pytest

from pyfiber import net, sleep, wsgi
from pyfiber.wsgi._parser import Parser
from pyfiber.wsgi._site import Site
from tests.wsgi.talking import LAST, App, converse, read_all, replies, talk

#: What the application has seen of a request: its method, its path, its body.
Seen = tuple[str, str, bytes]

ROOT = ("GET", "/", b"")
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n"


def get(*lines: bytes) -> bytes:
    return b"\r\n".join([b"GET / HTTP/1.1", b"Host: a", *lines, b"", b""])


def post(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"Host: a", *lines, b"", b""]) + body


def chunks(body: bytes, coding: bytes = b"Transfer-Encoding: chunked") -> bytes:
    return post(coding, body=body) + SMUGGLED


def posted(body: bytes) -> Seen:
    return ("POST", "/", body)


def witness(seen: list[Seen]) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"].read()
        seen.append((environ["REQUEST_METHOD"], environ["PATH_INFO"], body))
        start_response("200 OK", [])
        return [b"seen"]

    return app


#: Name: bytes, statuses of the answers, what the application has seen.
CASES: dict[str, tuple[bytes, list[int], list[Seen]]] = {
    # lengths
    "length twice": (
        post(b"Content-Length: 3", b"Content-Length: 5", body=b"abcGE"),
        [400],
        [],
    ),
    "length twice, the same": (
        post(b"Content-Length: 3", b"Content-Length: 3", body=b"abc"),
        [400],
        [],
    ),
    "length, a list": (post(b"Content-Length: 3, 3", body=b"abc"), [400], []),
    "length with plus": (post(b"Content-Length: +3", body=b"abc"), [400], []),
    "length with minus": (post(b"Content-Length: -3", body=b"abc"), [400], []),
    "length in hexadecimal": (post(b"Content-Length: 0x3", body=b"abc"), [400], []),
    "length with underscore": (post(b"Content-Length: 1_0", body=b"abcdefghij"), [400], []),
    "length with a space in it": (post(b"Content-Length: 1 0", body=b"abc"), [400], []),
    "length with spaces around it": (
        post(b"Content-Length: \t3 ", body=b"abc"),
        [200],
        [posted(b"abc")],
    ),
    "length with vertical tab": (post(b"Content-Length: \x0b3", body=b"abc"), [400], []),
    "length empty": (post(b"Content-Length:", body=b"abc"), [400], []),
    "length with digits of another script": (
        post("Content-Length: \u0663".encode(), body=b"abc"),
        [400],
        [],
    ),
    "length beyond 64 bits": (post(b"Content-Length: 18446744073709551619"), [400], []),
    "length beyond the limit": (post(b"Content-Length: 99999999999"), [413], []),
    "length 0 and a request": (
        post(b"Content-Length: 0") + SMUGGLED,
        [200, 200],
        [posted(b""), ("GET", "/smuggled", b"")],
    ),
    "body of a GET is not a request": (
        get(b"Content-Length: %d" % len(SMUGGLED)) + SMUGGLED,
        [200],
        [("GET", "/", SMUGGLED)],
    ),
    "length with leading zeros": (
        post(b"Content-Length: 003", body=b"abc"),
        [200],
        [posted(b"abc")],
    ),
    # length and chunks at once
    "CL.TE": (
        post(b"Content-Length: 6", b"Transfer-Encoding: chunked", body=b"0\r\n\r\nG"),
        [400],
        [],
    ),
    "TE.CL": (
        post(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"0\r\n\r\n") + SMUGGLED,
        [400],
        [],
    ),
    # Transfer-Encoding in disguise
    "TE.TE, the second is unknown": (
        chunks(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: cow"),
        [400],
        [],
    ),
    "TE.TE, twice": (
        chunks(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
        [400],
        [],
    ),
    "TE.TE, the first is identity": (
        chunks(b"0\r\n\r\n", b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"),
        [501],
        [],
    ),
    "TE xchunked": (chunks(b"0\r\n\r\n", b"Transfer-Encoding: xchunked"), [501], []),
    "TE identity": (chunks(b"0\r\n\r\n", b"Transfer-Encoding: identity"), [501], []),
    "TE gzip, chunked": (chunks(b"0\r\n\r\n", b"Transfer-Encoding: gzip, chunked"), [501], []),
    "TE chunked, gzip": (chunks(b"0\r\n\r\n", b"Transfer-Encoding: chunked, gzip"), [400], []),
    "TE quoted": (chunks(b"0\r\n\r\n", b'Transfer-Encoding: "chunked"'), [501], []),
    "TE after a vertical tab": (
        chunks(b"0\r\n\r\n", b"Transfer-Encoding: \x0bchunked"),
        [400],
        [],
    ),
    "TE with space before the colon": (
        chunks(b"0\r\n\r\n", b"Transfer-Encoding : chunked"),
        [400],
        [],
    ),
    "TE after a space": (chunks(b"0\r\n\r\n", b" Transfer-Encoding: chunked"), [400], []),
    "TE on a folded line": (chunks(b"0\r\n\r\n", b"Transfer-Encoding:\r\n chunked"), [400], []),
    "TE behind a bare LF": (chunks(b"0\r\n\r\n", b"X: y\nTransfer-Encoding: chunked"), [400], []),
    "TE behind a bare CR": (chunks(b"0\r\n\r\n", b"X: y\rTransfer-Encoding: chunked"), [400], []),
    "TE with NUL": (chunks(b"0\r\n\r\n", b"Transfer-Encoding: chunked\0"), [400], []),
    "TE with underscore is no TE": (
        post(b"Transfer_Encoding: chunked") + SMUGGLED,
        [200, 200],
        [posted(b""), ("GET", "/smuggled", b"")],
    ),
    "TE in other letters": (
        chunks(b"3\r\nabc\r\n0\r\n\r\n", b"tRANSFER-eNCODING: ChunKed"),
        [200, 200],
        [posted(b"abc"), ("GET", "/smuggled", b"")],
    ),
    "TE in HTTP/1.0": (
        b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        [400],
        [],
    ),
    # chunks
    "chunks": (
        chunks(b"3\r\nabc\r\nA;x=y\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"),
        [200, 200],
        [posted(b"abc0123456789"), ("GET", "/smuggled", b"")],
    ),
    "chunk's extension with quotes": (
        chunks(b'3;x="y z"\r\nabc\r\n0\r\n\r\n'),
        [200, 200],
        [posted(b"abc"), ("GET", "/smuggled", b"")],
    ),
    "chunk's extension ends with a bare LF": (chunks(b"3;x\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's extension has a bare CR": (chunks(b"3;x\ry\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's extension has NUL": (chunks(b"3;x=\0\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size ends with a bare LF": (chunks(b"3\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size with plus": (chunks(b"+3\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size with minus": (chunks(b"-3\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size with 0x": (chunks(b"0x3\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size with underscore": (chunks(b"0_3\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size with a space before it": (chunks(b" 3\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size with a space behind it": (chunks(b"3 \r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size empty": (chunks(b"\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size beyond 64 bits": (chunks(b"10000000000000003\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk's size no number": (chunks(b"three\r\nabc\r\n0\r\n\r\n"), [400], []),
    "chunk longer than its size": (chunks(b"3\r\nabcd\r\n0\r\n\r\n"), [400], []),
    "chunk without its end": (chunks(b"3\r\nabc0\r\n\r\n"), [400], []),
    "chunk ends with a bare LF": (chunks(b"3\r\nabc\n0\r\n\r\n"), [400], []),
    "chunks end with bare LFs": (chunks(b"3\r\nabc\r\n0\n\n"), [400], []),
    "trailer that says a length": (chunks(b"0\r\nContent-Length: 30\r\n\r\n"), [400], []),
    "trailer with space before the colon": (chunks(b"0\r\nX : y\r\n\r\n"), [400], []),
    "trailer that says a host": (chunks(b"0\r\nHost: b\r\n\r\n"), [400], []),
    "trailer that says who asks": (chunks(b"0\r\nAuthorization: b\r\n\r\n"), [400], []),
    "chunks that end too early": (post(b"Transfer-Encoding: chunked", body=b"3\r\nab"), [400], []),
    "body that ends too early": (post(b"Content-Length: 3", body=b"ab"), [400], []),
    # lines
    "bare LF behind the request line": (b"GET / HTTP/1.1\nHost: a\r\n\r\n", [400], []),
    "bare LF behind a field": (b"GET / HTTP/1.1\r\nHost: a\n\r\n", [400], []),
    "bare LFs only": (b"GET / HTTP/1.1\nHost: a\n\n", [400], []),
    "bare LF at the end of the head": (b"GET / HTTP/1.1\r\nHost: a\r\n\n", [400], []),
    "bare CR in a field": (get(b"X: a\rY: b"), [400], []),
    "bare CR in the request line": (b"GET /\r HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "folded line": (get(b"X: a", b" b"), [400], []),
    "folded line with tab": (get(b"X: a", b"\tb"), [400], []),
    "space before the first field": (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", [400], []),
    "field without a colon": (get(b"X"), [400], []),
    "field without a name": (get(b": x"), [400], []),
    "field with a space in its name": (get(b"X Y: z"), [400], []),
    "field with a space before the colon": (get(b"X : y"), [400], []),
    "field with NUL in its name": (get(b"X\0Y: z"), [400], []),
    "field with NUL in its value": (get(b"X: y\0z"), [400], []),
    "field with a control character": (get(b"X: y\x1bz"), [400], []),
    "field with DEL": (get(b"X: y\x7fz"), [400], []),
    "field with a letter beyond ASCII in its name": (get(b"X\xe9: y"), [400], []),
    "empty lines before the request": (b"\r\n\r\n" + get(), [200], [ROOT]),
    # the first line
    "HTTP/0.9": (b"GET /\r\n\r\n", [505], []),
    "HTTP/0.9 by name": (b"GET / HTTP/0.9\r\n\r\n", [505], []),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", [505], []),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: a\r\n\r\n", [505], []),
    "HTTP/1.10": (b"GET / HTTP/1.10\r\nHost: a\r\n\r\n", [400], []),
    "preface of HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400], []),
    "http in small letters": (b"GET / http/1.1\r\nHost: a\r\n\r\n", [400], []),
    "another protocol": (b"GET / ICY/1.1\r\nHost: a\r\n\r\n", [400], []),
    "space at the end of the line": (b"GET / HTTP/1.1 \r\nHost: a\r\n\r\n", [400], []),
    "tab between the words": (b"GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "space before the method": (b" GET / HTTP/1.1\r\nHost: a\r\n\r\n", [501], []),
    "NUL before the method": (b"\0GET / HTTP/1.1\r\nHost: a\r\n\r\n", [501], []),
    "method in small letters": (b"get / HTTP/1.1\r\nHost: a\r\n\r\n", [501], []),
    "method that nobody knows": (b"BREW / HTTP/1.1\r\nHost: a\r\n\r\n", [501], []),
    "method of another protocol": (b"SETUP / HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "method with a separator": (b"GET(x) / HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "CONNECT": (b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n" + SMUGGLED, [501], []),
    "CONNECT with a path": (b"CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n" + SMUGGLED, [501], []),
    "target whose host has an encoded slash": (
        b"GET http://a%2fb/x%2fy HTTP/1.1\r\nHost: a\r\n\r\n",
        [200],
        [("GET", "/x/y", b"")],
    ),
    "no target": (b"GET HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "target without a slash": (b"GET x HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "target with a fragment": (b"GET /x#y HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "target with a space": (b"GET /x y HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "target with NUL": (b"GET /x\0y HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "target with a byte beyond ASCII": (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "target * is for OPTIONS": (b"GET * HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "OPTIONS *": (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", [200], [("OPTIONS", "", b"")]),
    "target of another scheme": (b"GET ftp://a/x HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "target without a host": (b"GET http:///x HTTP/1.1\r\nHost: a\r\n\r\n", [400], []),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", [501], []),
    # Host
    "no Host": (b"GET / HTTP/1.1\r\n\r\n", [400], []),
    "no Host in HTTP/1.0": (b"GET / HTTP/1.0\r\n\r\n", [200], [ROOT]),
    "Host twice": (get(b"Host: b"), [400], []),
    "Host twice, the same": (get(b"Host: a"), [400], []),
    "Host with a path": (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", [400], []),
    "Host with a user": (b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", [400], []),
    "Host with a space": (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", [400], []),
    "Host of IPv6": (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", [200], [ROOT]),
    # Expect
    "Expect 100-continue twice": (get(b"Expect: 100-continue, 100-Continue"), [200], [ROOT]),
    "Expect something else": (get(b"Expect: 200-ok"), [417], []),
    "Expect something else as well": (get(b"Expect: 100-continue", b"Expect: x"), [417], []),
    "Expect nothing": (get(b"Expect:"), [417], []),
    "Expect 100-continue in HTTP/1.0": (
        b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        [200],
        [posted(b"abc")],
    ),
    "Expect something else in HTTP/1.0": (
        b"GET / HTTP/1.0\r\nExpect: x\r\n\r\n",
        [417],
        [],
    ),
    # what follows
    "behind Connection: close": (get(b"Connection: close") + SMUGGLED, [200], [ROOT]),
    "nonsense behind a request": (get() + b"nonsense\r\n\r\n", [200, 501], [ROOT]),
    "another protocol, with a body": (
        post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 3", body=b"abc") + SMUGGLED,
        [200, 200],
        [posted(b"abc"), ("GET", "/smuggled", b"")],
    ),
    "another protocol, with chunks": (
        post(b"Connection: Upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked")
        + b"3\r\nabc\r\n0\r\n\r\n"
        + SMUGGLED,
        [200, 200],
        [posted(b"abc"), ("GET", "/smuggled", b"")],
    ),
    "another protocol, chunks malformed": (
        post(b"Connection: Upgrade", b"Upgrade: h2c", b"Transfer-Encoding: chunked")
        + b"3\nabc\r\n0\r\n\r\n",
        [400],
        [],
    ),
    "another protocol, no body": (
        get(b"Connection: Upgrade", b"Upgrade: websocket") * 3,
        [200, 200, 200],
        [ROOT] * 3,
    ),
    "another protocol, length and chunks": (
        post(b"Connection: Upgrade", b"Upgrade: h2c", b"Content-Length: 6")[:-2]
        + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\nG",
        [400],
        [],
    ),
}


@pytest.mark.parametrize("size", [0, 1, 7], ids=["whole", "by bytes", "in sevens"])
@pytest.mark.parametrize("name", CASES)
def test_request_is_answered_or_refused(name: str, size: int) -> None:
    data, statuses, expected = CASES[name]
    pieces = [data[i : i + size] for i in range(0, len(data), size)] if size else [data]
    seen: list[Seen] = []

    def client(stream: net.Stream) -> bytes:
        try:
            for piece in pieces:
                stream.write(piece)
                sleep(0.001)
        except OSError:
            pass  # it has answered and closed
        else:
            stream.close_write()
        return read_all(stream)

    answers = replies(converse(witness(seen), client))
    assert [reply.status for reply in answers] == statuses
    assert seen == expected
    assert all(reply.complete for reply in answers)
    if statuses[-1] >= 400:
        assert answers[-1].headers["connection"] == "close"


# Limits -------------------------------------------------------------------------------------------


def first(app: App, data: bytes, **options: Any) -> int:
    """The status of the only answer, to a client that sends without end."""

    def client(stream: net.Stream) -> bytes:
        stream.write(data)
        return read_all(stream)

    (reply,) = replies(converse(app, client, **options))
    return reply.status


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * 70_000, 414),
        (b"GET /" + b"x" * 2000 + b" HTTP/1.1\r\n", 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 2000, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x" * 2000, 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 400, 431),
        (b"\r\n" * 1000, 431),
    ],
    ids=["target", "line", "value", "name", "fields", "empty lines"],
)
@pytest.mark.parametrize("buffer", [100, 65536])
def test_head_that_grows_without_end_is_refused(data: bytes, status: int, buffer: int) -> None:
    seen: list[Seen] = []
    assert first(witness(seen), data, max_header=1000) == status
    assert seen == []


@pytest.mark.parametrize("line", [b"X-%d: y\r\n", b"X: %d\r\n"], ids=["different", "the same"])
def test_fields_are_limited(line: bytes) -> None:
    seen: list[Seen] = []
    for count, status in [(9, 200), (11, 431)]:
        fields = b"".join(line % i for i in range(count))
        data = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + fields + b"\r\n"
        assert first(witness(seen), data, max_fields=11) == status
    assert len(seen) == 1


def test_target_just_within_the_limit_is_served() -> None:
    seen: list[Seen] = []
    data = b"GET /" + b"x" * 900 + LAST[5:]
    assert first(witness(seen), data, max_header=1000) == 200


def test_body_beyond_the_limit_is_refused_before_it_is_sent() -> None:
    seen: list[Seen] = []
    assert first(witness(seen), post(b"Content-Length: 11"), max_body=10) == 413
    assert seen == []


def test_chunks_beyond_the_limit_are_refused_while_they_come() -> None:
    seen: list[Seen] = []
    data = post(b"Transfer-Encoding: chunked") + b"4\r\nabcd\r\n" * 3
    assert first(witness(seen), data, max_body=10) == 413
    assert seen == []


def test_body_of_just_the_limit_is_served() -> None:
    seen: list[Seen] = []
    data = post(b"Transfer-Encoding: chunked", b"Connection: close")
    assert first(witness(seen), data + b"5\r\nabcde\r\n" * 2 + b"0\r\n\r\n", max_body=10) == 200
    assert seen == [posted(b"abcdeabcde")]


@pytest.mark.parametrize(
    "data",
    [b"1;" + b"x" * 200_000, b"0\r\n" + b"X: y\r\n" * 40_000],
    ids=["extension", "trailers"],
)
def test_what_is_around_chunks_is_limited(data: bytes) -> None:
    seen: list[Seen] = []
    assert first(witness(seen), post(b"Transfer-Encoding: chunked") + data) == 400
    assert seen == []


def test_many_small_chunks_are_served() -> None:
    seen: list[Seen] = []
    data = post(b"Transfer-Encoding: chunked", b"Connection: close")
    assert first(witness(seen), data + b"1\r\nx\r\n" * 50_000 + b"0\r\n\r\n") == 200
    assert seen == [posted(b"x" * 50_000)]


def test_application_that_does_not_read_a_malformed_body_has_answered_last() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [b"not read"]

    answers = replies(talk(app, post(b"Transfer-Encoding: chunked"), b"nonsense\r\n" + SMUGGLED))
    assert [(reply.status, reply.body) for reply in answers] == [(200, b"not read")]


def test_refusal_that_the_application_answers_itself_ends_the_connection() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        with pytest.raises(wsgi.Refused) as caught:
            environ["wsgi.input"].read()
        start_response(caught.value.status, [])
        return [b"mine"]

    answers = replies(talk(app, post(b"Transfer-Encoding: chunked") + b"nonsense\r\n" + SMUGGLED))
    assert [(reply.status, reply.body) for reply in answers] == [(400, b"mine")]


def test_many_requests_that_ask_for_another_protocol_at_once() -> None:
    """Each of them ends the parser's work on a piece."""
    seen: list[Seen] = []
    data = get(b"Connection: Upgrade", b"Upgrade: h2c") * 900
    assert len(replies(talk(witness(seen), data))) == 900
    assert len(seen) == 900


@pytest.mark.parametrize("method", ["on_url", "on_header", "on_headers_complete", "on_body"])
@pytest.mark.parametrize("exception", [KeyboardInterrupt, MemoryError])
def test_exception_that_is_not_about_the_request_is_no_refusal(
    method: str, exception: type[BaseException]
) -> None:
    class Interrupted(Parser):
        pass

    def interrupt(*args: Any) -> None:
        raise exception

    setattr(Interrupted, method, interrupt)
    parser = Interrupted(Site(witness([]), ("127.0.0.1", 80)), None)
    with pytest.raises(exception):
        parser.feed(post(b"Content-Length: 3", body=b"abc"))
