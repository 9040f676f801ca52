"""The part ``ssl``: connections made in a fiber are pyfiber.ssl's; standard ones park a fiber."""

from __future__ import annotations

import _socket
import ssl
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import pyfiber.ssl
from pyfiber._engine import Lock
from pyfiber._patch._record import Record
from pyfiber._patch._socket import Deadline

# made in a fiber ----------------------------------------------------------------------------------


class SharedSSLSocket(pyfiber.ssl.SSLSocket):
    """A TLS connection on which several fibers take turns, as threads may."""

    def _take_over(self, sock: Any) -> None:
        super()._take_over(sock)  # type: ignore[misc]
        self.settimeout(self.gettimeout())  # sock.detach() has made the descriptor block: undo that
        self._set_turns()  # type: ignore[attr-defined]


SharedSSLSocket.__name__ = SharedSSLSocket.__qualname__ = "SSLSocket"
SharedSSLSocket.__module__ = "pyfiber.ssl"

_Standard = ssl.SSLSocket
_wrap: Any = SharedSSLSocket._wrap  # type: ignore[attr-defined]
_theirs_create: Any = _Standard._create.__func__  # type: ignore[attr-defined]


def _create(
    cls: type[Any],
    sock: Any,
    server_side: bool = False,
    do_handshake_on_connect: bool = True,
    suppress_ragged_eofs: bool = True,
    server_hostname: Any = None,
    context: Any = None,
    session: Any = None,
) -> Any:
    options = (server_side, do_handshake_on_connect, suppress_ragged_eofs, server_hostname)
    if cls is not _Standard or type(sock) is _Standard:
        return _theirs_create(cls, sock, *options, context=context, session=session)
    return _wrap(sock, *options, context=context, session=session)


# made elsewhere -----------------------------------------------------------------------------------

#: The lock of each socket for writing. OpenSSL requires that a write which could not be completed
#: is repeated before the next one begins.
_turns: WeakKeyDictionary[Any, Lock] = WeakKeyDictionary()


def _in_turn(sock: Any, writing: bool) -> Any:
    return _turns.setdefault(sock, Lock()) if writing else nullcontext()


def _parking(name: str, late: str, *, in_turn: bool) -> Callable[..., Any]:
    """A replacement that tries the standard method with a timeout of 0, and parks if it must wait.

    ``late`` is the text of a TimeoutError. ``in_turn``: the method may write, and takes the lock.
    """
    theirs: Any = getattr(_Standard, name)

    def inside(self: Any, *args: Any, **kwargs: Any) -> Any:
        deadline = Deadline(self)
        if name == "do_handshake" and (args or kwargs):
            block = args[0] if args else kwargs["block"]
            if block and deadline.timeout == 0:
                deadline.timeout = None
            args, kwargs = (), {}
        if deadline.timeout == 0 or self._sslobj is None:
            return theirs(self, *args, **kwargs)
        with _in_turn(self, in_turn):
            while True:
                try:
                    return _without_waiting(self, theirs, args, kwargs)
                except ssl.SSLWantReadError:
                    writing = False
                except ssl.SSLWantWriteError:
                    writing = True
                try:
                    deadline.wait(self, writing)
                except TimeoutError:
                    raise TimeoutError(late) from None

    inside.__name__ = name
    return inside


def _without_waiting(sock: Any, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    timeout = _socket.socket.gettimeout(sock)
    _socket.socket.settimeout(sock, 0)
    try:
        return method(sock, *args, **kwargs)
    finally:
        if sock.fileno() >= 0:
            _socket.socket.settimeout(sock, timeout)


METHODS = [
    _parking("read", "The read operation timed out", in_turn=False),
    _parking("write", "The write operation timed out", in_turn=True),
    _parking("send", "The write operation timed out", in_turn=True),
    _parking("do_handshake", "_ssl.c: The handshake operation timed out", in_turn=True),
    _parking("unwrap", "The read operation timed out", in_turn=True),
]


def apply(record: Record) -> None:
    """Apply this part; the record undoes it."""
    record.method(_Standard, "_create", _create)
    for inside in METHODS:
        record.method(_Standard, inside.__name__, inside)
    record.notes.append("connections made in a fiber are pyfiber.ssl's")
