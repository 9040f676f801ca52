"""Machines of a network in memory: nodes, partitions, crashes, clocks that are wrong."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    DeadlockError,
    FiberError,
    FiberExit,
    TaskGroup,
    dns,
    move_on_after,
    net,
    now,
    park,
    shield,
    sleep,
    socket,
    spawn,
    testing,
    yield_now,
)
from pyfiber.testing import Network, NeverAwaitedError, ScheduleFailure

network = Network(latency=0.5)
fast = Network(latency=0.01)


def on_network(function: Callable[[], None]) -> Callable[[], None]:
    """A test that runs in virtual time on the network."""

    def test() -> None:
        testing.run(function, network=network)

    test.__name__ = function.__name__
    return test


def shout(stream: net.Stream) -> None:
    for line in stream:
        stream.write(line.upper())


def serve(handler: Callable[[net.Stream], object] = shout) -> None:
    with net.serve(handler, "0.0.0.0", 80):
        park()


def ask(host: str, line: str = "hello", timeout: float = 10) -> str:
    with net.connect(host, 80, timeout=timeout) as stream:
        stream.write(f"{line}\n".encode())
        return stream.read_until(b"\n").decode().strip()


def error_of(function: Callable[..., Any], *arguments: Any) -> int | None:
    try:
        function(*arguments)
    except OSError as exc:
        return exc.errno
    return None


def took(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    begin = now()
    try:
        found = function(*arguments)
    except OSError as exc:
        found = exc.errno or type(exc).__name__
    return round(now() - begin, 9), found


# nodes -----------------------------------------------------------------------------


@on_network
def test_a_node_has_a_name_and_an_address() -> None:
    db = network.node("db", serve)
    web = network.node("web", ask, "db")
    assert web.fiber.result() == "HELLO"
    assert (db.name, db.address, web.address) == ("db", "10.0.0.2", "10.0.0.3")
    assert dns.gethostbyname("db") == "10.0.0.2"
    assert dns.gethostbyaddr("10.0.0.3") == ("web", [], ["10.0.0.3"])
    assert ask("10.0.0.2") == "HELLO"
    assert repr(db) == "<Node 'db' at 10.0.0.2>"


@on_network
def test_code_on_a_node_sees_its_name_and_address() -> None:
    seen: list[Any] = []

    def look() -> None:
        with socket.create_connection(("db", 80)) as sock:
            inner = spawn(socket.gethostname).result()
            seen.append((socket.gethostname(), inner, sock.getsockname()[0], sock.getpeername()))

    network.node("db", serve)
    network.node("web", look).fiber.join()
    look()
    assert seen == [
        ("web", "web", "10.0.0.3", ("10.0.0.2", 80)),
        ("localhost", "localhost", "10.0.0.1", ("10.0.0.2", 80)),
    ]


@on_network
def test_loopback_and_ports_are_the_nodes_own() -> None:
    def listen() -> None:
        with socket.create_server(("127.0.0.1", 80)) as listener:
            connection, _ = listener.accept()
            connection.close()

    def local() -> Any:
        spawn(listen)
        yield_now()
        duration, sock = took(socket.create_connection, ("localhost", 80))
        sock.close()
        return duration

    nodes = [network.node(name, local) for name in ("a", "b")]
    assert [node.fiber.result() for node in nodes] == [0, 0]  # no latency either
    for node in nodes:
        assert error_of(socket.create_connection, (node.address, 80)) == errno.ECONNREFUSED
        assert error_of(socket.create_connection, ("127.0.0.1", 80)) == errno.ECONNREFUSED


@on_network
def test_a_node_cannot_have_the_address_of_another() -> None:
    def bind() -> list[int | None]:
        found = []
        for host in ("10.0.0.3", "10.9.9.9", "127.0.0.1", "10.0.0.2"):
            with socket.socket() as sock:
                found.append(error_of(sock.bind, (host, 80)))
        return found

    node = network.node("a", bind)
    assert node.fiber.result() == [errno.EADDRNOTAVAIL, errno.EADDRNOTAVAIL, None, None]


def test_a_nodes_address_can_be_given() -> None:
    given = Network(hosts={"db": "192.0.2.7"})

    def main() -> None:
        assert given.node("db", serve).address == "192.0.2.7"
        yield_now()
        assert ask("192.0.2.7") == "HELLO"

    testing.run(main, network=given)


@on_network
def test_a_node_with_a_wrong_name_or_function_is_refused() -> None:
    network.node("a", serve)
    for name in ("a", "", "test", "localhost"):
        with pytest.raises(ValueError, match="name"):
            network.node(name, serve)
    with pytest.raises(TypeError, match="function"):
        network.node("b", None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="string"):
        network.node(7, serve)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="drifts"):
        network.node("b", serve, drift=2)
    with pytest.raises(TypeError, match="offset"):
        network.node("b", serve, offset="1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="there are 'a', 'test'"):
        network.partition("a", "b")
    with pytest.raises(FiberError, match="in a run that has this network"):
        Network().node("b", serve)


def test_a_node_that_fails_fails_the_run() -> None:
    def main() -> None:
        network.node("db", lambda: 1 / 0)
        sleep(1)

    with pytest.raises(NeverAwaitedError, match="'db'"):
        testing.run(main, network=network)


def test_nodes_end_with_the_function_under_test() -> None:
    ended: list[str] = []

    def busy() -> None:
        with TaskGroup() as group:
            group.spawn(serve)
            try:
                while True:
                    sleep(1)
            finally:
                ended.append(socket.gethostname())

    def main() -> None:
        for name in ("a", "b"):
            network.node(name, busy)
        sleep(10)

    for _ in range(2):
        testing.run(main, network=network, leftovers="error")
        assert ended == ["a", "b"]
        ended.clear()


# partitions ------------------------------------------------------------------------


@on_network
def test_nothing_crosses_a_partition_until_it_heals() -> None:
    db = network.node("db", serve)
    yield_now()
    with net.connect("db", 80) as stream:
        network.partition("db")
        stream.write(b"hello\n")
        with move_on_after(10) as scope:
            stream.read_until(b"\n")
        assert scope.cancelled()
        assert took(ask, "db") == (10, "TimeoutError")
        network.heal()
        assert took(stream.read_until, b"\n") == (1, b"HELLO\n")
        assert ask("db") == "HELLO"
    assert db.up


@on_network
def test_a_partition_is_between_groups() -> None:
    nodes = [network.node(name, serve) for name in ("a", "b", "c")]
    yield_now()
    network.partition(["a", nodes[1]], "c")
    assert [ask(name) for name in ("a", "b", "c")] == ["HELLO"] * 3

    def reach() -> list[Any]:
        return [took(ask, name, "hello", 5)[1] for name in ("a", "b", "c")]

    assert network.node("d", reach).fiber.result() == ["HELLO"] * 3
    network.partition("d")
    assert network.node("e", reach).fiber.result() == ["HELLO"] * 3
    assert "a and b are cut off from c" in network.story()
    assert "d is cut off from the test, a, b and c" in network.story()


@on_network
def test_a_partition_may_be_one_way() -> None:
    got: list[bytes] = []

    def note(stream: net.Stream) -> None:
        for line in stream:
            got.append(line)
            stream.write(b"ok\n")

    network.node("db", serve, note)
    yield_now()
    with net.connect("db", 80) as stream:
        network.partition("db", "test", one_way=True)
        assert network.story().endswith("db is no longer heard by the test")
        stream.write(b"hello\n")
        with move_on_after(10) as scope:
            stream.read_until(b"\n")
        assert scope.cancelled()
        assert got == [b"hello\n"]
        network.heal()
        assert stream.read_until(b"\n") == b"ok\n"


@on_network
def test_an_attempt_to_connect_waits_for_the_end_of_a_partition() -> None:
    network.node("db", serve)
    network.partition("db", "test")
    asked = spawn(took, ask, "db", "hello", 60)
    refused = spawn(took, socket.create_connection, ("10.0.0.2", 81))
    given_up = spawn(took, socket.create_connection, ("10.0.0.2", 80), 5)
    sleep(20)
    network.heal()
    assert asked.result() == (22, "HELLO")
    assert refused.result() == (21, errno.ECONNREFUSED)
    assert given_up.result()[0] == 5


@on_network
def test_who_hears_nothing_gives_up_at_last() -> None:
    network.node("db", serve)
    with socket.create_connection(("db", 80)) as sock, socket.create_connection(("db", 80)) as idle:
        network.partition("db", "test")
        assert took(socket.create_connection, ("db", 80)) == (127, errno.ETIMEDOUT)
        sock.send(b"hello\n")
        assert took(sock.recv, 1) == (924, errno.ETIMEDOUT)
        idle.settimeout(1e6)
        assert took(idle.recv, 1)[0] == 1e6  # it has sent nothing, so nothing is missing


def test_a_deadlock_tells_what_the_network_did() -> None:
    def main() -> None:
        network.node("db", serve)
        with net.connect("db", 80) as stream:
            network.partition("db")
            stream.read()

    with pytest.raises(DeadlockError) as caught:
        testing.run(main, network=network)
    assert "db is cut off from the test" in caught.value.__notes__[0]


# crashes ---------------------------------------------------------------------------


@on_network
def test_a_crash_resets_connections_and_loses_what_is_on_its_way() -> None:
    def answer(stream: net.Stream) -> None:
        sleep(0.4)
        stream.write(b"answer")
        park()

    db = network.node("db", serve, answer)
    yield_now()
    with socket.create_connection(("db", 80)) as sock:
        sleep(0.2)
        db.crash()
        assert not db.up
        db.crash()
        assert took(sock.recv, 100) == (0.5, errno.ECONNRESET)
        assert took(socket.create_connection, ("db", 80)) == (1, errno.ECONNREFUSED)
        db.restart()
        with socket.create_connection(("db", 80)) as again:
            assert took(again.recv, 100) == (0.4, b"answer")
        with pytest.raises(FiberError, match="is up"):
            db.restart()


@on_network
def test_a_silent_crash_leaves_connections_half_open() -> None:
    db = network.node("db", serve)
    yield_now()
    with socket.create_connection(("db", 80)) as sock:
        db.crash(silent=True)
        sock.settimeout(5)
        sock.send(b"hello\n")
        assert took(sock.recv, 100) == (5, "TimeoutError")
        assert took(socket.create_connection, ("db", 80), 5) == (5, "TimeoutError")
        late = spawn(ask, "db", "hello", 60)
        sleep(1)
        db.restart()
        assert took(sock.recv, 100) == (5, "TimeoutError")  # it has not been told
        assert late.result() == "HELLO"
        sock.send(b"hello\n")
        assert took(sock.recv, 100) == (1, errno.ECONNRESET)


@on_network
def test_a_crash_ends_all_fibers_of_the_node() -> None:
    ends: list[str] = []

    def wait(name: str) -> None:
        try:
            sleep(1000)
        except BaseException as exc:
            ends.append(f"{name} {type(exc).__name__}")
            with shield():
                sleep(1)  # ends the fiber, too
            ends.append("never")
            raise

    def busy() -> None:
        with TaskGroup() as group:
            group.spawn(wait, "child")
            spawn(wait, "apart")
            wait("main")

    node = network.node("a", busy)
    sleep(1)
    not_begun = pyfiber.Fiber(wait, ("new",), context=node.fiber.context)
    not_begun.start()
    node.crash()
    assert sorted(ends) == ["apart FiberExit", "child FiberExit", "main FiberExit"]
    assert node.fiber.done()
    yield_now()
    assert not_begun.cancelled()
    sleep(2000)
    assert "never" not in ends


@on_network
def test_what_a_crashed_node_does_reaches_nobody() -> None:
    got: list[bytes] = []
    failures: list[Any] = []

    def collect(stream: net.Stream) -> None:
        got.append(stream.read())

    def say_goodbye() -> None:
        sock = socket.create_connection(("db", 80))
        try:
            sleep(1000)
        finally:
            for act in (
                lambda: sock.send(b"goodbye"),
                lambda: socket.socket(),
                lambda: socket.create_connection(("db", 80)),
            ):
                try:
                    failures.append(act())
                except OSError as exc:
                    failures.append(exc.errno)
            sock.close()

    network.node("db", serve, collect)
    web = network.node("web", say_goodbye)
    sleep(10)
    web.crash()
    sleep(10)
    assert failures[1:] == [errno.ENETDOWN, errno.ENETDOWN]
    assert got == []  # the handler's read has failed: the connection was reset


@on_network
def test_a_node_can_crash_itself() -> None:
    ends: list[BaseException] = []

    def crash() -> None:
        try:
            node.crash()
        except BaseException as exc:
            ends.append(exc)
            raise

    node = network.node("a", crash)
    sleep(1)
    assert not node.up
    assert [type(exc) for exc in ends] == [FiberExit]


@on_network
def test_a_restarted_node_begins_anew() -> None:
    disk: list[str] = []

    def run(disk: list[str]) -> None:
        memory: list[str] = []
        for _ in range(3):
            memory.append("x")
            disk.append("".join(memory))
            sleep(1)
        park()

    node = network.node("a", run, disk)
    sleep(1.5)
    node.crash()
    sleep(10)
    node.restart()
    sleep(10)
    assert disk == ["x", "xx", "x", "xx", "xxx"]
    assert network.story().splitlines()[-1].endswith("a is started again")


@on_network
def test_a_crashed_node_starts_no_machine() -> None:
    refused: list[FiberError] = []

    def run() -> None:
        try:
            park()
        finally:
            for start in (node.restart, lambda: network.node("b", run)):
                try:
                    start()
                except FiberError as exc:
                    refused.append(exc)

    node = network.node("a", run)
    sleep(1)
    node.crash()
    assert ["has crashed" in str(exc) for exc in refused] == [True, True]
    assert not node.up


def test_a_crash_at_any_moment_is_explored_and_replayed() -> None:
    """A server that says "stored" before it has stored: a crash in between loses the value."""

    def main() -> None:
        disk: dict[str, str] = {}

        def store(stream: net.Stream) -> None:
            for line in stream:
                stream.write(b"stored\n")
                sleep(0.1)
                disk["value"] = line.decode().strip()

        db = fast.node("db", serve, store)
        answer = ask("db", "42")
        if testing.choose([False, True]):
            db.crash()
        sleep(10)
        assert answer != "stored" or disk == {"value": "42"}

    with pytest.raises(ScheduleFailure) as caught:
        testing.explore(main, 200, network=fast)
    text = str(caught.value)
    assert "db crashes" in text
    with pytest.raises(ScheduleFailure) as again:
        testing.replay(main, caught.value.schedule, network=fast)
    assert again.value.log == caught.value.log


# the backlog, links, clocks -----------------------------------------------------------


@on_network
def test_a_full_backlog_keeps_clients_waiting() -> None:
    def listen() -> None:
        with socket.create_server(("0.0.0.0", 80), backlog=1) as listener:
            sleep(100)
            while True:
                listener.accept()[0].close()

    network.node("db", listen)
    yield_now()
    waiting = [spawn(took, socket.create_connection, ("db", 80), 60) for _ in range(4)]
    assert sorted(fiber.result()[0] for fiber in waiting) == [1, 1, 60, 60]
    for fiber in waiting:
        found = fiber.result()[1]
        if not isinstance(found, str):
            found.close()


@on_network
def test_a_link_may_be_slower_than_others() -> None:
    for name in ("near", "far"):
        network.node(name, serve)
    network.link("far", "test", latency=5, bandwidth=10)
    yield_now()
    assert took(ask, "near") == (2, "HELLO")
    assert took(ask, "far", "hello", 60) == (21.2, "HELLO")
    network.link("far", "test")
    assert took(ask, "far") == (2, "HELLO")


def test_clocks_of_nodes_are_wrong_as_they_are_told() -> None:
    seen: dict[str, Any] = {}

    def look(name: str) -> None:
        begin = time.monotonic()
        time.sleep(100)
        seen[name] = (begin, time.monotonic() - begin, time.time() - time.monotonic(), now())

    def main() -> None:
        nodes = [
            network.node("right", look, "right"),
            network.node("late", look, "late", offset=-10),
            network.node("fast", look, "fast", drift=0.25),
        ]
        for node in nodes:
            node.fiber.join()
        look("test")

    testing.run(main, network=network, virtualize_time=True)
    assert seen["right"] == (0, 100, 0, 100)
    assert seen["late"] == (-10, 100, 0, 100)
    assert seen["fast"] == (0, 100, 0, 80)
    assert seen["test"] == (100, 100, 0, 200)


@pytest.mark.fiber(network=network, schedules=20)
def test_the_mark_takes_a_network() -> None:
    assert Network.current() is network
    network.node("db", serve)
    sleep(1)
    assert ask("db") == "HELLO"
