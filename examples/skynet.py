"""Skynet: a tree of fibers, ten children to each, whose leaves add up their numbers.

    python examples/skynet.py
    python examples/skynet.py --leaves 1000000

Every node is a fiber, which spawns its children and waits for what they return.
"""

from __future__ import annotations

import argparse
from time import perf_counter

import pyfiber


def skynet(number: int, leaves: int, children: int) -> int:
    """Add up the numbers of the leaves from `number` on."""
    if leaves == 1:
        return number
    share = leaves // children
    fibers = [
        pyfiber.spawn(skynet, number + child * share, share, children) for child in range(children)
    ]
    return sum(fiber.result() for fiber in fibers)


def is_power(number: int, base: int) -> bool:
    """Whether a number of leaves fills a tree with that many children to a node."""
    while number > 1 and number % base == 0:
        number //= base
    return number == 1


def main() -> None:
    """Grow the tree, and tell how long it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--leaves", type=int, default=100_000, help="a power of --children")
    parser.add_argument("--children", type=int, default=10, help="children of every node")
    options = parser.parse_args()
    if options.children < 2 or not is_power(options.leaves, options.children):
        parser.error("--leaves must be a power of --children, and --children at least 2")
    start = perf_counter()
    total = pyfiber.run(skynet, 0, options.leaves, options.children)
    seconds = perf_counter() - start
    assert total == options.leaves * (options.leaves - 1) // 2
    print(f"sum {total:,} of {options.leaves:,} leaves in {seconds:.3f} s, ", end="")
    print(f"{seconds / options.leaves * 1e9:,.0f} ns for each leaf")


if __name__ == "__main__":
    main()
