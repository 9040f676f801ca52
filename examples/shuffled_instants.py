"""A timeline that jumps from event to event, and what is due at the same instant shuffled.

    python examples/shuffled_instants.py

A day passes in no time, in the same order every time: that is what tests want. But an order that
is always the same hides races, so the second part tries other orders of what happens at the same
instant, until one of them loses an order of the shop; and runs that one again.
"""

from __future__ import annotations

from pyfiber import now, sleep, spawn
from pyfiber.testing import ScheduleFailure, explore, replay, run

HOUR = 3600.0


def timeline() -> list[str]:
    """Three jobs of a day, and when they happened."""
    log: list[str] = []

    def job(name: str, hours: float) -> None:
        sleep(hours * HOUR)
        log.append(f"{now() / HOUR:4.1f} h  {name}")

    jobs = [spawn(job, *what) for what in (("backup", 23), ("open", 8), ("close", 18.5))]
    for each in jobs:
        each.join()
    return log


def shop() -> None:
    """At noon somebody orders the last one, and the shelf is filled up."""
    shelf = {"teapots": 1}

    def order() -> None:
        sleep(12 * HOUR)
        assert shelf["teapots"] > 0, "an order was lost"
        shelf["teapots"] -= 1

    def fill_up() -> None:
        sleep(12 * HOUR)
        shelf["teapots"] = 0  # count from the beginning ...
        sleep(0)
        shelf["teapots"] = 5

    fibers = [spawn(order), spawn(fill_up)]
    for fiber in fibers:
        fiber.result()


def main() -> None:
    """The timeline; the usual order; the others."""
    for line in run(timeline, clock=0.0):
        print(line)
    run(shop, clock=0.0)
    print("the usual order: nothing found")
    try:
        explore(shop, schedules=100, clock=0.0)
    except ScheduleFailure as failure:
        print("another order:", failure.exception)
        try:
            replay(shop, failure.schedule, clock=0.0)
        except ScheduleFailure as again:
            print("the same order again:", again.exception)


if __name__ == "__main__":
    main()
