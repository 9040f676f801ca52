"""How many instructions each hot path takes, and whether that has risen.

    python -m bench.instructions            # count, beside what bench/instructions/3.13.json keeps
    python -m bench.instructions --check    # the same; exit 1 if one rose by more than 3 %
    python -m bench.instructions --renew    # keep the counts from now on

On a shared machine times differ by a tenth from minute to minute, these counts (callgrind's) by
less than a hundredth. Each operation runs in a process of its own, once few and once many times:
the difference is the operation, without the interpreter's start.

Two counts are kept: of everything that runs, and of pyfiber's own code. The first depends on the
build of the interpreter, both on the compiler. Where another interpreter of the same version runs
only the second is compared; with another compiler nothing is, and the check says so.
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
#: A cost in a profile: where it is, relative or not, and how many instructions.
COST = re.compile(r"(?:\+|-)?(?:\d+|\*) (\d+)$")


@dataclasses.dataclass
class Count:
    """Instructions for one operation."""

    all: float
    ours: float


@dataclasses.dataclass
class Counts:
    """Those of every operation, and what they hold for."""

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

    The line after `calls=` is what the call cost, which its callee's lines tell as well.
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
    """All that an interpreter with these arguments executes."""
    with tempfile.TemporaryDirectory() as scratch:
        profile = pathlib.Path(scratch, "profile")
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={profile}"]
        command += ["--compress-strings=no", sys.executable, "-B", *arguments]
        # A seed makes the dictionaries' order, and with it the count, the same each time.
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
    """Of one operation, which an interpreter performs as often as the arguments say."""
    less, more = measure(arguments(few)), measure(arguments(many))
    done = many - few
    return Count(round((more.all - less.all) / done, 1), round((more.ours - less.ours) / done, 1))


def price_of(name: str) -> Count:
    """Of a hot path."""
    return price(lambda number: [HOT_PATHS, name, str(number)])


def hot_paths() -> list[str]:
    """Their names."""
    command = [sys.executable, HOT_PATHS]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def compiler() -> str:
    """What made the extension that is measured, as far as it tells."""
    told = subprocess.run(
        ["readelf", "--string-dump=.comment", OURS], check=True, capture_output=True, text=True
    )
    return ", ".join(sorted(set(re.findall(r"\] +(.+)", told.stdout))))


def count_all(names: list[str]) -> Counts:
    """As many at a time as there are processors: they do not disturb each other's counts."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        prices = dict(zip(names, pool.map(price_of, names), strict=True))
    return Counts(sys.version, compiler(), prices)


def rise(now: float, before: float) -> float:
    """By what fraction; an instruction or two is the noise of where objects lie."""
    return 0.0 if abs(now - before) <= 2 else now / before - 1


def compare(now: Counts, kept: Counts) -> list[str]:
    """Print the counts beside those kept; the operations that rose too much."""
    whole = now.interpreter == kept.interpreter
    risen = []
    print(f"{'operation':18}{'all':>9}{'kept':>9}{'':8}{'ours':>9}{'kept':>9}")
    for name, count in now.operations.items():
        before = kept.operations.get(name, count)  # a new one
        rises = rise(count.all, before.all), rise(count.ours, before.ours)
        print(
            f"{name:18}{count.all:9}{before.all:9}{rises[0]:+8.1%}"
            f"{count.ours:9}{before.ours:9}{rises[1]:+8.1%}"
        )
        if (rises[0] if whole else rises[1]) > MOST_RISE:
            risen.append(name)
    if not whole:
        print(f"Only pyfiber's own code is compared: kept were counts of {kept.interpreter}")
    return risen


def check(now: Counts, file: pathlib.Path) -> int:
    """0 if nothing has risen, or nothing can be said."""
    kept = Counts.from_file(file)
    risen = compare(now, kept)
    if now.compiler != kept.compiler:
        print(f"NOT CHECKED: kept were counts of {kept.compiler}, this is {now.compiler}")
        return 0
    if risen:
        print(f"More than {MOST_RISE:.0%} more instructions: {', '.join(risen)}")
        print("If that is meant: python -m bench.instructions --renew, and say why in the commit")
    return 1 if risen else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if one has risen")
    parser.add_argument("--renew", action="store_true", help="keep the counts")
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
