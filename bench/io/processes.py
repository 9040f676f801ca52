"""Starts a server and its load, and ends both whatever happens."""

from __future__ import annotations

import importlib
import json
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any

from ..model import ROOT, Unavailable
from . import hello, programs
from .certificate import make_certificate
from .subjects import ECHO, HTTP, WSGI, C, Subject

#: Descriptors that a process needs beside those of its connections.
SPARE_DESCRIPTORS = 100
#: Seconds until a process that does not answer is given up.
PATIENCE = 60.0
#: A message to a server, and the end of the answer to it.
Exchange = tuple[bytes, bytes]
EXCHANGES: dict[str, Exchange] = {
    ECHO: (b"is anybody there?", b"is anybody there?"),
    HTTP: (hello.REQUEST, hello.RESPONSE),
    WSGI: (hello.REQUEST, hello.END + hello.BODY),
}

Lines = subprocess.Popen[str]


class Ended(Exception):
    """A server or the load ended before its time, or does not work; the text says why."""


def require(subject: Subject, *, tls: bool) -> None:
    """Refuse a server that cannot run here, and say why."""
    if sys.platform != "linux":
        raise Unavailable("the load generator needs Linux: epoll, and a process's clock")
    for name in subject.needs + (subject.needs_for_tls if tls else ()):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise Unavailable(f"`import {name}` fails: {error}") from None
    if tls:
        programs.require_tls()


def require_descriptors(connections: int) -> None:
    """Allow this process and its children so many connections each, or refuse."""
    if sys.platform == "win32":
        return
    import resource

    wanted = connections + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise Unavailable(
            f"needs {wanted} descriptors, {hard} are allowed: raise it with `ulimit -n {wanted}`"
        )
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextmanager
def process(command: Sequence[str]) -> Iterator[tuple[Lines, IO[bytes]]]:
    """Run a process that talks in lines; yields it and the file of its errors, and kills it."""
    with TemporaryFile() as errors:
        child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            cwd=ROOT,
        )
        with child:
            try:
                yield child, errors
            finally:
                child.kill()


def next_line(child: Lines, errors: IO[bytes]) -> str:
    """The next line that a process prints."""
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        child.wait(PATIENCE)
        raise Ended(last_words(errors) or f"{child.args!r} ended without a word")
    return line.strip()


def last_words(errors: IO[bytes]) -> str:
    """The last line of a process's errors."""
    errors.seek(0)
    lines = errors.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""


# The server -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Server:
    """A running server."""

    process: Lines
    port: int
    certificate: Path | None
    speaks: str
    #: The id of the process that serves.
    pid: int
    #: A complete answer of the server.
    answer: bytes = b""

    def open(self) -> socket.socket:
        """Open a blocking connection to the server."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        if self.certificate is None:
            return plain
        context = ssl.create_default_context(cafile=str(self.certificate))
        return context.wrap_socket(plain, server_hostname="127.0.0.1")


def server_command(subject: Subject, certificate: Path | None, compute: bool) -> list[str]:
    """The command that starts a server."""
    if subject.name == C:
        return [str(programs.build(programs.ECHO)), *([str(certificate)] if certificate else [])]
    command = [sys.executable, "-m", "bench.io.serve", subject.name]
    if certificate is not None:
        command += ["--certificate", str(certificate)]
    if subject.speaks != ECHO:
        command += ["--speaks", subject.speaks]
    return [*command, "--compute"] if compute else command


@contextmanager
def server(subject: Subject, *, tls: bool = False, compute: bool = False) -> Iterator[Server]:
    """Run a server in a new process; yields it once it has answered a message."""
    require(subject, tls=tls)
    with ExitStack() as stack:
        certificate = None
        if tls:
            certificate = make_certificate(Path(stack.enter_context(TemporaryDirectory())))
        command = server_command(subject, certificate, compute)
        child, errors = stack.enter_context(process(command))
        port = int(next_line(child, errors))
        running = Server(child, port, certificate, subject.speaks, child.pid)
        answer = greet(running, errors)
        yield replace(running, answer=answer, pid=worker_of(child.pid))


def worker_of(pid: int) -> int:
    """The process that serves: the child of `pid` if `pid` is a supervisor, else `pid`."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else pid


def greet(running: Server, errors: IO[bytes]) -> bytes:
    """Send one message on a connection, close it, and return the answer.

    This shows that the server works, and makes asyncio's later reads much faster: after the
    first connection has ended, malloc keeps the large buffer that asyncio allocates for each read.
    """
    message, expected = EXCHANGES[running.speaks]
    try:
        answer = answer_to(message, expected, running)
    except OSError as error:
        answer = b""
        problem = str(error)
    else:
        problem = f"it answers {answer!r} to {message!r}"
    if not answer.endswith(expected):
        raise Ended(f"the server does not work: {problem}; {last_words(errors)}")
    return answer


def answer_to(message: bytes, expected: bytes, running: Server) -> bytes:
    """Send a message; return the answer up to the expected end."""
    answer = b""
    with running.open() as connection:
        connection.sendall(message)
        while not answer.endswith(expected) and (received := connection.recv(4096)):
            answer += received
    return answer


# The load ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """The work that a server has to do."""

    connections: int = 1
    messages: int = 0
    #: Bytes of a message that is not an HTTP request.
    size: int = 128
    #: The run ends after so many seconds if the messages are not done before.
    seconds: float = 20.0
    #: How many messages are sent before the measurement begins.
    warm_up: int = 0
    #: Open a connection for each message.
    short: bool = False


@dataclass(frozen=True)
class RunningLoad:
    """A load generator whose connections are open and warm."""

    process: Lines
    errors: IO[bytes]

    def measure(self) -> dict[str, Any]:
        """Let the generator send its messages; return its report."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(next_line(self.process, self.errors))
        return found


def load_command(load: Load, running: Server) -> list[str]:
    """The command that starts the load generator."""
    command = [
        str(programs.build(programs.LOAD)),
        *("--port", str(running.port), "--pid", str(running.pid)),
        *("--connections", str(load.connections), "--size", str(load.size)),
        *("--messages", str(load.messages), "--seconds", str(load.seconds)),
        *("--warm-up", str(load.warm_up)),
    ]
    if running.certificate is not None:
        command += ["--tls", str(running.certificate)]
    if running.speaks != ECHO:
        message, end = EXCHANGES[running.speaks]
        answer = running.answer.decode("ascii")
        command += ["--message", message.decode("ascii")]
        command += ["--answer", answer, "--tail", str(len(end))]
    return [*command, "--short"] if load.short else command


@contextmanager
def loading(load: Load, running: Server) -> Iterator[RunningLoad]:
    """Run a load generator that is ready to begin; its connections stay open until the end."""
    with process(load_command(load, running)) as (child, errors):
        ready = next_line(child, errors)
        assert ready == "ready", ready
        yield RunningLoad(child, errors)
