"""``Stream``: a connection as a stream of bytes, with a buffer for bytes that were read ahead."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, TypeAlias

from pyfiber import _engine, socket
from pyfiber._engine import FiberError, _load

if TYPE_CHECKING:
    from ssl import SSLContext
    from types import TracebackType

#: Buffers of at most so many bytes in total are joined: that is quicker than passing a list.
SMALL: Final = 16384

#: Buffers that are passed to one system call.
MOST_BUFFERS: Final = 1024

Buffer: TypeAlias = bytes | bytearray | memoryview


class IncompleteRead(EOFError):
    """The stream has ended too early. The bytes before are in ``partial``, and not read again."""

    def __init__(self, partial: bytes, wanted: int | bytes) -> None:
        what = f"{wanted} bytes" if isinstance(wanted, int) else repr(wanted)
        super().__init__(f"the stream has ended after {len(partial)} bytes, before {what}")
        self.partial = partial
        self.wanted = wanted

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.partial, self.wanted)


class LimitExceeded(ValueError):
    """No separator within the limit. The bytes read are in ``partial``, and not read again."""

    def __init__(self, partial: bytes, separator: bytes, limit: int) -> None:
        super().__init__(f"no {separator!r} within {limit} bytes")
        self.partial = partial
        self.separator = separator
        self.limit = limit

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.partial, self.separator, self.limit)


if TYPE_CHECKING:

    class _Reader:
        socket: socket.socket
        _reading: bool
        _buffered: int

        def read(self, n: int = 65536) -> bytes: ...
        def read_exactly(self, n: int, /) -> bytes: ...
        def read_until(self, separator: Buffer, limit: int = 65536) -> bytes: ...
        def __iter__(self) -> Self: ...
        def __next__(self) -> bytes: ...

else:
    _Reader = _engine._reader_type(IncompleteRead, LimitExceeded)


class Stream(_Reader):
    """A connection, whose bytes are read and written in order.

    ``Stream(sock)`` takes over a connected socket of ``pyfiber.socket``; ``connect()`` and
    ``Listener.accept()`` return Streams. One fiber may read and one may write at a time; another
    one is refused with FiberError. A read that is cancelled or times out loses nothing: the next
    read returns what has come. An exception that ends a write has an attribute ``sent``, the number
    of bytes that were sent. Errors of the connection are OSError: ConnectionResetError, and so on.

    ``socket`` is the socket, for options. Reading from the socket would miss bytes buffered here.
    """

    __slots__ = ("__weakref__", "_peer", "_writing")

    def __init__(self, sock: socket.socket, peer: Any = None) -> None:
        self.socket = sock
        self._writing = False
        self._peer = sock.getpeername() if peer is None else peer

    def _refuse(self, does: str) -> NoReturn:
        raise FiberError(
            f"another fiber {does} this stream: only one may at a time, or their data would be "
            "mixed"
        )

    # Writing

    def write(self, data: Buffer | Iterable[Buffer]) -> None:
        """Write all of the data: bytes, or several buffers, of which large ones are not copied."""
        if self._writing:
            self._refuse("writes to")
        self._writing = True
        try:
            if isinstance(data, (bytes, bytearray, memoryview)):
                self.socket.sendall(data)
            else:
                self._write_all([memoryview(buffer).cast("B") for buffer in data])
        finally:
            self._writing = False

    def _write_all(self, views: list[memoryview]) -> None:
        size = sum(map(len, views))
        if size <= SMALL:
            self.socket.sendall(b"".join(views))
            return
        sent = first = 0
        try:
            if not self._can_gather():
                for piece in _pieces(views):
                    self.socket.sendall(piece)
                    sent += len(piece)
                return
            while first < len(views):
                went = self.socket.sendmsg(views[first : first + MOST_BUFFERS])
                sent += went
                first = _skip(views, first, went)
        except BaseException as exc:
            exc.sent = sent + getattr(exc, "sent", 0)  # type: ignore[attr-defined]
            raise

    def _can_gather(self) -> bool:
        return not self.is_tls and hasattr(self.socket, "sendmsg")

    def close_write(self) -> None:
        """End the writing: the peer's reads come to their end. Reading goes on.

        With TLS this sends a "close_notify", and the connection below TLS stays open. A peer of TLS
        1.3 may go on writing; a peer of TLS 1.2 answers with its own end.
        """
        if self._writing:
            self._refuse("writes to")
        if not self.is_tls:
            return self.socket.shutdown(socket.SHUT_WR)
        self._writing = True
        try:
            self.socket._end_write()  # type: ignore[attr-defined]
        finally:
            self._writing = False
        return None

    # The connection

    def start_tls(
        self,
        context: SSLContext | bool = True,
        *,
        server_hostname: str | None = None,
        server_side: bool = False,
    ) -> None:
        """Encrypt everything from here on; returns when the handshake is done.

        A ``context`` of True means ``pyfiber.ssl.create_default_context()``, which verifies the
        server's certificate, and that it is for ``server_hostname``. FiberError if there is data
        that was not encrypted and has not been read: somebody may have injected it. From now on, an
        end of the connection without TLS's own end raises ``ssl.SSLEOFError``, because data may
        have been cut off. When the handshake fails, or is cancelled, the connection is closed.
        """
        if self._reading or self._writing:
            self._refuse("uses")
        if self._buffered:
            raise FiberError(
                "start_tls() would take plain data that has come already for encrypted data: read "
                "up to the point where TLS begins, and close the connection if there is more"
            )
        found = context_of(context, server_side)
        self._reading = self._writing = True
        try:
            sock = self.socket = _with_tls(self.socket, found, server_hostname, server_side)
            _shake_hands(sock)
        finally:
            self._reading = self._writing = False

    @property
    def is_tls(self) -> bool:
        """True if the connection is encrypted: ``socket`` is a ``pyfiber.ssl.SSLSocket`` then."""
        return hasattr(self.socket, "do_handshake")

    @property
    def peer(self) -> Any:
        """The address of the other end, as ``socket.getpeername()``: (host, port, ...) or a path.

        The address is available after the connection is lost, too.
        """
        return self._peer

    @property
    def local(self) -> Any:
        """The address of this end. OSError when the stream is closed."""
        return self.socket.getsockname()

    def fileno(self) -> int:
        """The descriptor's number; -1 when the stream is closed."""
        return self.socket.fileno()

    def close(self) -> None:
        """Close the connection; closing twice is fine. Fibers that wait in it get OSError (EBADF).

        With TLS a "close_notify" is sent first: the peer then knows that all has been written. A
        ``with`` block that fails sends none, so that the peer's read fails as well.
        """
        self._close(True)

    def _close(self, complete: bool) -> None:
        if complete and self.is_tls:
            self.socket._say_end()  # type: ignore[attr-defined]
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close(exc is None)

    def __repr__(self) -> str:
        state = ", closed" if self.socket.fileno() < 0 else ", TLS" if self.is_tls else ""
        return f"<pyfiber.net.Stream to {place(self._peer)}{state}>"


def _pieces(views: list[memoryview]) -> Iterator[bytes | memoryview]:
    """Yield large views as they are, since a slow peer would hold copies for long; join others."""
    small: list[memoryview] = []
    size = 0
    for view in views:
        if size + len(view) > SMALL:
            if size:
                yield b"".join(small)
            small, size = [], 0
        if len(view) > SMALL:
            yield view
        else:
            small.append(view)
            size += len(view)
    if size:
        yield b"".join(small)


def _skip(views: list[memoryview], first: int, went: int) -> int:
    """The index of the first view that was not sent as a whole; its sent part is cut off."""
    while first < len(views) and went >= len(views[first]):
        went -= len(views[first])
        first += 1
    if went:
        views[first] = views[first][went:]
    return first


def context_of(tls: SSLContext | bool, server_side: bool) -> SSLContext:
    """The context for an argument ``tls``; ValueError or TypeError if it has none."""
    ssl: Any = _load("pyfiber.ssl")  # slow to import, and not always needed
    if tls is True:
        if server_side:
            raise ValueError(
                "a server needs a certificate: load it into a pyfiber.ssl.SSLContext and pass that"
            )
        tls = ssl.create_default_context()
    if not isinstance(tls, ssl.SSLContext.__base__):  # one of the standard module will do
        raise TypeError(f"expected True or a pyfiber.ssl.SSLContext, not {type(tls).__name__!r}")
    found: SSLContext = tls
    return found


def _with_tls(
    sock: socket.socket, context: SSLContext, server_hostname: str | None, server_side: bool
) -> Any:
    """Wrap the socket in one with TLS, before the handshake."""
    ssl: Any = _load("pyfiber.ssl")
    return ssl.SSLSocket._create(
        sock,
        server_side=server_side,
        server_hostname=None if server_side else server_hostname,
        do_handshake_on_connect=False,
        suppress_ragged_eofs=False,
        context=context,
    )


def _shake_hands(sock: Any) -> None:
    try:
        sock.do_handshake()
    except BaseException:
        sock.close()
        raise


def check_port(port: object) -> None:
    """ValueError for a number that is no port: getaddrinfo() would take its last 16 bits."""
    if isinstance(port, int) and not 0 <= port <= 65535:
        raise ValueError(f"a port is a number from 0 to 65535, not {port}")


def place(address: Any) -> str:
    """An address as text, for messages."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    if isinstance(address, bytes):
        address = os.fsdecode(address)
    return str(address) or "a Unix socket"
