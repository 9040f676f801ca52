"""Measures what it costs to wait for an awaitable in plain code that a coroutine has called.

    python -m bench.awaiting [LOOP...]    asyncio, uvloop

All subjects wait for the same object, which yields once to the loop: a coroutine by `await`, plain
code by pyfiber's ``await_()``, by a bare greenlet whose parent awaits what it is given, and by
greenback's ``await_()``. The rounds of all subjects are interleaved in one process; the best round
of each counts. Subjects that are not installed are left out.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any

from pyfiber.aio import await_, run_in_fiber

WAITS = 10_000
ROUNDS = 40

Measure = Callable[[], Awaitable[object]]


class Turn:
    """An awaitable that yields once to the loop."""

    def __await__(self) -> Generator[None, None, None]:
        yield


TURN = Turn()


async def coroutine() -> None:
    for _ in range(WAITS):
        await TURN


async def with_pyfiber() -> None:
    def plain() -> None:
        for _ in range(WAITS):
            await_(TURN)

    await run_in_fiber(plain)


async def with_greenlet() -> None:
    greenlet: Any = importlib.import_module("greenlet")

    def plain() -> None:
        for _ in range(WAITS):
            greenlet.getcurrent().parent.switch(TURN)

    child = greenlet.greenlet(plain)
    awaited = child.switch()
    while not child.dead:
        awaited = child.switch(await awaited)


async def with_greenback() -> None:
    greenback: Any = importlib.import_module("greenback")
    await greenback.ensure_portal()
    for _ in range(WAITS):
        greenback.await_(TURN)


SUBJECTS: dict[str, Measure] = {
    "await": coroutine,
    "pyfiber": with_pyfiber,
    "greenlet": with_greenlet,
    "greenback": with_greenback,
}


def microseconds(loop: Callable[[], asyncio.AbstractEventLoop], measure: Measure) -> float:
    async def main() -> float:
        begin = time.process_time()
        await measure()
        return (time.process_time() - begin) / WAITS * 1e6

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main())


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def compare(loop: str) -> None:
    factory = importlib.import_module(loop).new_event_loop
    subjects = [name for name in SUBJECTS if name == "await" or installed(name)]
    best = dict.fromkeys(subjects, float("inf"))
    for _ in range(ROUNDS):
        for name in subjects:
            best[name] = min(best[name], microseconds(factory, SUBJECTS[name]))
    for name in subjects:
        more = "" if name == "await" else f"  {best[name] - best['await']:+.2f}"
        print(f"{loop:8} {name:10} {best[name]:6.2f} us{more}")


if __name__ == "__main__":
    for loop in sys.argv[1:] or ["asyncio", "uvloop"]:
        if installed(loop):
            compare(loop)
