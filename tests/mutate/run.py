"""Puts one small fault after the other into C files, and tells which of them no test notices.

    python tests/mutate/run.py csrc/engine/*/*.c          all of them, or go on where it was stopped
    python tests/mutate/run.py csrc/python/sync/lock.c --sample 50 --seed 7
    python tests/mutate/run.py csrc/engine/*/*.c --again survived        after a new test
    python tests/mutate/run.py csrc/engine/*/*.c --list                  only say what is known

README.md beside this file tells more. Exit status 1: survivors.txt does not explain all survivors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from mutants import Mutant, mutants_of
from stages import Stage, stages_for

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LEFT_OUT = (".*", "build", "bench", "*.so", "*.egg-info", "__pycache__")
SLOWER = 10  # times as long as without a fault, and at least ...
PATIENCE = 60  # ... so many seconds: then it hangs (what spins is ended by stages.py before that)
FLAGS = ["-w", "-g0"]  # no debug information: it tells equal code apart


def run(command: list[str], place: Path, seconds: float | None = None) -> tuple[bool, str]:
    """Did it succeed, and what it printed; after so many seconds all it started is ended."""
    process = subprocess.Popen(
        command, cwd=place, text=True, errors="replace", start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        printed = ""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return process.returncode == 0, printed


Todo: TypeAlias = "queue.SimpleQueue[Mutant]"


@dataclass
class Build:
    """A stage's program in one tree: the commands that made it, recorded, to repeat single ones."""

    stage: Stage
    tree: Path
    compiling: dict[str, list[str]] = field(default_factory=dict)  # source: command
    linking: list[str] = field(default_factory=list)
    pristine: dict[str, bytes] = field(default_factory=dict)  # source: its object
    seconds: dict[str, float] = field(default_factory=dict)  # test: how long without a fault

    def make(self) -> None:
        good, printed = run(self.stage.build, self.place)
        if not good:
            sys.exit(f"the build of {self.stage.name} fails:\n{printed[-3000:]}")
        for line in printed.splitlines():
            words = shlex.split(line) if " -o " in line else []
            if "-c" in words:
                source = (self.place / words[words.index("-c") + 1]).resolve()
                self.compiling[str(source.relative_to(self.tree))] = [*words, *FLAGS]
            elif words and self.stage.program in words[words.index("-o") + 1]:
                self.linking = words
                used = self.place / "pyfiber" / Path(words[words.index("-o") + 1]).name
                if used.exists():  # setuptools links elsewhere and copies
                    self.linking[words.index("-o") + 1] = str(used)

    @property
    def place(self) -> Path:
        return self.tree / self.stage.place

    def object_of(self, source: str) -> Path:
        words = self.compiling[source]
        return self.place / words[words.index("-o") + 1]

    def sources_of(self, path: str) -> list[str]:
        """What is compiled anew when this file changes."""
        if path.endswith(".h"):
            header = path.removeprefix("csrc/")
            return [s for s in self.compiling if s.endswith(".c") and self.includes(s, header)]
        return [path] if path in self.compiling else []

    def includes(self, source: str, header: str) -> bool:
        words = self.compiling[source]
        words = [*words[: words.index("-o")], *words[words.index("-o") + 2 :], "-MM"]
        return header in run(words, self.place)[1].replace("\\\n", " ")

    def compile(self, source: str) -> bytes | None:
        good, _ = run(self.compiling[source], self.place)
        return self.object_of(source).read_bytes() if good else None

    def prepare(self, path: str) -> list[str]:
        """Objects of the file as it is, to compare with."""
        sources = self.sources_of(path)
        for source in sources:
            self.pristine[source] = self.compile(source) or b""
        return sources

    def link(self) -> bool:
        return run(self.linking, self.place)[0]

    def restore(self, sources: Iterable[str]) -> None:
        for source in sources:
            self.object_of(source).write_bytes(self.pristine[source])

    def verdict(self, sources: list[str]) -> str | None:
        """What becomes of the mutated file here; None: nothing happens, ask the next stage."""
        made = [self.compile(source) for source in sources]
        if None in made:
            return "does not build"
        if made == [self.pristine[source] for source in sources]:
            return "same code"
        if not self.link():
            return "does not build"
        limit = max(PATIENCE, self.seconds[shlex.join(self.stage.test)] * SLOWER)
        good, printed = run(self.stage.test, self.place, limit)
        if good:
            return None
        return f"caught by {self.stage.failed(printed) if printed else 'a hang'}"


class Tree:
    """A copy of the project that one worker mutates."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.builds: dict[str, Build] = {}
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(ROOT, place, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)

    def build(self, stage: Stage) -> Build:
        made = self.builds.get(stage.name)
        if made is None:
            made = self.builds[stage.name] = Build(stage, self.place)
            made.make()
        made.stage = stage
        test = shlex.join(stage.test)
        if test not in made.seconds:
            made.link()  # what is there has the last mutant of another file in it
            began = time.monotonic()
            good, printed = run(stage.test, made.place)
            if not good:
                sys.exit(f"{test} fails without any fault:\n{printed[-3000:]}")
            made.seconds[test] = time.monotonic() - began
        return made

    def judge(self, mutant: Mutant, wanted: list[str]) -> str:
        """The first stage that notices decides."""
        file = self.place / mutant.path
        text = file.read_text()
        unseen = True
        for stage in stages_for(mutant.path):
            if wanted and stage.name not in wanted:
                continue
            build = self.build(stage)
            sources = build.prepare(mutant.path)
            if not sources:
                continue
            file.write_text(mutant.applied(text))
            try:
                verdict = build.verdict(sources)
            finally:
                file.write_text(text)
                build.restore(sources)
            if verdict == "same code" or verdict is None:
                unseen = unseen and verdict is not None
                continue
            return verdict
        return "same code" if unseen else "survived"


class Ledger:
    """What is known already, one line of JSON for each mutant that was tried."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lock = threading.Lock()
        lines = file.read_text().splitlines() if file.exists() else []
        self.verdicts: dict[str, str] = dict(json.loads(line) for line in lines)

    def add(self, mutant: Mutant, verdict: str) -> None:
        with self.lock:
            self.verdicts[mutant.name] = verdict
            with self.file.open("a") as out:
                out.write(json.dumps([mutant.name, verdict]) + "\n")
            print(f"{verdict:24} {mutant.name}", flush=True)


def explained() -> dict[str, str]:
    """Survivors that are known, with the reasons: lines of names, then the reason, indented."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for line in (HERE / "survivors.txt").read_text().splitlines():
        if line.startswith(" "):
            found.update(dict.fromkeys(waiting, line.strip()))
            waiting = []
        elif line and not line.startswith("#"):
            waiting.append(line)
    return found


def chosen(files: list[str], options: argparse.Namespace) -> list[Mutant]:
    """The mutants to try. A sample stays nearly the same when a file changes a little."""
    found = [mutant for file in files for mutant in mutants_of(file, (ROOT / file).read_text())]
    found = [mutant for mutant in found if options.only in mutant.name]
    if options.sample is None:
        return found
    seed = options.seed
    return sorted(found, key=lambda m: hashlib.sha256(f"{seed} {m.name}".encode()).digest())[
        : options.sample
    ]


def work(
    place: Path, todo: queue.SimpleQueue[Mutant], ledger: Ledger, options: argparse.Namespace
) -> None:
    tree = Tree(place)
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        try:
            mutant = todo.get_nowait()
        except queue.Empty:
            return
        ledger.add(mutant, tree.judge(mutant, options.stages))


def report(mutants: list[Mutant], ledger: Ledger) -> int:
    verdicts = {m.name: ledger.verdicts[m.name] for m in mutants if m.name in ledger.verdicts}
    counts = Counter(verdict.split(" by ")[0] for verdict in verdicts.values())
    known = explained()
    left = [name for name, verdict in verdicts.items() if verdict == "survived"]
    unknown = [name for name in left if name not in known]
    print(
        f"\n{len(verdicts)} of {len(mutants)} mutants:",
        ", ".join(f"{n} {v}" for v, n in counts.most_common()),
    )
    print(len(left) - len(unknown), "survivors are explained in survivors.txt; these are not:")
    print(*unknown, sep="\n")
    return bool(unknown)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("files", nargs="+", help="C files")
    add("--only", default="", help="mutants whose names contain this, such as a function's name")
    add("--sample", type=int, help="so many of all mutants, chosen by the seed")
    add("--seed", type=int, default=0)
    add("--jobs", type=int, default=1)
    add("--minutes", type=float, default=1e6, help="begin no other mutant after so long")
    add("--stages", nargs="+", default=[], help="only these of c, hard, python")
    add("--again", default="?", help="try those once more whose verdict contains this")
    add("--list", action="store_true", help="print the mutants and their verdicts, try nothing")
    add("--place", type=Path, default=ROOT / "build" / "mutate", help="for copies and results")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    files = [str(Path(file).resolve().relative_to(ROOT)) for file in options.files]
    mutants = chosen(files, options)
    options.place.mkdir(parents=True, exist_ok=True)
    ledger = Ledger(options.place / "results.jsonl")
    if options.list:
        print(*(f"{ledger.verdicts.get(m.name, '-'):24} {m.name}" for m in mutants), sep="\n")
        return 0
    todo: Todo = queue.SimpleQueue()
    for mutant in mutants:
        before = ledger.verdicts.get(mutant.name)
        if before is None or options.again in before:
            todo.put(mutant)
    with ThreadPoolExecutor(options.jobs) as pool:
        places = [options.place / f"tree-{n}" for n in range(options.jobs)]
        for done in [pool.submit(work, place, todo, ledger, options) for place in places]:
            done.result()
    return report(mutants, ledger)


if __name__ == "__main__":
    sys.exit(main())
