"""What greenlet keeps in its extension module and its own tests look at there."""

from __future__ import annotations

import threading

from pyfiber import _engine
from pyfiber.greenlet import (
    _C_API,
    CLOCKS_PER_SEC,
    GREENLET_USE_CONTEXT_VARS,
    GREENLET_USE_GC,
    GREENLET_USE_TRACING,
    GreenletExit,
    enable_optional_cleanup,
    error,
    get_clocks_used_doing_optional_cleanup,
    getcurrent,
    gettrace,
    greenlet,
    settrace,
)

__all__ = [
    "CLOCKS_PER_SEC",
    "GREENLET_USE_CONTEXT_VARS",
    "GREENLET_USE_GC",
    "GREENLET_USE_TRACING",
    "GreenletExit",
    "_C_API",
    "enable_optional_cleanup",
    "error",
    "get_clocks_used_doing_optional_cleanup",
    "get_pending_cleanup_count",
    "get_total_main_greenlets",
    "getcurrent",
    "gettrace",
    "greenlet",
    "set_thread_local",
    "settrace",
]

get_total_main_greenlets = _engine._greenlet_api()["_main_greenlets"]

_local = threading.local()


def get_pending_cleanup_count() -> int:
    """Zero: a thread's greenlets are cleared away as it ends."""
    return 0


def set_thread_local(key: str, value: object) -> None:
    """Keep an object for as long as the thread lives."""
    setattr(_local, key, value)
