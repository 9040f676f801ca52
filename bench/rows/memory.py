"""Memory that a parked fiber holds.  See parked.py for very many.

The rows count what the process gains while the fibers are parked: resident pages and the page
tables that map them (VmRSS and VmPTE), including the list that holds the fibers. The kernel's
stacks of threads are not counted. Each measurement has a new process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from threading import Lock, Thread
from typing import Any

import pyfiber

from ..model import BYTES, Case, Row, Sample, Unavailable, clock
from ..peers import load
from ..proc import kilobytes, memory_of
from .loops import asyncio_cases, on_trio

SMALL_STACK = 256 * 1024
MILLION = 1_000_000


def require_memory(needed: int) -> None:
    """Raise Unavailable if the machine has less free memory than needed."""
    available = 1024 * kilobytes("/proc/meminfo", "MemAvailable")
    if available < needed:
        gib = 1024**3
        raise Unavailable(
            f"needs about {needed / gib:.1f} GiB of memory; {available / gib:.1f} GiB are available"
        )


class Ledger:
    """Memory and time of parking many and of finishing them all."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.held = 0.0
        self.times: dict[str, float] = {}

    @contextmanager
    def parking(self) -> Iterator[None]:
        """The context of the part that makes all of them and parks them."""
        before = memory_of()
        with self._timed("park_ns"):
            yield
        self.held = memory_of() - before

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """The context of the part that resumes all of them and sees them end."""
        with self._timed("finish_ns"):
            yield

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = clock()
        yield
        self.times[name] = (clock() - start) / self.count

    def sample(self) -> Sample:
        """The sample: bytes, and the times of each part as details."""
        return Sample(self.held, self.count, self.times)


def pyfiber_parked(stack_size: int | None, count: int) -> Sample:
    """Fibers in `park()`, spawned on the scheduler."""
    ledger = Ledger(count)
    park = pyfiber.park

    def body() -> None:
        park()

    def main() -> Sample:
        spawn = pyfiber.spawn
        with ledger.parking():
            fibers = [spawn(body) for _ in repeat(None, count)]
            pyfiber.yield_now()
        with ledger.finishing():
            for fiber in fibers:
                fiber.unpark()
            for fiber in fibers:
                fiber.join()
        return ledger.sample()

    if stack_size is not None:
        pyfiber.stack_size(stack_size)
    return pyfiber.run(main)


def greenlet_parked(count: int) -> Sample:
    """Greenlets that have switched back to the main one."""
    module = load("greenlet")
    greenlet, park = module.greenlet, module.getcurrent().switch
    ledger = Ledger(count)

    def body() -> None:
        park()

    def started() -> Any:
        fresh = greenlet(body)
        fresh.switch()
        return fresh

    with ledger.parking():
        greenlets = [started() for _ in repeat(None, count)]
    with ledger.finishing():
        for parked in greenlets:
            parked.switch()
    return ledger.sample()


def gevent_parked(count: int) -> Sample:
    """Greenlets of gevent that have switched to the hub."""
    gevent = load("gevent")
    hub = gevent.get_hub()
    ledger = Ledger(count)
    park = hub.switch

    def body() -> None:
        park()

    spawn = gevent.spawn
    with ledger.parking():
        greenlets = [spawn(body) for _ in repeat(None, count)]
        gevent.sleep(0)
    with ledger.finishing():
        for greenlet in greenlets:
            hub.loop.run_callback(greenlet.switch)
        gevent.joinall(greenlets)
    return ledger.sample()


async def asyncio_parked(count: int) -> Sample:
    """Tasks that await a future each."""
    loop = asyncio.get_running_loop()
    ledger = Ledger(count)
    futures: list[asyncio.Future[None]] = []

    async def body() -> None:
        future = loop.create_future()
        futures.append(future)
        await future

    with ledger.parking():
        tasks = [loop.create_task(body()) for _ in repeat(None, count)]
        await asyncio.sleep(0)
    with ledger.finishing():
        for future in futures:
            future.set_result(None)
        for task in tasks:
            await task
    return ledger.sample()


async def trio_parked(count: int) -> Sample:
    """Tasks that wait to be rescheduled."""
    trio = load("trio")
    lowlevel = trio.lowlevel
    ledger = Ledger(count)
    tasks: list[Any] = []

    def no_abort(_: object) -> object:
        return lowlevel.Abort.FAILED

    async def body() -> None:
        tasks.append(lowlevel.current_task())
        await lowlevel.wait_task_rescheduled(no_abort)

    async with trio.open_nursery() as nursery:
        with ledger.parking():
            for _ in repeat(None, count):
                nursery.start_soon(body)
            while len(tasks) < count:
                await lowlevel.checkpoint()
        start = clock()
        for task in tasks:
            lowlevel.reschedule(task)
    ledger.times["finish_ns"] = (clock() - start) / count
    return ledger.sample()


def generator_parked(count: int) -> Sample:
    """Generators that have yielded once."""
    ledger = Ledger(count)

    def body() -> Generator[None, None, None]:
        yield

    def started() -> Generator[None, None, None]:
        fresh = body()
        next(fresh)
        return fresh

    with ledger.parking():
        generators = [started() for _ in repeat(None, count)]
    with ledger.finishing():
        for generator in generators:
            next(generator, None)
    return ledger.sample()


def threads_parked(count: int) -> Sample:
    """Threads that wait for a lock each."""
    ledger = Ledger(count)

    def started(lock: Any) -> Thread:
        lock.acquire()
        thread = Thread(target=lock.acquire)
        thread.start()
        return thread

    with ledger.parking():
        locks = [Lock() for _ in range(count)]
        threads = [started(lock) for lock in locks]
    with ledger.finishing():
        for lock in locks:
            lock.release()
        for thread in threads:
            thread.join()
    return ledger.sample()


def if_it_fits(measure: Callable[[int], Sample], bytes_each: int) -> Callable[[int], Sample]:
    """A case that is refused when the machine has no memory for it."""

    def measured(count: int) -> Sample:
        require_memory(count * bytes_each)
        return measure(count)

    return measured


CASES = (
    Case("pyfiber", partial(pyfiber_parked, None), note="the default stack size"),
    Case("pyfiber 256 KiB", partial(pyfiber_parked, SMALL_STACK), note="stacks of 256 KiB"),
    Case("greenlet", greenlet_parked),
    Case("gevent", gevent_parked),
    *asyncio_cases(asyncio_parked),
    Case("trio", on_trio(trio_parked)),
    Case("generator", generator_parked),
    Case("threads", threads_parked, limit=1000, note="kernel stacks not counted"),
)

ROWS = (
    Row(
        "memory",
        "memory of one parked",
        "10,000 fibers are made and parked; what the process gained, page tables included, "
        "for each (threads: 1,000).",
        CASES,
        count=10_000,
        quick=10_000,
        unit=BYTES,
        budget=None,
        fresh=True,
        repetitions=2,
    ),
)
