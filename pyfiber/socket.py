"""The standard module ``socket``, whose calls park the running fiber.

Every public name of the standard module is here. In a fiber of a run a call that would block parks
that fiber, and others run; anywhere else it works as in the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket as _standard
import time
from _socket import dup as _dup
from collections.abc import Iterator
from socket import *  # noqa: F403
from typing import TYPE_CHECKING, Any, BinaryIO, Self, TypeAlias

from pyfiber import _engine, dns
from pyfiber.dns import (  # noqa: F401
    getaddrinfo,
    getfqdn,
    gethostbyaddr,
    gethostbyname,
    gethostbyname_ex,
    gethostname,
    getnameinfo,
)

if TYPE_CHECKING:

    class _Native(_standard.socket):
        def _accept(self) -> tuple[int, Any]: ...
        def _accept_as(self, kind: type[Any]) -> tuple[Any, Any]: ...
        def _adopt(self) -> None: ...
        def _check_sendfile_params(self, file: Any, offset: int, count: int | None) -> None: ...
        def _connect(self, address: Any) -> int: ...
        def _set_turns(self) -> None: ...
        def _wait(self, writing: bool) -> None: ...
        def _begin_in_memory(self, end: Any, number: int, internet: bool) -> None: ...
        def _number(self) -> int: ...
        def _resolved(self, address: Any) -> Any: ...

else:
    _Native = _engine._socket_type()

_GLOBAL_DEFAULT_TIMEOUT: Any = _standard._GLOBAL_DEFAULT_TIMEOUT  # type: ignore[attr-defined]

#: Bytes that sendfile() passes to the system at a time.
_AT_A_TIME = 2**30


_UNIX = getattr(_standard, "AF_UNIX", None)
#: Seconds between two tries to connect: the first and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.05


def _pauses() -> Iterator[float]:
    pause = _FIRST_PAUSE
    while True:
        yield pause
        pause = min(2 * pause, _LONGEST_PAUSE)


def _pause(seconds: float) -> None:
    if _engine._running_scheduler() is None:
        time.sleep(seconds)
    else:
        _engine.sleep(seconds)


class socket(_Native):  # type: ignore[no-redef]
    """A ``socket.socket`` whose operations park the running fiber.

    The socket's descriptor never blocks, whatever timeout is set: code that reads from the number
    itself gets BlockingIOError. One fiber may read and one may write at a time, several only from
    datagram sockets and listeners; others get FiberError. When an exception ends ``sendall()``, its
    attribute ``sent`` says how many bytes went.
    """

    __slots__ = ()

    #: Has a bound Unix socket a file? False in a network in memory (pyfiber.testing).
    _has_file = True

    def __init__(
        self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None
    ) -> None:
        super().__init__(family, type, proto, fileno)
        self._adopt()

    def listen(self, *backlog: int) -> None:
        """Listen as the standard method; several fibers may accept() then."""
        super().listen(*backlog)
        self._set_turns()

    def accept(self) -> tuple[socket, Any]:
        """Wait for a connection; return a new socket, and the address of its other end."""
        return self._accept_as(socket)

    def bind(self, address: Any) -> None:
        """Bind as the standard method; a host's name is looked up."""
        super().bind(self._resolved(address))

    def _resolved(self, address: Any) -> Any:
        """Replace a host's name by its numeric address. The native methods call this, too."""
        return dns.resolved(self.family, address)

    def connect(self, address: Any) -> None:
        """Connect to the address; TimeoutError after the socket's timeout.

        The timeout does not limit the look-up of a name; ``pyfiber.timeout()`` does.
        """
        number = self._connect_in_time(address)
        if number:
            raise OSError(number, os.strerror(number))

    def connect_ex(self, address: Any) -> int:
        """As connect(), but returns the error's number, 0 if there is none."""
        try:
            return self._connect_in_time(address)
        except TimeoutError:
            return errno.EAGAIN  # as the standard method

    def _connect_in_time(self, address: Any) -> int:
        """Connect; return the number of an error, or 0.

        The queue of a Unix socket's listener may be full. A blocking connect() would wait then, but
        a non-blocking one fails, and the system does not report when there is room. So this tries
        again after a pause.
        """
        number = self._connect(address)
        timeout = self.gettimeout()
        if number != errno.EAGAIN or timeout == 0 or self.family != _UNIX:
            return number
        end = None if timeout is None else _engine.now() + timeout
        for pause in _pauses():
            left = pause if end is None else end - _engine.now()
            if left <= 0:
                raise TimeoutError("timed out")
            _pause(min(pause, left))
            number = self._connect(address)
            if number != errno.EAGAIN:
                break
        return number

    def dup(self) -> Self:
        """Return a new socket for the same connection."""
        twin = type(self)(self.family, self.type, self.proto, _dup(self.fileno()))
        twin.settimeout(self.gettimeout())
        return twin

    if hasattr(os, "sendfile"):

        def _sendfile_use_sendfile(
            self, file: BinaryIO, offset: int = 0, count: int | None = None
        ) -> int:
            """Send as the standard method, with its checks, fallback and end, but park to wait."""
            self._check_sendfile_params(file, offset, count)
            if self.gettimeout() == 0:
                raise ValueError("non-blocking sockets are not supported")
            try:
                number = file.fileno()
                size = os.fstat(number).st_size
            except (AttributeError, OSError) as exc:
                raise _standard._GiveupOnSendfile(exc) from None  # type: ignore[attr-defined]
            sent = 0
            try:
                while size and (count is None or sent < count):
                    left = _AT_A_TIME if count is None else min(count - sent, _AT_A_TIME)
                    moved = self._send_from(number, offset + sent, left, sent == 0)
                    if not moved:
                        break
                    sent += moved
                return sent
            finally:
                if sent and hasattr(file, "seek"):
                    file.seek(offset + sent)

        def _send_from(self, number: int, offset: int, count: int, first: bool) -> int:
            while True:
                try:
                    return os.sendfile(self.fileno(), number, offset, count)
                except BlockingIOError:
                    self._wait(True)
                except OSError as exc:
                    if first:  # perhaps the system cannot map the file
                        raise _standard._GiveupOnSendfile(exc) from None  # type: ignore[attr-defined]
                    raise


_Ours: TypeAlias = socket  # in this module type checkers take `socket` for the standard class


def _taken_over(other: _standard.socket) -> _Ours:
    """A socket of this module with the descriptor of a standard one, which has none any more."""
    timeout = other.gettimeout()
    family, kind, proto = other.family, other.type, other.proto
    ours = _Ours(family, kind, proto, other.detach())
    ours.settimeout(timeout)
    return ours


def socketpair(*args: Any, **kwargs: Any) -> tuple[socket, socket]:  # type: ignore[no-redef]
    """Return two connected sockets."""
    if (network := _engine._network()) is not None:
        return network._socketpair(socket, *args, **kwargs)  # type: ignore[no-any-return]
    left, right = _standard.socketpair(*args, **kwargs)
    return _taken_over(left), _taken_over(right)


def fromfd(fd: int, family: int, type: int, proto: int = 0) -> socket:  # type: ignore[no-redef]
    """Return a socket for a duplicate of the descriptor."""
    ours = _Ours(family, type, proto, _dup(fd))
    return ours


if hasattr(_standard, "fromshare"):

    def fromshare(info: bytes) -> socket:
        """Return a socket that another process has shared."""
        return socket(0, 0, 0, info)  # type: ignore[arg-type]


def create_server(address: Any, **kwargs: Any) -> socket:  # type: ignore[no-redef]
    """Return a listening TCP socket, bound to the address."""
    if (network := _engine._network()) is not None:
        return network._create_server(address, **kwargs)  # type: ignore[no-any-return]
    place = dns.resolved(kwargs.get("family", _standard.AF_INET), address)
    ours = _taken_over(_standard.create_server(place, **kwargs))
    ours._set_turns()  # type: ignore[attr-defined]
    return ours


def create_connection(  # type: ignore[no-redef]
    address: tuple[str, int],
    timeout: float | None = _GLOBAL_DEFAULT_TIMEOUT,
    source_address: Any = None,
    *,
    all_errors: bool = False,
) -> socket:
    """Return a socket connected to the first address of the host that answers."""
    failures: list[Exception] = []
    host, port = address
    for family, kind, proto, _, place in getaddrinfo(host, port, 0, _standard.SOCK_STREAM):
        try:
            ours = socket(family, kind, proto)
        except OSError as exc:
            failures.append(exc)
            continue
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(ours.close)
            try:
                if timeout is not _GLOBAL_DEFAULT_TIMEOUT:
                    ours.settimeout(timeout)
                if source_address:
                    ours.bind(source_address)
                ours.connect(place)
            except OSError as exc:
                failures.append(exc)
            else:
                on_failure.pop_all()
                return ours
    try:
        if all_errors and failures:
            raise ExceptionGroup("create_connection failed", failures)
        raise failures[-1] if failures else OSError("getaddrinfo returns an empty list")
    finally:
        failures.clear()  # the tracebacks of the failures refer to this frame
