"""Wake-ups from another thread: a plain thread makes work ready on the scheduler's thread.

Wake-ups come in bursts of a thousand; the waking thread waits for the end of a burst before it
begins the next one. Everything that is woken does the same: it reports to the burst.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import repeat
from threading import Lock, Thread
from typing import Any

import pyfiber

from ..model import Case, Row, Sample, clock
from ..peers import load
from .loops import everyone

BURST = 1000
#: Seconds, more than any benchmark takes: so gevent's loop never reports that nothing can happen.
FOREVER = 3600


class Burst:
    """Counts what a burst woke; `over` is released when the last one of it has run."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left = size
        self.over = Lock()
        self.over.acquire()

    def arrived(self) -> None:
        """Count one more that has been woken."""
        self.left -= 1
        if not self.left:
            self.left = self.size
            self.over.release()


class Waker(Thread):
    """The waking thread: `rounds` times it wakes a burst, then waits for the end of the burst."""

    def __init__(
        self,
        rounds: int,
        burst: Burst,
        wake_all: Callable[[], None],
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__()
        self.rounds = rounds
        self.burst = burst
        self.wake_all = wake_all
        self.at_end = at_end

    def run(self) -> None:
        """Wake and wait, and keep the time it took."""
        wait, wake_all = self.burst.over.acquire, self.wake_all
        start = clock()
        for _ in repeat(None, self.rounds):
            wake_all()
            wait()
        self.elapsed = clock() - start
        self.at_end()

    def sample(self) -> Sample:
        """The result, once the thread has ended."""
        self.join()
        return Sample(self.elapsed, self.rounds * self.burst.size)


def rounds_for(count: int) -> int:
    """How many bursts hold at least `count` wake-ups."""
    return -(-count // BURST)


# wake: parked fibers -----------------------------------------------------------------------------


def pyfiber_wake(count: int) -> Sample:
    """`fiber.unpark()` of a fiber in `park()`."""
    rounds, burst = rounds_for(count), Burst(BURST)

    def body() -> None:
        park, arrived = pyfiber.park, burst.arrived
        for _ in repeat(None, rounds):
            park()
            arrived()

    def main() -> Sample:
        fibers = [pyfiber.spawn(body) for _ in range(BURST)]
        pyfiber.yield_now()
        unparks = [fiber.unpark for fiber in fibers]

        def wake_all() -> None:
            for unpark in unparks:
                unpark()

        waker = Waker(rounds, burst, wake_all)
        waker.start()
        for fiber in fibers:
            fiber.join()
        return waker.sample()

    return pyfiber.run(main)


def gevent_wake(count: int) -> Sample:
    """`loop.run_callback_threadsafe(greenlet.switch)` of a greenlet that is in its hub."""
    gevent = load("gevent")
    hub = gevent.get_hub()
    rounds, burst = rounds_for(count), Burst(BURST)

    def body() -> None:
        park, arrived = hub.switch, burst.arrived
        for _ in repeat(None, rounds):
            park()
            arrived()

    greenlets = [gevent.spawn(body) for _ in range(BURST)]
    switches = [greenlet.switch for greenlet in greenlets]

    def wake_all() -> None:
        call = hub.loop.run_callback_threadsafe
        for switch in switches:
            call(switch)

    gevent.sleep(0)
    waker = Waker(rounds, burst, wake_all)
    waker.start()
    gevent.joinall(greenlets, timeout=FOREVER)
    return waker.sample()


async def asyncio_wake(count: int) -> Sample:
    """`loop.call_soon_threadsafe(future.set_result, None)` of a future that a task awaits."""
    loop = asyncio.get_running_loop()
    rounds, burst = rounds_for(count), Burst(BURST)
    futures = [loop.create_future() for _ in range(BURST)]

    async def body(index: int) -> None:
        create_future, arrived = loop.create_future, burst.arrived
        for _ in repeat(None, rounds):
            await futures[index]
            futures[index] = create_future()
            arrived()

    def wake_all() -> None:
        call = loop.call_soon_threadsafe
        for future in futures:
            call(future.set_result, None)

    tasks = [loop.create_task(body(index)) for index in range(BURST)]
    await asyncio.sleep(0)
    waker = Waker(rounds, burst, wake_all)
    waker.start()
    for task in tasks:
        await task
    return waker.sample()


async def trio_wake(count: int) -> Sample:
    """`token.run_sync_soon(reschedule, task)` of a task that waits to be rescheduled."""
    trio = load("trio")
    rounds, burst = rounds_for(count), Burst(BURST)
    tasks: list[Any] = []

    async def body() -> None:
        park, arrived = trio.lowlevel.wait_task_rescheduled, burst.arrived
        tasks.append(trio.lowlevel.current_task())
        for _ in repeat(None, rounds):
            await park(no_abort)
            arrived()

    def no_abort(_: object) -> object:
        return trio.lowlevel.Abort.FAILED

    call, reschedule = trio.lowlevel.current_trio_token().run_sync_soon, trio.lowlevel.reschedule

    def wake_all() -> None:
        for task in tasks:
            call(reschedule, task)

    async with trio.open_nursery() as nursery:
        for _ in range(BURST):
            nursery.start_soon(body)
        while len(tasks) < BURST:
            await trio.lowlevel.checkpoint()
        waker = Waker(rounds, burst, wake_all)
        waker.start()
    return waker.sample()


def threads_wake(count: int) -> Sample:
    """A thousand threads, each waiting for a separate lock."""
    rounds, burst = rounds_for(count), Burst(BURST)
    counting = Lock()

    def body(wait: Callable[[], object]) -> None:
        arrived = burst.arrived
        for _ in repeat(None, rounds):
            wait()
            with counting:
                arrived()

    locks = [Lock() for _ in range(BURST)]
    for lock in locks:
        lock.acquire()
    threads = [Thread(target=body, args=(lock.acquire,)) for lock in locks]
    for thread in threads:
        thread.start()

    def wake_all() -> None:
        for lock in locks:
            lock.release()

    waker = Waker(rounds, burst, wake_all)
    waker.start()
    for thread in threads:
        thread.join()
    return waker.sample()


# wake-call: functions to be called ---------------------------------------------------------------


def burst_of(hand_over: Callable[[Any], object], function: Any) -> Callable[[], None]:
    """Return a burst that passes the same function again and again."""

    def wake_all() -> None:
        for _ in repeat(None, BURST):
            hand_over(function)

    return wake_all


def pyfiber_call(count: int) -> Sample:
    """`scheduler.call_soon_threadsafe(function)`, which starts a fiber for it."""
    burst = Burst(BURST)
    scheduler = pyfiber.Scheduler()
    call, arrived = scheduler.call_soon_threadsafe, burst.arrived

    def main() -> Sample:
        here = pyfiber.current()
        waker = Waker(rounds_for(count), burst, burst_of(call, arrived), here.unpark)
        waker.start()
        pyfiber.park()
        return waker.sample()

    return scheduler.run(main)


def gevent_call(count: int) -> Sample:
    """`loop.run_callback_threadsafe(function)`."""
    gevent = load("gevent")
    burst = Burst(BURST)
    call, arrived = gevent.get_hub().loop.run_callback_threadsafe, burst.arrived
    over = gevent.event.Event()
    wake_all = burst_of(call, arrived)
    waker = Waker(rounds_for(count), burst, wake_all, lambda: call(over.set))
    waker.start()
    over.wait(timeout=FOREVER)
    return waker.sample()


async def asyncio_call(count: int) -> Sample:
    """`loop.call_soon_threadsafe(function)`."""
    burst = Burst(BURST)
    call, arrived = asyncio.get_running_loop().call_soon_threadsafe, burst.arrived
    over = asyncio.Event()
    wake_all = burst_of(call, arrived)
    waker = Waker(rounds_for(count), burst, wake_all, lambda: call(over.set))
    waker.start()
    await over.wait()
    return waker.sample()


async def trio_call(count: int) -> Sample:
    """`token.run_sync_soon(function)`."""
    trio = load("trio")
    burst = Burst(BURST)
    call, arrived = trio.lowlevel.current_trio_token().run_sync_soon, burst.arrived
    over = trio.Event()
    wake_all = burst_of(call, arrived)
    waker = Waker(rounds_for(count), burst, wake_all, lambda: call(over.set))
    waker.start()
    await over.wait()
    return waker.sample()


ROWS = (
    Row(
        "wake",
        f"wake-up from another thread, in bursts of {BURST:,}",
        f"A plain thread wakes {BURST:,} parked fibers, and waits until all have run; "
        "the time for each.",
        everyone(
            pyfiber_wake,
            gevent_wake,
            asyncio_wake,
            trio_wake,
            Case("threads", threads_wake, limit=20_000, note="a lock each"),
            notes={"gevent": "loop.run_callback_threadsafe", "trio": "token.run_sync_soon"},
        ),
        count=100_000,
        quick=5_000,
    ),
    Row(
        "wake-call",
        f"call from another thread, in bursts of {BURST:,}",
        f"A plain thread hands the scheduler {BURST:,} functions to call, and waits until all "
        "have been called; the time for each.",
        everyone(
            pyfiber_call,
            gevent_call,
            asyncio_call,
            trio_call,
            notes={
                "pyfiber": "each in a fiber of its own",
                "gevent": "a bare callback",
                "trio": "a bare callback",
            },
        ),
        count=100_000,
        quick=5_000,
    ),
)
