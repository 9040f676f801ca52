"""A progress line on a terminal, redrawn for each measurement; nothing is printed elsewhere."""

from __future__ import annotations

import shutil
from typing import TextIO


class Progress:
    """Counts measurements up to `total` and names the one under way."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total = max(total, 1)
        self.done = 0
        self.stream = stream

    def begin(self, label: str) -> None:
        """Show what is being measured now; an empty label clears the line."""
        if self.stream.isatty():
            width = shutil.get_terminal_size().columns - 1
            line = f"{100 * self.done // self.total:3}%  {label}" if label else ""
            self.stream.write(f"\r{line[:width].ljust(width)}\r")
            self.stream.flush()

    def advance(self, steps: int = 1) -> None:
        """Count measurements that are done, or that will not be made."""
        self.done = min(self.done + steps, self.total)
