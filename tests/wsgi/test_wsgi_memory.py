"""pyfiber.wsgi: one client cannot hold the process' memory, nor its slots."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber import net, sleep
from pyfiber.wsgi import _answer, _parser
from pyfiber.wsgi._parser import Parser
from pyfiber.wsgi._site import Site
from tests.wsgi.talking import GET, HELLO, App, converse, hello, read_all, replies, talk

LONG = b"x" * 60_000


def parser_of(app: App = hello, **options: Any) -> Parser:
    site = Site(app, ("127.0.0.1", 80), **options)
    return Parser(site, ("127.0.0.1", 1234))


def kept_by(data: bytes) -> int:
    """Bytes that a parser keeps of this data, beside the data."""
    warm = parser_of()
    warm.feed(GET)
    parser = parser_of()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        parser.feed(data)
        return tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()


def test_long_targets_names_and_hosts_are_not_kept() -> None:
    _parser._split_short.cache_clear()
    _parser._KEYS.clear()
    _parser._HOSTS.clear()
    asked = [b"GET /%d%b HTTP/1.1\r\nHost: a\r\n\r\n" % (number, LONG) for number in range(5)]
    asked += [b"GET / HTTP/1.1\r\nHost: a\r\nx-%d%b: y\r\n\r\n" % (n, LONG) for n in range(5)]
    asked += [b"GET / HTTP/1.1\r\nHost: %d%b\r\n\r\n" % (n, LONG) for n in range(5)]
    assert [reply.status for reply in replies(talk(hello, *asked))] == [200] * 15
    assert _parser._split_short.cache_info().currsize == 1
    assert sum(map(len, _parser._KEYS)) < 100
    assert sum(map(len, _parser._HOSTS)) < 100


def test_long_names_and_statuses_of_the_application_are_not_kept() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 " + LONG.decode(), [("X-" + LONG.decode(), "y")])
        return [HELLO]

    _answer._KINDS.clear()
    _answer._CODES.clear()
    assert talk(app, GET).endswith(HELLO)
    assert not _answer._KINDS
    assert not _answer._CODES


def test_cache_that_a_client_has_filled_begins_anew() -> None:
    _parser._KEYS.clear()
    for start in range(0, 2 * _parser._KEPT, 50):
        fields = b"".join(b"x-%d: y\r\n" % number for number in range(start, start + 50))
        parser_of().feed(b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n" % fields)
    parser_of().feed(b"GET / HTTP/1.1\r\nHost: a\r\nAccept: b\r\n\r\n")
    assert len(_parser._KEYS) <= _parser._KEPT
    assert _parser._KEYS[b"Accept"] == "HTTP_ACCEPT"


def test_pipelined_requests_are_parsed_one_at_a_time() -> None:
    parser = parser_of()
    parser.feed(GET * 1000)
    for _ in range(1000):
        assert len(parser.ready) == 1
        parser.ready.popleft()
        parser.go_on()
    assert not parser.ready
    assert parser.error is None


@pytest.mark.parametrize(
    "request_",
    [
        GET,
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    ],
    ids=["GET", "length", "chunks", "upgrade"],
)
def test_64_kib_of_pipelined_requests_stay_small(request_: bytes) -> None:
    data = request_ * (65536 // len(request_))
    assert kept_by(data) < 50_000


@pytest.mark.parametrize(
    "body", [b"2\r\nab\r\n" * 9000, b"4\r\n\r\n\r\n\r\n" * 7000], ids=["small", "blank lines"]
)
def test_64_kib_of_small_chunks_stay_small(body: bytes) -> None:
    head = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert kept_by(head + body) < 100_000


def test_trailer_behind_a_long_body_is_limited() -> None:
    parser = parser_of()
    parser.feed(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(100):
        parser.feed(b"f000\r\n" + b"x" * 0xF000 + b"\r\n")
    parser.feed(b"0\r\nX: ")
    assert parser.error is None
    parser.feed(LONG)
    assert parser.error is None
    parser.feed(LONG)
    assert parser.error is not None
    assert parser.error.status.startswith("400")


def test_fields_of_a_head_that_is_not_complete_are_limited() -> None:
    parser = parser_of()
    parser.feed(b"GET / HTTP/1.1\r\n" + b"".join(b"%d:\r\n" % number for number in range(1000)))
    assert parser.error is not None
    assert parser.error.status.startswith("431")


def test_all_of_many_pipelined_requests_are_answered_in_order() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]

    asked = b"".join(b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n" % number for number in range(3000))
    answered = replies(talk(app, asked))
    assert [reply.body for reply in answered] == [b"/%d" % number for number in range(3000)]


def test_part_of_a_head_behind_a_request_has_the_time_of_a_head() -> None:
    def client(stream: net.Stream) -> bytes:
        stream.write(GET + GET[:-1])
        return read_all(stream)

    data = converse(hello, client, header_timeout=5, keep_alive=1)
    assert [reply.status for reply in replies(data)] == [200, 408]


def test_client_is_silent_between_two_requests_after_a_body_as_after_any() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["wsgi.input"].read()]

    def client(stream: net.Stream) -> bytes:
        for _ in range(2):
            stream.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n")
            sleep(1)
            stream.write(b"abc")
            sleep(9)  # longer than a head may take
        stream.close_write()
        return read_all(stream)

    data = converse(app, client, header_timeout=5, keep_alive=20)
    assert [(reply.status, reply.body) for reply in replies(data)] == [(200, b"abc")] * 2


def test_end_of_a_body_does_not_count_for_the_next_head() -> None:
    parser = parser_of()
    parser.feed(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 65536\r\n\r\n")
    parser.ready.clear()
    parser.feed(b"x" * 65536)
    parser.feed(GET[:-2])
    assert parser.error is None
    parser.feed(GET[-2:])
    assert len(parser.ready) == 1


# answers without a body ---------------------------------------------------------------------------


def endless(closed: list[int], before: int = 0) -> Iterator[bytes]:
    try:
        for _ in range(before):
            yield b""
        while True:
            yield b"data"
            sleep(1)
    finally:
        closed.append(1)


class Closing:
    """A body whose blocks must not be asked for."""

    def __init__(self) -> None:
        self.closed = 0

    def __iter__(self) -> Iterator[bytes]:
        raise AssertionError("nobody wants a body")

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("method", "status"), [(b"HEAD", "200 OK"), (b"GET", "204 No Content"), (b"GET", "304 As ever")]
)
def test_head_of_an_endless_stream_is_answered_at_once(method: bytes, status: str) -> None:
    """The same for 204 and 304: the body is closed, and no block of it asked for."""
    bodies: list[Closing] = []

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response(status, [("X-A", "b")])
        bodies.append(Closing())
        return bodies[-1]

    data = talk(app, GET.replace(b"GET", method) * 2)
    assert data.count(b"HTTP/1.1 " + status.encode()) == 2
    assert data.count(b"\r\n\r\n") == 2
    assert data.endswith(b"\r\n\r\n")
    assert [body.closed for body in bodies] == [1, 1]


@pytest.mark.parametrize(
    ("method", "status"), [(b"HEAD", "200 OK"), (b"GET", "204 No Content"), (b"GET", "304 As ever")]
)
@pytest.mark.parametrize("before", [0, 1])
def test_generator_that_starts_its_response_itself_is_asked_for_one_block(
    method: bytes, status: str, before: int
) -> None:
    closed: list[int] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response(status, [("X-A", "b")])
        yield from endless(closed, before)

    data = talk(app, GET.replace(b"GET", method) * 2)
    assert data.count(b"HTTP/1.1 " + status.encode()) == 2
    assert data.endswith(b"\r\n\r\n")
    assert closed == [1, 1]


def test_stream_whose_client_has_gone_is_closed() -> None:
    closed: list[int] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        return endless(closed)

    def client(stream: net.Stream) -> list[int]:
        stream.write(GET)
        assert stream.read()
        stream.close()
        sleep(5)
        return closed

    assert converse(app, client) == [1]
