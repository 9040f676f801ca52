"""Where two runs of one schedule part: the last place that both pass, and the next one of each."""

from __future__ import annotations

import sys
from itertools import zip_longest
from typing import Any

from pyfiber import _engine
from pyfiber.testing.runner import Runner
from pyfiber.testing.schedule import Schedule
from pyfiber.testing.story import POINT, RUNS, outside, short_name, source

MOST = 200_000  # places of a run that are remembered
Place = tuple[str, int, str]  # path and line, or "" and 0, of a fiber, which is "" at a point


class Path:
    """The places that a run passes. Called by the engine at every switch and point."""

    def __init__(self) -> None:
        self.places: list[Place] = []

    def __call__(
        self,
        what: int,
        fiber: _engine.Fiber[Any] | _engine.Grain[Any] | None,
        number: int,
        count: int,
        taken: int,
    ) -> None:
        if len(self.places) == MOST:
            return
        if what == POINT and (frame := outside(sys._getframe(1))) is not None:
            self.places.append((frame.f_code.co_filename, frame.f_lineno, ""))
        elif what == RUNS and fiber is not None:
            at = outside(fiber.frame)
            name = f"{short_name(fiber)}#{number}"
            if at is None:
                self.places.append(("", 0, name))
            else:
                self.places.append((at.f_code.co_filename, at.f_lineno, name))


def text_of(place: Place | None) -> str:
    """A place, in words."""
    if place is None:
        return "its end"
    path, line, fiber = place
    at = source(path, line) if path else "its beginning"
    return f"{fiber} at {at}" if fiber else at


def parting(first: Path, second: Path) -> str:
    """Where these runs part; empty if they do not."""
    before: Place | None = None
    for one, other in zip_longest(first.places, second.places):
        if one != other:
            return (
                f"Both came to {text_of(before)}\n"
                f"  - then one to {text_of(one)}\n"
                f"  - and the other to {text_of(other)}"
            )
        before = one
    return ""


def run_again(runner: Runner, schedule: Schedule) -> Path:
    """Run the schedule and remember the places."""
    path = Path()
    runner.configure(script=schedule.choices, lenient=True, trace=path)
    runner.run()
    return path
