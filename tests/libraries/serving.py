"""gunicorn for tests, as its users start it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.libraries.acts import need
from tests.libraries.services import PATIENCE, answers, end, free_port, until


class Server:
    """A running gunicorn."""

    def __init__(self, folder: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.port = port
        self.process = process

    def get(self, path: str, **options: str) -> bytes:
        with contextlib.closing(self.connect()) as connection:
            return self.ask(connection, path)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)

    def ask(self, connection: http.client.HTTPConnection, path: str, body: object = None) -> bytes:
        connection.request("GET" if body is None else "POST", path, body)  # type: ignore[arg-type]
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == 200, (answer.status, text, self.log())
        return text

    def exchange(self, *parts: bytes) -> bytes:
        """What comes to these bytes, up to the end of the connection."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE) as sock:
            for part in parts:
                sock.sendall(part)
            return b"".join(iter(lambda: sock.recv(65536), b""))

    def environ(self, target: str, fields: bytes = b"") -> dict[str, Any]:
        """What the test's application tells of a request with these fields."""
        head = f"GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n".encode()
        answer = self.exchange(head + fields + b"\r\n")
        assert answer.startswith(b"HTTP/1.1 200 "), (answer, self.log())
        told: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
        return told

    def log(self) -> str:
        return Path(self.folder, "log").read_text()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def appears(self, name: str) -> None:
        until(lambda: Path(self.folder, name).exists())


@contextlib.contextmanager
def serving(
    folder: Path,
    *options: str,
    worker: str = "Worker",
    program: str = "served:app",
    **more: str,
) -> Iterator[Server]:
    """gunicorn, with pyfiber's worker, that serves a program of this folder or of the tree."""
    need("gunicorn")
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-k", f"pyfiber.gunicorn.{worker}"]
    command += ["--bind", f"127.0.0.1:{port}", "--no-control-socket", *options, program]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), str(folder)]), **more}
    with open(folder / "log", "w") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
    server = Server(folder, port, process)
    try:
        until(lambda: process.poll() is not None or answers(port))
        assert process.poll() is None, server.log()
        yield server
    finally:
        end(process)
