"""Servers and clients on a network in memory, in virtual time."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import re
import struct
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import (
    DeadlockError,
    FiberCancelled,
    FiberError,
    TaskGroup,
    dns,
    move_on_after,
    net,
    now,
    sleep,
    socket,
    spawn,
    ssl,
    testing,
    wait_readable,
    wait_writable,
    yield_now,
)
from pyfiber.testing import Network
from pyfiber.testing.endpoint import UNDER_WAY
from tests.io.certificates import HOST
from tests.io.tls_pairs import client_context, server_context

ANYWHERE = ("127.0.0.1", 0)


def played(function: Callable[[], Any], **options: Any) -> Any:
    """In memory, and with all warnings as errors."""
    return testing.run(function, network=options.pop("network", True), **options)


def in_memory(function: Callable[[], None]) -> Callable[[], None]:
    """A test that runs there."""

    def test() -> None:
        played(function)

    test.__name__ = function.__name__
    return test


def connected() -> tuple[socket.socket, socket.socket]:
    """A client and its server's end."""
    with socket.create_server(ANYWHERE) as listener:
        client = socket.create_connection(listener.getsockname())
        server, address = listener.accept()
        assert address == client.getsockname() == server.getpeername()
        assert client.getpeername() == server.getsockname() == listener.getsockname()
        return client, server


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def error_of(function: Callable[..., Any], *arguments: Any) -> int | None:
    try:
        function(*arguments)
    except OSError as exc:
        return exc.errno
    return None


# programs as they are ---------------------------------------------------------


def shout(connection: socket.socket) -> None:
    with connection, connection.makefile("rw") as file:
        for line in file:
            file.write(line.upper())
            file.flush()


def ask(address: Any, text: str) -> str:
    with socket.create_connection(address) as connection, connection.makefile("rw") as file:
        file.write(text + "\n")
        file.flush()
        return file.readline().strip()


def serve_some() -> list[str]:
    with socket.create_server(ANYWHERE) as listener, TaskGroup() as handlers:

        def accept() -> None:
            while True:
                handlers.spawn(shout, listener.accept()[0])

        server = spawn(accept)
        asked = [spawn(ask, listener.getsockname(), word) for word in ("one", "two", "three")]
        found = [fiber.result() for fiber in asked]
        server.cancel()
        server.join()
    return found


def test_a_server_and_its_clients_run_unchanged() -> None:
    assert played(serve_some) == ["ONE", "TWO", "THREE"]


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks Linux")
def test_no_descriptor_is_opened() -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    def main() -> None:
        before = count()
        pairs = [*socket.socketpair(), *connected()]
        assert count() == before
        assert len({sock.fileno() for sock in pairs}) == 4
        for sock in pairs:
            assert error_of(os.read, sock.fileno(), 1) == errno.EBADF
            sock.close()
            assert sock.fileno() == -1

    played(main)


def test_serve_and_streams_run_unchanged() -> None:
    def echo(stream: net.Stream) -> None:
        for line in stream:
            stream.write([b"> ", line])

    def client(address: Any) -> list[bytes]:
        with net.connect("localhost", address[1], timeout=5) as stream:
            stream.write(b"one\ntwo\n")
            stream.close_write()
            return list(stream)

    def main() -> list[list[bytes]]:
        with net.serve(echo, *ANYWHERE, limit=2, grace=1) as server:
            fibers = [spawn(client, server.address) for _ in range(5)]
            return [fiber.result() for fiber in fibers]

    assert played(main) == [[b"> one\n", b"> two\n"]] * 5


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has no Unix sockets there")
@in_memory
def test_unix_sockets_need_no_file() -> None:
    path = "/no/such/folder/socket"
    with net.listen_unix(path) as listener:
        accepted = spawn(listener.accept)
        with net.connect_unix(path) as stream, accepted.result() as server:
            assert stream.peer == listener.address == path
            server.write(b"hello")
            assert stream.read_exactly(5) == b"hello"
        with pytest.raises(OSError, match="in use"):
            net.listen_unix(path)
    assert error_of(net.connect_unix, path) == errno.ENOENT


@in_memory
def test_a_class_of_the_programs_own_is_one_in_memory() -> None:
    class Counting(socket.socket):
        bound = 0

        def bind(self, address: Any) -> None:
            super().bind(address)
            self.bound += 1

    with Counting() as mine:
        assert isinstance(mine, Counting)
        mine.bind(("127.0.0.1", 80))
        assert (mine.bound, mine.getsockname()) == (1, ("127.0.0.1", 80))
        mine.listen()
        assert ask_and_shout(mine) == "HELLO"


def ask_and_shout(listener: socket.socket) -> str:
    asked = spawn(ask, listener.getsockname(), "hello")
    connection, _ = listener.accept()
    spawn(shout, connection)
    return asked.result()


def test_tls_runs_over_it() -> None:
    ours, theirs = client_context(), server_context()

    def main() -> None:
        client, server = connected()
        shaken = spawn(theirs.wrap_socket, server, server_side=True)
        with ours.wrap_socket(client, server_hostname=HOST) as tls:
            with shaken.result() as other:
                assert isinstance(tls, ssl.SSLSocket)
                sent = spawn(tls.sendall, bytes(200_000))
                got = 0
                while got < 200_000:
                    got += len(other.recv(65536))
                sent.join()
            assert tls.recv(1) == b""

    played(main)


# time and waiting ---------------------------------------------------------------


@in_memory
def test_timeouts_are_virtual() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.settimeout(3600)
        with pytest.raises(TimeoutError):
            left.recv(1)
        assert now() == 3600
        with move_on_after(60):
            left.recv(1)
        assert now() == 3660
        left.settimeout(0)
        with pytest.raises(BlockingIOError):
            left.recv(1)


def test_who_waits_for_each_other_is_deadlocked() -> None:
    def main() -> None:
        with socket.create_server(("127.0.0.1", 80)) as listener:
            client = socket.create_connection(("127.0.0.1", 80))
            server, _ = listener.accept()
            left, right = socket.socketpair()
            with client, server, left, right, TaskGroup() as group:
                group.spawn(client.recv, 1)
                group.spawn(server.recv, 1)
                group.spawn(listener.accept)
                group.spawn(left.sendall, bytes(100_000))

    with pytest.raises(DeadlockError) as caught:
        played(main)
    text = str(caught.value)
    assert "waits to read from a TCP connection to 127.0.0.1:80, in memory" in text
    assert "waits to read from a TCP listener on 127.0.0.1:80, in memory" in text
    assert re.search("waits to write to a (Unix|TCP) connection.*, in memory", text)


@in_memory
def test_a_sender_waits_for_room() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert left.send(bytes(100_000)) == 65536
        left.settimeout(1)
        with pytest.raises(TimeoutError):
            left.send(b"more")
        assert len(right.recv(1000)) == 1000
        assert left.send(bytes(100_000)) == 1000
        sender = spawn(left.sendall, b"x" * 200_000)
        yield_now()
        assert sender.state != "done"
        got = b""
        while len(got) < 65536 + 200_000:
            got += right.recv(7777)
        assert got.count(b"x") == 200_000
        sender.join()


def test_a_networks_buffer_is_as_small_as_it_says() -> None:
    def main() -> None:
        client, server = connected()
        with client, server:
            assert client.send(b"12345") == 3
            client.settimeout(5)
            reader = spawn(server.recv, 100)
            with pytest.raises(TimeoutError) as caught:
                client.sendall(b"45678901")
            assert reader.result() == b"123"
            assert caught.value.sent == 3  # type: ignore[attr-defined]
            assert server.recv(100) == b"456"

    played(main, network=Network(buffer=3))


@in_memory
def test_who_waits_when_it_is_closed_is_told() -> None:
    client, server = connected()
    with client, server, socket.create_server(ANYWHERE) as listener:
        waiting = [spawn(error_of, client.recv, 1), spawn(error_of, listener.accept)]
        waiting.append(spawn(error_of, client.sendall, bytes(10**6)))
        yield_now()
        client.close()
        listener.close()
        assert [fiber.result() for fiber in waiting] == [errno.EBADF] * 3


@in_memory
def test_a_cancelled_operation_has_not_happened() -> None:
    left, right = socket.socketpair()
    with left, right:
        reader = spawn(left.recv, 10)
        yield_now()
        reader.cancel()
        right.send(b"data")
        with pytest.raises(FiberCancelled):
            reader.result()
        assert left.recv(10) == b"data"


@in_memory
def test_a_second_reader_is_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        reader = spawn(left.recv, 10)
        yield_now()
        with pytest.raises(FiberError, match="another fiber reads"):
            left.recv(10)
        right.send(b"!")
        assert reader.result() == b"!"


@in_memory
def test_several_may_accept() -> None:
    with socket.create_server(ANYWHERE) as listener:
        waiting = [spawn(listener.accept) for _ in range(3)]
        yield_now()
        with contextlib.ExitStack() as stack:
            for _ in waiting:
                stack.enter_context(socket.create_connection(listener.getsockname()))
            for fiber in waiting:
                stack.enter_context(fiber.result()[0])


@in_memory
def test_readiness_can_be_waited_for() -> None:
    left, right = socket.socketpair()
    with left, right, socket.create_server(ANYWHERE) as listener:
        wait_writable(left)
        for sock in (left, listener):
            with pytest.raises(TimeoutError):
                wait_readable(sock, 1)
            with pytest.raises(TimeoutError):
                wait_readable(sock, 0)
        fibers = [spawn(wait_readable, left), spawn(wait_readable, left), spawn(left.recv, 1)]
        fibers.append(spawn(wait_readable, listener))
        yield_now()
        right.send(b"!")
        with socket.create_connection(listener.getsockname()):
            for fiber in fibers:
                fiber.result(1)
            wait_readable(listener)
        left.send(bytes(65536))
        with pytest.raises(TimeoutError):
            wait_writable(left, 1)
        waiting = spawn(error_of, wait_writable, left)
        yield_now()
        left.close()
        assert waiting.result() == errno.EBADF


# connections --------------------------------------------------------------------


@in_memory
def test_who_connects_to_nobody_is_refused() -> None:
    for place in (("127.0.0.1", 80), ("10.1.2.3", 443)):
        assert error_of(socket.create_connection, place) == errno.ECONNREFUSED
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 80))
        assert error_of(socket.create_connection, ("127.0.0.1", 80)) == errno.ECONNREFUSED
    if hasattr(socket, "AF_UNIX"):
        assert error_of(net.connect_unix, "/nowhere") == errno.ENOENT


@in_memory
def test_all_addresses_are_there() -> None:
    for host, wide in (("10.1.2.3", "0.0.0.0"), ("2001:db8::1", "::")):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((wide, 80), family=family) as everywhere:
            with socket.create_connection((host, 80)) as client:
                server, _ = everywhere.accept()
                with server:
                    assert server.getsockname()[:2] == client.getpeername()[:2] == (host, 80)
                    assert client.getsockname()[0] == host
            with socket.socket(family) as other:
                assert error_of(other.bind, (host, 80)) == errno.EADDRINUSE


def test_names_are_the_networks() -> None:
    def main() -> list[Any]:
        with net.serve(lambda stream: stream.write(b"hello"), "db.example", 5432) as server:
            with net.connect("DB.example", 5432) as stream:
                assert stream.read() == b"hello"
            with pytest.raises(socket.gaierror, match=r"no host 'other.example'"):
                socket.create_connection(("other.example", 80))
            assert dns.gethostbyname("db.example") == "10.0.0.1"
            assert dns.gethostbyname("localhost") == "127.0.0.1"
            address: list[Any] = server.address
            return address

    assert played(main, network=Network(hosts={"db.example": "10.0.0.1"})) == ("10.0.0.1", 5432)


@in_memory
def test_who_finds_the_backlog_full_waits() -> None:
    with socket.create_server(ANYWHERE, backlog=1) as listener, contextlib.ExitStack() as stack:
        place = listener.getsockname()
        for _ in range(2):
            stack.enter_context(socket.create_connection(place))
        late = stack.enter_context(socket.socket())
        late.settimeout(1)
        with pytest.raises(TimeoutError):
            late.connect(place)
        waiting = spawn(socket.create_connection, place)
        at_once = stack.enter_context(socket.socket())
        at_once.setblocking(False)
        yield_now()
        assert at_once.connect_ex(place) == UNDER_WAY
        late.close()
        stack.enter_context(listener.accept()[0])
        stack.enter_context(waiting.result())
        assert error_of(at_once.getpeername) == errno.ENOTCONN
        stack.enter_context(listener.accept()[0])
        assert at_once.getpeername() == place


@in_memory
def test_a_listener_that_closes_leaves_nobody_waiting() -> None:
    with socket.create_server(ANYWHERE, backlog=0) as listener:
        place = listener.getsockname()
        first = socket.create_connection(place)
        second = spawn(error_of, socket.create_connection, place)
        yield_now()
        listener.close()
        with first:
            assert error_of(first.recv, 1) == errno.ECONNRESET
        assert second.result() == errno.ECONNREFUSED
    with socket.create_server(place):
        pass


@in_memory
def test_the_other_ends_ways_to_end_are_told_apart() -> None:
    client, server = connected()
    with client, server:
        client.send(b"last")
        client.shutdown(socket.SHUT_WR)
        assert (server.recv(10), server.recv(10)) == (b"last", b"")
        server.send(b"answer")
        assert client.recv(10) == b"answer"
        assert error_of(client.send, b"more") == errno.EPIPE
    client, server = connected()
    with client, server:
        server.send(b"unread")
        client.close()
        assert error_of(server.recv, 10) == errno.ECONNRESET
    client, server = connected()
    with client, server:
        reset(client)
        assert error_of(server.recv, 10) == errno.ECONNRESET


@in_memory
def test_who_is_dropped_without_close_is_closed() -> None:
    client, server = connected()
    with client:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del server
            gc.collect()
        assert "MemorySocket fd=1000000" in str(caught[0].message)
        assert client.recv(1) == b""


@in_memory
def test_another_socket_of_an_end_keeps_it_open() -> None:
    client, server = connected()
    with server:
        twin = client.dup()
        waiting = [spawn(error_of, client.recv, 1), spawn(error_of, wait_readable, client)]
        yield_now()
        client.close()
        assert [fiber.result() for fiber in waiting] == [errno.EBADF] * 2
        twin.send(b"still")
        assert server.recv(10) == b"still"
        number = twin.detach()
        assert twin.fileno() == -1
        with socket.socket(fileno=number) as again:
            assert again.fileno() == number
            again.send(b"here")
            assert server.recv(10) == b"here"
        assert server.recv(10) == b""


@in_memory
def test_options_are_remembered() -> None:
    client, server = connected()
    with client, server:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
        linger = struct.pack("ii", 1, 5)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8) == linger
        assert error_of(client.setsockopt, socket.SOL_SOCKET, 999, 1) == errno.ENOPROTOOPT


@in_memory
def test_a_socket_ends_once() -> None:
    left, right = socket.socketpair()
    with left, right:
        number = left.detach()
        file = right.makefile("rb", buffering=0)
        with socket.socket(fileno=number) as again, right.dup():
            for _ in range(2):
                left.close()
                left._real_close()  # type: ignore[attr-defined]
                assert left.detach() == -1
            reader = spawn(error_of, file.read, 1)
            yield_now()
            with socket.socket(fileno=right.detach()) as other:
                assert reader.result() == errno.EBADF
                file.close()
                again.send(b"!")
                assert other.recv(1) == b"!"


# limits -------------------------------------------------------------------------


@in_memory
def test_what_is_not_in_memory_is_refused() -> None:
    for options in ({"type": socket.SOCK_DGRAM}, {"family": 12345}):
        with pytest.raises(FiberError, match="network in memory, with streams"):
            socket.socket(**options)
    with pytest.raises(FiberError, match="network in memory"):
        socket.socketpair(type=socket.SOCK_DGRAM)
    left, right = socket.socketpair()
    with left, right:
        with pytest.raises(FiberError, match="ancillary"):
            left.sendmsg([b"x"], [(socket.SOL_SOCKET, 1, b"")])
        assert error_of(left.send, b"x", socket.MSG_OOB) == errno.EOPNOTSUPP


def test_it_belongs_to_its_run() -> None:
    made: list[Any] = []

    def main() -> None:
        made.extend(socket.socketpair())
        refusals: list[BaseException] = []

        def elsewhere() -> None:
            try:
                made[0].send(b"x")
            except FiberError as exc:
                refusals.append(exc)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert "nowhere else" in str(refusals[0])

    played(main, threads=True)
    for operation in (lambda: made[0].send(b"x"), lambda: made[0].recv(1)):
        with pytest.raises(FiberError, match="nowhere else"):
            operation()
    for sock in made:
        sock.close()


def test_who_is_closed_by_another_thread_is_told() -> None:
    def main() -> bytes:
        left, right = socket.socketpair()
        with right:
            thread = threading.Thread(target=left.close)
            thread.start()
            thread.join()
            return right.recv(1)

    assert played(main, threads=True) == b""


def test_each_run_has_a_network_without_anything_in_it() -> None:
    network = Network()

    def main() -> tuple[Any, int]:
        listener = socket.create_server(("127.0.0.1", 80))
        with socket.create_server(ANYWHERE) as other:
            found = other.getsockname(), other.fileno()
        kept.append(listener)
        return found

    kept: list[Any] = []
    first, second = played(main, network=network), played(main, network=network)
    assert first == second == (("127.0.0.1", 49152), 10**9 + 1)
    for listener in kept:
        listener.close()
    assert repr(network) == "<pyfiber.testing.Network, 0 listening>"


def test_one_network_serves_one_run() -> None:
    network = Network()

    def main() -> None:
        with pytest.raises(FiberError, match="another run"):
            played(lambda: None, network=network)

    played(main, network=network)


def test_a_network_refuses_what_is_none() -> None:
    with pytest.raises(TypeError):
        played(lambda: None, network="memory")
    with pytest.raises(ValueError, match="buffer"):
        Network(buffer=0)
    with pytest.raises(TypeError):
        Network(buffer=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="numbers"):
        Network(hosts={"a": "b"})
    with pytest.raises(TypeError, match="hosts"):
        Network(hosts=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="hosts"):
        Network(hosts={"a": 3})  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="a machine is a node or its name"):
        Network().partition(3)  # type: ignore[arg-type]


def test_without_a_network_sockets_are_the_systems() -> None:
    def main() -> int:
        with socket.socket() as real:
            return real.fileno()

    assert testing.run(main) < 10**9


@pytest.mark.fiber(network=True)
def test_the_mark_brings_a_network() -> None:
    with socket.socket() as sock:
        assert sock.fileno() == 10**9


# explored -----------------------------------------------------------------------


class Counter:
    """A server with a race: it answers between its look at the number and the change."""

    def __init__(self) -> None:
        self.number = 0

    def serve(self, stream: net.Stream) -> None:
        for line in stream:
            number = self.number + int(line)
            stream.write(b"ok\n")
            self.number = number


def add(port: int, number: int) -> None:
    with net.connect("127.0.0.1", port) as stream:
        stream.write(b"%d\n" % number)
        assert stream.read_until(b"\n") == b"ok\n"
        stream.close_write()
        assert stream.read() == b""


def count() -> None:
    counter = Counter()
    with net.serve(counter.serve, *ANYWHERE, grace=10) as server, TaskGroup() as clients:
        for number in (1, 2):
            clients.spawn(add, server.address[1], number)
    assert counter.number == 3


def test_a_race_of_a_server_is_found_and_replayed() -> None:
    testing.run(count, network=True)  # not in the usual order
    with pytest.raises(testing.ScheduleFailure) as caught:
        testing.explore(count, 500, network=True, preempt=True)
    failure = caught.value
    assert "network=True" in str(failure)
    for _ in range(2):
        with pytest.raises(testing.ScheduleFailure) as again:
            testing.replay(count, failure.schedule, network=True)
        assert again.value.log == failure.log


def test_a_server_without_a_race_survives() -> None:
    explored = testing.explore(serve_some, 200, network=True, preempt=True)
    assert explored.distinct > 100


def ask_if_possible(address: Any) -> None:
    with contextlib.suppress(OSError):
        ask(address, "x" * 10)


def test_a_client_and_its_server_may_be_cancelled_anywhere() -> None:
    def main() -> None:
        with socket.create_server(ANYWHERE) as listener:
            client = spawn(ask_if_possible, listener.getsockname())
            with move_on_after(60):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(connection.recv(100))
                    sleep(1)
            client.join()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert testing.explore_cancellation(main, network=Network(buffer=4)) > 5
