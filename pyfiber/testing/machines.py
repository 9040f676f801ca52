"""The machines of a network in memory, which do not share addresses, ports or sockets.

The code under test runs on the machine of the test, unless ``Network.node()`` has started it. The
fibers of a node, and all that they spawn, carry the node's present life in their contexts.
"""

from __future__ import annotations

import contextvars
import errno
import math
import socket as _standard
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pyfiber import FiberError, _engine

if TYPE_CHECKING:
    from pyfiber.testing.endpoint import Endpoint
    from pyfiber.testing.network import Network

#: A port of a host, or the path of a Unix socket.
Key: TypeAlias = tuple[int, str, int] | str | bytes

#: Ports for sockets that do not name one (RFC 6335).
FIRST_PORT, LAST_PORT = 49152, 65535

ANY: Final = {int(_standard.AF_INET): "0.0.0.0", int(_standard.AF_INET6): "::"}
LOOPBACK: Final = {int(_standard.AF_INET): "127.0.0.1", int(_standard.AF_INET6): "::1"}


class Life:
    """The time of a machine from a start to a crash: its sockets and fibers belong to it."""

    __slots__ = ("machine", "over")

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.over = False


#: The life of the machine on which the running code runs; None: on that of the test.
LIFE: contextvars.ContextVar[Life | None] = contextvars.ContextVar(
    "pyfiber.testing.machine", default=None
)


class Machine:
    """A machine. The one of the test has all addresses that no node has."""

    def __init__(self, network: Network, name: str, address: str) -> None:
        self.network = network
        self.name = name
        self.address = address
        self.bound: dict[Key, list[Endpoint]] = {}
        self.last_port = FIRST_PORT - 1
        self.life = Life(self)
        #: Whether the machine does not even refuse: it has no power.
        self.silent = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} at {self.address}>"

    @property
    def title(self) -> str:
        return "the test" if self is self.network.outside else self.name

    def has(self, family: int, host: str) -> bool:
        """Whether a socket of this machine may be bound to the host's address."""
        return True

    def source(self, family: int, host: str, target: Machine) -> str:
        """The host in the address of a client that connects to a host of the target."""
        if target is self or family != _standard.AF_INET:
            return host
        return self.address

    # What is bound here

    def free_port(self, family: int, host: str) -> int:
        for _ in range(FIRST_PORT, LAST_PORT + 1):
            self.last_port = FIRST_PORT if self.last_port == LAST_PORT else self.last_port + 1
            if not self.at(family, host, self.last_port):
                return self.last_port
        raise OSError(errno.EADDRNOTAVAIL, "no port is free")

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


class Node(Machine):
    """A machine that runs a function: what ``Network.node()`` returns.

    ``name`` and ``address`` are constant. ``fiber`` is the fiber that runs the function, of the
    last start; its ``join()`` and ``result()`` wait for that.
    """

    def __init__(
        self,
        network: Network,
        name: str,
        address: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        drift: float,
        offset: float,
    ) -> None:
        super().__init__(network, name, address)
        self.fn = fn
        self.args = args
        self.drift = drift
        self.offset = offset
        self.fiber: _engine.Fiber[Any]
        self.start()

    @property
    def up(self) -> bool:
        """Whether it has been started and has not crashed since."""
        return not self.life.over

    def has(self, family: int, host: str) -> bool:
        """Whether the node has this address."""
        return host in (ANY[family], LOOPBACK[family], self.address)

    def start(self) -> None:
        self.life = Life(self)
        self.silent = False
        context = contextvars.copy_context()
        context.run(LIFE.set, self.life)
        self.fiber = _engine.Fiber(self.fn, self.args, name=self.name, context=context)
        self.fiber.start()

    def crash(self, *, silent: bool = False) -> None:
        """Stop the node at once, as if its process were killed.

        Connections of the node are reset, and what they have sent and has not arrived is lost.
        Attempts to connect are refused. Fibers of the node end with FiberExit where they wait: an
        ``except`` or ``finally`` block of theirs cannot wait, and reaches nobody.

        With ``silent=True`` the machine has lost its power: peers learn nothing, so their
        connections are half-open, and nobody answers them before the node is restarted.

        Does nothing if the node is down.
        """
        if not self.up:
            return
        if LIFE.get() is self.life:  # only other code can end the fiber that runs
            killer = _engine.Fiber(
                self.crash, kwargs={"silent": silent}, context=contextvars.Context()
            )
            killer.start()
            while True:
                _engine.park()
        how = "loses its power" if silent else "crashes"
        self.network.tell(f"{self.name} {how}")
        self.stop(silent)

    def stop(self, silent: bool) -> None:
        life, self.silent = self.life, silent
        life.over = True
        for endpoint in self.network.endpoints_of(life):
            endpoint.crash(silent)
        for fiber in reversed(self.network.fibers()):  # children before their parents
            context = fiber.context
            if context is not None and context.get(LIFE) is life and not fiber.done():
                _engine._stop_fiber(fiber)

    def restart(self) -> None:
        """Start the node again: its function is called with the same arguments, in new fibers.

        Connections from before its crash are reset as soon as their peers send. FiberError if the
        node is up, or in a ``finally`` block of a machine that has crashed.
        """
        check_alive()
        if self.up:
            raise FiberError(f"the node {self.name!r} is up: crash() it first")
        self.network.tell(f"{self.name} is started again")
        self.start()
        self.network.answer()

    def clock_ns(self, true: int) -> int:
        """What the node's clock shows at this time of the run, in nanoseconds."""
        return true + round(true * self.drift + self.offset * 1e9)


def on_this_machine(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs on the machine of the caller, also with an empty context."""
    life = LIFE.get()
    if life is None:
        return function

    def called(*args: Any, **kwargs: Any) -> Any:
        LIFE.set(life)
        return function(*args, **kwargs)

    return called


def has_crashed() -> bool:
    """Whether the machine of the running code has crashed, and the code cleans up."""
    life = LIFE.get()
    return life is not None and life.over


def check_alive() -> None:
    """FiberError if the machine of the running code has crashed, and the code cleans up."""
    if has_crashed():
        raise FiberError("code of a machine that has crashed cannot start a machine")


def node_here() -> Node | None:
    """The node on which the running code runs."""
    life = LIFE.get()
    return life.machine if life is not None and isinstance(life.machine, Node) else None


def check_clock(drift: float, offset: float) -> tuple[float, float]:
    """Check the error of a node's clock; ValueError, TypeError."""
    for what, value in (("drift", drift), ("offset", offset)):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{what} is a number, not {type(value).__name__!r}")
        if not math.isfinite(value):
            raise ValueError(f"{what} must be finite, not {value}")
    if not -0.5 <= drift <= 1:
        raise ValueError(f"a clock drifts by -0.5 to 1 seconds a second, not {drift}")
    return drift, offset
