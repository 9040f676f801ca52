"""run, explore, replay: one program under one schedule, or under many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from pyfiber import _engine
from pyfiber.testing import report
from pyfiber.testing.errors import ReplayDivergence
from pyfiber.testing.found import Found, describe_divergence, differs, failure, hints
from pyfiber.testing.network import Network
from pyfiber.testing.runner import (
    FIFO,
    MAX_STEPS,
    PCT,
    RANDOM,
    RUN_STEPS,
    Attempt,
    Clock,
    OnUnhandled,
    Program,
    Runner,
    check_count,
    check_seed,
    clock_of,
    clock_text,
    mix,
    network_of,
    network_text,
)
from pyfiber.testing.schedule import Schedule

__tracebackhide__ = True  # pytest's

R = TypeVar("R")
T = TypeVar("T")

Strategy = Literal["fifo", "random", "pct", "dfs"]
STRATEGIES = ("fifo", "random", "pct", "dfs")
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


def choose(items: Sequence[T]) -> T:
    """Return one of the items: the first outside of a test, any under `explore()`.

    ValueError if there are no items.
    """
    if len(items) == 0:
        raise ValueError("there is nothing to choose from")
    return items[_engine._choose(len(items))]


def preempt() -> None:
    """Let a run with ``preempt=True`` switch to another fiber here; do nothing otherwise."""
    _engine._preempt()


# ---------------------------------------------------------------------- explore


class Explorer:
    """Does the work of explore(): tries schedules until one fails."""

    def __init__(self, runner: Runner, strategy: str, schedules: int, seed: int, depth: int):
        self.runner = runner
        self.strategy = strategy
        self.schedules = schedules
        self.seed = seed
        self.depth = depth
        self.fingerprints: set[int] = set()
        self.choices = 0
        self.number = 0
        self.complete = False

    def attempts(self) -> Iterator[Attempt]:
        """Yield run after run. The first has the usual order and measures the program's length."""
        self.runner.configure()
        yield self.runner.run()
        if self.strategy == "dfs":
            yield from self.branches()
        elif self.strategy != "fifo":
            yield from self.drawn()

    def drawn(self) -> Iterator[Attempt]:
        strategy = PCT if self.strategy == "pct" else RANDOM
        for number in range(2, self.schedules + 1):
            self.runner.configure(
                strategy=strategy,
                seed=mix(self.seed, number),
                depth=1 + number % self.depth,
            )
            yield self.runner.run()

    def branches(self) -> Iterator[Attempt]:
        explorer = self.runner.explorer
        while self.number < self.schedules:
            before = explorer.choices() if self.number == 1 else []
            if not explorer.next_branch():
                self.complete = True
                return
            attempt = self.runner.run()
            if explorer.divergence() is not None:
                differs(self.runner, Schedule(before), None, attempt)
            yield attempt

    def same_twice(self) -> None:
        """Run the first schedule again: it must give the same run."""
        runner = self.runner
        first = runner.schedule()
        runner.configure(script=first.choices)
        attempt = runner.run()
        if attempt.failure is not None or runner.schedule() != first:
            differs(runner, first, None, attempt)
        if self.strategy == "dfs":
            runner.configure()
            runner.run()

    def run(self) -> Exploration:
        """Run until a failure, which is raised, or until the end."""
        for attempt in self.attempts():
            self.number += 1
            if attempt.failure is not None:
                self.fail(attempt.failure)
            self.fingerprints.add(self.runner.explorer.fingerprint)
            self.choices = max(self.choices, self.runner.explorer.choice_count)
            if self.number == 1:
                self.same_twice()
        return Exploration(
            self.number, self.complete, len(self.fingerprints), self.runner.longest, self.choices
        )

    def fail(self, exc: BaseException) -> NoReturn:
        """Shrink the failing schedule, log its run, and raise the failure."""
        found = Found(self.runner, exc, self.runner.schedule())
        found.trace()  # the schedule must fail again before anything is concluded from it
        found.shrink()
        log = found.trace()
        headline = (
            f"schedule {self.number} of {self.schedules} (strategy {self.strategy!r}, seed "
            f"{self.seed}) fails with {report.first_line(found.exception)}"
        )
        raise failure(found, headline, self.seed, self.number, log) from None


def explore(
    fn: Callable[..., Any],
    schedules: int = 1000,
    strategy: Strategy = "random",
    seed: int = 0,
    *,
    depth: int = 3,
    clock: Clock = None,
    setup: Callable[[], Any] | None = None,
    check: Callable[..., object] | None = None,
    preempt: bool = False,
    unfair: bool = False,
    max_steps: int = MAX_STEPS,
    leftovers: Literal["join", "error"] = "join",
    virtualize_time: bool = False,
    threads: bool = False,
    network: Network | bool = False,
) -> Exploration:
    """Run ``fn`` under many schedules; ScheduleFailure at the first that fails.

    ``fn`` is called once for each schedule, so it must create its state afresh, or take it from
    ``setup()``, whose result is passed to ``fn`` and to ``check()``, which is called after each
    run.

    ``strategy`` is "random", "pct" (few preemptions at well-chosen places, up to ``depth``), "dfs"
    (every schedule once, for small programs) or "fifo". The first schedule is always the usual
    order. The same ``seed`` gives the same schedules on every CPython and platform.

    With ``preempt=True`` operations of locks, queues and so on may switch even if they need not
    wait. With ``unfair=True`` they serve waiters in any order, and select() takes any of the
    possible cases.

    A run also fails with a deadlock, with more than ``max_steps`` steps, with a failed fiber whose
    result nobody asked for, and, if ``leftovers="error"``, with fibers that are still running when
    ``fn`` returns.

    With ``network=True`` sockets are in memory: see Network.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"no strategy {strategy!r}: there are {', '.join(STRATEGIES)}")
    check_count(schedules, "schedules")
    program = Program(
        fn,
        setup=setup,
        check=check,
        clock=clock_of(clock),
        clock_text=clock_text(clock),
        preempt=preempt,
        unfair=unfair,
        max_steps=max_steps,
        leftovers=leftovers,
        virtualize_time=virtualize_time,
        threads=threads,
        network=network_of(network),
        network_text=network_text(network),
    )
    return explore_program(program, schedules, strategy, check_seed(seed), check_depth(depth))


def check_depth(depth: object) -> int:
    """Check that the depth is from 1 to 16; TypeError or ValueError otherwise."""
    if check_count(depth, "depth") > MAX_DEPTH:
        raise ValueError(f"depth is at most {MAX_DEPTH}, not {depth}")
    return int(depth)  # type: ignore[call-overload,no-any-return]


def explore_program(
    program: Program, schedules: int, strategy: str, seed: int, depth: int
) -> Exploration:
    """Do what explore() does, with arguments that have been checked."""
    with Runner(program) as runner:
        return Explorer(runner, strategy, schedules, seed, depth).run()


# ----------------------------------------------------------------------- replay


def replay(
    fn: Callable[..., R],
    schedule: str,
    *,
    clock: Clock = None,
    setup: Callable[[], Any] | None = None,
    check: Callable[..., object] | None = None,
    max_steps: int = MAX_STEPS,
    leftovers: Literal["join", "error"] = "join",
    virtualize_time: bool = False,
    threads: bool = False,
    network: Network | bool = False,
) -> R:
    """Run ``fn`` under a schedule that `explore()` printed; return its result.

    A failure is raised as ScheduleFailure, with the log. ReplayDivergence names the step at which
    the program differs from the recorded one; ScheduleError if the string is not a schedule.
    """
    program = Program(
        fn,
        setup=setup,
        check=check,
        clock=clock_of(clock),
        clock_text=clock_text(clock),
        max_steps=max_steps,
        leftovers=leftovers,
        virtualize_time=virtualize_time,
        threads=threads,
        network=network_of(network),
        network_text=network_text(network),
    )
    value: R = replay_program(program, Schedule.parse(schedule))
    return value


def replay_program(program: Program, schedule: Schedule) -> Any:
    """Do what replay() does, with arguments that have been checked."""
    program.preempt, program.unfair = schedule.preempt, schedule.unfair
    with Runner(program) as runner:
        tracer = report.Tracer(runner.scheduler, program.clock)
        runner.configure(script=schedule.choices, trace=tracer)
        attempt = runner.run()
        divergence = runner.explorer.divergence()
        if divergence is not None:
            raise ReplayDivergence(
                f"the program is not the one that was recorded: {describe_divergence(*divergence)}"
                f"{hints(runner, schedule)}\n\nwho ran when:\n{tracer.text()}"
            ) from attempt.failure
        if attempt.failure is not None:
            found = Found(runner, attempt.failure, runner.schedule())
            headline = f"the schedule fails with {report.first_line(attempt.failure)}"
            raise failure(found, headline, None, None, tracer.text()) from None
        if runner.explorer.choice_count > len(schedule.choices):
            raise ReplayDivergence(
                "the program is not the one that was recorded: it went on after choice "
                f"{len(schedule.choices)}, the last of the schedule, and did not fail"
                f"{hints(runner, schedule)}"
            )
        return attempt.value


# -------------------------------------------------------------------------- run


def run(
    fn: Callable[..., R],
    *args: Any,
    seed: int | None = None,
    schedule: str | None = None,
    strategy: Strategy | None = None,
    depth: int = 3,
    clock: Clock = None,
    preempt: bool = False,
    unfair: bool = False,
    max_steps: int = RUN_STEPS,
    leftovers: Literal["join", "error"] = "join",
    virtualize_time: bool = False,
    threads: bool = False,
    network: Network | bool = False,
    on_unhandled: OnUnhandled | None = None,
) -> R:
    """Do what pyfiber.run(fn, *args) does, in virtual time: deterministic, without real waits.

    By default fibers run in the usual order. ``seed`` gives another one, drawn at random
    (``strategy="pct"``: with priorities); ``schedule`` repeats one that was printed. An exception
    of the program is raised unchanged, with a note of the schedule if that was drawn.

    With ``network=True`` sockets are in memory: see Network.

    A failure that nobody looks at is raised as NeverAwaitedError, unless
    ``on_unhandled`` says what to do with it, as for `pyfiber.run()`.
    """
    program = Program(
        fn,
        args,
        on_unhandled=on_unhandled,
        clock=clock_of(clock),
        clock_text=clock_text(clock),
        preempt=preempt,
        unfair=unfair,
        max_steps=max_steps,
        leftovers=leftovers,
        virtualize_time=virtualize_time,
        threads=threads,
        network=network_of(network),
        network_text=network_text(network),
    )
    if schedule is not None:
        if seed is not None or strategy is not None:
            raise TypeError("a schedule says it all: pass no seed or strategy with it")
        value: R = replay_program(program, Schedule.parse(schedule))
        return value
    result: R = run_program(program, seed, strategy, depth)
    return result


def run_program(program: Program, seed: int | None, strategy: str | None, depth: int) -> Any:
    """Do what run() does without a schedule."""
    number = 0 if seed is None else check_seed(seed)
    drawn = strategy or ("fifo" if seed is None else "random")
    if drawn not in ("fifo", "random", "pct"):
        raise ValueError(f"one run has the strategy 'fifo', 'random' or 'pct', not {drawn!r}")
    with Runner(program) as runner:
        runner.longest = 100
        kind = {"fifo": FIFO, "random": RANDOM, "pct": PCT}[drawn]
        runner.configure(strategy=kind, seed=mix(number, 0), depth=check_depth(depth))
        attempt = runner.run()
        if attempt.failure is not None:
            if runner.story():
                attempt.failure.add_note(f"what the network did:\n{runner.story()}")
            if kind != FIFO:
                schedule = str(runner.schedule())
                replay = program.replay.replace("SCHEDULE", schedule)
                attempt.failure.add_note(f"replay: {replay}" if replay else f"schedule: {schedule}")
            raise attempt.failure
        return attempt.value
