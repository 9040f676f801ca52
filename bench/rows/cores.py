"""Two threads: independent work, trees that threads share, and messages.

`python -m bench cores`. Without a GIL two threads may be nearly twice as fast as one; with a GIL
they are not, which these rows show, too. Each row gives the wall-clock time for one operation, from
the moment when all threads are ready until the last one is done, all threads' operations counted.
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Sequence
from functools import partial
from itertools import repeat
from threading import Barrier, Thread
from typing import Any

import pyfiber

from ..model import CORES, Case, Measure, Row, Sample, clock
from ..peers import PEERS, load
from . import lifecycle, switching, yielding
from .loops import AsyncMeasure, asyncio_cases, on_trio
from .skynet import checked, on_pyfiber

FIBERS = 100
#: The argument of fibonacci(), which then takes some 50 us without any wait.
FIBONACCI = 15
CAPACITY = 64

#: A function that does so many operations on one thread.
Work = Callable[[int], object]


def fibonacci(n: int) -> int:
    """Keep a processor busy."""
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def side_by_side(works: Sequence[Callable[[], object]]) -> float:
    """Run each function on a separate thread; return the wall-clock time, in nanoseconds."""
    ready = Barrier(len(works) + 1)
    failed: list[BaseException] = []

    def body(work: Callable[[], object]) -> None:
        try:
            ready.wait()
            work()
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=body, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    ready.wait()
    start = clock()
    for thread in threads:
        thread.join()
    elapsed = clock() - start
    if failed:
        raise failed[0]
    return elapsed


def on_threads(threads: int, work: Work) -> Measure:
    """A case that does the work on each of so many threads, with the time for one operation."""

    def measure(count: int) -> Sample:
        elapsed = side_by_side([partial(work, count)] * threads)
        return Sample(elapsed, count * threads)

    return measure


# Work of one thread -----------------------------------------------------------------------------


async def nothing_async() -> None:
    """Do nothing: the task that TonIO spawns."""


def pyfiber_channel(count: int) -> None:
    """Pass messages from one fiber to another by a channel."""

    def send(channel: pyfiber.Channel[int]) -> None:
        for number in range(count):
            channel.send(number)

    def main() -> None:
        channel: pyfiber.Channel[int] = pyfiber.Channel(CAPACITY)
        pyfiber.spawn(send, channel)
        receive = channel.receive
        for _ in repeat(None, count):
            receive()

    pyfiber.run(main)


async def async_channel(count: int) -> None:
    """Pass messages between tasks by a queue of asyncio."""
    items: asyncio.Queue[int] = asyncio.Queue(CAPACITY)

    async def send() -> None:
        for number in range(count):
            await items.put(number)

    task = asyncio.create_task(send())
    for _ in repeat(None, count):
        await items.get()
    await task


async def trio_channel(count: int) -> None:
    """Pass messages between tasks by a memory channel of trio."""
    trio = load("trio")
    sender, receiver = trio.open_memory_channel(CAPACITY)

    async def send() -> None:
        for number in range(count):
            await sender.send(number)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        for _ in repeat(None, count):
            await receiver.receive()


def gevent_channel(count: int) -> None:
    """Pass messages between greenlets by a queue of gevent."""
    items = load("gevent.queue").Queue(CAPACITY)

    def send() -> None:
        for number in range(count):
            items.put(number)

    greenlet = load("gevent").spawn(send)
    for _ in repeat(None, count):
        items.get()
    greenlet.join()


def pyfiber_compute(count: int) -> None:
    """Compute in ten fibers, which yield in between."""

    def body() -> None:
        for _ in range(count // 10 + 1):
            fibonacci(FIBONACCI)
            pyfiber.yield_now()

    def main() -> None:
        for fiber in [pyfiber.spawn(body) for _ in range(10)]:
            fiber.join()

    pyfiber.run(main)


def thread_compute(count: int) -> None:
    """Compute on a thread without fibers."""
    for _ in range(count):
        fibonacci(FIBONACCI)


async def async_compute(count: int) -> None:
    """Compute in ten tasks of asyncio, which yield in between."""

    async def body() -> None:
        for _ in range(count // 10 + 1):
            fibonacci(FIBONACCI)
            await asyncio.sleep(0)

    for task in [asyncio.create_task(body()) for _ in range(10)]:
        await task


# The same on TonIO, whose threads belong to one pool ---------------------------------------------


def on_tonio(threads: int, main: Callable[[int], Any]) -> Measure:
    """A case that runs a coroutine function `threads` times in TonIO's pool of so many threads."""

    def measure(count: int) -> Sample:
        tonio = load("tonio.colored")

        async def timed() -> float:
            start = clock()
            await tonio.spawn(*[main(count) for _ in range(threads)])
            return clock() - start

        return Sample(tonio.run(timed(), threads=threads), count * threads)

    return measure


async def tonio_yield(count: int) -> None:
    """Yield in a hundred tasks that take turns."""
    tonio = load("tonio.colored")
    rounds = count // FIBERS + 1

    async def body() -> None:
        yield_now = tonio.yield_now
        for _ in repeat(None, rounds):
            await yield_now()

    await tonio.spawn(*[body() for _ in range(FIBERS)])


async def tonio_spawn(count: int) -> None:
    """Spawn a hundred tasks at a time."""
    spawn = load("tonio.colored").spawn
    for _ in range(count // FIBERS + 1):
        await spawn(*[nothing_async() for _ in range(FIBERS)])


async def tonio_compute(count: int) -> None:
    """Compute in ten tasks."""
    tonio = load("tonio.colored")

    async def body() -> None:
        for _ in range(count // 10 + 1):
            fibonacci(FIBONACCI)
            await tonio.yield_now()

    await tonio.spawn(*[body() for _ in range(10)])


# Trees that are shared out -----------------------------------------------------------------------


def pyfiber_skynet(threads: int, leaves: int) -> Sample:
    """Build the tree of skynet in fibers, with `run(threads=)`."""
    return on_pyfiber(pyfiber.spawn, leaves, threads=threads)


def tonio_skynet(threads: int, leaves: int) -> Sample:
    """Build the tree of skynet with a task for each node."""
    tonio = load("tonio.colored")

    async def node(number: int, size: int) -> int:
        if size == 1:
            return number
        size //= 10
        return sum(await tonio.spawn(*[node(number + i * size, size) for i in range(10)]))

    async def main() -> Sample:
        start = clock()
        return checked(await node(0, leaves), leaves, clock() - start)

    sample: Sample = tonio.run(main(), threads=threads)
    return sample


def pyfiber_tree(threads: int, leaves: int) -> Sample:
    """Build a binary tree of fibers whose leaves compute."""

    def node(size: int) -> int:
        if size == 1:
            return fibonacci(FIBONACCI)
        left, right = pyfiber.spawn(node, size // 2), pyfiber.spawn(node, size - size // 2)
        return left.result() + right.result()

    def main() -> Sample:
        start = clock()
        total = node(leaves)
        assert total == leaves * 610
        return Sample(clock() - start, leaves)

    return pyfiber.run(main, threads=threads)


def tonio_tree(threads: int, leaves: int) -> Sample:
    """Build the same binary tree with tasks."""
    tonio = load("tonio.colored")

    async def node(size: int) -> int:
        if size == 1:
            return fibonacci(FIBONACCI)
        return sum(await tonio.spawn(node(size // 2), node(size - size // 2)))

    async def main() -> Sample:
        start = clock()
        total = await node(leaves)
        assert total == leaves * 610
        return Sample(clock() - start, leaves)

    sample: Sample = tonio.run(main(), threads=threads)
    return sample


# Messages between threads -----------------------------------------------------------------------


def pyfiber_across(capacity: int, count: int) -> Sample:
    """Pass messages by a channel between fibers of two schedulers."""
    channel: pyfiber.Channel[int] = pyfiber.Channel(capacity)

    def send() -> None:
        for number in range(count):
            channel.send(number)

    def receive() -> None:
        for number in range(count):
            assert channel.receive() == number

    works = [partial(pyfiber.run, send), partial(pyfiber.run, receive)]
    return Sample(side_by_side(works), count)


def queue_across(capacity: int, count: int) -> Sample:
    """Pass messages by a queue of the standard library between two threads."""
    items: queue.Queue[int] = queue.Queue(capacity)

    def send() -> None:
        for number in range(count):
            items.put(number)

    def receive() -> None:
        for number in range(count):
            assert items.get() == number

    return Sample(side_by_side([send, receive]), count)


def tonio_across(capacity: int, count: int) -> Sample:
    """Pass messages by a channel between two tasks in a pool of two threads."""
    tonio, channels = load("tonio.colored"), load("tonio.colored.sync.channel")

    async def main() -> Sample:
        sender, receiver = channels.channel(capacity)

        async def send() -> None:
            for number in range(count):
                await sender.send(number)

        async def receive() -> None:
            for number in range(count):
                assert await receiver.receive() == number

        start = clock()
        await tonio.spawn(send(), receive())
        return Sample(clock() - start, count)

    sample: Sample = tonio.run(main(), threads=2)
    return sample


# Rows --------------------------------------------------------------------------------------------


#: The most operations of subjects that take microseconds for each.
LIMITS = {"gevent": 50_000, "asyncio": 50_000, "uvloop": 100_000, "trio": 10_000, "tonio": 50_000}

#: Numbers of threads, and the suffix of the subject's name for each.
BOTH = ((1, ""), (2, ", two threads"))


def cases(works: dict[str, Work], tonio: Callable[[int], Any] | None = None) -> tuple[Case, ...]:
    """The cases of all subjects on one thread and on two; pyfiber first."""
    found = [
        Case(
            name + more,
            on_threads(threads, work),
            peer=name if name in PEERS else None,
            limit=LIMITS.get(name),
        )
        for name, work in works.items()
        for threads, more in BOTH
    ]
    if tonio is not None:
        found += [
            Case("tonio" + more, on_tonio(threads, tonio), limit=LIMITS["tonio"])
            for threads, more in BOTH
        ]
    return tuple(found)


def tasks(main: AsyncMeasure) -> dict[str, Work]:
    """The same coroutine function on both event loops."""
    return {case.subject: case.measure for case in asyncio_cases(main)}


def row(name: str, title: str, description: str, found: tuple[Case, ...], count: int) -> Row:
    """A row of this family."""
    return Row(
        f"cores-{name}",
        title,
        description,
        found,
        count=count,
        quick=count // 10,
        budget=None,
        fresh=True,  # TonIO has one pool in the life of a process
        family=CORES,
        show_median=True,
    )


def tree_row(name: str, title: str, description: str, ours: Any, tonio: Any, leaves: int) -> Row:
    """A row of a tree that the threads of run(threads=) share."""
    found = [
        *[Case("pyfiber" + more, partial(ours, threads)) for threads, more in BOTH],
        *[Case("tonio" + more, partial(tonio, threads)) for threads, more in BOTH],
    ]
    return Row(
        f"cores-{name}",
        title,
        description,
        tuple(found),
        count=leaves,
        quick=leaves // 10,
        budget=None,
        fresh=True,
        repetitions=5,
        family=CORES,
        show_median=True,
    )


ROWS = (
    row(
        "switch",
        "one switch",
        "Two raw fibers switch to each other; on two threads, two such pairs.",
        cases({"pyfiber": switching.pyfiber_switch, "greenlet": switching.greenlet_switch}),
        1_000_000,
    ),
    row(
        "yield",
        f"yield among {FIBERS}",
        f"{FIBERS} fibers take turns; on two threads, so many on each.",
        cases(
            {
                "pyfiber": partial(yielding.pyfiber_yield, FIBERS),
                "gevent": partial(yielding.gevent_yield, FIBERS),
                **tasks(partial(yielding.asyncio_yield, FIBERS)),
                "trio": on_trio(partial(yielding.trio_yield, FIBERS)),
            },
            tonio_yield,
        ),
        500_000,
    ),
    row(
        "spawn",
        f"spawn + join, {FIBERS} at a time",
        "Fibers that do nothing are spawned and joined; on two threads, on both.",
        cases(
            {
                "pyfiber": partial(lifecycle.pyfiber_spawn_many, size=FIBERS),
                "gevent": partial(lifecycle.gevent_spawn_many, size=FIBERS),
                **tasks(partial(lifecycle.asyncio_spawn_many, size=FIBERS)),
                "trio": on_trio(partial(lifecycle.trio_spawn_many, size=FIBERS)),
            },
            tonio_spawn,
        ),
        200_000,
    ),
    row(
        "channel",
        "message through a channel, within a thread",
        f"One fiber sends, another one receives; the channel has {CAPACITY} places. On "
        "two threads, a channel on each.",
        cases(
            {
                "pyfiber": pyfiber_channel,
                "gevent": gevent_channel,
                **tasks(async_channel),
                "trio": on_trio(trio_channel),
            }
        ),
        200_000,
    ),
    row(
        "compute",
        "50 us of computing, then a yield",
        f"Ten fibers compute the {FIBONACCI}th Fibonacci number by recursion and yield, again and "
        "again; on two threads, ten on each.",
        cases(
            {
                "pyfiber": pyfiber_compute,
                "threads": thread_compute,
                "asyncio": tasks(async_compute)["asyncio"],
            },
            tonio_compute,
        ),
        2_000,
    ),
    tree_row(
        "skynet",
        "skynet over the threads of a run",
        "A tree of fibers, ten children to each node, sums its 100,000 leaves: run(threads=1) and "
        "run(threads=2).",
        pyfiber_skynet,
        tonio_skynet,
        100_000,
    ),
    tree_row(
        "tree",
        "a computing tree over the threads of a run",
        "A binary tree of fibers, whose 2,000 leaves compute for some 50 us each: "
        "run(threads=1) and run(threads=2).",
        pyfiber_tree,
        tonio_tree,
        2_000,
    ),
    *(
        Row(
            f"cores-across-{capacity}",
            f"message from thread to thread, {capacity} {'place' if capacity == 1 else 'places'}",
            f"One thread sends, another one receives, through a queue of {capacity}; the time of a "
            "message.",
            (
                Case("pyfiber", partial(pyfiber_across, capacity), note="Channel"),
                Case("threads", partial(queue_across, capacity), note="queue.Queue"),
                Case("tonio", partial(tonio_across, capacity), note="channel"),
            ),
            count=20_000 if capacity == 1 else 100_000,
            quick=2_000 if capacity == 1 else 10_000,
            budget=None,
            fresh=True,
            family=CORES,
            show_median=True,
        )
        for capacity in (1, 64, 1024)
    ),
)
