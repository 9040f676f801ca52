"""Random numbers that are the same in each run: `random`, `secrets`, `uuid4()`, `os.urandom()`.

Each run begins with the same state of the global generator, and the system's random numbers come
from a generator that each run makes afresh.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import MethodType
from typing import Any

from pyfiber._native import get_ident
from pyfiber.testing.guards import Change, Shared

SEED = 0
_urandom = os.urandom


class Seeds:
    """The random numbers of the runs of one thread."""

    def __init__(self) -> None:
        self.active = False
        self.system: random.Random | None = None

    def begin(self) -> None:
        """A run begins."""
        random.seed(SEED)
        self.system = None
        self.active = True

    def end(self) -> None:
        self.active = False

    def bytes(self, count: int) -> bytes:
        if self.system is None:
            self.system = random.Random(SEED)
        return self.system.randbytes(count)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Make the runs of this thread use them, and put the global generator's state back."""
        thread = get_ident()
        before = SEEDS.get(thread)
        state = random.getstate()
        with CHANGES:
            SEEDS[thread] = self
            try:
                yield
            finally:
                random.setstate(state)
                if before is None:
                    del SEEDS[thread]
                else:
                    SEEDS[thread] = before


SEEDS: dict[int, Seeds] = {}  # by thread


def seeds_here() -> Seeds | None:
    """The random numbers of the run on this thread, or None."""
    found = SEEDS.get(get_ident())
    return found if found is not None and found.active else None


@wraps(_urandom)
def urandom(size: int, /) -> bytes:
    seeds = seeds_here()
    if seeds is None or not isinstance(size, int) or size < 0:
        return _urandom(size)
    return seeds.bytes(size)


def seeded(real: Callable[..., None]) -> Callable[..., None]:
    """A replacement for Random.seed() by which generators without a seed get one."""

    @wraps(real)
    def seed(self: random.Random, a: Any = None, *args: Any, **kwargs: Any) -> None:
        seeds = seeds_here()
        if a is None and seeds is not None:
            a = int.from_bytes(seeds.bytes(8), "big")
        real(self, a, *args, **kwargs)

    return seed


def changes() -> Iterator[Change]:
    """The replacements."""
    yield os, "urandom", urandom
    yield random, "_urandom", urandom
    seed = seeded(random.Random.seed)
    yield random.Random, "seed", seed
    yield random, "seed", MethodType(seed, random.random.__self__)  # type: ignore[attr-defined]


CHANGES = Shared(changes)
