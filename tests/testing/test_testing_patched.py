"""Code for threads and real sockets, unchanged: patch() in runs with virtual time and a network."""

from __future__ import annotations

import http.client
import http.server
import os
import queue
import sched
import select
import selectors
import socket
import socketserver
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

import pyfiber
import pyfiber.selectors
from pyfiber import FiberError, now, sleep, spawn, testing
from pyfiber.testing import Network
from tests.io.certificates import HOST
from tests.io.tls_pairs import client_context, server_context

ANYWHERE = ("127.0.0.1", 0)


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    with pyfiber.patch():
        yield


def in_memory(function: Any) -> Any:
    """A test that runs in virtual time on a network in memory."""

    def test() -> None:
        testing.run(function, network=True)

    test.__name__ = function.__name__
    return test


def hold(lock: Any) -> None:
    with lock:
        sleep(1)


@in_memory
def test_a_held_lock_is_waited_for() -> None:
    for lock in (threading.Lock(), threading.RLock(), threading.Condition(), threading.Semaphore()):
        begin = now()
        for fiber in [spawn(hold, lock) for _ in range(3)]:
            fiber.join()
        assert now() - begin == 3


def test_a_lock_made_before_the_patch_is_waited_for() -> None:
    def main() -> float:
        lock = threading.Lock()
        with pyfiber.patch():
            for fiber in [spawn(hold, lock) for _ in range(3)]:
                fiber.join()
        return now()

    pyfiber._patch._asked[-1].undo()
    assert testing.run(main) == 3


@in_memory
def test_events_and_queues_are_waited_for() -> None:
    event, items = threading.Event(), queue.Queue[int]()
    assert not event.wait(5)
    spawn(lambda: (sleep(5), event.set(), items.put(3)))
    assert event.wait()
    assert items.get(timeout=3) == 3
    assert now() == 10


@in_memory
def test_sockets_of_the_standard_module_are_in_memory() -> None:
    with socket.create_server(ANYWHERE) as listener:
        waiting = [spawn(listener.accept) for _ in range(2)]
        clients = [socket.create_connection(listener.getsockname()) for _ in waiting]
        for client, fiber in zip(clients, waiting, strict=True):
            server, address = fiber.result()
            with client, server:
                assert address == client.getsockname()
                assert server.fileno() >= 10**9
                readers = [spawn(server.recv, 1) for _ in range(2)]  # as threads may
                client.sendall(b"xy")
                assert [each.result() for each in readers] == [b"x", b"y"]
    left, right = socket.socketpair()
    with left, right, socket.socket(fileno=left.detach()) as again:
        again.send(b"x")
        assert right.recv(1) == b"x"


class Counting(socket.socket):
    sent = 0

    def sendall(self, data: Any, *flags: Any) -> None:
        self.sent += len(data)
        super().sendall(data, *flags)


@in_memory
def test_a_class_of_the_programs_own_is_in_memory() -> None:
    with socket.create_server(ANYWHERE) as listener, Counting() as sock:
        assert type(sock).__mro__[1] is not socket.socket
        assert isinstance(sock, Counting)
        sock.connect(listener.getsockname())
        sock.sendall(b"abc")
        server, _ = listener.accept()
        with server:
            assert (sock.sent, server.recv(10), sock.fileno() >= 10**9) == (3, b"abc", True)


def test_a_class_of_the_programs_own_is_the_systems_without_a_network() -> None:
    def main() -> bool:
        with Counting() as sock:
            return type(sock) is Counting and sock.fileno() < 10**9

    assert testing.run(main)


@in_memory
def test_readiness_is_that_of_the_network() -> None:
    left, right = socket.socketpair()
    with left, right, selectors.DefaultSelector() as selector:
        selector.register(left, selectors.EVENT_READ)
        assert selector.select(2) == []
        assert select.select([left], [], [], 1) == ([], [], [])
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(left, select.POLLIN)
            assert poll.poll(1000) == []
        spawn(lambda: (sleep(1), right.send(b"x")))
        assert selector.select()[0][0].fileobj is left
        assert select.select([left], [], [], 0) == ([left], [], [])
        assert now() == (5 if hasattr(select, "poll") else 4)


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="asks Linux")
@in_memory
def test_an_epoll_object_knows_sockets_in_memory() -> None:
    left, right = socket.socketpair()
    reader, writer = os.pipe()
    for make in (select.epoll, pyfiber.selectors.epoll):
        with make() as epoll:
            epoll.register(left, select.EPOLLIN)
            epoll.register(reader, select.EPOLLIN)
            begin = now()
            assert epoll.poll(2) == []
            assert now() - begin == 2
            spawn(lambda: (sleep(1), right.send(b"x")))
            assert epoll.poll() == [(left.fileno(), select.EPOLLIN)]
            assert now() - begin == 3
            os.write(writer, b"x")
            assert sorted(epoll.poll(0)) == [(reader, 1), (left.fileno(), 1)]
            assert len(epoll.poll(0, 1)) == 1
            os.read(reader, 1)
            epoll.modify(left, select.EPOLLOUT)
            assert epoll.poll() == [(left.fileno(), select.EPOLLOUT)]
            with pytest.raises(FileExistsError):
                epoll.register(left)
            epoll.unregister(left)
            with pytest.raises(FileNotFoundError):
                epoll.unregister(left)
            with pytest.raises(FileNotFoundError):
                epoll.modify(left, select.EPOLLIN)
            assert epoll.poll(1) == []
            left.recv(1)
    os.close(reader)
    os.close(writer)
    left.close()
    right.close()


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="asks Linux")
@in_memory
def test_an_epoll_object_refuses_what_is_no_socket_in_memory_any_more() -> None:
    left, right = socket.socketpair()
    number = left.fileno()
    epoll = select.epoll()
    epoll.register(left, select.EPOLLIN)
    left.close()
    assert epoll.poll(1) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        epoll.register(number, select.EPOLLIN)
    for mode in (select.EPOLLET, select.EPOLLONESHOT):
        with pytest.raises(FiberError, match="selectors"):
            epoll.register(right, select.EPOLLIN | mode)
    epoll.close()
    with pytest.raises(ValueError, match="closed"):
        epoll.register(right, select.EPOLLIN)
    with pytest.raises(ValueError, match="closed"):
        epoll.poll(1)
    right.close()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no fcntl()")
@in_memory
def test_flags_of_descriptors_are_accepted() -> None:
    import fcntl

    left, right = socket.socketpair()
    with left, right:
        assert fcntl.fcntl(left, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
        assert fcntl.fcntl(left.fileno(), fcntl.F_SETFD, 0) == 0
        with pytest.raises(FiberError, match="methods of the socket"):
            fcntl.fcntl(left, fcntl.F_GETFL)
        number = left.fileno()
    with pytest.raises(OSError, match="Bad file descriptor"):
        fcntl.fcntl(number, fcntl.F_GETFD)
    reader, writer = os.pipe()
    assert fcntl.fcntl(reader, fcntl.F_GETFD) == fcntl.FD_CLOEXEC
    os.close(reader)
    os.close(writer)


def test_names_are_those_of_the_network() -> None:
    def main() -> None:
        assert socket.gethostname() == socket.getfqdn() == "localhost"
        assert socket.gethostbyaddr("127.0.0.1") == ("localhost", [], ["127.0.0.1"])
        assert socket.getfqdn("10.0.0.1") == pyfiber.dns.getfqdn("10.0.0.1") == "db.example"
        assert socket.getnameinfo(("10.0.0.1", 80), 0)[0] == "db.example"
        assert socket.getnameinfo(("10.0.0.2", 8765), 0) == ("10.0.0.2", "8765")
        assert socket.getfqdn("10.0.0.2") == pyfiber.dns.getfqdn("10.0.0.2") == "10.0.0.2"
        with pytest.raises(socket.herror):
            socket.gethostbyaddr("10.0.0.2")

    testing.run(main, network=Network(hosts={"db.example": "10.0.0.1"}))


class Shout(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(line.upper())


@in_memory
def test_a_socketserver_serves() -> None:
    with socketserver.TCPServer(ANYWHERE, Shout) as server:
        serving = spawn(server.serve_forever)
        with socket.create_connection(server.server_address) as client:
            client.sendall(b"hello\n")
            assert client.makefile().readline() == "HELLO\n"
        server.shutdown()
        serving.join()


@in_memory
def test_a_socketservers_timeout_is_virtual() -> None:
    with socketserver.TCPServer(ANYWHERE, Shout) as server:
        server.timeout = 5
        server.handle_request()
        assert now() == 5


class Hello(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *args: Any) -> None:
        pass


def with_server(client: Any) -> Any:
    """What ``client()`` returns while an HTTP server of the standard library runs."""
    with http.server.HTTPServer(("", 80), Hello) as server:
        serving = spawn(server.serve_forever)
        try:
            return client()
        finally:
            server.shutdown()
            serving.join()


def ask_by_hand() -> list[bytes]:
    connection = http.client.HTTPConnection("localhost")
    found = []
    for _ in range(3):
        connection.request("GET", "/")
        found.append(connection.getresponse().read())
    connection.close()
    return found


def ask_by_urllib() -> bytes:
    with urllib.request.urlopen("http://localhost/") as answer:
        found: bytes = answer.read()
        return found


def test_http_client_and_server_run_unchanged() -> None:
    def main() -> None:
        assert with_server(ask_by_hand) == [b"hello"] * 3
        assert with_server(ask_by_urllib) == b"hello"

    testing.run(main, network=True)
    assert testing.explore(main, 30, network=True, preempt=True).distinct == 30


def test_requests_run_unchanged() -> None:
    requests = pytest.importorskip("requests")

    def ask() -> list[str]:
        with requests.Session() as session:
            return [session.get("http://localhost/", timeout=5).text for _ in range(3)]

    def main() -> None:
        assert with_server(ask) == ["hello"] * 3

    testing.run(main, network=True)
    assert testing.explore(main, 30, network=True, preempt=True).distinct == 30


def test_tls_runs_unchanged() -> None:
    ours, theirs = client_context(), server_context()

    def main() -> None:
        with socket.create_server(ANYWHERE) as listener:
            plain = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
            shaken = spawn(theirs.wrap_socket, accepted, server_side=True)
            with ours.wrap_socket(plain, server_hostname=HOST) as tls, shaken.result() as other:
                tls.sendall(b"secret")
                assert other.recv(100) == b"secret"

    testing.run(main, network=True)


class Cache:
    """As those of libraries are written."""

    def __init__(self, timer: Any = time.monotonic) -> None:
        self.timer = timer


def test_default_arguments_are_virtual() -> None:
    def main() -> None:
        events = sched.scheduler()
        events.enter(3600, 1, lambda: None)
        events.run()
        assert now() == 3600
        assert Cache().timer() == 3600

    kept = sched.scheduler.__init__.__defaults__
    testing.run(main, virtualize_time=True, threads="simulated")
    assert sched.scheduler.__init__.__defaults__ is kept
    assert abs(Cache().timer() - time.monotonic()) < 1000
