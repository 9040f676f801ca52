"""The client: finds the debug socket of a process, or gets into it, and asks for a snapshot."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import time
from typing import Any, cast

from pyfiber._debug import places, remote
from pyfiber._debug.places import User
from pyfiber._debug.server import peer_of
from pyfiber._debug.snapshot import PROTOCOL, Snapshot
from pyfiber._debug.text import cut
from pyfiber._words import clean

#: Characters of a process's error message that are shown.
LONGEST_ERROR = 500
#: Bytes. The server bounds its answers; this bounds what is read from some other program.
LONGEST_ANSWER = 64 << 20


class Failed(Exception):
    """Why there is no answer, as a sentence."""


class Connection:
    """A connection to one process."""

    def __init__(self, sock: socket.socket, pid: int, user: User) -> None:
        self.sock = sock
        self.pid = pid
        self.user = user

    def ask(self, since: float = 0.0) -> Snapshot:
        """Ask what the fibers of the process do; ``since``: see snapshot(). Raises Failed."""
        question = {"protocol": PROTOCOL, "since": since}
        try:
            self.sock.sendall(json.dumps(question).encode() + b"\n")
            return read(self.line())
        except TimeoutError:
            raise Failed(
                f"process {self.pid} does not answer within {self.sock.gettimeout():g} s: a C "
                "function may hold the interpreter's lock all that time"
            ) from None
        except OSError:
            raise Failed(f"process {self.pid} has ended, or has closed its socket") from None

    def line(self) -> bytes:
        parts: list[bytes] = []
        size = 0
        while not parts or not parts[-1].endswith(b"\n"):
            parts.append(self.sock.recv(1 << 20))
            size += len(parts[-1])
            if not parts[-1]:
                raise ConnectionResetError
            if size > LONGEST_ANSWER:
                raise Failed(f"process {self.pid} does not come to the end of its answer")
        return b"".join(parts)

    def close(self) -> None:
        self.sock.close()


def read(line: bytes) -> Snapshot:
    """Parse an answer. Failed if it is malformed, an error, or of another version."""
    try:
        answer: dict[str, Any] = json.loads(line)
        protocol = answer["protocol"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise Failed("what the process answers cannot be understood") from None
    if "error" in answer:
        raise Failed(f"the process refuses: {cut(clean(str(answer['error'])), LONGEST_ERROR)}")
    if protocol != PROTOCOL:
        raise Failed("the process uses another version of pyfiber: ask it with that one")
    return cast(Snapshot, answer)


# finding it ---------------------------------------------------------------------------------------


def owner_of(pid: int) -> User:
    """The process's user; Failed if there is no such process, or it is somebody else's."""
    if pid <= 0 or not places.is_alive(pid):
        raise Failed(f"there is no process {pid}")
    own = os.geteuid()
    if sys.platform != "linux":
        return User(own, os.getegid())
    # The owner of /proc/PID is root for a process that has changed its user.
    if (uids := status_of(pid, "Uid")) is None or (gids := status_of(pid, "Gid")) is None:
        raise Failed(f"there is no process {pid}")
    user = User(int(uids.split()[1]), int(gids.split()[1]))  # the effective ones
    if user.uid != own and own != 0:
        raise Failed(f"process {pid} belongs to another user: ask as that user, or with sudo")
    return user


def status_of(pid: int, name: str) -> str | None:
    """The value of a line in Linux's /proc/PID/status; None if there is none."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="replace") as file:
            return next(line for line in file if line.startswith(f"{name}:")).partition(":")[2]
    except (OSError, StopIteration):
        return None


def connected(pid: int, user: User, seconds: float) -> socket.socket | None:
    """Connect to the socket of that process. None if it has none; raises Failed."""
    try:
        with user.acting():
            sock = connected_in(places.folders(user.uid), pid, user.uid, seconds)
    except OSError as exc:
        raise Failed(f"cannot act as user {user.uid}, whose process {pid} is: {exc}") from None
    if sock is None and user.is_other():  # the process may have changed its user since
        own = os.geteuid()
        sock = connected_in(places.folders(own), pid, own, seconds)
    return sock


def connected_in(folders: list[str], pid: int, uid: int, seconds: float) -> socket.socket | None:
    """Do what connected() does, in these folders of that user, with the caller's own rights."""
    for folder in folders:
        if not places.is_own(folder, uid):
            continue
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(seconds)
        try:
            sock.connect(places.socket_in(folder, pid))
            if peer_of(sock)[0] in (pid, None):
                return sock
        except (BlockingIOError, TimeoutError):
            sock.close()
            raise Failed(
                f"process {pid} does not take the question: others wait for an answer already"
            ) from None
        except OSError:
            pass
        sock.close()
    return None


def signalled(pid: int, user: User, signum: int, seconds: float) -> socket.socket:
    """Send the signal that debug_on_signal() waits for; connect once there is a socket."""
    send(pid, user, signum)
    deadline = time.monotonic() + seconds
    while (sock := connected(pid, user, seconds)) is None:
        if time.monotonic() > deadline:
            raise Failed(f"process {pid} has not opened its socket within {seconds:g} s")
        time.sleep(0.02)
    return sock


def send(pid: int, user: User, signum: int) -> None:
    """Send the signal to a process that handles it, not to a new one of that number; or Failed."""
    handle = None
    try:
        handle = handle_of(pid)
        if owner_of(pid) != user:
            raise Failed(f"there is no process {pid} any more")
        if not catches(pid, signum):
            name = signal.Signals(signum).name
            raise Failed(
                f"process {pid} does not handle {name}, which would end it: nothing was sent"
            )
        if handle is None:
            os.kill(pid, signum)
        else:
            signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        raise Failed(f"there is no process {pid} any more") from None
    finally:
        if handle is not None:
            os.close(handle)


def handle_of(pid: int) -> int | None:
    """A pidfd, which never refers to a later process of the number; None where there is none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as exc:
        if exc.errno == errno.ESRCH:
            raise
        return None  # an old kernel, or a sandbox


def catches(pid: int, signum: int) -> bool:
    """Has the process a handler for the signal? True where the system does not say."""
    caught = status_of(pid, "SigCgt")
    return caught is None or bool(int(caught, 16) >> (signum - 1) & 1)


def uses_pyfiber(pid: int) -> bool:
    """Has the process loaded the engine? True where the system does not say."""
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            return any("/pyfiber/_engine." in line for line in file)
    except OSError:
        return True


def connect(pid: int, signum: int | None = None, seconds: float = 10.0) -> Connection:
    """Connect to that process in whichever way works. Raises Failed."""
    if not hasattr(socket, "AF_UNIX"):
        raise Failed("this needs Unix sockets, which Python does not have on this system")
    user = owner_of(pid)
    sock = connected(pid, user, seconds)
    if sock is None and signum is not None:
        sock = signalled(pid, user, signum, seconds)
    if sock is None and not uses_pyfiber(pid):
        raise Failed(f"process {pid} does not use pyfiber")
    if sock is None and remote.is_possible():
        try:
            sock = remote.enter(pid, user, seconds)
        except remote.Refused as exc:
            raise Failed(f"{exc}; {HOW}") from None
    if sock is None:
        raise Failed(f"process {pid} has no debug socket: {HOW}")
    return Connection(sock, pid, user)


HOW = (
    "start it with PYFIBER_DEBUG=1, or let it call pyfiber.debug.debug_on_signal(signal.SIGUSR1) "
    "and give --signal USR1 here"
    + ("" if remote.is_possible() else "; from Python 3.14 on it needs neither")
)
