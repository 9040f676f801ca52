"""``time.sleep``."""

from __future__ import annotations

import time
from typing import Any

from pyfiber import _engine
from pyfiber._patch._record import Record

#: Seconds; more than this the standard one refuses, or it is centuries.
_LONGEST = 9e9


def sleep(seconds: Any, /) -> None:
    """In a fiber."""
    if not isinstance(seconds, (int, float)) and hasattr(type(seconds), "__index__"):
        seconds = seconds.__index__()
    if isinstance(seconds, (int, float)) and 0 <= seconds < _LONGEST:
        _engine.sleep(seconds)
    else:
        _engine._outside(time.sleep)(seconds)  # which raises its own error


def apply(record: Record) -> None:
    """See Record."""
    record.function(time, "sleep", sleep)
