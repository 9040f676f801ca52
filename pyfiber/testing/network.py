"""A network in memory: which sockets listen where, which are connected, and what goes wrong.

The engine moves the bytes of a connection (csrc/engine/io/inmemory.c). Everything that decides what
may connect, under which address, is here, and so is every fault. machines.py has the machines with
their addresses, endpoint.py what is behind a socket, sockets.py the sockets.
"""

from __future__ import annotations

import errno
import math
import socket as _standard
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyfiber import FiberError, _engine
from pyfiber._memory import FIRST_NUMBER
from pyfiber.testing.endpoint import (
    AF_UNIX,
    CONNECT_PATIENCE,
    NS,
    SEND_PATIENCE,
    UNDER_WAY,
    Endpoint,
)
from pyfiber.testing.machines import (
    ANY,
    LIFE,
    LOOPBACK,
    Key,
    Life,
    Machine,
    Node,
    check_alive,
    check_clock,
)
from pyfiber.testing.story import place as place_of

#: Bytes that a connection holds in each direction before its sender has to wait.
BUFFER: Final = 65536

#: Seconds until Linux sends again what was lost: the first packet of a connection, a later one.
CONNECT_AGAIN, SEND_AGAIN = 1.0, 0.2

#: The most faults that a run may have.
MOST_FAULTS: Final = 16

#: A jitter is drawn in so many steps from none to all of it.
JITTERS: Final = 4

Place: TypeAlias = "Machine | str"


@dataclass(frozen=True, slots=True)
class Line:
    """How slow the network is between two machines: seconds, and bytes a second."""

    latency: float
    jitter: float
    bandwidth: int | None

    def delay(self) -> float:
        """Draw how long what is sent now is on its way."""
        if not self.jitter:
            return self.latency
        return self.latency + self.jitter * _engine._choose(JITTERS) / (JITTERS - 1)


class Network:
    """A network in memory, for the runs of ``run()``, ``explore()`` and similar functions.

    With ``network=Network()``, or ``network=True`` for one with the usual settings, each stream
    socket that ``pyfiber.socket`` and ``pyfiber.net`` make in the run is one of this network: TCP
    and Unix sockets, listeners and pairs, without descriptors or system calls. All addresses exist,
    but only those answer at which the run listens. Each run begins with an empty network.

    ``buffer`` is how many bytes a connection holds in each direction before its sender has to wait.
    ``hosts`` gives names their addresses: ``hosts={"db.example": "10.0.0.1"}``; "localhost" is
    known, and so are nodes.

    ``latency`` is how many seconds what is sent is on its way, ``jitter`` how many more that may
    be, ``bandwidth`` how many bytes a second a connection carries. What is sent later never arrives
    earlier.

    The other arguments are faults that `explore()` may choose, at most ``faults`` of them in a run:

    - ``resets``: a connection is reset, and what was to be sent is lost;
    - ``loss``: what is sent is lost and sent again, so it arrives late;
    - ``half_open``: a connection goes silent, and neither end is notified;
    - ``refused``: an attempt to connect is refused.
    """

    def __init__(
        self,
        *,
        buffer: int = BUFFER,
        hosts: Mapping[str, str] | None = None,
        latency: float = 0.0,
        jitter: float = 0.0,
        bandwidth: int | None = None,
        loss: bool = False,
        resets: bool = False,
        half_open: bool = False,
        refused: bool = False,
        faults: int = 2,
    ) -> None:
        self.buffer = check_number(buffer, "buffer", "bytes", 1, 2**30)
        if hosts is not None and not isinstance(hosts, Mapping):
            raise TypeError(f"hosts maps names to addresses, not {type(hosts).__name__!r}")
        self.hosts = {name.lower(): address for name, address in (hosts or {}).items()}
        for address in self.hosts.values():
            family_of(address)
        self.line = Line(
            check_seconds(latency, "latency"),
            check_seconds(jitter, "jitter"),
            check_bandwidth(bandwidth),
        )
        self.on_send = wanted(loss=loss, resets=resets, half_open=half_open)
        self.on_connect = wanted(loss=loss, refused=refused)
        self.faults = check_number(faults, "faults", "faults", 0, MOST_FAULTS)
        self.scheduler: _engine.Scheduler | None = None
        #: Called with the text of each event, for the log of the run; the runner sets it.
        self.on_event: Callable[[str], object] | None = None
        self.reset()

    @classmethod
    def current(cls) -> Network:
        """The network of this run; FiberError if the run has none."""
        network = _engine._network()
        if not isinstance(network, cls):
            raise FiberError("this run has no network in memory: pass network= to it")
        return network

    def reset(self) -> None:
        """Return to the state before a run: nobody listens, nothing was connected."""
        self.outside = Machine(self, "test", "10.0.0.1")
        #: Whether endpoints have to ask before they send.
        self.asks = bool(self.line.jitter or self.on_send)
        self.nodes: dict[str, Node] = {}
        #: All open endpoints. (A dict, because the order of a set differs from run to run.)
        self.endpoints: dict[Endpoint, None] = {}
        self.numbers: dict[int, Endpoint] = {}
        self.last_number = FIRST_NUMBER - 1
        #: The sockets in memory in epoll objects: the events that each is watched for, by number.
        self._epolls: dict[Any, dict[int, int]] = {}
        self.lines: dict[frozenset[Machine], Line] = {}
        #: Pairs of machines: nothing arrives at the second that the first sends.
        self.blocked: set[tuple[Machine, Machine]] = set()
        #: The events of the run that are no program's: when, and what.
        self.events: list[tuple[float, str]] = []

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
        events = self.events
        self.reset()
        self.events = events  # for story()

    def stop_nodes(self) -> None:
        """Stop all nodes: the function under test has returned."""
        for node in self.nodes.values():
            if node.up:
                node.stop(True)

    def rest(self) -> None:
        """End the run: nothing is on its way any more, and nothing waits for a time."""
        for endpoint in self.endpoints:
            endpoint.end.forget()
            endpoint.end.hold(False)
            endpoint.end.set_line(0, 0)
            endpoint.end.asks = False
            endpoint.other = None

    def __repr__(self) -> str:
        listening = sum(endpoint.listens for endpoint in self.endpoints)
        return f"<pyfiber.testing.Network, {listening} listening>"

    # Methods that pyfiber.socket, pyfiber.selectors and pyfiber.dns call

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

    def _create_server(self, address: Any, **kwargs: Any) -> Any:
        from pyfiber.testing import sockets

        return sockets.create_server(address, **kwargs)

    def _end_of(self, number: int) -> _engine._MemoryEnd | None:
        endpoint = self.numbers.get(number)
        return None if endpoint is None else endpoint.end

    def _known_names(self) -> dict[str, str]:
        nodes = {name.lower(): node.address for name, node in self.nodes.items()}
        return {"localhost": LOOPBACK[_standard.AF_INET], **self.hosts, **nodes}

    def _resolve(
        self, host: str, port: int, family: int, type: int, proto: int, flags: int, /
    ) -> list[tuple[Any, Any, int, str, Any]]:
        """Resolve a name, as the resolvers of ``pyfiber.dns`` do."""
        address = self._known_names().get(host.lower().removesuffix("."))
        if address is None:
            raise _standard.gaierror(
                _standard.EAI_NONAME,
                f"no host {host!r} in the network in memory: Network(hosts={{{host!r}: ADDRESS}})",
            )
        return _standard.getaddrinfo(address, port, family, type, proto, flags)

    def _names_of(self, host: str) -> tuple[str, list[str], list[str]]:
        """What gethostbyaddr() returns for an address or a name; herror if there is no name."""
        names = self._known_names()
        address = names.get(host.lower(), host)
        known = [name for name, each in names.items() if each == address]
        if not known:
            raise _standard.herror(1, "Unknown host")
        return known[0], known[1:], [address]

    def _hostname(self) -> str:
        machine = self.life_here().machine
        return "localhost" if machine is self.outside else machine.name

    # Sockets

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

    def endpoints_of(self, life: Life) -> list[Endpoint]:
        return [endpoint for endpoint in self.endpoints if endpoint.life is life]

    def connected(self) -> Iterable[Endpoint]:
        """The endpoints that are or were connected to a machine over the network."""
        return [
            endpoint
            for endpoint in self.endpoints
            if endpoint.toward is not None
            and endpoint.connecting is None
            and self.line_between(endpoint.machine, endpoint.toward) is not None
        ]

    def fibers(self) -> list[_engine.Fiber[Any]]:
        assert self.scheduler is not None
        return self.scheduler.fibers()

    # Machines

    def life_here(self) -> Life:
        """The life of the machine on which the running code runs."""
        life = LIFE.get()
        return life if life is not None and life.machine.network is self else self.outside.life

    def node(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        drift: float = 0.0,
        offset: float = 0.0,
    ) -> Node:
        """Start a machine that runs ``fn(*args)``, with a separate address and sockets.

        ``name`` is the name of its host. Fibers that it spawns are on that machine, too. The run
        stops all nodes when the function under test returns.

        The node's clock shows ``offset`` more than the run's at the beginning, and gains ``drift``
        seconds in each second. Code sees that clock through the module ``time``, if the run has
        ``virtualize_time=True``.

        Call this in a run that has this network; FiberError elsewhere. ValueError if the name is
        taken.
        """
        if _engine._network() is not self or _engine._running_scheduler() is None:
            raise FiberError("node() starts a machine in a run that has this network")
        if not isinstance(name, str):
            raise TypeError(f"the name of a node is a string, not {type(name).__name__!r}")
        if not callable(fn):
            raise TypeError(f"a node runs a function, not {type(fn).__name__!r}")
        if not name or name in self.nodes or name in (self.outside.name, "localhost"):
            raise ValueError(f"a node cannot have the name {name!r}, or another one has it")
        number = len(self.nodes) + 2
        address = self.hosts.get(name.lower(), f"10.0.{number >> 8}.{number & 255}")
        check_clock(drift, offset)
        check_alive()
        node = Node(self, name, address, fn, args, drift, offset)
        self.nodes[name] = node
        return node

    def machine(self, place: Place) -> Machine:
        """The machine for an argument: a node, the name of one, or "test"."""
        if isinstance(place, Machine) and place.network is self:
            return place
        if isinstance(place, str):
            if place == self.outside.name:
                return self.outside
            if place in self.nodes:
                return self.nodes[place]
            known = ", ".join(map(repr, [*self.nodes, self.outside.name]))
            raise ValueError(f"there is no node {place!r}; there are {known}")
        raise TypeError(f"a node or its name is needed, not {type(place).__name__!r}")

    def machines(self, places: Place | Sequence[Place]) -> list[Machine]:
        if isinstance(places, (str, Machine)):
            return [self.machine(places)]
        if not isinstance(places, (list, tuple, set, frozenset)):
            raise TypeError(f"a machine is a node or its name, not {type(places).__name__!r}")
        return [self.machine(place) for place in places]

    def machine_at(self, key: Key, here: Machine) -> Machine:
        """The machine that has the address, seen from another one."""
        if not isinstance(key, tuple):
            return here
        family, host, _ = key
        if here is not self.outside and host in (LOOPBACK[family], here.address):
            return here
        for node in self.nodes.values():
            if node.address == host:
                return node
        return self.outside

    # How the network is

    def line_between(self, one: Machine, other: Machine) -> Line | None:
        """The line between two machines; None: a node talks to itself."""
        if one is other and one is not self.outside:
            return None
        return self.lines.get(frozenset((one, other)), self.line) if self.lines else self.line

    def link(
        self,
        one: Place,
        other: Place,
        *,
        latency: float | None = None,
        jitter: float | None = None,
        bandwidth: int | None = None,
    ) -> None:
        """Make the line between two machines slower or faster than others, from now on.

        What is left out is that of the network.
        """
        ends = frozenset((self.machine(one), self.machine(other)))
        self.lines[ends] = Line(
            self.line.latency if latency is None else check_seconds(latency, "latency"),
            self.line.jitter if jitter is None else check_seconds(jitter, "jitter"),
            self.line.bandwidth if bandwidth is None else check_bandwidth(bandwidth),
        )
        self.asks = self.asks or bool(jitter)
        for endpoint in self.connected():
            endpoint.end.asks = endpoint.end.asks or self.asks
            self.set_line(endpoint)

    def reaches(self, one: Machine, other: Machine) -> bool:
        """Whether what the first machine sends arrives at the second."""
        return (one, other) not in self.blocked

    def partition(
        self,
        ones: Place | Sequence[Place],
        others: Place | Sequence[Place] | None = None,
        *,
        one_way: bool = False,
    ) -> None:
        """Cut the network between two machines, or two groups of machines, until ``heal()``.

        Without ``others`` the first group is cut off from all other machines, that of the test
        among them. What is sent does not arrive, and neither end is notified; after ``heal()`` it
        arrives. Nobody answers an attempt to connect.

        With ``one_way=True`` only what ``ones`` send to ``others`` does not arrive.
        """
        first = self.machines(ones)
        everybody: list[Machine] = [self.outside, *self.nodes.values()]
        second = (
            [each for each in everybody if each not in first]
            if others is None
            else self.machines(others)
        )
        for one in first:
            for other in second:
                if one is not other:
                    self.blocked |= {(one, other)} if one_way else {(one, other), (other, one)}
        what = "is no longer heard by" if one_way else "is cut off from"
        what = what if len(first) == 1 else what.replace("is", "are", 1)
        self.tell(f"{names(first)} {what} {names(second) if second else 'nobody'}")
        self.adapt()

    def heal(self) -> None:
        """Undo all partitions: what was sent meanwhile arrives now."""
        if not self.blocked:
            return
        self.blocked.clear()
        self.tell("the network is whole again")
        self.adapt()
        self.answer()

    def adapt(self) -> None:
        for endpoint in self.connected():
            endpoint.adapt()

    def answer(self) -> None:
        """Let attempts to connect succeed that nobody has answered so far, and may be now.

        Peers of a machine that has lost its power are reset when they send.
        """
        for endpoint in list(self.endpoints):
            toward = endpoint.toward
            if toward is None or toward.silent or not self.is_connected(endpoint.machine, toward):
                continue
            endpoint.end.vanished = False
            if endpoint.connecting is not None:
                number = self.connect(endpoint, endpoint.try_again())
                if number not in (0, UNDER_WAY):
                    endpoint.end.fail(number)

    def meet_early(self, listener: Endpoint) -> None:
        """Connect clients whose attempts are still on their way to a socket that listens now."""
        for client in list(self.endpoints):
            key = client.connecting
            early = client.arrives - _engine.now()
            if (
                key is not None
                and early > 0
                and client.toward is listener.machine
                and self.is_connected(client.machine, listener.machine)
                and listener.machine.listener_for(key) is listener
            ):
                client.end.set_line(round(early * NS), 0)
                listener.meet(client, client.try_again())

    def is_connected(self, one: Machine, other: Machine) -> bool:
        return self.reaches(one, other) and self.reaches(other, one)

    # What happens to what is sent

    def connect(self, client: Endpoint, key: Key) -> int:
        """Connect an endpoint; returns 0, UNDER_WAY or the number of an error."""
        target = self.machine_at(key, client.machine)
        line = self.line_between(client.machine, target)
        client.go_toward(target, key)
        if not isinstance(key, tuple) or line is None:
            return self.ask_listener(client, target, key, 0)
        if target.silent or not self.is_connected(client.machine, target):
            return client.give_up_after(key, errno.ETIMEDOUT, CONNECT_PATIENCE)
        return self.connect_by(line, client, target, key)

    def connect_by(self, line: Line, client: Endpoint, target: Machine, key: Key) -> int:
        client.remote = client.address_of(key)
        fault = self.choose(self.on_connect)
        delay = line.delay()
        if fault == "loss":
            delay += CONNECT_AGAIN
            self.tell(
                f"the first packet of {client.connection()} is lost; {client.who()} tries again "
                f"after {CONNECT_AGAIN:g} s",
                here=True,
            )
        if fault == "refused":
            self.tell(f"{client.connection()} is refused", here=True)
        client.remote = None
        client.end.set_line(round(delay * NS), line.bandwidth or 0)
        if fault == "refused":
            return client.give_up_after(key, errno.ECONNREFUSED, round(2 * delay * NS))
        return self.ask_listener(client, target, key, round(2 * delay * NS))

    def ask_listener(self, client: Endpoint, target: Machine, key: Key, after: int) -> int:
        listener = target.listener_for(key)
        if listener is None:
            known = isinstance(key, tuple) or key in target.bound
            return client.give_up_after(key, errno.ECONNREFUSED if known else errno.ENOENT, after)
        return listener.meet(client, key)

    def join(self, client: Endpoint, server: Endpoint) -> None:
        """Connect the two ends."""
        self.set_line(server)
        client.end.join(server.end)
        line = self.line_between(client.machine, server.machine)
        asks = self.asks and line is not None and client.family != AF_UNIX
        client.end.asks = server.end.asks = asks

    def set_line(self, endpoint: Endpoint) -> None:
        """Set how slow the network is for what the endpoint sends, apart from jitter."""
        assert endpoint.toward is not None
        line = self.line_between(endpoint.machine, endpoint.toward)
        if line is not None and endpoint.family != AF_UNIX:
            endpoint.end.set_line(round(line.latency * NS), line.bandwidth or 0)

    def sends(self, endpoint: Endpoint) -> None:
        """An endpoint is about to send: choose how long that takes, and whether it arrives."""
        assert endpoint.toward is not None
        line = self.line_between(endpoint.machine, endpoint.toward)
        if line is None:
            return
        if not endpoint.is_heard():
            endpoint.despair(SEND_PATIENCE)
            return
        fault = self.choose(self.on_send) if endpoint.other is not None else None
        delay = line.delay() + (SEND_AGAIN if fault == "loss" else 0)
        endpoint.end.set_line(round(delay * NS), line.bandwidth or 0)
        if fault is not None:
            self.afflict(endpoint, fault)

    def afflict(self, endpoint: Endpoint, fault: str) -> None:
        who, whom, connection = endpoint.who(), endpoint.whom(), endpoint.connection()
        if fault == "loss":
            self.tell(
                f"what {who} sends to {whom} is lost and arrives {SEND_AGAIN:g} s later", here=True
            )
        elif fault == "resets":
            self.tell(f"what {who} sends to {whom} is lost: {connection} is reset", here=True)
            endpoint.end.cut()
        else:
            self.tell(
                f"what {who} sends to {whom} does not arrive: {connection} goes silent", here=True
            )
            for end in (endpoint, endpoint.other):
                assert end is not None
                end.silenced = True
                end.adapt()
            endpoint.despair(SEND_PATIENCE)

    # Choosing faults, and telling of them

    def choose(self, faults: Sequence[str]) -> str | None:
        """One of the faults, or None, as nearly always."""
        taken = _engine._fault(len(faults) + 1) if faults else 0
        return faults[taken - 1] if taken else None

    def fault(self, what: str) -> bool:
        """Whether something goes wrong here, by a choice of `explore()`; mostly False.

        For faults of the program's own, such as a full disk. The report says ``what``. Such a
        fault is one of the ``faults`` that a run may have.
        """
        happens = self.choose((what,)) is not None
        if happens:
            self.tell(what, here=True)
        return happens

    def tell(self, what: str, *, here: bool = False) -> None:
        """Note an event. With ``here``, also the place in the program where it happens."""
        if here and (place := place_of(sys._getframe(1))):
            what += f" (at {place})"
        self.events.append((_engine.now(), what))
        if self.on_event is not None:
            self.on_event(what)

    def story(self) -> str:
        """The events of the last run, a line each; empty if there were none."""
        return "\n".join(f"{when:12.3f}s  {what}" for when, what in self.events)


def names(machines: Sequence[Machine]) -> str:
    """Several machines in words."""
    *first, last = (machine.title for machine in machines)
    return f"{', '.join(first)} and {last}" if first else last


def wanted(**faults: bool) -> tuple[str, ...]:
    """The names of the faults that are wanted; TypeError if one is not said by True or False."""
    for name, value in faults.items():
        if not isinstance(value, bool):
            raise TypeError(
                f"{name} says whether that may happen: True or False, not {value!r}; when and how "
                "often is explored"
            )
    return tuple(name for name, value in faults.items() if value)


def check_number(value: object, what: str, unit: str, least: int, most: int) -> int:
    """Check a number of something; TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is a number of {unit}, not {type(value).__name__!r}")
    if not least <= value <= most:
        raise ValueError(f"{what} is a number of {unit} from {least} to {most}, not {value}")
    return value


def check_seconds(value: object, what: str) -> float:
    """Check a duration; TypeError or ValueError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{what} is a number of seconds, not {type(value).__name__!r}")
    if not (math.isfinite(value) and 0 <= value <= 86400):
        raise ValueError(f"{what} is a number of seconds from 0 to 86400, not {value}")
    return float(value)


def check_bandwidth(value: int | None) -> int | None:
    """Check a number of bytes a second; None: no limit."""
    return None if value is None else check_number(value, "bandwidth", "bytes a second", 1, 2**60)


def family_of(address: str) -> int:
    """The family of an address in numbers; ValueError if there is none, TypeError if no string."""
    if not isinstance(address, str):
        raise TypeError(f"hosts gives names addresses in numbers, not {type(address).__name__!r}")
    for family in ANY:
        try:
            _standard.inet_pton(family, address)
        except OSError:
            continue
        return family
    raise ValueError(f"hosts gives names addresses in numbers, not {address!r}")
