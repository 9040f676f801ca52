"""The part ``local``: in a ``threading.local`` each fiber of a run has its own attributes."""

from __future__ import annotations

from pyfiber import _engine
from pyfiber._patch._record import Record


def apply(record: Record) -> None:
    _engine._local_patch(True)
    record.on_undo(lambda: _engine._local_patch(False))
    record.notes.append("every threading.local, of subclasses too, made before or later")
