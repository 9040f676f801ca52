"""Plays batches in processes of their own; notices what goes wrong, and shrinks it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: Programs in one process: several, for what one leaves behind may be the trouble of the next.
BATCH = 100
MOST_STEPS = 64
MOST_LINES = 40  # of what a crashed process wrote
#: After so many programs that found something the rest would tell nothing new.
MOST_FINDINGS = 20


@dataclass
class Finding:
    """A program that went wrong."""

    kind: str
    first: int  # of its batch
    seed: int
    text: str
    steps: int | None = None
    alone: bool = True

    def command(self) -> str:
        """How to see it again."""
        which = f"--seeds {self.first}:{self.seed + 1} --jobs 1"
        if self.alone:
            which = f"--seed {self.seed} -v"
        steps = "" if self.steps is None else f" --steps {self.steps}"
        return f"python -m tests.fuzz {self.kind} {which}{steps}"


@dataclass
class Outcome:
    """How a batch went: the programs that ended, and the one with which the process did."""

    played: int = 0
    found: dict[int, list[str]] = field(default_factory=dict)
    next: int | None = None  # where to go on


def child(
    kind: str, first: int, stop: int, steps: int | None, errors: IO[str]
) -> subprocess.Popen[str]:
    """A process that plays some programs; its standard error goes to a file."""
    command = [sys.executable, "-m", "tests.fuzz", kind, "--seeds", f"{first}:{stop}", "--here"]
    if steps is not None:
        command += ["--steps", str(steps)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=ROOT)


def ending(code: int, errors: IO[str]) -> str:
    """How a process ended before its time."""
    errors.seek(0)
    lines = errors.read().splitlines()
    hangs = any(line.startswith("Timeout (") for line in lines)
    how = "hangs" if hangs else f"crashes (exit code {code})"
    return "\n    ".join([how, *lines[:MOST_LINES]])


def play(kind: str, first: int, stop: int, steps: int | None = None) -> Outcome:
    """Play programs in a process of their own, up to the first that ends it."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        return listen(child(kind, first, stop, steps, errors), stop, errors)


def listen(process: subprocess.Popen[str], stop: int, errors: IO[str]) -> Outcome:
    """Read what the process tells, to its end."""
    outcome = Outcome()
    begun = None
    with process:
        assert process.stdout is not None
        for line in process.stdout:
            word, seed, text = line.split(" ", 2)
            if word == "begin":
                begun = int(seed)
            elif word == "found":
                outcome.found.setdefault(int(seed), []).append(json.loads(text))
            elif word == "end":
                outcome.played += 1
                begun = None
    if outcome.found:
        outcome.next = max(outcome.found) + 1
    if process.returncode != 0:
        seed = stop - 1 if begun is None else begun
        when = "" if begun is not None else "at the end of the process: "
        outcome.found.setdefault(seed, []).append(when + ending(process.returncode, errors))
        outcome.next = seed + 1
        outcome.played += begun is not None
    return outcome


def shrink(finding: Finding) -> None:
    """Does it fail alone, and with how few steps? Fewer steps mean a prefix of the same program."""
    if not play(finding.kind, finding.seed, finding.seed + 1).found:
        finding.alone = False
        return
    passes, fails = 0, MOST_STEPS
    while fails - passes > 1:
        middle = (passes + fails) // 2
        if play(finding.kind, finding.seed, finding.seed + 1, middle).found:
            fails = middle
        else:
            passes = middle
    finding.steps = fails


class Hunt:
    """All batches of a kind."""

    def __init__(self, kind: str, seeds: Iterator[int], steps: int | None, until: float) -> None:
        self.kind, self.steps, self.until = kind, steps, until
        self.seeds = seeds
        self.lock = threading.Lock()
        self.played = 0
        self.findings: list[Finding] = []

    def batch(self) -> tuple[int, int] | None:
        """The next one: first seed, and the one after the last."""
        with self.lock:
            if time.monotonic() > self.until or len(self.findings) >= MOST_FINDINGS:
                return None
            taken = list(itertools.islice(self.seeds, BATCH))
            return (taken[0], taken[-1] + 1) if taken else None

    def work(self) -> None:
        """Play batch after batch."""
        while (batch := self.batch()) is not None:
            first, stop = batch
            start: int | None = first
            while start is not None and start < stop:
                outcome = play(self.kind, start, stop, self.steps)
                self.record(first, outcome)
                start = outcome.next

    def record(self, first: int, outcome: Outcome) -> None:
        with self.lock:
            self.played += outcome.played
        for seed, texts in outcome.found.items():
            finding = Finding(self.kind, first, seed, "\n  ".join(texts), self.steps)
            if self.steps is None:
                shrink(finding)
            with self.lock:
                self.findings.append(finding)
            print(f"{self.kind} {seed}: {finding.text}\n  again: {finding.command()}", flush=True)


def hunt(kind: str, seeds: Iterator[int], steps: int | None, minutes: float, jobs: int) -> bool:
    """Play all of them; False if something was found."""
    began = time.monotonic()
    hunt = Hunt(kind, seeds, steps, began + 60 * minutes)
    with ThreadPoolExecutor(jobs) as pool:
        for future in [pool.submit(hunt.work) for _ in range(jobs)]:
            future.result()
    seconds = time.monotonic() - began
    counts = f"{hunt.played} programs, {len(hunt.findings)} findings"
    print(f"{kind}: {counts}, {seconds:.0f} s", flush=True)
    return not hunt.findings
