"""The part ``time``: ``time.sleep()``."""

from __future__ import annotations

import time
from typing import Any

from pyfiber import _engine
from pyfiber._patch._record import Record

#: Seconds. A longer sleep is left to the standard function, which refuses it or takes centuries.
_LONGEST = 9e9


def sleep(seconds: Any, /) -> None:
    """``time.sleep()`` in a fiber, for arguments that are neither int nor float or are refused."""
    if not isinstance(seconds, (int, float)) and hasattr(type(seconds), "__index__"):
        seconds = seconds.__index__()
    if isinstance(seconds, (int, float)) and 0 <= seconds < _LONGEST:
        _engine.sleep(seconds)
    else:
        _engine._outside(time.sleep)(seconds)  # also to raise its error


_sleep = _engine._sleep_or(sleep)


def apply(record: Record) -> None:
    """Apply this part; the record undoes it."""
    record.function(time, "sleep", _sleep)
    record.when_imported("sched", lambda module: record.defaults(module.scheduler.__init__))
