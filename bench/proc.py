"""What Linux tells about a process under /proc."""

from __future__ import annotations

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
