"""Run one coroutine function on asyncio's loop, on uvloop's and under trio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from ..model import Case, Measure, Sample
from ..peers import load

AsyncMeasure = Callable[[int], Coroutine[Any, Any, Sample]]


def on_asyncio(measure: AsyncMeasure) -> Measure:
    """The case on the event loop of the standard library."""

    def measured(count: int) -> Sample:
        with asyncio.Runner() as runner:
            return runner.run(measure(count))

    return measured


def on_uvloop(measure: AsyncMeasure) -> Measure:
    """The same case on uvloop's event loop."""

    def measured(count: int) -> Sample:
        with asyncio.Runner(loop_factory=load("uvloop").new_event_loop) as runner:
            return runner.run(measure(count))

    return measured


def on_trio(measure: AsyncMeasure) -> Measure:
    """The case under trio."""

    def measured(count: int) -> Sample:
        sample: Sample = load("trio").run(measure, count)
        return sample

    return measured


def asyncio_cases(measure: AsyncMeasure) -> tuple[Case, Case]:
    """The same coroutine function on both event loops."""
    return Case("asyncio", on_asyncio(measure)), Case("uvloop", on_uvloop(measure), peer="uvloop")
