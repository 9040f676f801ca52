"""The sockets of a network in memory: sockets of ``pyfiber.socket``, each with an Endpoint."""

from __future__ import annotations

import errno
import socket as _standard
from typing import TYPE_CHECKING, Any, NoReturn, Self

from pyfiber import FiberError, _engine, socket
from pyfiber.testing.endpoint import AF_UNIX, UNDER_WAY, Endpoint, fail
from pyfiber.testing.network import Network

if TYPE_CHECKING:
    from pyfiber.socket import _Native as _Socket
else:
    _Socket = socket.socket

_classes: dict[type[Any], type[Any]] = {}

#: What a program may add to the type of a socket.
NEVER_BLOCKS = getattr(_standard, "SOCK_NONBLOCK", 0)
FLAGS = NEVER_BLOCKS | getattr(_standard, "SOCK_CLOEXEC", 0)


def refuse(what: str) -> NoReturn:
    raise FiberError(
        f"{what}, but the run under test has a network in memory, with streams (TCP, Unix) only: "
        "replace that call in the test, or run it without network="
    )


class MemorySocket(_Socket):
    """A socket of a network in memory.

    The inherited methods move bytes and wait; the endpoint does everything else.
    """

    __slots__ = ("_endpoint",)

    #: A Unix socket in memory leaves no file in a folder.
    _has_file = False

    _endpoint: Endpoint

    def __init__(
        self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None
    ) -> None:
        network = network_here()
        if fileno is None:
            family = _standard.AF_INET if family == -1 else family
            self._stand_for(Endpoint(network, family, max(proto, 0)), network.number())
        else:
            self._stand_for(network.endpoint_of(fileno), fileno)
        if type != -1 and type & NEVER_BLOCKS:
            self.settimeout(0)

    def _stand_for(self, endpoint: Endpoint, number: int) -> None:
        self._io_refs = 0
        self._closed = False
        self._begin_in_memory(endpoint.end, number, endpoint.family != AF_UNIX)
        self._endpoint = endpoint
        endpoint.open(number)
        self.settimeout(_standard.getdefaulttimeout())
        if endpoint.listens:
            self._set_turns()

    def _open_endpoint(self) -> Endpoint:
        if self.fileno() < 0:
            fail(errno.EBADF)
        return self._endpoint

    @property
    def family(self) -> Any:
        """The address family: AF_INET, AF_INET6 or AF_UNIX."""
        return _standard.AddressFamily(self._endpoint.family)

    @property
    def type(self) -> Any:
        """Always SOCK_STREAM."""
        return _standard.SOCK_STREAM

    @property
    def proto(self) -> int:
        """The protocol's number, as it was given."""
        return self._endpoint.proto

    def fileno(self) -> int:
        """The socket's number, which no system gives to a descriptor; -1 when it is closed."""
        return self._number()

    def bind(self, address: Any) -> None:
        """Bind the socket to an address. All addresses exist; port 0 picks a free port."""
        self._open_endpoint().bind(self._resolved(address))

    def _connect(self, address: Any) -> int:
        """Connect at once. But a TCP socket that never waits gets UNDER_WAY, as a real one does."""
        number = super()._connect(address)
        at_once = number == 0 and self.gettimeout() == 0 and self._endpoint.family != AF_UNIX
        return UNDER_WAY if at_once else number

    def listen(self, *backlog: int) -> None:
        """Listen for connections. Clients beyond the backlog wait until they are connected."""
        self._open_endpoint().listen(*backlog)
        self._set_turns()

    def _accept_as(self, kind: Any) -> tuple[Any, Any]:
        """What accept() calls with the class of the new socket."""
        endpoint: Any
        endpoint, address = self._accept()
        return made(endpoint, kind), address

    def shutdown(self, how: int) -> None:
        """Send no more, read no more, or both."""
        self._open_endpoint().shutdown(how)

    def getsockname(self) -> Any:
        """The address of this end."""
        return self._open_endpoint().getsockname()

    def getpeername(self) -> Any:
        """The address of the other end."""
        return self._open_endpoint().getpeername()

    def setsockopt(self, level: int, optname: int, value: Any, *size: int) -> None:
        """Keep the value of an option. SO_REUSEADDR, SO_REUSEPORT and SO_LINGER have an effect."""
        self._open_endpoint().setsockopt(level, optname, value, *size)

    def getsockopt(self, level: int, optname: int, buflen: int = 0) -> Any:
        """The value of an option: what was set, or what is true of a socket in memory."""
        return self._open_endpoint().getsockopt(level, optname, buflen)

    def get_inheritable(self) -> bool:
        """Always False: no process inherits a socket in memory."""
        return False

    def set_inheritable(self, inheritable: bool) -> None:
        """Do nothing: no process inherits a socket in memory."""

    def dup(self) -> Self:
        """Make another socket of the same endpoint."""
        twin = type(self).__new__(type(self))
        twin._stand_for(self._open_endpoint(), network_here().number())
        twin.settimeout(self.gettimeout())
        return twin

    def detach(self) -> int:
        """Give up the number and return it: ``socket(fileno=number)`` makes a socket of it."""
        number = self.fileno()
        super().detach()
        return number

    # With addresses and ancillary data, which a stream does not have

    def recvfrom(self, bufsize: int, flags: int = 0) -> tuple[bytes, Any]:
        """Return what recv() returns, and None."""
        return self.recv(bufsize, flags), None

    def recvfrom_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> tuple[int, Any]:
        """Return what recv_into() returns, and None."""
        return self.recv_into(buffer, nbytes, flags), None

    def recvmsg(
        self, bufsize: int, ancbufsize: int = 0, flags: int = 0
    ) -> tuple[bytes, list[Any], int, Any]:
        """Do what recv() does: there is no ancillary data."""
        return self.recv(bufsize, flags), [], 0, None

    def recvmsg_into(
        self, buffers: Any, ancbufsize: int = 0, flags: int = 0
    ) -> tuple[int, list[Any], int, Any]:
        """Do what recvmsg() does, into the buffers one after the other."""
        views = [memoryview(buffer).cast("B") for buffer in buffers]
        data = self.recv(sum(map(len, views)), flags)
        start = 0
        for view in views:
            part = data[start : start + len(view)]
            view[: len(part)] = part
            start += len(part)
        return len(data), [], 0, None

    def sendmsg(self, buffers: Any, ancdata: Any = (), flags: int = 0, address: Any = None) -> int:
        """Do what send() does, with all buffers."""
        if list(ancdata):
            refuse("sendmsg() would send ancillary data")
        return self.send(b"".join(buffers), flags)

    def sendto(self, data: Any, *flags_and_address: Any) -> int:
        """Do what send() does: a connected socket ignores the address."""
        *flags, _ = flags_and_address
        return self.send(data, *flags)


def network_here() -> Network:
    network = _engine._network()
    if network is None:
        raise FiberError("a socket of a network in memory is made in a run that has one")
    found: Network = network
    return found


def made(endpoint: Endpoint, kind: type[Any] = socket.socket) -> Any:
    """Make a socket of an endpoint that has none; ``kind`` is the class that the program knows."""
    cls: Any = in_memory(kind)
    sock = cls.__new__(cls)
    sock._stand_for(endpoint, network_here().number())
    return sock


def in_memory(kind: type[Any]) -> type[Any]:
    """The class whose sockets are in memory and which is a subclass of this class of sockets."""
    if issubclass(kind, MemorySocket):
        return kind
    if issubclass(MemorySocket, kind):
        return MemorySocket
    if kind not in _classes:
        _classes[kind] = type(kind.__name__, (kind, MemorySocket), {"__slots__": ()})
    return _classes[kind]


def class_for(
    network: Network, asked: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> type[Any]:
    """The class of a new socket in a run with a network: one in memory, or the one asked for."""
    given = dict(zip(("family", "type", "proto", "fileno"), args, strict=False)) | kwargs
    number = given.get("fileno")
    if number is not None and number not in network.numbers:
        return asked  # the program has the descriptor from elsewhere
    family, kind = given.get("family", -1), given.get("type", -1)
    if family not in (-1, _standard.AF_INET, _standard.AF_INET6, AF_UNIX):
        refuse(f"socket() would open a real socket of family {family!r}")
    if kind != -1 and kind & ~FLAGS != _standard.SOCK_STREAM:
        refuse(f"socket() would open a real socket of type {kind!r}")
    return in_memory(asked)


def pair(
    network: Network, asked: type[Any], family: int | None, kind: int, proto: int
) -> tuple[Any, Any]:
    """Make two connected sockets, as socketpair() does."""
    default = _standard.AF_INET if AF_UNIX is None else AF_UNIX
    family = default if family is None else family
    if kind & ~FLAGS != _standard.SOCK_STREAM:
        refuse(f"socketpair() would open real sockets of type {kind!r}")
    if family != default:
        fail(errno.EOPNOTSUPP)
    one, other = Endpoint(network, family, proto), Endpoint(network, family, proto)
    one.remote, other.remote = other.getsockname(), one.getsockname()
    one.end.join(other.end)
    return made(one, asked), made(other, asked)


def create_server(
    address: Any,
    *,
    family: int = _standard.AF_INET,
    backlog: int | None = None,
    reuse_port: bool = False,
    dualstack_ipv6: bool = False,
) -> MemorySocket:
    """Do what the standard function does."""
    if dualstack_ipv6:
        refuse("create_server(dualstack_ipv6=True) would listen to IPv4 as well")
    sock = MemorySocket(family)
    try:
        sock.setsockopt(_standard.SOL_SOCKET, _standard.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(_standard.SOL_SOCKET, _standard.SO_REUSEPORT, 1)
        sock.bind(address)
        sock.listen(*([] if backlog is None else [backlog]))
    except BaseException:
        sock.close()
        raise
    return sock
