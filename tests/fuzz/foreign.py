"""Functions of C that call back, through ctypes; not for kinds that tell of deadlocks.

Where ctypes is loaded a thread that Python does not know may wake any fiber, so that nothing is a
deadlock.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pyfiber

from .program import Program

SENT = 20


@cache
def callback() -> Any:
    """Who makes a function of C, loaded for those who call it."""
    import ctypes

    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * SENT)


class ForeignActs(Program):
    """What lies on the C stack while a callback runs is what it was before."""

    def play(self) -> None:
        callback()  # no fiber leaves another one in the midst of that import
        super().play()

    def through_c(self, function: Callable[[], Any]) -> None:
        sent = [id(pyfiber.current()) + 8 * n for n in range(SENT)]
        raised: list[BaseException] = []

        def call(*numbers: int) -> int:
            try:
                function()
            except BaseException as error:
                raised.append(error)
            return hash(numbers) >> 1

        got = callback()(call)(*sent)
        if raised:
            raise raised.pop()
        if got != hash(tuple(sent)) >> 1:
            self.found("a function of C got other numbers than were sent")
