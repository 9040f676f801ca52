"""A gallery of classic races, each broken and fixed.

`python tests/testing/races.py` prints who finds them when.

In the usual order the broken ones pass: it takes another schedule to see it.
Each is a function `race(fixed)` for `explore()` to run under many schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from pyfiber import Condition, Fiber, Lock, spawn, yield_now
from pyfiber.testing import ScheduleFailure, explore


def pause(times: int) -> None:
    """Something that takes a while: that many switches."""
    for _ in range(times):
        yield_now()


def join_all(*fibers: Fiber[Any]) -> None:
    """Wait for all; the first failure is raised."""
    for fiber in fibers:
        fiber.result()


# --------------------------------------------------------------------- the races


def lost_update(fixed: bool) -> None:
    """Two read, two write: one increment is lost."""
    total = 0
    lock = Lock()

    def add(late: int) -> None:
        nonlocal total
        pause(late)
        with lock if fixed else nullcontext():
            before = total
            pause(1)  # asks a server, say
            total = before + 1

    join_all(*[spawn(add, late) for late in (0, 3, 6)])
    assert total == 3, f"{total} of 3 updates"


def check_then_act(fixed: bool) -> None:
    """There is a seat left, when one looks; not any more, when one takes it."""
    seats = 2
    lock = Lock()

    def customer(late: int) -> None:
        nonlocal seats
        pause(late)
        with lock if fixed else nullcontext():
            if seats > 0:
                pause(1)  # the payment
                seats -= 1

    join_all(*[spawn(customer, late) for late in (0, 2, 4, 6)])
    assert seats == 0, f"{seats} seats left"


def aba_free_list(fixed: bool) -> None:
    """Compare-and-swap sees the same node again and takes it for the same list."""
    links: dict[str, str | None] = {"a": "b", "b": "c", "c": None}
    head: str | None = "a"
    version = 0  # fixed: counted up by every change
    taken: list[str] = []

    def swap(old: str | None, new: str | None, seen: int) -> bool:
        nonlocal head, version
        if head != old or (fixed and version != seen):
            return False
        head = new
        version += 1
        return True

    def pop(late: int) -> str:
        while True:
            old, seen = head, version
            assert old is not None
            new = links[old]
            pause(late)  # interrupted between the look and the swap
            if swap(old, new, seen):
                return old

    def push(node: str) -> None:
        while True:
            old, seen = head, version
            links[node] = old
            if swap(old, node, seen):
                return

    def one() -> None:
        taken.append(pop(1))

    def two() -> None:
        pause(2)
        first = pop(0)
        taken.append(pop(0))
        pause(1)
        push(first)

    join_all(spawn(one), spawn(two))
    free = []
    node = head
    while node is not None:
        free.append(node)
        node = links[node]
    assert sorted(free + taken) == ["a", "b", "c"], f"free {free}, taken {taken}"


def dining_philosophers(fixed: bool) -> None:
    """Each holds the left fork and waits for the right one."""
    seats = 4
    forks = [Lock() for _ in range(seats)]

    def philosopher(i: int) -> None:
        pause(2 * i)  # they do not come at the same time
        order = (i, (i + 1) % seats)
        left, right = sorted(order) if fixed else order
        with forks[left]:
            pause(1)
            with forks[right]:
                pause(1)

    join_all(*[spawn(philosopher, i) for i in range(seats)])


def condition_queue(fixed: bool) -> None:
    """`if` instead of `while` around wait(): another was quicker to the item."""
    items: list[int] = []
    filled = Condition()
    got: list[int] = []

    def take() -> None:
        with filled:
            if fixed:
                while not items:
                    filled.wait()
            elif not items:
                filled.wait()
            got.append(items.pop(0))

    def late_taker() -> None:
        pause(7)
        take()

    def put() -> None:
        for item in range(2):
            pause(3)
            with filled:
                items.append(item)
                filled.notify()

    join_all(spawn(take), spawn(put), spawn(late_taker))
    assert sorted(got) == [0, 1]


def cache_stampede(fixed: bool) -> None:
    """Nobody has the value yet, so everybody computes it."""
    cache: dict[str, int] = {}
    computed = 0
    lock = Lock()

    def compute() -> int:
        nonlocal computed
        computed += 1
        pause(2)
        return 42

    def get(late: int) -> None:
        pause(late)
        if "key" in cache:
            return
        if fixed:
            with lock:
                if "key" not in cache:
                    cache["key"] = compute()
        else:
            cache["key"] = compute()

    join_all(*[spawn(get, late) for late in (0, 5, 10)])
    assert computed == 1, f"computed {computed} times"


def bank_transfer(fixed: bool) -> None:
    """Two transfers in opposite directions lock the accounts in opposite orders."""
    balance = {"a": 100, "b": 100}
    locks = {"a": Lock(), "b": Lock()}

    def transfer(source: str, target: str, amount: int, late: int) -> None:
        pause(late)
        first, second = sorted((source, target)) if fixed else (source, target)
        with locks[first]:
            pause(1)
            with locks[second]:
                balance[source] -= amount
                pause(1)
                balance[target] += amount

    join_all(spawn(transfer, "a", "b", 10, 0), spawn(transfer, "b", "a", 20, 4))
    assert balance == {"a": 110, "b": 90}


GALLERY: dict[str, Callable[[bool], None]] = {
    race.__name__: race
    for race in (
        lost_update,
        check_then_act,
        aba_free_list,
        dining_philosophers,
        condition_queue,
        cache_stampede,
        bank_transfer,
    )
}
STRATEGIES = ("random", "pct", "dfs")


def schedules_needed(race: Callable[[bool], None], strategy: Any, seed: int = 0) -> int | None:
    """How many schedules until the broken one fails; None if 1,000 do not."""
    try:
        explore(partial(race, False), 1000, strategy, seed)
    except ScheduleFailure as failure:
        return failure.number
    return None


def median(strategy: Any, race: Callable[[bool], None], seeds: int) -> str:
    """The median over some seeds, as the table shows it."""
    if strategy == "dfs":  # has no seed
        seeds = 1
    needed = sorted(schedules_needed(race, strategy, seed) or 1001 for seed in range(seeds))
    middle = needed[len(needed) // 2]
    return "-" if middle > 1000 else str(middle)


def main() -> None:
    """Print the table of docs/exploring.md."""
    print("| race | " + " | ".join(STRATEGIES) + " |")
    print("|---|" + "---:|" * len(STRATEGIES))
    for name, race in GALLERY.items():
        print(f"| {name} | " + " | ".join(median(s, race, 25) for s in STRATEGIES) + " |")


if __name__ == "__main__":
    main()
