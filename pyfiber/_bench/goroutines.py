"""Go beside everybody else, where its compiler is installed: the programs of bench/go."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from .io.programs import BUILD, ROOT, build_into, is_newer
from .model import Sample, Unavailable

SOURCES = ROOT / "bench" / "go"


def build(name: str) -> Path:
    """The program, built if its source is newer than it is."""
    source, program = SOURCES / f"{name}.go", BUILD / f"{name}_go"
    if shutil.which("go") is None:
        raise Unavailable("go is not installed")
    if not source.exists():
        raise Unavailable(f"needs bench/go/{name}.go: run it in pyfiber's source tree")
    if not is_newer(program, [source]):
        build_into(program, lambda fresh: ["go", "build", "-o", fresh, str(source)])
    return program


def parked(kind: str, count: int) -> Sample:
    """So many goroutines that wait, in a process of their own."""
    done = subprocess.run(
        [str(build("parked")), kind, str(count)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"Go: {done.stderr.strip()}")
    held, park_ns, finish_ns = done.stdout.split()
    times = {"park_ns": float(park_ns), "finish_ns": float(finish_ns)}
    return Sample(float(held), count, times)
