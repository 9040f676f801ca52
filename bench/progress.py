"""A progress bar: on a terminal one line that is drawn over and over, elsewhere nothing."""

from __future__ import annotations

import shutil
from types import TracebackType
from typing import TextIO

BAR_WIDTH = 24


class Progress:
    """Counts measurements up to `total` and names the one under way."""

    def __init__(self, total: int, stream: TextIO) -> None:
        self.total = max(total, 1)
        self.done = 0
        self.stream = stream
        self.shown = stream.isatty()

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._draw("")

    def begin(self, label: str) -> None:
        """Say what is being measured now."""
        self._draw(self.line(label))

    def advance(self, steps: int = 1) -> None:
        """So many measurements are done, or will not be made."""
        self.done = min(self.done + steps, self.total)

    def line(self, label: str) -> str:
        """The line as it stands."""
        filled = BAR_WIDTH * self.done // self.total
        bar = "#" * filled + "." * (BAR_WIDTH - filled)
        return f"[{bar}] {100 * self.done // self.total:3}%  {label}"

    def _draw(self, line: str) -> None:
        if self.shown:
            width = shutil.get_terminal_size().columns - 1
            self.stream.write(f"\r{line[:width].ljust(width)}\r")
            self.stream.flush()
