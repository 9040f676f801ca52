"""pyfiber.wsgi: what applications may say (PEP 3333), and how it is sent."""

from __future__ import annotations

import io
import logging
import sys
import tempfile
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any
from wsgiref.validate import validator

import pytest

from pyfiber import net, run, sleep, wsgi
from tests.wsgi.talking import (
    GET,
    HELLO,
    HOST,
    LAST,
    App,
    Reply,
    ask,
    converse,
    hello,
    read_all,
    replies,
    take,
    talk,
)

HEAD = LAST.replace(b"GET", b"HEAD")
OLD = b"GET / HTTP/1.0\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: a\r\n"


def answering(
    *blocks: bytes, status: str = "200 OK", headers: Any = (), generator: bool = False
) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response(status, list(headers))
        return iter(blocks) if generator else list(blocks)

    return app


def environ_of(request: bytes, **options: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        found.update(environ)
        return list(hello(environ, start_response))

    assert ask(app, request, **options).status == 200
    return found


# environ ------------------------------------------------------------------------------------------


def test_environ_has_what_pep_3333_wants() -> None:
    environ = environ_of(
        b"POST /caf%C3%A9/a%2Fb?x=%20&y HTTP/1.1\r\nHost: a:80\r\nContent-Type: text/x\r\n"
        b"Content-Length: 0\r\nX-Some: \t one \r\nx-some: two\r\nCookie: a=1\r\nCookie: b=2\r\n"
        b"X-Latin: \xe9\r\nEmpty:\r\nUnder_Score: x\r\nProxy: evil\r\n\r\n"
    )
    assert environ.pop("wsgi.input").read() == b""
    assert environ.pop("wsgi.errors") is sys.stderr
    assert environ.pop("REMOTE_PORT").isdigit()
    assert environ == {
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/caf\xc3\xa9/a/b",
        "QUERY_STRING": "x=%20&y",
        "REQUEST_URI": "/caf%C3%A9/a%2Fb?x=%20&y",
        "RAW_URI": "/caf%C3%A9/a%2Fb?x=%20&y",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "SERVER_SOFTWARE": "pyfiber",
        "GATEWAY_INTERFACE": "CGI/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_TYPE": "text/x",
        "CONTENT_LENGTH": "0",
        "HTTP_HOST": "a:80",
        "HTTP_X_SOME": "one,two",
        "HTTP_COOKIE": "a=1; b=2",
        "HTTP_X_LATIN": "\xe9",
        "HTTP_EMPTY": "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": wsgi.FileWrapper,
        "wsgi.input_terminated": True,
    }
    assert type(environ) is dict


def test_environ_of_an_absolute_target_has_its_host() -> None:
    environ = environ_of(b"GET http://b:81/x?y HTTP/1.1\r\nHost: a\r\n\r\n")
    assert (environ["HTTP_HOST"], environ["PATH_INFO"], environ["QUERY_STRING"]) == (
        "b:81",
        "/x",
        "y",
    )
    assert environ_of(b"GET http://b?y HTTP/1.1\r\nHost: a\r\n\r\n")["PATH_INFO"] == "/"


def test_script_name_is_where_the_application_is() -> None:
    environ = environ_of(GET.replace(b" / ", b" /app/x "), script_name="/app")
    assert (environ["SCRIPT_NAME"], environ["PATH_INFO"]) == ("/app", "/x")
    environ = environ_of(GET.replace(b" / ", b" /app "), script_name="/app")
    assert (environ["SCRIPT_NAME"], environ["PATH_INFO"]) == ("/app", "")
    assert ask(hello, GET.replace(b" / ", b" /apple "), script_name="/app").status == 404


def test_environ_has_what_the_server_was_given() -> None:
    assert environ_of(GET, environ={"app.pool": 7})["app.pool"] == 7


def test_environ_is_the_requests_own() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        assert "mine" not in environ
        environ["mine"] = environ["REQUEST_METHOD"] = "HEAD"  # as some middleware does
        environ.pop("HTTP_HOST")
        return list(hello(environ, start_response))

    assert [reply.body for reply in replies(talk(app, GET + GET))] == [HELLO, HELLO]


def test_context_variables_are_the_requests_own() -> None:
    seen = []
    variable: ContextVar[int] = ContextVar("variable", default=0)

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        seen.append(variable.get())
        variable.set(variable.get() + 1)
        start_response("200 OK", [])
        yield b"x"
        seen.append(variable.get())

    talk(app, GET + GET)
    assert seen == [0, 1, 0, 1]


@pytest.mark.parametrize("request_", [GET, HEAD, OLD, POST + b"Content-Length: 3\r\n\r\nabc"])
@pytest.mark.parametrize("generator", [False, True])
def test_server_keeps_to_pep_3333(request_: bytes, generator: bool) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        assert environ["wsgi.input"].read(2) + environ["wsgi.input"].readline() in (b"", b"abc")
        write = start_response("200 OK", [("Content-Type", "text/plain")])
        if generator:
            write(b"written ")
            return iter([b"x", b"y"])
        return [b"x", b"y"]

    method = request_.split()[0].decode()
    reply = ask(validator(app), request_, method=method)  # type: ignore[arg-type]
    assert reply.status == 200
    if method != "HEAD":
        assert reply.body == (b"written xy" if generator else b"xy")


# How the end of the body is known -----------------------------------------------------------------


def test_list_has_a_length() -> None:
    for blocks in ([HELLO], [b"Hello, ", b"", b"world!"]):
        reply = ask(answering(*blocks), GET)
        assert reply.body == HELLO
        assert reply.headers["content-length"] == "13"
    assert ask(answering(), GET).headers["content-length"] == "0"


def test_generator_is_sent_in_chunks() -> None:
    data = talk(answering(b"ab", b"", b"c", generator=True), LAST)
    assert data.endswith(b"\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
    assert take(data)[0].headers["transfer-encoding"] == "chunked"


def test_generator_that_yields_nothing_has_no_body() -> None:
    reply = ask(answering(generator=True), GET)
    assert (reply.headers["content-length"], reply.body) == ("0", b"")


def test_generator_with_a_length_is_sent_as_it_is() -> None:
    headers = [("Content-Length", "3")]
    data = talk(answering(b"ab", b"c", headers=headers, generator=True), LAST)
    assert data.endswith(b"\r\n\r\nabc")
    assert b"chunked" not in data


def test_block_is_sent_before_the_next_one_is_made() -> None:
    received: list[bytes] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        for block in (b"one", b"two"):
            yield block
            sleep(1)
            assert block in received[-1]

    def client(stream: net.Stream) -> None:
        stream.write(LAST)
        while data := stream.read():
            received.append(data)

    converse(app, client)
    assert len(received) == 3


def test_old_client_is_told_by_the_end_of_the_connection() -> None:
    data = talk(answering(b"ab", b"c", generator=True), OLD, ends=False)
    assert data.endswith(b"Connection: close\r\n\r\nabc")
    assert b"chunked" not in data


def test_old_client_may_keep_the_connection() -> None:
    request = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    first, second = replies(talk(hello, request + request))
    assert first.headers["connection"] == second.headers["connection"] == "keep-alive"


@pytest.mark.parametrize("generator", [False, True])
def test_head_is_answered_without_body(generator: bool) -> None:
    app = answering(HELLO, headers=[("Content-Length", "13")], generator=generator)
    data = talk(app, HEAD + b"")
    assert data.endswith(b"\r\n\r\n")
    assert take(data, "HEAD")[0].headers["content-length"] == "13"


def test_head_of_an_unknown_length_says_none() -> None:
    for app in (answering(), answering(b"x", generator=True)):
        reply = ask(app, HEAD, method="HEAD")
        assert "content-length" not in reply.headers
        assert "transfer-encoding" not in reply.headers
    assert ask(answering(HELLO), HEAD, method="HEAD").headers["content-length"] == "13"


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
@pytest.mark.parametrize("generator", [False, True])
def test_status_without_body_has_none(status: str, generator: bool) -> None:
    headers = [("Content-Length", "13")]
    app = answering(HELLO, status=status, headers=headers, generator=generator)
    first, second = replies(talk(app, GET + GET))
    assert first.status == second.status == int(status[:3])
    assert first.headers.get("content-length") == (None if status[0] == "2" else "13")
    bare = ask(answering(status=status, generator=generator), GET)
    assert "content-length" not in bare.headers
    assert "transfer-encoding" not in bare.headers


def test_written_blocks_come_before_the_returned_ones() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        write = start_response("200 OK", [])
        write(b"a")
        write(b"")
        write(b"b")
        return [b"c"]

    assert ask(app, GET).body == b"abc"


def test_large_answer_arrives_whole() -> None:
    body = bytes(range(256)) * 4000
    for generator in (False, True):
        assert ask(answering(body, body, generator=generator), GET).body == body + body


# What is refused ----------------------------------------------------------------------------------


def failing(app: App, request: bytes = GET) -> tuple[Reply, str]:
    """The answer to the only request, and what was logged."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("pyfiber")
    logger.addHandler(handler)
    logger.propagate = False
    try:
        data = talk(app, request + GET)
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    (record,) = records
    assert record.exc_info
    (reply,) = replies(data.removesuffix(b"(reset)"))  # nothing after it
    assert record.getMessage().startswith("GET / of 127.0.0.1:")
    return reply, repr(record.exc_info[1])


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([("X", "a\r\nEvil: b")], "value of X"),
        ([("X", "a\nb")], "value of X"),
        ([("X", "a\rb")], "value of X"),
        ([("X", "a\0b")], "value of X"),
        ([("X", "\x7f")], "value of X"),
        ([("X", "\u20ac")], "value of X"),
        ([("X\r\nEvil: b\r\nY", "a")], "name of a header"),
        ([("X:", "a")], "name of a header"),
        ([("X Y", "a")], "name of a header"),
        ([("", "a")], "name of a header"),
        ([("\xe9", "a")], "name of a header"),
        ([(b"X", "a")], "is a str"),
        ([("X", b"a")], "is a str"),
        ([("X", 3)], "is a str"),
        ([("Content-Length", "-1")], "Content-Length"),
        ([("Content-Length", "+1")], "Content-Length"),
        ([("Content-Length", "\xb2")], "Content-Length"),
        ([("Content-Length", "")], "Content-Length"),
        ([("Content-Length", "1"), ("content-length", "1")], "Content-Length"),
        ([("Transfer-Encoding", "chunked")], "Transfer-Encoding"),
    ],
)
def test_header_that_is_none_is_refused(headers: Any, reason: str) -> None:
    reply, logged = failing(answering(b"x", headers=headers))
    assert (reply.status, reply.headers["connection"]) == (500, "close")
    assert reason in logged
    assert b"x" not in reply.body.partition(b":")[0]


@pytest.mark.parametrize(
    "status",
    ["200 OK\r\nEvil: b", "200 \n", "20", "2000 OK", "100 Continue", "OK", "", 200, b"200"],
)
def test_status_that_is_none_is_refused(status: Any) -> None:
    reply, logged = failing(answering(b"x", status=status))
    assert reply.status == 500
    assert "status" in logged


def test_headers_that_are_unusual_pass() -> None:
    headers = [("X-Latin", "\xe9"), ("X-Tab", "a\tb"), ("X-Empty", ""), ("!#$%&'*+.^_`|~", "x")]
    reply = ask(answering(b"x", headers=headers, status="299"), GET)
    assert reply.status == 299
    assert {name: reply.headers[name.lower()] for name, _ in headers} == dict(headers)


def test_date_and_server_are_the_applications_if_it_gives_them() -> None:
    headers = [("date", "then"), ("Server", "mine")]
    reply = ask(answering(headers=headers), GET)
    assert (reply.headers["date"], reply.headers["server"]) == ("then", "mine")
    reply = ask(answering(headers=headers[:1]), GET)
    assert (reply.headers["date"], reply.headers["server"]) == ("then", "pyfiber")


def test_connection_is_the_servers_but_for_close() -> None:
    headers = [("Connection", "close"), ("Keep-Alive", "timeout=9"), ("Upgrade", "x")]
    (reply,) = replies(talk(answering(headers=headers), GET + GET))
    assert reply.headers["connection"] == "close"
    assert not {"keep-alive", "upgrade"} & set(reply.headers)
    first, _ = replies(talk(answering(headers=[("Connection", "keep-alive")]), GET + GET))
    assert "connection" not in first.headers


@pytest.mark.parametrize("generator", [False, True])
@pytest.mark.parametrize("blocks", [(b"abcd",), (b"ab", b"cd")])
def test_more_than_the_length_is_not_sent(blocks: tuple[bytes, ...], generator: bool) -> None:
    app = answering(*blocks, headers=[("Content-Length", "3")], generator=generator)
    reply, logged = failing(app)
    assert (reply.status, reply.body) == (200, b"abc")
    assert "more than its Content-Length" in logged


@pytest.mark.parametrize("generator", [False, True])
def test_less_than_the_length_ends_the_connection(generator: bool) -> None:
    app = answering(b"ab", headers=[("Content-Length", "3")], generator=generator)
    reply, logged = failing(app)
    assert (reply.body, reply.complete) == (b"ab", False)
    assert "less than its Content-Length" in logged


@pytest.mark.parametrize("blocks", [["text"], [b"a", 3], [None], [bytearray(b"x")]])
@pytest.mark.parametrize("generator", [False, True])
def test_body_that_is_not_bytes_is_refused(blocks: Any, generator: bool) -> None:
    reply, logged = failing(answering(*blocks, generator=generator))
    assert "is made of bytes" in logged
    if reply.status != 500:
        assert not reply.complete


def test_application_that_says_nothing_is_refused() -> None:
    reply, logged = failing(lambda environ, start_response: [b"x"])
    assert reply.status == 500
    assert "start_response() was not called" in logged


def test_second_start_without_a_reason_is_refused() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        start_response("200 OK", [])
        return [b"x"]

    reply, logged = failing(app)
    assert reply.status == 500
    assert "called twice" in logged


def test_error_before_the_body_replaces_the_head() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [("X", "a"), ("Content-Length", "100")])
        try:
            raise ValueError
        except ValueError:
            start_response("500 Oops", [("Y", "b")], sys.exc_info())
        return [b"oops"]

    reply = ask(app, GET)
    assert (reply.status, reply.body, reply.headers.get("x")) == (500, b"oops", None)


def test_error_in_the_body_is_raised_again() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"x"
        try:
            raise ValueError("in the midst")
        except ValueError:
            start_response("500 Oops", [], sys.exc_info())
        yield b"y"

    reply, logged = failing(app)
    assert (reply.status, reply.body, reply.complete) == (200, b"x", False)
    assert "in the midst" in logged


def test_failure_is_answered_and_logged() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        raise ValueError("secret")

    reply, logged = failing(app)
    assert (reply.status, reply.headers["connection"]) == (500, "close")
    assert b"secret" not in reply.body
    assert "secret" in logged


def test_failure_of_a_head_request_is_answered_without_body() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        raise ValueError

    data = talk(app, HEAD)
    assert data.startswith(b"HTTP/1.1 500 ")
    assert data.endswith(b"\r\n\r\n")


def test_failure_in_a_body_without_length_resets_the_connection() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"x"
        sleep(1)
        raise ValueError

    assert talk(app, OLD, ends=False).endswith(b"\r\n\r\nx(reset)")


class Closing:
    def __init__(self, blocks: Any, log: list[str]) -> None:
        self.blocks = iter(blocks)
        self.log = log

    def __iter__(self) -> Iterator[bytes]:
        return self.blocks

    def close(self) -> None:
        self.log.append("closed")


@pytest.mark.parametrize("blocks", [[b"x"], [], [b"x", "y"], ["y"]])
def test_result_is_always_closed(blocks: Any) -> None:
    log: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> Closing:
        start_response("200 OK", [])
        return Closing(blocks, log)

    talk(app, LAST)  # type: ignore[arg-type]
    assert log == ["closed"]


def test_result_is_closed_when_the_client_is_gone() -> None:
    log: list[str] = []

    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 1000
            sleep(1)

    def app(environ: dict[str, Any], start_response: Any) -> Closing:
        start_response("200 OK", [])
        return Closing(endless(), log)

    def client(stream: net.Stream) -> None:
        stream.write(LAST)
        stream.read()
        stream.close()
        sleep(10)
        assert log == ["closed"]

    converse(app, client)  # type: ignore[arg-type]


# Bodies of requests -------------------------------------------------------------------------------


def reading(read: Any) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [repr(read(environ["wsgi.input"])).encode()]

    return app


BODY = b"one\ntwo\n\nlast"


@pytest.mark.parametrize(
    "read",
    [
        lambda body: body.read(),
        lambda body: [body.read(2), body.read(5), body.read(0), body.read(100), body.read(1)],
        lambda body: [body.readline() for _ in range(6)],
        lambda body: [body.readline(2), body.readline(100), body.readline(0), body.read(-1)],
        lambda body: body.readlines(),
        lambda body: list(body),
        lambda body: [body.read(None), body.read()],
        lambda body: [len(body.readlines(5)), body.read()],
        lambda body: list(io.TextIOWrapper(body, encoding="ascii")),
        lambda body: io.BufferedReader(body).readline(),
    ],
)
def test_body_reads_like_a_file(read: Any) -> None:
    expected = repr(read(io.BytesIO(BODY))).encode()
    length = POST + b"Content-Length: 13\r\n\r\n"
    chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    app = reading(read)
    assert ask(app, length + BODY).body == expected
    assert ask(app, length, BODY[:5], BODY[5:]).body == expected
    assert ask(app, length + BODY[:1], *(BODY[i : i + 1] for i in range(1, 13))).body == expected
    assert ask(app, chunked, b"5\r\none\nt\r\n8\r\nwo\n", b"\nlast\r\n0\r\n\r\n").body == expected


def test_body_gives_what_has_come() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        body = environ["wsgi.input"]
        assert body.readable()
        start_response("200 OK", [])
        some = bytearray(2)
        size = body.readinto1(some)
        return [repr([bytes(some[:size]), body.read1(), body.read1(0), body.read1()]).encode()]

    pieces = POST + b"Content-Length: 7\r\n\r\n", b"abcd", b"efg"
    assert ask(app, *pieces).body == repr([b"ab", b"cd", b"", b"efg"]).encode()


def test_body_cannot_be_read_when_the_request_is_over() -> None:
    bodies = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        bodies.append(environ["wsgi.input"])
        return list(hello(environ, start_response))

    talk(app, POST + b"Content-Length: 7\r\n\r\n", b"abcdefg")
    with pytest.raises(ValueError, match="is over"):
        bodies[0].read()


def test_unread_body_is_skipped() -> None:
    post = POST + b"Content-Length: 1000\r\n\r\n" + b"x" * 900
    first, second = replies(talk(hello, post, b"x" * 100 + LAST))
    assert (first.body, second.body) == (HELLO, HELLO)


@pytest.mark.parametrize("line", [b"Content-Length: 1000000", b"Transfer-Encoding: chunked"])
def test_unread_body_that_is_long_ends_the_connection(line: bytes) -> None:
    def client(stream: net.Stream) -> bytes:
        stream.write(POST + line + b"\r\n\r\n")
        for _ in range(20):
            stream.write(b"8000\r\n" + b"x" * 0x8000 + b"\r\n")
        return read_all(stream)

    (reply,) = replies(converse(hello, client))
    assert reply.body == HELLO  # it is not lost, though there was more to read
    if b"Length" in line:
        assert reply.headers["connection"] == "close"


def test_continue_is_said_when_the_body_is_read() -> None:
    log: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        sleep(5)
        log.append("reads")
        body = environ["wsgi.input"].read()
        start_response("200 OK", [])
        return [body]

    def client(stream: net.Stream) -> bytes:
        stream.write(POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert stream.read_until(b"\r\n\r\n").startswith(b"HTTP/1.1 100 Continue\r\n")
        assert log == ["reads"]
        stream.write(b"abc" + LAST.replace(b"Host", b"Content-Length: 0\r\nHost"))
        return read_all(stream)

    first, second = replies(converse(app, client))
    assert (first.status, first.body, second.body) == (200, b"abc", b"")


def test_continue_is_not_said_when_the_body_is_not_read() -> None:
    request = POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    (reply,) = replies(talk(hello, request, ends=False))
    assert (reply.status, reply.headers["connection"]) == (200, "close")


def test_continue_is_not_said_when_the_body_is_there() -> None:
    request = POST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc"
    assert [reply.status for reply in replies(talk(hello, request + LAST))] == [200, 200]


def test_continue_is_not_said_to_old_clients() -> None:
    request = b"POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n"
    app = reading(lambda body: body.read())
    assert [reply.status for reply in replies(talk(app, request, b"abc"))] == [200]


# Files --------------------------------------------------------------------------------------------

CONTENT = bytes(range(256)) * 1000


def filing(file: Any, headers: Any = (), offset: int = 0) -> App:
    def app(environ: dict[str, Any], start_response: Any) -> Any:
        start_response("200 OK", list(headers))
        file.seek(offset)
        return environ["wsgi.file_wrapper"](file, 1000)

    return app


def ask_really(app: App, request: bytes) -> bytes:
    """By the system's sockets."""

    def main() -> bytes:
        with wsgi.serve(app, HOST, 0) as server, net.connect(*server.address) as stream:
            stream.write(request)
            return read_all(stream)

    return run(main)


def test_file_is_sent_by_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any) -> Any:
        raise AssertionError("it is read")

    with tempfile.TemporaryFile() as file:
        file.write(CONTENT)
        monkeypatch.setattr(wsgi.FileWrapper, "__iter__", refuse)
        reply, rest = take(ask_really(filing(file, offset=10), LAST))
        assert (reply.body, rest) == (CONTENT[10:], b"")
        assert file.closed


@pytest.mark.parametrize("really", [False, True])
@pytest.mark.parametrize(
    ("headers", "offset", "body"),
    [
        ([], 0, CONTENT),
        ([], 5, CONTENT[5:]),
        ([("Content-Length", "7")], 5, CONTENT[5:12]),
        ([], len(CONTENT), b""),
        ([], len(CONTENT) + 1, b""),
    ],
)
def test_file_is_sent_from_its_position(
    headers: Any, offset: int, body: bytes, really: bool
) -> None:
    with tempfile.TemporaryFile() as file:
        file.write(CONTENT)
        app = filing(file, headers, offset)
        data = ask_really(app, LAST) if really else talk(app, LAST)
        reply, rest = take(data)
        assert (reply.body, rest) == (body, b"")
        assert reply.headers["content-length"] == str(len(body))
        assert file.closed


def test_file_of_a_head_request_is_not_sent() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(CONTENT)
        data = talk(filing(file), HEAD)
    assert take(data, "HEAD") == (take(data, "HEAD")[0], b"")
    assert take(data, "HEAD")[0].headers["content-length"] == str(len(CONTENT))


def test_file_that_is_none_of_the_system_is_read() -> None:
    file = io.BytesIO(CONTENT)
    reply = ask(filing(file), GET)
    assert (reply.body, reply.headers["transfer-encoding"]) == (CONTENT, "chunked")
    assert file.closed


def test_file_behind_middleware_is_read() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(CONTENT)
        app = filing(file)
        assert ask(lambda *args: (block for block in app(*args)), GET).body == CONTENT
