"""What a process uses, and whether that grows."""

from __future__ import annotations

import gc
import sys
import time
from typing import NamedTuple

import psutil

import pyfiber

#: Part of the samples, at the beginning, in which caches and pools fill.
WARM_UP = 0.2
#: Without a GIL what a thread drops may wait for its owner when it is counted: a scheduler has two
#: descriptors.
WAITING = 0 if pyfiber.debug.info()["gil"] else 2


class Grown(AssertionError):
    """Something is larger at the end than it was after the warm-up."""


class Use(NamedTuple):
    """A sample."""

    seconds: float
    done: int
    kibibytes: int  #: of memory that is present
    descriptors: int
    threads: int


class Gauge:
    """Takes samples and prints them; `check()` compares the last ones with the first ones."""

    def __init__(self, what: str, wanted: str, *, slack: int) -> None:
        """slack: KiB that may be more at the end, for what the allocator does."""
        self.what = what
        self.slack = slack
        self.samples: list[Use] = []
        self._process = psutil.Process()
        self._began = time.monotonic()
        print(f"{what}: {wanted}")
        print(f"{'seconds':>9} {'done':>15} {'KiB':>9} {'descriptors':>12} {'threads':>8}")

    def sample(self, done: int) -> None:
        gc.collect()
        use = Use(
            time.monotonic() - self._began,
            done,
            self._process.memory_info().rss // 1024,
            self._process.num_fds() if sys.platform != "win32" else self._process.num_handles(),
            self._process.num_threads(),
        )
        self.samples.append(use)
        print(
            f"{use.seconds:9.0f} {done:15,} {use.kibibytes:9,} {use.descriptors:12,} "
            f"{use.threads:8,}",
            flush=True,
        )

    def check(self) -> None:
        """Medians: one sample may fall into the midst of something."""
        warm = self.samples[int(len(self.samples) * WARM_UP) :]
        part = max(1, len(warm) // 3)
        first, last = warm[:part], warm[-part:]
        for name, slack in (
            ("kibibytes", self.slack),
            ("descriptors", WAITING),
            ("threads", WAITING),
        ):
            before, after = (median([getattr(use, name) for use in uses]) for uses in (first, last))
            if after > before + slack:
                raise Grown(f"{self.what}: {name} grew from {before:,} to {after:,}")
        use = self.samples[-1]
        print(f"{self.what}: {use.done:,} in {use.seconds:,.0f} s, nothing grew", flush=True)


def median(numbers: list[int]) -> int:
    return sorted(numbers)[len(numbers) // 2]
