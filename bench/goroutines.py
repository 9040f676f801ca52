"""Go beside everybody else, where its compiler is installed."""

from __future__ import annotations

import subprocess

from .io.programs import GOROUTINES, build
from .model import Sample


def parked(kind: str, count: int) -> Sample:
    """So many goroutines that wait, in a process of their own."""
    done = subprocess.run(
        [str(build(GOROUTINES)), kind, str(count)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Go: {done.stderr.strip()}")
    held, park_ns, finish_ns = done.stdout.split()
    times = {"park_ns": float(park_ns), "finish_ns": float(finish_ns)}
    return Sample(float(held), count, times)
