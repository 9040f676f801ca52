"""Skynet: a tree of fibers, ten children to each, whose leaves add up their numbers.

Every node is a fiber that spawns its ten children and sums what they return; with 100,000 leaves
that makes 111,111 fibers. The value is the time for each leaf, the time of all other nodes
included.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pyfiber

from ..model import Case, Row, Sample, Unavailable, clock
from ..peers import load
from .loops import everyone, on_asyncio

CHILDREN = 10


def checked(total: int, leaves: int, elapsed: float) -> Sample:
    """Return the sample, after checking the sum of the leaves."""
    expected = leaves * (leaves - 1) // 2
    if total != expected:
        raise AssertionError(f"skynet of {leaves} leaves is {expected}, not {total}")
    return Sample(elapsed, leaves)


def on_pyfiber(
    spawn: Callable[..., pyfiber.Fiber[int]], leaves: int, *, threads: int = 1
) -> Sample:
    """The tree, with one of the two ways to start a fiber, on so many threads."""

    def node(number: int, size: int) -> int:
        if size == 1:
            return number
        size //= CHILDREN
        children = [spawn(node, number + i * size, size) for i in range(CHILDREN)]
        return sum([child.result() for child in children])

    def main() -> Sample:
        start = clock()
        total = spawn(node, 0, leaves).result()
        return checked(total, leaves, clock() - start)

    return pyfiber.run(main, threads=threads)


def gevent_skynet(leaves: int) -> Sample:
    """`spawn` and `get`."""
    spawn = load("gevent").spawn

    def node(number: int, size: int) -> int:
        if size == 1:
            return number
        size //= CHILDREN
        children = [spawn(node, number + i * size, size) for i in range(CHILDREN)]
        return sum([child.get() for child in children])

    start = clock()
    total = spawn(node, 0, leaves).get()
    return checked(total, leaves, clock() - start)


async def asyncio_skynet(leaves: int) -> Sample:
    """`create_task` and `await`."""
    create_task = asyncio.get_running_loop().create_task

    async def node(number: int, size: int) -> int:
        if size == 1:
            return number
        size //= CHILDREN
        children = [create_task(node(number + i * size, size)) for i in range(CHILDREN)]
        return sum([await child for child in children])

    start = clock()
    total = await create_task(node(0, leaves))
    return checked(total, leaves, clock() - start)


async def asyncio_eager(leaves: int) -> Sample:
    """The same, with `asyncio.eager_task_factory`."""
    if sys.version_info < (3, 12):
        raise Unavailable("eager tasks are new in Python 3.12")
    asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
    return await asyncio_skynet(leaves)


async def trio_skynet(leaves: int) -> Sample:
    """A nursery in every node; children append to their parent's list."""
    open_nursery: Any = load("trio").open_nursery

    async def node(number: int, size: int, results: list[int]) -> None:
        if size == 1:
            results.append(number)
            return
        size //= CHILDREN
        below: list[int] = []
        async with open_nursery() as nursery:
            for i in range(CHILDREN):
                nursery.start_soon(node, number + i * size, size, below)
        results.append(sum(below))

    results: list[int] = []
    start = clock()
    async with open_nursery() as nursery:
        nursery.start_soon(node, 0, leaves, results)
    return checked(results[0], leaves, clock() - start)


ROWS = (
    Row(
        "skynet",
        "skynet, tree of 10",
        "A tree of fibers, ten children to each node, sums its leaves; the time for each leaf "
        "(100,000 of them, 10,000 with --quick).",
        everyone(partial(on_pyfiber, pyfiber.spawn), gevent_skynet, asyncio_skynet, trio_skynet),
        count=100_000,
        quick=10_000,
        budget=None,
        repetitions=5,
    ),
    Row(
        "skynet-now",
        "skynet, children run at once",
        "The same tree, in which whoever is spawned runs before the one that spawns goes on.",
        (
            Case("pyfiber", partial(on_pyfiber, pyfiber.spawn_now), note="spawn_now"),
            Case("asyncio", on_asyncio(asyncio_eager), note="eager_task_factory"),
        ),
        count=100_000,
        quick=10_000,
        budget=None,
        repetitions=5,
        impossible={
            "uvloop": "cannot make eager tasks",
            "gevent": "starts greenlets in the next turn of its loop",
            "trio": "starts tasks in the next turn of its loop",
        },
    ),
)
