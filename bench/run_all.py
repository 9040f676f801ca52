"""Run the benchmarks under several interpreters and keep one JSON document for each.

    python bench/run_all.py python3.11 python3.13 .venv/bin/python
    python bench/run_all.py --results DIRECTORY python3.13 -- --quick --only 'switch*'

Every interpreter must have pyfiber installed, and the peers that are to be measured:

    python -m pip install . greenlet gevent uvloop trio

They run one after the other, on a machine that does nothing else. What follows `--` is handed to
`python -m bench`. Then bench/table.py and bench/plot.py show the results.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
TAG_PROGRAM = """
import sys
print("{0}-{1.major}.{1.minor}".format(sys.implementation.name, sys.version_info))
"""


def tag(interpreter: str) -> str:
    """Name an interpreter after its version, as in cpython-3.13."""
    asked = [interpreter, "-c", TAG_PROGRAM]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def run(interpreter: str, results: Path, options: list[str]) -> bool:
    """Run the benchmarks under one interpreter; whether all of pyfiber's could be measured."""
    file = results / f"{tag(interpreter)}.json"
    print(f"{interpreter} -> {file}", file=sys.stderr)
    command = [interpreter, "-m", "bench", "--json", str(file.resolve()), *options]
    return subprocess.run(command, check=False, cwd=RESULTS.parent.parent).returncode == 0


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """What is meant for this script, and what for the benchmarks."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


def absolute(interpreter: str) -> str:
    """Make a path independent of the working directory; a bare name is looked up as always."""
    path = Path(interpreter)
    return interpreter if path.name == interpreter else str(path.absolute())


def main() -> int:
    """Run the benchmarks under every interpreter named; 1 when any of them failed."""
    own, handed_on = split_arguments(sys.argv[1:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("interpreters", nargs="+", metavar="PYTHON")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the documents go")
    options = parser.parse_args(own)
    options.results.mkdir(parents=True, exist_ok=True)
    interpreters = map(absolute, options.interpreters)
    failed = [one for one in interpreters if not run(one, options.results, handed_on)]
    for interpreter in failed:
        print(f"failed: {interpreter}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
