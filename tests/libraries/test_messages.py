"""kombu over Redis, and commands over SSH by paramiko, unchanged, in fibers."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyfiber
from tests.libraries.acts import ACTS, need, play
from tests.libraries.clients import Client
from tests.libraries.services import Service

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # theirs
]


class Kombu:
    """Queues of messages; a connection from kombu's own pool for each act."""

    most = 50

    def __init__(self, connections: Any) -> None:
        self._connections = connections
        self._inside = 0

    @contextlib.contextmanager
    def _queue(self, name: str) -> Iterator[Any]:
        with (
            self._connections.acquire(block=True) as connection,
            connection.SimpleQueue(name, no_ack=name == "gate") as queue,
        ):
            yield queue

    def ask(self, number: int) -> int:
        with self._queue(f"number {number}") as queue:
            queue.put(number)
            message = queue.get(timeout=60)
            message.ack()
            return int(message.payload)

    def wait(self) -> None:
        with self._queue("gate") as queue:
            self._inside += 1
            try:
                queue.get()
            finally:
                self._inside -= 1

    def waiting(self) -> int:
        return self._inside

    def release(self) -> None:
        with self._queue("gate") as queue:
            for _ in range(self._inside):
                queue.put("pass")


@contextlib.contextmanager
def kombu(service: Service) -> Iterator[Client]:
    import kombu as library

    connection = library.Connection(f"redis://127.0.0.1:{service.port}/2")
    pool = connection.Pool(60)
    try:
        yield Kombu(pool)
    finally:
        pool.force_close_all()


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_messages_of_kombu_that(act: Callable[[Client], None], redis_server: Service) -> None:
    need("kombu", "redis")
    with pyfiber.patch():
        play(functools.partial(kombu, redis_server), act)


class Ssh:
    """Commands, each over a channel of one connection, which a thread of paramiko's serves."""

    most = 50

    def __init__(self, client: Any, folder: Path) -> None:
        self._client = client
        self._folder = folder
        self._turn = 0
        folder.mkdir()

    def _run(self, command: str) -> str:
        # The first is kept up to the end. Dropped now, it tells that there is no more input; if its
        # channel is closed by paramiko's own thread meanwhile, that is too late, and sshd hangs up.
        _stdin, output, _ = self._client.exec_command(command)
        with contextlib.closing(output.channel):
            return str(output.read().decode())

    def ask(self, number: int) -> int:
        return int(self._run(f"echo {number}"))

    def wait(self) -> None:
        here = f"{self._folder}/{self._turn}"
        script = f"touch {here}.$$; while [ ! -e {here} ]; do sleep 0.2; done"
        script += f"; rm {here}.$$; echo done"
        assert self._run(script) == "done\n"

    def waiting(self) -> int:
        return len(list(self._folder.glob(f"{self._turn}.*")))

    def release(self) -> None:
        Path(self._folder, str(self._turn)).touch()
        self._turn += 1


@contextlib.contextmanager
def ssh(service: Service, folder: Path) -> Iterator[Client]:
    import paramiko

    with paramiko.SSHClient() as client:
        client.set_missing_host_key_policy(paramiko.AutoAddPolicy())
        client.connect(
            "127.0.0.1",
            service.port,
            service.user,
            key_filename=f"{service.folder}/client",
            allow_agent=False,
            look_for_keys=False,
        )
        yield Ssh(client, folder)


@pytest.mark.slow
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_commands_over_ssh_that(
    act: Callable[[Client], None], ssh_server: Service, tmp_path: Path
) -> None:
    need("paramiko")
    with pyfiber.patch():
        play(functools.partial(ssh, ssh_server, tmp_path / "gate"), act)
        assert threading.active_count() < 50  # it is not threads that wait
