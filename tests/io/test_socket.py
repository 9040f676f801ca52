"""pyfiber.socket: what parks, what is refused, and that plain threads see no difference."""

from __future__ import annotations

import contextlib
import errno
import os
import socket as standard
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Fiber,
    FiberError,
    Scheduler,
    TaskGroup,
    run,
    sleep,
    socket,
    spawn,
    testing,
    timeout,
    wait_readable,
    yield_now,
)
from tests.conftest import Child
from tests.support.threads import in_thread

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def tcp() -> Iterator[Pair]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        left = socket.create_connection(listener.getsockname())
        right = listener.accept()[0]
    yield left, right
    left.close()
    right.close()


def fill(sock: socket.socket) -> int:
    """Until the system takes no more; how many bytes."""
    before = sock.gettimeout()
    sock.settimeout(0)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += sock.send(bytes(65536))
    sock.settimeout(before)
    return sent


def receive(sock: socket.socket, size: int) -> bytes:
    parts = []
    while size:
        parts.append(sock.recv(size))
        size -= len(parts[-1])
    return b"".join(parts)


# what parks ---------------------------------------------------------------------------------------


def test_echo_among_many_connections() -> None:
    def answer(sock: socket.socket) -> None:
        with sock:
            while data := sock.recv(1000):
                sock.sendall(data)

    def ask(address: Any, text: bytes) -> None:
        with socket.create_connection(address) as sock:
            for _ in range(20):
                sock.sendall(text)
                assert receive(sock, len(text)) == text

    def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, TaskGroup() as clients:

            def serve() -> None:
                for _ in range(30):
                    spawn(answer, listener.accept()[0])

            spawn(serve)
            for i in range(30):
                clients.spawn(ask, listener.getsockname(), b"%d" % i * 50)

    run(main)


def test_reader_parks_and_others_run(pair: Pair) -> None:
    log: list[Any] = []

    def main() -> None:
        reader = spawn(lambda: log.append(pair[0].recv(10)))
        yield_now()
        log.append("others")
        pair[1].send(b"data")
        reader.join()

    run(main)
    assert log == ["others", b"data"]


def test_writer_parks_until_there_is_room(tcp: Pair) -> None:
    left, right = tcp
    text = os.urandom(1_000_000)

    def main() -> None:
        before = fill(left)
        writer = spawn(left.sendall, text)
        yield_now()
        assert not writer.done()
        assert receive(right, before + len(text))[before:] == text
        writer.result()

    run(main)


def test_end_of_the_data_is_an_empty_read(tcp: Pair) -> None:
    def main() -> None:
        reader = spawn(lambda: [tcp[0].recv(10), tcp[0].recv(10), tcp[0].recv(10)])
        yield_now()
        tcp[1].send(b"last")
        tcp[1].close()
        assert reader.result() == [b"last", b"", b""]

    run(main)


def test_data_and_end_in_one_event_are_both_read(tcp: Pair) -> None:
    """A short read is then not the end of what can be read without a wait."""

    def main() -> None:
        assert tcp[0].gettimeout() is None
        reader = spawn(tcp[0].recv, 10)
        yield_now()
        tcp[1].send(b"1")
        assert reader.result() == b"1"
        tcp[1].send(b"2")
        tcp[1].shutdown(socket.SHUT_WR)
        assert tcp[0].recv(100) == b"2"
        assert tcp[0].recv(100) == b""

    run(main)


@pytest.mark.parametrize("size", [1, 1000, 300_000])
def test_recv_of_any_size_and_into_a_buffer(pair: Pair, size: int) -> None:
    def main() -> None:
        buffer = bytearray(10)
        pair[1].sendall(b"abcdef")
        assert pair[0].recv(size) == b"abcdef"[:size]
        rest = pair[0].recv_into(buffer) if size < 6 else 0
        assert bytes(buffer[:rest]) == b"abcdef"[size:]

    run(main)


def test_datagrams_and_their_addresses() -> None:
    def main() -> None:
        with (
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one,
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
        ):
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            reader = spawn(one.recvfrom, 100)
            yield_now()
            other.sendto(b"hello", one.getsockname())
            assert reader.result() == (b"hello", other.getsockname())

    run(main)


def test_several_fibers_accept_from_one_listener() -> None:
    def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            waiting: list[Fiber[Any]] = [spawn(listener.accept) for _ in range(5)]
            yield_now()
            made = [socket.create_connection(listener.getsockname()) for _ in range(5)]
            accepted = [fiber.result()[0] for fiber in waiting]
            for sock in made + accepted:
                sock.close()

    run(main)


def test_makefile_reads_lines(pair: Pair) -> None:
    def main() -> None:
        with pair[0].makefile("r") as file:
            reader = spawn(list, file)
            yield_now()
            pair[1].sendall(b"one\ntwo\n")
            pair[1].close()
            assert reader.result() == ["one\n", "two\n"]

    run(main)


def test_sendfile_sends_a_file_and_moves_its_position(pair: Pair, tmp_path: Any) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(1_000_000))

    def main() -> None:
        with path.open("rb") as file:
            writer = spawn(pair[0].sendfile, file, 10)
            assert receive(pair[1], 999_990) == path.read_bytes()[10:]
            assert writer.result() == 999_990
            assert file.tell() == 1_000_000

    run(main)


def test_fast_peer_does_not_keep_others_waiting(pair: Pair) -> None:
    pair[1].sendall(bytes(1000))

    def main() -> int:
        turns = [0]

        def other() -> None:
            while True:
                turns[0] += 1
                yield_now()

        spawn(other)
        for _ in range(1000):
            pair[0].recv(1)
        return turns[0]

    def root() -> int:
        fiber: Fiber[int] = spawn(main)
        value = fiber.result()
        raise KeyboardInterrupt(value)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(root)
    assert caught.value.args[0] >= 10


# timeouts and cancellation ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "act",
    [
        lambda sock: sock.recv(1),
        lambda sock: sock.recv_into(bytearray(1)),
        lambda sock: sock.recvfrom(1),
        lambda sock: sock.makefile("rb").read(1),
    ],
    ids=["recv", "recv_into", "recvfrom", "makefile"],
)
def test_timeout_of_a_read(pair: Pair, act: Callable[[Any], Any]) -> None:
    pair[0].settimeout(0.001)
    for call in (act, lambda sock: run(act, sock)):
        with pytest.raises(TimeoutError, match="timed out"):
            call(pair[0])


def test_timeout_of_sendall_tells_how_much_went(pair: Pair) -> None:
    pair[0].settimeout(0.001)
    sent = []
    for call in (lambda: pair[0].sendall(bytes(10_000_000)),) * 2:
        with pytest.raises(TimeoutError) as caught:
            run(call)
        sent.append(caught.value.sent)  # type: ignore[attr-defined]
    assert sent[0] > 0
    assert sent[1] == 0
    assert len(receive(pair[1], sent[0])) == sent[0]


def test_timeout_is_of_the_schedulers_clock(pair: Pair) -> None:
    pair[0].settimeout(1000)

    def main() -> None:
        with pytest.raises(TimeoutError):
            pair[0].recv(1)

    testing.run(main)


def test_cancelled_read_leaves_the_data(pair: Pair) -> None:
    def main() -> None:
        reader = spawn(pair[0].recv, 10)
        yield_now()
        reader.cancel()
        reader.join()
        assert reader.cancelled()
        pair[1].send(b"kept")
        assert pair[0].recv(10) == b"kept"

    run(main)


def test_sendall_of_nothing_finds_a_broken_connection(pair: Pair) -> None:
    def main() -> None:
        left, right = pair
        left.sendall(b"")
        right.close()
        with pytest.raises(BrokenPipeError):
            left.sendall(b"")

    run(main)


def test_cancelled_sendall_tells_how_much_went(pair: Pair) -> None:
    told: list[int] = []

    def write() -> None:
        try:
            pair[0].sendall(bytes(10_000_000))
        except Cancelled as exc:
            told.append(exc.sent)  # type: ignore[attr-defined]
            raise

    def main() -> None:
        writer = spawn(write)
        yield_now()
        writer.cancel()
        writer.join()
        assert len(receive(pair[1], told[0])) == told[0] > 0

    run(main)


def test_timeout_scope_around_a_read(pair: Pair) -> None:
    def main() -> None:
        with pytest.raises(TimeoutError), timeout(0.001):
            pair[0].recv(1)

    run(main)


def test_socket_that_never_waits_asks_the_system_each_time(pair: Pair) -> None:
    def main() -> None:
        pair[0].setblocking(False)
        assert not pair[0].getblocking()
        for _ in range(2):
            with pytest.raises(BlockingIOError):
                pair[0].recv(10)
            pair[1].send(b"x")
            assert pair[0].recv(10) == b"x"
        fill(pair[0])
        with pytest.raises(BlockingIOError):
            pair[0].sendall(b"x")

    run(main)


@pytest.mark.skipif(sys.platform != "linux", reason="others have no such flag for each call")
def test_socket_that_somebody_else_made_blocking_parks(child: Child) -> None:
    """Whoever shares what a descriptor stands for, as a child does, can take its O_NONBLOCK."""
    done = child(
        """
        import faulthandler, os
        from pyfiber import run, socket, spawn, yield_now
        faulthandler.dump_traceback_later(30, exit=True)
        def main():
            left, right = socket.socketpair()
            for sock in (left, right):
                os.set_blocking(sock.fileno(), True)
            reader = spawn(left.recv, 1)
            yield_now()
            right.send(b"x")
            print(reader.result())
            writer = spawn(right.sendall, bytes(10_000_000))
            yield_now()
            size = 0
            while size < 10_000_000:
                size += len(left.recv(1 << 20))
            writer.join()
            left.close()
            right.close()
            print(size)
        run(main)
        """
    )
    assert done.stdout == "b'x'\n10000000\n"


# misuse -------------------------------------------------------------------------------------------


def test_second_reader_of_a_stream_is_refused(pair: Pair) -> None:
    def main() -> None:
        reader = spawn(pair[0].recv, 10)
        yield_now()
        with pytest.raises(FiberError, match="another fiber reads from this socket"):
            pair[0].recv(1)
        pair[0].sendall(b"writing is another matter")
        pair[1].send(b"x")
        assert reader.result() == b"x"

    run(main)


@pytest.mark.parametrize("act", ["close", "detach"])
def test_closing_wakes_the_reader_and_the_writer(pair: Pair, act: str) -> None:
    def main() -> None:
        fill(pair[0])
        waiting: list[Fiber[Any]] = [spawn(pair[0].recv, 1), spawn(pair[0].sendall, b"x")]
        yield_now()
        number = getattr(pair[0], act)()
        for fiber, way in zip(waiting, ("read", "write"), strict=True):
            with pytest.raises(OSError, match=f"closed by another fiber .* to {way}") as caught:
                fiber.result()
            assert caught.value.errno == errno.EBADF
        if act == "detach":
            socket.close(number)

    run(main)


def test_closing_wakes_who_waits_for_the_socket_to_be_readable(pair: Pair) -> None:
    """Nobody has read from it, or written to it, before."""

    def main() -> None:
        waiting = spawn(wait_readable, pair[0])
        yield_now()
        pair[0].close()
        with pytest.raises(OSError, match="closed by another fiber"):
            waiting.result()
        with pytest.raises(ValueError, match="descriptor"):
            wait_readable(pair[0])

    run(main)


@pytest.mark.skipif(os.name == "nt", reason="numbers cannot be chosen there")
def test_number_of_a_dropped_socket_may_be_watched_by_others() -> None:
    def main() -> None:
        left, right = socket.socketpair()
        fiber = spawn(left.recv, 1)
        yield_now()
        right.send(b"x")
        fiber.result()
        number = left.fileno()
        reader, writer = os.pipe()
        with pytest.warns(ResourceWarning, match="unclosed"):
            del left, fiber
        os.dup2(reader, number)
        with pytest.raises(TimeoutError):
            wait_readable(number, 0.001)
        os.write(writer, b"x")
        wait_readable(number)
        for each in (number, reader, writer):
            os.close(each)
        right.close()

    run(main)


def test_closing_on_another_thread_wakes_the_reader(pair: Pair) -> None:
    def main() -> None:
        reader = spawn(pair[0].recv, 1)
        yield_now()
        in_thread(pair[0].close)
        with pytest.raises(OSError, match="closed by another fiber"):
            reader.result()

    run(main)


def test_closed_socket_is_refused(pair: Pair) -> None:
    pair[0].close()
    calls: list[Callable[[], Any]] = [
        lambda: pair[0].recv(1),
        lambda: pair[0].sendall(b"x"),
        lambda: pair[0].accept(),
        lambda: pair[0].settimeout(1),
    ]
    for call in calls:
        for way in (call, lambda call=call: run(call)):
            with pytest.raises(OSError, match="Bad file") as caught:
                way()
            assert caught.value.errno == errno.EBADF


def test_socket_whose_init_has_not_run_is_refused() -> None:
    bare = socket.socket.__new__(socket.socket)
    for call in (lambda: bare.recv(1), lambda: bare.settimeout(1)):
        with pytest.raises(OSError, match="Bad file"):
            call()


def test_number_that_is_closed_and_given_again_is_another_socket() -> None:
    def main() -> None:
        for _ in range(5):
            left, right = socket.socketpair()
            reader = spawn(left.recv, 10)
            yield_now()
            right.send(b"x")
            assert reader.result() == b"x"
            left.close()
            right.close()

    run(main)


def test_number_that_is_handed_to_another_object_goes_on(pair: Pair) -> None:
    def main() -> None:
        left, right = socket.socketpair()
        reader = spawn(left.recv, 10)
        yield_now()
        right.send(b"1")
        assert reader.result() == b"1"
        heir = socket.socket(fileno=left.detach())
        reader = spawn(heir.recv, 10)
        yield_now()
        right.send(b"2")
        assert reader.result() == b"2"
        heir.close()
        right.close()

    run(main)


@pytest.mark.skipif(os.name == "nt", reason="the system gives another number")
def test_junk_of_a_closed_number_whose_duplicate_lives_wakes_nobody(pair: Pair) -> None:
    def main() -> None:
        left, right = socket.socketpair()
        reader = spawn(left.recv, 10)
        yield_now()
        twin = left.dup()
        number = left.fileno()
        left.close()
        with pytest.raises(OSError, match="closed by another fiber"):
            reader.result()
        again, other = socket.socketpair()
        passed_over = []
        while number not in (again.fileno(), other.fileno()):
            passed_over += [again, other]  # lower numbers have become free meanwhile
            again, other = socket.socketpair()
        if other.fileno() == number:
            again, other = other, again
        waits = spawn(again.recv, 1)
        yield_now()
        right.send(b"x")
        assert twin.recv(1) == b"x"
        sleep(0.001)
        assert not waits.done()
        waits.cancel()
        for sock in (twin, right, again, other, *passed_over):
            sock.close()

    run(main)


def test_bad_arguments_are_refused_and_nothing_is_lost(pair: Pair) -> None:
    def main() -> None:
        pair[1].send(b"data")
        for bad in (lambda: pair[0].recv(), lambda: pair[0].recv("1"), lambda: pair[0].recv(1, "")):
            with pytest.raises(TypeError):
                bad()
        for wrong in (
            lambda: pair[0].recv(-1),
            lambda: pair[0].recv_into(bytearray(2), 3),
            lambda: pair[0].recv_into(bytearray(2), -1),
            lambda: pair[0].settimeout(-1),
        ):
            with pytest.raises(ValueError, match=r"negative|too small|out of range"):
                wrong()
        assert pair[0].recv(10) == b"data"

    run(main)
    main()


# outside of a run ---------------------------------------------------------------------------------


def test_plain_threads_block_as_on_a_standard_socket(tcp: Pair) -> None:
    text = os.urandom(2_000_000)
    thread = threading.Thread(target=tcp[0].sendall, args=(text,))
    thread.start()
    assert receive(tcp[1], len(text)) == text
    thread.join()


def test_socket_is_a_standard_one(pair: Pair) -> None:
    assert isinstance(pair[0], standard.socket)
    assert pair[0].timeout is None
    pair[0].settimeout(1.5)
    assert pair[0].timeout == pair[0].gettimeout() == 1.5
    assert "pyfiber.socket.socket" in repr(pair[0])


def test_default_timeout_is_taken_over() -> None:
    socket.setdefaulttimeout(2)
    try:
        with socket.socket() as sock:
            assert sock.gettimeout() == 2
    finally:
        socket.setdefaulttimeout(None)


def test_refused_connection_is_told_in_a_fiber_and_outside() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    for call in (run, lambda fn, *args: fn(*args)):
        with pytest.raises(ConnectionRefusedError):
            call(socket.create_connection, address)
        with socket.socket() as sock:
            assert call(sock.connect_ex, address) == errno.ECONNREFUSED


def test_a_socket_closed_while_a_scheduler_dies_leaves_that_alone() -> None:
    """It looks for all runs that may wait for it."""

    class Closes:
        def __init__(self, sock: Any) -> None:
            self.sock = sock

        def __call__(self, fiber: Any, exc: BaseException) -> None: ...

        def __del__(self) -> None:
            self.sock.close()
            closed.append(self.sock)

    def use() -> None:
        spawn(right.send, b"x")
        assert left.recv(1) == b"x"

    closed: list[Any] = []
    left, right = socket.socketpair()
    with right:
        scheduler = Scheduler(on_unhandled=Closes(left))
        scheduler.run(use)
        scheduler.close()
        del scheduler
        assert closed == [left]


def test_sockets_that_are_dropped_close_their_numbers() -> None:
    def main() -> None:
        for _ in range(3):
            left, right = socket.socketpair()
            reader = spawn(left.recv, 1)
            yield_now()
            right.send(b"x")
            reader.result()
            numbers = left.fileno(), right.fileno()
            with pytest.warns(ResourceWarning, match="unclosed"):
                del left, right, reader
            for number in numbers:
                with pytest.raises(OSError, match=r"Bad file|WinError"):
                    standard.socket(fileno=number)

    run(main)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
@pytest.mark.parametrize("runner", [run, lambda main: main()], ids=["fiber", "thread"])
def test_unix_connect_waits_for_room_in_the_listeners_queue(runner: Any, tmp_path: Any) -> None:
    def main() -> None:
        path = str(tmp_path / "listener")
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(path)
            listener.listen(0)
            first, second, third = (
                stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)
            )
            first.connect(path)
            second.settimeout(0)
            with pytest.raises(BlockingIOError):
                second.connect(path)
            second.settimeout(0.01)
            with pytest.raises(TimeoutError):
                second.connect(path)
            assert second.connect_ex(path) == errno.EAGAIN
            in_thread(lambda: stack.enter_context(listener.accept()[0]))
            third.connect(path)

    runner(main)
