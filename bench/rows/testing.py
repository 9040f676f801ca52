"""Tests of concurrent code: explored schedules, and virtual time."""

from __future__ import annotations

import pyfiber

from ..model import Case, Row, Sample, clock
from ..peers import load

FIBERS, STEPS = 4, 20
SLEEPERS, MONTHS, MONTH = 1000, 12, 365 * 86400 / 12


# explore -----------------------------------------------------------------------------------------


def program() -> None:
    """Four fibers of twenty steps each."""

    def work() -> None:
        step = pyfiber.yield_now
        for _ in range(STEPS):
            step()

    for fiber in [pyfiber.spawn(work) for _ in range(FIBERS)]:
        fiber.join()


def explore_random(count: int) -> Sample:
    """`explore(program, count)`: orders drawn at random."""
    from pyfiber.testing import explore

    start = clock()
    explore(program, count, "random")
    return Sample(clock() - start, count)


# virtual year ------------------------------------------------------------------------------------


def pyfiber_year(count: int) -> Sample:
    """`pyfiber.testing.run()`, `sleep()`."""
    from pyfiber.testing import run

    def sleep_a_year() -> None:
        for _ in range(MONTHS):
            pyfiber.sleep(MONTH)

    def main() -> None:
        for fiber in [pyfiber.spawn(sleep_a_year) for _ in range(SLEEPERS)]:
            fiber.join()

    start = clock()
    for _ in range(count):
        run(main)
    return Sample(clock() - start, count)


def trio_year(count: int) -> Sample:
    """`trio.run(clock=MockClock(autojump_threshold=0))`, `trio.sleep()`."""
    trio = load("trio")
    mock_clock = load("trio.testing").MockClock

    async def sleep_a_year() -> None:
        for _ in range(MONTHS):
            await trio.sleep(MONTH)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(SLEEPERS):
                nursery.start_soon(sleep_a_year)

    start = clock()
    for _ in range(count):
        trio.run(main, clock=mock_clock(autojump_threshold=0))
    return Sample(clock() - start, count)


NO_SCHEDULES = "runs a program in one order, and cannot be given another"

ROWS = (
    Row(
        "explore",
        f"one schedule of {FIBERS} fibers x {STEPS} steps, explored",
        "A program is run under schedules drawn at random, as a test that looks for races does.",
        (Case("pyfiber", explore_random),),
        count=10_000,
        quick=1000,
        budget=2.0,
        repetitions=3,
        impossible={"gevent": NO_SCHEDULES, "asyncio": NO_SCHEDULES, "trio": NO_SCHEDULES},
    ),
    Row(
        "virtual-year",
        f"a test in which {SLEEPERS} fibers sleep a virtual year",
        "Each fiber sleeps twelve months, in virtual time; the whole run is timed.",
        (
            Case("pyfiber", pyfiber_year),
            Case("trio", trio_year, note="trio.testing.MockClock"),
        ),
        count=5,
        quick=1,
        budget=None,
        repetitions=3,
        impossible={"gevent": "has no virtual time", "asyncio": "has no virtual time"},
    ),
)
