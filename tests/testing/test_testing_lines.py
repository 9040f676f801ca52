"""A network in memory that is slow, and faults that the explorer chooses."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import FiberError, TaskGroup, move_on_after, net, now, sleep, socket, spawn, testing
from pyfiber.testing import Network, ScheduleFailure
from tests.io.certificates import HOST
from tests.io.tls_pairs import client_context, server_context

ANYWHERE = ("127.0.0.1", 0)


def with_network(**settings: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """A test that runs in virtual time on such a network."""

    def decorate(function: Callable[[], None]) -> Callable[[], None]:
        def test() -> None:
            testing.run(function, network=Network(**settings))

        test.__name__ = function.__name__
        return test

    return decorate


def connected() -> tuple[Any, Any]:
    """A client and its server's end."""
    with socket.create_server(ANYWHERE) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        return client, server


def took(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """How long a call takes, and its result or the number of its error."""
    begin = now()
    try:
        found = function(*arguments)
    except OSError as exc:
        found = exc.errno
    return round(now() - begin, 9), found


# slow lines -----------------------------------------------------------------------


@with_network(latency=0.5)
def test_what_is_sent_arrives_after_the_latency() -> None:
    duration, (client, server) = took(connected)
    assert duration == 1
    with client, server:
        client.send(b"one")
        sleep(0.2)
        client.send(b"two")
        assert took(server.recv, 100) == (0.3, b"one")
        assert took(server.recv, 100) == (0.2, b"two")
        server.setblocking(False)
        client.send(b"three")
        assert took(server.recv, 100) == (0, errno.EAGAIN)


@with_network(latency=0.5)
def test_the_end_arrives_after_the_data() -> None:
    client, server = connected()
    with client, server:
        client.send(b"last")
        client.shutdown(socket.SHUT_WR)
        assert took(server.recv, 100) == (0.5, b"last")
        assert took(server.recv, 100) == (0, b"")
        server.send(b"answer")
        server.close()
        assert took(client.recv, 100) == (0.5, b"answer")
        assert took(client.recv, 100) == (0, b"")


@with_network(latency=0.5)
def test_a_reset_arrives_after_the_latency() -> None:
    client, server = connected()
    with client, server:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        assert took(server.recv, 100) == (0.5, errno.ECONNRESET)
    client, server = connected()
    with client, server:
        server.close()
        client.send(b"nobody reads this")
        assert took(client.recv, 100) == (0.5, b"")
        assert took(client.recv, 100) == (0, b"")
        sleep(0.5)  # the answer is a reset
        assert took(client.send, b"x") == (0, errno.EPIPE)


@with_network(latency=0.5)
def test_data_that_arrive_at_a_closed_end_reset_the_connection() -> None:
    client, server = connected()
    with client, server:
        client.send(b"on its way")
        server.close()
        assert took(client.recv, 100) == (0.5, b"")
        sleep(0.5)
        assert took(client.send, b"x") == (0, errno.EPIPE)


@with_network(latency=0.5)
def test_a_refusal_takes_a_round_trip() -> None:
    assert took(socket.create_connection, ("127.0.0.1", 80)) == (1, errno.ECONNREFUSED)
    with socket.socket() as sock:
        sock.setblocking(False)
        assert sock.connect_ex(("127.0.0.1", 80)) in (errno.EINPROGRESS, errno.EWOULDBLOCK)
        assert sock.connect_ex(("127.0.0.1", 80)) == errno.EALREADY
        sleep(2)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
        with socket.create_server(("127.0.0.1", 80)) as listener:
            sock.settimeout(5)
            sock.connect(("127.0.0.1", 80))
            listener.accept()[0].close()


@with_network(latency=3)
def test_a_timeout_ends_a_slow_connect() -> None:
    with socket.create_server(ANYWHERE) as listener, socket.socket() as sock:
        sock.settimeout(5)
        with pytest.raises(TimeoutError):
            sock.connect(listener.getsockname())
        assert now() == 5


@with_network(bandwidth=1000, latency=1)
def test_a_line_carries_so_many_bytes_a_second() -> None:
    client, server = connected()
    with client, server:
        client.send(bytes(500))
        client.send(bytes(1500))
        assert took(server.recv, 5000) == (1.5, bytes(500))
        assert took(server.recv, 5000) == (1.5, bytes(1500))
        sender = spawn(client.sendall, bytes(100_000))
        begin, got = now(), 0
        while got < 100_000:
            got += len(server.recv(5000))
        assert 101 <= round(now() - begin) <= 103  # the buffer is full for a while
        sender.join()


@with_network(latency=0.5)
def test_unix_sockets_and_pairs_are_as_fast_as_ever() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.send(b"x")
        assert took(right.recv, 1) == (0, b"x")


@with_network(latency=0.5)
def test_a_listener_that_closes_resets_who_is_on_the_way() -> None:
    with socket.create_server(ANYWHERE) as listener:
        client = spawn(took, socket.create_connection, listener.getsockname())
        sleep(0.1)
    sleep(1)
    assert client.result()[1] in (errno.ECONNRESET, errno.EPIPE)


def test_streams_and_tls_run_over_a_slow_line() -> None:
    ours, theirs = client_context(), server_context()

    def serve(stream: net.Stream) -> None:
        for line in stream:
            stream.write(line.upper())

    def main() -> None:
        with net.serve(serve, *ANYWHERE, tls=theirs) as server:
            port = server.address[1]
            with net.connect("127.0.0.1", port, tls=ours, server_hostname=HOST) as stream:
                begin = now()
                stream.write(b"hello\n")
                assert stream.read_until(b"\n") == b"HELLO\n"
                assert round(now() - begin, 9) == 0.2

    testing.run(main, network=Network(latency=0.1))


def arrivals() -> list[bytes]:
    """Two clients send at once; the order in which that arrives."""
    found: list[bytes] = []

    def serve(stream: net.Stream) -> None:
        found.append(stream.read())

    def send(what: bytes, port: int) -> None:
        with net.connect("127.0.0.1", port) as stream:
            stream.write(what)

    with net.serve(serve, *ANYWHERE, grace=10) as server, TaskGroup() as group:
        for what in (b"one", b"two"):
            group.spawn(send, what, server.address[1])
    return found


def test_jitter_is_explored() -> None:
    seen: set[tuple[bytes, ...]] = set()
    times: set[float] = set()

    def main() -> None:
        seen.add(tuple(arrivals()))
        times.add(round(now(), 6))

    testing.explore(main, 50, network=Network(latency=1, jitter=0.3))
    assert seen == {(b"one", b"two"), (b"two", b"one")}
    assert {3, 3.3} < times <= {round(3 + i * 0.1, 6) for i in range(10)}


def test_a_run_leaves_nothing_on_its_way() -> None:
    made: list[Any] = []

    def main() -> None:
        client, server = connected()
        client.send(b"never read")
        made.extend((client, server))

    network = Network(latency=100)
    for _ in range(2):
        testing.run(main, network=network)
    for sock in made:
        sock.close()


# faults -----------------------------------------------------------------------------


def outcomes(function: Callable[[], Any], schedules: int = 200, **settings: Any) -> list[Any]:
    """The different results of a function on a network with faults, in the order of discovery."""
    found: list[Any] = []

    def main() -> None:
        result = function()
        if result not in found:
            found.append(result)

    testing.explore(main, schedules, network=Network(**settings))
    return found


def ask() -> Any:
    """A client sends twice and reads the answers; what went wrong, and what the server has got."""
    got: list[bytes] = []
    client, server = connected()

    def serve() -> None:
        with server:
            server.settimeout(5)
            for _ in range(2):
                got.append(server.recv(100))
                server.send(b"ok")

    serving = spawn(took, serve)
    with client:
        client.settimeout(10)
        try:
            for what in (b"one", b"two"):
                client.send(what)
                client.recv(100)
            how: Any = "ok"
        except OSError as exc:
            how = type(exc).__name__
    serving.join(10)
    return how, b" ".join(got)


def test_without_faults_all_runs_are_the_same() -> None:
    assert outcomes(ask) == [("ok", b"one two")]


def test_a_reset_loses_a_request_or_a_reply() -> None:
    found = outcomes(ask, resets=True)
    assert found[0] == ("ok", b"one two")
    assert ("ConnectionResetError", b"one") in found  # the first reply, or the second request
    assert ("ConnectionResetError", b"one two") in found  # the reply to what was done
    assert ("ConnectionResetError", b"") in found


def test_a_half_open_connection_is_silent() -> None:
    found = outcomes(ask, half_open=True)
    assert ("TimeoutError", b"one two") in found
    assert all(how in ("ok", "TimeoutError") for how, _ in found)


def test_a_loss_only_delays() -> None:
    found = outcomes(lambda: (ask(), round(now(), 3)), loss=True)
    assert {result for result, _ in found} == {("ok", b"one two")}
    assert {0, 0.2, 0.4, 1, 1.2} == {when for _, when in found}


def refused_or_not() -> Any:
    with socket.create_server(ANYWHERE) as listener:
        when, found = took(socket.create_connection, listener.getsockname())
        if isinstance(found, int):
            return when, found
        found.close()
        return when, "connected"


def test_a_connection_is_refused() -> None:
    assert outcomes(refused_or_not, refused=True) == [(0, "connected"), (0, errno.ECONNREFUSED)]
    found = outcomes(refused_or_not, refused=True, loss=True, latency=0.5)
    assert set(found) == {(1, "connected"), (1, errno.ECONNREFUSED), (2, "connected")}


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_a_run_has_at_most_so_many_faults(most: int) -> None:
    network = Network(loss=True, faults=most)
    seen: set[int] = set()

    def main() -> None:
        ask()
        seen.add(len(network.events))

    testing.explore(main, 300, network=network)
    assert seen == set(range(most + 1))


def test_depth_first_search_tries_every_fault() -> None:
    network = Network(loss=True, faults=1)
    seen: set[tuple[Any, ...]] = set()

    def main() -> None:
        left, right = connected()
        with left, right:
            for _ in range(5):
                left.send(b"x")
                right.recv(1)
        seen.add(tuple(when for when, _ in network.events))

    found = testing.explore(main, 1000, "dfs", network=network)
    assert found.complete
    # No fault; one in each of five sends; one in connect(), after which two arrivals are due at the
    # same time, so that their order is a choice as well.
    assert found.schedules == 1 + 5 + 3
    assert seen == {(), (0,)}


def fails_after_a_loss() -> None:
    ask()
    assert now() == 0, now()


def test_a_fault_is_shrunk_told_and_replayed() -> None:
    network = Network(loss=True, resets=True, half_open=True)
    with pytest.raises(ScheduleFailure) as caught:
        testing.explore(fails_after_a_loss, 500, network=network)
    text = str(caught.value)
    assert "1 choice out of the usual order" in text
    assert "what the network did:\n       0.000s  " in text
    assert "network=network" in text
    with pytest.raises(ScheduleFailure) as again:
        testing.replay(fails_after_a_loss, caught.value.schedule, network=network)
    assert again.value.log == caught.value.log


def test_one_run_with_a_seed_has_faults_and_says_which() -> None:
    network = Network(loss=True, faults=3)

    def some_seeds() -> None:
        for seed in range(20):
            testing.run(fails_after_a_loss, network=network, seed=seed)

    with pytest.raises(AssertionError) as caught:
        some_seeds()
    story, schedule = caught.value.__notes__
    assert story.startswith("what the network did:\n")
    with pytest.raises(ScheduleFailure):
        testing.replay(fails_after_a_loss, schedule.removeprefix("schedule: "), network=network)


def test_a_fault_of_the_programs_own_is_explored() -> None:
    network = Network(faults=1)

    def main() -> None:
        full = [network.fault("the disk is full") for _ in range(5)]
        assert sum(full) <= 1
        assert not full[3], full

    with pytest.raises(ScheduleFailure, match="the disk is full") as caught:
        testing.explore(main, 200, network=network)
    assert "[False, False, False, True, False]" in str(caught.value)


def test_faults_reach_streams_and_tls() -> None:
    ours, theirs = client_context(), server_context()

    def echo() -> Any:
        def serve(stream: net.Stream) -> None:
            stream.write(stream.read_until(b"\n"))

        with net.serve(serve, *ANYWHERE, tls=theirs) as server:
            port = server.address[1]
            try:
                with net.connect("127.0.0.1", port, tls=ours, server_hostname=HOST) as stream:
                    stream.write(b"hello\n")
                    return stream.read_until(b"\n")
            except (OSError, EOFError) as exc:
                return type(exc).__name__

    found = outcomes(echo, 60, resets=True, faults=1)
    assert b"hello\n" in found
    assert "ConnectionResetError" in found


def test_keepalive_ends_a_silent_connection() -> None:
    def main() -> Any:
        client, server = connected()
        with client, server:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            client.send(b"x")
            with move_on_after(100_000):
                server.recv(1)
                server.send(b"y")
            begin = now()
            with move_on_after(100_000):
                return took(client.recv, 1)
            return now() - begin

    found = outcomes(main, half_open=True, faults=1)
    assert (0, b"y") in found
    assert (0, errno.ETIMEDOUT) in found or (924, errno.ETIMEDOUT) in found
    assert (7875, errno.ETIMEDOUT) in found


# settings -------------------------------------------------------------------------


def test_settings_are_checked() -> None:
    for wrong in ({"latency": "1"}, {"jitter": True}, {"loss": 0.1}, {"faults": 1.0}):
        with pytest.raises(TypeError):
            Network(**wrong)  # type: ignore[arg-type]
    for bad in ({"latency": -1}, {"bandwidth": 0}, {"faults": 17}, {"jitter": float("nan")}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Network(**bad)  # type: ignore[arg-type]


def test_the_network_of_a_run_can_be_asked_for() -> None:
    network = Network()
    assert testing.run(Network.current, network=network) is network
    with pytest.raises(FiberError, match="no network"):
        testing.run(Network.current)
