"""Races, timeouts and work in parallel: what is cancelled with what.

    python examples/cancellation_trees.py

Each work tells when it begins and how it ends. Cancelling a whole cancels its parts, cancelling
the loser of a race does not touch the race, and a failure cancels those beside it.
"""

from __future__ import annotations

from collections.abc import Callable

from pyfiber import sleep, spawn
from pyfiber.compose import Work, blocking, call, delay, fail, parallel, perform, race, succeed


def part(name: str, seconds: float) -> Work[str]:
    """Takes so long."""
    return delay(seconds, name).traced(f"  {name}")


def recovered(exc: TimeoutError) -> Work[str]:
    """In place of what was too late."""
    return succeed(f"gave up: {exc}")


def a_race() -> Work[str]:
    """The slow one is cancelled."""
    return race(part("hare", 0.01), part("tortoise", 10))


def a_timeout() -> Work[str]:
    """A race with a delay."""
    return part("sloth", 10).timeout(0.02).catch(recovered, TimeoutError)


def a_failure() -> Work[object]:
    """Cancels those beside it."""
    broken = delay(0.01).combine(fail(RuntimeError("broken")))
    return parallel(part("left", 10), broken, part("right", 10)).catch(
        lambda exc: succeed(f"failed: {exc}")
    )


def a_tree() -> Work[object]:
    """Cancelled from outside: every part, however deep."""
    tree = parallel(race(part("a", 10), part("b", 10)), part("c", 10).timeout(20))

    def cancel_soon() -> str:
        fiber = spawn(perform, tree)
        sleep(0.01)
        fiber.cancel("the user went away")
        fiber.join()
        return str(fiber.outcome)

    return call(cancel_soon)


SCENES: list[Callable[[], Work[object]]] = [a_race, a_timeout, a_failure, a_tree]


def main() -> None:
    """Plays all scenes, one after the other."""
    for scene in SCENES:
        print(scene.__name__.replace("_", " "))
        print("  ->", blocking(scene()))


if __name__ == "__main__":
    main()
