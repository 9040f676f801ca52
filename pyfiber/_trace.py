"""A timeline of fibers, in a file that Perfetto and Chrome's about:tracing show.

The engine records each turn (csrc/python/watch/turns.c); this module writes them as the JSON of
Chrome's trace event format, which Perfetto reads as well.
"""

from __future__ import annotations

import gzip
import json
import os
import struct
from collections.abc import Iterator
from types import TracebackType
from typing import IO, Any, NamedTuple

from pyfiber import _engine
from pyfiber._engine import FiberError

#: Turns that are kept by default; each takes 24 bytes.
LIMIT = 1_000_000

RECORD = struct.Struct("=qIHH")
WHY_BITS = 14
#: How a turn came about; the upper bits of a record's last number.
HOW = ("", "timed out", "cancelled", "")
FIRST = 3


class Turn(NamedTuple):
    """The engine's record of the start of a turn."""

    when: int  #: nanoseconds
    task: int  #: the task's number, from 1; 0: the loop waits or ends
    loop: int  #: the loop's number, from 1
    reason: int  #: the number, from 1, of what the task had waited for; 0: nothing
    how: int  #: an index of HOW
    name: str | type | None  #: the task's name; None: the loop


class Trace:
    """What `trace()` returns: a timeline that is being recorded."""

    def __init__(self, file: str | os.PathLike[str] | IO[str], limit: int) -> None:
        self._file = file
        self._recorder: _engine._Turns | None = _engine._Turns(limit)
        self._recorder.start()

    def stop(self) -> None:
        """End the recording and write the file. Raises FiberError the second time."""
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            raise FiberError("the timeline has been stopped already")
        recorder.stop()
        write(self._file, recorder)

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder is not None:
            self.stop()


def trace(file: str | os.PathLike[str] | IO[str], *, limit: int = LIMIT) -> Trace:
    """Record a timeline of the fibers of all runs of the process, for https://ui.perfetto.dev.

    `stop()` of the returned object, or the end of its `with` block, ends the recording and writes
    `file`: a path (compressed if it ends in ".gz") or an open text file. Each fiber and grain is a
    row that shows when it ran and what it waited for in between; each loop is a row that shows
    which fiber ran, and when none did.

    Only the last `limit` turns are kept, in 24 bytes each, with the names of their fibers: so a
    recording may be on for as long as you like (a flight recorder). While it is on, a switch takes
    some 60 ns more; nothing is paid while it is off. The time from a fiber's wake-up to its turn
    counts as waiting.

    Raises FiberError while another timeline is recorded, ValueError unless `limit` is positive, and
    TypeError if `file` is neither a path nor has `write`. Runs under `pyfiber.testing` are not
    recorded: they have their own trace.
    """
    if not isinstance(file, (str, os.PathLike)) and not hasattr(file, "write"):
        raise TypeError(f"file must be a path or an open text file, not {type(file).__name__!r}")
    if limit <= 0:
        raise ValueError(f"limit must be positive, not {limit}")
    return Trace(file, limit)


def write(file: str | os.PathLike[str] | IO[str], recorder: _engine._Turns) -> None:
    if not isinstance(file, (str, os.PathLike)):
        write_to(file, recorder)
    elif os.fspath(file).endswith(".gz"):
        with gzip.open(file, "wt", encoding="utf-8") as packed:
            write_to(packed, recorder)
    else:
        with open(file, "w", encoding="utf-8") as plain:
            write_to(plain, recorder)


def write_to(file: Any, recorder: _engine._Turns) -> None:
    """Write one event in a line, so that a file of millions is never in memory as a whole."""
    records, names, reasons, threads, lost = recorder.timeline()
    before = '{"displayTimeUnit": "ns", "traceEvents": ['
    for event in events(records, names, reasons, threads):
        file.write(before + "\n")
        file.write(json.dumps(event))  # in ASCII: the file may have any encoding
        before = ","
    other = {"pid": os.getpid(), "turns lost": lost}
    file.write(f'{before if before != "," else ""}\n], "otherData": {json.dumps(other)}}}\n')


def turns_of(records: bytes, names: list[str | type | None]) -> Iterator[Turn]:
    for (when, task, loop, why), name in zip(RECORD.iter_unpack(records), names, strict=True):
        yield Turn(when, task, loop, why & ((1 << WHY_BITS) - 1), why >> WHY_BITS, name)


def name_of(thing: str | type | None) -> str:
    """The text of a name. The engine passes a type where only running code could give a name."""
    if thing is None:
        return "the loop"
    name = thing if isinstance(thing, str) else thing.__name__
    # A name may come from a file's, which may be any bytes: escape its surrogates.
    return name.encode("utf-8", "backslashreplace").decode()


def events(
    records: bytes,
    names: list[str | type | None],
    reasons: list[str | type],
    threads: list[int],
) -> Iterator[dict[str, Any]]:
    """Chrome's trace events, with a process for each loop; thread 0 of it is the loop itself."""
    shown: set[tuple[int, int]] = set()
    running: dict[int, Turn] = {}  # by loop
    left: dict[int, int] = {}  # by task: when its last turn ended

    def row(loop: int, task: int, thing: str | type | None) -> Iterator[dict[str, Any]]:
        if (loop, task) in shown:
            return
        shown.add((loop, task))
        if task == 0:
            title = f"loop of thread {threads[loop - 1]}" if loop else "loops"
            yield {"ph": "M", "name": "process_name", "pid": loop, "args": {"name": title}}
        args = {"name": name_of(thing)}
        yield {"ph": "M", "name": "thread_name", "pid": loop, "tid": task, "args": args}
        order = {"sort_index": task}
        yield {"ph": "M", "name": "thread_sort_index", "pid": loop, "tid": task, "args": order}

    for turn in turns_of(records, names):
        yield from row(turn.loop, 0, None)
        last = running.pop(turn.loop, None)
        if last is not None:
            left[last.task] = turn.when
            name = name_of(last.name)
            yield span(last.loop, 0, name, last.when, turn.when)
            yield span(last.loop, last.task, "runs", last.when, turn.when)
        if turn.task == 0:
            continue
        running[turn.loop] = turn
        yield from row(turn.loop, turn.task, turn.name)
        began = left.pop(turn.task, None)
        if began is not None and turn.how != FIRST:
            waited = f"waits: {name_of(reasons[turn.reason - 1])}" if turn.reason else "ready"
            event = span(turn.loop, turn.task, waited, began, turn.when)
            if HOW[turn.how]:
                event["args"] = {"end": HOW[turn.how]}
            yield event


def span(loop: int, task: int, name: str, begin: int, end: int) -> dict[str, Any]:
    """An event from ``begin`` to ``end``, in nanoseconds. Chrome counts in microseconds."""
    return {
        "ph": "X",
        "name": name,
        "pid": loop,
        "tid": task,
        "ts": begin / 1000,
        "dur": (end - begin) / 1000,
    }
