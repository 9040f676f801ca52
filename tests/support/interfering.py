"""A trace function that does something at each event in turn, for code that must stand that."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import NoReturn


class Stop(Exception):
    """What `stop` raises."""


def stop() -> NoReturn:
    raise Stop


class Interfering:
    """It acts at the nth event in the code of some modules, on this thread and on new ones."""

    def __init__(self, nth: int, act: Callable[[], object], *modules: str) -> None:
        self.left = nth
        self.act = act
        self.modules = modules

    def __call__(self, frame: FrameType, event: str, arg: object) -> Interfering | None:
        if frame.f_globals["__name__"] not in self.modules:
            return None
        self.left -= 1
        if self.left == 0:
            self.act()
        return self

    def play(self, main: Callable[[], object]) -> bool:
        """Call main under it; true if it did anything."""
        before, before_in_new = sys.gettrace(), threading.gettrace()
        threading.settrace(self)
        sys.settrace(self)
        try:
            main()
        finally:
            sys.settrace(before)
            threading.settrace(before_in_new)
        return self.left <= 0
