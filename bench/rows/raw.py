"""Switches below Python: the time that the engine's C code and the processor need.

Both loops are in bench/c/raw_switch.c. `pyfiber` goes through the engine's one context-switch
function; `bare assembly` calls the assembly routine alone; nothing can be faster.
"""

from __future__ import annotations

import subprocess
from functools import partial

from ..io.programs import SWITCH, build
from ..model import Case, Row, Sample, Unavailable

RING = 16


def switches(subject: str, ring: int, count: int) -> Sample:
    """Let a subject of the C program do so many switches."""
    command = [str(build(SWITCH)), subject, str(ring), str(count)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(done.stderr.strip())
    return Sample(float(done.stdout) * count, count)


def cases(ring: int) -> tuple[Case, ...]:
    """The cases of the engine and of bare assembly."""
    return tuple(
        Case(subject, partial(switches, subject, ring)) for subject in ("pyfiber", "bare assembly")
    )


ROWS = (
    Row(
        "raw-switch",
        "one context switch in C, ping-pong",
        "Two C contexts switch to each other in a C loop, no Python involved; half a round trip.",
        cases(2),
        count=20_000_000,
        quick=1_000_000,
    ),
    Row(
        "raw-ring",
        f"one context switch in C, ring of {RING}",
        f"{RING} C contexts switch each to the next in a C loop; the time of one switch.",
        cases(RING),
        count=20_000_000,
        quick=1_000_000,
    ),
)
