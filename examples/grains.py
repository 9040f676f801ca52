"""Two grains in a pool on a separate thread: Fibonacci numbers and random ones, in turns.

    python examples/grains.py --policy fair-share

From time to time the random one sleeps until a coin says that it may go on.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Generator
from typing import Any

from pyfiber.grains import (
    READY,
    SLEEPING,
    FairShare,
    Grain,
    GrainPool,
    GrainState,
    Policy,
    Priority,
    RoundRobin,
)

POLICIES: dict[str, Callable[[], Policy]] = {
    "round-robin": RoundRobin,
    "priority": lambda: Priority(lambda grain: 0 if grain.name == "randoms" else 1),
    "fair-share": FairShare,
}


def fibonacci(count: int) -> Generator[Any, Any, int]:
    """The first numbers of the sequence, one in each step."""
    a, b = 0, 1
    for _ in range(count):
        print("Fibonacci", a)
        a, b = b, a + b
        yield READY
    return a


def randoms(count: int, seed: int, other: Grain[Any]) -> Generator[Any, Any, int]:
    """Numbers up to 100.  After each fourth one a coin is tossed whenever something has run."""
    numbers = random.Random(seed)

    def coin() -> GrainState:
        return READY if other.done() or numbers.randrange(2) else SLEEPING

    total = 0
    for step in range(count):
        number = numbers.randrange(100)
        print("Random", number)
        total += number
        yield coin if step % 4 == 3 else READY
    return total


def main() -> None:
    """Queue both, wait for both."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--policy", choices=POLICIES, default="round-robin")
    options = parser.parse_args()
    pool = GrainPool(POLICIES[options.policy]())
    first = pool.queue(fibonacci, options.count)
    second = pool.queue(randoms, options.count, options.seed, first)
    print("### starting the pool")
    pool.start()
    pool.shutdown(wait=True)
    for grain in (first, second):
        print(f"{grain.name}: {grain.result()}")


if __name__ == "__main__":
    main()
