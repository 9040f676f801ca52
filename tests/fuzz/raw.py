"""Raw fibers: whoever runs decides who is next."""

from __future__ import annotations

import contextvars
import gc
from typing import Any

import pyfiber
from pyfiber import Fiber

from .foreign import ForeignActs
from .program import HUGE, Program, acts

LOOKS = ("name", "state", "parent", "context", "frame", "outcome", "daemon", "waiting_on")


class Doomed(Fiber[Any]):
    """Its finalizer does something, and its attributes may."""

    def __del__(self) -> None:
        if program := getattr(self, "program", None):
            program.betray("Fiber.__del__")


class Runner(Fiber[Any]):
    """Has a method instead of a target."""

    body: Any = None

    def run(self) -> Any:
        return self.body() if self.body is not None else None


class Looker(Doomed):
    """Looking something up does something."""

    def __getattribute__(self, name: str) -> Any:
        program = object.__getattribute__(self, "__dict__").get("program")
        if program is not None and program.random.random() < 0.2:
            program.betray(f"Fiber.{name}")
        return super().__getattribute__(name)


class RawActs(Program):
    """What can be done with raw fibers."""

    ACTS = acts(
        "new 14, switch 24, throw 7, to_parent 6, reparent 8, again 4, look 4, rename 2,"
        "daemonize 2, callback 2, threaded 3, stacks 1, owner_call 3, bare 1, clear_frame 1,"
        "hold_frame 2, follow_frame 3"
    )
    EXPECTED = (RuntimeError, pyfiber.FiberCancelled)

    def options(self) -> dict[str, Any]:
        """Keyword arguments of Fiber()."""
        choose = self.random.choice
        every = {
            "name": "name",
            "daemon": choose((True, False)),
            "stack_size": choose((None, None, 1 << 17, 1 << 18, 0, -1, HUGE)),
            "context": choose((None, contextvars.copy_context())),
            "own_stack": choose((True, False)),
        }
        chosen = {key: self.maybe(value) for key, value in every.items() if choose((0, 0, 1))}
        return chosen

    def target(self) -> Any:
        """Something that a fiber can run."""
        choice = self.random.randrange(10)
        if choice == 0:
            return self.evil()
        if choice == 1 and (other := self.any("fiber")) is not None:
            return other.switch
        if choice == 2:
            return pyfiber.current
        return self.body()

    def arguments(self) -> tuple[Any, ...]:
        """args and kwargs of Fiber(), or neither."""
        if self.random.random() < 0.7:
            return ()
        return self.maybe((self.value(),)), self.maybe({"a": self.value()})

    def new(self) -> Any:
        sort = self.random.choice((Fiber, Fiber, Fiber, Doomed, Looker, Runner))
        options = self.options() if self.random.random() < 0.3 else {}
        if sort is Runner:
            fiber = self.call("Runner", Runner, **options)
        else:
            fiber = self.call(sort.__name__, sort, self.target(), *self.arguments(), **options)
        if fiber is None:
            return None
        if sort is not Fiber:
            fiber.program = self
            fiber.body = self.body()
        return self.keep("fiber", fiber)

    def bare(self) -> Any:
        """One that __init__ has not seen."""
        return self.keep("fiber", Runner.__new__(Runner))

    def fiber(self) -> Any:
        """One to do something with; not the main thread's, which is there for ever."""
        return self.any("fiber") or self.new() or self.bare()

    def switch(self) -> None:
        fiber = self.fiber()
        value = self.value() if self.random.random() < 0.4 else None
        self.call(f"{self.name(fiber)}.switch", fiber.switch, value)

    def throw(self) -> None:
        fiber = self.fiber()
        what = self.random.choice((ValueError, ValueError("thrown"), pyfiber.FiberExit))
        self.call(f"{self.name(fiber)}.throw", fiber.throw, self.maybe(what))

    def to_parent(self) -> None:
        parent = self.call("parent", lambda: pyfiber.current().parent)
        if parent is not None:
            self.call("parent.switch", parent.switch, self.value())

    def reparent(self) -> None:
        fiber = self.random.choice((self.fiber, pyfiber.current))()
        parent = self.random.choice((self.fiber, pyfiber.current))()
        if fiber is self.root:
            return  # the main thread's: it would keep the parent for ever
        label = f"{self.name(fiber)}.parent ="
        self.call(label, setattr, fiber, "parent", self.maybe(parent))

    def again(self) -> None:
        """__init__ once more."""
        fiber = self.fiber()
        label = f"{self.name(fiber)}.__init__"
        self.call(label, fiber.__init__, self.target(), *self.arguments(), **self.options())

    def look(self) -> None:
        """At everything that can be seen of it."""
        fiber = self.fiber()
        for name in LOOKS:
            if self.random.random() < 0.3:
                self.call(f"{self.name(fiber)}.{name}", getattr, fiber, name)
        if self.random.random() < 0.3:
            self.call("stack", fiber.stack)
            self.call("repr", repr, fiber)
            gc.get_referents(fiber)

    def rename(self) -> None:
        fiber = self.fiber()
        self.call(f"{self.name(fiber)}.name =", setattr, fiber, "name", self.maybe("renamed"))

    def daemonize(self) -> None:
        fiber = self.fiber()
        self.call(f"{self.name(fiber)}.daemon =", setattr, fiber, "daemon", self.maybe(True))

    def callback(self) -> None:
        fiber = self.fiber()
        self.call("add_done_callback", fiber.add_done_callback, self.maybe(self.body()))

    def owner_call(self) -> None:
        """What is for scheduled fibers."""
        fiber = self.fiber()
        waits = ("join", "result", "exception")
        name = self.random.choice((*waits, "cancel", "unpark", "done", "start"))
        arguments = [self.maybe(self.seconds())] if name in waits else []
        self.call(f"{self.name(fiber)}.{name}", getattr(fiber, name), *arguments)

    def clear_frame(self) -> None:
        frame = self.fiber().frame
        if frame is not None:
            self.call("frame.clear", frame.clear)

    def hold_frame(self) -> None:
        """A frame that is held is found by its code wherever its fiber is."""
        frame = self.fiber().frame
        if frame is not None:
            self.keep("frame", frame)

    def follow_frame(self) -> None:
        frame = self.any("frame")
        while frame is not None:
            if not frame.f_code.co_name or len(frame.f_locals) > 1000:
                self.found(f"{self.name(frame)} is no frame")
            frame = frame.f_back

    def stacks(self) -> None:
        self.call("trim_stacks", pyfiber.debug.trim_stacks)
        self.call("stack_stats", pyfiber.debug.stack_stats)
        self.variable()

    def threaded(self) -> None:
        """A few steps on another thread."""

        def few() -> None:
            for _ in range(self.random.randrange(1, 5)):
                self.step()

        self.call("thread", self.in_thread, few)


class Kind(ForeignActs, RawActs):
    """Raw fibers alone."""
