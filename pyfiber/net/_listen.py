"""``listen()``, ``listen_unix()`` and ``Listener``: sockets that listen at a given address."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from typing import TYPE_CHECKING, Any, Final, Self

from pyfiber import dns, socket
from pyfiber.net._connect import set_options
from pyfiber.net._stream import Stream, check_port, place

if TYPE_CHECKING:
    from types import TracebackType

#: Connections that may wait to be accepted; the system may allow fewer.
BACKLOG: Final = 1024

#: Errors of accept() that mean that one connection was lost before it was accepted (accept(2)). The
#: listener goes on.
_OF_ONE: Final = frozenset(
    getattr(errno, name)
    for name in [
        "ECONNABORTED",
        "ECONNRESET",  # on Windows
        "ENOTCONN",  # on Wine
        "EPROTO",
        "ENETDOWN",
        "ENOPROTOOPT",
        "EHOSTDOWN",
        "ENONET",
        "EHOSTUNREACH",
        "ENETUNREACH",
        "EPERM",
    ]
    if hasattr(errno, name)
)


def listen(host: str, port: int, *, backlog: int = BACKLOG, reuse_port: bool = False) -> Listener:
    """Listen for connections by TCP at this address; return a Listener. Port 0 picks a free port.

    The host must be named: "127.0.0.1" or "::1" is for programs of this machine only, "0.0.0.0" is
    for all of IPv4, "::" for all of IPv6 (and not for IPv4). Of a name's addresses the first one is
    used. ``backlog`` is how many connections may wait to be accepted. With ``reuse_port`` other
    processes that use this option as well get their share of the connections.

    ValueError if there is no host, or no such port; OSError if the system refuses.
    """
    if not host:
        raise ValueError(
            'listen() needs the address to listen at: "127.0.0.1" for this machine only, '
            '"0.0.0.0" for any IPv4 address, "::" for any of IPv6'
        )
    check_port(port)
    info = dns.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_PASSIVE)[0]
    sock = socket.socket(*info[:3])
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(sock.close)
        sock.settimeout(None)
        _set_options(sock, reuse_port)
        sock.bind(info[4])
        sock.listen(backlog)
        on_failure.pop_all()
    return Listener(sock)


def _set_options(sock: socket.socket, reuse_port: bool) -> None:
    if os.name == "nt":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)  # type: ignore[attr-defined]
    else:  # allow the port while connections of an earlier server are in TIME_WAIT
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if reuse_port:
        if not hasattr(socket, "SO_REUSEPORT"):
            raise ValueError("reuse_port: this system has no such option")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    set_options(sock)  # accepted connections inherit the options


def listen_unix(path: str | bytes, *, backlog: int = BACKLOG, mode: int = 0o600) -> Listener:
    """Listen for connections at a Unix socket, which is removed when the Listener is closed.

    ``mode`` says who may connect: by default this user only. If the path is a socket to which
    nobody listens any more, that is replaced; OSError if somebody listens, or if the path is
    another kind of file.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(sock.close)
        sock.settimeout(None)
        has_file: bool = sock._has_file  # type: ignore[attr-defined]
        try:
            sock.bind(path)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE or not has_file or not _is_abandoned(path):
                raise
            os.unlink(path)
            sock.bind(path)
        file = None
        if has_file:
            made = os.stat(path)
            file = path, made.st_dev, made.st_ino
            os.chmod(path, mode)  # nobody can connect before listen()
        sock.listen(backlog)
        on_failure.pop_all()
    return Listener(sock, file)


def _is_abandoned(path: str | bytes) -> bool:
    """Whether the path is a socket to which nobody listens."""
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        return probe.connect_ex(path) == errno.ECONNREFUSED


class Listener:
    """Accepts connections; ``listen()`` and ``listen_unix()`` make a Listener.

    Several fibers may accept at a time. ``for stream in listener`` accepts until the listener is
    closed.
    """

    __slots__ = ("__weakref__", "_file", "socket")

    def __init__(
        self, sock: socket.socket, file: tuple[str | bytes, int, int] | None = None
    ) -> None:
        self.socket = sock
        self._file = file  # of a Unix socket: path, device, inode

    def accept(self) -> Stream:
        """Wait for a connection, and return it as a Stream.

        Connections that are lost before they are accepted are skipped. OSError: EMFILE or ENFILE
        when there is no descriptor for the connection, which stays in the queue for a later call;
        EBADF when the listener is closed.
        """
        while True:
            try:
                sock, peer = self.socket.accept()
            except OSError as exc:
                if exc.errno not in _OF_ONE:
                    raise
            else:
                sock.settimeout(None)
                return Stream(sock, peer)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Stream:
        try:
            return self.accept()
        except OSError:
            if self.fileno() < 0:
                raise StopIteration from None
            raise

    @property
    def address(self) -> Any:
        """The address: (host, port, ...), or a path. OSError when the listener is closed."""
        return self.socket.getsockname()

    def fileno(self) -> int:
        """The descriptor's number; -1 when the listener is closed."""
        return self.socket.fileno()

    def close(self) -> None:
        """Accept no more. Connections that have not been accepted are refused."""
        self.socket.close()
        file, self._file = self._file, None
        if file is not None:
            self._remove(*file)

    def _remove(self, path: str | bytes, device: int, inode: int) -> None:
        with contextlib.suppress(OSError):
            found = os.stat(path)
            if (found.st_dev, found.st_ino) == (device, inode):
                os.unlink(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "closed" if self.fileno() < 0 else f"at {place(self.address)}"
        return f"<pyfiber.net.Listener {where}>"
