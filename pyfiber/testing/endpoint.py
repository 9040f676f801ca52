"""The state behind a socket in memory, or behind several sockets after dup().

An Endpoint is for a socket in memory what ``_socket.socket`` is for a socket of the system: it has
methods of the same names, which never wait.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket as _standard
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NoReturn

from pyfiber import FiberError, _engine
from pyfiber.testing.machines import ANY, LAST_PORT, LOOPBACK, Key, Life, Machine

if TYPE_CHECKING:
    from pyfiber.testing.network import Network

#: The error number of a connect() that goes on.
UNDER_WAY: Final = errno.EWOULDBLOCK if os.name == "nt" else errno.EINPROGRESS

NS: Final = 1_000_000_000
#: Nanoseconds after which Linux gives up: an attempt to connect that nobody answers, and a
#: connection whose bytes nobody acknowledges.
CONNECT_PATIENCE, SEND_PATIENCE = 127 * NS, 924 * NS

AF_UNIX: Final = getattr(_standard, "AF_UNIX", None)

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


class Endpoint:
    """One end of a connection, or a listener."""

    __slots__ = (
        "arrives",
        "backlog",
        "coming",
        "connecting",
        "doomed",
        "end",
        "family",
        "is_client",
        "key",
        "life",
        "local",
        "network",
        "numbers",
        "opened",
        "options",
        "other",
        "pending",
        "proto",
        "remote",
        "scheduler",
        "silenced",
        "target",
        "toward",
    )

    def __init__(self, network: Network, family: int, proto: int, life: Life | None = None) -> None:
        self.network = network
        self.scheduler = network.scheduler
        self.family = family
        self.proto = proto
        self.life = life or network.life_here()
        if self.life.over:  # a `finally` block of a machine that has crashed
            fail(errno.ENETDOWN)
        self.end = _engine._MemoryEnd(family != AF_UNIX, network.buffer)
        self.opened = 0  # open sockets
        self.numbers: list[int] = []  # all numbers of its sockets
        self.key: Key | None = None  # the key of the address it is bound to
        self.local: Any = None
        self.remote: Any = None
        self.options: dict[tuple[int, int], int | bytes] = {}
        # A listener:
        self.backlog: int | None = None
        self.pending: deque[Endpoint] = deque()  # connected, to be accepted
        self.coming: deque[Endpoint] = deque()  # clients for which there is no room yet
        # A connection, or an attempt to connect:
        self.target: Endpoint | None = None  # the listener in whose `coming` this one is
        self.connecting: Key | None = None  # where nobody has accepted it yet
        self.arrives = 0.0  # when the attempt to connect arrives there
        self.toward: Machine | None = None  # the machine of the other end
        self.other: Endpoint | None = None
        self.is_client = False
        self.silenced = False  # by a fault: nothing arrives any more
        self.doomed = False  # gives up if nothing is acknowledged
        network.endpoints[self] = None

    @property
    def listens(self) -> bool:
        return self.backlog is not None

    @property
    def machine(self) -> Machine:
        return self.life.machine

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
            if not self.machine.has(family, host):
                fail(errno.EADDRNOTAVAIL)
            if port == 0:
                key = family, host, self.machine.free_port(family, host)
            elif not all(self.may_share(other) for other in self.machine.at(*key)):
                fail(errno.EADDRINUSE)
        elif key in self.machine.bound:
            fail(errno.EADDRINUSE)
        self.take(key)

    def take(self, key: Key) -> None:
        self.key = key
        self.local = self.address_of(key)
        self.machine.bind(self, key)

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

    def tcp_option(self, name: str, usual: int) -> int:
        option = getattr(_standard, name, None)
        value = self.options.get((_standard.IPPROTO_TCP, option or -1), usual)
        return value if isinstance(value, int) else usual

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
                return self.take_error()
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

    def take_error(self) -> int:
        number = self.end.take_error()
        if number and not self.end.connected:  # another attempt is possible
            self.remote = self.connecting = None
        return number

    # Connections

    def listen(self, backlog: int = 128) -> None:
        if self.end.connected or self.remote is not None:
            fail(errno.EINVAL)
        if self.key is None:
            if self.family == AF_UNIX:
                fail(errno.EINVAL)
            self.bind((ANY[self.family], 0))
        assert self.key is not None
        if not self.listens:
            line = self.machine.bound.get(self.key, [])
            shared = [end for end in line if end.listens and not self.may_share(end)]
            if shared:
                fail(errno.EADDRINUSE)
        self.backlog = max(backlog, 0)
        self.network.meet_early(self)

    def connect_ex(self, address: Any) -> int:
        """Connect; returns 0 or the number of an error. UNDER_WAY: the other end learns of it."""
        key = self.key_of(address)
        if self.target is not None or self.connecting is not None:
            return errno.EALREADY
        if self.end.connected or self.remote is not None or self.listens:
            return errno.EISCONN
        if isinstance(key, tuple) and key[1] == ANY[key[0]]:
            key = key[0], LOOPBACK[key[0]], key[2]
        if self.life.over:
            return errno.ENETDOWN
        return self.network.connect(self, key)

    def go_toward(self, machine: Machine, key: Key) -> None:
        """Note where it connects to, and take an address for that."""
        self.toward = machine
        self.is_client = True
        if self.local is None and isinstance(key, tuple):
            family, host, _ = key
            host = self.machine.source(family, host, machine)
            self.take((family, host, self.machine.free_port(family, host)))

    def give_up_after(self, key: Key, number: int, after: int) -> int:
        """Have the attempt to connect fail; returns what connect_ex() returns."""
        if after == 0:
            return number
        self.remote = self.address_of(key)
        self.connecting = key
        self.arrives = _engine.now() + after / 2 / NS
        self.end.fail(number, after)
        return UNDER_WAY

    def try_again(self) -> Key:
        """Forget the failure of the attempt to connect; returns the key of its target."""
        key = self.connecting
        assert key is not None
        self.end.forget()
        self.remote = self.connecting = None
        return key

    def has_room(self) -> bool:
        return self.backlog is not None and len(self.pending) <= self.backlog

    def meet(self, client: Endpoint, key: Key) -> int:
        """A client asks this listener; returns what its connect_ex() returns."""
        address = client.address_of(key)
        if not self.has_room():
            self.coming.append(client)
            client.target = self
            client.remote = address
            return UNDER_WAY
        self.connect(client, address)
        return 0 if client.end.connected else UNDER_WAY

    def connect(self, client: Endpoint, local: Any) -> None:
        """Connect a client to this listener, by the address that the client has asked for."""
        server = Endpoint(self.network, self.family, self.proto, self.life)
        server.options = dict(self.options)
        server.local = client.remote = local
        server.remote = client.getsockname()
        server.toward = client.machine
        server.other, client.other = client, server
        client.target = client.connecting = None
        self.network.join(client, server)
        self.pending.append(server)
        self.end.offer(client.end)
        self.network.set_line(client)

    def _accept(self) -> tuple[Endpoint, Any]:
        if not self.listens:
            fail(errno.EINVAL)
        if not self.end.take_offer():
            fail(errno.EAGAIN)
        server = self.pending.popleft()
        if self.coming and self.has_room():
            client = self.coming.popleft()
            self.connect(client, client.remote)
        return server, server.remote

    def sends(self) -> None:
        """Called before each send, if `end.asks`."""
        self.network.sends(self)

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
        self.end.withdraw()
        while self.pending:
            server = self.pending.popleft()
            server.end.close(True)
            server.forget()
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
        if self.end.is_here:
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
        for number in self.numbers:
            self.network.numbers.pop(number, None)
        self.end.close(self.ends_with_reset())
        self.forget()

    def forget(self) -> None:
        """Leave the network."""
        if self.key is not None:
            self.machine.unbind(self, self.key)
        self.network.endpoints.pop(self, None)
        self.other = None

    def ends_with_reset(self) -> bool:
        """Whether SO_LINGER is set, with a time of 0."""
        linger = self.options.get((_standard.SOL_SOCKET, _standard.SO_LINGER))
        if not isinstance(linger, bytes) or self.family == AF_UNIX:
            return False
        half = len(linger) // 2
        return any(linger[:half]) and not any(linger[half:])

    # Faults

    def crash(self, silent: bool) -> None:
        """The endpoint's machine stops."""
        self.backlog = None
        self.pending.clear()  # these are endpoints of the machine, too
        while self.coming:
            client = self.coming.popleft()
            client.target = None
            client.connecting = self.key
            number, after = (
                (errno.ETIMEDOUT, CONNECT_PATIENCE) if silent else (errno.ECONNREFUSED, 0)
            )
            client.end.fail(number, after)
        self.end.crash(silent)
        self.forget()

    def is_heard(self) -> bool:
        """Whether what it sends arrives, now or later."""
        return (
            not self.silenced
            and not self.end.vanished
            and self.toward is not None
            and self.network.reaches(self.machine, self.toward)
        )

    def adapt(self) -> None:
        """The network has been cut, or mended: hold what is on its way to this end, or let it go.

        An end whose bytes nobody acknowledges gives up at last. With SO_KEEPALIVE an end that is
        silent does so as well.
        """
        assert self.toward is not None
        self.end.hold(self.silenced or not self.network.reaches(self.toward, self.machine))
        if self.is_heard():
            self.doomed = False
            self.end.doom(-1, 0)
            self.end.asks = self.network.asks
            return
        self.end.asks = True
        if self.other is not None and self.other.end.on_its_way:
            self.despair(SEND_PATIENCE)
        elif self.has("SO_KEEPALIVE"):
            idle = self.tcp_option("TCP_KEEPIDLE", 7200)
            tries = self.tcp_option("TCP_KEEPINTVL", 75) * self.tcp_option("TCP_KEEPCNT", 9)
            self.despair((idle + tries) * NS)

    def despair(self, after: int) -> None:
        """Give up in so many nanoseconds, unless the network is mended until then."""
        if not self.doomed:
            self.doomed = True
            self.end.doom(after, errno.ETIMEDOUT)

    # In words, for the story of a run

    def who(self) -> str:
        """The machine, or what the end is."""
        if self.machine is not self.network.outside:
            return self.machine.title
        return "the client" if self.is_client else "the server"

    def whom(self) -> str:
        """The machine of the other end, or what that is."""
        if self.toward is not None and self.toward is not self.network.outside:
            return self.toward.title
        return "the server" if self.is_client else "the client"

    def connection(self) -> str:
        """The connection that this is an end of."""
        address = self.remote if self.is_client else self.local
        port = address[1] if isinstance(address, tuple) else address
        client, server = (self.who(), self.whom()) if self.is_client else (self.whom(), self.who())
        return f"the connection of {client} to {server} on port {port}"
