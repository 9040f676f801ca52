"""Whether doing something over and over leaves anything behind."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable

TRIES = 6
#: With PYTHONMALLOC=malloc nothing is counted, and nothing is found to grow.
BLOCKS_ARE_COUNTED = sys.getallocatedblocks() > 0


def growth(act: Callable[[], object], rounds: int) -> int:
    """By how many memory blocks the process grows with ``rounds`` of act(): the best of some tries.

    A leak shows in every try. What else allocates does not: the interpreter fills its free lists
    and caches by the first rounds, anew after each collection, and the test runner's own threads
    allocate at times of theirs.
    """
    least = sys.maxsize
    for _ in range(TRIES):
        gc.collect()
        before = sys.getallocatedblocks()
        for _ in range(rounds):
            act()
        gc.collect()
        least = min(least, sys.getallocatedblocks() - before)
        if least < rounds // 10:
            break
    return least


def grows(act: Callable[[], object], rounds: int) -> bool:
    """Whether act() leaves a memory block behind in at least every second of ``rounds`` rounds."""
    return growth(act, rounds) >= rounds // 2


def bytes_left(act: Callable[[], object], rounds: int, few: int) -> int:
    """The same in bytes, of all that Python allocates: also of what is no object, such as locks.

    The interpreter's caches keep more of what was made then, such as the names of attributes.
    Fewer than ``few`` are no leak.
    """
    least = sys.maxsize
    tracemalloc.start()
    try:
        for _ in range(TRIES):
            gc.collect()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(rounds):
                act()
            gc.collect()
            least = min(least, tracemalloc.get_traced_memory()[0] - before)
            if least < few:
                break
    finally:
        tracemalloc.stop()
    return least
