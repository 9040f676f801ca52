"""pyfiber.gunicorn.Worker under gunicorn itself, as its users start it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import os
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.io.certificates import certificate, needs_certificates
from tests.libraries import serving as gunicorn
from tests.libraries.services import PATIENCE
from tests.libraries.serving import Server, answers, until

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="gunicorn is for POSIX"),
]

#: What is served. The number of the process is in each answer.
APPLICATION = """
import os, pathlib, threading, time

here = pathlib.Path(__file__).parent
barrier = threading.Barrier(50)
inside = set()

def pid(environ):
    return b"%d" % os.getpid()

def together(environ):
    barrier.wait(60)
    return pid(environ)

def until_open(environ):
    (here / "inside").touch()
    try:
        while not (here / "open").exists():
            time.sleep(0.01)
    finally:
        (here / "left").touch()
    return pid(environ)

def spin(environ):
    while True:
        pass

def fail(environ):
    raise ValueError("the application's own")

def echo(environ):
    return environ["wsgi.input"].read()

def most(environ):
    inside.add(environ["REMOTE_PORT"])
    found = len(inside)
    time.sleep(0.05)
    inside.discard(environ["REMOTE_PORT"])
    return b"%d" % found

def app(environ, start_response):
    body = globals()[environ["PATH_INFO"][1:]](environ)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""


def serving(folder: Path, *options: str) -> AbstractContextManager[Server]:
    Path(folder, "served.py").write_text(APPLICATION)
    return gunicorn.serving(folder, *options)


@contextlib.contextmanager
def meanwhile(server: Server, path: str) -> Iterator[concurrent.futures.Future[bytes]]:
    """A request that another thread waits for."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(server.get, path)


def test_requests_of_one_worker_wait_for_each_other(tmp_path: Path) -> None:
    with serving(tmp_path) as server, concurrent.futures.ThreadPoolExecutor(50) as pool:
        answered = set(pool.map(server.get, ["/together"] * 50))
        assert len(answered) == 1


def test_connection_is_kept_alive_and_closed_when_it_is_silent(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--keep-alive", "1") as server,
        contextlib.closing(server.connect()) as connection,
    ):
        assert server.ask(connection, "/pid") == server.ask(connection, "/pid")
        assert connection.sock.recv(1) == b""


def test_bodies_come_and_go_whole(tmp_path: Path) -> None:
    body = os.urandom(300_000)
    with serving(tmp_path) as server, contextlib.closing(server.connect()) as connection:
        assert server.ask(connection, "/echo", body) == body
        assert server.ask(connection, "/echo", iter([body, b"", b"end"])) == body + b"end"


def test_worker_has_no_more_connections_than_it_may(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--worker-connections", "3") as server,
        concurrent.futures.ThreadPoolExecutor(20) as pool,
    ):
        assert max(map(int, pool.map(server.get, ["/most"] * 20))) == 3


def test_failure_of_the_application_is_answered_and_logged(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        with contextlib.closing(server.connect()) as connection:
            connection.request("GET", "/fail")
            assert connection.getresponse().status == 500
        assert "the application's own" in server.log()
        assert server.get("/pid")


def test_malformed_request_is_refused(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as server,
        socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock,
    ):
        sock.sendall(b"GET /pid HTTP/1.1\r\nbad header\r\n\r\n")
        assert sock.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")


def test_sigterm_lets_a_request_end(tmp_path: Path) -> None:
    with serving(tmp_path) as server, meanwhile(server, "/until_open") as asked:
        server.appears("inside")
        server.signal(signal.SIGTERM)
        until(lambda: not answers(server.port))
        Path(tmp_path, "open").touch()
        assert int(asked.result(PATIENCE))
        assert server.process.wait(PATIENCE) == 0


def test_graceful_timeout_cancels_a_request(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--graceful-timeout", "1") as server,
        meanwhile(server, "/until_open") as asked,
    ):
        server.appears("inside")
        server.signal(signal.SIGTERM)
        assert isinstance(asked.exception(PATIENCE), (http.client.HTTPException, OSError))
        server.appears("left")
        assert server.process.wait(PATIENCE) == 0


def test_sigint_cancels_requests_at_once(tmp_path: Path) -> None:
    with serving(tmp_path) as server, meanwhile(server, "/until_open") as asked:
        server.appears("inside")
        server.signal(signal.SIGINT)
        assert isinstance(asked.exception(PATIENCE), (http.client.HTTPException, OSError))
        server.appears("left")
        assert server.process.wait(PATIENCE) == 0


def test_reload_serves_by_new_workers_and_loses_nothing(tmp_path: Path) -> None:
    with serving(tmp_path) as server, meanwhile(server, "/until_open") as asked:
        server.appears("inside")
        before = server.get("/pid")
        server.signal(signal.SIGHUP)
        until(lambda: server.get("/pid") != before)
        Path(tmp_path, "open").touch()
        assert asked.result(PATIENCE) == before


def test_worker_ends_after_max_requests_and_another_comes(tmp_path: Path) -> None:
    with serving(tmp_path, "--max-requests", "5") as server:
        seen = {server.get("/pid") for _ in range(5)}
        assert len(seen) == 1
        until(lambda: server.get("/pid") not in seen)


@pytest.mark.slow
def test_worker_whose_thread_is_blocked_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, "--timeout", "2") as server, meanwhile(server, "/spin") as asked:
        assert isinstance(asked.exception(PATIENCE), (http.client.HTTPException, OSError))
        assert server.get("/pid")


def test_application_may_be_loaded_before_the_fork(tmp_path: Path) -> None:
    with (
        serving(tmp_path, "--preload", "--workers", "2") as server,
        concurrent.futures.ThreadPoolExecutor(20) as pool,
    ):
        assert all(pool.map(server.get, ["/most"] * 20))


@needs_certificates
def test_tls_is_served(tmp_path: Path) -> None:
    made = certificate("localhost")
    with serving(tmp_path, "--certfile", made, "--keyfile", made) as server:
        context = ssl.create_default_context(cafile=made)
        connection = http.client.HTTPSConnection(
            "localhost", server.port, context=context, timeout=PATIENCE
        )
        with contextlib.closing(connection):
            assert server.ask(connection, "/echo", b"secret") == b"secret"
        assert not answers_plainly(server.port)
        with contextlib.closing(connection):
            assert server.ask(connection, "/pid")


def answers_plainly(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
        sock.sendall(b"GET /pid HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            return sock.recv(100)
        return b""
