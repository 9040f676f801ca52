"""TLS with the openssl command at the other end, which renegotiates and changes keys when told."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber import run, socket, spawn, wait_readable
from tests.io.certificates import HOST, certificate
from tests.io.tls_pairs import client_context

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command is not there"
)

pty = pytest.importorskip("pty", reason="the command's output is seen at once on a terminal only")


class Server:
    """``openssl s_server``; its commands are letters at the beginning of what it reads."""

    def __init__(self, option: str) -> None:
        openssl = shutil.which("openssl")
        assert openssl is not None
        made = certificate()
        terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [openssl, "s_server", "-accept", "127.0.0.1:0", "-cert", made, "-key", made, option],
            stdin=subprocess.PIPE,
            stdout=theirs,
            stderr=subprocess.STDOUT,
        )
        os.close(theirs)
        self.output = os.fdopen(terminal, "rb", buffering=0)

    def wait_for(self, word: bytes) -> bytes:
        """The next line that begins so; other fibers run meanwhile."""
        line = b""
        while not line.startswith(word):
            wait_readable(self.output, 30)
            line = self.output.readline()
        return line

    def tell(self, text: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.wait(10)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.output.close()


@contextlib.contextmanager
def connected(option: str) -> Iterator[tuple[Server, Any]]:
    server = Server(option)
    try:
        port = int(server.wait_for(b"ACCEPT").split(b":")[-1])
        sock = socket.create_connection(("127.0.0.1", port), timeout=30)
        with client_context().wrap_socket(sock, server_hostname=HOST) as wrapped:
            yield server, wrapped
    finally:
        server.end()


@pytest.mark.parametrize(
    ("option", "command"),
    [("-tls1_2", b"r"), ("-tls1_3", b"K"), ("-tls1_3", b"k")],
    ids=["renegotiation", "key update both ways", "key update"],
)
def test_reader_answers_what_the_other_end_wants_in_between(option: str, command: bytes) -> None:
    def main() -> None:
        with connected(option) as (server, sock):
            for i in range(3):
                reader = spawn(sock.recv, 100)
                server.tell(command + b"\n")
                if command == b"r":
                    assert reader.join(0.01) is False
                server.wait_for(b"SSL_do_handshake -> 1")
                server.tell(b"data %d\n" % i)
                assert reader.result() == b"data %d\n" % i
                sock.sendall(b"answer %d\n" % i)
                server.wait_for(b"answer %d" % i)

    run(main)


def test_writer_goes_on_while_the_reader_renegotiates() -> None:
    text = b"x" * 63 + b"\n"

    def write(sock: Any) -> None:
        for _ in range(100):
            sock.sendall(text)
        sock.sendall(b"the end\n")

    def main() -> None:
        with connected("-tls1_2") as (server, sock):
            reader, writer = spawn(sock.recv, 100), spawn(write, sock)
            server.tell(b"r\n")
            server.wait_for(b"the end")
            writer.result()
            server.tell(b"data\n")
            assert reader.result() == b"data\n"

    run(main)
