"""The life of a pool of grains: who is in it, who waits for what, who leaves.

    python examples/grain_pool.py

The pool has its turns inside of a run, and that goes by a virtual clock: everything happens in the
same order every time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyfiber import sleep
from pyfiber.grains import READY, SLEEPING, Grain, GrainPool, Priority, current_grain
from pyfiber.testing import run

basket: list[str] = []


def cook() -> Generator[Any, Any, None]:
    """Puts something into the basket from time to time."""
    for dish in ("egg", "spam"):
        yield 0.01
        print("cook: here is", dish)
        basket.append(dish)


def guest(name: str) -> Generator[Any, Any, str]:
    """Sleeps until there is something; its predicate is asked when something happened."""
    while not basket:  # another grain may have been faster
        yield lambda: basket
    dish = basket.pop()
    print(f"{name}: thanks for the {dish}")
    return dish


def waiter() -> Generator[Any, Any, None]:
    """Waits to be called, and cleans up when the pool is interrupted."""
    me = current_grain()
    assert me is not None
    try:
        while True:
            print("waiter:", (yield SLEEPING))
    finally:
        print("waiter: good night")


def show(pool: GrainPool, when: str) -> None:
    """A pool can be looked at while it runs."""
    print(f"[{when}]", *(f"{grain.name} {grain.last_known_state!r}" for grain in pool))


def day() -> None:
    """Opens, has guests, closes."""
    policy = Priority()
    pool = GrainPool(policy, name="restaurant")
    guests = [pool.queue(guest, name, name=name) for name in ("ann", "bob", "cem")]
    policy.set(guests[1], -1)  # the lowest number is served first
    waits = pool.queue(waiter)
    pool.queue(cook())  # a generator; its name is that of the function
    pool.queue([READY, 0.005, READY], name="clock")  # an iterable
    show(pool, "before")
    pool.start()
    sleep(0.015)
    show(pool, "in the middle")
    waits.unpark("table three, please")
    guests[0].join()
    pool.dequeue(guests[2])  # goes home hungry; could be queued again
    show(pool, "late")
    pool.interrupt("closing time")
    pool.shutdown()
    for grain in [*guests, waits]:
        print(grain.name, grain.state, grain.outcome)


def failing() -> None:
    """An exception ends its grain, or the whole pool, as the pool's argument says."""

    def breaks() -> Generator[Any, Any, None]:
        yield READY
        raise OSError("broken")

    def patient() -> Generator[Any, Any, str]:
        yield 0.01
        return "done"

    for on_error in ("grain", "pool"):
        pool = GrainPool(on_error=on_error).start()  # type: ignore[arg-type]
        other: Grain[str] = pool.queue(patient)
        bad = pool.queue(breaks)
        try:
            pool.shutdown()
        except OSError as exc:
            print("shutdown raised:", exc)
        print(f"on_error={on_error!r}:", bad.outcome, other.outcome)


def main() -> None:
    """Both."""
    run(day, clock=0.0)
    run(failing, clock=0.0)


if __name__ == "__main__":
    main()
