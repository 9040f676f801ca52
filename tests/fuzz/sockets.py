"""Sockets of the system and of a network in memory: bytes in order, none lost, nobody waits on.

Every stream has the same bytes, so who reads knows what must come. Sockets of the system always
have a timeout: nobody would notice that all wait for each other.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import struct
import sys
import time
import weakref
from collections.abc import Callable
from typing import Any

import pyfiber
from pyfiber import _engine, selectors, socket
from pyfiber.testing import Network, VirtualClock

from .program import acts
from .scopes import ScopeActs

#: Byte number n of each stream is PATTERN[n % 251].
PATTERN = bytes(range(251)) * 1100
PERIOD = 251
SIZES = (1, 2, 10, 300, 5000, 70_000, 250_000)
#: For what has been sent to arrive, when nobody sends any more.
SETTLE_SECONDS = 10


def pattern(start: int, size: int) -> bytes:
    at = start % PERIOD
    return PATTERN[at : at + size]


def open_sockets() -> set[str]:
    """The sockets of this process, where the system tells."""
    found = set()
    with contextlib.suppress(OSError):
        for number in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/self/fd/{number}")
                found |= {target} if target.startswith("socket:") else set()
    return found


class Flow:
    """One direction of a connection."""

    def __init__(self) -> None:
        self.sent = 0  # that senders were told of
        self.got = 0
        self.known = True  # all that is sent will come
        self.ended = False  # by its sender
        self.reading = self.writing = False  # somebody is at it
        self.source: Callable[[], Peer | None] = lambda: None


class Peer:
    """One end, with one of its sockets."""

    def __init__(self, sock: Any, incoming: Flow, outgoing: Flow) -> None:
        self.sock = sock
        self.network = _engine._network() if sock.fileno() >= 10**9 else None
        self.incoming = incoming
        self.outgoing = outgoing
        outgoing.source = weakref.ref(self)

    def is_open(self) -> bool:
        return self.sock.fileno() >= 0

    def doubt(self) -> None:
        """From here on bytes may be lost."""
        self.incoming.known = self.outgoing.known = False


class SocketActs(ScopeActs):
    """Connections are made, used, shared, handed on, closed and dropped at random."""

    ACTS = acts(
        "pair 12, listen 6, connect 20, accept 20, send 80, receive 90, file 8, shut_down 6,"
        "close_socket 6, abort 3, hand_over 10, duplicate 8, set_timeout 12, wait_for 20,"
        "choose 10, look_at_socket 4, option 4, close_listener 2, spawn 30, cancel 12"
    )
    EXPECTED = (OSError,)  # whatever the system says of a closed one

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.calls: dict[Any, tuple[Flow, Flow]] = {}  # who has connected, and from where

    # ------------------------------------------------------------------ its life

    def play(self) -> None:
        before = open_sockets()
        super().play()
        gc.collect()
        left = open_sockets() - before
        if left and not self.doubts:
            self.found(f"sockets are left open: {len(left)}")

    def run(self) -> None:
        if self.random.random() < 0.5:
            super().run()
        else:
            self.memory_run(self.main_body())

    def main_body(self) -> Callable[[], Any]:
        body = super().main_body()

        def main() -> Any:
            self.pair()
            self.listen()
            return body()

        return main

    def steps(self) -> None:
        """More than others do: a connection takes some."""
        for _ in range(3):
            super().steps()

    def memory_run(self, body: Callable[[], Any]) -> None:
        """Its sockets are in memory, and those of the system that were made before."""
        scheduler = self.keep("scheduler", pyfiber.Scheduler())
        clock = VirtualClock(threads=True)
        network = Network(buffer=self.random.choice((1, 10, 1000, 65536)))
        self.calls.clear()  # each network has the same addresses

        def main() -> Any:
            try:
                return body()
            finally:
                self.settle(network)

        try:
            self.call("attach", clock.attach, scheduler)
            self.call("attach", network.attach, scheduler)
            self.call("Scheduler.run", scheduler.run, self.bounded(main))
        finally:
            with contextlib.suppress(pyfiber.FiberError):
                clock.detach()
            self.call("close", scheduler.close)
            network.detach()
            self.calls.clear()

    def end(self) -> None:
        try:
            self.settle(None)
        finally:
            super().end()

    # ------------------------------------------------------------------- making

    def moment(self) -> float:
        """A timeout of a socket."""
        return self.random.choice((0, 0.0001, 0.001, 0.002))

    def peer(self) -> Any:
        """One that may be used here, or not."""
        return self.any("peer")

    def keep_peer(self, sock: Any, incoming: Flow, outgoing: Flow) -> Peer:
        sock.settimeout(self.moment())
        peer: Peer = self.keep("peer", Peer(sock, incoming, outgoing))
        return peer

    def pair(self) -> None:
        pair = self.call("socketpair", socket.socketpair)
        if pair is not None:
            one, other = Flow(), Flow()
            self.keep_peer(pair[0], one, other)
            self.keep_peer(pair[1], other, one)

    def listen(self) -> None:
        backlog = self.random.choice((0, 1, 5))
        place = ("127.0.0.1", 0)
        listener = self.call("create_server", socket.create_server, place, backlog=backlog)
        if listener is not None:
            listener.settimeout(self.moment())
            self.keep("listener", listener)

    def connect(self) -> None:
        if (listener := self.any("listener")) is None:
            return

        def connect() -> None:
            sock = socket.socket()
            try:
                sock.settimeout(self.moment())
                sock.connect(listener.getsockname())
                one, other = Flow(), Flow()
                self.calls[sock.getsockname()] = other, one
                self.keep_peer(sock, one, other)
            except BaseException:
                with contextlib.suppress(OSError):
                    self.calls.pop(sock.getsockname(), None)  # an earlier one's
                sock.close()
                raise

        self.call("connect", connect)

    def accept(self) -> None:
        if (listener := self.any("listener")) is None:
            return

        def accept() -> None:
            sock, address = listener.accept()
            incoming, outgoing = self.calls.pop(address, (None, None))
            if incoming is None or outgoing is None:
                sock.close()
            else:
                self.keep_peer(sock, incoming, outgoing)

        self.call("accept", accept)

    def close_listener(self) -> None:
        if (listener := self.any("listener")) is not None:
            for flows in self.calls.values():
                flows[0].known = flows[1].known = False
            self.call("listener.close", listener.close)

    # ------------------------------------------------------------------ writing

    def send(self) -> None:
        if (peer := self.peer()) is None:
            return
        way = self.random.choice((self.send_some, self.send_all, self.send_many, self.write_raw))
        self.exclusively(peer.outgoing, "writing", lambda: way(peer.sock, peer.outgoing))

    def exclusively(self, flow: Flow, doing: str, act: Callable[[], None]) -> None:
        """One at a time, so that the order is known; a second one, which is refused as a rule, at
        times.
        """
        doubts = self.doubts
        mine = not getattr(flow, doing)
        if not mine:
            if self.random.random() < 0.7:
                return
            flow.known = False  # it may be this one's turn, at another socket of the same end
        setattr(flow, doing, True)
        try:
            act()
        finally:
            if mine:
                setattr(flow, doing, False)
            if self.doubts != doubts:
                flow.known = False

    def next_bytes(self, flow: Flow) -> bytes:
        return pattern(flow.sent, self.random.choice(SIZES))

    def send_some(self, sock: Any, flow: Flow) -> None:
        data = self.next_bytes(flow)

        def send() -> None:
            flow.sent += sock.send(data)

        self.call(f"send {len(data)}", send)

    def send_many(self, sock: Any, flow: Flow) -> None:
        data = self.next_bytes(flow)

        def send() -> None:
            flow.sent += sock.sendmsg([data[:1], b"", data[1:]])

        if hasattr(sock, "sendmsg"):
            self.call(f"sendmsg {len(data)}", send)

    def send_all(self, sock: Any, flow: Flow) -> None:
        data = self.next_bytes(flow)

        def send() -> None:
            try:
                sock.sendall(data)
            except BaseException as exc:
                flow.sent += getattr(exc, "sent", 0)
                raise
            flow.sent += len(data)

        self.call(f"sendall {len(data)}", send)

    def write_raw(self, sock: Any, flow: Flow) -> None:
        data = self.next_bytes(flow)

        def write() -> None:
            with sock.makefile("wb", buffering=0) as file:
                flow.sent += file.write(data) or 0

        self.call(f"write {len(data)}", write)

    # ------------------------------------------------------------------ reading

    def receive(self) -> None:
        if (peer := self.peer()) is None:
            return
        way = self.random.choice(
            (self.read_some, self.read_some, self.read_into, self.peek, self.read_raw)
        )
        self.exclusively(peer.incoming, "reading", lambda: way(peer.sock, peer.incoming))

    def came(self, flow: Flow, data: bytes | bytearray, size: object, taken: bool = True) -> None:
        """Is it what must come now?"""
        if flow.known and data != pattern(flow.got, len(data)):
            self.found(f"other bytes than were sent, at {flow.got}")
        if taken:
            flow.got += len(data)
        if not flow.known or flow.got > flow.sent:
            return  # (who sends may not know yet how much has gone)
        source = flow.source()
        alive = source is not None and source.is_open()
        if alive and not data and type(size) is int and not flow.ended:
            self.found(
                f"the end comes after {flow.got} bytes of {flow.sent}, and nobody has said so"
            )

    def read_some(self, sock: Any, flow: Flow) -> None:
        size = self.maybe(self.random.choice(SIZES))

        def read() -> None:
            self.came(flow, sock.recv(size), size)

        self.call("recv", read)

    def read_into(self, sock: Any, flow: Flow) -> None:
        buffer = bytearray(self.random.choice(SIZES))
        size = self.maybe(len(buffer))

        def read() -> None:
            count = sock.recv_into(buffer, size)
            self.came(flow, buffer[:count], size)

        self.call("recv_into", read)

    def peek(self, sock: Any, flow: Flow) -> None:
        size = self.random.choice(SIZES)

        def read() -> None:
            self.came(flow, sock.recv(size, socket.MSG_PEEK), size, taken=False)

        self.call("peek", read)

    def read_raw(self, sock: Any, flow: Flow) -> None:
        size = self.random.choice(SIZES)

        def read() -> None:
            with sock.makefile("rb", buffering=0) as file:
                data = file.read(size)
                if data is not None:
                    self.came(flow, data, size)

        self.call("read", read)

    def file(self) -> None:
        """With a buffer, which takes what it does not give: so nothing is known then."""
        if (peer := self.peer()) is None:
            return
        peer.doubt()

        def use() -> None:
            with peer.sock.makefile("rwb") as file:
                for _ in range(self.random.randrange(3)):
                    act = self.random.choice((file.readline, file.flush, lambda: file.write(b"x")))
                    act()
                    self.step()

        self.call("makefile", use)

    # ------------------------------------------------------- its shape, and its end

    def shut_down(self) -> None:
        if (peer := self.peer()) is None:
            return
        how = self.random.choice((socket.SHUT_WR, socket.SHUT_WR, socket.SHUT_RD, socket.SHUT_RDWR))
        peer.outgoing.ended = True
        if how != socket.SHUT_WR:
            peer.doubt()
        self.call(f"shutdown {how}", peer.sock.shutdown, how)

    def close_socket(self) -> None:
        if (peer := self.peer()) is not None:
            peer.doubt()
            self.call("close", peer.sock.close)

    def abort(self) -> None:
        """Closed with a reset."""
        if (peer := self.peer()) is not None:
            peer.doubt()
            linger = struct.pack("ii", 1, 0)
            self.call("linger", peer.sock.setsockopt, socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.call("close", peer.sock.close)

    def hand_over(self) -> None:
        """Its number goes to another object."""
        if (peer := self.peer()) is None or peer.sock.fileno() < 0:
            return

        def hand_over() -> None:
            number = peer.sock.detach()
            try:
                peer.sock = socket.socket(fileno=number)
            except BaseException:
                peer.doubt()
                with contextlib.suppress(OSError):
                    os.close(number)
                raise
            peer.sock.settimeout(self.moment())

        if peer.network is _engine._network():  # elsewhere the number means another one
            self.call("hand over", hand_over)

    def duplicate(self) -> None:
        """Another socket of the same end; its flows are the same."""
        if (peer := self.peer()) is not None:
            twin = self.call("dup", peer.sock.dup)
            if twin is not None:
                self.keep_peer(twin, peer.incoming, peer.outgoing)

    def set_timeout(self) -> None:
        if (peer := self.peer()) is not None:
            timeout = self.maybe(self.moment())
            if peer.network is not None and self.forever() and self.random.random() < 0.5:
                timeout = None
            self.call("settimeout", peer.sock.settimeout, timeout)

    def option(self) -> None:
        if (peer := self.peer()) is not None:
            size = self.maybe(self.random.choice((1, 10_000)))
            name = self.random.choice((socket.SO_SNDBUF, socket.SO_RCVBUF, socket.SO_KEEPALIVE))
            self.call("setsockopt", peer.sock.setsockopt, socket.SOL_SOCKET, name, size)

    def look_at_socket(self) -> None:
        if (peer := self.peer()) is not None:
            for name in ("getsockname", "getpeername", "gettimeout", "fileno", "__repr__"):
                self.call(name, getattr(peer.sock, name))

    # ------------------------------------------------------------------ waiting

    def limit(self) -> Any:
        """With a limit: a wait for a descriptor is never a deadlock."""
        if self.random.random() < self.malice:
            return self.evil()
        return self.seconds()

    def wait_for(self) -> None:
        if (peer := self.peer()) is not None:
            act = self.random.choice((pyfiber.wait_readable, pyfiber.wait_writable))
            what = self.random.choice((peer.sock, peer.sock, peer.sock.fileno()))
            self.call(act.__name__, act, what, self.limit())

    def choose(self) -> None:
        """select(), or a selector."""
        socks = [peer.sock for peer in (self.peer(), self.peer()) if peer is not None]
        limit = self.random.choice((0, 0.0001, 0.001))

        def use() -> None:
            with selectors.DefaultSelector() as selector:
                for sock in {id(sock): sock for sock in socks}.values():
                    selector.register(sock, selectors.EVENT_READ)
                self.step()
                selector.select(limit)

        if self.random.random() < 0.5:
            self.call("select", selectors.select, socks, socks, [], limit)
        else:
            self.call("selector", use)

    # ------------------------------------------------------------------ at the end

    def settle(self, network: Network | None) -> None:
        """All that was sent arrives where somebody still could read it."""
        fuel, self.fuel = self.fuel, 0
        tracing, profiling = sys.gettrace(), sys.getprofile()
        sys.settrace(None)
        sys.setprofile(None)
        try:
            for ghost in self.ghosts.get("peer", ())[:]:
                peer = ghost()
                if peer is not None and peer.network is network:
                    self.drain(peer)
        finally:
            self.fuel = fuel
            sys.settrace(tracing)
            sys.setprofile(profiling)

    def drain(self, peer: Peer) -> None:
        flow = peer.incoming
        until = time.monotonic() + SETTLE_SECONDS
        while self.is_due(peer, flow) and time.monotonic() < until:
            peer.sock.settimeout(0)
            try:
                data = peer.sock.recv(65536)
            except BlockingIOError:
                if peer.network is not None:
                    break
                select.select([peer.sock], [], [], 0.1)
            except (pyfiber.FiberError, pyfiber.Cancelled):
                return
            else:
                self.came(flow, data, 65536)
                if not data:
                    break
        if self.is_due(peer, flow):
            self.found(f"{flow.sent - flow.got} bytes of {flow.sent} are lost")

    def is_due(self, peer: Peer, flow: Flow) -> bool:
        """Is there more to come, for certain?"""
        source = flow.source()
        still = source is not None and source.is_open() and peer.is_open()
        busy = flow.reading or flow.writing
        return still and flow.known and not busy and flow.got < flow.sent


class Kind(SocketActs):
    """All of them."""
