"""Processor time by fiber, which csrc/python/watch/turns.c measures."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import NamedTuple, TextIO

from pyfiber import _engine, _words
from pyfiber._engine import FiberError


class ProfileRow(NamedTuple):
    """What a Profiler has measured for all fibers and grains of one name. Times are in seconds."""

    name: str
    turns: int  #: how often one of them ran
    cpu: float  #: time that the processor spent on them
    real: float  #: time in which they kept the loop from running others
    longest: float  #: `real` time of the longest turn


class Profiler:
    """Measures how long the fibers of all runs of the process keep the processor and their loop.

    A fiber is charged for its turns alone, never for a wait: `cpu` is what the processor spent on
    its thread meanwhile, `real` the time that passed. Where `real` is much larger, the fiber has
    made a blocking call, or its thread waited for the GIL. What a raw fiber, a greenlet or a
    generator's body does in a turn counts for the fiber whose turn it is.

    Fibers and grains of the same name share one row, which stays after their end. So for a profiler
    that is on for long, name fibers by what they do, and do not give each its own name. Use the
    profiler as a context manager, or call `start()` and `stop()`; started again, it adds to the
    earlier times. While it is on, a switch takes some 500 ns more (two readings of the thread's
    clock); nothing is paid while it is off. On Windows that clock has ticks of 15.6 ms.

    Raises FiberError while another Profiler is on. Runs under `pyfiber.testing` are not measured.
    """

    def __init__(self) -> None:
        self._recorder = _engine._Turns(0)

    def start(self) -> None:
        """Start measuring."""
        self._recorder.start()

    def stop(self) -> None:
        """Stop measuring. Raises FiberError unless the profiler is on."""
        if not self._recorder.stop():
            raise FiberError("the profiler has not been started")

    def __enter__(self) -> Profiler:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recorder.stop()

    def rows(self) -> list[ProfileRow]:
        """Return what has been measured so far, the most expensive name first."""
        rows = (
            ProfileRow(name, turns, cpu / 1e9, real / 1e9, longest / 1e9)
            for name, turns, cpu, real, longest in self._recorder.profile()
        )
        return sorted(rows, key=lambda row: (-row.cpu, row.name))

    def print(self, file: TextIO | None = None, *, limit: int | None = 20) -> None:
        """Write a table of the first `limit` rows to `file`, sys.stderr unless given."""
        rows = self.rows()
        lines = [f"{'cpu ms':>10} {'real ms':>10} {'longest ms':>10} {'turns':>10}  name"]
        lines += [
            f"{row.cpu * 1e3:10.3f} {row.real * 1e3:10.3f} {row.longest * 1e3:10.3f} "
            f"{row.turns:10,}  {_words.clean(row.name)}"
            for row in rows[:limit]
        ]
        if limit is not None and len(rows) > limit:
            lines.append(f"... and {len(rows) - limit:,} more")
        print("\n".join(lines), file=sys.stderr if file is None else file)
