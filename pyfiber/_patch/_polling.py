"""Waits for what the system notifies nobody of: a fiber looks again and again, and sleeps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from pyfiber._engine import now, sleep

R = TypeVar("R")

#: Seconds between two looks: the first pause and the longest.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.001, 0.02


def look_until(look: Callable[[], R], timeout: float | None) -> R:
    """Call ``look`` until its answer is true or so many seconds are over; return the answer."""
    end = math.inf if timeout is None else now() + timeout
    pause = _FIRST_PAUSE
    while not (found := look()) and (left := end - now()) > 0:
        sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
    return found
