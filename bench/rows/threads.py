"""A call in a worker thread, of a function that does nothing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import pyfiber

from ..model import Case, Row, Sample, clock
from ..peers import load
from .loops import everyone


def nothing() -> None:
    """Do nothing: the function that is run."""


def pyfiber_to_thread(count: int) -> Sample:
    """`pyfiber.to_thread(function)`."""

    def main() -> Sample:
        to_thread = pyfiber.to_thread
        to_thread(nothing)
        start = clock()
        for _ in repeat(None, count):
            to_thread(nothing)
        return Sample(clock() - start, count)

    return pyfiber.run(main)


def gevent_to_thread(count: int) -> Sample:
    """`hub.threadpool.apply(function)`."""
    apply = load("gevent").get_hub().threadpool.apply
    apply(nothing)
    start = clock()
    for _ in repeat(None, count):
        apply(nothing)
    return Sample(clock() - start, count)


async def asyncio_to_thread(count: int) -> Sample:
    """`asyncio.to_thread(function)`."""
    await asyncio.to_thread(nothing)
    start = clock()
    for _ in repeat(None, count):
        await asyncio.to_thread(nothing)
    return Sample(clock() - start, count)


async def trio_to_thread(count: int) -> Sample:
    """`trio.to_thread.run_sync(function)`."""
    run_sync = load("trio").to_thread.run_sync
    await run_sync(nothing)
    start = clock()
    for _ in repeat(None, count):
        await run_sync(nothing)
    return Sample(clock() - start, count)


def threads_to_thread(count: int) -> Sample:
    """`executor.submit(function).result()`, from a thread that does nothing else."""
    with ThreadPoolExecutor(1) as executor:
        submit = executor.submit
        submit(nothing).result()
        start = clock()
        for _ in repeat(None, count):
            submit(nothing).result()
        return Sample(clock() - start, count)


ROWS = (
    Row(
        "to-thread",
        "to a thread and back",
        "A function that does nothing runs in a worker thread while its caller waits; the time "
        "for each call.",
        everyone(
            pyfiber_to_thread,
            gevent_to_thread,
            asyncio_to_thread,
            trio_to_thread,
            Case("threads", threads_to_thread, note="ThreadPoolExecutor"),
            notes={"gevent": "hub.threadpool", "trio": "to_thread.run_sync"},
        ),
        count=20_000,
        quick=1_000,
    ),
)
