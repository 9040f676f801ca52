"""What a Stream reads, beside a model: any reads of bytes that come in any pieces."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyfiber import net


class Late(Exception):
    """What ends a wait."""


class Pieces:
    """A socket that receives these, and fails where there is a None; b"" at the end."""

    def __init__(self, pieces: list[bytes | None]) -> None:
        self.pieces = deque(pieces)

    def recv(self, n: int) -> bytes:
        assert n > 0
        if not self.pieces:
            return b""
        piece = self.pieces.popleft()
        if piece is None:
            raise Late
        if len(piece) > n:
            self.pieces.appendleft(piece[n:])
        return piece[:n]


class Model:
    """The same, plainly."""

    def __init__(self, pieces: list[bytes | None]) -> None:
        self.socket = Pieces(pieces)
        self.buffer = b""

    def more(self, n: int) -> bool:
        got = self.socket.recv(n)
        self.buffer += got
        return bool(got)

    def take(self, n: int) -> bytes:
        taken, self.buffer = self.buffer[:n], self.buffer[n:]
        return taken

    def read(self, n: int) -> bytes:
        if not self.buffer and n:
            self.more(n)
        return self.take(n)

    def read_exactly(self, n: int) -> bytes:
        while len(self.buffer) < n:
            if not self.more(max(n - len(self.buffer), 65536)):
                raise net.IncompleteRead(self.take(len(self.buffer)), n)
        return self.take(n)

    def read_until(self, separator: bytes, limit: int) -> bytes:
        while (at := self.buffer.find(separator)) < 0 and len(self.buffer) < limit:
            if not self.more(65536):
                raise net.IncompleteRead(self.take(len(self.buffer)), separator)
        end = at + len(separator)
        if at < 0 or end > limit:
            raise net.LimitExceeded(self.take(len(self.buffer)), separator, limit)
        return self.take(end)

    def line(self) -> bytes | None:
        try:
            return self.read_until(b"\n", 65536)
        except net.IncompleteRead as exc:
            return exc.partial or None


Read: TypeAlias = tuple[Any, ...]

# Few different bytes, so that separators occur, whole and in part.
texts = st.binary(max_size=40).map(lambda text: bytes(b"ab\r\n"[byte % 4] for byte in text))
large = st.integers(0, 200_000).map(lambda n: (b"ab\r\n" * 10 + b"a" * 3000)[: n % 3040] * 70)
pieces = st.lists(st.one_of(texts.filter(len), texts.filter(len), st.none(), large.filter(len)))
reads = st.one_of(
    st.tuples(st.just("read"), st.sampled_from([0, 1, 2, 7, 100, 65536, 10**6])),
    st.tuples(st.just("read_exactly"), st.sampled_from([0, 1, 2, 7, 100, 65536, 100_000])),
    st.tuples(
        st.just("read_until"),
        st.sampled_from([b"\n", b"\r\n", b"\r\n\r\n", b"aa", b"aab", b"\n" * 50]),
        st.sampled_from([-1, 0, 1, 2, 3, 50, 65536]),
    ),
    st.tuples(st.just("line")),
)


def outcome(act: Callable[[], bytes | None]) -> Any:
    try:
        return act()
    except (net.IncompleteRead, net.LimitExceeded) as exc:
        return type(exc), exc.__reduce__()
    except Late:
        return Late


def done_by(stream: net.Stream, read: Read) -> Any:
    name, *arguments = read
    if name == "line":
        return outcome(lambda: next(stream, None))
    return outcome(lambda: getattr(stream, name)(*arguments))


@settings(deadline=None)
@given(pieces, st.lists(reads, min_size=1, max_size=40))
def test_reads_give_what_the_model_gives(came: list[bytes | None], reads: list[Read]) -> None:
    model, socket = Model(came), Pieces(came)
    stream = net.Stream(socket, "peer")  # type: ignore[arg-type]
    for name, *arguments in reads:
        wanted = outcome(lambda n=name, a=arguments: getattr(model, n)(*a))  # type: ignore[misc]
        assert done_by(stream, (name, *arguments)) == wanted
        assert stream._buffered == len(model.buffer)
        assert socket.pieces == model.socket.pieces


@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
def test_bytes_that_were_given_away_do_not_change(size: int) -> None:
    """Not even those that others have: bytes of one character exist once."""
    came: list[bytes | None] = [bytes([97 + i % 3]) * size for i in range(30)]
    stream = net.Stream(Pieces(came), "peer")  # type: ignore[arg-type]
    got = [stream.read_exactly(n) for n in [size, 2 * size, size - 1, 1, 3 * size, 5 * size]]
    rest = b"".join(iter(stream.read, b""))
    assert b"".join(got) + rest == b"".join(filter(None, came))
    assert came == [bytes([97 + i % 3]) * size for i in range(30)]
    assert [bytes([97 + i]) for i in range(3)] == [b"a", b"b", b"c"]


def test_lines_of_one_piece_cost_no_more_the_longer_it_is() -> None:
    """The rest is not copied for each line, nor is what was searched looked at again."""

    class Drops:
        left = 60_000

        def recv(self, n: int) -> bytes:
            self.left -= 1
            return b"a" if self.left else b"\n"

    stream = net.Stream(Drops(), "peer")  # type: ignore[arg-type]
    assert len(next(stream)) == 60_000
    one = net.Stream(Pieces([b"a\n" * 500_000]), "peer")  # type: ignore[arg-type]
    assert sum(map(len, one)) == 1_000_000


def test_failed_look_for_a_socket_and_odd_results_are_told() -> None:
    class Odd:
        def recv(self, n: int) -> Any:
            return bytearray(b"text")

    stream = net.Stream(Odd(), "peer")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must return bytes"):
        next(stream)
    assert not stream._reading
    del stream.socket
    for read in (stream.read, lambda: next(stream), lambda: stream.read_exactly(1)):
        with pytest.raises(AttributeError, match="has no socket"):
            read()


@pytest.mark.parametrize("wrong", ["text", 5, None, [1]])
def test_separators_that_are_no_bytes_are_refused(wrong: Any) -> None:
    stream = net.Stream(Pieces([b"text"]), "peer")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="separator of bytes"):
        stream.read_until(wrong)
    for number in ("1", 2.0):
        with pytest.raises(TypeError):
            stream.read_exactly(number)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            stream.read_until(b"x", number)  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        stream.read_exactly(sys.maxsize + 1)
    assert stream.read(n=10) == b"text"


def test_stream_in_a_cycle_is_collected() -> None:
    socket: Any = Pieces([b"text\nmore"])
    stream = net.Stream(socket, "peer")
    assert next(stream) == b"text\n"
    socket.stream = stream
    gone = weakref.ref(stream)
    del stream, socket
    gc.collect()
    assert gone() is None
