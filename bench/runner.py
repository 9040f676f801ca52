"""Runs the workers and decides which one measures when.

Each subject of a row gets a worker process. A short first measurement warms the worker up and shows
how many operations fit into the row's budget. Then the repetitions are interleaved, each with
another subject first: A B C B C A. So a slow moment of the machine affects every subject. The best
repetition counts.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

from .model import ROOT, Case, Row, Sample
from .peers import is_installed, runs_here
from .progress import Progress

MEASURED = "measured"
MISSING = "missing"
UNAVAILABLE = "unavailable"
FAILED = "failed"

#: The first measurement does one in so many of a row's operations.
WARM_UP_PART = 50
NANOSECONDS_IN_SECOND = 1e9


@dataclass(frozen=True)
class Settings:
    """How thoroughly to measure."""

    repetitions: int = 10
    quick: bool = False
    #: Seconds until a measurement that does not end is given up.
    patience: float = 300.0

    def repetitions_of(self, row: Row) -> int:
        """How often to measure each subject of a row."""
        return min(row.repetitions or self.repetitions, self.repetitions)

    def count_of(self, row: Row) -> int:
        """Operations in one repetition of a row, before the budget limits them."""
        return row.quick if self.quick else row.count

    def budget_of(self, row: Row) -> float | None:
        """Seconds that one repetition should not exceed."""
        if row.budget is None or not self.quick:
            return row.budget
        return row.budget / 3


QUICK = Settings(repetitions=3, quick=True)


@dataclass
class Result:
    """The result of one subject in one row."""

    case: Case
    status: str = MEASURED
    reason: str = ""
    samples: list[Sample] = field(default_factory=list)

    @property
    def best(self) -> Sample | None:
        """The best sample, None unless the subject was measured."""
        if self.status != MEASURED or not self.samples:
            return None
        return min(self.samples, key=lambda sample: sample.value)

    @property
    def median(self) -> float | None:
        """The value in the middle, None unless the subject was measured."""
        if self.best is None:
            return None
        return median(sample.value for sample in self.samples)

    def give_up(self, status: str, reason: str) -> None:
        """Record that this subject is not measured any more, and why."""
        self.status = status
        self.reason = reason


@dataclass
class RowResult:
    """The results of a row."""

    row: Row
    results: list[Result]

    @property
    def reference(self) -> float | None:
        """The best value of the row's reference subject; None if it was not measured."""
        for result in self.results:
            if result.case.subject == self.row.reference and result.best:
                return result.best.value
        return None


def describe_exit(code: int, last_words: str) -> str:
    """Why a worker ended without an answer, in words."""
    if code < 0:
        ending = f"the worker was ended by {signal.Signals(-code).name}"
    else:
        ending = f"the worker ended with exit code {code}"
    return f"{ending}: {last_words}" if last_words else ending


class Worker:
    """A process that measures one case whenever it is asked to."""

    def __init__(self, row: Row, case: Case, patience: float) -> None:
        self.patience = patience
        self.timed_out = False
        self.directory = TemporaryDirectory()
        self.errors = Path(self.directory.name, "stderr")
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.worker", row.name, case.subject],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )

    def measure(self, count: int) -> dict[str, Any]:
        """Ask for one measurement and wait for the answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = Timer(self.patience, self._lose_patience)
        timer.start()
        try:
            self.process.stdin.write(f"{count}\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        return {"status": FAILED, "reason": self._obituary()}

    def _lose_patience(self) -> None:
        self.timed_out = True
        self.process.kill()

    def _obituary(self) -> str:
        code = self.process.wait()
        if self.timed_out:
            return f"no answer within {self.patience:g} s"
        words = self.errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return describe_exit(code, words[-1] if words else "")

    def close(self) -> None:
        """End the process; one that does not end by itself is killed."""
        with self.directory:
            try:
                self.process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()


def rotated(results: list[Result], places: int) -> list[Result]:
    """The same results, beginning at another place: no subject is always the first."""
    start = places % len(results) if results else 0
    return results[start:] + results[:start]


class RowRun:
    """Measures one row."""

    def __init__(self, row: Row, settings: Settings, progress: Progress) -> None:
        self.row = row
        self.settings = settings
        self.progress = progress
        self.repetitions = settings.repetitions_of(row)
        self.results = [Result(case) for case in row.cases]
        self.workers: dict[str, Worker] = {}
        self.counts: dict[str, int] = {}

    def run(self) -> RowResult:
        """Measure every subject that can be measured."""
        for result in self.results:
            self._look_for_peer(result)
        try:
            if not self.row.fresh:
                for result in self._measurable():
                    self._warm_up(result)
            for repetition in range(self.repetitions):
                for result in rotated(self._measurable(), repetition):
                    self._repeat(result)
        finally:
            for subject in list(self.workers):
                self._dismiss(subject)
        return RowResult(self.row, self.results)

    def _measurable(self) -> list[Result]:
        return [result for result in self.results if result.status == MEASURED]

    def _look_for_peer(self, result: Result) -> None:
        peer = result.case.peer
        if peer is None:
            return
        if not runs_here(peer):
            result.give_up(UNAVAILABLE, f"there is no {peer} for {sys.platform}")
        elif not is_installed(peer):
            result.give_up(MISSING, f"{peer} is not installed")
        else:
            return
        self.progress.advance(self.repetitions)

    def _warm_up(self, result: Result) -> None:
        count = self._full_count(result.case)
        budget = self.settings.budget_of(self.row)
        if budget is None:
            self._ask(result, count)
            self.counts[result.case.subject] = count
            return
        sample = self._ask(result, max(count // WARM_UP_PART, 1))
        if sample is not None:
            affordable = int(budget * NANOSECONDS_IN_SECOND / max(sample.value, 0.1))
            self.counts[result.case.subject] = max(1, min(count, affordable))

    def _full_count(self, case: Case) -> int:
        count = self.settings.count_of(self.row)
        return count if case.limit is None else min(count, case.limit)

    def _repeat(self, result: Result) -> None:
        case = result.case
        sample = self._ask(result, self.counts.get(case.subject, self._full_count(case)))
        if sample is not None:
            result.samples.append(sample)
            self.progress.advance()
        if self.row.fresh:
            self._dismiss(case.subject)

    def _ask(self, result: Result, count: int) -> Sample | None:
        subject = result.case.subject
        self.progress.begin(f"{self.row.name}: {subject}")
        if subject not in self.workers:
            self.workers[subject] = Worker(self.row, result.case, self.settings.patience)
        answer = self.workers[subject].measure(count)
        if answer["status"] == MEASURED:
            return Sample(answer["total"], answer["operations"], answer["details"])
        result.give_up(answer["status"], answer["reason"])
        self.progress.advance(self.repetitions - len(result.samples))
        return None

    def _dismiss(self, subject: str) -> None:
        self.workers.pop(subject).close()


def measurements(rows: Iterable[Row], settings: Settings) -> int:
    """How many measurements the rows need."""
    return sum(settings.repetitions_of(row) * len(row.cases) for row in rows)


def run(rows: list[Row], settings: Settings, progress: Progress) -> list[RowResult]:
    """Measure rows one after the other."""
    return [RowRun(row, settings, progress).run() for row in rows]


def missing_peers(results: Iterable[RowResult]) -> list[str]:
    """The peers that were not measured because they are not installed."""
    missing: Mapping[str, None] = {
        result.case.peer: None
        for row in results
        for result in row.results
        if result.status == MISSING and result.case.peer
    }
    return list(missing)
