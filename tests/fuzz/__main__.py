"""Play random programs: many of some kinds, or one and show its calls."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import sys
from collections.abc import Iterable

from . import KINDS, batch, driver


def seeds_of(text: str) -> Iterable[int]:
    """A:B, or A: without an end."""
    first, colon, stop = text.partition(":")
    if not colon or not first.isdigit() or not (stop.isdigit() or not stop):
        raise argparse.ArgumentTypeError(f"seeds are FIRST:STOP or FIRST:, not {text!r}")
    return range(int(first), int(stop)) if stop else itertools.count(int(first))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=[*KINDS, "all", "broken"])
    parser.add_argument("--seeds", type=seeds_of, default=range(1000), help="FIRST:STOP")
    parser.add_argument("--seed", type=int, help="this one alone, in this process")
    parser.add_argument("--steps", type=int, help="the most steps of a program")
    parser.add_argument("--minutes", type=float, default=math.inf, help="for each kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--here", action="store_true", help="in this process; for the driver")
    parser.add_argument("-v", "--verbose", action="store_true", help="show the calls (with --seed)")
    options = parser.parse_args()
    kinds = KINDS if "all" in options.kinds else options.kinds
    if options.here:  # then anything but 0 says that the process came to a bad end
        batch.run(kinds[0], options.seeds, options.steps)
        return 0
    if options.seed is not None:
        return int(batch.run(kinds[0], [options.seed], options.steps, options.verbose))
    fine = [
        driver.hunt(kind, iter(options.seeds), options.steps, options.minutes, options.jobs)
        for kind in kinds
    ]
    return int(not all(fine))


if __name__ == "__main__":
    sys.exit(main())
