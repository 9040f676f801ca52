"""``threading.local``: a fiber of a run has attributes of its own, as a thread has."""

from __future__ import annotations

from pyfiber import _engine
from pyfiber._patch._record import Record


def apply(record: Record) -> None:
    _engine._local_patch(True)
    record.on_undo(lambda: _engine._local_patch(False))
    record.notes.append("every threading.local, of subclasses too, made before or later")
