"""pyfiber.wsgi: random requests mean the same however the network cuts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pyfiber import net
from tests.wsgi.talking import converse, read_all, take

METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"])
PATHS = st.text("abc/%.~", max_size=10).map(lambda path: "/" + path.replace("%", "%41"))
NAMES = st.sampled_from(["Accept", "X-A", "X-B", "Cookie", "x-a", "Upgrade"])
VALUES = st.text('ab, ;="\t\xe9', max_size=10)
DATA = st.binary(max_size=50) | st.integers(1, 5000).map(lambda size: b"x" * size)


@dataclass
class Asked:
    method: str
    path: str
    fields: list[tuple[str, str]]
    body: bytes
    #: Sizes of chunks; None: with a length; an empty body without chunks is not told at all.
    chunks: list[int] | None
    upgrades: bool
    #: Bytes of the body that the application reads.
    wanted: int

    def encoded(self, last: bool) -> bytes:
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: a"]
        lines += [f"{name}: {value}" for name, value in self.fields]
        options = ["close"] * last + ["upgrade"] * self.upgrades
        if options:
            lines.append(f"Connection: {', '.join(options)}")
        if self.upgrades:
            lines.append("Upgrade: h2c")
        body = self.body
        if self.chunks is not None:
            lines.append("Transfer-Encoding: chunked")
            body = self.in_chunks(self.chunks)
        elif body:
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + body

    def in_chunks(self, sizes: list[int]) -> bytes:
        encoded, rest = b"", self.body
        for size in [*sizes, len(rest)]:
            chunk, rest = rest[:size], rest[size:]
            if chunk:
                encoded += b"%X;ext=1\r\n%b\r\n" % (len(chunk), chunk)
        return encoded + b"0\r\nTrailer: x\r\n\r\n"


ASKED = st.builds(
    Asked,
    METHODS,
    PATHS,
    st.lists(st.tuples(NAMES, VALUES), max_size=5),
    DATA,
    st.none() | st.lists(st.integers(1, 30), max_size=5),
    st.booleans(),
    st.integers(0, 100) | st.just(10_000),
)


def witness(wanted: list[int], seen: list[Any]) -> Any:
    """Answers with what it was asked, in different ways."""

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        number = len(seen)
        body = environ["wsgi.input"].read(wanted[number])
        told = {key: value for key, value in environ.items() if key.isupper()}
        del told["REMOTE_PORT"]
        seen.append((told, body))
        text = repr(seen[-1]).encode()
        headers = [("Content-Length", str(len(text)))] if number % 3 == 0 else []
        start_response("200 OK", headers)
        return [text] if number % 2 else iter([text[:10], text[10:]])

    return app


def answers(asked: list[Asked], pieces: list[bytes]) -> tuple[list[Any], list[Any]]:
    """What the application has seen, and what the client has been told."""
    seen: list[Any] = []

    def client(stream: net.Stream) -> bytes:
        for piece in pieces:
            stream.write(piece)
        return read_all(stream)

    app = witness([each.wanted for each in asked], seen)
    data = converse(app, client)
    told = []
    for each in asked:
        reply, data = take(data, each.method)
        assert reply.complete
        reply.headers.pop("date")
        told.append(reply)
    assert data == b""
    return seen, told


@settings(max_examples=100, deadline=None)
@given(
    st.lists(ASKED, min_size=1, max_size=4),
    st.lists(st.integers(1, 300), max_size=30),
)
def test_requests_mean_the_same_however_they_are_cut(asked: list[Asked], cuts: list[int]) -> None:
    data = b"".join(each.encoded(each is asked[-1]) for each in asked)
    pieces, rest = [], data
    for cut in cuts:
        pieces.append(rest[:cut])
        rest = rest[cut:]
    whole = answers(asked, [data])
    assert answers(asked, [*filter(None, pieces), rest]) == whole
    seen = whole[0]
    assert [environ["REQUEST_METHOD"] for environ, _ in seen] == [each.method for each in asked]
    assert [body for _, body in seen] == [each.body[: each.wanted] for each in asked]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.lists(ASKED, max_size=2), st.integers(0, 400), st.booleans())
def test_nonsense_does_no_harm(
    nonsense: bytes, asked: list[Asked], place: int, replacing: bool
) -> None:
    """It is answered by complete answers, whatever is put into valid requests."""
    data = b"".join(each.encoded(False) for each in asked)
    data = data[:place] + nonsense + data[place + len(nonsense) * replacing :]
    statuses: list[int] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        environ["wsgi.input"].read()
        start_response("200 OK", [("Content-Length", "0")])
        return []

    def client(stream: net.Stream) -> bytes:
        stream.write(data)
        stream.close_write()
        return read_all(stream)

    rest = converse(app, client)
    while rest:
        reply, rest = take(rest)
        statuses.append(reply.status)
    assert set(statuses[:-1]) <= {200, 100}
    assert not statuses or statuses[-1] in (200, 100, 400, 408, 413, 431, 501, 505)
