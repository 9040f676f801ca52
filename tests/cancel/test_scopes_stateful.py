"""Random trees of scopes, groups and fibers, checked against a model of the rules.

Fibers are puppets: they wait for orders inside of a shield, so that only the orders are touched
by cancellation. The model is a tree of plain objects; what it says about each fiber, cancelled or
not and by whom, is asked of the real one after every step.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyfiber import (
    Cancelled,
    CancelScope,
    Fiber,
    FiberError,
    Scheduler,
    TaskGroup,
    check_cancelled,
    current_deadline,
    park,
    shield,
)

MOST_FIBERS = 12
FAR = 10.0**9  # deadlines that never come


@dataclass(eq=False)
class Node:
    """A scope of the model, and the real one."""

    name: str
    real: CancelScope
    owner: Puppet
    cancelled: bool = False
    shield: bool = False
    deadline: float | None = None
    children: list[Puppet] = field(default_factory=list)


@dataclass(eq=False)
class Puppet:
    """A fiber of the model, and the real one."""

    name: str
    base: Node | None
    real: Fiber[Any] | None = None
    cancelled: bool = False
    stack: list[Node] = field(default_factory=list)
    orders: deque[Any] = field(default_factory=deque)
    waiting: bool = False
    answer: Any = None

    def source(self, depth: int | None = None) -> str | None:
        """By what it is cancelled inside of so many of its scopes: the outermost it can see."""
        depth = len(self.stack) if depth is None else depth
        if depth:
            node = self.stack[depth - 1]
            outside = None if node.shield else self.source(depth - 1)
            return outside or (node.name if node.cancelled else None)
        if self.base is not None:
            owner = self.base.owner
            outside = owner.source(owner.stack.index(self.base) + 1)
            if outside:
                return outside
        return self.name if self.cancelled else None

    def deadline(self) -> float | None:
        """The earliest deadline around it, up to a shield."""
        found: list[float] = []
        puppet, depth = self, len(self.stack)
        while True:
            for node in reversed(puppet.stack[:depth]):
                if node.deadline is not None:
                    found.append(node.deadline)
                if node.shield:
                    return min(found, default=None)
            if puppet.base is None:
                return min(found, default=None)
            base = puppet.base
            puppet, depth = base.owner, base.owner.stack.index(base) + 1


class Tree(RuleBasedStateMachine):
    """What may happen, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler()
        self.puppets: list[Puppet] = []
        self.left: list[CancelScope] = []
        self.count = 0

    @initialize()
    def begin(self) -> None:
        for _ in range(2):
            puppet = self.new_puppet(None)
            puppet.real = self.scheduler.spawn(self.body, puppet)
        self.settle()

    def teardown(self) -> None:
        self.scheduler.close()
        assert self.scheduler.stats()["fibers"] == 0
        assert self.scheduler.stats()["timers"] == 0

    # The real side -------------------------------------------------------------------------------

    def new_name(self, kind: str) -> str:
        self.count += 1
        return f"{kind} {self.count}"

    def new_puppet(self, base: Node | None) -> Puppet:
        puppet = Puppet(self.new_name("fiber"), base)
        self.puppets.append(puppet)
        return puppet

    def body(self, puppet: Puppet) -> None:
        while True:
            with shield():
                while not puppet.orders:
                    park()
            order = puppet.orders.popleft()
            if order is None:
                return
            puppet.answer = order()

    def settle(self) -> None:
        for _ in range(4):
            self.scheduler.run_once()

    def order(self, puppet: Puppet, what: Any) -> Any:
        """Let the fiber do something, and return what came of it."""
        assert puppet.real is not None
        puppet.answer = "nothing"
        puppet.orders.append(what)
        puppet.real.unpark()
        self.settle()
        return puppet.answer

    def asked(self) -> Any:
        try:
            check_cancelled()
        except Cancelled as exc:
            return exc.reason
        return None

    def waited(self) -> Any:
        try:
            return park()
        except Cancelled as exc:
            return ("cancelled", exc.reason)

    # Choices -------------------------------------------------------------------------------------

    def pick(self, data: st.DataObject, among: list[Any]) -> Any:
        return among[data.draw(st.integers(0, len(among) - 1))]

    def idle(self) -> list[Puppet]:
        return [puppet for puppet in self.puppets if not puppet.waiting]

    def nodes(self) -> list[Node]:
        return [node for puppet in self.puppets for node in puppet.stack]

    # Steps ---------------------------------------------------------------------------------------

    def enter(self, puppet: Puppet, node: Node) -> None:
        self.order(puppet, node.real.__enter__)
        puppet.stack.append(node)

    @precondition(lambda self: self.idle())
    @rule(data=st.data(), shielded=st.booleans(), early=st.booleans(), deadline=st.booleans())
    def enter_scope(self, data: st.DataObject, shielded: bool, early: bool, deadline: bool) -> None:
        puppet = self.pick(data, self.idle())
        when = FAR + self.count if deadline else None
        shielded = shielded and data.draw(st.booleans())
        early = early and data.draw(st.booleans())
        real = CancelScope(when, shielded)
        node = Node(self.new_name("scope"), real, puppet, early, shielded, when)
        if early:
            real.cancel(node.name)
        self.enter(puppet, node)

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def enter_group(self, data: st.DataObject) -> None:
        puppet = self.pick(data, self.idle())
        self.enter(puppet, Node(self.new_name("group"), TaskGroup(), puppet))

    @precondition(
        lambda self: (
            len(self.puppets) < MOST_FIBERS
            and any(isinstance(node.real, TaskGroup) for node in self.nodes())
        )
    )
    @rule(data=st.data())
    def spawn(self, data: st.DataObject) -> None:
        groups = [node for node in self.nodes() if isinstance(node.real, TaskGroup)]
        node = self.pick(data, groups)
        speaker = self.pick(data, self.idle() or self.puppets)
        if speaker.waiting:
            return
        puppet = self.new_puppet(node)
        doomed = puppet.source()

        def spawn() -> None:
            puppet.real = node.real.spawn(self.body, puppet)

        self.order(speaker, spawn)
        assert puppet.real is not None
        if doomed:
            assert puppet.real.cancelled()
            assert puppet.real.outcome.reason == doomed
            self.puppets.remove(puppet)
        else:
            node.children.append(puppet)

    @precondition(lambda self: any(p.stack for p in self.idle()))
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        puppet = self.pick(data, [p for p in self.idle() if p.stack])
        node = puppet.stack[-1]
        if node.children:
            return
        answer = self.order(puppet, lambda: node.real.__exit__(None, None, None))
        assert answer is False
        puppet.stack.pop()
        self.left.append(node.real)

    @precondition(lambda self: any(len(p.stack) > 1 for p in self.idle()))
    @rule(data=st.data())
    def leave_in_the_wrong_order(self, data: st.DataObject) -> None:
        puppet = self.pick(data, [p for p in self.idle() if len(p.stack) > 1])
        node = self.pick(data, puppet.stack[:-1])
        if node.children:
            return

        def leave() -> Any:
            with pytest.raises(FiberError, match="is left while the fiber is still in"):
                node.real.__exit__(None, None, None)
            return "refused"

        assert self.order(puppet, leave) == "refused"
        puppet.stack.remove(node)
        self.left.append(node.real)

    @precondition(lambda self: any(p.stack for p in self.puppets) and len(self.idle()) > 1)
    @rule(data=st.data())
    def leave_on_another_fiber(self, data: st.DataObject) -> None:
        puppet = self.pick(data, [p for p in self.puppets if p.stack])
        others = [p for p in self.idle() if p is not puppet]
        node = self.pick(data, puppet.stack)
        if node.children or not others:
            return

        def leave() -> Any:
            with pytest.raises(FiberError, match="cannot be left on"):
                node.real.__exit__(None, None, None)
            return "refused"

        assert self.order(self.pick(data, others), leave) == "refused"
        puppet.stack.remove(node)
        self.left.append(node.real)

    @precondition(lambda self: self.nodes())
    @rule(data=st.data(), elsewhere=st.booleans())
    def cancel_scope(self, data: st.DataObject, elsewhere: bool) -> None:
        node = self.pick(data, self.nodes())
        node.cancelled = True
        if elsewhere:
            thread = threading.Thread(target=node.real.cancel, args=(node.name,))
            thread.start()
            thread.join()
        else:
            assert node.real.cancel(node.name) is True
        self.settle()

    @precondition(lambda self: self.puppets)
    @rule(data=st.data())
    def cancel_fiber(self, data: st.DataObject) -> None:
        puppet = self.pick(data, self.puppets)
        puppet.cancelled = True
        assert puppet.real.cancel(puppet.name)
        self.settle()

    @precondition(lambda self: self.nodes())
    @rule(data=st.data(), shielded=st.booleans())
    def set_shield(self, data: st.DataObject, shielded: bool) -> None:
        node = self.pick(data, self.nodes())
        node.shield = node.real.shield = shielded
        self.settle()

    @precondition(lambda self: self.nodes())
    @rule(data=st.data())
    def set_deadline(self, data: st.DataObject) -> None:
        node = self.pick(data, self.nodes())
        node.deadline = None if node.deadline else FAR + self.count
        node.real.deadline = node.deadline

    @precondition(lambda self: self.idle())
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        puppet = self.pick(data, self.idle())
        source = puppet.source()
        answer = self.order(puppet, self.waited)
        if source:
            assert answer == ("cancelled", source)
            # the order's permit is used up by park() inside of the shield
        else:
            assert answer == "nothing"
            puppet.waiting = True

    @precondition(lambda self: any(p.waiting for p in self.puppets))
    @rule(data=st.data())
    def wake(self, data: st.DataObject) -> None:
        puppet = self.pick(data, [p for p in self.puppets if p.waiting])
        puppet.real.unpark("value")
        if data.draw(st.booleans()):  # what came first beats this
            puppet.cancelled = True
            puppet.real.cancel(puppet.name)
        self.settle()
        assert puppet.answer == "value"
        puppet.waiting = False

    @precondition(lambda self: any(p.base and not p.stack for p in self.idle()))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        puppet = self.pick(data, [p for p in self.idle() if p.base and not p.stack])
        self.order(puppet, None)
        puppet.orders.clear()
        assert puppet.real.done()
        self.puppets.remove(puppet)
        puppet.base.children.remove(puppet)

    # What must hold ------------------------------------------------------------------------------

    @invariant()
    def who_waits_is_woken_by_its_cancellation(self) -> None:
        for puppet in self.puppets:
            source = puppet.source()
            if puppet.waiting and source:
                assert puppet.answer == ("cancelled", source)
                puppet.waiting = False
            elif puppet.waiting:
                assert puppet.answer == "nothing"
                assert puppet.real.state == "parked"

    @invariant()
    def who_is_asked_knows_by_what_it_is_cancelled(self) -> None:
        for puppet in self.idle():
            assert self.order(puppet, self.asked) == puppet.source()

    @invariant()
    def deadlines_are_the_earliest_around(self) -> None:
        for puppet in self.idle():
            found = self.order(puppet, current_deadline)
            expected = puppet.deadline()
            assert found == expected or found == pytest.approx(expected, abs=1e-3)

    @invariant()
    def what_was_left_takes_no_cancellation(self) -> None:
        for scope in self.left[-3:]:
            assert scope.cancel() is False


TestTree = Tree.TestCase
TestTree.settings = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.slow
class TestTreeLong(Tree.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(
        max_examples=1500,
        stateful_step_count=60,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
