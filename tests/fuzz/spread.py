"""Trees of fibers that several threads share: the result must be what one thread finds.

Who runs what depends on the machine. A tree is planned before it is played, and every node's
result follows from the plan: a group with a failure in it counts as one number, whatever its other
fibers have got to before they were cancelled.
"""

from __future__ import annotations

import contextvars
import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyfiber
from pyfiber import TaskGroup, spawn

from .program import Program, acts

DEPTH: contextvars.ContextVar[int] = contextvars.ContextVar("DEPTH", default=0)
A_WHILE = 0.0005


class Planned(Exception):
    """A node that is meant to fail."""


@dataclass
class Node:
    """What one fiber does."""

    kind: str
    number: int
    kids: list[Node] = field(default_factory=list)


LEAVES = ("returns", "yields", "sleeps", "computes", "collects", "fails", "expires", "cancels")
BRANCHES = (
    *("spawns", "groups", "groups", "spawns_in", "spawns_in", "gathers", "maps", "races"),
    *("passes", "expires_with", "cancels_all", "meets", "turns"),
)


def plan(random: Random, depth: int) -> Node:
    """A tree; the shape is chosen first, so that it has as many nodes on any machine."""
    number = random.randrange(100)
    if depth == 0 or random.random() < 0.2:
        return Node(random.choice(LEAVES), number)
    kids = [plan(random, depth - 1) for _ in range(random.randrange(1, 4))]
    return Node(random.choice(BRANCHES), number, kids)


#: A failure in there cancels fibers, perhaps one that would have looked at another failure.
CANCELLING = frozenset(BRANCHES) - {"spawns", "maps", "expires_with", "cancels_all", "meets"}


def kinds(node: Node) -> set[str]:
    """All in a tree."""
    return {node.kind}.union(*map(kinds, node.kids))


def outcome(what: Callable[[], Any]) -> int:
    """The number it comes to: failures and cancellations have numbers of their own."""
    try:
        return int(what())
    except Planned:
        return 1009
    except BaseExceptionGroup:
        return 2003
    except pyfiber.FiberCancelled:
        return 3001


class Played:
    """Methods by the names of kinds. `group` is one around the node, or None."""

    def node(self, node: Node, group: TaskGroup | None) -> int:
        DEPTH.set(DEPTH.get() + 1)
        result: int = getattr(self, node.kind)(node, group)
        return (node.number + result * 31 + DEPTH.get()) % 1_000_003

    # ------------------------------------------------------------------ leaves

    def returns(self, node: Node, group: TaskGroup | None) -> int:
        return 1

    def yields(self, node: Node, group: TaskGroup | None) -> int:
        for _ in range(node.number % 5):
            pyfiber.yield_now()
        return 2

    def sleeps(self, node: Node, group: TaskGroup | None) -> int:
        pyfiber.sleep(node.number * 1e-5)
        return 3

    def computes(self, node: Node, group: TaskGroup | None) -> int:
        return sum(range(node.number * 50))

    def collects(self, node: Node, group: TaskGroup | None) -> int:
        gc.collect(0)
        return 4

    def fails(self, node: Node, group: TaskGroup | None) -> int:
        raise Planned(node.number)

    def expires(self, node: Node, group: TaskGroup | None) -> int:
        with pyfiber.move_on_after(A_WHILE) as scope:
            pyfiber.park()
        return 5 + scope.cancelled()

    def cancels(self, node: Node, group: TaskGroup | None) -> int:
        fiber = spawn(pyfiber.park)
        fiber.cancel("planned")
        return outcome(fiber.result)

    # ---------------------------------------------------------------- branches

    def spawns(self, node: Node, group: TaskGroup | None) -> int:
        fibers = [spawn(self.node, kid, group) for kid in node.kids]
        return sum(outcome(fiber.result) for fiber in fibers)

    def groups(self, node: Node, group: TaskGroup | None) -> int:
        def inside() -> int:
            with TaskGroup() as own:
                fibers = [own.spawn(self.node, kid, own) for kid in node.kids]
            return sum(fiber.result() for fiber in fibers)

        return outcome(inside)

    def spawns_in(self, node: Node, group: TaskGroup | None) -> int:
        """In the group around it, which may be another thread's; a failure is the group's."""
        if group is None:
            return self.spawns(node, group)
        fibers = [group.spawn(self.node, kid, group) for kid in node.kids]
        return sum(fiber.result() for fiber in fibers)

    def gathers(self, node: Node, group: TaskGroup | None) -> int:
        works = [lambda kid=kid: self.node(kid, None) for kid in node.kids]  # type: ignore[misc]
        return sum(outcome(lambda work=work: pyfiber.gather(work)[0]) for work in works) + outcome(  # type: ignore[misc]
            lambda: sum(pyfiber.gather(*works))
        )

    def maps(self, node: Node, group: TaskGroup | None) -> int:
        def safely(kid: Node) -> int:
            return outcome(lambda: self.node(kid, None))

        return sum(pyfiber.pmap(safely, node.kids, limit=2, ordered=node.number % 2 == 0))

    def races(self, node: Node, group: TaskGroup | None) -> int:
        return outcome(lambda: pyfiber.race(pyfiber.park, lambda: self.node(node.kids[0], None)))

    def passes(self, node: Node, group: TaskGroup | None) -> int:
        """Through a channel: who sends may run elsewhere."""
        channel: pyfiber.Channel[int] = pyfiber.Channel(node.number % 3)

        def send() -> None:
            for kid in node.kids:
                channel.send(outcome(lambda: self.node(kid, None)))  # noqa: B023
            channel.close()

        with TaskGroup() as own:
            own.spawn(send)
            return sum(channel)

    def expires_with(self, node: Node, group: TaskGroup | None) -> int:
        with pyfiber.move_on_after(A_WHILE) as scope, TaskGroup() as own:
            for _ in node.kids:
                own.spawn(pyfiber.park)
        return 7 + scope.cancelled()

    def cancels_all(self, node: Node, group: TaskGroup | None) -> int:
        with TaskGroup() as own:
            fibers = [own.spawn(self.stays) for _ in node.kids]
            pyfiber.yield_now()
            for fiber in fibers:
                fiber.cancel("planned")
        return sum(outcome(fiber.result) for fiber in fibers)

    def stays(self) -> int:
        """A scope and a group in it, wherever it runs."""
        with TaskGroup() as own:
            own.spawn(pyfiber.park)
            pyfiber.park()
        return 0

    def meets(self, node: Node, group: TaskGroup | None) -> int:
        event = pyfiber.Event()

        def waits() -> int:
            event.wait()
            return outcome(lambda: self.node(node.kids[0], None))

        waiting = spawn(waits)
        spawn(event.set)
        return int(waiting.result())

    def turns(self, node: Node, group: TaskGroup | None) -> int:
        """A lock and what it guards."""
        lock, total = pyfiber.Lock(), [0]

        def adds(kid: Node) -> None:
            number = outcome(lambda: self.node(kid, None))
            with lock:
                before = total[0]
                pyfiber.yield_now()
                total[0] = before + number

        with TaskGroup() as own:
            for kid in node.kids:
                own.spawn(adds, kid)
        return total[0]


class Kind(Program):
    """Each step is a tree."""

    ACTS = acts("tree 20, drop 0, watch 0, handle 0, trace 0, variable 0")

    def main(self) -> None:
        self.fuel -= 9
        super().main()

    def tree(self) -> None:
        root = plan(self.random, self.random.randrange(1, 5))
        threads = self.random.choice((2, 2, 3, 4, 8))
        lost: list[str] = []

        def play() -> int:
            return outcome(lambda: Played().node(root, None))

        def unhandled(fiber: Any, error: BaseException) -> None:
            lost.append(f"nobody looked at {type(error).__name__}")

        alone = pyfiber.run(play, on_unhandled=unhandled)
        expected, lost = lost, []
        shared = pyfiber.run(play, threads=threads, on_unhandled=unhandled)
        self.say(f"tree on {threads} threads: {shared}")
        if shared != alone:
            self.found(f"{threads} threads find {shared}, one finds {alone}")
        if len(lost) > len(expected) and not kinds(root) & CANCELLING:
            self.found(f"{threads} threads lose failures: {lost}, one {expected}")
