"""run, explore, replay: one program under one schedule, or under many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from pyfiber import _engine
from pyfiber.testing.errors import ReplayDivergence, first_line
from pyfiber.testing.found import Found, describe_divergence, failure, hints
from pyfiber.testing.network import Network
from pyfiber.testing.points import Switch
from pyfiber.testing.runner import (
    FIFO,
    MAX_STEPS,
    PCT,
    RANDOM,
    RUN_STEPS,
    Clock,
    OnUnhandled,
    Program,
    Runner,
    check_seed,
    clock_of,
    clock_text,
    mix,
    network_of,
    network_text,
)
from pyfiber.testing.schedule import Schedule
from pyfiber.testing.search import Exploration, How, Search, check_depth, how_to, verdict
from pyfiber.testing.story import Tracer

__tracebackhide__ = True  # pytest's

R = TypeVar("R")
T = TypeVar("T")

Strategy = Literal["fifo", "random", "pct", "dfs", "mix"]


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


def explore(
    fn: Callable[..., Any],
    schedules: int = 1000,
    strategy: Strategy | None = None,
    seed: int = 0,
    *,
    depth: int = 3,
    switch: Switch = "wait",
    preemptions: int = 2,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    clock: Clock = None,
    setup: Callable[[], Any] | None = None,
    check: Callable[..., object] | None = None,
    preempt: bool = False,
    unfair: bool = False,
    max_steps: int = MAX_STEPS,
    leftovers: Literal["join", "error"] = "join",
    virtualize_time: bool = False,
    threads: bool | Literal["simulated"] = False,
    network: Network | bool = False,
) -> Exploration:
    """Run ``fn`` under many schedules; ScheduleFailure at the first that fails.

    ``fn`` is called once for each schedule, so it must create its state afresh, or take it from
    ``setup()``, whose result is passed to ``fn`` and to ``check()``, which is called after each
    run.

    ``strategy`` is "random", "pct" (few preemptions at well-chosen places, up to ``depth``), "dfs"
    (every schedule once, for small programs), "mix" (these three in turn) or "fifo". The first
    schedule is always the usual order. The same ``seed`` gives the same schedules on every CPython
    and platform.

    ``switch`` says where a fiber may be interrupted: "wait" (nowhere between two waits), "line",
    "access" or "gil", at most ``preemptions`` times in a schedule, in the program's own code and
    that of the modules in ``include``, without those in ``exclude``. Then the strategy is "mix".

    With ``preempt=True`` operations of locks, queues and so on may switch even if they need not
    wait. With ``unfair=True`` they serve waiters in any order, and select() takes any of the
    possible cases.

    A run also fails with a deadlock, with more than ``max_steps`` steps, with a failed fiber whose
    result nobody asked for, and, if ``leftovers="error"``, with fibers that are still running when
    ``fn`` returns.

    With ``network=True`` sockets are in memory: see Network.
    """
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
        switch=switch,
        include=include,
        exclude=exclude,
    )
    return explore_program(program, how_to(program, schedules, strategy, seed, depth, preemptions))


def explore_program(program: Program, how: How) -> Exploration:
    """Do what explore() does, with arguments that have been checked."""
    with Runner(program) as runner:
        result = Search(runner, how).run()
    if isinstance(result, Exploration):
        return result
    raise result.failure(verdict(program, how, result.found.exception)) from None


# ----------------------------------------------------------------------- replay


def replay(
    fn: Callable[..., R],
    schedule: str,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    clock: Clock = None,
    setup: Callable[[], Any] | None = None,
    check: Callable[..., object] | None = None,
    max_steps: int = MAX_STEPS,
    leftovers: Literal["join", "error"] = "join",
    virtualize_time: bool = False,
    threads: bool | Literal["simulated"] = False,
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
        include=include,
        exclude=exclude,
    )
    value: R = replay_program(program, Schedule.parse(schedule))
    return value


def replay_program(program: Program, schedule: Schedule) -> Any:
    """Do what replay() does, with arguments that have been checked."""
    program.preempt, program.unfair = schedule.preempt, schedule.unfair
    program.switch = schedule.switch
    with Runner(program) as runner:
        tracer = Tracer(program.clock, runner.points)
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
            headline = f"the schedule fails with {first_line(attempt.failure)}"
            known = "can happen" if schedule.switch == "gil" else ""
            raise failure(found, headline, tracer, verdict=known) from None
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
    threads: bool | Literal["simulated"] = False,
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
