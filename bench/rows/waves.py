"""Waves: fibers that are all started before the first one ends, then all waited for.

Each fiber yields once, or sleeps. The first wave in a process finds no stacks, no memory and cold
caches. The row times the wave after `earlier` waves of the same size.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import repeat

import pyfiber

from ..model import Case, Sample, clock
from ..peers import load
from .loops import everyone


def pyfiber_wave(earlier: int, nap: float, count: int) -> Sample:
    """`spawn()`, `yield_now()` or `sleep()` in each, `join()`."""

    def wave() -> Sample:
        spawn, body = pyfiber.spawn, partial(pyfiber.sleep, nap) if nap else pyfiber.yield_now
        start = clock()
        for fiber in [spawn(body) for _ in repeat(None, count)]:
            fiber.join()
        return Sample(clock() - start, count)

    return pyfiber.run(lambda: [wave() for _ in range(earlier + 1)][-1])


def gevent_wave(earlier: int, nap: float, count: int) -> Sample:
    """`spawn()`, `sleep()` in each, `joinall()`."""
    gevent = load("gevent")
    spawn, sleep = gevent.spawn, gevent.sleep

    def wave() -> Sample:
        start = clock()
        gevent.joinall([spawn(sleep, nap) for _ in repeat(None, count)])
        return Sample(clock() - start, count)

    return [wave() for _ in range(earlier + 1)][-1]


async def asyncio_wave(earlier: int, nap: float, count: int) -> Sample:
    """`create_task()`, `sleep()` in each, `await`."""
    create_task, sleep = asyncio.get_running_loop().create_task, asyncio.sleep

    async def wave() -> Sample:
        start = clock()
        for task in [create_task(sleep(nap)) for _ in repeat(None, count)]:
            await task
        return Sample(clock() - start, count)

    return [await wave() for _ in range(earlier + 1)][-1]


async def trio_wave(earlier: int, nap: float, count: int) -> Sample:
    """`start_soon()` of a checkpoint or `sleep()`, in a nursery."""
    trio = load("trio")
    body = partial(trio.sleep, nap) if nap else trio.lowlevel.checkpoint

    async def wave() -> Sample:
        start = clock()
        async with trio.open_nursery() as nursery:
            for _ in repeat(None, count):
                nursery.start_soon(body)
        return Sample(clock() - start, count)

    return [await wave() for _ in range(earlier + 1)][-1]


def cases(earlier: int, nap: float = 0) -> tuple[Case, ...]:
    """The cases of all subjects, whose fibers sleep `nap` seconds, or yield if it is 0."""
    return everyone(
        partial(pyfiber_wave, earlier, nap),
        partial(gevent_wave, earlier, nap),
        partial(asyncio_wave, earlier, nap),
        partial(trio_wave, earlier, nap),
    )
