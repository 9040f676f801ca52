"""Sockets of the standard class under the patch, made before the run, in it, and by subclasses."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyfiber
import pyfiber.socket
from pyfiber import run, spawn, yield_now

pytestmark = pytest.mark.usefixtures("patched")

Pair = tuple[socket.socket, socket.socket]


class Mine(socket.socket):
    """A program's own."""


def made_by_hand(kind: type[socket.socket], *options: Any) -> Pair:
    left, right = socket.socketpair(*options)
    return tuple(  # type: ignore[return-value]
        kind(each.family, each.type, each.proto, each.detach()) for each in (left, right)
    )


def in_fiber(fn: Callable[..., Any], *args: Any) -> Any:
    """A fiber that waits in it."""
    fiber = spawn(fn, *args)
    for _ in range(5):
        yield_now()
    assert not fiber.done()
    return fiber


@pytest.fixture(params=["before", "subclass", "fiber"])
def kind(request: pytest.FixtureRequest) -> str:
    which: str = request.param
    return which


@contextlib.contextmanager
def pair_of(kind: str, *options: Any) -> Iterator[Pair]:
    """In a fiber."""
    if kind == "fiber":
        pair = socket.socketpair(*options)
        assert isinstance(pair[0], pyfiber.socket.socket)
    elif kind == "subclass":
        pair = made_by_hand(Mine, *options)
        assert type(pair[0]) is Mine
    else:
        pair = pyfiber.to_thread(socket.socketpair, *options)
        assert type(pair[0]) is socket.socket
    with pair[0], pair[1]:
        yield pair


def on_pair(
    kind: str, *options: Any
) -> Callable[[Callable[[socket.socket, socket.socket], Any]], Any]:
    """Runs the function with the two ends, in a fiber."""

    def decorate(fn: Callable[[socket.socket, socket.socket], Any]) -> Any:
        def main() -> Any:
            with pair_of(kind, *options) as pair:
                return fn(*pair)

        return run(main)

    return decorate


RECEIVING: dict[str, Callable[[socket.socket], bytes]] = {
    "recv": lambda sock: sock.recv(10),
    "recvfrom": lambda sock: sock.recvfrom(10)[0],
    "recvmsg": lambda sock: sock.recvmsg(10)[0],
}


def into(sock: socket.socket) -> bytes:
    buffer = bytearray(10)
    return bytes(buffer[: sock.recv_into(buffer)])


def into_by_name(sock: socket.socket) -> bytes:
    buffer = bytearray(10)
    return bytes(buffer[: sock.recvfrom_into(buffer, nbytes=10, flags=0)[0]])


def into_several(sock: socket.socket) -> bytes:
    buffers = bytearray(1), bytearray(9)
    size = sock.recvmsg_into(buffers)[0]
    return b"".join(buffers)[:size]


RECEIVING |= {"recv_into": into, "recvfrom_into": into_by_name, "recvmsg_into": into_several}


@pytest.mark.parametrize("name", RECEIVING)
@pytest.mark.parametrize("timeout", [None, 100])
def test_receiving_parks(kind: str, name: str, timeout: float | None) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        left.settimeout(timeout)
        reader = in_fiber(RECEIVING[name], left)
        right.sendall(b"data")
        assert reader.result() == b"data"


@pytest.mark.parametrize("timeout", [None, 100])
def test_sendall_parks_and_sends_all(kind: str, timeout: float | None) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        left.settimeout(timeout)
        data = bytes(range(256)) * 4096
        writer = in_fiber(left.sendall, data)
        got = bytearray()
        while len(got) < len(data):
            got += right.recv(65536)
        assert writer.result() is None
        assert got == data


def fill(sock: socket.socket) -> None:
    timeout = sock.gettimeout()
    sock.settimeout(0)
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(b"." * 65536)
    sock.settimeout(timeout)


@pytest.mark.parametrize(
    "send", [lambda sock: sock.send(b"last"), lambda sock: sock.sendmsg([b"la", b"st"])]
)
def test_sending_parks_until_there_is_room(kind: str, send: Callable[[Any], int]) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        fill(left)
        writer = in_fiber(send, left)
        right.settimeout(0)
        while not writer.done():
            with contextlib.suppress(BlockingIOError):
                right.recv(1 << 20)
            yield_now()
        assert writer.result() == 4


def test_timeout_of_the_program_is_obeyed(kind: str) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        left.settimeout(0.01)
        with pytest.raises(TimeoutError, match=r"^timed out$"):
            left.recv(1)
        assert left.gettimeout() == 0.01
        fill(left)
        with pytest.raises(TimeoutError, match=r"^timed out$") as caught:
            left.sendall(b"x")
        assert caught.value.sent == 0  # type: ignore[attr-defined]


def test_timeout_of_nothing_never_waits(kind: str) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        left.setblocking(False)
        with pytest.raises(BlockingIOError) as caught:
            left.recv(1)
        assert caught.value.errno == errno.EAGAIN
        right.sendall(b"x")
        assert left.recv(1) == b"x"


def test_descriptor_blocks_as_it_did() -> None:
    @on_pair("before")
    def _(left: socket.socket, right: socket.socket) -> None:
        reader = in_fiber(left.recv, 1)
        assert os.get_blocking(left.fileno())
        right.sendall(b"x")
        assert reader.result() == b"x"
        assert os.get_blocking(left.fileno())


def test_partial_progress_is_told_when_cancelled(kind: str) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        told = []

        def send() -> None:
            try:
                left.sendall(b"." * 10_000_000)
            except pyfiber.Cancelled as exc:
                told.append(exc.sent)  # type: ignore[attr-defined]
                raise

        writer = in_fiber(send)
        writer.cancel()
        with pytest.raises(pyfiber.FiberCancelled):
            writer.result()
        assert 0 < told[0] < 10_000_000
        left.close()
        got = 0
        while data := right.recv(65536):
            got += len(data)
        assert got == told[0]


def test_cancellation_ends_a_wait_and_leaves_the_socket_usable(kind: str) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        reader = in_fiber(left.recv, 1)
        reader.cancel()
        with pytest.raises(pyfiber.FiberCancelled):
            reader.result()
        right.sendall(b"x")
        assert left.recv(1) == b"x"


def test_two_fibers_take_turns(kind: str) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        readers = [in_fiber(left.recv, 1) for _ in range(3)]
        right.sendall(b"abc")
        assert sorted(reader.result() for reader in readers) == [b"a", b"b", b"c"]
        writers = [spawn(left.sendall, letter * 1_000_000) for letter in (b"a", b"b")]
        got = bytearray()
        while len(got) < 2_000_000:
            got += right.recv(65536)
        assert got.count(b"a") == got.count(b"b") == 1_000_000
        for writer in writers:
            writer.result()


def test_thread_and_fiber_talk(kind: str) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        def echo() -> None:
            while data := right.recv(100):
                right.sendall(data.upper())
            right.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=echo)
        thread.start()
        left.sendall(b"abc")
        assert left.recv(100) == b"ABC"
        left.shutdown(socket.SHUT_WR)
        assert left.recv(100) == b""
        while thread.is_alive():
            yield_now()


def test_socket_made_in_a_fiber_is_used_in_a_thread_later() -> None:
    left, right = run(socket.socketpair)
    with left, right:
        thread = threading.Thread(target=lambda: right.sendall(right.recv(10)))
        thread.start()
        left.sendall(b"later")
        assert left.recv(10) == b"later"
        thread.join()


def test_datagrams_are_received_in_turn(kind: str) -> None:
    @on_pair(kind, socket.AF_UNIX, socket.SOCK_DGRAM)
    def _(left: socket.socket, right: socket.socket) -> None:
        readers = [in_fiber(left.recv, 10) for _ in range(2)]
        right.send(b"one")
        right.send(b"two")
        assert sorted(reader.result() for reader in readers) == [b"one", b"two"]


def test_closed_socket_is_an_error(kind: str) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        left.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            left.recv(1)


def test_arguments_that_are_wrong_are_refused(kind: str) -> None:
    @on_pair(kind)
    def _(left: Any, right: Any) -> None:
        for call in (
            lambda: left.recv(),
            lambda: left.recv("x"),
            lambda: left.recv(1, 2, 3),
            lambda: left.sendall("text"),
            lambda: left.sendto(b""),
            lambda: left.send(b"", 0, 0),
        ):
            with pytest.raises(TypeError):
                call()
        with pytest.raises(ValueError, match="negative"):
            left.recv(-1)


def test_makefile_parks(kind: str) -> None:
    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        with left.makefile("rb") as lines, right.makefile("wb") as out:
            reader = in_fiber(lines.readline)
            out.write(b"line\n")
            out.flush()
            assert reader.result() == b"line\n"


def test_sendfile_sends_the_file_from_its_beginning(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 4000)

    @on_pair(kind)
    def _(left: socket.socket, right: socket.socket) -> None:
        with path.open("rb") as file:
            file.read(10)
            writer = in_fiber(left.sendfile, file)
            got = bytearray()
            while len(got) < 256 * 4000:
                got += right.recv(65536)
            assert writer.result() == 256 * 4000
            assert got == path.read_bytes()
            assert file.tell() == 256 * 4000
            assert left.sendfile(file, 10, 20) == 20
            assert right.recv(100) == path.read_bytes()[10:30]
        assert left.sendfile(io.BytesIO(b"memory")) == 6
        assert right.recv(100) == b"memory"


def test_detached_descriptor_blocks_as_a_standard_one(kind: str) -> None:
    def main() -> None:
        with pair_of(kind) as (left, right):
            number = left.detach()
            assert os.get_blocking(number)
            os.close(number)
            right.settimeout(1)
            number = right.detach()
            assert not os.get_blocking(number)
            os.close(number)

    run(main)


# listeners ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def listener_of(kind: str, timeout: float | None = None) -> Iterator[socket.socket]:
    make = socket.create_server if kind == "fiber" else Mine if kind == "subclass" else None
    if make is Mine:
        listener: socket.socket = Mine()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
    elif make is not None:
        listener = socket.create_server(("127.0.0.1", 0))
    else:
        listener = pyfiber.to_thread(socket.create_server, ("127.0.0.1", 0))
    listener.settimeout(timeout)
    with listener:
        yield listener


@pytest.mark.parametrize("timeout", [None, 100])
def test_accept_and_connect_park(kind: str, timeout: float | None) -> None:
    def main() -> None:
        with listener_of(kind, timeout) as listener:
            there = listener.getsockname()
            accepting = [in_fiber(listener.accept) for _ in range(2)]
            client = Mine() if kind != "fiber" else socket.socket()
            client.settimeout(timeout)
            with client, socket.create_connection(there) as other:
                assert client.connect_ex(there) == 0
                accepted = [fiber.result()[0] for fiber in accepting]
                assert {each.getpeername() for each in accepted} == {
                    client.getsockname(),
                    other.getsockname(),
                }
                for each in accepted:
                    assert isinstance(each, pyfiber.socket.socket)
                    assert each.gettimeout() is None
                    each.close()

    run(main)


def test_accept_times_out(kind: str) -> None:
    def main() -> None:
        with listener_of(kind, 0.01) as listener:
            with pytest.raises(TimeoutError, match="timed out"):
                listener.accept()
            listener.settimeout(0)
            with pytest.raises(BlockingIOError):
                listener.accept()

    run(main)


def test_listener_blocks_again_after_accept() -> None:
    def main() -> None:
        with listener_of("before") as listener:
            fiber = in_fiber(listener.accept)
            assert os.get_blocking(listener.fileno())
            with socket.create_connection(listener.getsockname()):
                fiber.result()[0].close()
            assert os.get_blocking(listener.fileno())

    run(main)


def test_refused_connection_is_the_standard_error(kind: str) -> None:
    def main() -> None:
        with listener_of("fiber") as listener:
            there = listener.getsockname()
        make = Mine if kind == "subclass" else socket.socket
        with make() as client, make() as other:
            assert client.connect_ex(there) == errno.ECONNREFUSED
            with pytest.raises(ConnectionRefusedError):
                other.connect(there)

    run(main)


@pytest.mark.parametrize("make", [Mine, socket.socket])
def test_host_names_are_looked_up_by_a_thread(
    make: type[socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def look_up(host: Any, port: Any, family: int, *rest: Any) -> Any:
        asked.append(bytes(host, "ascii") if isinstance(host, str) else host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port or 0))]

    from pyfiber import dns

    before = dns.set_resolver(look_up)
    try:

        def main() -> None:
            with make() as listener, make() as client:
                listener.bind(("here.test", 0))
                listener.listen()
                client.connect(("there.test", listener.getsockname()[1]))

        run(main)
    finally:
        dns.set_resolver(before)
    assert asked == [b"here.test", b"there.test"]


def test_full_queue_of_a_unix_listener_is_waited_for(tmp_path: Path) -> None:
    def main() -> None:
        with contextlib.ExitStack() as all_of_them:
            listener = all_of_them.enter_context(Mine(socket.AF_UNIX))
            listener.bind(str(tmp_path / "s"))
            listener.listen(0)
            clients = [all_of_them.enter_context(Mine(socket.AF_UNIX)) for _ in range(2)]
            clients[0].connect(str(tmp_path / "s"))
            second = in_fiber(clients[1].connect, str(tmp_path / "s"))
            listener.accept()[0].close()
            second.result()
            last = all_of_them.enter_context(Mine(socket.AF_UNIX))
            last.settimeout(0.01)
            with pytest.raises(TimeoutError):
                last.connect(str(tmp_path / "s"))

    run(main)


# the class ----------------------------------------------------------------------------------------


def test_class_stays_the_class() -> None:
    def main() -> None:
        with socket.socket() as made, socket.socket(fileno=made.detach()) as again:
            assert isinstance(again, socket.socket)
            assert again.family is socket.AF_INET
            with again.dup() as twin:
                assert type(twin) is type(again)
        with socket.socket() as made, socket.fromfd(made.fileno(), made.family, made.type) as other:
            assert isinstance(other, pyfiber.socket.socket)

    run(main)
    with socket.socket() as outside:
        assert type(outside) is socket.socket


def test_class_is_as_it_was_after_the_patch() -> None:
    code = """
        import socket
        before = dict(vars(socket.socket))
        new = socket.socket.__new__
        class Mine(socket.socket): pass
        import pyfiber
        patch = pyfiber.patch()
        class Later(socket.socket): pass
        patch.undo()
        assert dict(vars(socket.socket)) == before
        assert socket.socket.__new__ is new
        for kind in (socket.socket, Mine, Later):
            with pyfiber.run(kind) as made:
                assert type(made) is kind
            kind(socket.AF_INET, type=socket.SOCK_STREAM).close()
            assert kind.__new__(kind).fileno() == -1
    """
    from tests.support.subprocesses import run_script

    done = run_script(code)
    assert not done.stderr


def test_fiber_that_waits_finishes_after_the_patch_was_undone() -> None:
    def main() -> None:
        with pair_of("before") as (left, right):
            patch = pyfiber.patch()
            reader = in_fiber(left.recv, 1)
            patch.undo()
            right.sendall(b"x")
            assert reader.result() == b"x"

    run(main)


def test_bound_methods_of_sockets_park() -> None:
    @on_pair("before")
    def _(left: socket.socket, right: socket.socket) -> None:
        receive = left.recv
        assert receive.__self__ is left  # type: ignore[attr-defined]
        reader = in_fiber(receive, 1)
        right.sendall(b"x")
        assert reader.result() == b"x"
