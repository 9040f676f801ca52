"""Functions that emit values: generators on fibers of their own."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, ClassVar

import pyfiber
from pyfiber import FiberGenerator

from .program import acts
from .raw import RawActs


class GeneratorActs(RawActs):
    """Generators beside fibers, which may know the fibers that generators run on."""

    ACTS = acts("new_emitter 5, pull 10, emit 8, close_emitter 2, look_at_emitter 1")
    EXPECTED = (StopIteration,)

    def emitting(self) -> Callable[..., Any]:
        """A function that emits, between steps of which any may emit as well."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self.random.random() < 0.3:
                self.keep("fiber", pyfiber.current())
            for _ in range(self.random.randrange(4)):
                self.step()
                self.emit()
            return self.value()

        return run

    def found_again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Its fiber may be part of a cycle through its own frames, which the collector does not
        see: `end` must find it, in whatever call it was left for good, be it this one.
        """

        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        self.GENERATED.add(run.__code__)
        return run

    GENERATED: ClassVar[set[CodeType]] = set()

    def fibers(self) -> list[Any]:
        return super().fibers() + [thing for thing in gc.get_objects() if self.is_body(thing)]

    def is_body(self, thing: Any) -> bool:
        """Is it the fiber that a generator runs on?"""
        return isinstance(thing, pyfiber.Fiber) and any(
            isinstance(held, FunctionType) and held.__code__ in self.GENERATED
            for held in gc.get_referents(thing)
        )

    def new_emitter(self) -> Any:
        function = self.random.choice((self.emitting, self.emitting, self.target))()
        function = self.found_again(function)
        arguments = [self.value() for _ in range(self.random.choice((0, 0, 1)))]
        if self.random.random() < 0.5:
            made = self.call("FiberGenerator", FiberGenerator, function, *arguments)
        else:
            made = self.call("@generator", lambda: pyfiber.generator(function)(*arguments))
        return self.keep("emitter", made) if made is not None else None

    def emitter(self) -> Any:
        return self.any("emitter") or self.new_emitter() or FiberGenerator(list)

    def pull(self) -> None:
        emitter = self.emitter()
        name = self.random.choice(("__next__", "__next__", "send", "throw"))
        arguments = {
            "send": [self.random.choice((None, self.value()))],
            "throw": [self.maybe(self.random.choice((ValueError, pyfiber.FiberExit("thrown"))))],
        }
        label = f"{self.name(emitter)}.{name}"
        self.call(label, getattr(emitter, name), *arguments.get(name, []))

    def emit(self) -> None:
        self.call("emit", pyfiber.emit, self.value())

    def close_emitter(self) -> None:
        emitter = self.emitter()
        self.call(f"{self.name(emitter)}.close", emitter.close)

    def look_at_emitter(self) -> None:
        emitter = self.emitter()
        self.call("repr", lambda: (repr(emitter), iter(emitter), emitter._holders()))

    def end(self) -> None:
        self.forget()
        for emitter in filter(None, (ghost() for ghost in self.ghosts.get("emitter", ()))):
            try:
                emitter.close()
            except BaseException as error:
                self.judge("the last close", error)
        super().end()
