"""The greenlet stand-in; tests/standin/random_programs.py compares tame programs with greenlet."""

from __future__ import annotations

import contextvars
from typing import Any

from pyfiber import greenlet
from pyfiber.greenlet import GreenletExit

from .foreign import ForeignActs
from .generators import GeneratorActs
from .program import acts

Greenlet = greenlet.greenlet


class Method(Greenlet):
    """`run` is a method, and the finalizer acts."""

    program: Any = None

    def run(self, *args: Any, **kwargs: Any) -> Any:
        return self.program.body()(*args) if self.program is not None else None

    def __del__(self) -> None:
        if self.program is not None:
            self.program.betray("greenlet.__del__")


class Looker(Greenlet):
    """Looking something up does something."""

    def __getattribute__(self, name: str) -> Any:
        program = object.__getattribute__(self, "__dict__").get("program")
        if program is not None and program.random.random() < 0.3:
            program.betray(f"greenlet.{name}")
        return super().__getattribute__(name)


class StandInActs(GeneratorActs):
    """Greenlets beside fibers."""

    ACTS = acts(
        "new_greenlet 20, switch_greenlet 24, throw_greenlet 10, parent_greenlet 6,"
        "reparent_greenlet 8, greenlet_again 4, look_at_greenlet 5, set_run 3, set_context 3,"
        "trace_greenlets 3, new 4, switch 5"
    )
    EXPECTED = (greenlet.error, GreenletExit, AttributeError)
    FATES = (GreenletExit,)

    def new_greenlet(self) -> Any:
        sort = self.random.choice((Greenlet, Greenlet, Method, Looker))
        parent = self.maybe(self.any("greenlet"))
        run = None if sort is Method else self.target()
        made = self.call(sort.__name__, sort, run, parent)
        if made is None:
            return None
        if sort is not Greenlet:
            made.program = self
        return self.keep("greenlet", made)

    def some_greenlet(self) -> Any:
        return self.any("greenlet") or self.new_greenlet() or greenlet.getcurrent()

    def switch_greenlet(self) -> None:
        target = self.some_greenlet()
        values = [self.value() for _ in range(self.random.randrange(3))]
        self.call(f"{self.name(target)}.switch", target.switch, *values)

    def throw_greenlet(self) -> None:
        target = self.some_greenlet()
        choices: list[tuple[Any, ...]] = [
            *((ValueError,), (), (KeyError, "thrown"), (GreenletExit("out"),)),
            *((self.evil(),), (ValueError, self.evil()), (ValueError, None, self.evil())),
        ]
        self.call(f"{self.name(target)}.throw", target.throw, *self.random.choice(choices))

    def parent_greenlet(self) -> None:
        parent = greenlet.getcurrent().parent
        if parent is not None:
            self.call("parent.switch", parent.switch, self.value())

    def reparent_greenlet(self) -> None:
        child, parent = self.some_greenlet(), self.maybe(self.some_greenlet())
        self.call(f"{self.name(child)}.parent =", setattr, child, "parent", parent)

    def greenlet_again(self) -> None:
        target = self.some_greenlet()
        parent = self.maybe(self.some_greenlet())
        self.call(f"{self.name(target)}.__init__", target.__init__, self.target(), parent)

    def set_run(self) -> None:
        target = self.some_greenlet()
        self.call(f"{self.name(target)}.run =", setattr, target, "run", self.target())

    def set_context(self) -> None:
        target = self.some_greenlet()
        context = self.maybe(self.random.choice((None, contextvars.copy_context())))
        self.call(f"{self.name(target)}.gr_context =", setattr, target, "gr_context", context)

    def look_at_greenlet(self) -> None:
        target = self.some_greenlet()
        for name in ("dead", "gr_frame", "gr_context", "parent", "run", "__dict__"):
            if self.random.random() < 0.4:
                self.call(f"{self.name(target)}.{name}", getattr, target, name, None)
        self.call("repr", lambda: (repr(target), bool(target)))

    def trace_greenlets(self) -> None:
        """A trace function that acts, and at times fails."""

        def tell(event: str, pair: Any) -> None:
            if self.random.random() < 0.3:
                self.betray(f"greenlet trace of {event}")

        self.call("settrace", greenlet.settrace, self.random.choice((tell, None, self.evil())))

    def end(self) -> None:
        greenlet.settrace(None)
        self.forget()
        for _ in range(20):
            left = [g for g in (ghost() for ghost in self.ghosts.get("greenlet", ())) if g]
            for each in left:
                try:
                    each.throw(GreenletExit)
                except BaseException as error:
                    self.judge("the last throw", error)
            if not left:
                break
            del left, each
        super().end()
        greenlet.settrace(None)  # what was on its way to set it has ended


class Kind(ForeignActs, StandInActs):
    """All of them."""

    EXPECTED = (KeyError,)
