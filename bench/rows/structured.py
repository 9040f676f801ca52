"""Structured concurrency: time limits, groups, and a great many sleepers."""

from __future__ import annotations

import asyncio
from itertools import repeat
from typing import Any

import pyfiber

from ..model import Case, Row, Sample, clock
from ..peers import load
from .lifecycle import BATCH, async_nothing, batches, nothing
from .loops import asyncio_cases, on_trio

#: Seconds that no block under measurement takes.
LIMIT = 60
#: Seconds that every sleeper sleeps; the same for all, so that they are awake together.
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


# sleepers: everybody sleeps at once ---------------------------------------------------------------


# Two waves each, in one loop: the first one gets memory from the system, the second one, which is
# measured, finds it there, as in a service that has been running for a while.


def pyfiber_sleepers(count: int) -> Sample:
    """`TaskGroup.spawn(sleep, 0.01)` for all, then the end of the block."""
    sleep = pyfiber.sleep

    def wave() -> int:
        start = clock()
        with pyfiber.TaskGroup() as group:
            for _ in repeat(None, count):
                group.spawn(sleep, NAP)
        return clock() - start

    def main() -> Sample:
        wave()
        return Sample(wave(), count)

    return pyfiber.run(main)


def gevent_sleepers(count: int) -> Sample:
    """`gevent.spawn(gevent.sleep, 0.01)` for all, then `joinall`."""
    gevent = load("gevent")
    spawn, sleep = gevent.spawn, gevent.sleep

    def wave() -> int:
        start = clock()
        gevent.joinall([spawn(sleep, NAP) for _ in repeat(None, count)])
        return clock() - start

    wave()
    return Sample(wave(), count)


async def asyncio_sleepers(count: int) -> Sample:
    """`create_task(asyncio.sleep(0.01))` for all, then `await` each."""
    create_task, sleep = asyncio.get_running_loop().create_task, asyncio.sleep

    async def wave() -> int:
        start = clock()
        for task in [create_task(sleep(NAP)) for _ in repeat(None, count)]:
            await task
        return clock() - start

    await wave()
    return Sample(await wave(), count)


async def trio_sleepers(count: int) -> Sample:
    """A nursery's `start_soon(trio.sleep, 0.01)` for all, then the end of the block."""
    trio: Any = load("trio")

    async def wave() -> int:
        start = clock()
        async with trio.open_nursery() as nursery:
            for _ in repeat(None, count):
                nursery.start_soon(trio.sleep, NAP)
        return clock() - start

    await wave()
    return Sample(await wave(), count)


ROWS = (
    Row(
        "timeout",
        "time limit, enter + leave",
        "Enter an empty block with a time limit of a minute and leave it.",
        (
            Case("pyfiber", pyfiber_timeout),
            Case("gevent", gevent_timeout, peer="gevent"),
            *asyncio_cases(asyncio_timeout),
            Case("trio", on_trio(trio_timeout), peer="trio"),
        ),
        count=200_000,
        quick=20_000,
    ),
    Row(
        "group",
        f"task group of {BATCH:,}, each child",
        f"Spawn {BATCH:,} empty functions in a task group and leave it; the time for each.",
        (
            Case("pyfiber", pyfiber_group),
            Case("gevent", gevent_group, peer="gevent"),
            *asyncio_cases(asyncio_group),
            Case("trio", on_trio(trio_group), peer="trio"),
        ),
        count=200_000,
        quick=10_000,
    ),
    Row(
        "sleepers",
        "100,000 asleep at once, each",
        "Spawn 100,000 that sleep for 10 ms and wait for all (10,000 with --quick); the time for "
        "each, making and ending it included. The second of two waves is timed.",
        (
            Case("pyfiber", pyfiber_sleepers),
            Case("gevent", gevent_sleepers, peer="gevent"),
            *asyncio_cases(asyncio_sleepers),
            Case("trio", on_trio(trio_sleepers), peer="trio"),
        ),
        count=100_000,
        quick=10_000,
        budget=None,
        repetitions=3,
    ),
)
