"""What reports say of fibers that wait for descriptors."""

from __future__ import annotations

import contextlib
import io
import os
import re
import socket as plain
import sys

import pytest

import pyfiber
from pyfiber import run, socket, spawn, wait_readable, yield_now
from pyfiber.debug import dump_fibers
from tests.support.gil import PATCH_NEEDS_IT, needs_gil

pytestmark = pytest.mark.skipif(os.name == "nt", reason="descriptors of pipes are no handles there")


def report_of(fn: object, *args: object) -> str:
    """What a report says of one fiber that waits in fn(*args)."""

    def main() -> str:
        fiber = spawn(fn, *args)  # type: ignore[arg-type]
        yield_now()
        file = io.StringIO()
        dump_fibers(file)
        fiber.cancel()
        fiber.join()
        found = re.search(r"waits to .*", file.getvalue())
        assert found, file.getvalue()
        return found[0]

    return run(main)


@pytest.mark.parametrize(
    "setting",
    ["default timeout", pytest.param("patch", marks=needs_gil(PATCH_NEEDS_IT))],
)
def test_report_leaves_a_foreign_socket_blocking(setting: str) -> None:
    """It belongs to a library, and the flag to the connection: a copy of the number has it, too."""
    ours, theirs = plain.socketpair()
    with ours, theirs:
        patch = pyfiber.patch(socket=True) if setting == "patch" else None
        try:
            if patch is None:
                plain.setdefaulttimeout(60)
            report = report_of(wait_readable, ours.fileno())
        finally:
            plain.setdefaulttimeout(None)
            if patch is not None:
                patch.undo()
        assert os.get_blocking(ours.fileno())
    assert "waits to read from fd" in report


def test_report_of_a_read_names_the_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        with socket.create_connection((host, port)) as sock:
            number = sock.fileno()
            assert report_of(sock.recv, 1) == (
                f"waits to read from fd {number}, a TCP connection to {host}:{port}"
            )
            sock.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                while True:
                    sock.send(bytes(100_000))
            sock.settimeout(None)
            assert report_of(sock.sendall, b"x") == (
                f"waits to write to fd {number}, a TCP connection to {host}:{port}"
            )
        with listener.accept()[0]:
            assert report_of(listener.accept) == (
                f"waits to read from fd {listener.fileno()}, a TCP listener on {host}:{port}"
            )


def test_report_of_a_datagram_socket_names_its_address() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        assert report_of(sock.recvfrom, 1).endswith(f", a UDP socket on 127.0.0.1:{port}")


def test_report_of_a_unix_socket_names_its_path(tmp_path: object) -> None:
    path = f"{tmp_path}/here"
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path)
        sock.listen()
        assert report_of(sock.accept).endswith(f", a Unix listener on {path}")


def test_report_of_a_wait_for_a_pipe() -> None:
    reader, writer = os.pipe()
    assert report_of(wait_readable, reader) == f"waits to read from fd {reader}, a pipe"
    os.close(reader)
    os.close(writer)


@pytest.mark.skipif(sys.platform != "linux", reason="eventfd is Linux's")
def test_report_of_a_wait_for_an_eventfd() -> None:
    number = os.eventfd(0)
    assert report_of(wait_readable, number) == f"waits to read from fd {number}, eventfd"
    os.close(number)
