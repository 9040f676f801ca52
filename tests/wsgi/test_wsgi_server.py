"""pyfiber.wsgi: slow clients, many clients, the end of a server, TLS, and the command."""

from __future__ import annotations

import os
import re
import signal
import socket as standard
import sys
import tracemalloc
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from pyfiber import Event, TaskGroup, gather, net, now, run, sleep, testing, to_thread, wsgi
from pyfiber._debug import snapshot as snapshots
from pyfiber._debug.text import page
from pyfiber.wsgi.__main__ import parse, place_of
from tests.io.certificates import HOST as NAME
from tests.io.certificates import needs_certificates
from tests.io.tls_pairs import client_context, server_context
from tests.support.subprocesses import run_python, start_python
from tests.wsgi.talking import (
    GET,
    HELLO,
    HOST,
    LAST,
    converse,
    hello,
    read_all,
    replies,
    take,
)

POST = b"POST / HTTP/1.1\r\nHost: a\r\n"


def reading(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    body = environ["wsgi.input"].read()
    start_response("200 OK", [])
    return [body]


def drip(stream: net.Stream, data: bytes, seconds: float) -> None:
    """A byte at a time, till the other end has had enough."""
    try:
        for i in range(len(data)):
            stream.write(data[i : i + 1])
            sleep(seconds)
    except OSError:
        pass


# slow clients -------------------------------------------------------------------------------------


def test_silent_client_is_let_go() -> None:
    def client(stream: net.Stream) -> tuple[bytes, float]:
        stream.write(GET)
        stream.read()
        began = now()
        return stream.read(), now() - began

    data, seconds = converse(hello, client, keep_alive=7)
    assert data == b""
    assert seconds == pytest.approx(7, abs=0.1)


def test_slow_head_is_given_up_after_its_time() -> None:
    def client(stream: net.Stream) -> tuple[bytes, float]:
        with TaskGroup() as group:
            group.spawn(drip, stream, GET * 10, 1)
            answer = read_all(stream)
            return answer, now()

    began = 0.0

    def timed(stream: net.Stream) -> tuple[bytes, float]:
        nonlocal began
        began = now()
        return client(stream)

    data, ended = converse(hello, timed, header_timeout=5)
    assert [reply.status for reply in replies(data)] == [408]
    assert ended - began == pytest.approx(5, abs=3)


def test_slow_body_is_given_up_after_its_time() -> None:
    def client(stream: net.Stream) -> bytes:
        stream.write(POST + b"Content-Length: 1000\r\n\r\n")
        began = now()
        with TaskGroup() as group:
            group.spawn(drip, stream, b"x" * 1000, 1)
            data = read_all(stream)
            assert now() - began == pytest.approx(10, abs=4)
        return data

    assert [reply.status for reply in replies(converse(reading, client, body_timeout=10))] == [408]


def test_body_that_goes_on_has_time() -> None:
    """The time is for each 64 KiB, and what the application takes does not count."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        sleep(100)
        return reading(environ, start_response)

    def client(stream: net.Stream) -> bytes:
        stream.write(POST + b"Content-Length: 1000000\r\nConnection: close\r\n\r\n")
        for _ in range(10):
            stream.write(b"x" * 100_000)
            sleep(9)
        return read_all(stream)

    (reply,) = replies(converse(app, client, body_timeout=10))
    assert (reply.status, len(reply.body)) == (200, 1_000_000)


def test_client_that_does_not_read_is_given_up() -> None:
    ended: list[float] = []

    def app(environ: dict[str, Any], start_response: Any) -> Iterator[bytes]:
        try:
            start_response("200 OK", [])
            for _ in range(100):
                yield b"x" * 65536
        finally:
            ended.append(now())

    def client(stream: net.Stream) -> None:
        stream.write(LAST)
        began = now()
        sleep(1000)
        assert ended[0] - began == pytest.approx(20, abs=0.1)

    converse(app, client, write_timeout=20)


@pytest.mark.parametrize("way", ["list", "iterator", "chunks"])
def test_slow_reader_does_not_hold_a_copy_of_the_answer(way: str) -> None:
    block = bytes(1 << 24)

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        length = [] if way == "chunks" else [("Content-Length", str(len(block)))]
        start_response("200 OK", length)
        return [block] if way == "list" else iter([block])

    def client(stream: net.Stream) -> int:
        stream.write(GET)
        sleep(1)
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = converse(app, client, write_timeout=100, grace=0) - before
    finally:
        tracemalloc.stop()
    assert held < len(block) / 2


def test_client_that_reads_slowly_gets_all() -> None:
    body = b"x" * 65536 * 20

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [body]

    def client(stream: net.Stream) -> bytes:
        stream.write(LAST)
        data = b""
        while piece := stream.read():
            data += piece
            sleep(5)
        return data

    assert take(converse(app, client, write_timeout=20))[0].body == body


# the end ------------------------------------------------------------------------------------------


def test_server_that_ends_answers_what_has_come() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        sleep(3)
        return list(hello(environ, start_response))

    def main() -> None:
        with wsgi.serve(app, HOST, 80, grace=10) as server, ExitStack() as stack:
            busy, idle, fresh = (
                stack.enter_context(net.connect(*server.address)) for _ in range(3)
            )
            idle.write(GET)
            assert take(read_some(idle))[0].body == HELLO
            began = now()
            busy.write(GET)
            sleep(1)
            server.stop()
            assert idle.read() == b""  # silent for a second
            assert now() - began == pytest.approx(1, abs=0.1)
            sleep(1)
            fresh.write(GET)
            for stream in (busy, fresh):
                (reply,) = replies(read_all(stream))
                assert (reply.body, reply.headers["connection"]) == (HELLO, "close")
            with pytest.raises(ConnectionRefusedError):
                net.connect(*server.address)
        assert now() - began == pytest.approx(5, abs=0.1)

    testing.run(main, network=True)


def read_some(stream: net.Stream) -> bytes:
    data = b""
    while not data.endswith(HELLO):
        data += stream.read()
    return data


def patient(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    sleep(0.1)  # where a cancellation that was not for the request would meet it
    return list(hello(environ, start_response))


def test_request_that_comes_as_the_server_ends_is_answered() -> None:
    def main() -> None:
        with wsgi.serve(patient, HOST, 80, grace=10) as server, net.connect(*server.address) as one:
            one.write(GET)
            read_some(one)
            one.write(GET)
            server.stop()  # before the fiber of the connection has run again
            (reply,) = replies(read_all(one))
            assert reply.body == HELLO

    testing.run(main, network=True)


def test_client_that_asks_again_as_the_server_ends_is_answered_once_more() -> None:
    def main() -> None:
        with wsgi.serve(hello, HOST, 80, grace=10) as server, net.connect(*server.address) as one:
            for _ in range(3):
                one.write(GET)
                assert "connection" not in take(read_some(one))[0].headers
                sleep(0.5)
            server.stop()
            sleep(0.4)
            one.write(GET)
            (reply,) = replies(read_all(one))
            assert (reply.body, reply.headers["connection"]) == (HELLO, "close")

    testing.run(main, network=True)


def test_new_connection_that_stays_silent_ends_with_the_grace() -> None:
    def main() -> None:
        with wsgi.serve(hello, HOST, 80, grace=10) as server, net.connect(*server.address) as one:
            sleep(1)
            server.stop()
            assert read_all(one) == b""
            assert now() == pytest.approx(11, abs=0.1)

    testing.run(main, network=True)


def test_abort_does_not_wait() -> None:
    log: list[str] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        try:
            sleep(1000)
        finally:
            log.append("cancelled")
        return []

    def main() -> None:
        with wsgi.serve(app, HOST, 80, grace=100) as server, net.connect(*server.address) as one:
            one.write(GET)
            sleep(1)
            server.abort()
            read_all(one)
        assert now() == pytest.approx(1, abs=0.1)

    testing.run(main, network=True)
    assert log == ["cancelled"]


def test_many_clients_are_served_at_once() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        sleep(1)
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]

    def main() -> None:
        def client(i: int) -> bytes:
            with net.connect(*server.address) as stream:
                stream.write(LAST.replace(b" / ", b" /%d " % i))
                return take(read_all(stream))[0].body

        with wsgi.serve(app, HOST, 80) as server:
            began = now()
            assert gather(*[lambda i=i: client(i) for i in range(100)]) == [
                b"/%d" % i for i in range(100)
            ]
            assert now() - began < 2

    testing.run(main, network=True)


def test_limit_is_on_connections() -> None:
    def main() -> None:
        with wsgi.serve(hello, HOST, 80, limit=1) as server, net.connect(*server.address) as one:
            one.write(GET[:5])
            sleep(1)
            with net.connect(*server.address) as other:
                other.write(LAST)
                sleep(1)
                assert server.connections == 1
                one.close()
                assert take(read_all(other))[0].body == HELLO

    testing.run(main, network=True)


def ask(stream: net.Stream) -> str:
    """What the answer says of the connection."""
    stream.write(GET)
    return take(read_some(stream))[0].headers.get("connection", "")


def test_idle_connection_gives_way_when_its_place_is_needed() -> None:
    def main() -> None:
        with (
            wsgi.serve(hello, HOST, 80, limit=3, keep_alive=100) as server,
            ExitStack() as stack,
        ):
            first, second, third = (
                stack.enter_context(net.connect(*server.address)) for _ in range(3)
            )
            for stream in (first, second, third, first):
                ask(stream)
                sleep(1)
            began = now()
            ask(stack.enter_context(net.connect(*server.address)))
            assert now() - began < 0.1
            assert second.read() == b""  # it had been idle for the longest time
            assert ask(first) == ask(third) == ""
            assert server.connections == 3

    testing.run(main, network=True)


def test_busy_connection_gives_way_after_its_answer() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        sleep(5)
        return list(hello(environ, start_response))

    def client() -> str:
        with net.connect(*server.address) as stream:
            return ask(stream)

    def main() -> None:
        nonlocal server
        server = wsgi.serve(app, HOST, 80, limit=1, keep_alive=100)
        with server:
            assert gather(client, client) == ["close", ""]  # nobody waits behind the second one
            assert now() == pytest.approx(10, abs=0.1)

    server: Any = None
    testing.run(main, network=True)


def test_request_that_comes_as_its_connection_gives_way_is_answered() -> None:
    def main() -> None:
        with (
            wsgi.serve(patient, HOST, 80, limit=2, keep_alive=100) as server,
            net.connect(*server.address) as one,
        ):
            ask(one)
            one.write(GET)
            server._slots.end_one()  # before the fiber of the connection has run again
            assert take(read_some(one))[0].body == HELLO

    testing.run(main, network=True)


def test_nobody_gives_way_before_a_client_comes() -> None:
    def main() -> None:
        with (
            wsgi.serve(hello, HOST, 80, limit=1, keep_alive=100) as server,
            net.connect(*server.address) as one,
        ):
            for _ in range(3):
                assert ask(one) == ""
                sleep(50)

    testing.run(main, network=True)


# what it is told ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"script_name": "app"}, "script_name"),
        ({"script_name": "/app/"}, "script_name"),
        ({"max_header": 0}, "max_header"),
        ({"max_fields": -1}, "max_fields"),
        ({"max_body": -1}, "max_body"),
        ({"keep_alive": 0}, "keep_alive"),
        ({"header_timeout": float("nan")}, "header_timeout"),
        ({"limit": 0}, "limit"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: Any, message: str) -> None:
    def main() -> None:
        with pytest.raises(ValueError, match=message):
            wsgi.serve(hello, HOST, 80, **options)
        net.listen(HOST, 80).close()  # it does not listen any more

    testing.run(main, network=True)


def test_application_must_be_callable() -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="can be called"):
            wsgi.serve("module:app", HOST, 80)  # type: ignore[arg-type]

    testing.run(main, network=True)


def test_address_must_be_named() -> None:
    with pytest.raises(ValueError, match="needs the address"):
        run(wsgi.serve, hello, "", 80)


def test_httptools_missing_is_told_with_the_extra() -> None:
    done = run_python("-c", "import sys; sys.modules['httptools'] = None; import pyfiber.wsgi")
    assert "ImportError: pyfiber.wsgi needs httptools" in done.stderr
    assert 'pip install "pyfiber-engine[wsgi]"' in done.stderr


def test_import_of_pyfiber_leaves_it_alone() -> None:
    done = run_python("-c", "import sys, pyfiber; print('pyfiber.wsgi' in sys.modules)")
    assert done.stdout == "False\n", done.stderr


# the system's network -----------------------------------------------------------------------------


def exchange(stream: net.Stream, data: bytes = LAST) -> bytes:
    stream.write(data)
    return take(read_all(stream))[0].body


def test_server_in_the_system_is_served_by_the_system() -> None:
    def main() -> None:
        with wsgi.serve(hello, HOST, 0) as server:
            url = f"http://{HOST}:{server.address[1]}/"
            assert to_thread(lambda: urllib.request.urlopen(url, timeout=30).read()) == HELLO

    run(main)


@pytest.mark.skipif(not hasattr(standard, "AF_UNIX"), reason="needs Unix sockets")
def test_unix_socket_is_served(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    seen: dict[str, Any] = {}

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.update(environ)
        return list(hello(environ, start_response))

    def main() -> None:
        with wsgi.serve_unix(app, path), net.connect_unix(path) as stream:
            assert exchange(stream) == HELLO

    run(main)
    assert not os.path.exists(path)
    assert seen["REMOTE_ADDR"] == ""
    assert (seen["SERVER_NAME"], seen["SERVER_PORT"]) == ("localhost", "80")


def test_listener_that_is_given_is_served() -> None:
    def main() -> None:
        listener = net.listen(HOST, 0)
        with wsgi.Server(hello, listener) as server, net.connect(*server.address) as stream:
            assert exchange(stream) == HELLO
        assert listener.fileno() == -1

    run(main)


def secured(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    assert (environ["wsgi.url_scheme"], environ["HTTPS"]) == ("https", "on")
    return reading(environ, start_response)


@needs_certificates
@pytest.mark.parametrize("network", [False, True])
def test_tls_is_served(network: bool) -> None:
    ours, theirs = server_context(), client_context()  # made by a process, in real time

    def main() -> None:
        body = b"x" * 200_000
        post = POST + b"Content-Length: 200000\r\nConnection: close\r\n\r\n" + body
        with (
            wsgi.serve(secured, HOST, 0, tls=ours) as server,
            net.connect(*server.address, tls=theirs, server_hostname=NAME) as stream,
        ):
            stream.write(POST + b"Content-Length: 0\r\n\r\n" + post)
            assert [reply.body for reply in replies(read_all(stream))] == [b"", body]

    if network:
        testing.run(main, network=True)
    else:
        run(main)


# the command --------------------------------------------------------------------------------------

PROGRAM = """
import pyfiber

def app(environ, start_response):
    if environ["PATH_INFO"] == "/slow":
        print("asked", flush=True)
        pyfiber.sleep(float(environ["QUERY_STRING"]))
    start_response("200 OK", [])
    return [b"Hello, world!"]
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "service.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def started(*arguments: str) -> Iterator[tuple[Any, standard.socket]]:
    """The process, and a connection to it."""
    with start_python("-m", "pyfiber.wsgi", *arguments) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"serves at 127.0.0.1:(\d+)", line)
            assert found, line
            with standard.create_connection((HOST, int(found[1])), timeout=60) as client:
                yield process, client
        finally:
            process.kill()


on_unix = pytest.mark.skipif(sys.platform == "win32", reason="no signals that a process may send")


@on_unix
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_command_ends_by_a_signal_and_answers_first(program: Path, number: int) -> None:
    with started("service", "--host", HOST, "--port", "0") as (process, client):
        client.sendall(LAST.replace(b" / ", b" /slow?0.2 "))
        assert process.stdout.readline() == "asked\n"
        process.send_signal(number)
        data = b"".join(iter(lambda: client.recv(65536), b""))
        assert take(data)[0].body == HELLO
        assert process.wait(60) == 0


@on_unix
def test_command_ends_at_once_by_a_second_signal(program: Path) -> None:
    arguments = ["--host", HOST, "--port", "0", "--grace", "1000"]
    with started("service:app", *arguments) as (process, client):
        client.sendall(LAST.replace(b" / ", b" /slow?1000 "))
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGTERM)
        with suppress(ConnectionRefusedError, ConnectionResetError):
            while True:  # it has had the first signal when nobody listens any more
                standard.create_connection(client.getpeername(), timeout=60).close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


WHOLE = """
import pyfiber
from pyfiber import service

def ticking(what):
    try:
        pyfiber.sleep(1000)
    finally:
        print("end of the", what, flush=True)

@service.on_start
def start():
    print("start", flush=True)
    service.on_stop(lambda: print("end", flush=True))
    pyfiber.service.background(ticking, "background")

def app(environ, start_response):
    pyfiber.spawn(ticking, "spawned")
    start_response("200 OK", [("Content-Type", "text/event-stream")])
    yield b"event"
    while not service.until_stop(1000):
        pass
    yield b"Hello, world!"
"""


@on_unix
def test_command_ends_all_that_the_application_has_begun(program: Path) -> None:
    (program / "service.py").write_text(WHOLE)
    arguments = ["--host", HOST, "--port", "0", "--grace", "1000"]
    with started("service:app", *arguments) as (process, client):
        client.sendall(LAST)
        assert process.stdout.readline() == "start\n"
        data = b""
        while not data.endswith(b"event\r\n"):
            data += client.recv(1000)
        process.send_signal(signal.SIGTERM)
        data += b"".join(iter(lambda: client.recv(65536), b""))
        assert take(data)[0].body == b"event" + HELLO
        assert process.wait(60) == 0
        lines = process.stdout.read().splitlines()
    assert sorted(lines[:2]) == ["end of the background", "end of the spawned"]
    assert lines[2:] == ["end"]


BLOCKING = """
import threading, time

barrier = threading.Barrier(2)

def app(environ, start_response):
    time.sleep(0.01)
    barrier.wait(60)
    start_response("200 OK", [])
    return [b"Hello, world!"]
"""


@pytest.mark.parametrize("options", [["--patch"], ["--parts", "time,threading"]], ids=" ".join)
def test_command_serves_a_blocking_application_patched(program: Path, options: list[str]) -> None:
    (program / "service.py").write_text(BLOCKING)
    with (
        started(*options, "service", "--host", HOST, "--port", "0") as (_, client),
        standard.create_connection(client.getpeername(), timeout=60) as other,
    ):
        for sock in (client, other):
            sock.sendall(LAST)
        for sock in (client, other):
            data = b"".join(iter(lambda sock=sock: sock.recv(65536), b""))  # type: ignore[misc]
            assert take(data)[0].body == HELLO


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--parts", "nothing", "service"], "there is no part 'nothing'"),
        (["service", "--port", "65536"], "127.0.0.1:65536: a port is a number from 0 to 65535"),
        (["service", "--unix", "no/such/folder"], "cannot serve at no/such/folder: [Errno 2]"),
        (["service", "--certificate", "none"], "cannot use the certificate none: [Errno 2]"),
        ([":app"], "'' is no module's name: MODULE:NAME is needed"),
        (["service", "--host", "h", "--port", "1", "--unix", "p"], "in place of"),
        (["nowhere", "--host", HOST, "--port", "0"], "No module named 'nowhere'"),
        (["service:nothing", "--host", HOST, "--port", "0"], "there is no service:nothing"),
        (["service:__name__", "--host", HOST, "--port", "0"], "no WSGI application"),
    ],
)
def test_command_says_what_is_missing(program: Path, arguments: list[str], message: str) -> None:
    done = run_python("-m", "pyfiber.wsgi", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


# what `python -m pyfiber ps` tells of it ----------------------------------------------------------


def requests_told() -> list[tuple[str, str, float]]:
    """On another thread, as the thread that answers ``ps`` does it."""
    found = to_thread(snapshots.snapshot)
    groups = [group for thread in found["threads"] for group in thread["groups"]]
    return [request for group in groups for request in group["requests"]]


def test_ps_shows_method_path_and_age_of_each_request() -> None:
    go_on = Event()

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        if environ["PATH_INFO"] == "/changed":
            environ["REQUEST_METHOD"] = object()  # type: ignore[assignment]
        go_on.wait()
        return hello(environ, start_response)

    def main() -> None:
        with wsgi.serve(app, HOST, 0) as server, ExitStack() as stack:
            streams = []
            for target in (b"GET /a?secret=1", b"POST /b/c", b"GET /changed"):
                streams.append(stack.enter_context(net.connect(*server.address)))
                streams[-1].write(target + b" HTTP/1.1\r\nHost: a\r\n\r\n")
            while len(told := requests_told()) < 3:
                sleep(0.001)
            shown = sorted(request[:2] for request in told)
            assert shown == [("?", "?"), ("GET", "/a"), ("POST", "/b/c")]
            assert all(0 <= age < 60 for _, _, age in told)
            text = page(to_thread(snapshots.snapshot), os.getpid())
            assert re.search(r"\n      request GET /a for [\d.]+ m?u?s\n", text)
            assert "secret" not in text
            go_on.set()
            for stream in streams:
                stream.read_until(HELLO)
            while requests_told():  # the connections are kept, and answer nothing
                sleep(0.001)

    run(main)


def test_ps_shows_at_most_a_thousand_requests_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_REQUESTS", 2)
    go_on = Event()

    def app(environ: dict[str, Any], start_response: Any) -> Any:
        go_on.wait()
        return hello(environ, start_response)

    def main() -> None:
        with wsgi.serve(app, HOST, 0) as server, ExitStack() as stack:
            for _ in range(5):
                stack.enter_context(net.connect(*server.address)).write(GET)
            while "      and 3 requests more\n" not in page(
                to_thread(snapshots.snapshot), os.getpid()
            ):
                sleep(0.001)
            go_on.set()

    run(main)


def test_command_shows_where_the_application_fails(program: Path) -> None:
    (program / "service.py").write_text("import needed_and_not_there")
    done = run_python("-m", "pyfiber.wsgi", "service")
    assert done.returncode == 1
    assert "import needed_and_not_there" in done.stderr


@pytest.mark.parametrize("options", [[], ["--port", "8000"], ["--host", HOST]], ids=str)
def test_command_listens_here_unless_told_otherwise(options: list[str]) -> None:
    assert place_of(parse([*options, "service"])) == ("127.0.0.1", 8000)


def test_port_alone_is_this_machine_s(program: Path) -> None:
    with started("service", "--port", "0") as (_, client):
        assert client.getpeername()[0] == "127.0.0.1"
