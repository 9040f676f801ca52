"""Tries schedules until one fails: what explore() does with its strategies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from pyfiber.testing import report
from pyfiber.testing.found import Found, differs, failure
from pyfiber.testing.runner import (
    PCT,
    RANDOM,
    UNBOUND,
    Attempt,
    Program,
    Runner,
    check_count,
    check_seed,
    mix,
)
from pyfiber.testing.schedule import Schedule

__tracebackhide__ = True  # pytest's

STRATEGIES = ("fifo", "random", "pct", "dfs", "mix")
MIXED = ("dfs", "random", "pct")
MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Exploration:
    """What `explore()` did when nothing failed.

    ``schedules`` is how many were run; ``complete`` says whether there are no others (only
    depth-first search can know); ``distinct`` is how many runs differed; ``steps`` and ``choices``
    are the maximum of any run.
    """

    schedules: int
    complete: bool
    distinct: int
    steps: int
    choices: int


@dataclass(frozen=True, slots=True)
class How:
    """Which schedules are tried."""

    schedules: int
    strategy: str
    seed: int
    depth: int
    preemptions: int


def check_depth(depth: object) -> int:
    """Check that the depth is from 1 to 16; TypeError or ValueError otherwise."""
    if check_count(depth, "depth") > MAX_DEPTH:
        raise ValueError(f"depth is at most {MAX_DEPTH}, not {depth}")
    return int(depth)  # type: ignore[call-overload,no-any-return]


def check_preemptions(number: object) -> int:
    """Check that the number is from 0 to 15; TypeError or ValueError otherwise."""
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError(f"preemptions is an integer, not {type(number).__name__!r}")
    if not 0 <= number < MAX_DEPTH:
        raise ValueError(f"preemptions is from 0 to {MAX_DEPTH - 1}, not {number}")
    return number


def how_to(
    program: Program,
    schedules: object,
    strategy: str | None,
    seed: object,
    depth: object,
    preemptions: object,
) -> How:
    """Check the options of a search; TypeError or ValueError otherwise."""
    if strategy is None:
        strategy = "random" if program.switch == "wait" else "mix"
    if strategy not in STRATEGIES:
        raise ValueError(f"no strategy {strategy!r}: there are {', '.join(STRATEGIES)}")
    return How(
        check_count(schedules, "schedules"),
        strategy,
        check_seed(seed),
        check_depth(depth),
        check_preemptions(preemptions),
    )


class Search:
    """Tries schedules of a program until one fails."""

    def __init__(self, runner: Runner, how: How):
        self.runner = runner
        self.how = how
        self.fingerprints: set[int] = set()
        self.choices = 0
        self.number = 0
        self.complete = False
        self.places = self.hot_places = 0

    def attempts(self) -> Iterator[Attempt]:
        """Yield run after run. The first has the usual order and measures the program's length."""
        branches = self.branches()
        if self.how.strategy == "dfs" and self.runner.points is None:
            yield from branches  # which begin with the usual order
            return
        self.runner.configure()
        yield self.runner.run()
        if self.how.strategy == "dfs":
            yield from branches
        elif self.how.strategy == "mix":
            yield from self.mixed(branches)
        elif self.how.strategy != "fifo":
            while True:
                yield self.drawn(self.how.strategy)

    def mixed(self, branches: Iterator[Attempt]) -> Iterator[Attempt]:
        """Take the strategies in turn, until there are no other schedules."""
        while True:
            strategy = MIXED[self.number % len(MIXED)]
            attempt = next(branches, None) if strategy == "dfs" else self.drawn(strategy)
            if attempt is None:
                return
            yield attempt

    def drawn(self, strategy: str) -> Attempt:
        """Run a schedule that is drawn."""
        runner, how, number = self.runner, self.how, self.number + 1
        kind = PCT if strategy == "pct" else RANDOM
        seed = mix(how.seed, number)
        if runner.points is None:
            runner.configure(strategy=kind, seed=seed, depth=1 + number % how.depth)
            return runner.run()
        turn = number // (len(MIXED) if how.strategy == "mix" else 1)
        hot = turn % 2 == 0 and self.hot_places > 0
        directed = hot and turn % 4 == 0 and kind == RANDOM and how.preemptions > 1
        switches = 1 if directed else 1 + turn // 2 % max(1, how.preemptions)
        length = self.hot_places if hot else self.places
        runner.configure(
            strategy=kind,
            seed=seed,
            depth=1 + min(switches, how.preemptions),
            length=length + (runner.explorer.steps if kind == PCT else 0),
            hot=hot,
            directed=directed,
        )
        return runner.run()

    def branches(self) -> Iterator[Attempt]:
        """Go depth first: with no switch at a point, then with one more each time."""
        runner, explorer = self.runner, self.runner.explorer
        bounds = range(self.how.preemptions + 1) if runner.points is not None else [UNBOUND]
        for bound in bounds:
            branch = False
            more = True
            while more:
                runner.configure(bound=bound, branch=branch)
                attempt = runner.run()
                if explorer.divergence() is not None:
                    differs(runner, Schedule([]), None, attempt)
                branch = more = explorer.next_branch()
                yield attempt
        self.complete = True

    def same_twice(self) -> None:
        """Run the first schedule again: it must give the same run."""
        runner = self.runner
        first = runner.schedule()
        runner.configure(script=first.choices)
        attempt = runner.run()
        if attempt.failure is not None or runner.schedule() != first:
            differs(runner, first, None, attempt)

    def run(self) -> Exploration:
        """Run until a failure, which is raised, or until the end."""
        explorer = self.runner.explorer
        for attempt in self.attempts():
            self.number += 1
            if attempt.failure is not None:
                self.fail(attempt.failure)
            self.fingerprints.add(explorer.fingerprint)
            self.choices = max(self.choices, explorer.choice_count)
            self.places, self.hot_places = explorer.places, explorer.hot_places
            if self.number == 1:
                self.same_twice()
            if self.number == self.how.schedules:
                break
        return Exploration(
            self.number, self.complete, len(self.fingerprints), self.runner.longest, self.choices
        )

    def fail(self, exc: BaseException) -> NoReturn:
        """Shrink the failing schedule, log its run, and raise the failure."""
        how = self.how
        found = Found(self.runner, exc, self.runner.schedule())
        found.trace()  # the schedule must fail again before anything is concluded from it
        found.shrink()
        log = found.trace()
        headline = (
            f"schedule {self.number} of {how.schedules} (strategy {how.strategy!r}, seed "
            f"{how.seed}) fails with {report.first_line(found.exception)}"
        )
        raise failure(found, headline, how.seed, self.number, log) from None
