"""Reads what Linux reports about a process under /proc."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .model import Unavailable


def kilobytes(file: str, *names: str) -> int:
    """The sum of some lines of a file under /proc that counts in kB."""
    try:
        lines = Path(file).read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        raise Unavailable(f"needs {file}, which only Linux has") from None
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(values[name].split()[0]) for name in names)


def memory_of(process: int | str = "self") -> int:
    """Bytes of memory that a process holds now, page tables included."""
    return 1024 * kilobytes(f"/proc/{process}/status", "VmRSS", "VmPTE")


def private_memory(process: int) -> int:
    """Bytes that a process does not share with others."""
    told = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii")
    return 1024 * sum(map(int, re.findall(r"Private_\w+: +(\d+) kB", told)))


def processor_time(process: int) -> float:
    """Seconds that a process has spent on processors, user and system."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
