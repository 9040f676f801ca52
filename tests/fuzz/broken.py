"""A target with faults, for the tests of the driver: the seed says which, from 8 on none."""

from __future__ import annotations

import os
import time
from typing import Any

from .evil import Evil
from .program import Program

KEPT: list[Any] = []


class Unraisable:
    def __del__(self) -> None:
        raise LookupError("lost")


class Kind(Program):
    """Calls something three times; the third time goes wrong."""

    ANY_THREAD = False
    FAULTS = (LookupError, SystemError, AssertionError, MemoryError)

    def __init__(self, seed: int, steps: int | None = None, verbose: bool = False) -> None:
        super().__init__(seed, steps, verbose)
        self.seed, self.calls = seed, 0
        self.acts = ["act"]

    def act(self) -> None:
        self.call("call", self.target)

    def target(self) -> None:
        self.calls += 1
        if self.calls != 3 or self.seed > 7:
            return
        if self.seed < len(self.FAULTS):
            raise self.FAULTS[self.seed]("a fault")
        (Unraisable, self.leak, self.crash, self.hang)[self.seed - 4]()

    def leak(self) -> None:
        KEPT.append(Evil())

    def crash(self) -> None:
        os.abort()

    def hang(self) -> None:
        while True:
            time.sleep(1)
