"""The part ``socket``: the class ``socket.socket`` itself.

A socket that is made in a fiber is one of pyfiber.socket's. A socket that is made elsewhere, or is
of a program's own subclass, keeps its class. Each of its operations in a fiber is tried without
waiting; if it would have waited, the fiber parks until the descriptor is ready.
"""

from __future__ import annotations

import _socket
import contextlib
import errno
import importlib
import os
import socket
from collections.abc import Callable
from typing import Any

import pyfiber.socket
from pyfiber import _engine, dns
from pyfiber._engine import now, wait_readable, wait_writable
from pyfiber._memory import end_of, is_in_memory
from pyfiber._patch._record import Record
from pyfiber.socket import _pause, _pauses

_Base = _socket.socket
_Standard = socket.socket
_unix = getattr(socket, "AF_UNIX", None)

#: The flag that makes a single call not wait. 0 where the system or the engine does not support
#: that: then an operation is tried only when the socket is reported ready.
_AT_ONCE: int = getattr(socket, "MSG_DONTWAIT", 0) if hasattr(_engine, "_at_once") else 0

# made in a fiber ----------------------------------------------------------------------------------


class Shared(pyfiber.socket.socket):
    """A socket on which several fibers take turns, as threads may on a standard one."""

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._set_turns()  # type: ignore[attr-defined]

    def accept(self) -> tuple[Shared, Any]:
        """Accept a connection, whose socket can be shared as well."""
        made, address = self._accept_as(Shared)  # type: ignore[attr-defined]
        made._set_turns()
        return made, address

    # The methods below wait in Python code, which the mark set by _set_turns() does not reach.
    # _call_patched() has a cancellation raised in them once, as the mark does in native methods.

    def _resolved(self, address: Any) -> Any:
        return _engine._call_patched(super()._resolved, address)  # type: ignore[misc]

    def connect(self, address: Any) -> None:
        """Connect to the address."""
        _engine._call_patched(super().connect, address)

    def connect_ex(self, address: Any) -> int:
        """Connect; returns the number of an error, or 0."""
        number: int = _engine._call_patched(super().connect_ex, address)
        return number

    def detach(self) -> int:
        """Give the descriptor away. Without a timeout it blocks then, as a standard one's does."""
        blocks = self.gettimeout() is None
        number: int = super().detach()
        if blocks and number >= 0 and os.name != "nt":
            with contextlib.suppress(OSError):  # the program has closed the descriptor itself
                os.set_blocking(number, True)
        return number


Shared.__name__ = Shared.__qualname__ = "socket"
Shared.__module__ = "pyfiber.socket"


def new(cls: type[Any], *args: Any, **kwargs: Any) -> Any:
    """``socket.socket.__new__`` in a fiber.

    A class of the program's own is the standard one with additions, except that the network in
    memory of a run under test has its sockets as well.
    """
    if cls is _Standard:
        return Shared.__new__(Shared, *args, **kwargs)
    network = _engine._network()
    if network is None or network._class_for(cls, args, kwargs) is cls:
        return _Base.__new__(cls)
    return Shared.__new__(_shared(cls), *args, **kwargs)


_shared_classes: dict[type[Any], type[Any]] = {}


def _shared(cls: type[Any]) -> type[Any]:
    """A subclass of a class of the program's own whose sockets are of Shared as well."""
    if cls not in _shared_classes:
        _shared_classes[cls] = type(cls.__name__, (cls, Shared), {"__module__": cls.__module__})
    return _shared_classes[cls]


def socketpair(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    """``socket.socketpair()`` in a fiber: the system makes it, but for a network in memory."""
    network = _engine._network()
    if network is None:
        pair: tuple[Any, Any] = _theirs_socketpair(*args, **kwargs)
        return pair
    left, right = network._socketpair(Shared, *args, **kwargs)
    left._set_turns()
    right._set_turns()
    return left, right


_theirs_socketpair = _engine._outside(socket.socketpair)


def set_flags(fd: Any, cmd: int, arg: Any = 0, /) -> Any:
    """``fcntl.fcntl()`` in a fiber: no process inherits a socket in memory, whatever is asked."""
    number = fd if isinstance(fd, int) else fd.fileno()
    if not is_in_memory(number):
        return _theirs_fcntl(fd, cmd, arg)
    if end_of(number) is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if cmd not in (fcntl.F_GETFD, fcntl.F_SETFD):
        raise _engine.FiberError(
            f"fcntl() with command {cmd} reaches sockets of the system only, and this one is in "
            "memory: call methods of the socket, or run the test without network="
        )
    return fcntl.FD_CLOEXEC if cmd == fcntl.F_GETFD else 0


fcntl: Any = importlib.import_module("fcntl") if os.name != "nt" else None
_theirs_fcntl: Any = None if fcntl is None else _engine._outside(fcntl.fcntl)

# made elsewhere -----------------------------------------------------------------------------------


class Deadline:
    """The deadline of one operation; the time begins when the operation first has to wait."""

    __slots__ = ("end", "timeout")

    def __init__(self, sock: socket.socket) -> None:
        self.timeout = _Base.gettimeout(sock)
        self.end: float | None = None

    def left(self) -> float | None:
        """The seconds left, or None for no limit; TimeoutError when there are none."""
        if self.timeout is None:
            return None
        if self.end is None:
            self.end = now() + self.timeout
            return self.timeout
        left = self.end - now()
        if left <= 0:
            raise TimeoutError("timed out")
        return left

    def wait(self, sock: socket.socket, writing: bool) -> None:
        """Park the fiber until the socket is ready."""
        number = sock.fileno()
        if number < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        left = self.left()
        try:
            (wait_writable if writing else wait_readable)(number, left)
        except TimeoutError:
            raise TimeoutError("timed out") from None


def _perform(
    sock: socket.socket,
    method: Callable[..., Any],
    writing: bool,
    *args: Any,
    has_flag: bool = True,
    deadline: Deadline | None = None,
) -> Any:
    if not _AT_ONCE:
        deadline = deadline or Deadline(sock)
        if deadline.timeout != 0:
            deadline.wait(sock, writing)
        return method(sock, *args)
    while True:
        try:
            return _engine._at_once(sock, method, has_flag, *args)
        except BlockingIOError:
            deadline = deadline or Deadline(sock)
            if deadline.timeout == 0:
                raise
        deadline.wait(sock, writing)


# The functions below replace methods of the standard class, and do the same in a fiber. Objects of
# pyfiber.socket's class have their own methods.


def recv(self: socket.socket, bufsize: int, flags: int = 0, /) -> Any:
    return _perform(self, _Base.recv, False, bufsize, flags | _AT_ONCE)


def recv_into(self: socket.socket, buffer: Any, nbytes: int = 0, flags: int = 0) -> Any:
    return _perform(self, _Base.recv_into, False, buffer, nbytes, flags | _AT_ONCE)


def recvfrom(self: socket.socket, bufsize: int, flags: int = 0, /) -> Any:
    return _perform(self, _Base.recvfrom, False, bufsize, flags | _AT_ONCE)


def recvfrom_into(self: socket.socket, buffer: Any, nbytes: int = 0, flags: int = 0) -> Any:
    return _perform(self, _Base.recvfrom_into, False, buffer, nbytes, flags | _AT_ONCE)


def recvmsg(self: socket.socket, bufsize: int, ancbufsize: int = 0, flags: int = 0, /) -> Any:
    return _perform(self, _Base.recvmsg, False, bufsize, ancbufsize, flags | _AT_ONCE)


def recvmsg_into(self: socket.socket, buffers: Any, ancbufsize: int = 0, flags: int = 0, /) -> Any:
    return _perform(self, _Base.recvmsg_into, False, buffers, ancbufsize, flags | _AT_ONCE)


def send(self: socket.socket, data: Any, flags: int = 0, /) -> Any:
    return _perform(self, _Base.send, True, data, flags | _AT_ONCE)


def sendto(self: socket.socket, data: Any, *where: Any) -> Any:
    if not 1 <= len(where) <= 2:
        return _Base.sendto(self, data, *where)  # raises TypeError
    flags = where[0] if len(where) == 2 else 0
    address = dns.resolved(self.family, where[-1])
    return _perform(self, _Base.sendto, True, data, flags | _AT_ONCE, address)


def sendmsg(
    self: socket.socket,
    buffers: Any,
    ancdata: Any = (),
    flags: int = 0,
    address: Any = None,
    /,
) -> Any:
    buffers, ancdata = list(buffers), list(ancdata)  # iterators last for one try only
    if address is None:
        return _perform(self, _Base.sendmsg, True, buffers, ancdata, flags | _AT_ONCE)
    there = dns.resolved(self.family, address)
    return _perform(self, _Base.sendmsg, True, buffers, ancdata, flags | _AT_ONCE, there)


def sendall(self: socket.socket, data: Any, flags: int = 0, /) -> None:
    deadline = Deadline(self)
    sent = 0
    with memoryview(data) as view, view.cast("B") as left:
        try:
            while True:
                sent += _perform(
                    self, _Base.send, True, left[sent:], flags | _AT_ONCE, deadline=deadline
                )
                if sent >= len(left):
                    return
        except BaseException as exc:
            exc.sent = sent  # type: ignore[attr-defined]  # as in pyfiber.socket
            raise


def _accept(self: socket.socket) -> Any:
    return _perform(self, _Base._accept, False, has_flag=False)  # type: ignore[attr-defined]


def bind(self: socket.socket, address: Any, /) -> None:
    _Base.bind(self, dns.resolved(self.family, address))


def connect(self: socket.socket, address: Any, /) -> None:
    number = _connected(self, address)
    if number:
        raise OSError(number, os.strerror(number))


def connect_ex(self: socket.socket, address: Any, /) -> int:
    try:
        return _connected(self, address)
    except TimeoutError:
        return errno.EAGAIN


_IN_PROGRESS = (errno.EINPROGRESS, errno.EINTR, errno.EWOULDBLOCK)


def _connected(sock: socket.socket, address: Any) -> int:
    """Connect; returns the number of an error, or 0."""
    address = dns.resolved(sock.family, address)
    deadline = Deadline(sock)
    if deadline.timeout == 0 or not _AT_ONCE:
        return _Base.connect_ex(sock, address)
    number = _begin_connect(sock, address)
    if number == errno.EAGAIN and sock.family == _unix:
        number = _connected_when_there_is_room(sock, address, deadline)
    elif number in _IN_PROGRESS:
        deadline.wait(sock, True)
        number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    return number


def _begin_connect(sock: socket.socket, address: Any) -> int:
    number: int = _engine._at_once(sock, _Base.connect_ex, False, address)
    return number


def _connected_when_there_is_room(sock: socket.socket, address: Any, deadline: Deadline) -> int:
    """Try again until the queue of a Unix socket's listener has room: see pyfiber.socket."""
    for pause in _pauses():
        left = deadline.left()
        _pause(pause if left is None else min(pause, left))
        number = _begin_connect(sock, address)
        if number != errno.EAGAIN:
            break
    return number


def _sendfile_use_sendfile(
    self: socket.socket, file: Any, offset: int = 0, count: int | None = None
) -> int:
    """Have ``sendfile()`` read and send: the system's own call would block the thread."""
    if self.gettimeout() != 0 and _is_regular(file):
        file.seek(offset)  # sendfile() ignores the position of the file
        raise socket._GiveupOnSendfile  # type: ignore[attr-defined]
    sent: int = _theirs_sendfile(self, file, offset, count)
    return sent


def _is_regular(file: Any) -> bool:
    import stat

    try:
        return stat.S_ISREG(os.fstat(file.fileno()).st_mode)
    except (AttributeError, OSError):
        return False


_theirs_sendfile: Any = getattr(_Standard, "_sendfile_use_sendfile", None)

METHODS: list[Any] = [
    recv,
    recv_into,
    recvfrom,
    recvfrom_into,
    recvmsg,
    recvmsg_into,
    send,
    sendto,
    sendmsg,
    sendall,
    _accept,
    bind,
    connect,
    connect_ex,
    _sendfile_use_sendfile,
]


def apply(record: Record) -> None:
    """Apply this part; the record undoes it."""
    for inside in METHODS:
        if hasattr(_Standard, inside.__name__):
            record.method(_Standard, inside.__name__, inside)
    record.method(_Standard, "__new__", new)
    record.function(socket, "socketpair", socketpair)
    if fcntl is not None:
        record.function(fcntl, "fcntl", set_flags)
    record.notes.append("sockets made in a fiber are pyfiber.socket's")
