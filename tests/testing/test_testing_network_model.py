"""Connections in memory do what the system's do: the same calls have the same results."""

from __future__ import annotations

import select
import socket as standard
import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import sleep, socket, testing
from pyfiber.testing import Network

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the model is Linux")

hypothesis = pytest.importorskip("hypothesis")
st = pytest.importorskip("hypothesis.strategies")

Pair = tuple[Any, Any]
Step = tuple[str, int, int]

#: What fits into any buffer of either: when it is full is a matter of each.
MOST = 200

HOWS = [standard.SHUT_RD, standard.SHUT_WR, standard.SHUT_RDWR]
NO_LINGER = struct.pack("ii", 1, 0)

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "sendall", "sendmsg"] * 2
            + ["recv", "recvmsg", "recv_into", "peek"] * 2
            + ["shutdown", "close", "abort", "peer", "error"]
        ),
        st.integers(0, 1),
        st.integers(0, MOST),
    ),
    max_size=25,
)


def act(sock: Any, what: str, number: int) -> Any:
    """One call."""
    data = bytes(i % 251 for i in range(number))
    if what == "send":
        return sock.send(data)
    if what == "sendall":
        return sock.sendall(data + b"!")  # that of nothing asks nobody
    if what == "sendmsg":
        return sock.sendmsg([data[:3], b"", data[3:]])
    if what == "recv":
        return sock.recv(number + 1)
    if what == "recvmsg":
        return sock.recvmsg(number + 1)[0]
    if what == "peek":
        return sock.recv(number + 1, standard.MSG_PEEK)
    if what == "recv_into":
        buffer = bytearray(number + 1)
        return sock.recv_into(buffer), bytes(buffer)
    if what == "shutdown":
        return sock.shutdown(HOWS[number % 3])
    if what == "abort":
        sock.setsockopt(standard.SOL_SOCKET, standard.SO_LINGER, NO_LINGER)
        return sock.close()
    if what == "peer":
        return bool(sock.getpeername())
    if what == "error":
        return sock.getsockopt(standard.SOL_SOCKET, standard.SO_ERROR)
    return getattr(sock, what)()


def outcome(sock: Any, what: str, number: int) -> Any:
    try:
        return act(sock, what, number)
    except OSError as exc:
        return type(exc), exc.errno


def settle(sock: Any) -> None:
    """What the other end has sent has arrived; the system may take a moment for it."""
    if sock.fileno() >= 0:
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        poll.poll(1000)


def tcp_pair(module: Any) -> Pair:
    with module.create_server(("127.0.0.1", 0)) as listener:
        client = module.create_connection(listener.getsockname())
        server, _ = listener.accept()
    for sock in (client, server):  # what is sent goes now, as in memory
        sock.setsockopt(standard.IPPROTO_TCP, standard.TCP_NODELAY, 1)
    return client, server


def unix_pair(module: Any) -> Pair:
    pair: Pair = module.socketpair()
    return pair


def play(pair: Callable[[Any], Pair], steps: list[Step]) -> None:
    """In a run: the same on both, and compare."""
    ours = pair(socket)
    assert all(sock.fileno() >= 10**9 for sock in ours)
    theirs = pair(standard)
    for sock in [*ours, *theirs]:
        sock.setblocking(False)
    try:
        for number, (what, which, amount) in enumerate(steps):
            found = outcome(ours[which], what, amount)
            sleep(1)  # on a slow network everything has arrived then
            if what.startswith(("recv", "peek")) and found[:1] != (BlockingIOError,):
                settle(theirs[which])
            expected = outcome(theirs[which], what, amount)
            assert found == expected, (number, what, which, amount)
    finally:
        for sock in [*ours, *theirs]:
            sock.close()


@pytest.mark.parametrize("pair", [tcp_pair, unix_pair])
@pytest.mark.parametrize("latency", [0, 0.1])
def test_a_connection_in_memory_does_what_the_systems_does(
    pair: Callable[[Any], Pair], latency: float
) -> None:
    @hypothesis.settings(max_examples=200, deadline=None)
    @hypothesis.example([("shutdown", 1, 2), ("send", 0, 1), ("close", 0, 0), ("recv", 1, 0)])
    @hypothesis.given(STEPS)
    def compare(steps: list[Step]) -> None:
        testing.run(play, pair, steps, network=Network(latency=latency), threads=True)

    compare()


# What is refused, and how


def bind_twice(module: Any, sock: Any, other: Any) -> Any:
    sock.bind(("127.0.0.1", 0))
    yield sock.bind, ("127.0.0.1", 0)
    yield other.bind, sock.getsockname()
    sock.listen()
    yield other.connect_ex, sock.getsockname()
    yield other.bind, ("127.0.0.1", 0)
    yield (other.listen,)
    yield sock.connect_ex, sock.getsockname()
    yield (sock.getpeername,)
    yield sock.recv, 1
    yield sock.send, b"x"


def unconnected(module: Any, sock: Any, other: Any) -> Any:
    yield (sock.getpeername,)
    yield (sock.getsockname,)
    yield sock.recv, 1
    yield sock.send, b"x"
    yield sock.shutdown, module.SHUT_RDWR
    yield (sock.accept,)
    yield sock.listen, 5
    yield (sock.accept,)
    yield sock.shutdown, 17


def share_a_port(module: Any, sock: Any, other: Any) -> Any:
    for each in (sock, other):
        each.setsockopt(module.SOL_SOCKET, module.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    yield other.bind, sock.getsockname()
    yield (sock.listen,)
    yield (other.listen,)
    yield (other.getpeername,)


def share_who_says_so(module: Any, sock: Any, other: Any) -> Any:
    for each in (sock, other):
        each.setsockopt(module.SOL_SOCKET, module.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    yield other.bind, sock.getsockname()
    yield (other.listen,)


def wide_and_narrow(module: Any, sock: Any, other: Any) -> Any:
    sock.bind(("0.0.0.0", 0))
    sock.listen()
    port = sock.getsockname()[1]
    yield other.bind, ("127.0.0.1", port)
    yield other.connect_ex, ("127.0.0.1", port)
    sock.setblocking(True)
    server, _ = sock.accept()
    with server:
        yield (lambda: server.getsockname()[0],)
        yield (lambda: server.getsockname()[1] == port,)
        yield (lambda: server.getpeername() == other.getsockname(),)


def closed(module: Any, sock: Any, other: Any) -> Any:
    sock.close()
    yield (sock.fileno,)
    yield sock.bind, ("127.0.0.1", 0)
    yield (sock.listen,)
    yield (sock.accept,)
    yield sock.recv, 1
    yield sock.send, b"x"
    yield sock.shutdown, module.SHUT_WR
    yield (sock.getsockname,)
    yield (sock.getpeername,)
    yield sock.connect, ("127.0.0.1", 9)
    yield sock.settimeout, 1
    yield (sock.dup,)
    yield (sock.close,)
    yield (sock.detach,)


def nobody_listens(module: Any, sock: Any, other: Any) -> Any:
    other.bind(("127.0.0.1", 0))
    sock.setblocking(True)
    yield sock.connect_ex, other.getsockname()
    yield sock.connect, other.getsockname()


def wrong(module: Any, sock: Any, other: Any) -> Any:
    yield sock.bind, ("127.0.0.1", 70_000)
    yield sock.bind, ("127.0.0.1", "80")
    yield sock.bind, "path"
    yield sock.bind, 5
    yield sock.connect, ("127.0.0.1", -1)
    yield sock.setsockopt, module.SOL_SOCKET, 998, 1
    yield sock.getsockopt, module.SOL_SOCKET, 998


def a_listener_is_shut_down(module: Any, sock: Any, other: Any) -> Any:
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    yield sock.shutdown, module.SHUT_RDWR
    yield (sock.accept,)


def kinds(module: Any, sock: Any, other: Any) -> Any:
    yield (lambda: (sock.family, sock.type, sock.proto, sock.gettimeout()),)
    for flag in (module.SOCK_CLOEXEC, module.SOCK_NONBLOCK):
        with module.socket(type=module.SOCK_STREAM | flag) as flagged:
            yield (lambda it=flagged: (it.type, it.gettimeout()),)
    yield (lambda: sock.getsockopt(module.SOL_SOCKET, module.SO_TYPE),)
    yield (lambda: sock.getsockopt(module.SOL_SOCKET, module.SO_ACCEPTCONN),)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    yield (lambda: sock.getsockopt(module.SOL_SOCKET, module.SO_ACCEPTCONN),)
    yield (lambda: sock.getsockopt(module.SOL_SOCKET, module.SO_ERROR),)


SCENES = [bind_twice, unconnected, share_a_port, share_who_says_so, wide_and_narrow, closed]
SCENES += [nobody_listens, wrong, a_listener_is_shut_down, kinds]


def outcomes(scene: Any, module: Any) -> list[Any]:
    found: list[Any] = []
    with module.socket() as sock, module.socket() as other:
        for each in (sock, other):
            each.setblocking(False)
        for function, *arguments in scene(module, sock, other):
            try:
                found.append(function(*arguments))
            except OSError as exc:
                found.append((type(exc), exc.errno))
            except (TypeError, OverflowError, ValueError, AttributeError) as exc:
                found.append(type(exc))
    return found


@pytest.mark.parametrize("scene", SCENES)
def test_a_network_in_memory_refuses_what_the_system_does(scene: Any) -> None:
    def main() -> None:
        assert outcomes(scene, socket) == outcomes(scene, standard)

    testing.run(main, network=True, threads=True)
