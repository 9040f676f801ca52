"""Curves: a switch by depth, a yield and memory by number of fibers; first and later waves.

docs/performance.md has plots of them. The curves of servers are in `bench io`.
"""

from __future__ import annotations

from ..model import BYTES, CURVES, Row
from . import memory, switching, waves, yielding

DEPTHS = (1, 10, 30, 100, 200, 400)
NUMBERS = (1, 10, 100, 1_000, 10_000, 100_000)
PARKED = (100, 1_000, 10_000, 100_000)
WAVE = 10_000
#: How many waves run before the one that is warm.
EARLIER_WAVES = 3


def wave_row(name: str, title: str, description: str, earlier: int) -> Row:
    """The row of one kind of waves; each measurement has a new process."""
    return Row(
        name,
        title,
        f"{WAVE:,} fibers are started, each yields once, all are waited for; {description}.",
        waves.cases(earlier),
        count=WAVE,
        quick=WAVE,
        budget=None,
        fresh=True,
        repetitions=5,
        family=CURVES,
        show_median=True,
    )


# Curves -----------------------------------------------------------------------------------------


def depth_row(depth: int) -> Row:
    """A point of the curve of switches."""
    return Row(
        f"curve-depth-{depth}",
        f"one switch, Python frames: {depth:,}",
        f"Two fibers switch to each other, both below so many nested Python calls: {depth:,}.",
        switching.deep_cases(depth),
        count=500_000,
        quick=20_000,
        repetitions=20,
        budget=0.05,
        family=CURVES,
        show_median=True,
    )


def yield_row(fibers: int) -> Row:
    """A point of the curve of yields."""
    return Row(
        f"curve-yield-{fibers}",
        f"yield among {fibers:,}",
        f"{fibers:,} fibers, all settled, take turns through the scheduler; the time of one yield.",
        yielding.cases(fibers),
        count=500_000,
        quick=20_000,
        repetitions=10 if fibers <= WAVE else 3,  # starting takes longer than measuring
        budget=0.05,
        family=CURVES,
        show_median=True,
    )


def memory_row(count: int) -> Row:
    """A point of the curve of memory."""
    return Row(
        f"curve-memory-{count}",
        f"memory of one among {count:,} parked",
        f"{count:,} fibers are made and parked (threads: 1,000 at most); what the process gained, "
        "page tables included, for each.",
        memory.CASES,
        count=count,
        quick=count,
        unit=BYTES,
        budget=None,
        fresh=True,
        repetitions=2,
        family=CURVES,
        show_median=True,
    )


ROWS = (
    *map(depth_row, DEPTHS),
    *map(yield_row, NUMBERS),
    *map(memory_row, PARKED),
    wave_row("wave-first", "first wave of 10,000", "the first wave of a process", 0),
    wave_row(
        "wave-warm",
        "warm wave of 10,000",
        f"after {EARLIER_WAVES} others in the same run",
        EARLIER_WAVES,
    ),
)
