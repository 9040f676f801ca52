"""Structured concurrency: time limits, groups, and a great many sleepers."""

from __future__ import annotations

import asyncio
from itertools import repeat
from typing import Any

import pyfiber

from ..model import Row, Sample, clock
from ..peers import load
from . import waves
from .lifecycle import BATCH, async_nothing, batches, nothing
from .loops import everyone

#: The time limit in seconds, which no measured block reaches.
LIMIT = 60
#: Seconds that every sleeper sleeps: the same for all, so that all wake up together.
NAP = 0.01


# timeout: a block with a time limit, entered and left ---------------------------------------------


def pyfiber_timeout(count: int) -> Sample:
    """`with timeout(60): pass` in a fiber."""
    timeout = pyfiber.timeout

    def main() -> Sample:
        start = clock()
        for _ in repeat(None, count):
            with timeout(LIMIT):
                pass
        return Sample(clock() - start, count)

    return pyfiber.run(main)


def gevent_timeout(count: int) -> Sample:
    """`with gevent.Timeout(60): pass`."""
    timeout = load("gevent").Timeout
    start = clock()
    for _ in repeat(None, count):
        with timeout(LIMIT):
            pass
    return Sample(clock() - start, count)


async def asyncio_timeout(count: int) -> Sample:
    """`async with asyncio.timeout(60): pass`."""
    timeout = asyncio.timeout
    start = clock()
    for _ in repeat(None, count):
        async with timeout(LIMIT):
            pass
    return Sample(clock() - start, count)


async def trio_timeout(count: int) -> Sample:
    """`with trio.fail_after(60): pass`."""
    fail_after = load("trio").fail_after
    start = clock()
    for _ in repeat(None, count):
        with fail_after(LIMIT):
            pass
    return Sample(clock() - start, count)


# group: a thousand children, waited for together --------------------------------------------------


def pyfiber_group(count: int) -> Sample:
    """`TaskGroup.spawn` for all, then the end of the block."""
    rounds = batches(count)

    def main() -> Sample:
        start = clock()
        for _ in repeat(None, rounds):
            with pyfiber.TaskGroup() as group:
                for _ in repeat(None, BATCH):
                    group.spawn(nothing)
        return Sample(clock() - start, rounds * BATCH)

    return pyfiber.run(main)


def gevent_group(count: int) -> Sample:
    """`gevent.pool.Group.spawn` for all, then `join`."""
    load("gevent.pool")
    group_type = load("gevent").pool.Group
    rounds = batches(count)
    start = clock()
    for _ in repeat(None, rounds):
        group = group_type()
        for _ in repeat(None, BATCH):
            group.spawn(nothing)
        group.join()
    return Sample(clock() - start, rounds * BATCH)


async def asyncio_group(count: int) -> Sample:
    """`asyncio.TaskGroup.create_task` for all, then the end of the block."""
    rounds = batches(count)
    start = clock()
    for _ in repeat(None, rounds):
        async with asyncio.TaskGroup() as group:
            for _ in repeat(None, BATCH):
                group.create_task(async_nothing())
    return Sample(clock() - start, rounds * BATCH)


async def trio_group(count: int) -> Sample:
    """A nursery's `start_soon` for all, then the end of the block."""
    open_nursery: Any = load("trio").open_nursery
    rounds = batches(count)
    start = clock()
    for _ in repeat(None, rounds):
        async with open_nursery() as nursery:
            for _ in repeat(None, BATCH):
                nursery.start_soon(async_nothing)
    return Sample(clock() - start, rounds * BATCH)


ROWS = (
    Row(
        "timeout",
        "time limit, enter + leave",
        "Enter an empty block with a time limit of a minute and leave it.",
        everyone(pyfiber_timeout, gevent_timeout, asyncio_timeout, trio_timeout),
        count=200_000,
        quick=20_000,
    ),
    Row(
        "group",
        f"task group of {BATCH:,}, each child",
        f"Spawn {BATCH:,} empty functions in a task group and leave it; the time for each.",
        everyone(pyfiber_group, gevent_group, asyncio_group, trio_group),
        count=200_000,
        quick=10_000,
    ),
    Row(
        "sleepers",
        "100,000 asleep at once, each",
        "Spawn 100,000 that sleep for 10 ms and wait for all (10,000 with --quick); the time for "
        "each, making and ending it included. The second of two waves is timed.",
        waves.cases(1, NAP),
        count=100_000,
        quick=10_000,
        budget=None,
        repetitions=3,
    ),
)
