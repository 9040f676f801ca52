"""select() against a model, in thousands of interleavings.

A director fiber does things in an order that hypothesis chooses: it starts fibers that select among
channels, queues, events, semaphores and fibers, with a timeout or not; sends, receives, puts and
gets without waiting; closes channels and queues, sets and clears events, releases semaphores; lets
fibers end, cancels, lets (virtual) time pass. Between two yields nothing else runs, so a waiter may
be served and cancelled, in either order, before it notices.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyfiber
from pyfiber import (
    Cancelled,
    Channel,
    ChannelClosed,
    Event,
    Fiber,
    LifoQueue,
    Queue,
    Semaphore,
    ShutDown,
    current,
    park,
    select,
    spawn,
    testing,
)

CAPACITIES = (0, 1, 2)
#: Of a Queue without limit, one with, and a LifoQueue.
SIZES = (0, 1, 2)
TARGETS = EVENTS = SEMAPHORES = 2
#: How many there are of what each kind of case is about.
COUNTS = {
    "receive": len(CAPACITIES),
    "send": len(CAPACITIES),
    "get": len(SIZES),
    "put": len(SIZES),
    "event": EVENTS,
    "acquire": SEMAPHORES,
    "join": TARGETS,
}

#: What became of an operation.
Outcome = tuple[Any, ...]


# The model ---------------------------------------------------------------------------------------


@dataclass
class Operation:
    """One select: its cases, and how it ended."""

    cases: list[tuple[str, int, int]]  # what, which channel, queue, ..., value
    timeout: float | None = None
    deadline: float = inf
    outcome: Outcome | None = None
    cancelled: bool = False

    def end(self, *outcome: Any) -> None:
        assert self.outcome is None
        self.outcome = outcome


@dataclass
class ChannelModel:
    capacity: int
    values: deque[int] = field(default_factory=deque)
    closed: bool = False


@dataclass
class QueueModel:
    maxsize: int
    lifo: bool = False
    items: deque[int] = field(default_factory=deque)
    closed: bool = False

    def take(self) -> int:
        return self.items.pop() if self.lifo else self.items.popleft()


class Model:
    """Serves whoever waits longest; of several possible cases the first."""

    def __init__(self) -> None:
        self.channels = [ChannelModel(capacity) for capacity in CAPACITIES]
        self.queues = [QueueModel(size, lifo=size == SIZES[-1]) for size in SIZES]
        self.events = [False] * EVENTS
        self.permits = [1] * SEMAPHORES
        self.done = [False] * TARGETS
        self.waiting: list[Operation] = []
        self.now = 0

    def first(self, what: str, which: int) -> tuple[Operation, int, int] | None:
        """Who waits longest for this: the operation, the case's index and value."""
        for operation in self.waiting:
            for index, (kind, target, value) in enumerate(operation.cases):
                if (kind, target) == (what, which):
                    return operation, index, value
        return None

    def serve(self, operation: Operation, *outcome: Any) -> None:
        self.waiting.remove(operation)
        operation.end(*outcome)

    def send(self, which: int, value: int) -> str | None:
        """None: it would have to wait."""
        channel = self.channels[which]
        if channel.closed:
            return "closed"
        receiver = self.first("receive", which)
        if receiver is not None:
            operation, index, _ = receiver
            self.serve(operation, "received", index, value)
            return "sent"
        if len(channel.values) < channel.capacity:
            channel.values.append(value)
            return "sent"
        return None

    def receive(self, which: int) -> int | str | None:
        channel = self.channels[which]
        if channel.values:
            value = channel.values.popleft()
            sender = self.first("send", which)
            if sender is not None:
                operation, index, waiting = sender
                self.serve(operation, "sent", index)
                channel.values.append(waiting)
            return value
        sender = self.first("send", which)
        if sender is not None:
            operation, index, value = sender
            self.serve(operation, "sent", index)
            return value
        return "closed" if channel.closed else None

    def put(self, which: int, value: int) -> str | None:
        line = self.queues[which]
        if line.closed:
            return "closed"
        getter = self.first("get", which)
        if getter is not None:
            operation, index, _ = getter
            self.serve(operation, "got", index, value)
            return "put"
        if line.maxsize <= 0 or len(line.items) < line.maxsize:
            line.items.append(value)
            return "put"
        return None

    def get(self, which: int) -> int | str | None:
        line = self.queues[which]
        if not line.items:
            return "closed" if line.closed else None
        value = line.take()
        putter = self.first("put", which)
        if putter is not None:
            operation, index, waiting = putter
            self.serve(operation, "put", index)
            line.items.append(waiting)
        return value

    def acquire(self, which: int) -> str | None:
        if not self.permits[which]:
            return None
        self.permits[which] -= 1
        return "acquired"

    def release(self, which: int) -> None:
        waiting = self.first("acquire", which)
        if waiting is None:
            self.permits[which] += 1
        else:
            self.serve(waiting[0], "acquired", waiting[1])

    def set_event(self, which: int) -> None:
        self.events[which] = True
        while (found := self.first("event", which)) is not None:
            self.serve(found[0], "happened", found[1])

    def attempt(self, what: str, which: int, value: int) -> int | str | None:
        """One case without waiting: how it ended, or what it got."""
        match what:
            case "join":
                return "joined" if self.done[which] else None
            case "event":
                return "happened" if self.events[which] else None
            case "acquire":
                return self.acquire(which)
            case "receive":
                return self.receive(which)
            case "send":
                return self.send(which, value)
            case "get":
                return self.get(which)
        return self.put(which, value)

    def start(self, operation: Operation) -> None:
        for index, (what, which, value) in enumerate(operation.cases):
            result = self.attempt(what, which, value)
            if result == "closed":
                return operation.end(*closed(what, which))
            if isinstance(result, str):
                return operation.end(result, index)
            if result is not None:
                word = "received" if what == "receive" else "got"
                return operation.end(word, index, result)
        if operation.timeout is not None:
            operation.deadline = self.now + operation.timeout
        self.waiting.append(operation)

    def close(self, which: int) -> None:
        self.channels[which].closed = True
        for what in ("receive", "send"):
            while (found := self.first(what, which)) is not None:
                self.serve(found[0], "closed", which)

    def shut_down(self, which: int) -> None:
        self.queues[which].closed = True
        for what in ("get", "put"):
            while (found := self.first(what, which)) is not None:
                self.serve(found[0], "shut down")

    def end_target(self, which: int) -> None:
        self.done[which] = True
        while (found := self.first("join", which)) is not None:
            self.serve(found[0], "joined", found[1])

    def settle(self) -> None:
        """Everybody runs: who was cancelled and has not been served gives up."""
        for operation in [op for op in self.waiting if op.cancelled]:
            self.serve(operation, "cancelled")

    def pass_time(self) -> None:
        self.settle()
        self.now += 1
        for operation in [op for op in self.waiting if op.deadline < self.now]:
            self.serve(operation, "timed out")


def closed(what: str, which: int) -> Outcome:
    """How it ends where there is nothing more: a ChannelClosed names the channel."""
    return ("closed", which) if what in ("receive", "send") else ("shut down",)


# The real thing ----------------------------------------------------------------------------------


#: What each kind of case has done.
DONE = {
    "join": "joined",
    "event": "happened",
    "acquire": "acquired",
    "receive": "received",
    "send": "sent",
    "get": "got",
    "put": "put",
}


class Director:
    """Does the same to pyfiber."""

    def __init__(self) -> None:
        self.channels: list[Channel[int]] = [Channel(capacity) for capacity in CAPACITIES]
        self.queues: list[Queue[int]] = [Queue(0), Queue(1), LifoQueue(2)]
        self.events = [Event() for _ in range(EVENTS)]
        self.semaphores = [Semaphore(1) for _ in range(SEMAPHORES)]
        self.targets: list[Fiber[Any]] = [spawn(park) for _ in range(TARGETS)]
        self.fibers: list[Fiber[Any]] = []
        self.outcomes: list[Outcome | None] = []
        self.settle()

    def start(self, operation: Operation) -> None:
        self.outcomes.append(None)
        self.fibers.append(spawn(self.body, len(self.outcomes) - 1, operation))
        pyfiber.yield_now()

    def body(self, number: int, operation: Operation) -> None:
        self.outcomes[number] = self.select(operation.cases, operation.timeout)

    def case(self, what: str, which: int, value: int) -> Any:
        match what:
            case "join":
                return self.targets[which].joining()
            case "event":
                return self.events[which].waiting()
            case "acquire":
                return self.semaphores[which].acquiring()
            case "receive":
                return self.channels[which].receiving()
            case "send":
                return self.channels[which].sending(value)
            case "get":
                return self.queues[which].getting()
        return self.queues[which].putting(value)

    def select(self, cases: list[tuple[str, int, int]], timeout: float | None) -> Outcome:
        try:
            if len(cases) == 1 and cases[0][0] != "join":
                return self.plainly(*cases[0], timeout)
            result = select(*(self.case(*case) for case in cases), timeout=timeout)
        except Cancelled:
            return ("cancelled",)
        except (TimeoutError, queue.Empty, queue.Full):
            return ("timed out",)
        except ShutDown:
            return ("shut down",)
        except ChannelClosed as closed:
            return ("closed", self.channels.index(closed.channel))
        if result is None:
            return ("timed out",)
        index, value = result
        done = DONE[cases[index][0]]
        if done in ("got", "received"):
            return (done, index, value)
        assert value is None
        return (done, index)

    def plainly(self, what: str, which: int, value: int, timeout: float | None) -> Outcome:
        """Without select()."""
        match what:
            case "receive":
                return ("received", 0, self.channels[which].receive(timeout))
            case "send":
                self.channels[which].send(value, timeout)
                return ("sent", 0)
            case "get":
                return ("got", 0, self.queues[which].get(timeout=timeout))
            case "put":
                self.queues[which].put(value, timeout=timeout)
                return ("put", 0)
            case "event":
                return ("happened", 0) if self.events[which].wait(timeout) else ("timed out",)
        acquired = self.semaphores[which].acquire(timeout=timeout)
        return ("acquired", 0) if acquired else ("timed out",)

    def attempt(self, operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except (ChannelClosed, ShutDown):
            return "closed"
        except (TimeoutError, queue.Empty, queue.Full):
            return None

    def send(self, which: int, value: int) -> str | None:
        done = self.attempt(lambda: self.channels[which].send(value, timeout=0) or "sent")
        return done if done is None else str(done)

    def receive(self, which: int) -> int | str | None:
        received: int | str | None = self.attempt(lambda: self.channels[which].receive(timeout=0))
        return received

    def put(self, which: int, value: int) -> str | None:
        done = self.attempt(lambda: self.queues[which].put_nowait(value) or "put")
        return done if done is None else str(done)

    def get(self, which: int) -> int | str | None:
        got: int | str | None = self.attempt(self.queues[which].get_nowait)
        return got

    def settle(self) -> None:
        for _ in range(4):
            pyfiber.yield_now()


def perform(actions: list[tuple[Any, ...]]) -> None:
    director, model = Director(), Model()
    operations: list[Operation] = []
    for action, *arguments in actions:
        if action == "start":
            cases, timeout = arguments
            value = 1000 * (len(operations) + 1)
            numbered = [(what, which, value + i) for i, (what, which) in enumerate(cases)]
            operation = Operation([(w, k % COUNTS[w], v) for w, k, v in numbered], timeout)
            operations.append(operation)
            model.settle()
            model.start(operation)
            director.start(operation)
        elif action == "cancel" and operations:
            number = arguments[0] % len(operations)
            operations[number].cancelled = True
            director.fibers[number].cancel()
        elif action == "send":
            which, value = arguments
            assert director.send(which, value) == model.send(which, value)
        elif action == "receive":
            assert director.receive(arguments[0]) == model.receive(arguments[0])
        elif action == "close":
            model.close(arguments[0])
            director.channels[arguments[0]].close()
        elif action == "put":
            which, value = arguments
            assert director.put(which, value) == model.put(which, value)
        elif action == "get":
            assert director.get(arguments[0]) == model.get(arguments[0])
        elif action == "shut down":
            model.shut_down(arguments[0])
            director.queues[arguments[0]].shutdown()
        elif action == "set":
            model.set_event(arguments[0] % EVENTS)
            director.events[arguments[0] % EVENTS].set()
        elif action == "clear":
            model.events[arguments[0] % EVENTS] = False
            director.events[arguments[0] % EVENTS].clear()
        elif action == "release":
            model.release(arguments[0] % SEMAPHORES)
            director.semaphores[arguments[0] % SEMAPHORES].release()
        elif action == "end" and not model.done[arguments[0] % TARGETS]:
            which = arguments[0] % TARGETS
            model.settle()
            director.targets[which].unpark()
            director.settle()
            model.end_target(which)
        elif action == "settle":
            model.settle()
            director.settle()
        elif action == "time":
            model.pass_time()
            pyfiber.sleep(1)
            director.settle()
    model.settle()
    director.settle()
    assert director.outcomes == [operation.outcome for operation in operations]
    assert [len(c) for c in director.channels] == [len(c.values) for c in model.channels]
    for channel, expected in zip(director.channels, model.channels, strict=True):
        channel.close()
        assert list(channel) == list(expected.values)
    for fiber in director.fibers + director.targets:
        fiber.cancel()
    director.settle()  # nobody is left who would put something into the place of what is taken
    for real, wanted in zip(director.queues, model.queues, strict=True):
        assert [real.get_nowait() for _ in range(real.qsize())] == [
            wanted.take() for _ in range(len(wanted.items))
        ]
    assert [event.is_set() for event in director.events] == model.events
    assert [semaphore._value for semaphore in director.semaphores] == model.permits


channels = st.sampled_from(range(len(CAPACITIES)))
cases = st.lists(
    st.tuples(st.sampled_from(["receive", "send", *COUNTS]), channels),
    min_size=1,
    max_size=4,
)
numbers = st.integers(0, 30)
timeouts = st.sampled_from([None, None, 0.5, 1.5])
actions = st.one_of(
    st.tuples(st.just("start"), cases, timeouts),
    st.tuples(st.just("start"), cases, timeouts),
    st.tuples(st.just("cancel"), numbers),
    st.tuples(st.just("send"), channels, st.integers(1, 99)),
    st.tuples(st.just("receive"), channels),
    st.tuples(st.just("close"), channels),
    st.tuples(st.just("put"), channels, st.integers(100, 199)),
    st.tuples(st.just("get"), channels),
    st.tuples(st.just("shut down"), channels),
    st.tuples(st.sampled_from(["set", "clear", "release"]), numbers),
    st.tuples(st.just("end"), numbers),
    st.tuples(st.just("settle")),
    st.tuples(st.just("time")),
)
programs = st.lists(actions, max_size=40)


@settings(max_examples=400, deadline=None)
@given(programs)
def test_select_does_what_the_model_does(program):
    testing.run(lambda: perform(program))
    assert current().state == "running"


@pytest.mark.slow
@settings(max_examples=4_000, deadline=None)
@given(programs)
def test_select_does_what_the_model_does_in_thousands_of_interleavings(program):
    testing.run(lambda: perform(program))
