"""Channels and select() against a model, in thousands of interleavings.

A director fiber does things in an order that hypothesis chooses: it starts fibers that select, with
a timeout or without, sends and receives without waiting, closes channels, lets fibers end, cancels,
lets (virtual) time pass. Between two yields nothing else runs, so a waiter may be served and
cancelled, in either order, before it notices.
"""

from __future__ import annotations

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
    Fiber,
    Joined,
    Received,
    Sent,
    current,
    park,
    select,
    spawn,
    testing,
)

CAPACITIES = (0, 1, 2)
TARGETS = 2

#: What became of an operation.
Outcome = tuple[Any, ...]


# The model ---------------------------------------------------------------------------------------


@dataclass
class Operation:
    """One select: its cases, and how it ended."""

    cases: list[tuple[str, int, int]]  # what, which channel or target, value
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


class Model:
    """Serves whoever waits longest; of several possible cases the first."""

    def __init__(self) -> None:
        self.channels = [ChannelModel(capacity) for capacity in CAPACITIES]
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

    def start(self, operation: Operation) -> None:
        for index, (what, which, value) in enumerate(operation.cases):
            if what == "join":
                if self.done[which]:
                    return operation.end("joined", index)
                continue
            result = self.receive(which) if what == "receive" else self.send(which, value)
            if result == "closed":
                return operation.end("closed", which)
            if result == "sent":
                return operation.end("sent", index)
            if result is not None:
                return operation.end("received", index, result)
        if operation.timeout is not None:
            operation.deadline = self.now + operation.timeout
        self.waiting.append(operation)

    def close(self, which: int) -> None:
        self.channels[which].closed = True
        for what in ("receive", "send"):
            while (found := self.first(what, which)) is not None:
                self.serve(found[0], "closed", which)

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


# The real thing ----------------------------------------------------------------------------------


class Director:
    """Does the same to pyfiber."""

    def __init__(self) -> None:
        self.channels: list[Channel[int]] = [Channel(capacity) for capacity in CAPACITIES]
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
        if what == "join":
            return self.targets[which]
        channel = self.channels[which]
        return channel.receiving() if what == "receive" else channel.sending(value)

    def select(self, cases: list[tuple[str, int, int]], timeout: float | None) -> Outcome:
        try:
            if len(cases) == 1 and cases[0][0] != "join":
                return self.plainly(*cases[0], timeout)
            result = select(*(self.case(*case) for case in cases), timeout=timeout)
        except Cancelled:
            return ("cancelled",)
        except TimeoutError:
            return ("timed out",)
        except ChannelClosed as closed:
            return ("closed", self.channels.index(closed.channel))
        match result:
            case Received(_, value, index):
                return ("received", index, value)
            case Sent(_, index):
                return ("sent", index)
            case Joined(_, index):
                return ("joined", index)
            case None:
                return ("timed out",)
        raise AssertionError(result)

    def plainly(self, what: str, which: int, value: int, timeout: float | None) -> Outcome:
        """Without select()."""
        channel = self.channels[which]
        if what == "receive":
            return ("received", 0, channel.receive(timeout))
        channel.send(value, timeout)
        return ("sent", 0)

    def attempt(self, operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except ChannelClosed:
            return "closed"
        except TimeoutError:
            return None

    def send(self, which: int, value: int) -> str | None:
        done = self.attempt(lambda: self.channels[which].send(value, timeout=0) or "sent")
        return done if done is None else str(done)

    def receive(self, which: int) -> int | str | None:
        received: int | str | None = self.attempt(lambda: self.channels[which].receive(timeout=0))
        return received

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
            operation = Operation(
                [(w, k % TARGETS if w == "join" else k, v) for w, k, v in numbered], timeout
            )
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


channels = st.sampled_from(range(len(CAPACITIES)))
cases = st.lists(
    st.tuples(st.sampled_from(["receive", "receive", "send", "send", "join"]), channels),
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
    st.tuples(st.just("end"), numbers),
    st.tuples(st.just("settle")),
    st.tuples(st.just("time")),
)
programs = st.lists(actions, max_size=40)


@settings(max_examples=400, deadline=None)
@given(programs)
def test_channels_and_select_do_what_the_model_does(program):
    testing.run(lambda: perform(program))
    assert current().state == "running"


@pytest.mark.slow
@settings(max_examples=4_000, deadline=None)
@given(programs)
def test_channels_and_select_do_what_the_model_does_in_thousands_of_interleavings(program):
    testing.run(lambda: perform(program))
