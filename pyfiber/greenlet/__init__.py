"""greenlet's API on pyfiber's engine: a stand-in for the `greenlet` package.

A program that uses greenlet runs on it unchanged, as do compiled extensions that use its C API::

    python -m pyfiber greenlet prog.py          # without touching the program
    import pyfiber.greenlet; pyfiber.greenlet.install()   # first thing in it

docs/greenlet.md says where it differs.
"""

from __future__ import annotations

from pyfiber import _engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The release of greenlet whose behaviour and C API this is.
__version__ = "3.5.6"

#: As in greenlet: the names that `from greenlet import *` imports.
__all__ = [
    "_C_API",
    "GreenletExit",
    "__version__",
    "error",
    "getcurrent",
    "gettrace",
    "greenlet",
    "settrace",
]

_api = _engine._greenlet_api()
_C_API = _api["_C_API"]
GreenletExit = _api["GreenletExit"]
error = _api["error"]
getcurrent = _api["getcurrent"]
gettrace = _api["gettrace"]
greenlet = _api["greenlet"]
settrace = _api["settrace"]

GREENLET_USE_GC = True
GREENLET_USE_TRACING = True
GREENLET_USE_CONTEXT_VARS = True
CLOCKS_PER_SEC = 1_000_000

_cleanup = True


def enable_optional_cleanup(enabled: object) -> None:
    """Accept the setting, for greenlet's API: there are never lost greenlets to clean up."""
    global _cleanup
    _cleanup = bool(enabled)


def get_clocks_used_doing_optional_cleanup() -> int | None:
    """Return 0, as there is no clean-up; None after `enable_optional_cleanup(False)`."""
    return 0 if _cleanup else None


def install(*, children: bool = False) -> None:
    """Make this the `greenlet` that every later import finds.

    Call it before anything imports greenlet (RuntimeError otherwise).  A second call does nothing.
    With `children`, Python programs that this process starts get it as well, by an entry in
    PYTHONPATH.
    """
    import sys

    _engine._load("pyfiber.greenlet._greenlet")
    from pyfiber.greenlet import _greenlet

    here = sys.modules[__name__]
    there = sys.modules.get("greenlet")
    if there is not None and there is not here:
        raise RuntimeError(
            f"greenlet has been imported already, from {getattr(there, '__file__', None)}: "
            "call pyfiber.greenlet.install() before whatever imports it"
        )
    sys.modules["greenlet"] = here
    sys.modules["greenlet._greenlet"] = _greenlet
    if children:
        _reach_children()


def _reach_children() -> None:
    """Put a folder with a package `greenlet`, which is this module, first in PYTHONPATH."""
    _engine._load("pathlib")
    import os
    from pathlib import Path

    package = Path(__file__).parent
    # The second entry is pyfiber's own directory, in case that is not a site directory.
    entries = [str(package / "children"), str(package.parent.parent)]
    entries += filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(entries))


def __getattr__(name: str) -> Any:
    if name == "_greenlet":
        return _engine._load("pyfiber.greenlet._greenlet")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
