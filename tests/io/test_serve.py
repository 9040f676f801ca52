"""pyfiber.net.serve(): who is served, how many at a time, and how it ends."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pyfiber import (
    FiberError,
    TaskGroup,
    gather,
    move_on_after,
    net,
    run,
    sleep,
    socket,
    spawn,
    testing,
    timeout,
    yield_now,
)
from pyfiber.net import _scarce
from tests.support.wine import is_wine

HOST = "127.0.0.1"


def echo(stream: net.Stream) -> None:
    while data := stream.read():
        stream.write(data)


def ask(server: net.Server, text: bytes = b"hello") -> bytes:
    """Say something, and return the answer up to its end."""
    with net.connect(*server.address) as stream:
        stream.write(text)
        stream.close_write()
        return b"".join(iter(stream.read, b""))


def until(condition: Callable[[], object]) -> None:
    with timeout(30):
        while not condition():
            sleep(0.0005)


# serving ------------------------------------------------------------------------------------------


def test_connections_are_served_at_the_same_time() -> None:
    def main() -> None:
        with net.serve(echo, HOST, 0) as server:
            assert gather(*[lambda i=i: ask(server, b"%d" % i) for i in range(100)]) == [
                b"%d" % i for i in range(100)
            ]
        assert server.connections == 0
        with pytest.raises(ConnectionRefusedError):
            net.connect(*server.address)

    run(main)


def test_stream_is_closed_when_the_handler_returns() -> None:
    streams = []

    def main() -> None:
        with net.serve(streams.append, HOST, 0) as server:
            with net.connect(*server.address) as stream:
                assert stream.read() == b""
            until(lambda: not server.connections)
        assert [stream.fileno() for stream in streams] == [-1]

    run(main)


def test_limit_makes_the_others_wait() -> None:
    most = 0

    def handler(stream: net.Stream) -> None:
        nonlocal most
        most = max(most, server.connections)
        stream.read()
        yield_now()

    def main() -> None:
        nonlocal server
        server = net.serve(handler, HOST, 0, limit=3)
        with server:
            gather(*[lambda: ask(server) for _ in range(20)])

    server: Any = None
    run(main)
    assert most == 3


def test_limit_of_a_server_whose_handlers_fail_is_not_used_up() -> None:
    def fail(stream: net.Stream) -> None:
        raise ValueError("broken")

    failures = []

    def main() -> None:
        with net.serve(
            fail, HOST, 0, limit=2, on_error=lambda exc, peer: failures.append(peer)
        ) as server:
            for _ in range(10):
                assert ask_quietly(server) == b""

    run(main)
    assert len(failures) == 10


@pytest.mark.parametrize(("limit", "served"), [(None, 20), (3, 3)])
def test_those_who_had_connected_before_stop_are_served(limit: int | None, served: int) -> None:
    def handler(stream: net.Stream) -> None:
        stream.write(stream.read())

    def client() -> bytes:
        with net.connect(*server.address) as stream:
            sleep(1)
            with suppress(OSError):
                stream.write(b"a")
                return stream.read()
            return b""

    def main() -> None:
        nonlocal server
        server = net.serve(handler, HOST, 80, limit=limit, grace=10)
        clients = [spawn(client) for _ in range(20)]
        sleep(0.5)  # all have connected
        with server:
            server.stop()  # before it has accepted anybody
        assert [each.result() for each in clients].count(b"a") == served

    server: Any = None
    testing.run(main, network=True)


def test_abort_cancels_the_handlers_at_once() -> None:
    ended = []

    def handler(stream: net.Stream) -> None:
        try:
            stream.read()
        finally:
            ended.append(stream)

    def main() -> None:
        with net.serve(handler, HOST, 0, grace=1000) as server, net.connect(*server.address) as one:
            until(lambda: server.connections)
            spawn(server.abort)
            server.wait()
            assert one.read() == b""
        with net.serve(handler, HOST, 0, grace=1000) as server:  # in its grace
            stream = net.connect(*server.address)
            until(lambda: server.connections)
            spawn(lambda: (sleep(0.01), server.abort()))
        stream.close()

    run(main)
    assert len(ended) == 2


# failures -----------------------------------------------------------------------------------------


def test_failure_of_a_handler_is_logged_with_the_peer(caplog: pytest.LogCaptureFixture) -> None:
    def handler(stream: net.Stream) -> None:
        if stream.read() == b"bad":
            raise ValueError("broken")
        stream.write(b"fine")

    def main() -> None:
        with net.serve(handler, HOST, 0) as server:
            with net.connect(*server.address) as stream:
                place = "{}:{}".format(*stream.local)
                stream.write(b"bad")
                assert stream.read() == b""
            assert ask(server) == b"fine"
        (record,) = caplog.records
        assert record.getMessage() == f"the handler of the connection of {place} failed"
        assert record.exc_info
        assert isinstance(record.exc_info[1], ValueError)

    run(main)


def echo_in_a_group(stream: net.Stream) -> None:
    with TaskGroup() as group:
        group.spawn(echo, stream)
        sleep(60)


@pytest.mark.skipif(is_wine(), reason="a reset is no error to its reader there")
@pytest.mark.parametrize("handler", [echo, echo_in_a_group])
def test_lost_connection_is_one_line(caplog: pytest.LogCaptureFixture, handler: Any) -> None:
    def main() -> None:
        with net.serve(handler, HOST, 0) as server:
            stream = net.connect(*server.address)
            stream.write(b"x")
            stream.read_exactly(1)  # it is accepted: before that, Windows drops it
            reset(stream)
            until(lambda: caplog.records)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert "was lost: [Errno" in record.getMessage()
        assert not record.exc_info

    run(main)


def reset(stream: net.Stream) -> None:
    """Close it so that the peer gets an error."""
    linger = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    stream.close()


def test_failure_of_on_error_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def handler(stream: net.Stream) -> None:
        raise ValueError("of the handler")

    def on_error(exc: Exception, peer: Any) -> None:
        raise LookupError("of on_error")

    def main() -> None:
        with net.serve(handler, HOST, 0, on_error=on_error) as server:
            assert ask_quietly(server) == b""

    run(main)
    (record,) = caplog.records
    assert record.exc_info
    assert isinstance(record.exc_info[1], LookupError)
    assert isinstance(record.exc_info[1].__context__, ValueError)


def ask_quietly(server: net.Server) -> bytes:
    with net.connect(*server.address) as stream, contextlib.suppress(ConnectionError):
        return stream.read()
    return b""


def test_exit_of_a_handler_ends_the_server() -> None:
    def handler(stream: net.Stream) -> None:
        raise SystemExit(3)

    def main() -> None:
        with net.serve(handler, HOST, 0) as server:
            ask_quietly(server)
            server.wait()
            sleep(60)

    with pytest.raises(SystemExit):
        run(main)


# the end ------------------------------------------------------------------------------------------


def test_block_that_is_left_lets_handlers_finish() -> None:
    served = []

    def handler(stream: net.Stream) -> None:
        stream.write(b"first")
        yield_now()
        served.append(stream.read())
        stream.write(b"last")

    def main() -> None:
        with net.serve(handler, HOST, 0) as server:
            stream = net.connect(*server.address)
            assert stream.read_exactly(5) == b"first"
            client = spawn(finish, stream)
        assert served == [b"more"]
        assert client.result() == b"last"

    def finish(stream: net.Stream) -> bytes:
        with stream:
            sleep(0.005)
            stream.write(b"more")
            return stream.read()

    run(main)


@pytest.mark.parametrize("grace", [0, 0.005])
def test_handlers_that_outstay_their_grace_are_cancelled_and_joined(grace: float) -> None:
    ends = []

    def handler(stream: net.Stream) -> None:
        try:
            stream.read()
        finally:
            yield_now_anyhow()
            ends.append(stream.peer)

    def main() -> None:
        with net.serve(handler, HOST, 0, grace=grace) as server:
            streams = [net.connect(*server.address) for _ in range(5)]
            until(lambda: server.connections == 5)
        assert len(ends) == 5
        assert server.connections == 0
        for stream in streams:
            assert stream.read() == b""
            stream.close()

    run(main)


def yield_now_anyhow() -> None:
    from pyfiber import shield

    with shield():
        yield_now()


@pytest.mark.parametrize("grace", [None, 10])
def test_cancelled_block_gives_its_grace_or_none(grace: float | None) -> None:
    ends = []

    def handler(stream: net.Stream) -> None:
        stream.write(b"begun")
        ends.append(stream.read())

    def main() -> None:
        streams = []

        def talk() -> None:
            streams.append(net.connect(*server.address))
            assert streams[0].read() == b"begun"
            limit.cancel()
            until(lambda: server._listener.fileno() < 0)
            with contextlib.suppress(ConnectionError):
                streams[0].write(b"late")

        with move_on_after(60) as limit, net.serve(handler, HOST, 0, grace=grace) as server:
            client = outside.spawn(talk)
            server.wait()
        assert limit.cancelled()
        client.join()
        streams[0].close()

    with contextlib.ExitStack() as stack:
        outside: TaskGroup

        def root() -> None:
            nonlocal outside
            with TaskGroup() as outside:
                main()

        run(root)
        del stack
    assert ends == ([b"late"] if grace else [])


def test_stop_in_a_handler_ends_the_wait() -> None:
    def handler(stream: net.Stream) -> None:
        server.stop()
        stream.write(b"bye")

    def main() -> None:
        nonlocal server
        server = net.serve(handler, HOST, 0)
        with server:
            client = spawn(ask_quietly, server)
            server.wait()
        assert client.result() == b"bye"
        with pytest.raises(FiberError, match="this server has ended"), server:
            pass

    server: Any = None
    run(main)


def test_connection_that_was_accepted_before_a_cancellation_is_closed() -> None:
    """Even if its fiber has not run at all."""

    def main() -> None:
        with net.serve(echo, HOST, 0, grace=0) as server:
            streams = [net.connect(*server.address) for _ in range(20)]
            until(lambda: server.connections)
        for stream in streams:
            with contextlib.suppress(ConnectionError):
                assert stream.read() == b""
            stream.close()

    for _ in range(3):
        run(main)


def test_failure_of_the_block_ends_the_server_at_once() -> None:
    def main() -> None:
        with net.serve(lambda stream: sleep(60), HOST, 0) as server:
            streams.append(net.connect(*server.address))
            until(lambda: server.connections)
            raise LookupError("of the block")

    streams: list[net.Stream] = []
    with pytest.raises(ExceptionGroup) as caught:
        run(main)
    assert isinstance(caught.value.exceptions[0], LookupError)
    streams[0].close()


def test_listener_that_breaks_ends_the_server() -> None:
    def main() -> None:
        with net.serve(echo, HOST, 0) as server:
            yield_now()
            server._listener.close()
            sleep(60)

    with pytest.raises(ExceptionGroup) as caught:
        run(main)
    assert isinstance(caught.value.exceptions[0], OSError)
    assert caught.value.exceptions[0].errno == errno.EBADF


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
def test_server_of_any_listener(tmp_path: Any) -> None:
    path = str(tmp_path / "socket")

    def main() -> None:
        with net.Server(echo, net.listen_unix(path), limit=5) as server:
            assert repr(server) == f"<pyfiber.net.Server at {path}, 0 connections>"
            with net.connect_unix(path) as stream:
                stream.write(b"hello")
                assert stream.read() == b"hello"
        assert not os.path.exists(path)
        assert repr(server) == f"<pyfiber.net.Server at {path}, ended>"

    run(main)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"limit": 0}, "at least 1"),
        ({"grace": -1}, "not negative"),
        ({"grace": float("nan")}, "not negative"),
        ({"handler": 5}, "takes a function, not 'int'"),
        ({"host": ""}, "needs the address"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        net.serve(**{"handler": echo, "host": HOST, "port": 0, **arguments})


def test_server_outside_of_a_run_is_refused() -> None:
    server = net.serve(echo, HOST, 0)
    with pytest.raises(FiberError), server:
        pass
    server.stop()


# descriptors --------------------------------------------------------------------------------------


class Scarce:
    """A listener whose accept() fails as told."""

    def __init__(self, *numbers: int) -> None:
        self.listener = net.listen(HOST, 0)
        self.numbers = list(numbers)
        self.tries = 0

    def accept(self) -> Any:
        self.tries += 1
        if self.numbers:
            number = self.numbers.pop(0)
            raise OSError(number, os.strerror(number))
        return self.listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listener, name)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
def test_lack_of_descriptors_is_told_once_and_survived(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(_scarce, "FIRST_PAUSE", 0.0001)
    monkeypatch.setattr(_scarce, "QUIET", 0.0)
    scarce = Scarce(*[number] * 5)

    def main() -> None:
        with net.Server(echo, scarce) as server:  # type: ignore[arg-type]
            assert ask(server) == b"hello"
            assert ask(server) == b"hello"

    run(main)
    first, second = (record.getMessage() for record in caplog.records)
    assert "cannot accept connections, which wait until it can" in first
    assert "accepts connections again" in second


def test_pauses_grow_up_to_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []
    monkeypatch.setattr(_scarce, "sleep", pauses.append)
    scarce = Scarce(*[errno.EMFILE] * 8)

    def main() -> None:
        with net.Server(echo, scarce) as server:  # type: ignore[arg-type]
            assert ask(server) == b"hello"

    run(main)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_connections_that_are_lost_before_they_are_accepted_are_passed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accept, failures = socket.socket.accept, [errno.ECONNABORTED, errno.EPROTO] * 3

    def fail_first(self: socket.socket) -> Any:
        if failures:
            raise OSError(failures.pop(), "lost")
        return accept(self)

    monkeypatch.setattr(socket.socket, "accept", fail_first)

    def main() -> None:
        with net.serve(echo, HOST, 0) as server:
            assert ask(server) == b"hello"

    run(main)
    assert not failures


@pytest.mark.skipif(os.name == "nt", reason="needs RLIMIT_NOFILE")
def test_process_without_descriptors_recovers(child: Any) -> None:
    child(
        """
        import logging, resource, socket as standard
        from pyfiber import TaskGroup, net, run, sleep
        from pyfiber.net import _scarce

        _scarce.FIRST_PAUSE = 0.001
        _scarce.QUIET = 0.0
        told = []
        logging.getLogger("pyfiber").addFilter(lambda record: told.append(record.getMessage()))
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))

        def echo(stream):
            while data := stream.read():
                stream.write(data)

        def main():
            with net.serve(echo, "127.0.0.1", 0) as server:
                clients = []
                try:
                    while True:
                        clients.append(standard.create_connection(server.address))
                except OSError:
                    pass
                assert len(clients) > 20
                while not told:
                    sleep(0.001)
                sleep(0.01)
                assert len(told) == 1, told
                for client in clients[5:]:
                    client.close()
                while len(told) < 2:
                    sleep(0.001)
                with net.connect(*server.address) as stream:
                    stream.write(b"hello")
                    assert stream.read() == b"hello"
                for client in clients:
                    client.close()
            assert "Too many open files" in told[0] and "again" in told[1]

        run(main)
        """
    )


def test_server_at_its_limit_tells_of_that_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_scarce, "FIRST_PAUSE", 0.0001)

    class AtTheLimit(Scarce):
        def accept(self) -> Any:
            self.numbers = [errno.EMFILE] if self.tries % 2 else []  # each second time
            return super().accept()

    def main() -> None:
        with net.Server(echo, AtTheLimit(errno.EMFILE)) as server:  # type: ignore[arg-type]
            for _ in range(5):
                assert ask(server) == b"hello"

    run(main)
    assert len(caplog.records) == 1


def test_no_memory_for_the_next_connection_is_told_and_survived(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_scarce, "FIRST_PAUSE", 0.0001)

    class WithoutMemory(Scarce):
        def accept(self) -> Any:
            if self.numbers:
                self.numbers.pop()
                raise MemoryError
            return super().accept()

    def main() -> None:
        with net.Server(echo, WithoutMemory(1, 2, 3)) as server:  # type: ignore[arg-type]
            assert ask(server) == b"hello"

    run(main)
    assert "cannot accept connections, which wait until it can: MemoryError" in caplog.text


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs RLIMIT_AS")
def test_server_without_memory_for_stacks_recovers(child: Any) -> None:
    child(
        """
        import contextlib, logging, resource, socket as standard
        from pyfiber import net, run, sleep
        from pyfiber.net import _scarce

        _scarce.FIRST_PAUSE = 0.001
        told = []
        logging.getLogger("pyfiber").addFilter(lambda record: told.append(record.getMessage()))

        def echo(stream):
            while data := stream.read():
                stream.write(data)

        def main():
            with net.serve(echo, "127.0.0.1", 0) as server:
                clients = [standard.create_connection(server.address) for _ in range(200)]
                with open("/proc/self/statm") as file:
                    size = int(file.read().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 20), resource.RLIM_INFINITY))
                while not told:
                    sleep(0.001)
                for client in clients:
                    client.close()
                answer = b""
                while not answer:
                    sleep(0.01)
                    with standard.create_connection(server.address) as client:
                        client.sendall(b"hello")
                        sleep(0.01)
                        client.setblocking(False)
                        with contextlib.suppress(OSError):
                            answer = client.recv(100)
                assert answer == b"hello"
            assert len(told) == 1 and "no stack of" in told[0], told

        run(main)
        """,
        env={"PYFIBER_SLOTS": "0"},  # who shares stacks does not run out of them
    )


@pytest.mark.skipif(os.name == "nt", reason="needs SO_LINGER of POSIX")
def test_server_in_trouble_imports_nothing(child: Any) -> None:
    child(
        """
        import errno, io, sys
        from pyfiber import TaskGroup, net, run, sleep

        tried = []

        class Recorder:
            def find_spec(self, name, path=None, target=None):
                if name not in sys.builtin_module_names:
                    tried.append(name)

        class Scarce:
            def __init__(self):
                self.listener = net.listen("127.0.0.1", 0)
                self.errors = [OSError(errno.EMFILE, "no descriptor"), MemoryError()]

            def accept(self):
                if self.errors:
                    raise self.errors.pop(0)
                return self.listener.accept()

            def __getattr__(self, name):
                return getattr(self.listener, name)

        def fail(stream):
            what = stream.read()
            if what == b"wait":
                sleep(100)
            if what == b"lost":
                raise ConnectionResetError("lost")
            with TaskGroup() as group:
                group.spawn(lambda: no_such_name)
                group.spawn(lambda: [].no_such_attribute)

        def main():
            server = net.Server(fail, Scarce(), grace=0.01)
            sys.meta_path.insert(0, Recorder())
            with server:
                for what in (b"lost", b"group"):
                    with net.connect(*server.address) as stream:
                        stream.write(what)
                        assert stream.read() == b""
                stream = net.connect(*server.address)
                stream.write(b"wait")
                sleep(0.01)
            sys.meta_path.pop(0)

        sys.stderr = io.StringIO()
        run(main)
        assert not tried, tried
        """
    )
