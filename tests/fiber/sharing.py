"""What the tests of fibers that share stacks need: see test_packing.py."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pyfiber
from pyfiber import Scheduler, spawn, yield_now

needs_packing = pytest.mark.skipif(
    pyfiber.debug.info()["slots_refused"] is not None,
    reason="stacks cannot be packed in this build",
)


def running(main: Callable[[], Any], slots: int = 2) -> Any:
    """main() in a run whose fibers share so few stacks that nearly every switch moves one."""
    with contextlib.closing(Scheduler(slots=slots)) as scheduler:
        return scheduler.run(main)


def in_a_fresh_thread(main: Callable[[], Any]) -> Any:
    """main() on a thread that has no stacks yet: none of those that other tests left."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(main).result()


def counted(name: str) -> int:
    return sum(stats[name] for stats in pyfiber.debug.stack_stats())


def deep(depth: int, wait: Callable[[], Any]) -> Any:
    """wait() under so many calls, each of which checks its own variables afterwards."""
    mine = [depth, str(depth)]
    got = wait() if depth == 0 else deep(depth - 1, wait)
    assert mine == [depth, str(depth)]
    return got


def packs(wait: Callable[[], Any], wake: Callable[[], Any], count: int = 12) -> list[Any]:
    """What `count` fibers got from wait() after wake(), most of them packed meanwhile."""

    def main() -> list[Any]:
        fibers = [spawn(deep, i % 4, wait) for i in range(count)]
        for _ in range(3):
            yield_now()
        assert counted("packed") >= count - 2
        wake()
        return [fiber.result() for fiber in fibers]

    got: list[Any] = running(main)
    return got
