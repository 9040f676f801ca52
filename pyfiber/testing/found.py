"""From a failing schedule to its report, and reports of equal schedules that ran differently."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import NoReturn

from pyfiber.testing import report
from pyfiber.testing.errors import (
    NeverAwaitedError,
    NondeterminismError,
    ScheduleFailure,
    failed_before,
    first_line,
)
from pyfiber.testing.html import page
from pyfiber.testing.parting import Path, parting, run_again
from pyfiber.testing.runner import MAX_STEPS, Attempt, Program, Runner
from pyfiber.testing.schedule import Choice, Schedule, describe
from pyfiber.testing.shrink import only_one, shrink, weight
from pyfiber.testing.story import Tracer
from pyfiber.testing.suspects import CLOCK, Suspects

__tracebackhide__ = True  # pytest's

REPLAY = 'pyfiber.testing.replay({fn}, "SCHEDULE"{options})'
REPLAY_OPTIONS = {
    "max_steps": MAX_STEPS,
    "leftovers": "join",
    "virtualize_time": False,
    "threads": False,
    "include": (),
    "exclude": (),
}

ONLY_FIRST = (
    "Only the first call differs. Reset what it leaves in setup= (then the first use is explored, "
    "too), or call the function once before it is explored (then it is not)."
)


def signature(exc: BaseException | None) -> object:
    """A key: two failures with the same key count as the same failure."""
    if exc is None:
        return None
    if isinstance(exc, NeverAwaitedError):
        return type(exc), signature(exc.__cause__)
    if (before := failed_before(exc)) is not None:
        return type(exc), signature(before)
    frames = traceback.extract_tb(report.clean(exc.__traceback__))
    return type(exc), (frames[-1].filename, frames[-1].lineno) if frames else None


class Found:
    """Turns a failing schedule into a report: replays it, shrinks it, raises it."""

    def __init__(self, runner: Runner, exc: BaseException, schedule: Schedule) -> None:
        self.runner = runner
        self.exception = exc
        self.schedule = schedule
        self.first = schedule
        self.story = runner.story()  # of the network, in the last run

    def again(self, choices: Sequence[Choice]) -> list[Choice] | None:
        """Run with these choices; return the choices really made if the failure is the same."""
        self.runner.configure(script=choices, lenient=True)
        attempt = self.runner.run()
        if signature(attempt.failure) != signature(self.exception):
            return None
        return self.runner.explorer.choices()

    def shrink(self) -> None:
        """Bring the schedule as close to the usual order as the failure allows."""
        choices = shrink(self.schedule.choices, self.again)
        if self.runner.points is not None and weight(choices)[0] > 1:
            self.runner.configure()
            self.runner.run()
            choices = only_one(self.runner.explorer.choices(), self.again) or choices
        self.runner.configure(script=choices)
        attempt = self.runner.run()
        if signature(attempt.failure) == signature(self.exception):
            self.exception = attempt.failure or self.exception
            self.schedule = self.runner.schedule()

    def trace(self) -> Tracer:
        """Run once more, with a log; NondeterminismError if it does not fail again."""
        runner = self.runner
        tracer = Tracer(runner.program.clock, runner.points)
        runner.configure(script=self.schedule.choices, trace=tracer)
        attempt = runner.run()
        if signature(attempt.failure) != signature(self.exception):
            differs(runner, self.schedule, self.exception, attempt)
        self.story = runner.story()
        return tracer


def suspects_of(runner: Runner, schedule: Schedule) -> Suspects:
    """Run the schedule again and watch for what may make its runs differ."""
    suspects = Suspects()
    runner.configure(script=schedule.choices, lenient=True)
    suspects.watch(runner.run)
    if runner.program.clock is None:
        suspects.seen.setdefault(CLOCK, f"{CLOCK}: the run goes by it (clock='real')")
    return suspects


def differs(
    runner: Runner,
    schedule: Schedule,
    before: BaseException | None,
    attempt: Attempt,
    paths: tuple[Path, Path] | None = None,
) -> NoReturn:
    """Raise a NondeterminismError that says where two runs of one schedule diverged.

    `paths` are those of the first two runs. Without them, two more runs may show where.
    """
    where = which_choice(runner, schedule)
    ends = [
        "nothing failed" if exc is None else first_line(exc) for exc in (before, attempt.failure)
    ]
    outcome = f"The first run ended with: {ends[0]}. The second: {ends[1]}."
    later = parting(run_again(runner, schedule), run_again(runner, schedule))
    parts = later if paths is None else parting(*paths)
    text = [
        f"the same schedule was run twice and gave different runs: {where}.",
        parts,
        outcome,
        suspects_of(runner, schedule).text(),
        ONLY_FIRST if paths is not None and not later else "",
    ]
    raise NondeterminismError("\n".join(filter(None, text))) from before


def which_choice(runner: Runner, schedule: Schedule) -> str:
    """The choice at which the last run left the schedule."""
    divergence = runner.explorer.divergence()
    if divergence is not None:
        return describe_divergence(*divergence)
    found = runner.explorer.choices()
    wanted = list(schedule.choices)
    for at, (one, other) in enumerate(zip(wanted, found, strict=False)):
        if one[1] and one != other:
            return describe_divergence(at, one, other)
    if len(wanted) != len(found):
        return f"one came to {len(wanted)} choices, the other to {len(found)}"
    return "they made the same choices, but who ran when, or at what time, differs"


def describe_divergence(at: int, wanted: Choice, found: Choice | None) -> str:
    """Where a run left its schedule."""
    if found is None:
        what = f" ({describe(wanted)})" if wanted[1] else ""
        return f"at choice {at + 1}{what} the run was over already"
    kind, count, _ = found
    now = describe((kind, count, 0)).rpartition(":")[0]
    if wanted[1] == 0:
        return f"at choice {at + 1} the run chose {now} of {count}"
    return (
        f"at choice {at + 1} the schedule says {describe(wanted)}, but the program chose "
        f"{now} of {count}"
    )


def hints(runner: Runner, schedule: Schedule) -> str:
    """What may make runs of one program differ; empty if nothing was found."""
    found = suspects_of(runner, schedule).lines_of_text()
    if not found:
        return ""
    return f"\nIf the program was not changed: it uses what differs from run to run:\n{found}"


def failure(
    found: Found,
    headline: str,
    tracer: Tracer,
    seed: int | None = None,
    number: int | None = None,
    verdict: str = "",
) -> ScheduleFailure:
    """The exception that says what was found."""
    log = tracer.text()
    replay = replay_line(found.runner.program)
    text = report.failure_text(
        headline,
        found.exception,
        found.schedule,
        replay,
        log,
        found.first.deviations,
        verdict,
        found.story,
    )
    return ScheduleFailure(
        text,
        exception=found.exception,
        schedule=str(found.schedule),
        seed=seed,
        number=number,
        log=log,
        verdict=verdict,
        story=found.story,
        page=lambda: page(headline, text.partition("who ran when")[0], tracer),
    )


def replay_line(program: Program) -> str:
    """The call that repeats a failure."""
    if program.replay:
        return program.replay
    name = getattr(program.fn, "__qualname__", "fn").rpartition(".")[2]
    options = [f"{option}={option}" for option in ("setup", "check") if getattr(program, option)]
    if program.clock_text:
        options.append(f"clock={program.clock_text}")
    if program.network_text:
        options.append(f"network={program.network_text}")
    for option, usual in REPLAY_OPTIONS.items():
        value = getattr(program, option)
        if value != usual and not (option == "virtualize_time" and program.simulated):
            options.append(f"{option}={value!r}".replace("'", '"'))
    text = "".join(f", {option}" for option in options)
    return REPLAY.format(fn=name if name.isidentifier() else "fn", options=text)
