"""pyfiber.gunicorn.Worker under gunicorn itself, as its users start it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.io.certificates import certificate, needs_certificates
from tests.libraries import serving as gunicorn
from tests.libraries.acts import need
from tests.libraries.services import PATIENCE, answers, until
from tests.libraries.serving import Server

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="gunicorn is for POSIX"),
]

GET = b"GET /pid HTTP/1.1\r\nHost: a\r\n\r\n"

#: What is served. The number of the process is in each answer.
APPLICATION = """
import json, os, pathlib, sys, threading, time

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

def environ(environ):
    told = {name: value for name, value in environ.items() if isinstance(value, (str, bool))}
    told["socket"] = environ["gunicorn.socket"].fileno() > 0
    told["MADE"] = os.environ.get("MADE", "")
    return json.dumps(told).encode()

def leave(environ):
    sys.exit("without a reason")

def hints(environ):
    environ["wsgi.early_hints"]([("Link", "</style.css>; rel=preload"), (b"X-More", b"yes")])
    return pid(environ)

def take_over(environ):
    environ["gunicorn.socket"].sendall(b"HTTP/1.1 101 Mine\\r\\n\\r\\nand more")
    raise StopIteration

def complain(environ):
    print("a word of the application's", file=environ["wsgi.errors"])
    return pid(environ)

def file(environ, start_response):
    start_response("200 OK", [("Content-Length", "100000")])
    return environ["wsgi.file_wrapper"](open(here / "file", "rb"))

def from_upstream(environ, start_response):
    start_response("200 OK", [("Transfer-Encoding", "chunked"), ("Keep-Alive", "timeout=5")])
    return [b"proxied"]

def ticking(name):
    try:
        while True:
            time.sleep(0.5)
    finally:
        (here / name).touch()

def begin(environ):
    import pyfiber
    pyfiber.spawn(ticking, "spawned")
    return pid(environ)

if os.environ.get("SERVICE"):
    from pyfiber import service
    from pyfiber.service import background

    @service.on_start
    def start():
        if os.environ["SERVICE"] == "fails":
            raise ValueError("the start has failed")
        (here / "started").touch()
        background(ticking, "background")

    @service.on_stop
    def stop():
        assert (here / "background").exists() and (here / "spawned").exists()
        (here / "stopped").touch()

def app(environ, start_response):
    if environ["PATH_INFO"] in ("/file", "/from_upstream"):
        return globals()[environ["PATH_INFO"][1:]](environ, start_response)
    body = globals()[environ["PATH_INFO"][1:]](environ)
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]
"""


Serving = Callable[..., AbstractContextManager[Server]]


@pytest.fixture(params=["Worker", "PlainWorker"])
def worker(request: pytest.FixtureRequest) -> str:
    """Both ways of serving: HTTP by pyfiber.wsgi, and by gunicorn's own code."""
    if request.param == "Worker":
        need("httptools")
    return str(request.param)


@pytest.fixture
def serving(tmp_path: Path, worker: str) -> Callable[..., AbstractContextManager[Server]]:
    def serve(*options: str, **more: str) -> AbstractContextManager[Server]:
        Path(tmp_path, "served.py").write_text(APPLICATION)
        return gunicorn.serving(tmp_path, *options, worker=worker, **more)

    return serve


@contextlib.contextmanager
def meanwhile(server: Server, path: str) -> Iterator[concurrent.futures.Future[bytes]]:
    """A request that another thread waits for."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        yield pool.submit(server.get, path)


def test_requests_of_one_worker_wait_for_each_other(serving: Serving) -> None:
    with serving() as server, concurrent.futures.ThreadPoolExecutor(50) as pool:
        answered = set(pool.map(server.get, ["/together"] * 50))
        assert len(answered) == 1


def test_connection_is_kept_alive_and_closed_when_it_is_silent(serving: Serving) -> None:
    with (
        serving("--keep-alive", "1") as server,
        contextlib.closing(server.connect()) as connection,
    ):
        assert server.ask(connection, "/pid") == server.ask(connection, "/pid")
        assert connection.sock.recv(1) == b""


def test_bodies_come_and_go_whole(serving: Serving) -> None:
    body = os.urandom(300_000)
    with serving() as server, contextlib.closing(server.connect()) as connection:
        assert server.ask(connection, "/echo", body) == body
        assert server.ask(connection, "/echo", iter([body, b"", b"end"])) == body + b"end"


def test_worker_has_no_more_connections_than_it_may(serving: Serving) -> None:
    with (
        serving("--worker-connections", "3") as server,
        concurrent.futures.ThreadPoolExecutor(20) as pool,
    ):
        assert max(map(int, pool.map(server.get, ["/most"] * 20))) == 3


def test_failure_of_the_application_is_answered_and_logged(serving: Serving) -> None:
    with serving() as server:
        with contextlib.closing(server.connect()) as connection:
            connection.request("GET", "/fail")
            assert connection.getresponse().status == 500
        assert "the application's own" in server.log()
        assert server.get("/pid")


def test_malformed_request_is_refused(serving: Serving) -> None:
    with (
        serving() as server,
        socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock,
    ):
        sock.sendall(b"GET /pid HTTP/1.1\r\nbad header\r\n\r\n")
        assert sock.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")


def test_request_without_a_host_is_served(serving: Serving) -> None:
    with serving() as server:  # as balancers ask whether a service lives
        answer = server.exchange(b"GET /pid HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_sigterm_lets_a_request_end(serving: Serving, tmp_path: Path) -> None:
    with serving() as server, meanwhile(server, "/until_open") as asked:
        server.appears("inside")
        server.signal(signal.SIGTERM)
        until(lambda: not answers(server.port))
        Path(tmp_path, "open").touch()
        assert int(asked.result(PATIENCE))
        assert server.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_fibers_of_the_service_end_after_the_last_request(serving: Serving, number: int) -> None:
    options = ("--graceful-timeout", "1000", "--timeout", "1000")
    with serving(*options, SERVICE="works") as server:
        server.appears("started")
        assert int(server.get("/begin"))
        server.signal(number)
        assert server.process.wait(PATIENCE) == 0
        assert Path(server.folder, "stopped").exists(), server.log()


def test_fibers_of_the_service_end_after_max_requests(serving: Serving) -> None:
    options = ("--graceful-timeout", "1000", "--timeout", "1000", "--max-requests", "1")
    with serving(*options, SERVICE="works") as server:
        before = server.get("/begin")
        until(lambda: server.get("/pid") != before)  # there is one worker at a time
        assert Path(server.folder, "stopped").exists()


def test_service_that_cannot_start_ends_gunicorn(serving: Serving, tmp_path: Path) -> None:
    with contextlib.suppress(AssertionError), serving(SERVICE="fails") as server:
        server.process.wait(PATIENCE)  # unless it has ended by now
    log = Path(tmp_path, "log").read_text()
    assert "the start has failed" in log
    assert "Worker failed to boot" in log


def test_graceful_timeout_cancels_a_request(serving: Serving) -> None:
    with (
        serving("--graceful-timeout", "1") as server,
        meanwhile(server, "/until_open") as asked,
    ):
        server.appears("inside")
        server.signal(signal.SIGTERM)
        assert isinstance(asked.exception(PATIENCE), (http.client.HTTPException, OSError))
        server.appears("left")
        assert server.process.wait(PATIENCE) == 0


def test_sigint_cancels_requests_at_once(serving: Serving) -> None:
    with serving() as server, meanwhile(server, "/until_open") as asked:
        server.appears("inside")
        server.signal(signal.SIGINT)
        assert isinstance(asked.exception(PATIENCE), (http.client.HTTPException, OSError))
        server.appears("left")
        assert server.process.wait(PATIENCE) == 0


def test_reload_serves_by_new_workers_and_loses_nothing(serving: Serving, tmp_path: Path) -> None:
    with serving() as server, meanwhile(server, "/until_open") as asked:
        server.appears("inside")
        before = server.get("/pid")
        server.signal(signal.SIGHUP)
        until(lambda: server.get("/pid") != before)
        Path(tmp_path, "open").touch()
        assert asked.result(PATIENCE) == before


def test_worker_ends_after_max_requests_and_another_comes(serving: Serving) -> None:
    with serving("--max-requests", "5") as server:
        seen = {server.get("/pid") for _ in range(5)}
        assert len(seen) == 1
        until(lambda: server.get("/pid") not in seen)


@pytest.mark.slow
def test_worker_whose_thread_is_blocked_is_replaced(serving: Serving) -> None:
    with serving("--timeout", "2") as server, meanwhile(server, "/spin") as asked:
        assert asked.exception(PATIENCE) is not None  # gunicorn's own code says 500
        assert server.get("/pid")


def test_application_may_be_loaded_before_the_fork(serving: Serving) -> None:
    with (
        serving("--preload", "--workers", "2") as server,
        concurrent.futures.ThreadPoolExecutor(20) as pool,
    ):
        assert all(pool.map(server.get, ["/most"] * 20))


def test_environ_is_as_gunicorn_makes_it(serving: Serving) -> None:
    with serving("--env", "MADE=by a setting", "--workers", "2") as server:
        told = server.environ("/environ?a=1%20b", b"X-Twice: a\r\nX-Twice: b\r\n")
        with contextlib.closing(server.connect()) as connection:
            connection.request("GET", "/pid")
            assert connection.getresponse().getheader("Server") == "gunicorn"
    assert told["RAW_URI"] == "/environ?a=1%20b"
    assert told["QUERY_STRING"] == "a=1%20b"
    assert told["HTTP_X_TWICE"] == "a,b"
    assert told["SERVER_SOFTWARE"].startswith("gunicorn/")
    assert told["SERVER_PORT"] == str(server.port)
    assert told["REMOTE_ADDR"] == told["SERVER_NAME"] == "127.0.0.1"
    assert told["wsgi.url_scheme"] == "http"
    assert told["wsgi.multithread"] is told["wsgi.multiprocess"] is told["socket"] is True
    assert told["MADE"] == "by a setting"


FORWARDED = b"X-Forwarded-Proto: https\r\nSCRIPT_NAME: /environ\r\nX_Hidden: yes\r\n"


def test_trusted_proxy_says_scheme_and_script_name(serving: Serving) -> None:
    with serving() as server:
        answer = server.exchange(b"GET /other/environ HTTP/1.0\r\nSCRIPT_NAME: /other\r\n\r\n")
        told = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert (told["SCRIPT_NAME"], told["PATH_INFO"]) == ("/other", "/environ")
        told = server.environ("/environ", b"X-Forwarded-Proto: https\r\nX_Hidden: yes\r\n")
        assert told["wsgi.url_scheme"] == "https"
        assert "HTTP_X_HIDDEN" not in told
        assert server.environ("/environ", b"X-Forwarded-Ssl: off\r\n")["wsgi.url_scheme"] == "http"
        for more in (b"X-Forwarded-Ssl: off\r\n", b"X-Forwarded-Proto: http\r\n"):
            head = b"GET /environ HTTP/1.0\r\nX-Forwarded-Proto: https\r\n" + more
            assert server.exchange(head, b"\r\n").startswith(b"HTTP/1.1 400 ")


def test_nobody_else_does(serving: Serving) -> None:
    with serving("--forwarded-allow-ips", "192.0.2.1,2001:db8::1") as server:
        told = server.environ("/environ", FORWARDED)
        assert told["wsgi.url_scheme"] == "http"
        assert told["SCRIPT_NAME"] == ""
        assert not {"HTTP_X_HIDDEN", "HTTP_SCRIPT_NAME"} & told.keys()


def test_application_may_be_below_a_path(serving: Serving) -> None:
    with serving(SCRIPT_NAME="/below") as server:
        told = server.environ("/below/environ")
        assert (told["SCRIPT_NAME"], told["PATH_INFO"]) == ("/below", "/environ")


def test_heads_are_limited_as_the_settings_say(serving: Serving) -> None:
    limits = ("--limit-request-line", "100", "--limit-request-fields", "5")
    with serving(*limits, "--limit-request-field_size", "50") as server:

        def status(target: bytes, fields: bytes) -> int:
            head = b"GET " + target + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
            return int(server.exchange(head + fields + b"\r\n").split(b" ", 2)[1])

        assert status(b"/pid?" + 82 * b"a", b"") == 200
        assert status(b"/pid?" + 83 * b"a", b"") == 414
        assert status(b"/pid", b"A: b\r\n" * 3) == 200
        assert status(b"/pid", b"".join(b"%c: b\r\n" % each for each in b"ABCDE")) == 431
        assert status(b"/pid", b"A: " + 45 * b"b" + b"\r\n") == 200
        assert status(b"/pid", b"A: " + 46 * b"b" + b"\r\n") == 431
        two = GET + GET.replace(b"Host", b"A: " + 46 * b"b" + b"\r\nHost")
        assert b"HTTP/1.1 431 " in server.exchange(two)


def test_connections_are_not_kept_if_the_setting_is_0(serving: Serving) -> None:
    with serving("--keep-alive", "0") as server:
        assert b"\r\nConnection: close\r\n" in server.exchange(GET)


def test_idle_connection_does_not_hold_up_the_end(serving: Serving) -> None:
    options = ("--keep-alive", "100", "--graceful-timeout", "100")
    with serving(*options) as server, contextlib.closing(server.connect()) as connection:
        server.ask(connection, "/pid")
        server.signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE) == 0


def test_connection_without_a_byte_is_answered_by_a_worker_that_ends(serving: Serving) -> None:
    options = ("--max-requests", "2", "--keep-alive", "100")
    with serving(*options) as server, contextlib.ExitStack() as stack:
        early, kept = (stack.enter_context(contextlib.closing(server.connect())) for _ in range(2))
        early.connect()
        before = server.ask(kept, "/pid")
        assert server.get("/pid") == before
        assert kept.sock.recv(1) == b""  # the worker ends: nobody is accepted any more
        assert server.ask(early, "/pid") == before


def test_client_that_asks_again_is_answered_by_a_worker_that_ends(serving: Serving) -> None:
    options = ("--max-requests", "2", "--keep-alive", "100")
    with serving(*options) as server, contextlib.closing(server.connect()) as kept:
        before = server.ask(kept, "/pid")
        assert server.get("/pid") == before
        assert server.ask(kept, "/pid") == before


def test_connection_without_a_byte_is_answered_after_sigterm(serving: Serving) -> None:
    with serving() as server, contextlib.closing(server.connect()) as early:
        early.connect()
        server.get("/pid")
        server.signal(signal.SIGTERM)
        until(lambda: not answers(server.port))
        assert int(server.ask(early, "/pid"))
        assert server.process.wait(PATIENCE) == 0


def test_idle_connection_gives_way_when_its_place_is_needed(serving: Serving) -> None:
    options = ("--worker-connections", "3", "--keep-alive", "1000", "--timeout", "1000")
    with serving(*options) as server, contextlib.ExitStack() as stack:
        for _ in range(10):
            connection = stack.enter_context(contextlib.closing(server.connect()))
            assert int(server.ask(connection, "/pid"))


def test_requests_are_logged_in_the_format_of_the_setting(serving: Serving, tmp_path: Path) -> None:
    Path(tmp_path, "file").write_bytes(bytes(100_000))
    form = "%(r)s|%(s)s|%(b)s|%(B)s|%(m)s|%(U)s|%(q)s|%({x-a}i)s|%({content-type}o)s|%({x-b}i)s"
    with serving("--access-logfile", "access", "--access-logformat", form) as server:
        for path in ("/echo", "/fail", "/file", "/from_upstream"):
            query = path + "?a=1"
            body = b"" if path == "/echo" else None
            with contextlib.closing(server.connect()) as connection:
                connection.request("POST", query, body or b"four", {"X-A": "yes"})
                connection.getresponse().read()
        until(lambda: Path(tmp_path, "access").read_text().count("\n") == 4)
        found = Path(tmp_path, "access").read_text().splitlines()
        before = Path(tmp_path, "access").rename(tmp_path / "before")
        server.signal(signal.SIGUSR1)
        server.appears("access")
        server.get("/pid")
        until(lambda: Path(tmp_path, "access").read_text().startswith("GET /pid HTTP/1.1|200|"))
        assert before.read_text().count("\n") == 4
    first = "{}|{}|{}|POST|{}|a=1|yes|{}|-"
    expected = [
        ("/echo", 200, 4, "text/plain"),
        ("/fail", 500, 0, "-"),
        ("/file", 200, 100_000, "-"),
        ("/from_upstream", 200, 7, "-"),
    ]
    for line, (path, status, size, kind) in zip(found, expected, strict=True):
        if "PlainWorker" in server.log():  # it is not told of these
            size = 0 if path == "/file" else size
            path = "None" if path == "/fail" else path
        assert line.partition("|")[2] == first.format(status, size, size, path, kind)


def test_statsd_is_told_of_requests(serving: Serving) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(PATIENCE)
        with serving("--statsd-host", f"127.0.0.1:{sock.getsockname()[1]}") as server:
            server.get("/pid")
            while sock.recv(1000) != b"gunicorn.request.status.200:1|c|@1.0":
                pass


def test_exit_of_the_application_is_its_failure(serving: Serving) -> None:
    with serving() as server, contextlib.closing(server.connect()) as connection:
        before = server.get("/pid")
        connection.request("GET", "/leave")
        assert connection.getresponse().status == 500
        assert server.get("/pid") == before


def test_early_hints_go_before_the_answer(serving: Serving) -> None:
    with serving() as server:
        hints, _, answer = server.exchange(
            GET.replace(b"/pid", b"/hints").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        ).partition(b"\r\n\r\n")
        assert hints.startswith(b"HTTP/1.1 103 Early Hints\r\n")
        assert b"\r\nLink: </style.css>; rel=preload\r\nX-More: yes" in hints
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_application_may_take_the_socket(serving: Serving) -> None:
    with serving() as server:
        request = GET.replace(b"/pid", b"/take_over").replace(b"Host", b"Upgrade: mine\r\nHost")
        assert server.exchange(request) == b"HTTP/1.1 101 Mine\r\n\r\nand more"
        assert "Traceback" not in server.log()


def test_what_the_application_complains_of_is_in_the_log(serving: Serving) -> None:
    with serving() as server:
        server.get("/complain")
        until(lambda: "a word of the application's" in server.log())


@pytest.mark.parametrize("options", [(), ("--no-sendfile",)], ids=["", "no sendfile"])
def test_file_is_sent(options: tuple[str, ...], serving: Serving, tmp_path: Path) -> None:
    data = os.urandom(100_000)
    Path(tmp_path, "file").write_bytes(data)
    with serving(*options) as server:
        assert server.get("/file") == data


def test_fields_of_an_upstream_server_are_passed_over(serving: Serving) -> None:
    with serving() as server:
        assert server.get("/from_upstream") == b"proxied"


def test_several_addresses_are_served(serving: Serving, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with (
        serving("--bind", f"unix:{path}") as server,
        socket.socket(socket.AF_UNIX) as sock,
    ):
        assert server.get("/pid")
        sock.connect(path)
        sock.sendall(b"GET /environ HTTP/1.0\r\nHost: named.example:81\r\n\r\n")
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
        told = json.loads(answer.partition(b"\r\n\r\n")[2])
        assert (told["SERVER_NAME"], told["SERVER_PORT"]) == ("named.example", "81")
        assert told["REMOTE_ADDR"] == ""


def test_changed_file_is_loaded_anew(serving: Serving, tmp_path: Path) -> None:
    def is_new() -> bool:  # what is changed before gunicorn has looked first is not seen
        Path(tmp_path, "served.py").write_text(CHANGED)
        return server.get("/pid") == b"new"

    with serving("--reload", "--reload-engine", "poll") as server:
        assert server.get("/pid") != b"new"
        until(is_new)


CHANGED = (
    APPLICATION
    + """
def pid(environ):
    return b"new"
"""
)

OWN = [
    ("http_parser", "http_parser = 'python'"),
    ("header_map", "header_map = 'dangerous'"),
    ("pre_request", "def pre_request(worker, req): req.headers.append(('X-ADDED', 'yes'))"),
    ("post_request", "def post_request(worker, req, environ, resp): resp.headers"),
    ("permit_unconventional_http_method", "permit_unconventional_http_method = True"),
]


@pytest.mark.parametrize(("name", "setting"), OWN, ids=[name for name, _ in OWN])
def test_gunicorns_own_code_serves_where_a_setting_needs_it(
    name: str, setting: str, tmp_path: Path
) -> None:
    Path(tmp_path, "served.py").write_text(APPLICATION)
    Path(tmp_path, "settings.py").write_text(setting)
    with gunicorn.serving(tmp_path, "--config", "settings.py") as server:
        told = server.environ("/environ", b"X_Kept: yes\r\n")
        assert f"own code, because of the setting {name}" in server.log()
        assert ("HTTP_X_KEPT" in told) == (name == "header_map")
        assert ("HTTP_X_ADDED" in told) == (name == "pre_request")


def test_nothing_needs_gunicorns_own_code_by_default(tmp_path: Path) -> None:
    need("httptools")
    Path(tmp_path, "served.py").write_text(APPLICATION)
    with gunicorn.serving(tmp_path) as server:
        assert server.get("/pid")
        assert "own code" not in server.log()


def test_methods_of_a_derived_worker_are_called(tmp_path: Path) -> None:
    Path(tmp_path, "served.py").write_text(APPLICATION)
    Path(tmp_path, "derived.py").write_text(DERIVED)
    with gunicorn.serving(tmp_path, "-k", "derived.Derived") as server:
        assert server.get("/pid")
        assert "own code, because of Derived.handle_request()" in server.log()
        assert "here it comes" in server.log()


DERIVED = """
from pyfiber.gunicorn import Worker

class Derived(Worker):
    def handle_request(self, *args):
        self.log.info("here it comes")
        return super().handle_request(*args)
"""


@needs_certificates
def test_tls_is_served(serving: Serving) -> None:
    made = certificate("localhost")
    with serving("--certfile", made, "--keyfile", made) as server:
        context = ssl.create_default_context(cafile=made)
        connection = http.client.HTTPSConnection(
            "localhost", server.port, context=context, timeout=PATIENCE
        )
        with contextlib.closing(connection):
            assert server.ask(connection, "/echo", b"secret") == b"secret"
        assert not answers_plainly(server.port)
        with contextlib.closing(connection):
            assert server.ask(connection, "/pid")


@needs_certificates
def test_connection_that_has_not_shaken_hands_is_answered_by_a_worker_that_ends(
    serving: Serving,
) -> None:
    made = certificate("localhost")
    context = ssl.create_default_context(cafile=made)
    with serving("--certfile", made) as server:
        with socket.create_connection(("localhost", server.port), PATIENCE) as early:
            with (
                socket.create_connection(("localhost", server.port), PATIENCE) as other,
                context.wrap_socket(other, server_hostname="localhost"),
            ):
                pass  # accepted after the other one
            server.signal(signal.SIGTERM)
            until(lambda: not answers(server.port))
            with context.wrap_socket(early, server_hostname="localhost") as client:
                client.sendall(GET)
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.process.wait(PATIENCE) == 0


def answers_plainly(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
        sock.sendall(b"GET /pid HTTP/1.0\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            return sock.recv(100)
        return b""


def test_worker_without_descriptors_says_so_once_and_serves_again(
    serving: Serving, tmp_path: Path
) -> None:
    limit = "def post_worker_init(worker):\n    import resource\n"
    limit += "    resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))\n"
    Path(tmp_path, "gunicorn.conf.py").write_text(limit)
    with serving("--timeout", "60") as server:
        with contextlib.ExitStack() as clients:
            for _ in range(100):
                sock = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
                clients.enter_context(sock)
            until(lambda: "cannot accept connections" in server.log())
        assert server.get("/pid")
        assert server.log().count("cannot accept connections") == 1


def test_ps_shows_the_requests_of_a_worker(serving: Serving, tmp_path: Path) -> None:
    with serving(PYFIBER_DEBUG="1") as server, meanwhile(server, "/until_open?secret=1"):
        server.appears("inside")
        pid = server.get("/pid").decode()
        command = [sys.executable, "-m", "pyfiber", "ps", pid]
        told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        Path(tmp_path, "open").touch()
    assert re.search(r"\n      request GET /until_open for [\d.]+ m?s\n", told.stdout), told
    assert told.stdout.count("request ") == 1
