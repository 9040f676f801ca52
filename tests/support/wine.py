"""Is this Wine?  It does some things as Windows does not."""

from __future__ import annotations

import ctypes
import sys


def is_wine() -> bool:
    return sys.platform == "win32" and hasattr(ctypes.windll.ntdll, "wine_get_version")
