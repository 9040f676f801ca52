"""Little programs under explore() and replay(): a failing schedule fails again in the same way."""

from __future__ import annotations

from typing import Any

from pyfiber import testing

from .evil import Boom
from .primitives import PrimitiveActs


class Kind(PrimitiveActs):
    """One random program is explored; each schedule of it makes its random choices anew."""

    EXPECTED = (
        *(testing.ScheduleFailure, testing.LivelockError, testing.LeftRunningError),
        *(testing.NeverAwaitedError, testing.NondeterminismError, testing.ReplayDivergence),
    )

    def main(self) -> None:
        seed = self.random.randrange(1 << 30)
        fuel = self.fuel
        strategy = self.random.choice(("random", "pct", "dfs", "fifo"))
        options = {"preempt": self.random.random() < 0.5, "unfair": self.random.random() < 0.5}

        def program() -> None:
            self.random.seed(seed)
            self.fuel = min(fuel, 10)
            self.forget()
            self.main_body()()
            if self.random.random() < 0.1:
                raise Boom("the program")

        if self.random.random() < 0.7:  # shrinking what explore() finds takes time
            self.call("testing.run", testing.run, program, seed=seed, threads=True)
            return
        try:
            testing.explore(program, 3, strategy, seed, threads=True, **options)
        except testing.ScheduleFailure as failure:
            self.check_replay(program, failure, options)
        except BaseException as error:
            self.judge("explore", error)
        self.random.seed(seed + 1)
        self.fuel = max(0, fuel - 20)

    def check_replay(self, program: Any, failure: testing.ScheduleFailure, options: Any) -> None:
        """A program whose random choices are the same fails again."""
        cause = failure.__cause__
        if cause is not None:
            self.judge("explored", cause)
        try:
            testing.replay(program, failure.schedule, threads=True, **options)
        except BaseException as error:
            self.judge("replay", error)
