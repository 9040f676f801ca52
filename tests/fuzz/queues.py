"""What goes from one fiber to another: queues, channels, select; and what must be true of them."""

from __future__ import annotations

import queue
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pyfiber
import pyfiber._queues
from pyfiber import Channel, FiberError, LifoQueue, Lock, PriorityQueue, Queue, Semaphore

from .program import acts
from .scheduled import ScheduledActs

#: The code that keeps the items of some queues, with a lock held around each change.
HOLDING = pyfiber._queues.__file__

Makers = dict[str, list[Callable[[], Any]]]


class Token:
    """An item that must not be lost, nor come twice."""

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number

    def __lt__(self, other: Any) -> bool:
        return self.number < getattr(other, "number", 0)


class Ledger:
    """What must be true of a primitive in the end."""

    def __init__(self, thing: Any, level: int) -> None:
        self.thing = thing
        self.level = level  # of a lock or semaphore: how often it can be acquired
        self.inside: set[int] = set()  # tokens that were put and not yet taken
        self.known = True  # False: __init__ was called again, or an evil argument decided


class QueueActs(ScheduledActs):
    """Random use of queues and channels."""

    ACTS = acts(
        "make 16, put 12, get 12, queue_rest 4, send 8, receive 8, close_channel 2, select 10,"
        "iterate 3"
    )
    EXPECTED = (
        *(queue.Empty, queue.Full, pyfiber.ShutDown, pyfiber.ChannelClosed, StopIteration),
        IndexError,  # heapq's, when a comparison changes the heap
    )

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ledgers: dict[int, Ledger] = {}
        self.tokens = 0

    # ----------------------------------------------------------------- making

    def makers(self) -> Makers:
        """Sorts of primitives, and how to make them."""
        size = self.random.randrange(3)
        kinds = (Queue, LifoQueue, PriorityQueue)
        return {
            "queue": [lambda kind=kind: kind(self.maybe(size)) for kind in kinds],
            "channel": [lambda: Channel(self.maybe(size))],
        }

    def make(self, sort: str | None = None) -> Any:
        """A new one; None if that fails."""
        makers = self.makers()
        sort = sort or self.random.choice(list(makers))
        thing = self.call(f"make a {sort}", self.random.choice(makers[sort]))
        if thing is not None:
            level = getattr(thing, "_value", 1) if sort in ("lock", "sem") else 0
            self.ledgers[id(thing)] = Ledger(thing, level)
            self.keep(sort, thing)  # others find it from now on
        return thing

    def get_any(self, sort: str) -> Any:
        """One of a sort, made if there is none; None if that fails."""
        return self.any(sort) or self.make(sort)

    @staticmethod
    def released(release: Callable[..., Any], *arguments: Any) -> bool:
        """True: it did not raise."""
        release(*arguments)
        return True

    # ------------------------------------------------------------- queues, channels

    def token(self) -> Token:
        self.tokens += 1
        return Token(self.tokens)

    def put(self) -> None:
        target = self.get_any("queue")
        if target is None:
            return
        evil = self.random.random() < self.malice
        if evil and isinstance(target, PriorityQueue):
            self.ledgers[id(target)].known = False  # a heap whose comparisons fail keeps its items
        item = self.evil() if evil else self.token()
        if self.forever() and not evil and self.random.random() < 0.3:
            arguments: list[Any] = [item]
        else:
            arguments = [item, self.maybe(True), self.maybe(0.001)]
        if (
            self.call(f"{self.name(target)}.put", self.released, target.put, *arguments)
            and not evil
        ):
            self.went_in(target, item)

    def get(self) -> None:
        source = self.get_any("queue")
        if source is None:
            return
        forever = self.forever() and self.random.random() < 0.3
        arguments = [] if forever else [self.maybe(True), self.maybe(0.001)]
        self.came_out(source, self.call(f"{self.name(source)}.get", source.get, *arguments))

    def went_in(self, thing: Any, item: Token) -> None:
        """It may have come out already."""
        self.ledgers[id(thing)].inside ^= {item.number}

    def came_out(self, thing: Any, item: Any) -> None:
        if type(item) is Token:
            self.ledgers[id(thing)].inside ^= {item.number}

    def queue_rest(self) -> None:
        thing = self.get_any("queue")
        if thing is None:
            return
        act = self.random.choice(("task_done", "qsize", "empty", "full", "shutdown", "join"))
        if act == "shutdown":
            self.ledgers[id(thing)].known = False
            self.call(f"{self.name(thing)}.shutdown", thing.shutdown, self.maybe(False))
        elif act != "join" or self.forever():
            self.call(f"{self.name(thing)}.{act}", getattr(thing, act))

    def send(self) -> None:
        channel = self.get_any("channel")
        if channel is not None:
            item = self.token()
            if self.call(
                f"{self.name(channel)}.send", self.released, channel.send, item, self.limit()
            ):
                self.went_in(channel, item)

    def receive(self) -> None:
        channel = self.get_any("channel")
        if channel is not None:
            item = self.call(f"{self.name(channel)}.receive", channel.receive, self.limit())
            self.came_out(channel, item)

    def close_channel(self) -> None:
        channel = self.get_any("channel")
        if channel is not None:
            self.call(f"{self.name(channel)}.close", channel.close)

    def iterate(self) -> None:
        """The next of a channel's values, or all and then it is closed."""
        channel = self.get_any("channel")
        if channel is None or not self.forever():
            return
        if self.random.random() < 0.7:
            self.came_out(channel, self.call(f"next({self.name(channel)})", next, channel))
            return

        def use() -> None:
            with channel:
                self.came_out(channel, next(channel))
                self.step()

        self.call(f"with {self.name(channel)}", use)

    def cases(self, item: Token) -> list[Callable[[], tuple[str, Any, Any]]]:
        """Ways to make one for select(): its method, its object, itself or None if that failed."""
        return [
            lambda: self.case("channel", "receiving"),
            lambda: self.case("channel", "sending", item),
            lambda: self.case("queue", "getting"),
            lambda: self.case("queue", "putting", item),
            lambda: self.case("fiber", "joining"),
        ]

    def case(self, sort: str, way: str, *arguments: Any) -> tuple[str, Any, Any]:
        thing = self.fiber() if sort == "fiber" else self.get_any(sort)
        if thing is None:
            return way, None, None
        made = self.call(f"{self.name(thing)}.{way}", getattr(thing, way), *arguments)
        return way, thing, made

    def select(self) -> None:
        item = self.token()
        ways = self.cases(item)
        chosen = [self.random.choice(ways)() for _ in range(self.random.randrange(1, 4))]
        made = [case for case in chosen if case[2] is not None]
        cases = [case for _, _, case in made]
        taken = self.call("select", pyfiber.select, *cases, timeout=self.limit())
        if taken is not None:
            index, value = taken
            way, thing, _ = made[index]
            self.selected(way, thing, value, item)

    def selected(self, way: str, thing: Any, value: Any, item: Token) -> None:
        """What select() has done."""
        if way in ("receiving", "getting"):
            self.came_out(thing, value)
        elif way in ("sending", "putting"):
            self.went_in(thing, item)

    # --------------------------------------------------------------------- the model

    def distrust(self) -> None:
        super().distrust()
        for ledger in tuple(self.ledgers.values()):
            ledger.known = False

    def in_thread(self, function: Callable[[], Any]) -> None:
        """Not while items are compared: the other thread may wait for the lock around them, for
        which no time-out counts (as in the standard library), and this one would wait for it.
        """
        if not self.comparing():
            super().in_thread(function)

    def comparing(self) -> bool:
        """Does a fiber hold the lock around the items of a queue that keeps them in Python?"""
        for fiber in [pyfiber.current(), *self.fibers()]:
            for frame, _ in traceback.walk_stack(self.top(fiber)):
                code = frame.f_code
                if code.co_filename == HOLDING and code.co_name in ("_add", "_take", "_shut"):
                    return True
        return False

    def top(self, fiber: Any) -> Any:
        """Its innermost frame; None if it has none, or is another thread's."""
        try:
            return fiber.frame
        except FiberError:
            return None

    def end(self) -> None:
        things = [ledger for ledger in self.ledgers.values() if ledger.known]
        super().end()
        for ledger in things:
            self.audit(ledger)
        self.ledgers.clear()

    def audit(self, ledger: Ledger) -> None:
        """Everybody is gone: what was put and not taken is there, what was not released is held."""
        thing = ledger.thing
        if isinstance(thing, (Lock, Semaphore)):
            level = int(not thing.locked()) if isinstance(thing, Lock) else thing._value
            if level != ledger.level:
                self.found(f"a {type(thing).__name__} is at {level} instead of {ledger.level}")
        elif isinstance(thing, (Queue, Channel)):
            left = {item.number for item in self.drain(thing) if type(item) is Token}
            if left != ledger.inside:
                self.found(f"in a {type(thing).__name__} are {left} instead of {ledger.inside}")

    @staticmethod
    def drain(thing: Any) -> Iterator[Any]:
        """All that is still in it."""
        take = thing.get_nowait if isinstance(thing, Queue) else lambda: thing.receive(timeout=0)
        while True:
            try:
                yield take()
            except (queue.Empty, TimeoutError, pyfiber.ChannelClosed, pyfiber.FiberError):
                return
