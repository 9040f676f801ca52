"""Messages that two sides pass back and forth through queues or channels; and a free lock.

One operation is one message, put by one side and taken by the other. Each side takes before it
puts, so the other side waits for each message and is woken by it.
"""

from __future__ import annotations

import asyncio
import math
import queue
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import repeat
from threading import Lock, Thread

import pyfiber

from ..model import Case, Row, Sample, clock
from ..peers import load
from .loops import everyone

Put = Callable[[object], object]
Get = Callable[[], object]


def time_messages(put: Put, get: Get, count: int) -> Sample:
    """Time `count` messages, two to a round trip; this side begins."""
    rounds = (count + 1) // 2
    start = clock()
    for _ in repeat(None, rounds):
        put("ball")
        get()
    return Sample(clock() - start, 2 * rounds)


def answer(get: Get, put: Put, count: int) -> None:
    """Send each message back, as the other side."""
    for _ in repeat(None, (count + 1) // 2):
        put(get())


def pyfiber_messages(put: Put, get_there: Get, put_back: Put, get: Get, count: int) -> Sample:
    """Pass messages between two fibers, by the methods of two queues or channels."""

    def main() -> Sample:
        fiber = pyfiber.spawn(answer, get_there, put_back, count)
        pyfiber.yield_now()
        sample = time_messages(put, get, count)
        fiber.join()
        return sample

    return pyfiber.run(main)


def pyfiber_queue(count: int) -> Sample:
    """`pyfiber.Queue`."""
    there: pyfiber.Queue[object] = pyfiber.Queue()
    back: pyfiber.Queue[object] = pyfiber.Queue()
    return pyfiber_messages(there.put, there.get, back.put, back.get, count)


def pyfiber_channel(count: int) -> Sample:
    """`pyfiber.Channel()`, without a buffer."""
    there: pyfiber.Channel[object] = pyfiber.Channel()
    back: pyfiber.Channel[object] = pyfiber.Channel()
    return pyfiber_messages(there.send, there.receive, back.send, back.receive, count)


def gevent_messages(kind: str) -> Callable[[int], Sample]:
    """Pass messages between two greenlets, through a class of gevent.queue."""

    def measure(count: int) -> Sample:
        gevent = load("gevent")
        make = getattr(load("gevent.queue"), kind)
        there, back = make(), make()
        greenlet = gevent.spawn(answer, there.get, back.put, count)
        gevent.sleep(0)
        sample = time_messages(there.put, back.get, count)
        greenlet.join()
        return sample

    return measure


async def asyncio_queue(count: int) -> Sample:
    """`asyncio.Queue`, with `put_nowait`, which never has to wait here."""
    there: asyncio.Queue[object] = asyncio.Queue()
    back: asyncio.Queue[object] = asyncio.Queue()

    async def other() -> None:
        get, put = there.get, back.put_nowait
        for _ in repeat(None, rounds):
            put(await get())

    rounds = (count + 1) // 2
    task = asyncio.get_running_loop().create_task(other())
    await asyncio.sleep(0)
    get, put = back.get, there.put_nowait
    start = clock()
    for _ in repeat(None, rounds):
        put("ball")
        await get()
    sample = Sample(clock() - start, 2 * rounds)
    await task
    return sample


async def trio_messages(capacity: float, count: int) -> Sample:
    """`trio.open_memory_channel(capacity)`."""
    trio = load("trio")
    send_there, receive_there = trio.open_memory_channel(capacity)
    send_back, receive_back = trio.open_memory_channel(capacity)
    rounds = (count + 1) // 2

    async def other() -> None:
        get, put = receive_there.receive, send_back.send
        for _ in repeat(None, rounds):
            await put(await get())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await trio.lowlevel.checkpoint()
        get, put = receive_back.receive, send_there.send
        start = clock()
        for _ in repeat(None, rounds):
            await put("ball")
            await get()
        sample = Sample(clock() - start, 2 * rounds)
    return sample


def threads_queue(count: int) -> Sample:
    """`queue.SimpleQueue` between two threads."""
    there: queue.SimpleQueue[object] = queue.SimpleQueue()
    back: queue.SimpleQueue[object] = queue.SimpleQueue()
    thread = Thread(target=answer, args=(there.get, back.put, count))
    thread.start()
    sample = time_messages(there.put, back.get, count)
    thread.join()
    return sample


# lock --------------------------------------------------------------------------------------------


def time_lock(acquire: Callable[[], object], release: Callable[[], object], count: int) -> Sample:
    """Take a free lock and release it."""
    start = clock()
    for _ in repeat(None, count):
        acquire()
        release()
    return Sample(clock() - start, count)


def pyfiber_lock(count: int) -> Sample:
    """`pyfiber.Lock`."""
    lock = pyfiber.Lock()
    return pyfiber.run(time_lock, lock.acquire, lock.release, count)


def threads_lock(count: int) -> Sample:
    """`threading.Lock`."""
    lock = Lock()
    return time_lock(lock.acquire, lock.release, count)


def gevent_lock(count: int) -> Sample:
    """`gevent.lock.BoundedSemaphore`, gevent's lock."""
    lock = load("gevent.lock").BoundedSemaphore()
    return time_lock(lock.acquire, lock.release, count)


async def time_async_lock(
    acquire: Callable[[], Awaitable[object]], release: Callable[[], object], count: int
) -> Sample:
    """Take a free lock and release it, where acquire() is awaited."""
    start = clock()
    for _ in repeat(None, count):
        await acquire()
        release()
    return Sample(clock() - start, count)


async def asyncio_lock(count: int) -> Sample:
    """`asyncio.Lock`."""
    lock = asyncio.Lock()
    return await time_async_lock(lock.acquire, lock.release, count)


async def trio_lock(count: int) -> Sample:
    """`trio.Lock`, a checkpoint each time."""
    lock = load("trio").Lock()
    return await time_async_lock(lock.acquire, lock.release, count)


ROWS = (
    Row(
        "queue",
        "message through a queue",
        "Two sides send a message back and forth through two queues without limit; the time for "
        "each message.",
        everyone(
            pyfiber_queue,
            gevent_messages("SimpleQueue"),
            asyncio_queue,
            partial(trio_messages, math.inf),
            Case("threads", threads_queue, limit=20_000, note="queue.SimpleQueue"),
            notes={"gevent": "SimpleQueue", "trio": "open_memory_channel(inf)"},
        ),
        count=200_000,
        quick=10_000,
    ),
    Row(
        "channel",
        "message through a channel without a buffer",
        "Two sides send a message back and forth through two channels that hold nothing; the time "
        "for each message.",
        everyone(
            pyfiber_channel,
            gevent_messages("Channel"),
            None,
            partial(trio_messages, 0),
            notes={"gevent": "queue.Channel", "trio": "open_memory_channel(0)"},
        ),
        count=200_000,
        quick=10_000,
        impossible={
            "asyncio": "its queues hold at least one item",
            "uvloop": "asyncio's queues hold at least one item",
        },
    ),
    Row(
        "lock",
        "acquire and release a free lock",
        "A lock that nobody else wants is taken and released; the time for both.",
        everyone(
            pyfiber_lock,
            gevent_lock,
            asyncio_lock,
            trio_lock,
            Case("threads", threads_lock, note="threading.Lock"),
            notes={"gevent": "lock.BoundedSemaphore", "trio": "a checkpoint each time"},
        ),
        count=500_000,
        quick=20_000,
    ),
)
