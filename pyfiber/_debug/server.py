"""The server: a thread that accepts clients, and one for each client, which answers questions."""

from __future__ import annotations

import _socket
import _thread
import atexit
import contextlib
import json
import math
import os
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from pyfiber import _engine, _native
from pyfiber._debug import places
from pyfiber._debug.snapshot import PROTOCOL, snapshot

#: Bytes of a question.
LONGEST_QUESTION = 4096
#: Seconds that a client has to take its answer.
PATIENCE = 30.0
#: Seconds between two tries to accept a client when the system refuses one.
PAUSE = 0.2
#: Clients at a time; each has a thread while it is connected.
MOST_CLIENTS = 8
#: Seconds of silence after which a client, whose process may be stopped, gives way to a new one.
LONGEST_SILENCE = 30.0


class Server:
    """The socket of this process, once it is open."""

    def __init__(self) -> None:
        self.path: str | None = None
        self.pid = 0
        self.listener: _socket.socket | None = None
        #: The clients, and since when each is silent: infinity while it is answered. A forked child
        #: closes its copies.
        self.connections: dict[_socket.socket, float] = {}
        self.lock = _thread.allocate_lock()
        self.hooked = False

    def open(self) -> None:
        """Listen and answer from now on; OSError if that is impossible."""
        if not self.lock.acquire(blocking=False):
            return  # a signal handler, while open() or close() is under way
        try:
            if self.listener is not None:
                return
            folder = places.own_folder()
            places.clean(folder)
            self.path = places.socket_in(folder, os.getpid())
            self.pid = os.getpid()
            self.hook()
            self.listener = listening(self.path)
            try:
                _native.start_new_thread(self.accept, (self.listener,))
            except BaseException:
                self.listener.close()
                self.listener = None
                places.remove(self.path)
                raise
        finally:
            self.lock.release()

    def hook(self) -> None:
        if not self.hooked:
            self.hooked = True
            atexit.register(self.close)
            os.register_at_fork(after_in_child=self.after_fork)

    def close(self) -> None:
        """Stop listening, and remove the socket's file."""
        with self.lock:
            listener, self.listener = self.listener, None
            if listener is None or self.path is None:
                return
            if self.pid == os.getpid():
                places.remove(self.path)
            with contextlib.suppress(OSError):
                listener.shutdown(_socket.SHUT_RDWR)  # ends accept() in the thread
            listener.close()

    def after_fork(self) -> None:
        """In a forked child, which has none of the threads: open a new socket for the child."""
        self.lock = _thread.allocate_lock()
        connections, self.connections = self.connections, {}
        for connection in connections:
            connection.close()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.close()
            with contextlib.suppress(OSError, RuntimeError):  # the child has no socket then
                self.open()

    def accept(self, listener: _socket.socket) -> None:
        """What the thread runs: accept clients, asleep in the kernel until one comes."""
        _engine._only_watches()
        while True:
            try:
                number, _ = listener._accept()  # type: ignore[attr-defined]
            except OSError:
                if self.listener is not listener:
                    return  # closed
                time.sleep(PAUSE)  # there may be no descriptor left: do not spin until there is
                continue
            connection = _socket.socket(fileno=number)
            if not is_allowed(connection) or not self.has_room():
                refuse(connection)
                continue
            self.connections[connection] = time.monotonic()
            try:
                _native.start_new_thread(self.serve, (connection,))
            except RuntimeError:  # there may be no more threads
                self.connections.pop(connection, None)
                refuse(connection)

    def has_room(self) -> bool:
        """May there be one client more? The one that has been silent for longest may be dropped."""
        clients = list(self.connections.items())
        if len(clients) < MOST_CLIENTS:
            return True
        connection, since = min(clients, key=lambda client: client[1])
        if time.monotonic() - since < LONGEST_SILENCE:
            return False
        self.connections.pop(connection, None)
        with contextlib.suppress(OSError):
            connection.shutdown(_socket.SHUT_RDWR)  # which ends its thread
        return True

    def serve(self, connection: _socket.socket) -> None:
        try:
            serve(connection, self.note)
        finally:
            self.connections.pop(connection, None)

    def note(self, connection: _socket.socket, since: float) -> None:
        if connection in self.connections:
            self.connections[connection] = since


def listening(path: str) -> _socket.socket:
    """A listening socket that only this user can connect to."""
    places.remove(path)  # left by a process that had this number before
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    listener.settimeout(None)  # not the program's default timeout
    try:
        listener.bind(path)
        os.chmod(path, 0o600)  # before anybody can connect
        listener.listen(16)
    except BaseException:
        listener.close()
        raise
    return listener


def peer_of(connection: Any) -> tuple[int | None, int | None]:
    """The process and the user on the other side; None: the system does not say."""
    if hasattr(_socket, "SO_PEERCRED"):
        found = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        pid, uid, _ = struct.unpack("3i", found)
        return pid, uid
    if hasattr(_socket, "LOCAL_PEERCRED"):  # struct xucred of macOS and the BSDs
        _, uid = struct.unpack_from("Ii", connection.getsockopt(0, _socket.LOCAL_PEERCRED, 76))
        return None, uid
    return None, None


def refuse(connection: _socket.socket) -> None:
    """Send the refusal and close, without waiting for the client."""
    reason = f"it has {MOST_CLIENTS} clients already, or belongs to another user"
    error = {"protocol": PROTOCOL, "error": reason}
    with contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.sendall(json.dumps(error).encode() + b"\n")
    connection.close()


def is_allowed(connection: _socket.socket) -> bool:
    """Whether the client is of this user, or root's."""
    try:
        _, uid = peer_of(connection)
    except OSError:
        return False
    return uid in (os.geteuid(), 0, None)


def serve(
    connection: _socket.socket,
    note: Callable[[_socket.socket, float], object] = lambda connection, since: None,
) -> None:
    """Answer the questions of one client until it leaves.

    ``note(connection, since)`` is called with the time since which the client is silent, and with
    infinity while it is answered.
    """
    try:
        connection.settimeout(None)  # not the program's default timeout
        if _engine._only_watches():
            while (question := line_of(connection)) is not None:
                note(connection, math.inf)
                connection.settimeout(PATIENCE)
                connection.sendall(answer(question) + b"\n")
                connection.settimeout(None)  # the next question may come late
                note(connection, time.monotonic())
    except OSError:
        pass  # the client has left
    except Exception:
        if sys.stderr is not None:
            sys.excepthook(*sys.exc_info())
    finally:
        connection.close()


def line_of(connection: _socket.socket) -> bytes | None:
    """The next question; None at the end, or if the question is too long."""
    line = b""
    while not line.endswith(b"\n"):
        more = connection.recv(LONGEST_QUESTION)
        line += more
        if not more or len(line) > LONGEST_QUESTION:
            return None
    return line


def answer(question: bytes) -> bytes:
    """The answer to one question, as JSON."""
    try:
        asked = json.loads(question)
        if asked["protocol"] != PROTOCOL:
            raise ValueError(f"this process speaks version {PROTOCOL}")
        found: Any = snapshot(float(asked.get("since", 0)))
    except Exception as exc:
        found = {"protocol": PROTOCOL, "error": f"{type(exc).__name__}: {exc}"}
    return json.dumps(found).encode()


server = Server()
