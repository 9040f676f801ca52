"""Measures explorers of threaded programs: pyfiber, frontrun, interleave-test.

    python -m pip install frontrun interleave-test
    python -m bench.races [--seconds 3] [--seeds 10]

Each explorer runs the same programs:

- two threads that increment a counter, with a lock and without one;
- three threads that do so three times each, with a lock.

The first table has schedules a second. Nothing is asserted, so every schedule runs to its end; the
explorers are asked for a thousand schedules again and again, each in a separate process, and the
best of three rounds counts. The second table has the schedules and the milliseconds until the lost
update of the counter without a lock is reported: the median of the seeds. frontrun's DPOR draws
nothing, and finds the same each time. pyfiber's time includes the shrinking of the schedule, and
the search for the same failure with a GIL. The third table has the schedules and the milliseconds
after which an explorer has tried everything with at most two preemptions; `-`: not within 30 times
`--seconds`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from .model import ROOT, clock
from .peers import is_installed, load

SECOND = 1e9
PREEMPTIONS = 2
MANY = 1_000_000  # schedules: more than any of these programs has with two preemptions
AT_ONCE = 1000  # schedules of one call
ROUNDS = 3


class Counter:
    """The object under test."""

    def __init__(self, locked: bool) -> None:
        self.value = 0
        self.lock: AbstractContextManager[Any] = threading.Lock() if locked else nullcontext()

    def add(self) -> None:
        with self.lock:
            value = self.value
            self.value = value + 1

    def add_three(self) -> None:
        for _ in range(3):
            self.add()


@dataclass(frozen=True)
class Program:
    """A program of threads that do the same."""

    title: str
    locked: bool
    threads: int
    work: Callable[[Counter], None]

    def test(self, right: Callable[[Counter], object]) -> Callable[[], None]:
        """The program as a function that starts its threads."""

        def test() -> None:
            counter = Counter(self.locked)
            threads = [
                threading.Thread(target=self.work, args=(counter,)) for _ in range(self.threads)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            right(counter)

        return test


PROGRAMS = {
    "lock": Program("two threads, a lock", True, 2, Counter.add),
    "race": Program("two threads, no lock", False, 2, Counter.add),
    "three": Program("three threads, three times each, a lock", True, 3, Counter.add_three),
}


def anything(_: Counter) -> bool:
    return True


def both_counted(counter: Counter) -> bool:
    return counter.value == 2


@dataclass(frozen=True)
class Found:
    """What one exploration did."""

    schedules: int
    failed: bool
    complete: bool


Explore = Callable[[Program, Callable[[Counter], bool], int, int], Found]


# ----------------------------------------------------------------------- explorers


def asserted(right: Callable[[Counter], bool]) -> Callable[[Counter], None]:
    def check(counter: Counter) -> None:
        assert right(counter)

    return check


def pyfiber_explores(switch: Literal["line", "access"], strategy: Literal["mix", "dfs"]) -> Explore:
    def explore(
        program: Program, right: Callable[[Counter], bool], schedules: int, seed: int
    ) -> Found:
        from pyfiber import testing

        test = program.test(asserted(right))
        try:
            result = testing.explore(
                test, schedules, strategy, seed, switch=switch, threads="simulated"
            )
        except testing.ScheduleFailure as failure:
            return Found(failure.number or 0, True, False)
        return Found(result.schedules, False, result.complete)

    return explore


def frontrun_explores(strategy: str) -> Explore:
    def explore(
        program: Program, right: Callable[[Counter], bool], schedules: int, seed: int
    ) -> Found:
        options: dict[str, Any] = {"max_executions": schedules, "preemption_bound": PREEMPTIONS}
        if strategy == "random":
            options = {"max_attempts": schedules, "seed": seed}
        result = load("frontrun").explore(
            setup=lambda: Counter(program.locked),
            workers=program.work,
            count=program.threads,
            invariant=right,
            strategy=strategy,
            **options,
        )
        failed = result.property_holds is False
        complete = strategy == "dpor" and not failed and result.num_explored < schedules
        return Found(result.num_explored, failed, complete)

    return explore


def interleave_explores(granularity: str, strategy: str) -> Explore:
    def explore(
        program: Program, right: Callable[[Counter], bool], schedules: int, seed: int
    ) -> Found:
        result = load("interleave_test").explore(
            program.test(asserted(right)),
            iterations=schedules,
            seed=seed,
            strategy=strategy,
            granularity=granularity,
            max_preemptions=PREEMPTIONS,
            raise_on_failure=False,
        )
        return Found(result.schedules_run, result.failure is not None, result.exhausted)

    return explore


@dataclass(frozen=True)
class Explorer:
    """An explorer, as it draws schedules and as it tries all of them."""

    package: str
    draws: Explore
    tries_all: Explore | None


EXPLORERS = {
    "pyfiber, lines": Explorer(
        "pyfiber", pyfiber_explores("line", "mix"), pyfiber_explores("line", "dfs")
    ),
    "pyfiber, instructions": Explorer(
        "pyfiber", pyfiber_explores("access", "mix"), pyfiber_explores("access", "dfs")
    ),
    "frontrun, DPOR": Explorer("frontrun", frontrun_explores("dpor"), frontrun_explores("dpor")),
    "frontrun, random": Explorer("frontrun", frontrun_explores("random"), None),
    "interleave-test, lines": Explorer(
        "interleave_test", interleave_explores("line", "random"), interleave_explores("line", "dfs")
    ),
    "interleave-test, instructions": Explorer(
        "interleave_test",
        interleave_explores("opcode", "random"),
        interleave_explores("opcode", "dfs"),
    ),
}


# ------------------------------------------------------------- in the measured process


def rate(explorer: Explorer, program: Program, seconds: float) -> float:
    """Schedules a second, in the best of the rounds."""
    explorer.draws(program, anything, 10, 0)  # imports, caches
    return max(one_round(explorer, program, seconds / ROUNDS) for _ in range(ROUNDS))


def one_round(explorer: Explorer, program: Program, seconds: float) -> float:
    schedules, start = 0, clock()
    while clock() - start < seconds * SECOND:
        schedules += explorer.draws(program, anything, AT_ONCE, schedules).schedules
    return schedules / ((clock() - start) / SECOND)


def until_found(explorer: Explorer, seeds: int) -> list[tuple[int, float]]:
    """For each seed, the schedules and the milliseconds until the lost update is reported."""
    results = []
    for seed in range(-1, seeds):  # the first one is not counted
        start = clock()
        found = explorer.draws(PROGRAMS["race"], both_counted, 1000, seed + 1)
        results.append((found.schedules if found.failed else 1001, (clock() - start) / 1e6))
    return results[1:]


def all_tried(explorer: Explorer, program: Program) -> tuple[int, float] | None:
    """The schedules and the milliseconds for all of them; None if there are too many."""
    if explorer.tries_all is None:
        return None
    explorer.draws(program, anything, 10, 0)  # imports, caches
    start = clock()
    found = explorer.tries_all(program, anything, MANY, 0)
    return (found.schedules, (clock() - start) / 1e6) if found.complete else None


def perform(what: str, name: str, program: str, seconds: float, seeds: int) -> None:
    """Measure in this process, and print the result."""
    explorer = EXPLORERS[name]
    result: object
    if what == "rate":
        result = rate(explorer, PROGRAMS[program], seconds)
    elif what == "found":
        result = until_found(explorer, seeds)
    else:
        result = all_tried(explorer, PROGRAMS[program])
    print(json.dumps(result), flush=True)


# ------------------------------------------------------------ in the measuring process


def measure(what: str, name: str, program: str, options: argparse.Namespace) -> Any:
    """Measure in a new process; None if it takes too long to try all schedules."""
    command = [sys.executable, "-m", "bench.races", "--perform", what, name, program]
    if EXPLORERS[name].package == "frontrun":  # which wants to be started by its own command
        command = [sys.executable, "-m", "frontrun.cli", *command]
    command += ["--seconds", str(options.seconds), "--seeds", str(options.seeds)]
    patience = 30 * options.seconds if what == "all" else None
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=patience)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise RuntimeError(f"{name}, {program}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def row(name: str, cells: list[str]) -> None:
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def head(*columns: str) -> None:
    print(f"\n| | {' | '.join(columns)} |\n|---|{'---:|' * len(columns)}")


def compare(names: list[str], options: argparse.Namespace) -> None:
    """Print the tables."""
    print("Schedules a second:")
    head(*(program.title for program in PROGRAMS.values()))
    for name in names:
        rates = [measure("rate", name, program, options) for program in PROGRAMS]
        row(name, ["-" if found is None else f"{found:,.0f}" for found in rates])
    print("\nUntil the lost update is reported:")
    head("schedules", "ms")
    for name in names:
        found = measure("found", name, "race", options)
        middle = [statistics.median(column) for column in zip(*found, strict=True)]
        row(name, [f"{middle[0]:,.0f}", f"{middle[1]:,.0f}"])
    print("\nUntil all schedules are tried:")
    head(*(f"{PROGRAMS[program].title}: {what}" for program in ("lock", "three") for what in UNITS))
    for name in names:
        if EXPLORERS[name].tries_all is None:
            continue
        cells: list[str] = []
        for program in ("lock", "three"):
            found = measure("all", name, program, options)
            cells += ["-", "-"] if found is None else [f"{found[0]:,}", f"{found[1]:,.0f}"]
        row(name, cells)


UNITS = ("schedules", "ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--perform", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.perform:
        what, name, program = options.perform
        perform(what, name, program, options.seconds, options.seeds)
        return
    names = [name for name, explorer in EXPLORERS.items() if is_installed(explorer.package)]
    compare(names, options)


if __name__ == "__main__":
    main()
