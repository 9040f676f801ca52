"""``connect()``: tries a host's addresses side by side, by RFC 8305 ("Happy Eyeballs")."""

from __future__ import annotations

import contextlib
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any, Final

from pyfiber import _engine, dns, socket
from pyfiber._engine import Event, TaskGroup
from pyfiber._engine import timeout as _timeout
from pyfiber.net._stream import Stream, check_port, place

if TYPE_CHECKING:
    from ssl import SSLContext

#: Seconds after which the next address is tried as well (RFC 8305, section 5).
HEAD_START: Final = 0.25


def connect(
    host: str,
    port: int | str,
    *,
    tls: bool | SSLContext = False,
    server_hostname: str | None = None,
    timeout: float | None = None,
    local_address: tuple[str, int] | None = None,
) -> Stream:
    """Connect to the host by TCP, to the one of its addresses that answers first; return a Stream.

    Addresses of IPv6 and IPv4 take turns. Each has 250 ms before the next one is tried as well
    (RFC 8305), and the losers are closed before this returns.

    With ``tls=True`` the connection has TLS, and the server's certificate must be valid, and for
    ``server_hostname``, by default the host. An SSLContext of ``pyfiber.ssl`` in its place sets
    other rules. ``timeout`` limits all of this, in seconds, and raises TimeoutError.
    ``local_address`` is the address that the socket is bound to first.

    OSError if no address answers, gaierror if the host has none, ssl.SSLError if TLS fails.
    """
    for number in (port, local_address and local_address[1]):
        check_port(number)
    if _engine._running_scheduler() is None:
        return _connect_blocking(host, port, tls, server_hostname, timeout, local_address)
    with _timeout(timeout):
        infos = dns.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
        local = None
        if local_address is not None:
            local = dns.getaddrinfo(*local_address, 0, socket.SOCK_STREAM)
        sock, peer = _first_of(_Attempts(f"{host}:{port}", local), _interleaved(infos))
        return _made(sock, peer, tls, server_hostname or host)


def connect_unix(path: str | bytes, *, timeout: float | None = None) -> Stream:
    """Connect to a Unix socket; return a Stream.

    OSError if that fails; TimeoutError after ``timeout`` seconds.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(sock.close)
        sock.settimeout(timeout)
        sock.connect(path)
        sock.settimeout(None)
        on_failure.pop_all()
    return Stream(sock, path)


def _connect_blocking(
    host: str,
    port: int | str,
    tls: bool | SSLContext,
    server_hostname: str | None,
    timeout: float | None,
    local_address: tuple[str, int] | None,
) -> Stream:
    """connect() outside of a run: tries one address after the other."""
    sock = socket.create_connection((host, port), timeout, local_address)
    stream = _made(sock, sock.getpeername(), tls, server_hostname or host)
    stream.socket.settimeout(None)
    return stream


def _made(sock: socket.socket, peer: Any, tls: bool | SSLContext, name: str) -> Stream:
    """Make a stream, with TLS if wanted. If that fails the socket is closed."""
    stream = Stream(sock, peer)
    with contextlib.ExitStack() as on_failure:
        on_failure.callback(stream.close)
        set_options(sock)
        if tls:
            stream.start_tls(tls, server_hostname=name)
        on_failure.pop_all()
    return stream


def set_options(sock: socket.socket) -> None:
    """Have small writes go out at once: programs pass what belongs together to one write()."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _interleaved(infos: dns.Found) -> dns.Found:
    """Let the address families take turns. Otherwise the order stays that of the resolver."""
    families: dict[int, dns.Found] = {}
    for info in infos:
        families.setdefault(info[0], []).append(info)
    turns = chain.from_iterable(zip_longest(*families.values()))
    return [info for info in turns if info is not None]


class _Attempts:
    """What is shared by the fibers that try one address each."""

    def __init__(self, name: str, local: dns.Found | None) -> None:
        self.name = name
        self.local = local
        self.group = TaskGroup()
        self.over = Event()  # an attempt has failed, so the next one may begin
        self.won: tuple[socket.socket, Any] | None = None
        self.failures: list[OSError] = []

    def attempt(self, info: Any) -> None:
        """Try one address. A failure lets the next attempt begin; a success ends the others."""
        try:
            sock = self.connected(info)
        except OSError as exc:
            self.failures.append(exc)
            self.over.set()
            return
        if self.won is None:
            self.won = sock, info[4]
            self.group.cancel("another address was faster")
        else:
            sock.close()  # another address has won in the same turn

    def connected(self, info: Any) -> socket.socket:
        family, kind, proto, _, address = info
        sock = socket.socket(family, kind, proto)
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(sock.close)
            sock.settimeout(None)
            try:
                if self.local is not None:
                    sock.bind(self.own_address(family))
                sock.connect(address)
            except OSError as exc:
                exc.strerror = f"{exc.strerror or exc} ({place(address)})"
                raise
            on_failure.pop_all()
        return sock

    def own_address(self, family: int) -> Any:
        assert self.local is not None
        for info in self.local:
            if info[0] == family:
                return info[4]
        raise OSError(f"the local address is {place(self.local[0][4])}, of another family")

    def failure(self) -> OSError:
        """The error for all addresses, of the class of their errors if that is one class."""
        if len(self.failures) == 1:
            return self.failures[0]
        classes = {type(exc) for exc in self.failures}
        kind = classes.pop() if len(classes) == 1 else OSError
        text = ", ".join(exc.strerror or str(exc) for exc in self.failures)
        failure = kind(self.failures[0].errno, f"cannot connect to {self.name}: {text}")
        failure.__cause__ = ExceptionGroup("an address each", self.failures)
        return failure


def _first_of(attempts: _Attempts, infos: dns.Found) -> tuple[socket.socket, Any]:
    """The first socket that is connected, and its address; OSError if none is."""
    try:
        with attempts.group:
            for info in infos:
                attempts.over.clear()
                attempts.group.spawn(attempts.attempt, info)
                attempts.over.wait(HEAD_START)
    except BaseException:
        if attempts.won is not None:
            attempts.won[0].close()
        raise
    try:
        if attempts.won is None:
            raise attempts.failure()
        return attempts.won
    finally:
        del attempts  # the failures' tracebacks refer to frames that refer to this object
