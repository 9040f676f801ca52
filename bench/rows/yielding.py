"""Yielding: many fibers take turns, round after round.

Every fiber has taken some turns before the clock starts, so that those fibers of pyfiber that need
a separate stack have it. (curves.py times a first wave, which has not.) The clock stops when the
first fiber has done its rounds: by then all have yielded as often. Beginning and end of the fibers
are not timed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator
from functools import partial
from itertools import repeat

import pyfiber

from ..model import Case, Row, Sample, clock
from ..peers import load
from .loops import asyncio_cases, everyone

#: How many turns each fiber takes before the clock starts.
WARM = 3


def rounds_for(count: int, fibers: int) -> int:
    """How often each of the fibers must yield for `count` yields in all."""
    return -(-count // fibers)


def pyfiber_yield(fibers: int, count: int, *, parked: bool = False) -> Sample:
    """`yield_now()`; with `parked`, all fibers have parked at once before, and share few stacks."""
    rounds = rounds_for(count, fibers)
    ends: list[int] = []

    def body() -> None:
        if parked:
            pyfiber.park()
        yield_now = pyfiber.yield_now
        for _ in repeat(None, WARM + rounds):
            yield_now()
        ends.append(clock())

    def main() -> Sample:
        spawned = [pyfiber.spawn(body) for _ in range(fibers)]
        if parked:
            pyfiber.yield_now()
            for fiber in spawned:
                fiber.unpark()
        for _ in repeat(None, WARM):
            pyfiber.yield_now()
        start = clock()
        for fiber in spawned:
            fiber.join()
        return Sample(ends[0] - start, rounds * fibers)

    return pyfiber.run(main)


def gevent_yield(fibers: int, count: int) -> Sample:
    """`gevent.sleep(0)`."""
    gevent = load("gevent")
    rounds = rounds_for(count, fibers)
    ends: list[int] = []

    def body() -> None:
        sleep = gevent.sleep
        for _ in repeat(None, WARM + rounds):
            sleep(0)
        ends.append(clock())

    spawned = [gevent.spawn(body) for _ in range(fibers)]
    for _ in repeat(None, WARM):
        gevent.sleep(0)
    start = clock()
    gevent.joinall(spawned)
    return Sample(ends[0] - start, rounds * fibers)


async def asyncio_yield(fibers: int, count: int, *, parked: bool = False) -> Sample:
    """`await asyncio.sleep(0)`; with `parked`, all tasks have waited for one event before."""
    rounds = rounds_for(count, fibers)
    ends: list[int] = []
    event = asyncio.Event()

    async def body() -> None:
        if parked:
            await event.wait()
        sleep = asyncio.sleep
        for _ in repeat(None, WARM + rounds):
            await sleep(0)
        ends.append(clock())

    create_task = asyncio.get_running_loop().create_task
    tasks = [create_task(body()) for _ in range(fibers)]
    if parked:
        await asyncio.sleep(0)
        event.set()
    for _ in repeat(None, WARM):
        await asyncio.sleep(0)
    start = clock()
    for task in tasks:
        await task
    return Sample(ends[0] - start, rounds * fibers)


async def trio_yield(fibers: int, count: int) -> Sample:
    """`await trio.lowlevel.checkpoint()`."""
    trio = load("trio")
    rounds = rounds_for(count, fibers)
    ends: list[int] = []

    async def body() -> None:
        checkpoint = trio.lowlevel.checkpoint
        for _ in repeat(None, WARM + rounds):
            await checkpoint()
        ends.append(clock())

    async with trio.open_nursery() as nursery:
        for _ in range(fibers):
            nursery.start_soon(body)
        for _ in repeat(None, WARM):
            await trio.lowlevel.checkpoint()
        start = clock()
    return Sample(ends[0] - start, rounds * fibers)


def generator_yield(fibers: int, count: int) -> Sample:
    """Generators that take turns in a deque, driven by a loop in Python."""
    rounds = rounds_for(count, fibers)
    ends: list[int] = []

    def body() -> Generator[None, None, None]:
        for _ in repeat(None, WARM + rounds):
            yield
        ends.append(clock())

    queue = deque(body() for _ in range(fibers))
    for _ in repeat(None, WARM):
        for generator in queue:
            next(generator)
    take, put = queue.popleft, queue.append
    start = clock()
    while queue:
        generator = take()
        for _ in generator:
            put(generator)
            break
    return Sample(ends[0] - start, rounds * fibers)


def cases(fibers: int) -> tuple[Case, ...]:
    """The cases of all subjects with so many fibers."""
    return everyone(
        partial(pyfiber_yield, fibers),
        partial(gevent_yield, fibers),
        partial(asyncio_yield, fibers),
        partial(trio_yield, fibers),
        Case("generator", partial(generator_yield, fibers), note="in a deque"),
        notes={"gevent": "sleep(0)", "trio": "lowlevel.checkpoint()"},
    )


def row(fibers: int, count: int, quick: int) -> Row:
    """The row for a number of fibers."""
    return Row(
        f"yield-{fibers}",
        f"yield among {fibers:,}",
        f"{fibers:,} fibers, all settled, take turns through the scheduler; the time of one yield.",
        cases(fibers),
        count=count,
        quick=quick,
    )


ROWS = (
    row(100, 1_000_000, 50_000),
    row(10_000, 1_000_000, 100_000),
    Row(
        "parked-turns",
        "yield among 10,000 that have all waited first",
        "10,000 fibers that have all waited at once, and so share few stacks, take turns; the time "
        "of one yield.",
        (
            Case("pyfiber", partial(pyfiber_yield, 10_000, parked=True)),
            *asyncio_cases(partial(asyncio_yield, 10_000, parked=True)),
        ),
        count=1_000_000,
        quick=100_000,
    ),
)
