"""Endurance runs: python -m tests.soak, or one of them by name."""

from __future__ import annotations

import argparse

from tests.soak import counted, mixed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("names", nargs="*", choices=["switches", "spawns", "mixed", []])
    parser.add_argument("--switches", type=int, default=10**9)
    parser.add_argument("--spawns", type=int, default=10**8)
    parser.add_argument("--minutes", type=float, default=60.0, help="of the mixed load")
    parser.add_argument("--seed", type=int, default=0, help="of the mixed load's first round")
    options = parser.parse_args()
    names = options.names or ["switches", "spawns", "mixed"]
    if "switches" in names:
        counted.switches(options.switches)
    if "spawns" in names:
        counted.spawns(options.spawns)
    if "mixed" in names:
        mixed.mixed(options.minutes, options.seed)


if __name__ == "__main__":
    main()
