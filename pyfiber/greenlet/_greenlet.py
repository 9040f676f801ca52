"""Names of greenlet's extension module that its own tests use."""

from __future__ import annotations

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
    "_C_API",
    "GreenletExit",
    "enable_optional_cleanup",
    "error",
    "get_clocks_used_doing_optional_cleanup",
    "get_pending_cleanup_count",
    "get_total_main_greenlets",
    "get_tstate_trash_delete_nesting",
    "getcurrent",
    "gettrace",
    "greenlet",
    "set_thread_local",
    "settrace",
]

# All functions of this module are native: a Python function here would keep the module's names
# alive in a cycle until the very end of the process.
_api = _engine._greenlet_api()
get_pending_cleanup_count = _api["get_pending_cleanup_count"]
get_total_main_greenlets = _api["get_total_main_greenlets"]
get_tstate_trash_delete_nesting = _api["get_tstate_trash_delete_nesting"]
set_thread_local = _api["set_thread_local"]
