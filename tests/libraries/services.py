"""Servers that the tests of libraries talk to: Debian's own, each in a folder of its own.

Each function is a context manager: it starts a server on 127.0.0.1, waits until it answers, gives
what a client needs to know of it, and stops it at the end. `Missing`: the server is not installed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import os
import pathlib
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator

#: Seconds that a server may take to answer, or to end.
PATIENCE = 60


class Missing(Exception):
    """The server is not installed here; the message says what to install."""


@dataclasses.dataclass
class Service:
    """Where a server listens, and who may enter."""

    port: int
    user: str = ""
    password: str = ""
    database: str = ""
    folder: str = ""
    process: subprocess.Popen[bytes] | None = None
    host: str = "127.0.0.1"


def _program(name: str, package: str, *places: str) -> str:
    found = shutil.which(name)
    for place in places:
        found = found or next(map(str, sorted(pathlib.Path("/").glob(f"{place}/{name}"))), None)
    if found is None:
        raise Missing(f"{name} is not installed (Debian: {package})")
    return found


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number: int = sock.getsockname()[1]
        return number


@contextlib.contextmanager
def _folder(owner: str) -> Iterator[str]:
    """A new folder that belongs to this user, in a place that everybody may enter."""
    folder = tempfile.mkdtemp(prefix="pyfiber-service-", dir="/tmp")
    try:
        if os.geteuid() == 0:
            entry = pwd.getpwnam(owner)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as(user: str, *command: str) -> list[str]:
    """The command, by that user; some servers refuse to be root."""
    if os.geteuid() != 0:
        return list(command)
    return ["runuser", "-u", user, "--", *command]


def _environment() -> dict[str, str]:
    """What a server gets: a sanitizer that is loaded into this process is not for it."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def _prepare(command: list[str], folder: str) -> None:
    """Run a program that makes a server's folder."""
    subprocess.run(
        command,
        check=True,
        cwd=folder,
        env=_environment(),
        stdout=subprocess.DEVNULL,
        timeout=2 * PATIENCE,
    )


def _owner(user: str) -> str:
    return user if os.geteuid() == 0 else getpass.getuser()


def answers(port: int) -> bool:
    """Does somebody accept connections there?"""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
        return True
    return False


def _await(process: subprocess.Popen[bytes], ready: Callable[[], bool], log: str) -> None:
    end = time.monotonic() + PATIENCE
    while not ready():
        if process.poll() is not None or time.monotonic() > end:
            told = pathlib.Path(log).read_text(errors="replace") if os.path.exists(log) else ""
            raise RuntimeError(f"{process.args!r} does not answer; it says:\n{told[-2000:]}")
        time.sleep(0.05)


def until(holds: Callable[[], bool]) -> None:
    """Look again and again, in real time: what is looked at is another process."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to end, and wait; TimeoutExpired if it had to be killed."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


@contextlib.contextmanager
def _running(
    command: list[str], ready: Callable[[], bool], log: str, farewell: int = signal.SIGTERM
) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "ab") as told:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            env=_environment(),
            start_new_session=True,
        )
    try:
        _await(process, ready, log)
        yield process
    finally:
        for number in (farewell, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
                break


@contextlib.contextmanager
def redis() -> Iterator[Service]:
    """A Redis that keeps nothing."""
    program = _program("redis-server", "redis-server")
    with tempfile.TemporaryDirectory(prefix="pyfiber-service-") as folder:
        port = free_port()
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        command += ["--save", "", "--appendonly", "no", "--maxclients", "5000"]
        with _running(command, lambda: answers(port), f"{folder}/log") as process:
            yield Service(port, folder=folder, process=process)


@contextlib.contextmanager
def postgres() -> Iterator[Service]:
    """A PostgreSQL with a database `test`, for 300 connections."""
    places = ("usr/lib/postgresql/*/bin",)
    program = _program("postgres", "postgresql", *places)
    initdb = _program("initdb", "postgresql", *places)
    with _folder("postgres") as folder:
        port = free_port()
        data = f"{folder}/data"
        secret = f"{folder}/password"
        pathlib.Path(secret).write_text("secret\n")
        os.chmod(secret, 0o644)
        made = [initdb, "-D", data, "-U", "tester", f"--pwfile={secret}", "--no-sync"]
        made += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
        _prepare(_as("postgres", *made), folder)
        settings = {
            "port": port,
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": folder,
            "max_connections": 300,
            "fsync": "off",
            "shared_buffers": "32MB",
        }
        command = [program, "-D", data]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        log = f"{folder}/log"
        ready = lambda: "ready to accept connections" in pathlib.Path(log).read_text()  # noqa: E731
        # SIGINT: it ends its connections and itself at once.
        with _running(_as("postgres", *command), ready, log, signal.SIGINT) as process:
            yield Service(port, "tester", "secret", "postgres", folder, process)


@contextlib.contextmanager
def mariadb() -> Iterator[Service]:
    """A MariaDB with a database `test`, for 300 connections."""
    program = _program("mariadbd", "mariadb-server", "usr/sbin")
    install = _program("mariadb-install-db", "mariadb-server")
    owner = _owner("mysql")
    with _folder(owner) as folder:
        port = free_port()
        data, log, first = f"{folder}/data", f"{folder}/log", f"{folder}/first.sql"
        options = ["--no-defaults", f"--datadir={data}"]
        made = [install, *options, "--skip-test-db", "--auth-root-authentication-method=normal"]
        _prepare(_as(owner, *made), folder)
        pathlib.Path(first).write_text(
            "create user tester@'127.0.0.1' identified by 'secret';\n"
            "create database test;\n"
            "grant all on test.* to tester@'127.0.0.1';\n"
        )
        os.chmod(first, 0o644)
        command = [program, *options, f"--port={port}", "--bind-address=127.0.0.1"]
        command += [f"--socket={folder}/socket", f"--pid-file={folder}/pid", f"--init-file={first}"]
        command += ["--max-connections=300", "--skip-name-resolve", "--innodb-flush-method=nosync"]
        command += ["--innodb-buffer-pool-size=16M"]
        with _running(_as(owner, *command), lambda: answers(port), log) as process:
            yield Service(port, "tester", "secret", "test", folder, process)


@contextlib.contextmanager
def sshd() -> Iterator[Service]:
    """An SSH server that lets the user of this process in with the key `folder`/client."""
    program = _program("sshd", "openssh-server", "usr/sbin")
    keygen = _program("ssh-keygen", "openssh-client")
    os.makedirs("/run/sshd", exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pyfiber-service-") as folder:
        port = free_port()
        for name in ("host", "client"):
            key = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{name}"]
            _prepare(key, folder)
        config = pathlib.Path(folder, "config")
        config.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\n"
            f"AuthorizedKeysFile {folder}/client.pub\nPidFile {folder}/pid\n"
            "StrictModes no\nUsePAM no\nPermitRootLogin yes\nPasswordAuthentication no\n"
            "MaxStartups 200\nMaxSessions 1000\n"
            "SetEnv SHLVL=9\n"  # so that bash does not read the user's ~/.bashrc each time
        )
        command = [program, "-D", "-e", "-f", str(config)]
        with _running(command, lambda: answers(port), f"{folder}/log") as process:
            user = pwd.getpwuid(os.geteuid()).pw_name
            yield Service(port, user, folder=folder, process=process)
