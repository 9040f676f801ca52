"""Runs a coroutine function on asyncio's loop, on uvloop's and under trio."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ..model import Case, Measure, Sample
from ..peers import load

#: The coroutine returns a Sample, except where the caller measures.
AsyncMeasure = Callable[[int], Coroutine[Any, Any, Any]]


def on_asyncio(measure: AsyncMeasure, loop: str = "asyncio") -> Measure:
    """The case on the event loop of the standard library, or on uvloop's."""

    def measured(count: int) -> Sample:
        with asyncio.Runner(loop_factory=load(loop).new_event_loop) as runner:
            sample: Sample = runner.run(measure(count))
            return sample

    return measured


def on_trio(measure: AsyncMeasure) -> Measure:
    """The case under trio."""

    def measured(count: int) -> Sample:
        sample: Sample = load("trio").run(measure, count)
        return sample

    return measured


def asyncio_cases(measure: AsyncMeasure) -> tuple[Case, Case]:
    """The same coroutine function on both event loops."""
    uvloop = Case("uvloop", on_asyncio(measure, "uvloop"))
    return Case("asyncio", on_asyncio(measure)), uvloop


def everyone(
    pyfiber: Measure,
    gevent: Measure | None,
    tasks: AsyncMeasure | None,
    trio: AsyncMeasure | None,
    *more: Case,
    notes: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Case, ...]:
    """The cases of all subjects that have a scheduler, and `more`; `notes` are by subject."""
    found = [Case("pyfiber", pyfiber)]
    found += [Case("gevent", gevent)] if gevent else []
    found += asyncio_cases(tasks) if tasks else []
    found += [Case("trio", on_trio(trio))] if trio else []
    found += more
    return tuple(replace(case, note=notes.get(case.subject, case.note)) for case in found)
