"""Random programs over raw fibers, checked against a model.

Each fiber obeys commands that it is sent.  It can go one *level* deeper in different ways
(a call, a C callback, a generator, an exception handler, ...), come back up, raise, start and
drop other fibers, or hand a command on to another fiber.  The model knows for each fiber the
levels it is in, and from that what every switch has to return.
"""

# What is being handled is the very thing these tests look at.
# ruff: noqa: PT017

from __future__ import annotations

import contextlib
import contextvars
import functools
import gc
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyfiber import Fiber, FiberError, Ok, current

MOST = 8
OWNER: contextvars.ContextVar[int] = contextvars.ContextVar("OWNER", default=-1)


class Boom(Exception):
    """What fibers are told to raise."""


class Handled(Exception):
    """What a fiber handles while it is in a level of that kind."""


@dataclass
class World:
    """What the fibers of one run share."""

    main: Fiber[Any]
    fibers: dict[int, Fiber[Any]] = field(default_factory=dict)
    finals: list[int] = field(default_factory=list)


Command = tuple[str, Any]


class Body:
    """The code of one fiber."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number

    def __call__(self) -> Any:
        OWNER.set(self.number)
        return self.level(0)

    def level(self, depth: int) -> Any:
        """Obey until told to come up from here."""
        mine = [self.number, depth]
        reply: Any = "entered"
        while True:
            handled = sys.exc_info()[1]
            seen = None if handled is None else handled.args
            operation, argument = self.world.main.switch((self.number, depth, reply, seen))
            assert mine == [self.number, depth]
            assert OWNER.get() == self.number
            assert current() is self.world.fibers.get(self.number, current())
            if operation == "up":
                return argument
            reply = self.obey(operation, argument, depth)

    def obey(self, operation: str, argument: Any, depth: int) -> Any:
        if operation == "echo":
            return argument
        if operation == "raise":
            raise Boom(argument)
        if operation == "deeper":
            return KINDS[argument](self, lambda: self.level(depth + 1))
        if operation == "drop":
            self.world.fibers.pop(argument)
            return "dropped"
        if operation == "collect":
            gc.collect()
            return "collected"
        if operation == "start":
            # Its first switch goes to the main fiber; we go on when that comes back.
            return ("command", self.world.fibers[argument].switch())
        raise AssertionError(operation)


Into = Callable[[], Any]


def into_call(body: Body, inside: Into) -> Any:
    return inside()


def into_sorted(body: Body, inside: Into) -> Any:
    found = []
    sorted([0], key=lambda item: found.append(inside()) or 0)
    return found[0]


def into_sub(body: Body, inside: Into) -> Any:
    found = []
    re.sub("a", lambda match: found.append(inside()) or "", "a")
    return found[0]


def into_reduce(body: Body, inside: Into) -> Any:
    return functools.reduce(lambda a, b: inside(), [0, 0])


def into_generator(body: Body, inside: Into) -> Any:
    return next(inside() for _ in [0])


def into_yield_from(body: Body, inside: Into) -> Any:
    def inner() -> Iterator[Any]:
        yield inside()

    def outer() -> Iterator[Any]:
        yield from inner()

    return list(outer())[0]  # noqa: RUF015


def into_coroutine(body: Body, inside: Into) -> Any:
    async def run() -> Any:
        return inside()

    try:
        run().send(None)
    except StopIteration as stop:
        return stop.value


def into_getattr(body: Body, inside: Into) -> Any:
    class Lazy:
        def __getattr__(self, name: str) -> Any:
            return inside()

    return Lazy().anything


def into_handler(body: Body, inside: Into) -> Any:
    try:
        raise Handled(body.number, id(inside))
    except Handled:
        return inside()


def into_catch(body: Body, inside: Into) -> Any:
    try:
        return inside()
    except Boom as error:
        return ("caught", *error.args)


def into_finally(body: Body, inside: Into) -> Any:
    try:
        return inside()
    finally:
        body.world.finals.append(body.number)


def into_with(body: Body, inside: Into) -> Any:
    with contextlib.ExitStack() as stack:
        stack.callback(body.world.finals.append, body.number)
        return inside()


def into_deep(body: Body, inside: Into) -> Any:
    def down(depth: int) -> Any:
        return down(depth - 1) if depth else inside()

    return down(60)


def into_context(body: Body, inside: Into) -> Any:
    return contextvars.copy_context().run(inside)


KINDS: dict[str, Callable[[Body, Into], Any]] = {
    name.removeprefix("into_"): value
    for name, value in list(globals().items())
    if name.startswith("into_")
}
CLEANS = {"finally", "with"}


@dataclass
class Model:
    """What must be true of one fiber."""

    kinds: list[str] = field(default_factory=list)
    state: str = "new"
    waits_in_start: bool = False

    @property
    def depth(self) -> int:
        return len(self.kinds)

    def unwind(self) -> tuple[int, bool]:
        """A Boom passes: cleaned-up levels, and whether a level caught it."""
        cleaned = 0
        while self.kinds:
            kind = self.kinds.pop()
            if kind == "catch":
                return cleaned, True
            cleaned += kind in CLEANS
        return cleaned, False

    def handles(self) -> bool:
        return "handler" in self.kinds


class FiberMachine(RuleBasedStateMachine):
    """The rules are what the program may do; `check` compares each answer."""

    @initialize()
    def begin(self) -> None:
        self.world = World(current())
        self.models: dict[int, Model] = {}
        self.made = 0
        self.cleaned = 0

    # ------------------------------------------------------------------ choosing

    def pick(self, data: st.DataObject, *states: str) -> int:
        numbers = [n for n, model in self.models.items() if model.state in states]
        return data.draw(st.sampled_from(numbers))

    def some(self, *states: str) -> bool:
        return any(model.state in states for model in self.models.values())

    # ------------------------------------------------------------------- checking

    def check(self, number: int, answer: Any, reply: Any) -> None:
        """The fiber must have answered from the level the model says."""
        model = self.models[number]
        assert answer[:3] == (number, model.depth, reply), (answer, model)
        assert (answer[3] is not None) == model.handles()
        if answer[3] is not None:
            assert answer[3][0] == number

    def send(self, number: int, operation: str, argument: Any = None) -> Any:
        return self.world.fibers[number].switch((operation, argument))

    # ---------------------------------------------------------------------- rules

    @precondition(lambda self: len(self.models) < MOST)
    @rule(size=st.sampled_from([None, 128 * 1024, 300_000]))
    def make(self, size: int | None) -> None:
        number = self.made
        self.made += 1
        fiber: Fiber[Any] = Fiber(Body(self.world, number), name=f"f{number}", stack_size=size)
        self.world.fibers[number] = fiber
        self.models[number] = Model()

    @precondition(lambda self: self.some("new"))
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        number = self.pick(data, "new")
        answer = self.world.fibers[number].switch()
        self.models[number].state = "parked"
        self.check(number, answer, "entered")

    @precondition(lambda self: self.some("new") and self.some("parked"))
    @rule(data=st.data())
    def start_from_another(self, data: st.DataObject) -> None:
        starter, number = self.pick(data, "parked"), self.pick(data, "new")
        self.world.fibers[number].parent = self.world.main
        answer = self.send(starter, "start", number)
        self.models[number].state = "parked"
        self.check(number, answer, "entered")
        # The starter is left inside of that switch; any value lets it go on.
        answer = self.world.fibers[starter].switch("go on")
        self.check(starter, answer, ("command", "go on"))

    @precondition(lambda self: self.some("parked"))
    @rule(data=st.data(), value=st.integers())
    def echo(self, data: st.DataObject, value: int) -> None:
        number = self.pick(data, "parked")
        self.check(number, self.send(number, "echo", value), value)

    @precondition(lambda self: self.some("parked"))
    @rule(data=st.data(), kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    def deeper(self, data: st.DataObject, kinds: list[str]) -> None:
        number = self.pick(data, "parked")
        model = self.models[number]
        for kind in kinds:
            if model.depth >= 10:
                return
            answer = self.send(number, "deeper", kind)
            model.kinds.append(kind)
            self.check(number, answer, "entered")

    @precondition(lambda self: self.some("parked"))
    @rule(data=st.data(), value=st.integers())
    def up(self, data: st.DataObject, value: int) -> None:
        number = self.pick(data, "parked")
        model = self.models[number]
        answer = self.send(number, "up", value)
        if model.kinds:
            self.cleaned += model.kinds.pop() in CLEANS
            self.check(number, answer, value)
        else:
            assert answer == value
            assert self.world.fibers[number].outcome == Ok(value)
            model.state = "done"

    def expect_boom(self, number: int, value: int, act: Callable[[], Any]) -> None:
        model = self.models[number]
        cleaned, caught = model.unwind()
        self.cleaned += cleaned
        try:
            answer = act()
        except Boom as error:
            assert not caught
            assert error.args == (value,)
            names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
            assert names.count("__call__") == (model.state != "new")
            model.state = "done"
        else:
            assert caught
            self.check(number, answer, ("caught", value))

    @precondition(lambda self: self.some("parked"))
    @rule(data=st.data(), value=st.integers())
    def raise_inside(self, data: st.DataObject, value: int) -> None:
        number = self.pick(data, "parked")
        self.expect_boom(number, value, lambda: self.send(number, "raise", value))

    @precondition(lambda self: self.some("new", "parked"))
    @rule(data=st.data(), value=st.integers(), handling=st.booleans())
    def throw(self, data: st.DataObject, value: int, handling: bool) -> None:
        number = self.pick(data, "new", "parked")
        fiber = self.world.fibers[number]
        if not handling:
            self.expect_boom(number, value, lambda: fiber.throw(Boom(value)))
            return
        try:
            raise KeyError("handled by the main fiber")
        except KeyError as error:
            self.expect_boom(number, value, lambda: fiber.throw(Boom(value)))
            assert sys.exc_info()[1] is error

    @precondition(lambda self: self.some("done"))
    @rule(data=st.data(), throw=st.booleans())
    def enter_finished(self, data: st.DataObject, throw: bool) -> None:
        fiber = self.world.fibers[self.pick(data, "done")]
        try:
            if throw:
                fiber.throw(KeyError)
            else:
                fiber.switch()
        except FiberError:
            return
        raise AssertionError("a finished fiber was entered")

    def forget(self, number: int) -> None:
        model = self.models.pop(number)
        if model.state == "parked":
            self.cleaned += sum(kind in CLEANS for kind in model.kinds)

    @precondition(lambda self: bool(self.models))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        number = self.pick(data, "new", "parked", "done")
        self.world.fibers.pop(number)
        self.forget(number)

    @precondition(lambda self: len(self.models) > 1 and self.some("parked"))
    @rule(data=st.data())
    def drop_from_another(self, data: st.DataObject) -> None:
        dropper = self.pick(data, "parked")
        number = data.draw(st.sampled_from([n for n in self.models if n != dropper]))
        answer = self.send(dropper, "drop", number)
        self.forget(number)
        self.check(dropper, answer, "dropped")

    @precondition(lambda self: self.some("parked"))
    @rule(data=st.data())
    def collect_inside(self, data: st.DataObject) -> None:
        number = self.pick(data, "parked")
        self.check(number, self.send(number, "collect"), "collected")

    @rule()
    def collect(self) -> None:
        gc.collect()

    @precondition(lambda self: self.some("parked"))
    @rule(data=st.data())
    def look(self, data: st.DataObject) -> None:
        fiber = self.world.fibers[self.pick(data, "parked")]
        frame = fiber.frame
        assert frame is not None
        assert frame.f_code is Body.level.__code__
        stack = fiber.stack()
        assert stack[0].name == "__call__"
        assert stack[-1].name == "level"
        gc.get_referents(fiber)

    @precondition(lambda self: self.some("parked"))
    @rule(data=st.data(), value=st.integers(), profile=st.booleans())
    def echo_traced(self, data: st.DataObject, value: int, profile: bool) -> None:
        number = self.pick(data, "parked")
        before = sys.getprofile(), sys.gettrace()
        if profile:
            sys.setprofile(lambda *event: None)
        else:
            sys.settrace(lambda *event: None)
        try:
            answer = self.send(number, "echo", value)
        finally:
            sys.setprofile(before[0])
            sys.settrace(before[1])
        self.check(number, answer, value)

    # ----------------------------------------------------------------- invariants

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "models"):
            return
        for number, model in self.models.items():
            assert self.world.fibers[number].state == model.state
        assert current() is self.world.main
        assert current().state == "running"
        assert OWNER.get() == -1
        assert sys.exc_info()[1] is None

    @invariant()
    def cleaned_up_as_often_as_entered(self) -> None:
        if hasattr(self, "models"):
            assert len(self.world.finals) == self.cleaned

    def teardown(self) -> None:
        if hasattr(self, "models"):
            for number in list(self.models):
                self.world.fibers.pop(number)
                self.forget(number)
            assert len(self.world.finals) == self.cleaned


FiberMachine.TestCase.settings = settings(
    max_examples=10,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
test_raw_fibers_agree_with_the_model = FiberMachine.TestCase
