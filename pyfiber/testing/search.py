"""Tries schedules until one fails: what explore() does with its strategies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyfiber.testing.errors import NondeterminismError, ScheduleFailure, first_line
from pyfiber.testing.found import Found, differs, failure, signature
from pyfiber.testing.parting import Path
from pyfiber.testing.points import EVERYTHING
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
from pyfiber.testing.story import Tracer

__tracebackhide__ = True  # pytest's

STRATEGIES = ("fifo", "random", "pct", "dfs", "mix")
MIXED = ("dfs", "random", "pct")
MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Exploration:
    """What `explore()` did when nothing failed.

    ``schedules`` is how many were run; ``complete`` says whether there are no others, with at most
    ``preemptions`` interruptions between two waits (only depth-first search can know);
    ``distinct`` is how many runs differed; ``steps`` and ``choices`` are the maximum of any run.
    ``str()`` says it in a sentence.
    """

    schedules: int
    complete: bool
    distinct: int
    steps: int
    choices: int
    preemptions: int = 0

    def __str__(self) -> str:
        if not self.complete:
            return f"no failure in {self.schedules} schedules, {self.distinct} of them different"
        bound = f" with at most {self.preemptions} interruptions" if self.preemptions else ""
        return f"no failure in any schedule{bound}: all were tried, in {self.schedules} runs"


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
        self.first = Path()  # of the first run

    def attempts(self) -> Iterator[Attempt]:
        """Yield run after run. The first has the usual order and measures the program's length."""
        branches = self.branches()
        if self.how.strategy == "dfs" and self.runner.points is None:
            yield from branches  # which begin with the usual order
            return
        self.runner.configure(trace=self.first)
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
        second = Path()
        runner.configure(script=first.choices, trace=second)
        attempt = runner.run()
        if attempt.failure is not None or runner.schedule() != first:
            differs(runner, first, None, attempt, (self.first, second))
        self.first = Path()

    def tried(self) -> Iterator[Attempt]:
        """Yield run after run, up to the wanted number, and count them."""
        explorer = self.runner.explorer
        for attempt in self.attempts():
            self.number += 1
            yield attempt
            self.fingerprints.add(explorer.fingerprint)
            self.choices = max(self.choices, explorer.choice_count)
            self.places, self.hot_places = explorer.places, explorer.hot_places
            if self.number == self.how.schedules:
                return

    def run(self) -> Exploration | Finding:
        """Run until a failure, or until the end."""
        for attempt in self.tried():
            if attempt.failure is not None:
                return self.find(attempt.failure)
            if self.number == 1:
                self.same_twice()
        return Exploration(
            self.number,
            self.complete,
            len(self.fingerprints),
            self.runner.longest,
            self.choices,
            0 if self.runner.points is None else self.how.preemptions,
        )

    def find(self, exc: BaseException) -> Finding:
        """Shrink the failing schedule, and log its run."""
        found = Found(self.runner, exc, self.runner.schedule())
        found.trace()  # the schedule must fail again before anything is concluded from it
        found.shrink()
        return Finding(found, found.trace(), self.how, self.number)


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure that a search has found."""

    found: Found
    tracer: Tracer
    how: How
    number: int

    def failure(self, verdict: str) -> ScheduleFailure:
        """The exception that reports it."""
        how = self.how
        headline = (
            f"schedule {self.number} of {how.schedules} (strategy {how.strategy!r}, seed "
            f"{how.seed}) fails with {first_line(self.found.exception)}"
        )
        return failure(self.found, headline, self.tracer, how.seed, self.number, verdict)


GIL_POINTS = 1_000_000  # the most that all runs for a verdict pass
GIL_SCHEDULES = 10_000


def verdict(program: Program, how: How, exc: BaseException) -> str:
    """Whether the same failure can happen where a GIL keeps threads from switching anywhere.

    A failure between any two lines or instructions can happen on a build without a GIL.
    """
    if program.switch == "wait":
        return ""
    if program.switch == "gil":
        return "can happen"
    gil = replace(program, switch="gil")
    try:
        return verdict_with_gil(gil, how, exc)
    except NondeterminismError:  # of code that is interrupted there alone
        return "not known, as runs of one schedule with switch='gil' differ"


def verdict_with_gil(gil: Program, how: How, exc: BaseException) -> str:
    """Search for the same failure where a GIL lets threads switch."""
    found, search = same_failure(gil, replace(how, strategy="mix"), exc)
    if found is None:
        # Libraries give up the GIL as well, so these count before anything is ruled out.
        runs = GIL_POINTS // (search.runner.explorer.passed + 100)
        runs = min(max(runs, how.schedules), GIL_SCHEDULES)
        everything = replace(gil, include=[EVERYTHING])
        found, search = same_failure(everything, replace(how, strategy="dfs", schedules=runs), exc)
    version = f"CPython {sys.version_info.major}.{sys.version_info.minor}"
    if found is not None:
        return f"can happen; {found} shows it with {version}"
    if search.complete:
        return (
            f"cannot happen in {version} with at most {how.preemptions} interruptions (all "
            f"{search.number} schedules were tried)"
        )
    return f"not seen in {search.number} schedules of {version}"


def same_failure(program: Program, how: How, exc: BaseException) -> tuple[str | None, Search]:
    """Search for the failure, whatever else fails; return its schedule."""
    wanted = signature(exc)
    with Runner(program) as runner:
        search = Search(runner, how)
        for attempt in search.tried():
            if signature(attempt.failure) == wanted:
                found = Found(runner, exc, runner.schedule())
                found.shrink()
                return str(found.schedule), search
        return None, search
