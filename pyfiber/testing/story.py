"""The story of a run: its turns, the lines that each has passed, and how they conflict.

The engine calls a Tracer at every switch and, if the run has points, at every point.
"""

from __future__ import annotations

import linecache
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from pyfiber import _engine
from pyfiber.testing.clock import VirtualClock
from pyfiber.testing.errors import first_line
from pyfiber.testing.points import Points, is_standard
from pyfiber.testing.schedule import KINDS

RUNS, LEAVES, CHOICE, POINT = range(4)
HERE = os.path.dirname(__file__)
PACKAGE = os.path.dirname(HERE)
LAST_STEPS = 60  # turns that a log shows at most
LINES_OF_A_STEP = 1000  # remembered at most
FIRST_LINES, LAST_LINES = 3, 8  # shown of a turn
TIMER = 1
INDENT = " " * 19


def outside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not pyfiber's own, or of the standard library.

    If there is none, the innermost one of the library or of pyfiber.
    """
    standard = own = None
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE + os.sep):
            if own is None and not path.startswith(HERE + os.sep):
                own = frame
        elif is_standard(path):
            standard = standard or frame
        else:
            return frame
        frame = frame.f_back
    return standard or own


def where(path: str, line: int) -> str:
    """File and line; with the package, where the file's name says nothing."""
    folder, name = os.path.split(path)
    if name.startswith("__"):
        name = f"{os.path.basename(folder)}/{name}"
    return f"{name}:{line}"


def source(path: str, line: int) -> str:
    """File, line and text of a place in a program."""
    text = linecache.getline(path, line).strip()
    return f"{where(path, line)} {text}".rstrip()


def place(frame: FrameType | None) -> str:
    """File, line and text of a frame."""
    frame = outside(frame)
    return "" if frame is None else source(frame.f_code.co_filename, frame.f_lineno)


def short_name(what: object) -> str:
    """A fiber, or what it waits for, without addresses: equal runs must have equal logs."""
    if isinstance(what, (_engine.Fiber, _engine.Grain)):
        return str(what.name).rpartition(".<locals>.")[2]
    return what if isinstance(what, str) else type(what).__name__


Task = _engine.Fiber[Any] | _engine.Grain[Any]
Function = tuple[str, str]  # path and qualified name


@dataclass(slots=True)
class Passed:
    """A line that a fiber has passed; `notes` say what it did to others."""

    path: str
    line: int
    function: Function
    reads: set[str] = field(default_factory=set)
    writes: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def where(self) -> str:
        return where(self.path, self.line)

    @property
    def source(self) -> str:
        return source(self.path, self.line)

    def uses(self, shared: set[str]) -> str:
        """The shared names that the line uses."""
        return "; ".join(
            f"{what} {', '.join(sorted(names & shared))}"
            for what, names in (("reads", self.reads - self.writes), ("writes", self.writes))
            if names & shared
        )

    def text(self, shared: set[str]) -> str:
        """The line of the source, and the shared names that it uses."""
        uses = self.uses(shared)
        return f"{self.source:<50}  {uses}" if uses else self.source


@dataclass(slots=True)
class Step:
    """One fiber's turn, from where it continued to where it stopped."""

    number: int
    time: float | None
    fiber: str
    begins: str
    ready: int
    usual: bool
    ends: str = ""
    choices: tuple[str, ...] = ()
    passed: deque[Passed] = field(default_factory=lambda: deque(maxlen=LINES_OF_A_STEP))
    count: int = 0  # of lines passed
    interrupted: Passed | None = None  # the line before which it was interrupted
    stack: frozenset[Function] = frozenset()  # the functions in which it was
    under_way: frozenset[tuple[Function, int]] = frozenset()  # the lines of all but the last

    def add(self, passed: Passed) -> None:
        """Add a line, or to the last line if it is another instruction of that."""
        last = self.passed[-1] if self.passed else None
        if last is not None and (last.line, last.function) == (passed.line, passed.function):
            last.reads |= passed.reads
            last.writes |= passed.writes
            return
        self.passed.append(passed)
        self.count += 1

    def lines(self, shared: set[str]) -> Iterator[str]:
        """The lines of the log for this step."""
        mark = " " if self.usual else "*"
        when = "" if self.time is None else f"{self.time:10.3f}s"
        others = f"  [{self.ready} ready]" if self.ready > 1 else ""
        yield f"{self.number:5}{mark}{when}  {self.fiber}: {self.begins}{others}"
        for choice in self.choices:
            yield f"{INDENT}{choice}"
        yield from self.lines_passed(shared)
        if self.ends:
            yield f"{INDENT}{self.ends}"

    def shown(self) -> Iterator[tuple[Passed | None, int]]:
        """The first and the last lines, and those with notes; None and how many are left out."""
        left_out = self.count - len(self.passed)
        for i, passed in enumerate(self.passed):
            at_an_end = i < FIRST_LINES or i >= len(self.passed) - LAST_LINES
            if not at_an_end and not passed.notes:
                left_out += 1
                continue
            if left_out:
                yield None, left_out
                left_out = 0
            yield passed, 0

    def lines_passed(self, shared: set[str]) -> Iterator[str]:
        for passed, left_out in self.shown():
            if passed is None:
                yield f"{INDENT}  ... {plural(left_out, 'line')}"
                continue
            yield f"{INDENT}  {passed.text(shared)}"
            for note in passed.notes:
                yield f"{INDENT}      {note}"


def plural(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


class Tracer:
    """Records which fiber ran when. Called by the engine at every switch and point."""

    def __init__(self, clock: VirtualClock | None, points: Points | None) -> None:
        self.clock = clock
        self.points = points
        self.steps: deque[Step] = deque(maxlen=LAST_STEPS)
        self.current: Step | None = None
        self.grain: _engine.Grain[Any] | None = None  # the grain that runs, if one does
        self.count = 0
        self.running: Task | None = None
        self.started: set[int] = set()
        self.next_line: dict[str, Passed] = {}  # of fibers that were interrupted
        self.names: dict[int, str] = {}  # of fibers, as they were at the first turn
        self.failed: dict[str, str] = {}  # by fiber, the exception that ends it

    def __call__(self, what: int, fiber: Task | None, number: int, count: int, taken: int) -> None:
        if what == RUNS and fiber is not None:
            self.runs(fiber, number, count, taken)
        elif what == LEAVES and fiber is not None:
            self.leaves(fiber)
        elif what == POINT:
            self.passes(number, sys._getframe().f_back, taken != 0)
        elif what == CHOICE and self.current is not None:
            chosen = f"chose {KINDS[number]}: {taken + 1} of {count}"
            if number == TIMER and taken == 0:
                return
            self.current.choices += (chosen,)

    def note(self, what: str) -> None:
        """Add an event of the network to the present turn."""
        if self.current is not None:
            self.current.choices += (f"network: {what}",)

    def fails(self, exc: BaseException) -> None:
        """An exception is about to end the running fiber."""
        if self.current is not None:
            self.failed[self.current.fiber] = first_line(exc)

    def runs(self, fiber: Task, number: int, count: int, taken: int) -> None:
        frame = fiber.frame
        self.grain = fiber if isinstance(fiber, _engine.Grain) else None
        begins = "goes on" if number in self.started else "starts"
        self.started.add(number)
        if at := place(frame):
            begins = f"goes on at {at}"
        self.count += 1
        self.running = fiber
        instead = self.current is not None and self.current.interrupted is not None
        self.current = Step(
            self.count,
            None if self.clock is None else self.clock.now(),
            self.names.setdefault(number, f"{short_name(fiber)}#{number}"),
            begins,
            count,
            taken == 0 and not instead,
        )
        self.steps.append(self.current)
        if passed := self.next_line.pop(self.current.fiber, None):
            self.current.add(passed)

    def passes(self, number: int, frame: FrameType | None, interrupted: bool) -> None:
        """The running fiber comes to a point, and is perhaps interrupted there."""
        step = self.current
        at = outside(frame)
        if step is None or at is None or self.points is None:
            return
        code = at.f_code
        passed = Passed(code.co_filename, at.f_lineno, (code.co_filename, code.co_qualname))
        if number > 0 and self.points.switch != "gil":
            site = self.points.sites[number - 1]
            passed.reads, passed.writes = set(site.reads), set(site.writes)
        if not interrupted:
            step.add(passed)
            return
        step.interrupted = self.next_line[step.fiber] = passed
        calls = list(functions(at))
        step.stack = frozenset(function for function, _ in calls)
        step.under_way = frozenset(calls[1:])
        step.ends = f"is interrupted before {source(passed.path, passed.line)}"
        if self.points.switch != "line":
            step.ends = step.ends.replace(" before ", " in ", 1)

    def leaves(self, fiber: Task) -> None:
        if self.current is None or self.current.ends:
            return
        if self.grain is not None:
            self.current.ends = self.left_by_grain(self.grain)
            return
        if fiber is not self.running:
            self.current.ends = "is over before it has run"
            return
        if fiber.state == "done":
            failed = self.failed.get(self.current.fiber)
            self.current.ends = f"ends with {failed}" if failed else "ends"
            return
        at = place(sys._getframe(1))  # of the fiber; empty if it runs no Python code
        how = "yields" if fiber.state == "ready" else f"waits for {short_name(fiber.waiting_on)}"
        self.current.ends = f"{how} at {at}" if at else how

    def left_by_grain(self, grain: _engine.Grain[Any]) -> str:
        if grain.done():
            return "ends"
        frame = grain.frame
        at = "" if frame is None else f" at {place(frame)}"
        return f"has yielded {short_name(grain.suspended_state)}{at}"

    def text(self) -> str:
        """The log, without its beginning if it is long."""
        steps = list(self.steps)
        note_conflicts(steps)
        shared = shared_names(steps)
        out: list[str] = []
        left_out = self.count - len(steps)
        if left_out:
            out.append(f"(the first {left_out} steps are left out)")
        for step in steps:
            out += step.lines(shared)
        return "\n".join(out)


def functions(frame: FrameType | None) -> Iterator[tuple[Function, int]]:
    """The functions that a fiber is in, the last one first, and where it is there."""
    while frame is not None:
        yield (frame.f_code.co_filename, frame.f_code.co_qualname), frame.f_lineno
        frame = frame.f_back


def shared_names(steps: Sequence[Step]) -> set[str]:
    """The names that one fiber writes and another one reads or writes."""
    users: dict[str, set[str]] = {}
    written: set[str] = set()
    for step in steps:
        for passed in step.passed:
            written |= passed.writes
            for name in passed.reads | passed.writes:
                users.setdefault(name, set()).add(step.fiber)
    return {name for name in written if len(users[name]) > 1}


def note_conflicts(steps: Sequence[Step]) -> None:
    """Note at each line what it changes of which an interrupted fiber knows an older state.

    What a function has read counts as long as the fiber is in that function. A line that waits for
    a call has read what it uses, and has written nothing yet.
    """
    history: dict[str, list[Passed]] = {}
    away: dict[str, Step] = {}
    for step in steps:
        away.pop(step.fiber, None)
        told: set[str] = set()  # in this turn
        for passed in step.passed:
            passed.notes = [
                note
                for fiber, left in away.items()
                for note in conflicts(passed, fiber, left, history.get(fiber, []))
                if note not in told
            ]
            told.update(passed.notes)
            history.setdefault(step.fiber, []).append(passed)
        if step.interrupted is not None:
            away[step.fiber] = step


def conflicts(passed: Passed, fiber: str, left: Step, before: Sequence[Passed]) -> Iterator[str]:
    """What a line has to do with what an interrupted fiber has done before."""
    for name in sorted(passed.reads | passed.writes):
        for earlier in reversed(before):
            if earlier.function not in left.stack:
                continue
            done = (earlier.function, earlier.line) not in left.under_way
            wrote = done and name in earlier.writes
            if wrote or (name in earlier.reads | earlier.writes and name in passed.writes):
                did = "written" if wrote else "read"
                yield f"<- {fiber} has {did} {name} at {earlier.where}, and was interrupted"
                break
