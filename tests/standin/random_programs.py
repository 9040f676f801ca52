"""Random programs of greenlets do the same on `pyfiber.greenlet` as on greenlet.

    python tests/standin/random_programs.py [--first SEED] [--count N]

A program makes greenlets, switches, throws, changes parents, contexts and what is to be run, drops
references, traces, and writes down all that it sees. Needs greenlet installed beside pyfiber. The
exit code is 0 if every program wrote the same on both. (Seed 372 hangs greenlet: one that is being
dropped becomes its parent's parent.)
"""

# ruff: noqa: E402
from __future__ import annotations

import argparse
import contextvars
import gc
import os
import random
import subprocess
import sys
import weakref

import pyfiber.greenlet

STAND_IN = "stand-in"
if sys.argv[1:2] == [STAND_IN]:
    pyfiber.greenlet.install()

import greenlet
from greenlet import GreenletExit, getcurrent, settrace

VAR = contextvars.ContextVar("VAR", default="-")
FUEL = 120


class OwnExit(GreenletExit):
    """An end that is a result."""


class Program:
    """One random program. What it decides depends on the seed and on what it has seen."""

    OFTEN = ("new", "new", "switch", "switch", "switch", "keywords", "throw", "to_parent")
    SELDOM = ("drop", "reparent", "context", "trace", "rerun", "to_itself", "handle")
    #: Those that are done while a greenlet looks up its `run`.
    QUIET = ("new", "context", "rerun", "reparent", "trace")

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.log = []
        self.known = {}
        self.names = weakref.WeakKeyDictionary({getcurrent(): "main"})
        self.made = 0
        self.fuel = FUEL

    def name(self, g):
        return self.names.get(g, "?") if g is not None else None

    def show(self, value):
        if isinstance(value, greenlet.greenlet):
            return self.name(value)
        if isinstance(value, BaseException):
            return type(value).__name__, value.args
        return value

    def state(self):
        return [
            (name, bool(g), g.dead, self.name(g.parent), g.gr_frame is not None)
            for name, g in sorted(self.known.items())
        ]

    def body(self, name):
        def run(*args, **kwargs):
            # greenlet starts a parent without the GreenletExit that its child ended by.
            args = () if args and isinstance(args[0], GreenletExit) else args
            self.log.append(("start", name, args, kwargs, VAR.get()))
            if self.random.random() < 0.5:
                VAR.set(name)
            try:
                for _ in range(self.random.randrange(4)):
                    self.step(name)
                if self.random.random() < 0.25:
                    raise self.random.choice([KeyError, OwnExit, ValueError])(name)
                return name
            except GreenletExit as e:
                self.log.append(("exit", name, self.show(e), self.name(getcurrent().parent)))
                if self.random.random() < 0.3:
                    self.step(name)
                if self.random.random() < 0.2:
                    return "exited"
                raise
            except Exception as e:
                self.log.append(("error", name, self.show(e), self.show(e.__context__)))
                if self.random.random() < 0.6:
                    raise
            finally:
                if self.random.random() < 0.15:
                    self.step(name)
                self.log.append(("end", name))

        return run

    def step(self, who):
        if self.fuel <= 0:
            return
        self.fuel -= 1
        act = self.random.choice(self.QUIET if who == "run" else self.OFTEN + self.SELDOM)
        try:
            result = getattr(self, act)(who)
        except Exception as e:
            # Names of greenlets are addresses.
            result = type(e).__name__, str(e).split("\n")[0].split(" object at")[0]
        except GreenletExit as e:
            self.log.append((who, act, self.show(e)))
            raise
        # greenlet calls a greenlet dead that looks up the `run` of its parent.
        state = None if who == "run" else self.state()
        handled = type(sys.exception()).__name__
        self.log.append((who, act, result, self.name(getcurrent()), state, VAR.get(), handled))

    def any(self):
        return self.known[self.random.choice(sorted(self.known))]

    # what a step does

    def new(self, _):
        self.made += 1
        name = f"g{self.made}"
        kind = self.random.choice([greenlet.greenlet, greenlet.greenlet, Method, Computed, Final])
        run = self.random.choice([self.body(name)] * 4 + [7])
        parent = self.any() if self.known and self.random.random() < 0.7 else None
        g = kind(run, parent)
        self.names[g], self.known[name] = name, g
        return name, kind.__name__

    def switch(self, _):
        return self.show(self.any().switch(*range(self.random.randrange(3))))

    def keywords(self, _):
        return self.show(self.any().switch(*range(self.random.randrange(2)), a=1))

    def throw(self, _):
        what = [(ValueError,), (OwnExit,), (), (KeyError("i"),), (GreenletExit, 5), (OwnExit("o"),)]
        return self.show(self.any().throw(*self.random.choice(what)))

    def to_parent(self, who):
        parent = getcurrent().parent
        return None if parent is None else self.show(parent.switch(who))

    def to_itself(self, _):
        return getcurrent().switch(1, 2)

    def handle(self, who):
        try:
            raise KeyError(who)
        except KeyError:
            self.step(who)
            return self.show(sys.exception())

    def drop(self, _):
        del self.known[self.random.choice(sorted(self.known))]

    def reparent(self, _):
        g, parent = self.any(), self.random.choice([self.any(), getcurrent()])
        g.parent = parent
        return self.name(g), self.name(parent)

    def context(self, _):
        self.any().gr_context = self.random.choice([contextvars.copy_context(), None])

    def rerun(self, _):
        self.any().run = self.body("again")

    def trace(self, _):
        fails = self.random.random() < 0.2

        def tell(event, pair):
            self.log.append((event, *map(self.name, pair)))
            if fails:
                raise LookupError("trace")

        settrace(self.random.choice([tell, None]))


class Method(greenlet.greenlet):
    """`run` is a method."""

    def __init__(self, body, parent):
        super().__init__(None, parent)
        self.body = body

    def run(self, *args, **kwargs):
        return self.body(*args, **kwargs)


class Computed(greenlet.greenlet):
    """Looking `run` up does something."""

    def __getattribute__(self, name):
        if name == "run" and program.random.random() < 0.5:
            program.step("run")
        return super().__getattribute__(name)


class Final(greenlet.greenlet):
    """Has a finalizer of its own."""

    def __del__(self):
        program.log.append(("del", program.name(self)))


def play(seed):
    """All that a program writes down."""
    global program
    program = Program(seed)
    while program.fuel > 0:
        try:
            program.step("main")
        except BaseException as e:
            program.log.append(("main", program.show(e)))
    settrace(None)
    for name in sorted(program.known):
        program.known.pop(name, None)
    return program.log


def run(which, first, count):
    """Start the programs on one of the two."""
    return subprocess.Popen(
        [sys.executable, __file__, which, str(first), str(count)],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # greenlets that did not die
        text=True,
    )


def first_difference(theirs, ours):
    """Where two programs part, for people."""
    theirs, ours = theirs.split("\t"), ours.split("\t")
    at = next((i for i, (t, o) in enumerate(zip(theirs, ours, strict=False)) if t != o), 0)
    return "\n".join([*theirs[max(at - 5, 0) : at], f"greenlet: {theirs[at]}", f"here: {ours[at]}"])


def main():
    """Compare the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=350)
    options = parser.parse_args()
    both = [run(which, options.first, options.count) for which in ("greenlet", STAND_IN)]
    texts = [process.communicate()[0].splitlines() for process in both]
    codes = [process.returncode for process in both]
    differ = 0
    for theirs, ours in zip(*texts, strict=False):
        if theirs != ours:
            differ += 1
            print(first_difference(theirs, ours))
    print(f"{len(texts[1])} programs, {differ} differ, exit codes {codes}")
    return int(differ > 0 or codes != [0, 0] or any(len(t) != options.count for t in texts))


if __name__ == "__main__":
    if sys.argv[1:2] not in (["greenlet"], [STAND_IN]):
        sys.exit(main())
    assert (greenlet is pyfiber.greenlet) == (sys.argv[1] == STAND_IN)
    gc.disable()  # the two find garbage at different times
    sys.unraisablehook = lambda info: program.log.append(("lost", program.show(info.exc_value)))
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + int(sys.argv[3])):
        print(number, *map(repr, play(number)), sep="\t")
