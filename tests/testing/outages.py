"""Faults that services get wrong: the programs pass while the network is well, and fail with them.

Each class is a program with its network. ``broken`` runs it with the mistake, ``right`` without.
``python tests/testing/outages.py`` prints how many schedules it takes to find each.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pyfiber
from pyfiber import net, selectors, sleep, socket, spawn, testing
from pyfiber.testing import Network, ScheduleFailure


class Outage:
    """A program with a mistake that only a fault of the network shows."""

    network: Network

    def broken(self) -> None:
        raise NotImplementedError

    def right(self) -> None:
        raise NotImplementedError


def serve(handler: Callable[[net.Stream], object]) -> None:
    with net.serve(handler, "0.0.0.0", 80, on_error=lambda stream, exc: None):
        pyfiber.park()


def ask(host: str, line: str, timeout: float = 5) -> str:
    """Send a line to a host and return its answer."""
    with pyfiber.timeout(timeout), net.connect(host, 80) as stream:
        stream.write(f"{line}\n".encode())
        return stream.read_until(b"\n").decode().strip()


# A retry after a lost reply -----------------------------------------------------------------------


class LostReply(Outage):
    """A client repeats a request whose reply was lost, and the counter counts it twice."""

    network = Network(latency=0.01, resets=True)

    def __init__(self) -> None:
        self.count = 0
        self.answers: dict[str, int] = {}

    def broken(self) -> None:
        self.play(with_key=False)

    def right(self) -> None:
        self.play(with_key=True)

    def play(self, with_key: bool) -> None:
        self.network.node("counter", serve, self.counter)
        web = self.network.node("web", self.client, with_key)
        counted = web.fiber.result()
        assert counted == [1, 2, 3], counted

    def counter(self, stream: net.Stream) -> None:
        for line in stream:
            key = line.decode().strip()
            if key == "" or key not in self.answers:
                self.count += 1
                self.answers[key] = self.count
            stream.write(b"%d\n" % self.answers[key])

    def client(self, with_key: bool) -> list[int]:
        return [self.increment(f"request {i}" if with_key else "") for i in range(3)]

    def increment(self, key: str) -> int:
        for _ in range(3):
            try:
                return int(ask("counter", key))
            except (OSError, EOFError):
                sleep(1)
        raise AssertionError("three attempts have failed, but there are at most two faults")


# A lease that two hold ----------------------------------------------------------------------------


class TwoHolders(Outage):
    """A client counts the time of its lease from the arrival of the reply, which may be late."""

    network = Network(latency=0.01, faults=1)
    TTL = 10

    def __init__(self) -> None:
        self.holder = ""
        self.until = 0.0
        self.holding: list[str] = []

    def broken(self) -> None:
        self.play(from_request=False)

    def right(self) -> None:
        self.play(from_request=True)

    def play(self, from_request: bool) -> None:
        self.network.node("locks", serve, self.locks)
        nodes = [
            self.network.node(name, self.worker, name, from_request) for name in ("one", "two")
        ]
        for node in nodes:
            node.fiber.result()

    def cut(self) -> None:
        self.network.partition("locks")
        sleep(8)
        self.network.heal()

    def locks(self, stream: net.Stream) -> None:
        for line in stream:
            name, now = line.decode().strip(), pyfiber.now()
            if self.holder in ("", name) or now > self.until:
                self.holder, self.until = name, now + self.TTL
            stream.write(self.holder.encode() + b"\n")
            if self.network.fault("the lock service is cut off for 8 s"):
                spawn(self.cut)

    def worker(self, name: str, from_request: bool) -> None:
        for _ in range(30):
            asked = pyfiber.now()
            try:
                mine = ask("locks", name, timeout=20) == name
            except OSError:
                mine = False
            begin = asked if from_request else pyfiber.now()
            if mine and pyfiber.now() < begin + self.TTL:
                self.work(name, begin + self.TTL)
                return
            sleep(1)

    def work(self, name: str, until: float) -> None:
        self.holding.append(name)
        assert len(self.holding) == 1, f"{self.holding[0]} and {name} hold the lease"
        sleep(max(until - pyfiber.now() - 0.1, 0))
        self.holding.remove(name)


# A pool with a dead connection --------------------------------------------------------------------


class DeadConnection(Outage):
    """A pool hands out a connection whose server has been restarted since."""

    network = Network(latency=0.01, faults=1)

    def __init__(self) -> None:
        self.idle: list[socket.socket] = []
        self.opened = contextlib.ExitStack()

    def broken(self) -> None:
        self.play(checks=False)

    def right(self) -> None:
        self.play(checks=True)

    def play(self, checks: bool) -> None:
        db = self.network.node("db", serve, echo)
        with self.opened:
            for number in range(5):
                sock = self.take(checks)
                sock.sendall(b"%d\n" % number)
                assert sock.recv(100) == b"%d\n" % number
                self.idle.append(sock)
                if self.network.fault("a new version of db is installed"):
                    db.crash()
                    db.restart()
                sleep(1)

    def take(self, checks: bool) -> socket.socket:
        while self.idle:
            sock = self.idle.pop()
            if not checks or not selectors.select([sock], [], [], 0)[0]:  # it has not ended
                return sock
        return self.opened.enter_context(socket.create_connection(("db", 80), 5))


def echo(stream: net.Stream) -> None:
    for line in stream:
        stream.write(line)


# An election with two leaders ---------------------------------------------------------------------

PATIENCE = [1.0, 1.1, 1.3]  # seconds until a member wants to lead


class Member:
    """One of several machines that elect a leader for each term, as in Raft."""

    def __init__(self, name: str, play: TwoLeaders, disk: dict[str, Any]) -> None:
        self.name = name
        self.play = play
        self.disk = disk
        self.deadline = 0.0

    def run(self) -> None:
        self.wait_longer()
        spawn(serve, self.hear)
        while True:
            sleep(max(self.deadline - pyfiber.now(), 0))
            if pyfiber.now() >= self.deadline:
                self.campaign()

    def wait_longer(self) -> None:
        first = self.play.NAMES.index(self.name)  # each has another usual patience
        patience = testing.choose(PATIENCE[first:] + PATIENCE[:first])
        self.deadline = pyfiber.now() + patience

    def hear(self, stream: net.Stream) -> None:
        """Answer candidates: "3 a" asks for the vote for a in term 3."""
        for line in stream:
            term, candidate = line.decode().split()
            if not self.votes_for(candidate, int(term)):
                stream.write(b"no\n")
                continue
            stream.write(b"yes\n")
            if self.play.network.fault(f"the process of {self.name} is killed after its vote"):
                sleep(0.05)
                self.play.network.nodes[self.name].crash()

    def votes_for(self, candidate: str, term: int) -> bool:
        if term > self.disk["term"]:
            self.disk.update(term=term, vote=None)
        if term < self.disk["term"] or self.disk["vote"] not in (None, candidate):
            return False
        self.disk["vote"] = candidate
        self.wait_longer()
        return True

    def campaign(self) -> None:
        term = self.disk["term"] + 1
        self.votes_for(self.name, term)
        others = [name for name in self.play.NAMES if name != self.name]
        answers = [spawn(self.ask, other, term) for other in others]
        votes = 1 + sum(answer.result() for answer in answers)
        if votes > len(self.play.NAMES) / 2:
            self.play.leaders.setdefault(term, set()).add(self.name)
            self.deadline = math.inf

    def ask(self, other: str, term: int) -> bool:
        for _ in range(5):
            try:
                return ask(other, f"{term} {self.name}", timeout=1) == "yes"
            except (OSError, EOFError):
                sleep(0.1)
        return False


class TwoLeaders(Outage):
    """A member votes twice in one term, because it forgets its vote when its process is killed."""

    network = Network(latency=0.02, jitter=0.03, faults=1)
    NAMES = ("a", "b", "c")

    def __init__(self) -> None:
        self.disks: dict[str, dict[str, Any]] = {}
        self.leaders: dict[int, set[str]] = {}

    def broken(self) -> None:
        self.play(durable=False)

    def right(self) -> None:
        self.play(durable=True)

    def play(self, durable: bool) -> None:
        nodes = [self.network.node(name, self.start, name, durable) for name in self.NAMES]
        while pyfiber.now() < 3:
            sleep(0.01)
            for node in nodes:
                if not node.up:
                    node.restart()
        for term, leaders in self.leaders.items():
            assert len(leaders) == 1, f"term {term} has the leaders {' and '.join(sorted(leaders))}"

    def start(self, name: str, durable: bool) -> None:
        disk = self.disks.setdefault(name, {"term": 0, "vote": None})
        if not durable:
            disk["vote"] = None  # only the number of the term is on the disk
        Member(name, self, disk).run()


OUTAGES: list[type[Outage]] = [LostReply, TwoHolders, DeadConnection, TwoLeaders]


def schedules_to_find(kind: type[Outage], seed: int, most: int = 1000) -> int | None:
    """How many schedules it takes to find the mistake; None: more than ``most``."""
    try:
        testing.explore(lambda: kind().broken(), most, seed=seed, network=kind.network)
    except ScheduleFailure as failure:
        return failure.number
    return None


def main() -> None:
    for kind in OUTAGES:
        begin = time.perf_counter()
        found = [schedules_to_find(kind, seed) for seed in range(20)]
        numbers = sorted(number or 1000 for number in found)
        missed = found.count(None)
        print(
            f"{kind.__name__:16} {statistics.median(numbers):6.0f} {numbers[-1]:6} missed {missed}"
            f"   {time.perf_counter() - begin:.1f} s"
        )


if __name__ == "__main__":
    sys.exit(main())
