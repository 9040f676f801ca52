"""What every random program is made of: chance, fuel, objects, judged calls, an orderly end."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import itertools
import logging
import math
import os
import random
import re
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pyfiber
from pyfiber import FiberError, FiberExit, _engine

from .evil import Boom, Evil, Liar, Looked, perform

#: A size that no machine has: asking for it is the one way to a MemoryError.
HUGE = 1 << 52
MOST = 7  # objects of each sort that are kept
JOIN_SECONDS = 30
BATCH, FOREIGN = (os.path.join(os.path.dirname(__file__), f"{n}.py") for n in ("batch", "foreign"))
# A fiber that is left while it has the lock of all imports keeps other threads from importing.
IMPORTS = ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
#: No trace function acts here: it would depend on who watches, or leave a lock taken for ever.
UNTRACED = frozenset((__file__, BATCH, FOREIGN, logging.__file__, threading.__file__, *IMPORTS))
VARIABLE: contextvars.ContextVar[Any] = contextvars.ContextVar("VARIABLE")

Acts = dict[str, int]


def acts(text: str) -> Acts:
    """`new 14, switch 24`: names of methods and their weights."""
    return {name: int(weight) for name, weight in map(str.split, text.split(","))}


def untrace() -> None:
    sys.settrace(None)
    sys.setprofile(None)


def fibers_of_this_thread() -> list[Any]:
    """Those that have begun; a worker thread may have others, which only its next job ends."""
    for ident, _, _, _, fibers in _engine._threads():
        if ident == threading.get_ident():
            return fibers
    return []


class Unfinished(Exception):
    """A helper thread did not end: the program hangs."""


class Program:
    """A random program. Subclasses and mixins say in ACTS what it does, and how often.

    `seed` decides everything. `steps` is the most calls it makes: with fewer the program is a
    prefix of itself. What it finds is in `findings`.
    """

    #: Method names and weights; the ones of all base classes together.
    ACTS = acts("collect 2, drop 6, watch 3, handle 3, trace 2, variable 1")
    #: Exceptions that a call may raise; those of all base classes together.
    EXPECTED: tuple[type[BaseException], ...] = (
        *(Boom, FiberError, FiberExit),
        *(TypeError, ValueError, OverflowError, RecursionError),
    )
    #: Those that end a fiber: passed on, as a rule.
    FATES: tuple[type[BaseException], ...] = (FiberExit,)
    #: May the program run on another thread than the main one?
    ANY_THREAD = True

    def __init__(self, seed: int, steps: int | None = None, verbose: bool = False) -> None:
        self.random = random.Random(seed)
        self.fuel = self.random.choice((10, 20, 40, 60))
        if steps is not None:
            self.fuel = min(self.fuel, steps)
        self.verbose = verbose
        self.findings: list[str] = []
        self.kept: dict[str, list[Any]] = {}
        self.ghosts: dict[str, list[weakref.ref[Any]]] = {}
        self.watches: list[weakref.ref[Any]] = []
        self.root = pyfiber.current()
        self.numbers = itertools.count(1)
        self.names: dict[int, str] = {}
        self.bodies = 0
        self.doubts = 0
        self.malice = self.random.choice((0.0, 0.2, 0.4, 0.7))  # how many arguments are evil
        bases = [vars(base) for base in reversed(type(self).__mro__)]
        weights: Acts = {}
        for base in bases:
            weights.update(base.get("ACTS", {}))
        self.acts = [name for name, weight in weights.items() for _ in range(weight)]
        self.expected = tuple({kind for base in bases for kind in base.get("EXPECTED", ())})
        self.fates = tuple({kind for base in bases for kind in base.get("FATES", ())})

    # ------------------------------------------------------------------ its life

    def play(self) -> None:
        """Run it to its end, on this thread or on one of its own."""
        other = self.random.random() < 0.3 and self.ANY_THREAD
        gc_threshold = self.random.choice((0, 0, 1, 2, 10, 50))
        if other:
            self.root = None
        try:
            gc.set_threshold(gc_threshold)
            if gc_threshold:
                gc.enable()
            if other:
                self.in_thread(self.go)
            else:
                self.go()
        finally:
            gc.disable()
        self.forget()

    def go(self) -> None:
        """The program proper."""
        root = pyfiber.current()
        try:
            while self.fuel > 0:
                try:
                    self.main()
                except BaseException as error:
                    self.judge("main", error)
        finally:
            untrace()
            VARIABLE.set(None)
            self.fuel = 0
        if pyfiber.current() is not root:
            self.found("the program ends on another fiber than it began on")
        try:
            self.end()
        finally:
            untrace()  # a fiber left in trace() may set its function as it is ended

    def main(self) -> None:
        """What the root fiber does again and again."""
        self.step()

    def end(self) -> None:
        """Nothing is kept any more; what is still suspended is ended."""
        self.forget()
        for _ in range(20):
            here = [id(fiber) for fiber in fibers_of_this_thread()]
            left = [f for f in self.fibers() if f.state == "parked" and id(f) in here]
            if not left:
                return
            for fiber in left:
                try:
                    fiber.throw(FiberExit)
                except BaseException as error:
                    self.judge("the last throw", error)
            del left, fiber
        self.found("fibers are still suspended after 20 times FiberExit")

    def fibers(self) -> list[Any]:
        """All that are alive."""
        alive = (ghost() for ghost in self.ghosts.get("fiber", ()))
        return [fiber for fiber in alive if fiber is not None]

    def forget(self) -> None:
        """Drop everything that is kept."""
        for sort in [*self.kept]:  # a finalizer may keep something of a new sort
            objects = self.kept[sort]
            while objects:
                objects[-1:] = []
        self.watches.clear()

    # ------------------------------------------------------------------- findings

    def say(self, *words: Any) -> None:
        """Tell people who watch. Must not look at anything evil."""
        if self.verbose:
            where = self.names.get(id(pyfiber.current()), "root")
            thread = threading.current_thread()
            if thread is not threading.main_thread():
                where = f"{thread.name} {where}"
            sys.stderr.write(f"{self.fuel:3} [{where}] {' '.join(map(str, words))}\n")
            sys.stderr.flush()

    def found(self, text: str) -> None:
        """Something is wrong."""
        self.say("FOUND", text)
        if text not in self.findings:
            self.findings.append(text)

    def judge(self, label: str, error: BaseException) -> None:
        """Is this an exception that a call may end with?"""
        self.say(label, "raises", type(error).__name__, *map(self.name, error.args))
        if isinstance(error, BaseExceptionGroup):
            for each in error.exceptions:
                self.judge(label, each)
        elif isinstance(error, MemoryError):
            if str(HUGE) not in str(error):
                self.found(f"{label} raises MemoryError: {error}")
        elif not isinstance(error, self.expected):
            place = error.__traceback__
            while place is not None and place.tb_next is not None:
                place = place.tb_next
            at = "" if place is None else f" at {place.tb_frame.f_code.co_name}:{place.tb_lineno}"
            self.found(f"{label} raises {type(error).__name__}: {self.name(error)}{at}")

    def name(self, thing: Any) -> str:
        """A short text that no evil object has a hand in."""
        if type(thing) in (int, float, str, bool, type(None)):
            return repr(thing)[:300]
        if isinstance(type(thing), type) and issubclass(type(thing), BaseException):
            return f"{type(thing).__name__}({', '.join(map(self.name, thing.args))})"
        return self.names.get(id(thing), type(thing).__name__)

    # -------------------------------------------------------------------- objects

    def keep(self, sort: str, thing: Any) -> Any:
        """Remember an object: strongly until it is dropped, weakly for ever."""
        self.names[id(thing)] = f"{sort}{next(self.numbers)}"
        ghosts = self.ghosts.setdefault(sort, [])
        with contextlib.suppress(TypeError):
            ghosts.append(weakref.ref(thing))
        kept = self.kept.setdefault(sort, [])
        kept.append(thing)
        if len(kept) > MOST:
            self.let_go(kept)
        return thing

    def let_go(self, kept: list[Any]) -> None:
        """Drop one of some. A trace function may change the list meanwhile: slices do not mind."""
        index = self.random.randrange(len(kept) or 1)
        self.say("drop", self.names.get(id(self.one_of(kept, index))))
        kept[index : index + 1] = []

    def any(self, sort: str) -> Any:
        """One of the objects of a sort, even one that is kept by others only; or None."""
        ghosts = self.ghosts.get(sort, [])
        if ghosts and self.random.random() < 0.3:
            thing = self.one_of(ghosts, self.random.randrange(len(ghosts)))()
            if thing is not None:
                return thing
        kept = self.kept.get(sort, [])
        return self.one_of(kept, self.random.randrange(len(kept))) if kept else None

    @staticmethod
    def one_of(things: list[Any], index: int) -> Any:
        """No copy is made to choose from, nor a slice: CPython 3.11 collects garbage within
        `tuple(list)` and `list[a:b]` when it has looked where the items are, and a finalizer that
        changes the list then lets it read freed memory.
        """
        try:
            return things[index]
        except IndexError:  # a finalizer or a trace function has changed it
            return None

    def value(self) -> Any:
        """Something to hand over."""
        choice = self.random.randrange(6)
        if choice == 0:
            return self.evil()
        if choice == 1:
            return self.any("fiber")
        return self.random.choice((None, 1, "text", 2.5))

    def seconds(self) -> Any:
        """A time that is soon over, wherever it is waited for."""
        return self.random.choice((0, 0, 0.0, 0.0001, -1, -0.5, True, -math.inf, math.nan))

    def evil(self) -> Any:
        """A new evil object, perhaps the only holder of something."""
        sort = self.random.choice((Evil, Evil, Evil, Looked, Liar))
        hold = self.random.choice((None, self.any("fiber"), self.any("evil")))
        return self.keep("evil", sort(hold)) if self.random.random() < 0.2 else sort(hold)

    def maybe(self, plain: Any) -> Any:
        """The argument, or an evil one instead."""
        return self.evil() if self.random.random() < self.malice else plain

    # ---------------------------------------------------------------------- calls

    def step(self) -> None:
        """One random act."""
        if self.fuel > 0:
            self.fuel -= 1
            getattr(self, self.random.choice(self.acts))()

    def call(self, label: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A public call: its exception is judged, and sometimes passed on."""
        if self.verbose:
            shown = [self.name(a) for a in args]
            shown += [f"{key}={self.name(value)}" for key, value in kwargs.items()]
            label = f"{label}({', '.join(shown)})"
            self.say(label)
        try:
            result = perform(function, args, kwargs)
        except BaseException as error:
            self.judge(label, error)
            if self.passes_on(error):
                raise
            return None
        if self.verbose:
            self.say(label, "->", self.name(result))
        return result

    def passes_on(self, error: BaseException) -> bool:
        """Does this exception go on after it was seen?"""
        return self.random.random() < (0.9 if isinstance(error, self.fates) else 0.15)

    def betray(self, protocol: str) -> None:
        """An evil object is looked at: do something, then perhaps raise."""
        if self.fuel <= 0 or self.random.random() < 0.3:
            return
        self.say("evil", protocol)
        for _ in range(self.random.choice((1, 1, 2))):
            self.step()
        if self.random.random() < 0.1:
            raise Boom(protocol)

    def body(self) -> Callable[..., Any]:
        """A function for a fiber to run: some steps, in one of several shapes."""
        number = self.bodies = self.bodies + 1

        def run(*args: Any, **kwargs: Any) -> Any:
            self.names[id(pyfiber.current())] = f"fiber-of-body{number}"
            self.say(f"body {number} begins")
            try:
                self.steps()
            except self.fates as error:
                self.say(f"body {number} ends by", type(error).__name__)
                if self.random.random() < 0.2:
                    return "swallowed"
                raise
            finally:
                if self.random.random() < 0.4:
                    self.step()
                self.say(f"body {number} ends")
            return self.value()

        return run

    def steps(self) -> None:
        """Some steps, at times within something that has state of its own."""
        count = self.random.randrange(5)
        shape = self.random.randrange(7)
        if shape == 6:
            self.through_c(lambda: [self.step() for _ in range(count)])
        elif shape == 0:
            sorted(range(count), key=lambda _: self.step() or 0)
        elif shape == 1:
            for _ in (self.step() for _ in range(count)):
                pass
        elif shape == 2:
            contextvars.copy_context().run(self.steps)
        else:
            for _ in range(count):
                self.step()
        if self.random.random() < 0.1:
            raise Boom("body")

    def through_c(self, function: Callable[[], Any]) -> None:
        """Call it from C code that has more to do afterwards."""
        re.sub("two", lambda _: str(function()), "one two three")

    def in_thread(self, function: Callable[[], Any]) -> None:
        """Call it on another thread and wait for that."""

        def run() -> None:
            if collecting:
                gc.enable()
            try:
                function()
            except BaseException as error:
                self.judge("thread", error)
            gc.disable()
            untrace()
            VARIABLE.set(None)

        # threading's own code, which holds locks, is no place to raise in or to switch away from.
        collecting = gc.isenabled()
        gc.disable()
        tracing, profiling = sys.gettrace(), sys.getprofile()
        untrace()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(JOIN_SECONDS)
        if thread.is_alive():
            raise Unfinished
        sys.settrace(tracing)
        sys.setprofile(profiling)
        if collecting:
            gc.enable()

    # ---------------------------------------------------------- acts of all programs

    def collect(self) -> None:
        self.call("gc.collect", gc.collect)

    def drop(self) -> None:
        sort = self.random.choice(["evil", "watch", *self.kept])
        self.let_go(self.watches if sort == "watch" else self.kept.get(sort, []))

    def watch(self) -> None:
        """A weakref callback, which betrays."""
        thing = self.any(self.random.choice([*self.kept, "evil"]))
        if thing is not None:
            with contextlib.suppress(TypeError):
                self.watches.append(weakref.ref(thing, lambda _: self.betray("callback")))

    def handle(self) -> None:
        """Something is done while an exception is handled, which must still be that one then."""
        mark = Boom("handled")
        try:
            raise mark
        except Boom:
            for _ in range(self.random.randrange(1, 3)):
                self.step()
            if sys.exc_info()[1] is not mark:
                self.found(f"sys.exc_info() is {self.name(sys.exc_info()[1])} in a handler")

    def trace(self) -> None:
        """Tracing, profiling, or neither any more; what is called then acts at times."""

        def tracer(frame: Any, event: str, arg: Any) -> Any:
            if frame.f_code.co_filename not in UNTRACED and self.random.random() < 0.01:
                try:
                    self.betray(f"tracing a {event} of {frame.f_code.co_name}")
                except BaseException as error:
                    # Raised where an `except` clause is left, CPython would handle the exception
                    # of that for ever, and keep all its frames.
                    if event != "line" or isinstance(error, self.fates):
                        self.distrust()
                        raise
            return tracer

        act = self.random.choice((sys.settrace, sys.setprofile))
        self.say(act.__name__)
        act(self.random.choice((tracer, None)))

    def distrust(self) -> None:
        """A trace function raises, perhaps between an act and what a model records of it."""
        self.doubts += 1

    def variable(self) -> None:
        VARIABLE.set(self.value())
