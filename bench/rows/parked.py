"""Very many fibers that wait, two calls deep, in each of the usual ways, and then end.

The rows count what the process gains while they wait, as in memory.py, with everything that belongs
to them: objects, timers, places in a queue, sockets.
"""

from __future__ import annotations

import asyncio
import random
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pyfiber
import pyfiber.socket

from ..io.processes import require_descriptors
from ..io.programs import GOROUTINES, build
from ..model import BYTES, Case, Row, Sample
from ..peers import load
from .loops import asyncio_cases, on_trio
from .memory import MILLION, Ledger, if_it_fits

LONG = 100_000.0  # seconds that a sleeper would sleep; it is woken before

#: A function that waits, and one that returns the call which wakes the waiter with that number. The
#: calls are made before the clock starts, because finding each in a list is no library's cost.
Wait = Callable[[], Any]
Wake = Callable[[int], Callable[[], Any]]


def inner(wait: Wait) -> None:
    wait()


def outer(wait: Wait) -> None:
    """Wait two calls deep: the function of a fiber."""
    inner(wait)


def inner_recv(sock: Any) -> None:
    sock.recv(1)


def outer_recv(sock: Any) -> None:
    inner_recv(sock)


def in_random_order(count: int) -> list[int]:
    """The numbers of all waiters, in the same random order for every subject."""
    numbers = list(range(count))
    random.Random(0).shuffle(numbers)
    return numbers


def pairs_of_sockets(count: int, make: Callable[[], Any]) -> list[Any]:
    """Return so many pairs, if the system allows this process as many descriptors."""
    require_descriptors(2 * count)
    return [make() for _ in range(count)]


def pyfiber_waits(kind: str, count: int) -> Sample:
    """Fibers, with the default stacks and slots."""
    ledger = Ledger(count)
    order = in_random_order(count)

    def main() -> Sample:
        fibers: list[pyfiber.Fiber[None]] = []
        waits: Any = None
        if kind == "park":
            wait: Wait = pyfiber.park
            wake: Wake = lambda i: fibers[i].unpark  # noqa: E731
        elif kind == "sleep":
            wait, wake = partial(pyfiber.sleep, LONG), lambda i: fibers[i].cancel
        elif kind == "queue":
            queue: pyfiber.Queue[None] = pyfiber.Queue()
            wait, wake = queue.get, lambda i: partial(queue.put, None)
        else:
            waits = pairs_of_sockets(count, pyfiber.socket.socketpair)
            wake = lambda i: partial(waits[i][1].send, b"x")  # noqa: E731
        with ledger.parking():
            if waits is None:
                fibers += [pyfiber.spawn(outer, wait) for _ in range(count)]
            else:
                fibers += [pyfiber.spawn(outer_recv, pair[0]) for pair in waits]
            pyfiber.yield_now()
        calls = [wake(i) for i in order]
        with ledger.finishing():
            for call in calls:
                call()
            for fiber in fibers:
                fiber.join()
        return ledger.sample()

    return pyfiber.run(main)


def greenlet_waits(count: int) -> Sample:
    """Greenlets that have switched back to the main one."""
    module = load("greenlet")
    greenlet, park = module.greenlet, module.getcurrent().switch
    ledger = Ledger(count)
    order = in_random_order(count)

    with ledger.parking():
        greenlets = [greenlet(outer) for _ in range(count)]
        for fresh in greenlets:
            fresh.switch(park)
    calls = [greenlets[i].switch for i in order]
    with ledger.finishing():
        for call in calls:
            call()
    return ledger.sample()


def gevent_waits(kind: str, count: int) -> Sample:
    """Greenlets of gevent that wait, two calls deep."""
    gevent = load("gevent")
    hub = gevent.get_hub()
    ledger = Ledger(count)
    order = in_random_order(count)

    greenlets: list[Any] = []
    waits: Any = None
    if kind == "park":
        wait: Wait = hub.switch
        wake: Wake = lambda i: partial(hub.loop.run_callback, greenlets[i].switch)  # noqa: E731
    elif kind == "sleep":
        wait, wake = partial(gevent.sleep, LONG), lambda i: partial(greenlets[i].kill, block=False)
    elif kind == "queue":
        queue = load("gevent.queue").Queue()
        wait, wake = queue.get, lambda i: partial(queue.put, None)
    else:
        waits = pairs_of_sockets(count, load("gevent.socket").socketpair)
        wake = lambda i: partial(waits[i][1].send, b"x")  # noqa: E731
    with ledger.parking():
        if waits is None:
            greenlets += [gevent.spawn(outer, wait) for _ in range(count)]
        else:
            greenlets += [gevent.spawn(outer_recv, pair[0]) for pair in waits]
        gevent.sleep(0)
    calls = [wake(i) for i in order]
    with ledger.finishing():
        for call in calls:
            call()
        gevent.joinall(greenlets)
    return ledger.sample()


async def asyncio_waits(kind: str, count: int) -> Sample:
    """Tasks, two coroutines deep."""
    loop = asyncio.get_running_loop()
    ledger = Ledger(count)
    order = in_random_order(count)
    futures: list[asyncio.Future[None]] = []
    tasks: list[asyncio.Task[None]] = []
    waits: list[tuple[socket.socket, socket.socket]] = []

    async def park() -> None:
        future = loop.create_future()
        futures.append(future)
        await future

    async def outer(wait: Callable[[], Any]) -> None:
        await wait()

    async def outer_recv(sock: socket.socket) -> None:
        await loop.sock_recv(sock, 1)

    if kind == "park":
        wait: Callable[[], Any] = park
        wake: Wake = lambda i: partial(futures[i].set_result, None)  # noqa: E731
    elif kind == "sleep":
        wait, wake = partial(asyncio.sleep, LONG), lambda i: tasks[i].cancel
    elif kind == "queue":
        queue: asyncio.Queue[None] = asyncio.Queue()
        wait, wake = queue.get, lambda i: partial(queue.put_nowait, None)
    else:
        waits = pairs_of_sockets(count, socket.socketpair)
        for pair in waits:
            pair[0].setblocking(False)
        wake = lambda i: partial(waits[i][1].send, b"x")  # noqa: E731
    with ledger.parking():
        if kind != "recv":
            tasks += [loop.create_task(outer(wait)) for _ in range(count)]
        else:
            tasks += [loop.create_task(outer_recv(pair[0])) for pair in waits]
        await asyncio.sleep(0)
    calls = [wake(i) for i in order]
    with ledger.finishing():
        for call in calls:
            call()
        await asyncio.gather(*tasks, return_exceptions=True)
    for pair in waits:
        pair[0].close()
        pair[1].close()
    return ledger.sample()


async def trio_waits(kind: str, count: int) -> Sample:
    """Tasks of trio, two coroutines deep."""
    trio = load("trio")
    ledger = Ledger(count)
    order = in_random_order(count)
    tasks: list[Any] = []
    waits: list[Any] = []

    async def park() -> None:
        tasks.append(trio.lowlevel.current_task())
        await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)

    async def outer(wait: Callable[[], Any]) -> None:
        await wait()

    async def outer_recv(sock: Any) -> None:
        await sock.recv(1)

    async with trio.open_nursery() as nursery:
        sender, receiver = trio.open_memory_channel(0)
        if kind == "park":
            wait: Callable[[], Any] = park
            wake: Wake = lambda i: partial(trio.lowlevel.reschedule, tasks[i])  # noqa: E731
        elif kind == "sleep":
            wait = partial(trio.sleep, LONG)
            wake = lambda i: nursery.cancel_scope.cancel  # noqa: E731
        elif kind == "queue":
            wait, wake = receiver.receive, lambda i: partial(sender.send_nowait, None)
        else:
            waits = pairs_of_sockets(count, trio.socket.socketpair)
            wake = lambda i: partial(waits[i][1]._sock.send, b"x")  # noqa: E731
        with ledger.parking():
            if kind != "recv":
                for _ in range(count):
                    nursery.start_soon(outer, wait)
            else:
                for pair in waits:
                    nursery.start_soon(outer_recv, pair[0])
            await trio.lowlevel.checkpoint()
            await trio.lowlevel.checkpoint()
        calls = [wake(i) for i in order]
        finishing = ledger.finishing()
        finishing.__enter__()
        for call in calls:
            call()
    finishing.__exit__(None, None, None)
    return ledger.sample()


def go_waits(kind: str, count: int) -> Sample:
    """Goroutines, in a separate process."""
    command = [str(build(GOROUTINES)), kind, str(count)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Go: {done.stderr.strip()}")
    held, park_ns, finish_ns = map(float, done.stdout.split())
    return Sample(held, count, {"park_ns": park_ns, "finish_ns": finish_ns})


def cases(kind: str) -> tuple[Case, ...]:
    """The cases of all subjects that can wait like this."""
    all_at_once = "its tasks are cancelled all at once, not one by one" if kind == "sleep" else ""
    greenlets = (Case("greenlet", if_it_fits(greenlet_waits, 8_000)),)
    return (
        Case("pyfiber", if_it_fits(partial(pyfiber_waits, kind), 1_500)),
        *(greenlets if kind == "park" else ()),
        Case("gevent", if_it_fits(partial(gevent_waits, kind), 12_000)),
        *(
            replace(case, measure=if_it_fits(case.measure, 4_000))
            for case in asyncio_cases(partial(asyncio_waits, kind))
        ),
        Case("trio", if_it_fits(on_trio(partial(trio_waits, kind)), 8_000), note=all_at_once),
        Case(
            "Go",
            if_it_fits(partial(go_waits, kind), 5_000),
            note="goroutines, on one thread; another language",
        ),
    )


def a_million(kind: str, name: str) -> Row:
    """The row of a million that wait like this."""
    return Row(
        name,
        f"memory of one of a million in {WHERE[kind]}",
        f"A million wait in {WHERE[kind]}, two calls deep, and end {ENDS[kind]}, under the "
        "kernel's default limits; what the process gained while they waited, for each.",
        cases(kind),
        count=MILLION,
        quick=MILLION,
        unit=BYTES,
        budget=None,
        fresh=True,
        repetitions=1,
        full_only=True,
    )


WHERE = {
    "park": "park()",
    "sleep": "sleep()",
    "queue": "Queue.get()",
    "recv": "a socket's recv()",
}

#: The order of waking: a queue serves the one that has waited longest.
ENDS = {
    "park": "in random order",
    "sleep": "in random order",
    "queue": "in the order in which they came",
    "recv": "in random order",
}

ROWS = (
    *(
        Row(
            f"parked-{kind}",
            f"memory of one of 100,000 in {where}"
            if kind != "recv"
            else f"... of 9,000 in {where}",
            f"{'9,000' if kind == 'recv' else '100,000'} wait in {where}, two calls deep, and end "
            f"{ENDS[kind]}; what the process gained while they waited, for each.",
            cases(kind),
            count=9_000 if kind == "recv" else 100_000,
            quick=9_000 if kind == "recv" else 100_000,
            unit=BYTES,
            budget=None,
            fresh=True,
            repetitions=2,
            full_only=True,
        )
        for kind, where in WHERE.items()
    ),
    a_million("park", "million"),
    a_million("sleep", "million-sleep"),
    a_million("queue", "million-queue"),
)
