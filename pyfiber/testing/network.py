"""A network in memory: which sockets listen where, and which are connected to each other.

The engine moves the bytes of a connection (csrc/engine/io/inmemory.c). Everything that decides what
may connect, and under which address, is here; sockets.py has the sockets. An Endpoint is for a
socket in memory what ``_socket.socket`` is for a socket of the system: it has methods of the same
names, which never wait.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket as _standard
import sys
import threading
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from pyfiber import FiberError, _engine
from pyfiber._memory import FIRST_NUMBER

if TYPE_CHECKING:
    from pyfiber.testing.sockets import MemorySocket

#: A port of a host, or the path of a Unix socket.
Key: TypeAlias = tuple[int, str, int] | str | bytes

#: The error number of a connect() that goes on.
UNDER_WAY: Final = errno.EWOULDBLOCK if os.name == "nt" else errno.EINPROGRESS

#: Bytes that a connection holds in each direction before its sender has to wait.
BUFFER: Final = 65536

#: Ports for sockets that do not name one (RFC 6335).
FIRST_PORT, LAST_PORT = 49152, 65535

AF_UNIX: Final = getattr(_standard, "AF_UNIX", None)
ANY: Final = {int(_standard.AF_INET): "0.0.0.0", int(_standard.AF_INET6): "::"}
LOOPBACK: Final = {int(_standard.AF_INET): "127.0.0.1", int(_standard.AF_INET6): "::1"}

#: The options that the standard module has names for, by level.
_LEVELS: Final = {
    "SO_": "SOL_SOCKET",
    "TCP_": "IPPROTO_TCP",
    "IP_": "IPPROTO_IP",
    "IPV6_": "IPPROTO_IPV6",
}
OPTIONS: Final = frozenset(
    (getattr(_standard, level), getattr(_standard, name))
    for prefix, level in _LEVELS.items()
    for name in dir(_standard)
    if name.startswith(prefix) and hasattr(_standard, level)
)


def fail(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


class Network:
    """A network in memory, for the runs of ``run()``, ``explore()`` and similar functions.

    With ``network=Network()``, or ``network=True`` for one with the usual settings, each stream
    socket that ``pyfiber.socket`` and ``pyfiber.net`` make in the run is one of this network: TCP
    and Unix sockets, listeners and pairs, without descriptors or system calls. All addresses exist,
    but only those answer at which the run listens. Each run begins with an empty network.

    ``buffer`` is how many bytes a connection holds in each direction before its sender has to wait.
    ``hosts`` gives names their addresses: ``hosts={"db.example": "10.0.0.1"}``; "localhost" is
    known, and no other name.
    """

    def __init__(self, *, buffer: int = BUFFER, hosts: Mapping[str, str] | None = None) -> None:
        if isinstance(buffer, bool) or not isinstance(buffer, int):
            raise TypeError(f"buffer is a number of bytes, not {type(buffer).__name__!r}")
        if not 0 < buffer <= 2**30:
            raise ValueError(f"a buffer has from 1 byte to 2**30, not {buffer}")
        self.buffer = buffer
        self.hosts = {name.lower(): address for name, address in (hosts or {}).items()}
        for address in self.hosts.values():
            family_of(address)
        self.scheduler: _engine.Scheduler | None = None
        self.reset()

    def reset(self) -> None:
        """Return to the state before a run: nobody listens, nothing was connected."""
        self.bound: dict[Key, list[Endpoint]] = {}
        self.numbers: dict[int, Endpoint] = {}
        self.last_number = FIRST_NUMBER - 1
        self.last_port = FIRST_PORT - 1

    def attach(self, scheduler: _engine.Scheduler) -> None:
        """Use this network in the scheduler's runs; FiberError if another scheduler uses it."""
        if self.scheduler is not None:
            raise FiberError("the network serves another run: give each run its own Network")
        self.scheduler = scheduler
        _engine._set_network(scheduler, self)

    def detach(self) -> None:
        """Undo attach()."""
        if self.scheduler is not None:
            _engine._set_network(self.scheduler, None)
            self.scheduler = None
        self.reset()

    def __repr__(self) -> str:
        listening = sum(endpoint.listens for line in self.bound.values() for endpoint in line)
        return f"<pyfiber.testing.Network, {listening} listening>"

    # Methods that pyfiber.socket and pyfiber.dns call

    def _class_for(
        self, asked: type[Any], args: tuple[Any, ...], kwargs: dict[str, Any] | None
    ) -> type[Any]:
        from pyfiber.testing import sockets

        return sockets.class_for(self, asked, args, kwargs or {})

    def _socketpair(
        self,
        asked: type[Any],
        family: int | None = None,
        type: int = _standard.SOCK_STREAM,
        proto: int = 0,
    ) -> tuple[Any, Any]:
        from pyfiber.testing import sockets

        return sockets.pair(self, asked, family, type, proto)

    def _create_server(self, address: Any, **kwargs: Any) -> MemorySocket:
        from pyfiber.testing import sockets

        return sockets.create_server(address, **kwargs)

    def _end_of(self, number: int) -> _engine._MemoryEnd | None:
        endpoint = self.numbers.get(number)
        return None if endpoint is None else endpoint.end

    def _resolve(
        self, host: str, port: int, family: int, type: int, proto: int, flags: int, /
    ) -> list[tuple[Any, Any, int, str, Any]]:
        """Resolve a name, as the resolvers of ``pyfiber.dns`` do."""
        name = host.lower().removesuffix(".")
        known = {"localhost": LOOPBACK[_standard.AF_INET], **self.hosts}
        if name not in known:
            raise _standard.gaierror(
                _standard.EAI_NONAME,
                f"no host {host!r} in the network in memory: Network(hosts={{{host!r}: ADDRESS}})",
            )
        return _standard.getaddrinfo(known[name], port, family, type, proto, flags)

    def _names_of(self, host: str) -> tuple[str, list[str], list[str]]:
        """What gethostbyaddr() returns for an address or a name; herror if there is no name."""
        names = {"localhost": LOOPBACK[_standard.AF_INET], **self.hosts}
        address = names.get(host.lower(), host)
        known = [name for name, each in names.items() if each == address]
        if not known:
            raise _standard.herror(1, "Unknown host")
        return known[0], known[1:], [address]

    def _hostname(self) -> str:
        return "localhost"

    # Addresses

    def number(self) -> int:
        self.last_number += 1
        return self.last_number

    def endpoint_of(self, number: int) -> Endpoint:
        if number not in self.numbers:
            raise FiberError(
                f"no socket of the network in memory has the number {number}: a real one cannot "
                "become one"
            )
        return self.numbers[number]

    def free_port(self, family: int, host: str) -> int:
        for _ in range(FIRST_PORT, LAST_PORT + 1):
            self.last_port = FIRST_PORT if self.last_port == LAST_PORT else self.last_port + 1
            if not self.at(family, host, self.last_port):
                return self.last_port
        fail(errno.EADDRNOTAVAIL)

    def at(self, family: int, host: str, port: int) -> list[Endpoint]:
        """The endpoints whose address is this one, contains this one, or is contained in it."""
        wide = ANY[family]
        if host != wide:
            hosts = [host, wide]
        else:
            hosts = [key[1] for key in self.bound if len(key) == 3 and key[::2] == (family, port)]  # type: ignore[misc]
        return [end for each in hosts for end in self.bound.get((family, each, port), ())]

    def bind(self, endpoint: Endpoint, key: Key) -> None:
        self.bound.setdefault(key, []).append(endpoint)

    def unbind(self, endpoint: Endpoint, key: Key) -> None:
        line = self.bound.get(key, [])
        if endpoint in line:
            line.remove(endpoint)
            if not line:
                del self.bound[key]

    def listener_for(self, key: Key) -> Endpoint | None:
        """The listener at this key; of those that share a port, the one with the shortest queue."""
        line = self.bound.get(key, [])
        if isinstance(key, tuple) and not any(end.listens for end in line):
            family, _, port = key
            line = self.bound.get((family, ANY[family], port), [])
        return min(
            (end for end in line if end.listens), key=lambda end: len(end.pending), default=None
        )


def family_of(address: str) -> int:
    """The family of an address in numbers; ValueError if there is none."""
    for family in ANY:
        try:
            _standard.inet_pton(family, address)
        except OSError:
            continue
        return family
    raise ValueError(f"hosts gives names addresses in numbers, not {address!r}")


class Endpoint:
    """The state behind a socket in memory, or behind several sockets after dup()."""

    __slots__ = (
        "backlog",
        "coming",
        "end",
        "family",
        "key",
        "local",
        "network",
        "numbers",
        "opened",
        "options",
        "pending",
        "proto",
        "remote",
        "scheduler",
        "target",
        "thread",
    )

    def __init__(self, network: Network, family: int, proto: int) -> None:
        self.network = network
        self.scheduler = network.scheduler
        self.thread = threading.get_ident()
        self.family = family
        self.proto = proto
        self.end = _engine._MemoryEnd(family != AF_UNIX, network.buffer)
        self.opened = 0  # open sockets
        self.numbers: list[int] = []  # all numbers of its sockets
        self.key: Key | None = None  # the key of the address it is bound to
        self.local: Any = None
        self.remote: Any = None
        self.options: dict[tuple[int, int], int | bytes] = {}
        self.backlog: int | None = None  # of a listener
        self.pending: deque[Endpoint] = deque()  # connected, to be accepted
        self.coming: deque[Endpoint] = deque()  # clients for which there is no room yet
        self.target: Endpoint | None = None  # the listener in whose `coming` this one is

    @property
    def listens(self) -> bool:
        return self.backlog is not None

    # Addresses

    def key_of(self, address: Any) -> Key:
        """The key of an address that has no names in it."""
        if self.family == AF_UNIX:
            if not isinstance(address, (str, bytes)):
                raise TypeError("the address of a Unix socket is a path")
            return os.fsencode(address)
        if not isinstance(address, tuple) or len(address) < 2:
            raise TypeError(f"an address is a tuple (host, port), not {address!r}")
        host, port = address[:2]
        if isinstance(host, (bytes, bytearray)):
            host = host.decode()
        if not 0 <= port <= LAST_PORT:
            raise OverflowError("port must be 0-65535.")
        packed = _standard.inet_pton(self.family, host or ANY[self.family])
        return self.family, _standard.inet_ntop(self.family, packed), port

    def address_of(self, key: Key) -> Any:
        if isinstance(key, tuple):
            return (*key[1:], 0, 0) if self.family == _standard.AF_INET6 else key[1:]
        return key if key[:1] == b"\0" else os.fsdecode(key)

    def bind(self, address: Any) -> None:
        key = self.key_of(address)
        if self.key is not None or self.local is not None:
            fail(errno.EINVAL)
        if isinstance(key, tuple):
            family, host, port = key
            if port == 0:
                key = family, host, self.network.free_port(family, host)
            elif not all(self.may_share(other) for other in self.network.at(*key)):
                fail(errno.EADDRINUSE)
        elif key in self.network.bound:
            fail(errno.EADDRINUSE)
        self.take(key)

    def take(self, key: Key) -> None:
        self.key = key
        self.local = self.address_of(key)
        self.network.bind(self, key)

    def may_share(self, other: Endpoint) -> bool:
        """Whether the two may share a port, by Linux's rules."""
        if self.has("SO_REUSEPORT") and other.has("SO_REUSEPORT"):
            return True
        return self.has("SO_REUSEADDR") and other.has("SO_REUSEADDR") and not other.listens

    def getsockname(self) -> Any:
        if self.local is not None:
            return self.local
        return "" if self.family == AF_UNIX else self.address_of((self.family, ANY[self.family], 0))

    def getpeername(self) -> Any:
        if self.remote is None or not self.end.connected:
            fail(errno.ENOTCONN)
        return self.remote

    # Options

    def has(self, name: str) -> bool:
        option = getattr(_standard, name, None)
        return option is not None and bool(self.options.get((_standard.SOL_SOCKET, option)))

    def setsockopt(self, level: int, optname: int, value: Any, *size: int) -> None:
        if (level, optname) not in OPTIONS:
            fail(errno.ENOPROTOOPT)
        if value is None:
            value = bytes(*size)
        self.options[level, optname] = value if isinstance(value, int) else bytes(value)

    def getsockopt(self, level: int, optname: int, buflen: int = 0) -> int | bytes:
        if (level, optname) not in OPTIONS:
            fail(errno.ENOPROTOOPT)
        value = self.option(level, optname)
        if buflen and isinstance(value, int):
            return value.to_bytes(4, sys.byteorder, signed=True)[:buflen]
        if not buflen and isinstance(value, bytes):
            return int.from_bytes(value[:4], sys.byteorder, signed=True)
        return value if isinstance(value, int) else value[:buflen]

    def option(self, level: int, optname: int) -> int | bytes:
        if level == _standard.SOL_SOCKET:
            if optname == _standard.SO_ERROR:
                return self.end.take_error()
            known: dict[str, int] = {
                "SO_TYPE": _standard.SOCK_STREAM,
                "SO_DOMAIN": self.family,
                "SO_PROTOCOL": self.proto,
                "SO_ACCEPTCONN": self.listens,
            }
            for name, value in known.items():
                if optname == getattr(_standard, name, None):
                    return int(value)
            if optname in (_standard.SO_RCVBUF, _standard.SO_SNDBUF):
                return self.options.get((level, optname), self.network.buffer)
        return self.options.get((level, optname), 0)

    # Connections

    def listen(self, backlog: int = 128) -> None:
        if self.end.connected or self.target is not None:
            fail(errno.EINVAL)
        if self.key is None:
            if self.family == AF_UNIX:
                fail(errno.EINVAL)
            self.bind((ANY[self.family], 0))
        assert self.key is not None
        if not self.listens:
            line = self.network.bound.get(self.key, [])
            shared = [end for end in line if end.listens and not self.may_share(end)]
            if shared:
                fail(errno.EADDRINUSE)
        self.backlog = max(backlog, 0)

    def connect_ex(self, address: Any) -> int:
        """Connect; returns 0 or the number of an error. UNDER_WAY: there is no room yet."""
        key = self.key_of(address)
        if self.target is not None:
            return errno.EALREADY
        if self.end.connected or self.remote is not None or self.listens:
            return errno.EISCONN
        if isinstance(key, tuple) and key[1] == ANY[key[0]]:
            key = key[0], LOOPBACK[key[0]], key[2]
        listener = self.network.listener_for(key)
        if listener is None:
            known = isinstance(key, tuple) or key in self.network.bound
            return errno.ECONNREFUSED if known else errno.ENOENT
        if self.local is None and isinstance(key, tuple):
            family, host, _ = key
            self.take((family, host, self.network.free_port(family, host)))
        if not listener.has_room():
            listener.coming.append(self)
            self.target = listener
            self.remote = self.address_of(key)
            return UNDER_WAY
        listener.connect(self, self.address_of(key))
        return 0

    def has_room(self) -> bool:
        return self.backlog is not None and len(self.pending) <= self.backlog

    def connect(self, client: Endpoint, local: Any) -> None:
        """Connect a client to this listener, by the address that the client has asked for."""
        server = Endpoint(self.network, self.family, self.proto)
        server.options = dict(self.options)
        server.local = client.remote = local
        server.remote = client.getsockname()
        client.target = None
        client.end.join(server.end)
        self.pending.append(server)
        self.end.offer(True)

    def _accept(self) -> tuple[Endpoint, Any]:
        if not self.listens:
            fail(errno.EINVAL)
        if not self.pending:
            fail(errno.EAGAIN)
        server = self.pending.popleft()
        if self.coming and self.has_room():
            client = self.coming.popleft()
            self.connect(client, client.remote)
        self.end.offer(bool(self.pending))
        return server, server.remote

    def shutdown(self, how: int) -> None:
        reading = how in (_standard.SHUT_RD, _standard.SHUT_RDWR)
        writing = how in (_standard.SHUT_WR, _standard.SHUT_RDWR)
        if not reading and not writing:
            fail(errno.EINVAL)
        if not self.listens:
            self.end.shutdown(reading, writing)
        elif reading:
            self.refuse_all()
            self.end.disturb()

    # The sockets of this endpoint

    def open(self, number: int) -> None:
        """Add a socket with this number."""
        self.opened += 1
        self.numbers.append(number)
        self.network.numbers[number] = self

    def refuse_all(self) -> None:
        """Stop listening, and refuse the connections that have not been accepted."""
        self.backlog = None
        while self.pending:
            self.pending.popleft().end.close(True)
        while self.coming:
            client = self.coming.popleft()
            client.target = client.remote = None
            client.end.fail(errno.ECONNREFUSED)

    def detach(self) -> None:
        """Remove a socket without closing it: its number can be used to make another one."""
        self.opened -= 1
        self.end.disturb()

    def close(self) -> None:
        """Remove a socket; the last one ends the endpoint."""
        if self.thread == threading.get_ident():
            self.let_go()
        elif self.scheduler is not None:
            with contextlib.suppress(FiberError):  # the scheduler is closed, and nobody waits
                self.scheduler.call_soon_threadsafe(self.let_go)

    def let_go(self) -> None:
        self.opened -= 1
        if self.opened > 0:
            self.end.disturb()
            return
        if self.listens:
            self.refuse_all()
        if self.target is not None:
            self.target.coming.remove(self)
        if self.key is not None:
            self.network.unbind(self, self.key)
        for number in self.numbers:
            self.network.numbers.pop(number, None)
        self.end.close(self.ends_with_reset())

    def ends_with_reset(self) -> bool:
        """Whether SO_LINGER is set, with a time of 0."""
        linger = self.options.get((_standard.SOL_SOCKET, _standard.SO_LINGER))
        if not isinstance(linger, bytes) or self.family == AF_UNIX:
            return False
        half = len(linger) // 2
        return any(linger[:half]) and not any(linger[half:])
