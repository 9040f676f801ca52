"""Each program of examples/ that uses sockets serves, asks, and ends as it should."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.io.certificates import HOST as NAME
from tests.io.certificates import certificate
from tests.support.examples import EXAMPLES, example_in_child, run_example

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the source tree")


@contextlib.contextmanager
def serving(name: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server, and its port; it ends with Ctrl-C."""
    server = example_in_child(name, "--port", "0", *arguments)
    try:
        assert server.stdout
        yield server, int(server.stdout.readline().rpartition(":")[2])
    finally:
        server.kill()
        server.communicate()


# chat ---------------------------------------------------------------------------------------------


def enter(port: int, name: str, tls: ssl.SSLContext | None = None) -> Any:
    """A member of the chat: a file to read and write lines."""
    with contextlib.ExitStack() as stack:
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        if tls:
            sock = stack.enter_context(tls.wrap_socket(sock, server_hostname=NAME))
        file = sock.makefile("rw", encoding="utf-8", newline="\n")
    say(file, name)
    return file


def say(file: Any, text: str) -> None:
    file.write(text + "\n")
    file.flush()


def test_chat_passes_on_what_is_said() -> None:
    with serving("chat.py") as (_, port), enter(port, "ann") as ann:
        assert ann.readline() == "Your name? * ann is here, of 1\n"
        with enter(port, "bob") as bob:
            assert bob.readline() == "Your name? * bob is here, of 2\n"
            assert ann.readline() == "* bob is here, of 2\n"
            say(bob, "hello, everybody")
            assert ann.readline() == bob.readline() == "bob: hello, everybody\n"
            with enter(port, "bob") as other:
                assert other.readline() == "Your name? Another one, please.\n"
                assert other.readline() == ""
        assert ann.readline() == "* bob has left\n"


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_chat_ends_with_ctrl_c_though_somebody_is_there() -> None:
    with serving("chat.py") as (server, port), enter(port, "ann") as ann:
        ann.readline()
        server.send_signal(signal.SIGINT)
        assert server.communicate(timeout=60)[0] == "good night\n"
        assert server.returncode == 0
        assert ann.readline() == ""


def test_chat_with_tls() -> None:
    context = ssl.create_default_context(cafile=certificate())
    both = certificate(), certificate()
    with serving("chat.py", "--tls", *both) as (_, port), enter(port, "ann", context) as ann:
        assert ann.readline() == "Your name? * ann is here, of 1\n"
        with enter(port, "bob", context) as bob:
            assert ann.readline() == "* bob is here, of 2\n"
            say(bob, "a secret")
            assert ann.readline() == "bob: a secret\n"
        assert ann.readline() == "* bob has left\n"


# echo ---------------------------------------------------------------------------------------------


def test_echo_answers_its_own_clients() -> None:
    first, last = run_example("echo.py", "--port", "0", "--clients", "3").splitlines()
    assert first.startswith("echo at 127.0.0.1:")
    assert re.fullmatch(r"3,000 answers to 3 clients: [\d.]+ seconds", last)


def test_echo_answers_others() -> None:
    with serving("echo.py") as (_, port):
        for text in (b"one", b"two"):
            assert say_all(port, text * 10_000) == text * 10_000


def say_all(port: int, text: bytes) -> bytes:
    """The answer of a server that is told when the question is at its end."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(text)
        sock.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: sock.recv(65536), b""))


# proxy --------------------------------------------------------------------------------------------


def test_proxy_passes_on_both_directions_and_the_end_of_each() -> None:
    """Half of the connection is closed before the answer is begun."""
    with (
        serving("echo.py") as (_, upstream),
        proxy_to(upstream) as (_, port),
    ):
        for text in (b"", b"question", bytes(300_000)):
            assert say_all(port, text) == text


@contextlib.contextmanager
def proxy_to(upstream: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    proxy = example_in_child(
        *("proxy.py", f"127.0.0.1:{upstream}", "--listen", "127.0.0.1:0"), stderr=subprocess.PIPE
    )
    try:
        assert proxy.stdout
        listens, _, leads_to = proxy.stdout.readline().partition(" leads to ")
        assert leads_to == f"127.0.0.1:{upstream}\n"
        yield proxy, int(listens.rpartition(":")[2])
    finally:
        proxy.kill()
        proxy.communicate()


def test_proxy_tells_of_a_server_that_is_not_there_and_goes_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    with proxy_to(port) as (proxy, listens):
        for _ in range(2):
            with contextlib.suppress(OSError):
                assert say_all(listens, b"text") == b""
            assert proxy.stderr
            assert "refused" in proxy.stderr.readline()


def test_proxy_refuses_what_is_no_address() -> None:
    assert "expected HOST:PORT" in run_example("proxy.py", "example.org", code=2)


# fetch --------------------------------------------------------------------------------------------


def test_fetch_waits_for_no_page_for_ever() -> None:
    lines = run_example("fetch.py", "--patience", "0.5", "--parallel", "50").splitlines()
    assert len(lines) == 50
    for page, line in enumerate(lines):
        size = format(1000 * len(f"page {page}\n"), ",")
        wanted = r"TimeoutError: .*0\.5 seconds" if page == 13 else rf"200 OK, {size} bytes, .*"
        assert re.fullmatch(rf"http://127.0.0.1:\d+/{page}: {wanted}", line), line


def test_fetch_speaks_with_other_servers(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(5000))
    handler = functools.partial(Quiet, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = "http://127.0.0.1:{1}/".format(*server.server_address)
        lines = run_example(
            *("fetch.py", "--patience", "30", url + "file", url + "none", "http://127.0.0.1:1/")
        ).splitlines()
        server.shutdown()
        thread.join()
    assert lines[0].startswith(url + "file: 200 OK, 5,000 bytes, ")
    assert lines[1].startswith(url + "none: 404 File not found, ")
    assert lines[2].startswith("http://127.0.0.1:1/: ConnectionRefusedError: ")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


# port scanner -------------------------------------------------------------------------------------


def test_port_scanner_finds_who_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
        first, last = max(1, port - 20), min(65535, port + 20)
        printed = run_example(
            "port_scanner.py", "--ports", f"{first}-{last}", "--patience", "0.5"
        ).splitlines()
    assert f"{port:5} open" in printed
    assert re.fullmatch(rf"{last - first + 1} ports, \d+ open: [\d.]+ seconds", printed[-1])


def test_port_scanner_shows_a_greeting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def greet() -> None:
            with listener.accept()[0] as sock:
                sock.sendall(b"220 hello\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        port = listener.getsockname()[1]
        printed = run_example("port_scanner.py", "--ports", str(port), "--patience", "30")
        thread.join()
    assert printed.startswith(f"{port:5} open  220 hello\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--host", "192.0.2.1"), "your own machine only"),
        (("--ports", "0-10"), "from 1 to 65535"),
        (("--ports", "10-9"), "from 1 to 65535"),
    ],
)
def test_port_scanner_refuses(arguments: tuple[str, ...], text: str) -> None:
    assert text in run_example("port_scanner.py", *arguments, code=2)
