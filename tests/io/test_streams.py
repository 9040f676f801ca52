"""pyfiber.net.Stream: what its reads and writes give, keep and refuse."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    FiberError,
    gather,
    move_on_after,
    net,
    run,
    socket,
    spawn,
    yield_now,
)
from tests.support.threads import in_thread


@pytest.fixture
def ends() -> Iterator[tuple[net.Stream, socket.socket]]:
    """A stream, and the socket at its other end."""
    with net.listen("127.0.0.1", 0) as listener:
        other = socket.create_connection(listener.address)
        stream = listener.accept()
    with stream, other:
        yield stream, other


Ends = tuple[net.Stream, socket.socket]


def send_slowly(sock: socket.socket, data: bytes) -> None:
    """A byte at a time, and each arrives before the next."""
    for i in range(len(data)):
        sock.sendall(data[i : i + 1])
        yield_now()
        yield_now()
    sock.shutdown(socket.SHUT_WR)


# reading ------------------------------------------------------------------------------------------


def test_read_gives_what_there_is_and_nothing_at_the_end(ends: Ends) -> None:
    stream, other = ends

    def main() -> None:
        reader = spawn(stream.read)
        yield_now()
        other.sendall(b"some")
        assert reader.result() == b"some"
        other.sendall(b"more")
        assert stream.read(3) == b"mor"
        assert stream.read(3) == b"e"
        assert stream.read(0) == b""
        other.close()
        assert stream.read() == stream.read(10) == b""

    run(main)


def test_read_exactly_waits_for_all(ends: Ends) -> None:
    stream, other = ends

    def main() -> None:
        spawn(send_slowly, other, b"abcdef")
        assert stream.read_exactly(0) == b""
        assert stream.read_exactly(4) == b"abcd"
        with pytest.raises(net.IncompleteRead, match="after 2 bytes, before 4 bytes") as caught:
            stream.read_exactly(4)
        assert (caught.value.partial, caught.value.wanted) == (b"ef", 4)
        assert stream.read() == b""

    run(main)


def test_read_exactly_of_far_more_than_comes_at_once(ends: Ends) -> None:
    stream, other = ends
    text = bytes(range(256)) * 10_000

    def main() -> None:
        spawn(other.sendall, b"x" + text + b"rest")
        assert stream.read_exactly(1) == b"x"
        assert stream.read_exactly(len(text)) == text
        assert stream.read_exactly(4) == b"rest"

    run(main)


@pytest.mark.parametrize("separator", [b"\n", b"\r\n", b"\r\n\r\n", bytearray(b"--")])
def test_read_until_finds_a_separator_however_it_is_cut(ends: Ends, separator: Any) -> None:
    stream, other = ends
    parts = [b"one", b"", b"t\rwo", b"x" * 300]
    wanted = [part + bytes(separator) for part in parts]

    def main() -> None:
        spawn(send_slowly, other, b"".join(wanted) + b"last")
        assert [stream.read_until(separator) for _ in parts] == wanted
        with pytest.raises(net.IncompleteRead) as caught:
            stream.read_until(separator)
        assert caught.value.partial == b"last"

    run(main)


def test_read_until_at_the_end_is_incomplete(ends: Ends) -> None:
    ends[1].close()
    with pytest.raises(net.IncompleteRead, match=r"after 0 bytes, before b'\\n'"):
        run(ends[0].read_until, b"\n")


@pytest.mark.parametrize(
    ("sent", "limit"),
    [(b"12345\n", 5), (b"12345", 5), (b"123456789\n", 5), (b"12345", 1), (b"1234\n5", 4)],
)
def test_limit_of_read_until_is_told_with_what_came(ends: Ends, sent: bytes, limit: int) -> None:
    stream, other = ends

    def main() -> None:
        other.sendall(sent)
        with pytest.raises(net.LimitExceeded, match=rf"no b'\\n' within {limit} bytes") as caught:
            stream.read_until(b"\n", limit=limit)
        assert caught.value.partial == sent
        other.sendall(b"1234\n")
        assert stream.read_until(b"\n", limit=5) == b"1234\n"

    run(main)


def test_line_without_an_end_does_not_fill_the_memory(ends: Ends) -> None:
    stream, other = ends

    def main() -> None:
        writer = spawn(other.sendall, bytes(10_000_000))
        with pytest.raises(net.LimitExceeded) as caught:
            list(stream)
        assert len(caught.value.partial) < 2 * 65536 + 1
        writer.cancel()

    run(main)


def test_lines_and_a_last_one_without_its_end(ends: Ends) -> None:
    stream, other = ends

    def main() -> None:
        other.sendall(b"one\n\ntwo\nthree")
        other.close()
        assert list(stream) == [b"one\n", b"\n", b"two\n", b"three"]
        assert list(stream) == []

    run(main)


def test_kinds_of_reads_share_one_buffer(ends: Ends) -> None:
    stream, other = ends

    def main() -> None:
        other.sendall(b"GET\n12345678rest")
        assert next(stream) == b"GET\n"
        assert stream.read(3) == b"123"
        assert stream.read_exactly(4) == b"4567"
        assert stream.read(100) == b"8rest"

    run(main)


@pytest.mark.parametrize(
    "read",
    [lambda stream: stream.read_exactly(10), lambda stream: stream.read_until(b"\n"), next],
    ids=["read_exactly", "read_until", "lines"],
)
def test_cancelled_read_loses_nothing(ends: Ends, read: Callable[[net.Stream], bytes]) -> None:
    stream, other = ends

    def main() -> None:
        for part in (b"123", b"456", b"789"):
            other.sendall(part)
            with move_on_after(0.001) as limit:
                read(stream)
            assert limit.cancelled()
        other.sendall(b"\n")
        assert read(stream) == b"123456789\n"

    run(main)


def test_separator_that_was_cut_by_a_cancellation_is_found(ends: Ends) -> None:
    stream, other = ends

    def main() -> None:
        for part in (b"ab--", b"--"):
            other.sendall(part)
            with move_on_after(0.001):
                stream.read_until(b"----+")
        assert stream.read_until(b"---") == b"ab---"

    run(main)


# writing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 10, 50_000, 700_000])
def test_write_of_one_buffer_and_of_several(ends: Ends, size: int) -> None:
    stream, other = ends
    text = bytes(range(250)) * (size // 250) + bytes(size % 250)
    parts = [b"<", bytearray(text), memoryview(text)[::-1].tobytes(), b"", memoryview(text)]

    def receive(wanted: bytes) -> None:
        got = bytearray()
        while len(got) < len(wanted):
            got += other.recv(100_000)
        assert got == wanted

    def main() -> None:
        for data, wanted in (
            (text, text),
            (memoryview(bytearray(text)), text),
            (parts, b"".join(parts)),
            (iter(parts), b"".join(parts)),
            ([text[i : i + 25] for i in range(0, size, 25)], text),
        ):
            reader = spawn(receive, wanted)
            stream.write(data)
            reader.result()

    run(main)


@pytest.mark.parametrize("data", [bytes(10**7), [bytes(10**6)] * 10], ids=["bytes", "list"])
def test_cancelled_write_tells_how_much_went(ends: Ends, data: Any) -> None:
    stream, other = ends

    def main() -> None:
        writer = spawn(stream.write, data)
        yield_now()
        writer.cancel()
        writer.join()
        assert writer.cancelled()
        with move_on_after(0.001), pytest.raises(Cancelled) as caught:
            stream.write(data)
        assert caught.value.sent == 0  # type: ignore[attr-defined]
        del caught
        stream.close()
        received = 0
        while got := other.recv(100_000):
            received += len(got)
        assert 0 < received < 10**7

    run(main)


def test_close_write_leaves_the_other_direction(ends: Ends) -> None:
    stream, other = ends

    def main() -> None:
        stream.write(b"question")
        stream.close_write()
        assert other.recv(100) == b"question"
        assert other.recv(100) == b""
        other.sendall(b"answer")
        assert stream.read() == b"answer"
        with pytest.raises(BrokenPipeError):
            stream.write(b"more")

    run(main)


# misuse, and what is told -------------------------------------------------------------------------


def test_second_reader_and_second_writer_are_refused(ends: Ends) -> None:
    stream, other = ends

    def main() -> None:
        other.sendall(b"half a line")
        line = spawn(next, stream)
        writer = spawn(stream.write, bytes(10**7))
        yield_now()
        for read in (stream.read, lambda: stream.read_exactly(1), lambda: next(stream)):
            with pytest.raises(FiberError, match="another fiber reads from this stream"):
                read()
        for write in (lambda: stream.write(b"x"), lambda: stream.write([b"x"]), stream.close_write):
            with pytest.raises(FiberError, match="another fiber writes to this stream"):
                write()
        other.sendall(b"\n")
        assert line.result() == b"half a line\n"
        writer.cancel()

    run(main)


def test_plain_readers_are_refused_as_well(ends: Ends) -> None:
    def main() -> None:
        first = spawn(ends[0].read)
        yield_now()
        with pytest.raises(FiberError, match="another fiber reads from"):
            ends[0].read()
        ends[1].sendall(b"x")
        assert first.result() == b"x"

    run(main)


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (lambda stream: stream.read(-1), "not negative"),
        (lambda stream: stream.read_exactly(-1), "not negative"),
        (lambda stream: stream.read_until(b""), "at least one byte"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(ends: Ends, act: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        run(act, ends[0])


def test_wrong_data_is_refused_and_the_stream_goes_on(ends: Ends) -> None:
    def main() -> None:
        for wrong in ("text", [b"x", "text"], 5, None):
            with pytest.raises(TypeError):
                ends[0].write(wrong)  # type: ignore[arg-type]
        ends[0].write(b"right")
        assert ends[1].recv(10) == b"right"

    run(main)


def test_errors_can_be_pickled() -> None:
    first = pickle.loads(pickle.dumps(net.IncompleteRead(b"abc", 5)))
    assert (first.partial, first.wanted) == (b"abc", 5)
    second = pickle.loads(pickle.dumps(net.LimitExceeded(b"abc", b"\n", 2)))
    assert (second.partial, second.separator, second.limit) == (b"abc", b"\n", 2)
    assert str(second) == "no b'\\n' within 2 bytes"
    assert isinstance(first, EOFError)


def test_closing_wakes_who_waits(ends: Ends) -> None:
    def main() -> None:
        reader = spawn(next, ends[0])
        yield_now()
        ends[0].close()
        ends[0].close()
        with pytest.raises(OSError, match="closed by another fiber"):
            reader.result()
        assert repr(ends[0]).endswith(", closed>")
        assert ends[0].fileno() == -1

    run(main)


def test_addresses_of_both_ends(ends: Ends) -> None:
    stream, other = ends
    assert stream.peer == other.getsockname()
    assert stream.local == other.getpeername()
    assert repr(stream) == f"<pyfiber.net.Stream to 127.0.0.1:{stream.peer[1]}>"
    stream.close()
    assert stream.peer[0] == "127.0.0.1"


def test_stream_outside_of_a_run_blocks_its_thread(ends: Ends) -> None:
    stream, other = ends
    other.sendall(b"one\ntwo")
    other.close()
    assert in_thread(lambda: list(stream)) == [b"one\n", b"two"]


def test_both_directions_at_once(ends: Ends) -> None:
    stream, other = ends
    text = bytes(3_000_000)
    ours, theirs = stream, net.Stream(other)

    def main() -> None:
        results = gather(
            lambda: ours.write(text),
            lambda: theirs.write([text[:100_000]] * 30),
            lambda: ours.read_exactly(len(text)),
            lambda: theirs.read_exactly(len(text)),
        )
        assert results == [None, None, text, text]

    run(main)


def test_start_tls_over_unread_data_is_refused(ends: Ends) -> None:
    def main() -> None:
        ends[1].sendall(b"STARTTLS\r\nplain data of someone else")
        assert next(ends[0]) == b"STARTTLS\r\n"
        with pytest.raises(FiberError, match="would take plain data"):
            ends[0].start_tls(server_hostname="known.test")

    run(main)
