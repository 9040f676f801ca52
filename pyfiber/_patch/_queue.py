"""The part ``queue``: ``queue.SimpleQueue`` in C. The other queues use the locks of threading."""

from __future__ import annotations

import queue
import time

from pyfiber import _engine
from pyfiber._patch._record import Record, gate_for


def apply(record: Record) -> None:
    record.replace(queue, "time", gate_for(time.monotonic, _engine.now))
    if queue.SimpleQueue.__module__ != "_queue":
        return
    _engine._patch_methods("SimpleQueue", True)
    record.on_undo(lambda: _engine._patch_methods("SimpleQueue", False))
    record.notes.append("every SimpleQueue, made before or later")
