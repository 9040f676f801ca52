"""Import time: the statement alone, in an interpreter that has imported nothing else."""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from ..model import MILLISECONDS, Case, Row, Sample

PROGRAM = """
from time import perf_counter_ns
start = perf_counter_ns()
import {module}
print(perf_counter_ns() - start)
"""

NANOSECONDS_IN_MILLISECOND = 1e6


def import_time(module: str, _count: int) -> Sample:
    """Import a module in a fresh interpreter."""
    program = PROGRAM.format(module=module)
    finished = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    return Sample(int(finished.stdout) / NANOSECONDS_IN_MILLISECOND, 1)


def case(module: str, subject: str = "") -> Case:
    """The case of one module."""
    return Case(subject or module, partial(import_time, module))


ROWS = (
    Row(
        "import",
        "import",
        "The import statement in a fresh interpreter, byte code already compiled.",
        (
            case("pyfiber"),
            case("greenlet"),
            case("gevent"),
            case("asyncio"),
            case("uvloop"),
            case("trio"),
            case("threading", "threads"),
        ),
        count=1,
        quick=1,
        unit=MILLISECONDS,
        budget=None,
        repetitions=10,
    ),
)
