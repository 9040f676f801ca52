"""The text of a failure: the traceback, how to replay it, which fiber ran when."""

from __future__ import annotations

import linecache
import os
import sys
import traceback
from collections import deque
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

import pyfiber
from pyfiber import _engine
from pyfiber.testing.clock import VirtualClock
from pyfiber.testing.schedule import KINDS, Schedule

RUNS, LEAVES, CHOICE = range(3)
HERE = os.path.dirname(__file__)
PACKAGE = os.path.dirname(HERE)
LAST_STEPS = 60  # steps that a log shows at most
READY, TIMER = 0, 1


def outside(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that is not pyfiber's own; the innermost one if all are."""
    own = None
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE + os.sep):
        if own is None and not frame.f_code.co_filename.startswith(HERE + os.sep):
            own = frame
        frame = frame.f_back
    return frame or own


def place(frame: FrameType | None) -> str:
    """File, line and text of a frame."""
    frame = outside(frame)
    if frame is None:
        return ""
    name = frame.f_code.co_filename
    line = linecache.getline(name, frame.f_lineno).strip()
    return f"{os.path.basename(name)}:{frame.f_lineno} {line}".rstrip()


def short_name(what: object) -> str:
    """A fiber, or what it waits for, without addresses: equal runs must have equal logs."""
    if isinstance(what, (_engine.Fiber, _engine.Grain)):
        return str(what.name).rpartition(".<locals>.")[2]
    return what if isinstance(what, str) else type(what).__name__


Task = _engine.Fiber[Any] | _engine.Grain[Any]


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

    def lines(self) -> list[str]:
        """The lines of the log for this step."""
        mark = " " if self.usual else "*"
        when = "" if self.time is None else f"{self.time:10.3f}s"
        head = f"{self.number:5}{mark}{when}  {self.fiber}"
        others = f"  [{self.ready} ready]" if self.ready > 1 else ""
        out = [f"{head}: {self.begins}{others}"]
        out += [f"{'':17}  {choice}" for choice in self.choices]
        if self.ends:
            out.append(f"{'':17}  {self.ends}")
        return out


class Tracer:
    """Records which fiber ran when. Called by the engine at every switch."""

    def __init__(self, scheduler: pyfiber.Scheduler, clock: VirtualClock | None) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.steps: deque[Step] = deque(maxlen=LAST_STEPS)
        self.current: Step | None = None
        self.grain: _engine.Grain[Any] | None = None  # the grain that runs, if one does
        self.count = 0
        self.running: Task | None = None
        self.started: set[int] = set()

    def __call__(self, what: int, fiber: Task | None, number: int, count: int, taken: int) -> None:
        if what == RUNS and fiber is not None:
            self.runs(fiber, number, count, taken)
        elif what == LEAVES and fiber is not None:
            self.leaves(fiber)
        elif what == CHOICE and self.current is not None:
            chosen = f"chose {KINDS[number]}: {taken + 1} of {count}"
            if number == TIMER and taken == 0:
                return
            self.current.choices += (chosen,)

    def note(self, what: str) -> None:
        """Add an event of the network to the present turn."""
        if self.current is not None:
            self.current.choices += (f"network: {what}",)

    def runs(self, fiber: Task, number: int, count: int, taken: int) -> None:
        frame = fiber.frame
        self.grain = fiber if isinstance(fiber, _engine.Grain) else None
        begins = "goes on" if number in self.started else "starts"
        self.started.add(number)
        if at := place(frame):
            begins = f"goes on at {at}"
        self.count += 1
        self.running = fiber
        self.current = Step(
            self.count,
            None if self.clock is None else self.clock.now(),
            f"{short_name(fiber)}#{number}",
            begins,
            count,
            taken == 0,
        )
        self.steps.append(self.current)

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
            self.current.ends = "ends"
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
        out: list[str] = []
        left_out = self.count - len(self.steps)
        if left_out:
            out.append(f"(the first {left_out} steps are left out)")
        for step in self.steps:
            out += step.lines()
        return "\n".join(out)


def clean(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on."""
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(HERE + os.sep):
        tb = tb.tb_next
    return tb


def format_failure(exc: BaseException) -> str:
    """The traceback as Python prints it, without pyfiber.testing's frames."""
    shown = traceback.TracebackException(type(exc), exc, clean(exc.__traceback__))
    return "".join(shown.format()).rstrip()


def plural(number: int) -> str:
    """A number of choices, in words."""
    return f"{number} choice" if number == 1 else f"{number} choices"


def failure_text(
    headline: str,
    exc: BaseException,
    schedule: Schedule,
    replay: str,
    log: str,
    shrunk_from: int,
    story: str = "",
) -> str:
    """Write the text of a ScheduleFailure."""
    much = schedule.deviations
    how_far = "the usual order" if much == 0 else f"{plural(much)} out of the usual order"
    if shrunk_from > much:
        how_far += f", {shrunk_from} before shrinking"
    told = f"what the network did:\n{story}\n\n" if story else ""
    return (
        f"{headline}\n\n"
        f"{format_failure(exc)}\n\n"
        f"{told}"
        f"schedule: {schedule}\n"
        f"replay:   {replay.replace('SCHEDULE', str(schedule))}\n"
        f"({plural(len(schedule.choices))}; {how_far})\n\n"
        f"who ran when (* marks a turn out of the usual order):\n{log}"
    )


def first_line(exc: BaseException) -> str:
    """Type and message, in one line."""
    try:
        message = str(exc).partition("\n")[0]
    except Exception:
        message = "<its str() failed>"
    return f"{type(exc).__name__}: {message}" if message else type(exc).__name__
