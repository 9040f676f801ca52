"""Beginning and end: a fiber is made, runs an empty function, and ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from threading import Thread

import pyfiber

from ..model import Case, Row, Sample, Unavailable, clock
from ..peers import load
from .loops import everyone, on_asyncio

BATCH = 1000


def nothing() -> None:
    """The work of a fiber, a greenlet, or a thread."""


async def async_nothing() -> None:
    """The work of a task."""


def generate_nothing() -> Generator[None, None, None]:
    """The work of a generator: it ends before its first yield."""
    return
    yield


def time_rounds(once: Callable[[], object], count: int) -> Sample:
    """Time `count` calls of a function that makes something, runs it and sees it end."""
    start = clock()
    for _ in repeat(None, count):
        once()
    return Sample(clock() - start, count)


# create: raw fibers ------------------------------------------------------------------------------


def pyfiber_create(count: int) -> Sample:
    """`Fiber(function).switch()`."""
    fiber = pyfiber.Fiber
    return time_rounds(lambda: fiber(nothing).switch(), count)


def greenlet_create(count: int) -> Sample:
    """`greenlet(function).switch()`."""
    greenlet = load("greenlet").greenlet
    return time_rounds(lambda: greenlet(nothing).switch(), count)


def generator_create(count: int) -> Sample:
    """Call a generator function and exhaust what it returns."""
    return time_rounds(lambda: next(generate_nothing(), None), count)


def run_thread() -> None:
    """Start a thread and join it."""
    thread = Thread(target=nothing)
    thread.start()
    thread.join()


def threads_create(count: int) -> Sample:
    """`Thread(target=function)`, `start()`, `join()`."""
    return time_rounds(run_thread, count)


# spawn: one after the other through a scheduler --------------------------------------------------


def pyfiber_spawn(count: int) -> Sample:
    """`spawn(function).join()` within a run."""
    spawn = pyfiber.spawn
    return pyfiber.run(time_rounds, lambda: spawn(nothing).join(), count)


def gevent_spawn(count: int) -> Sample:
    """`gevent.spawn(function).join()`."""
    spawn = load("gevent").spawn
    return time_rounds(lambda: spawn(nothing).join(), count)


async def asyncio_spawn(count: int) -> Sample:
    """`await loop.create_task(coroutine)`."""
    create_task = asyncio.get_running_loop().create_task
    start = clock()
    for _ in repeat(None, count):
        await create_task(async_nothing())
    return Sample(clock() - start, count)


async def asyncio_eager_spawn(count: int) -> Sample:
    """The same with eager tasks: one that never waits is over before it is scheduled."""
    if sys.version_info < (3, 12):
        raise Unavailable("eager tasks came with CPython 3.12")
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    return await asyncio_spawn(count)


async def trio_spawn(count: int) -> Sample:
    """A nursery with one child, entered and left."""
    open_nursery = load("trio").open_nursery
    start = clock()
    for _ in repeat(None, count):
        async with open_nursery() as nursery:
            nursery.start_soon(async_nothing)
    return Sample(clock() - start, count)


def pool_spawn(count: int) -> Sample:
    """`submit(function).result()` on a pool of one thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(nothing).result()
        submit = pool.submit
        return time_rounds(lambda: submit(nothing).result(), count)


# spawn-many: a thousand at a time, unless the caller says otherwise ------------------------------


def batches(count: int, size: int = BATCH) -> int:
    """How many whole batches hold at least `count` operations."""
    return -(-count // size)


def time_batches(batch: Callable[[], object], count: int, size: int) -> Sample:
    """Time whole batches of children."""
    rounds = batches(count, size)
    return Sample(time_rounds(batch, rounds).total, rounds * size)


def pyfiber_spawn_many(count: int, size: int = BATCH) -> Sample:
    """`spawn` for all, then `join` for each."""
    spawn = pyfiber.spawn

    def batch() -> None:
        for fiber in [spawn(nothing) for _ in repeat(None, size)]:
            fiber.join()

    return pyfiber.run(time_batches, batch, count, size)


def gevent_spawn_many(count: int, size: int = BATCH) -> Sample:
    """`gevent.spawn` for all, then `join` for each, which is faster than joinall."""
    spawn = load("gevent").spawn

    def batch() -> None:
        for greenlet in [spawn(nothing) for _ in repeat(None, size)]:
            greenlet.join()

    return time_batches(batch, count, size)


async def asyncio_spawn_many(count: int, size: int = BATCH) -> Sample:
    """`create_task` for all, then `await` each, which is faster than gather and TaskGroup."""
    create_task = asyncio.get_running_loop().create_task
    rounds = batches(count, size)
    start = clock()
    for _ in repeat(None, rounds):
        for task in [create_task(async_nothing()) for _ in repeat(None, size)]:
            await task
    return Sample(clock() - start, rounds * size)


async def trio_spawn_many(count: int, size: int = BATCH) -> Sample:
    """`start_soon` for all in one nursery."""
    open_nursery = load("trio").open_nursery
    rounds = batches(count, size)
    start = clock()
    for _ in repeat(None, rounds):
        async with open_nursery() as nursery:
            for _ in repeat(None, size):
                nursery.start_soon(async_nothing)
    return Sample(clock() - start, rounds * size)


ROWS = (
    Row(
        "create",
        "create + run + finish",
        "Make a raw fiber around an empty function, switch to it, and be back when it has ended.",
        (
            Case("pyfiber", pyfiber_create),
            Case("greenlet", greenlet_create),
            Case("generator", generator_create),
            Case("threads", threads_create),
        ),
        count=500_000,
        quick=20_000,
    ),
    Row(
        "spawn",
        "spawn + join, one at a time",
        "Spawn an empty function on the scheduler and join it before the next is spawned.",
        everyone(
            pyfiber_spawn,
            gevent_spawn,
            asyncio_spawn,
            trio_spawn,
            Case(
                "asyncio eager",
                on_asyncio(asyncio_eager_spawn),
                note="eager_task_factory; the task never reaches the loop",
            ),
            Case("thread pool", pool_spawn),
            notes={"trio": "one nursery each"},
        ),
        count=200_000,
        quick=10_000,
    ),
    Row(
        "spawn-many",
        f"spawn + join, {BATCH:,} at a time",
        f"Spawn {BATCH:,} empty functions, then join them all; the time for each.",
        everyone(
            pyfiber_spawn_many,
            gevent_spawn_many,
            asyncio_spawn_many,
            trio_spawn_many,
            notes={"trio": "one nursery for a batch"},
        ),
        count=200_000,
        quick=10_000,
    ),
)
