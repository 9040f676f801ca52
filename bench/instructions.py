"""Counts the instructions of each hot path, and checks whether a count has risen.

    python -m bench.instructions            # print counts beside the stored ones
    python -m bench.instructions --check    # the same; exit 1 if a count rose by more than 3 %
    python -m bench.instructions --renew    # store the new counts

bench/instructions has the stored counts, a file for each version of Python. On a shared machine
times differ by a tenth from minute to minute, these counts (callgrind's) by less than a hundredth.
Each operation runs in two processes, a few times and many times: the difference is the operation,
without the interpreter's start.

Two counts are stored: of everything that runs, and of pyfiber's own code. The first depends on the
build of the interpreter, both depend on the compiler. With another build of the same version only
the second is compared; with another compiler nothing is compared, and the check says so.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from pyfiber import _engine

OURS = _engine.__file__
BENCH = pathlib.Path(__file__).parent
KEPT, HOT_PATHS = BENCH / "instructions", str(BENCH / "hot_paths.py")
FEW, MANY = 2_000, 12_000
MOST_RISE = 0.03
#: A line of costs in a profile: a place, absolute or relative, and how many instructions.
COST = re.compile(r"(?:\+|-)?(?:\d+|\*) (\d+)$")


@dataclasses.dataclass
class Count:
    """How many instructions one operation takes: in all code, and in pyfiber's."""

    all: float
    ours: float


@dataclasses.dataclass
class Counts:
    """The counts of all operations, and the interpreter and compiler that they hold for."""

    interpreter: str
    compiler: str
    operations: dict[str, Count]

    @classmethod
    def from_file(cls, path: pathlib.Path) -> Counts:
        fields: dict[str, Any] = json.loads(path.read_text())
        operations = {name: Count(**count) for name, count in fields.pop("operations").items()}
        return cls(**fields, operations=operations)

    def to_file(self, path: pathlib.Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(dataclasses.asdict(self), indent=2) + "\n")


def costs(profile: Iterator[str]) -> Iterator[tuple[str, int]]:
    """The object file and the number of instructions of each place of a callgrind profile.

    The line after `calls=` is the cost of the call, which is in the callee's lines as well.
    """
    place = ""
    for line in profile:
        if line.startswith("ob="):
            place = line[3:].rstrip()
        elif line.startswith("calls="):
            next(profile)
        elif found := COST.match(line):
            yield place, int(found[1])


def measure(arguments: list[str]) -> Count:
    """Count the instructions of an interpreter with these arguments."""
    with tempfile.TemporaryDirectory() as scratch:
        profile = pathlib.Path(scratch, "profile")
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}"]
        command += ["--compress-strings=no", sys.executable, "-B", *arguments]
        # With a fixed seed strings have the same hashes, and the count is the same each time.
        environment = {**os.environ, "PYTHONHASHSEED": "0"}
        subprocess.run(
            command,
            check=True,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        count = Count(0, 0)
        with profile.open() as lines:
            for place, instructions in costs(lines):
                count.all += instructions
                count.ours += instructions if place == OURS else 0
    return count


def price(arguments: Callable[[int], list[str]], few: int = FEW, many: int = MANY) -> Count:
    """Count one operation, which an interpreter performs as often as the arguments say."""
    less, more = measure(arguments(few)), measure(arguments(many))
    done = many - few
    return Count(round((more.all - less.all) / done, 1), round((more.ours - less.ours) / done, 1))


def price_of(name: str) -> Count:
    """Count one operation of a hot path."""
    return price(lambda number: [HOT_PATHS, name, str(number)])


def hot_paths() -> list[str]:
    """Return the names of the hot paths."""
    command = [sys.executable, HOT_PATHS]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def compiler() -> str:
    """Return the compiler of the measured extension, as far as the file says."""
    told = subprocess.run(
        ["readelf", "--string-dump=.comment", OURS], check=True, capture_output=True, text=True
    )
    return ", ".join(sorted(set(re.findall(r"\] +(.+)", told.stdout))))


def count_all(names: list[str]) -> Counts:
    """Count operations, as many at a time as there are processors: counts are not disturbed."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        prices = dict(zip(names, pool.map(price_of, names), strict=True))
    return Counts(sys.version, compiler(), prices)


def rise(now: float, before: float) -> float:
    """Return the rise as a fraction. Up to two instructions are noise: objects lie elsewhere."""
    return 0.0 if abs(now - before) <= 2 else now / before - 1


def compare(now: Counts, kept: Counts) -> list[str]:
    """Print the counts beside the stored ones; return the operations that rose too much."""
    whole = now.interpreter == kept.interpreter
    risen = []
    print(f"{'operation':18}{'all':>9}{'kept':>9}{'':8}{'ours':>9}{'kept':>9}")
    for name, count in now.operations.items():
        before = kept.operations.get(name, count)  # a new operation
        rises = rise(count.all, before.all), rise(count.ours, before.ours)
        print(
            f"{name:18}{count.all:9}{before.all:9}{rises[0]:+8.1%}"
            f"{count.ours:9}{before.ours:9}{rises[1]:+8.1%}"
        )
        if (rises[0] if whole else rises[1]) > MOST_RISE:
            risen.append(name)
    if not whole:
        print(f"Only pyfiber's own code is compared: the stored counts are from {kept.interpreter}")
    return risen


def check(now: Counts, file: pathlib.Path) -> int:
    """Compare with the stored counts; return 1 if one has risen too much, else 0."""
    kept = Counts.from_file(file)
    risen = compare(now, kept)
    if now.compiler != kept.compiler:
        print(f"NOT CHECKED: the stored counts are from {kept.compiler}, these from {now.compiler}")
        return 0
    if risen:
        print(f"More than {MOST_RISE:.0%} more instructions: {', '.join(risen)}")
        print(
            "If this is intended: python -m bench.instructions --renew, and say why in the commit"
        )
    return 1 if risen else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if a count has risen")
    parser.add_argument("--renew", action="store_true", help="store the counts")
    parser.add_argument("names", nargs="*", help="these operations only", metavar="OPERATION")
    options = parser.parse_args()
    file = KEPT / "{}.{}.json".format(*sys.version_info)
    if options.renew and options.names:
        parser.error("--renew counts all operations")
    if not (options.renew or file.exists()):
        parser.error(f"there is no {file}: --renew makes it")
    now = count_all(options.names or hot_paths())
    if options.renew:
        now.to_file(file)
    status = check(now, file)
    return status if options.check else 0


if __name__ == "__main__":
    sys.exit(main())
