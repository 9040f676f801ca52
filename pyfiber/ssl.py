"""The standard module ``ssl``, whose connections park the running fiber.

Every public name of the standard module is here. ``SSLContext.wrap_socket()`` makes a socket of
``pyfiber.socket`` an ``SSLSocket`` whose operations park when they are made in a fiber of a run;
anywhere else they work as in the standard library. A standard socket becomes a standard
``ssl.SSLSocket``. A standard context makes an ``SSLSocket`` of this module once its
``sslsocket_class`` is that.
"""

from __future__ import annotations

import contextlib
import errno
import ssl as _standard
from collections.abc import Callable
from ssl import *  # noqa: F403
from types import FunctionType
from typing import TYPE_CHECKING, Any, cast

from pyfiber import _engine
from pyfiber.socket import SO_TYPE, SOCK_STREAM, SOL_SOCKET, create_connection, socket

_Tls = _engine._tls_type()
_EOF_ERROR = _standard.SSLEOFError
_ZERO_RETURN_ERROR = _standard.SSLZeroReturnError
_GLOBAL_DEFAULT_TIMEOUT: Any = _standard._GLOBAL_DEFAULT_TIMEOUT  # type: ignore[attr-defined]


class SSLSocket(_standard.SSLSocket, socket):  # type: ignore[no-redef]
    """An ``ssl.SSLSocket`` whose operations park the running fiber.

    One fiber may read and one may write at a time; another one gets FiberError. A read takes from
    the system all that has come: code that waits for the socket by other means must call
    ``pending()`` first. When an exception ends ``sendall()``, its attribute ``sent`` says how many
    bytes went; some of the bytes after them may have gone as well, but are not sent twice when the
    next call begins with them.
    """

    #: Bytes that came after the end of TLS, which are read as they are.
    _rest: bytes = b""
    #: Has this end announced that it sends no more?
    _ended: bool = False
    # Attributes of the standard class.
    _context: Any
    _session: Any
    _sslobj: Any
    _connected: bool
    do_handshake_on_connect: bool
    suppress_ragged_eofs: bool

    # Methods of the standard class, bound here before pyfiber.patch() replaces them there.
    read = _standard.SSLSocket.read
    write = _standard.SSLSocket.write
    do_handshake = _standard.SSLSocket.do_handshake

    @classmethod
    def _create(
        cls,
        sock: Any,
        server_side: bool = False,
        do_handshake_on_connect: bool = True,
        suppress_ragged_eofs: bool = True,
        server_hostname: Any = None,
        context: Any = None,
        session: Any = None,
    ) -> Any:
        options = (server_side, do_handshake_on_connect, suppress_ragged_eofs, server_hostname)
        if not isinstance(sock, socket):
            create = _standard.SSLSocket._create  # type: ignore[attr-defined]
            return create(sock, *options, context=context, session=session)
        return cls._wrap(sock, *options, context=context, session=session)

    @classmethod
    def _wrap(
        cls,
        sock: Any,
        server_side: bool,
        do_handshake_on_connect: bool,
        suppress_ragged_eofs: bool,
        server_hostname: Any,
        *,
        context: Any,
        session: Any,
    ) -> Any:
        """Make an SSLSocket of any kind of socket, and take over its descriptor."""
        _check(sock, server_side, server_hostname, context, session)
        self: Any = cls.__new__(cls)
        self._take_over(sock)
        try:
            self._context = context
            self._session = session
            self.server_side = server_side
            self.server_hostname = context._encode_hostname(server_hostname)
            self.do_handshake_on_connect = do_handshake_on_connect
            self.suppress_ragged_eofs = suppress_ragged_eofs
            self._connected = self._is_connected()
            if self._connected:
                self._begin()
        except BaseException:
            with contextlib.suppress(OSError):
                self.close()
            raise
        return self

    def _take_over(self, sock: Any) -> None:
        """Take over the descriptor of ``sock``, which has none any more afterwards."""
        rest = getattr(sock, "_rest", b"")
        timeout = sock.gettimeout()
        number = sock.fileno()
        self._sslobj = None
        self._closed = False
        super(_standard.SSLSocket, self).__init__(sock.family, sock.type, sock.proto, number)
        sock.detach()
        self._rest = rest
        self.settimeout(timeout)

    def _is_connected(self) -> bool:
        try:
            self.getpeername()
        except OSError as exc:
            if exc.errno != errno.ENOTCONN:
                raise
            _refuse_data_of_a_lost_connection(self)
            return False
        return True

    def _begin(self) -> None:
        """Begin TLS on the connection, and shake hands unless that is to come later."""
        self._start()
        if self.do_handshake_on_connect:
            if self.gettimeout() == 0.0:
                raise ValueError(
                    "do_handshake_on_connect should not be specified for non-blocking sockets"
                )
            self.do_handshake()

    def _start(self) -> None:
        incoming, outgoing = _standard.MemoryBIO(), _standard.MemoryBIO()
        if self._rest:
            incoming.write(self._rest)
            self._rest = b""
        made = self._context._wrap_bio(
            incoming,
            outgoing,
            self.server_side,
            self.server_hostname,
            owner=self,
            session=self._session,
        )
        self._sslobj = _Tls(made, incoming, outgoing, self)

    def connect(self, addr: Any) -> None:
        """Connect to the address, and shake hands unless that is to come later."""
        self._connect_tls(addr, False)

    def connect_ex(self, addr: Any) -> int:
        """As connect(), but returns the number of the system's error, 0 if there is none."""
        return self._connect_tls(addr, True)

    def _connect_tls(self, addr: Any, ex: bool) -> int:
        if self.server_side:
            raise ValueError("can't connect in server-side mode")
        if self._connected or self._sslobj is not None:
            raise ValueError("attempt to connect already-connected SSLSocket!")
        self._start()
        try:
            number = 0
            if ex:
                number = socket.connect_ex(self, addr)
            else:
                socket.connect(self, addr)
            if not number:
                self._connected = True
                if self.do_handshake_on_connect:
                    self.do_handshake()
        except (OSError, ValueError):
            self._sslobj = None
            raise
        return number

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Receive at most ``buflen`` bytes; b"" at the end."""
        tls = self._sslobj
        if tls is None or flags != 0:
            return self._recv_plain(buflen, flags)
        try:
            return cast(bytes, tls.read(buflen))
        except _EOF_ERROR:
            if self.suppress_ragged_eofs:
                return b""
            raise
        except _ZERO_RETURN_ERROR:  # both ends have said that nothing more comes
            if self._ended:
                return b""
            raise

    def _recv_plain(self, buflen: int, flags: int) -> bytes:
        if self._rest and self._sslobj is None and flags == 0:
            given, self._rest = self._rest[:buflen], self._rest[buflen:]
            return given
        return super().recv(buflen, flags)

    def recv_into(self, buffer: Any, nbytes: int | None = None, flags: int = 0) -> int:
        """Receive into ``buffer``; return the number of bytes."""
        if self._rest and self._sslobj is None and flags == 0:
            with memoryview(buffer) as view, view.cast("B") as there:
                given = self._recv_plain(min(nbytes or len(there), len(there)), 0)
                there[: len(given)] = given
                return len(given)
        return super().recv_into(buffer, nbytes, flags)

    def send(self, data: Any, flags: int = 0) -> int:
        """Send some of the bytes; return their number."""
        tls = self._sslobj
        if tls is None or flags != 0:
            return super().send(data, flags)
        return cast(int, tls.write(data))

    def sendall(self, data: Any, flags: int = 0) -> None:
        """Send all of the bytes."""
        tls = self._sslobj
        if tls is None or flags != 0:
            super().sendall(data, flags)
        else:
            tls.write_all(data)

    def unwrap(self) -> Any:
        """End TLS on both sides; what comes afterwards is not encrypted."""
        tls = self._sslobj
        plain = super().unwrap()
        self._rest = tls.take_rest()
        return plain

    def shutdown(self, how: int) -> None:
        """Shut down as the standard method: the socket does not use TLS any more."""
        tls = self._sslobj
        super().shutdown(how)
        if tls is not None:
            self._rest = tls.take_rest()

    def _end_write(self) -> None:
        """Tell the other end that nothing more comes, without waiting for its answer."""
        self._ended = True
        self._sslobj.end_write()

    def _say_end(self) -> None:
        """Send the end of TLS before the socket is closed, if that goes without waiting."""
        if self._sslobj is not None:
            self._sslobj.say_end()

    def _real_close(self, _ss: Any = None) -> None:
        self._sslobj = None
        socket._real_close(self)  # type: ignore[attr-defined]


def _check(sock: Any, server_side: bool, server_hostname: Any, context: Any, session: Any) -> None:
    """Check the arguments as the standard module does."""
    if sock.getsockopt(SOL_SOCKET, SO_TYPE) != SOCK_STREAM:
        raise NotImplementedError("only stream sockets are supported")
    if server_side and server_hostname:
        raise ValueError("server_hostname can only be specified in client mode")
    if server_side and session is not None:
        raise ValueError("session can only be specified in client mode")
    if context.check_hostname and not server_hostname:
        raise ValueError("check_hostname requires server_hostname")


def _refuse_data_of_a_lost_connection(sock: socket) -> None:
    """Raise SSLError if the lost connection has unread bytes: TLS has not protected these."""
    timeout = sock.gettimeout()
    sock.settimeout(0)
    try:
        data = socket.recv(sock, 1)
    except OSError as exc:
        if exc.errno not in (errno.ENOTCONN, errno.EINVAL):
            raise
        data = b""
    sock.settimeout(timeout)
    if data:
        reason = "Closed before TLS handshake with data in recv buffer."
        error = _standard.SSLError(errno.ENOTCONN, reason)
        error.reason = reason
        error.library = None  # type: ignore[assignment]
        raise error


class SSLContext(_standard.SSLContext):  # type: ignore[no-redef]
    """An ``ssl.SSLContext`` whose connections over sockets of ``pyfiber.socket`` park fibers."""

    sslsocket_class = SSLSocket


def _ours(context: _standard.SSLContext) -> SSLContext:
    """Make a context of the standard module one of this module."""
    context.__class__ = SSLContext
    return context


def create_default_context(  # type: ignore[no-redef]
    purpose: Any = _standard.Purpose.SERVER_AUTH,
    *,
    cafile: Any = None,
    capath: Any = None,
    cadata: Any = None,
) -> SSLContext:
    """Return a context with the standard module's default settings, which are safe."""
    made = _standard.create_default_context(purpose, cafile=cafile, capath=capath, cadata=cadata)
    return _ours(made)


def _create_unverified_context(*args: Any, **kwargs: Any) -> SSLContext:
    return _ours(_standard._create_unverified_context(*args, **kwargs))


_create_stdlib_context = _create_unverified_context
_create_default_https_context: Callable[..., SSLContext] = create_default_context


def get_server_certificate(  # type: ignore[no-redef]
    addr: tuple[str, int],
    ssl_version: int = _standard.PROTOCOL_TLS_CLIENT,
    ca_certs: Any = None,
    timeout: float | None = _GLOBAL_DEFAULT_TIMEOUT,
) -> str:
    """Return the certificate of the server at ``addr``, in PEM; ``ca_certs`` verify it if given."""
    required = _standard.CERT_NONE if ca_certs is None else _standard.CERT_REQUIRED
    context = _create_stdlib_context(ssl_version, cert_reqs=required, cafile=ca_certs)
    with (
        create_connection(addr, timeout=timeout) as sock,
        context.wrap_socket(sock, server_hostname=addr[0]) as wrapped,
    ):
        return _standard.DER_cert_to_PEM_cert(wrapped.getpeercert(True) or b"")


if not TYPE_CHECKING and hasattr(_standard, "wrap_socket"):  # before Python 3.12
    _old = _standard.wrap_socket
    wrap_socket = FunctionType(
        _old.__code__,
        {**vars(_standard), "SSLContext": SSLContext},
        "wrap_socket",
        _old.__defaults__,
    )
