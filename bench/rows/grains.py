"""Grains and descriptions: tasks without stacks, and the cost of composing work.

Steps of grains are timed like yields: all grains have started before the clock does, and the clock
stops when the first one has done its rounds. The memory of parked grains is counted like that of
fibers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from functools import partial
from itertools import repeat

import pyfiber
from pyfiber.compose import Work, perform, succeed
from pyfiber.grains import READY, SLEEPING, Grain, spawn

from ..model import BYTES, Case, Row, Sample, clock
from . import yielding
from .loops import asyncio_cases, everyone, on_asyncio
from .memory import (
    MILLION,
    Ledger,
    asyncio_parked,
    generator_parked,
    if_it_fits,
    trio_parked,
)


def grain_steps(grains: int, count: int) -> Sample:
    """`yield READY`."""
    rounds = yielding.rounds_for(count, grains)
    ends: list[int] = []

    def body() -> Generator[object, None, None]:
        yield READY
        for _ in repeat(None, rounds):
            yield READY
        ends.append(clock())

    def main() -> Sample:
        spawned = [spawn(body) for _ in range(grains)]
        pyfiber.yield_now()
        start = clock()
        for grain in spawned:
            grain.join()
        return Sample(ends[0] - start, rounds * grains)

    return pyfiber.run(main)


def grains_parked(count: int) -> Sample:
    """Grains that have yielded SLEEPING."""
    ledger = Ledger(count)

    def body() -> Generator[object, None, None]:
        yield SLEEPING

    def main() -> Sample:
        with ledger.parking():
            grains: list[Grain[None]] = [spawn(body) for _ in repeat(None, count)]
            pyfiber.yield_now()
        with ledger.finishing():
            for grain in grains:
                grain.unpark()
            for grain in grains:
                grain.join()
        return ledger.sample()

    return pyfiber.run(main)


def bind_chain(count: int) -> Sample:
    """`succeed(n + 1).bind(next)`: each step makes the next description."""

    def step(n: int) -> Work[int]:
        return succeed(n) if n == count else succeed(n + 1).bind(step)

    def main() -> Sample:
        start = clock()
        perform(step(0))
        return Sample(clock() - start, count)

    return pyfiber.run(main)


async def future_chain(count: int) -> Sample:
    """A callback of a done future that makes the next future: the loop calls each callback."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def step(done: asyncio.Future[int]) -> None:
        n = done.result()
        following = over if n == count else loop.create_future()
        if following is not over:
            following.add_done_callback(step)
        following.set_result(n + 1)

    start = clock()
    first = loop.create_future()
    first.add_done_callback(step)
    first.set_result(0)
    await over
    return Sample(clock() - start, count)


def step_row(grains: int, count: int, quick: int) -> Row:
    """The row of steps for a number of grains."""
    return Row(
        f"grain-{grains}",
        f"a step among {grains:,} grains",
        f"{grains:,} grains, all started, take turns; the time of one step, the generator's own "
        "included.",
        (
            Case("pyfiber", partial(grain_steps, grains)),
            *yielding.cases(grains)[1:],
        ),
        count=count,
        quick=quick,
    )


ROWS = (
    step_row(100, 1_000_000, 50_000),
    step_row(10_000, 1_000_000, 100_000),
    Row(
        "grain-memory",
        "memory of one parked grain",
        "10,000 grains are made and parked; what the process gained, generators included, for "
        "each.",
        everyone(
            grains_parked, None, asyncio_parked, trio_parked, Case("generator", generator_parked)
        ),
        count=10_000,
        quick=10_000,
        unit=BYTES,
        budget=None,
        fresh=True,
        repetitions=2,
    ),
    Row(
        "grain-million",
        "one million parked grains",
        "A million grains are made, parked, resumed and finished in one process; the memory of "
        "each while parked.",
        (
            Case("pyfiber", if_it_fits(grains_parked, 700)),
            Case("asyncio", if_it_fits(on_asyncio(asyncio_parked), 1_500)),
            Case("generator", if_it_fits(generator_parked, 500)),
        ),
        count=MILLION,
        quick=MILLION,
        unit=BYTES,
        budget=None,
        fresh=True,
        repetitions=1,
        full_only=True,
    ),
    Row(
        "bind",
        "one bind of compose",
        "A chain of descriptions, each made by the step before it; the time of one step.",
        (
            Case("pyfiber", bind_chain),
            *asyncio_cases(future_chain),
        ),
        count=200_000,
        quick=50_000,
    ),
)
