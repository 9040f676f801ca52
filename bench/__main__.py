"""The command line: `python -m bench`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from . import report
from .model import CORES, CURVES, ENGINE, IO, PYFIBER
from .progress import Progress
from .rows import ROWS, select
from .runner import FAILED, QUICK, RowResult, Settings, measurements, run

DESCRIPTION = """\
Measure pyfiber beside the libraries that are installed in the same environment: greenlet, gevent,
asyncio, uvloop, trio, generators, and threads. Values are nanoseconds for one operation unless a
row says bytes or ms."""


def make_parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=DESCRIPTION)
    parser.add_argument(
        "family",
        nargs="?",
        choices=(ENGINE, IO, CURVES, CORES),
        default=ENGINE,
        help="which rows: those of fibers and schedulers (the default), or those of servers under "
        "load, for which a C compiler is needed; or how costs grow with depth and number; or two "
        "threads at once",
    )
    parser.add_argument(
        "--quick", action="store_true", help="few repetitions of little work: seconds, less exact"
    )
    parser.add_argument(
        "--full", action="store_true", help="also what takes gigabytes: one million parked fibers"
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        default=[],
        help="only this row; may be given several times and be a pattern such as 'switch*'",
    )
    parser.add_argument("--list", action="store_true", help="name the rows, measure nothing")
    parser.add_argument("--json", metavar="FILE", help="write the results there; - is the output")
    parser.add_argument(
        "--repeat", metavar="N", type=positive, help="repetitions, of which the best one counts"
    )
    return parser


def positive(text: str) -> int:
    """An argument that must be a whole number above zero."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def settings_from(options: argparse.Namespace) -> Settings:
    """How thoroughly to measure, as the options say."""
    settings = QUICK if options.quick else Settings()
    return dataclasses.replace(settings, repetitions=options.repeat or settings.repetitions)


def list_rows() -> str:
    """The rows with what they measure."""
    return "\n".join(f"{row.name:<14} {row.title}\n{'':<14} {row.description}" for row in ROWS)


def pyfiber_failed(results: list[RowResult]) -> bool:
    """Whether a measurement of pyfiber itself went wrong."""
    return any(
        result.status == FAILED and result.case.subject.startswith(PYFIBER)
        for row in results
        for result in row.results
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, write the document. 1 when pyfiber failed somewhere."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.list:
        print(list_rows())
        return 0
    try:
        rows = select(options.only, full=options.full, family=options.family)
    except ValueError as error:
        parser.error(str(error))
    settings = settings_from(options)
    load = report.load_average()
    progress = Progress(measurements(rows, settings), sys.stderr)
    results = run(rows, settings, progress)
    progress.begin("")
    facts = report.environment()
    if options.json != "-":
        print(report.table(results, facts, settings, load))
    if options.json:
        write_json(options.json, report.document(results, facts, settings, load))
    return 1 if pyfiber_failed(results) else 0


def write_json(file: str, document: dict[str, object]) -> None:
    """Write the document to a file, or to standard output for `-`."""
    text = json.dumps(document, indent=1) + "\n"
    if file == "-":
        sys.stdout.write(text)
    else:
        Path(file).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
