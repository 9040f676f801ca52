"""So many switches, so many fibers that begin and end."""

from __future__ import annotations

from pyfiber import Fiber, TaskGroup, current, run, spawn, yield_now
from tests.soak.gauge import Gauge

SAMPLES = 20
#: KiB.
SLACK = 1024


def part_of(count: int, parts: int) -> int:
    """Rounded up to whole thousands, so that no fewer are done than were asked for."""
    return -(-count // (1000 * parts)) * 1000


def switches(count: int) -> None:
    """A third each: direct switches, turns of two fibers, turns of a thousand."""
    gauge = Gauge("switches", f"{count:,} are asked for", slack=SLACK)
    each = part_of(count, 3 * SAMPLES)
    done = 0
    for _ in range(SAMPLES):
        direct(each)
        run(turns, 2, each)
        run(turns, 1000, each)
        done += 3 * each
        gauge.sample(done)
    gauge.check()


def direct(count: int) -> None:
    main = current()

    def other() -> None:
        switch = main.switch
        while True:
            switch()

    fiber = Fiber(other)
    switch = fiber.switch
    for _ in range(count // 2):
        switch()


def turns(fibers: int, count: int) -> None:
    def member() -> None:
        for _ in range(count // fibers):
            yield_now()

    with TaskGroup() as group:
        for _ in range(fibers):
            group.spawn(member)


def spawns(count: int) -> None:
    """Half one by one, half a thousand at a time."""
    gauge = Gauge("spawns", f"{count:,} are asked for", slack=SLACK)
    each = part_of(count, 2 * SAMPLES)
    done = 0
    for _ in range(SAMPLES):
        run(one_by_one, each)
        run(thousands, each)
        done += 2 * each
        gauge.sample(done)
    gauge.check()


def nothing() -> None:
    pass


def one_by_one(count: int) -> None:
    for _ in range(count):
        spawn(nothing).join()


def thousands(count: int) -> None:
    for _ in range(count // 1000):
        fibers = [spawn(nothing) for _ in range(1000)]
        for fiber in fibers:
            fiber.join()
