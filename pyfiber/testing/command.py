"""`python -m pyfiber explore`: find races in the tests of a threaded program."""

from __future__ import annotations

import argparse
import os
from importlib.metadata import entry_points

DESCRIPTION = """\
Run each test under many schedules: its threads are fibers, interrupted between any two lines (or
instructions) that touch what threads share. A failure is shrunk, told line by line, and can be
replayed. The tests are pytest's; options after "--" go to pytest.
"""
PLUGIN = "pyfiber.testing.plugin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add = parser.add_argument
    add("tests", nargs="+", metavar="TEST", help="test_file.py, or test_file.py::test")
    add("-n", type=int, metavar="N", help="schedules of each test (1,000)", dest="schedules")
    add("--switch", choices=("wait", "line", "access", "gil"), help="where to interrupt (line)")
    add("--preemptions", type=int, metavar="N", help="interruptions in a schedule (2)")
    add("--seed", type=int, metavar="N", help="other schedules")
    add("--include", action="append", metavar="MODULE", help="interrupt this library's code, too")
    add("--exclude", action="append", metavar="MODULE", help="do not interrupt this module's code")
    add("--html", metavar="DIR", help="write reports of failures there as HTML")
    add("--replay", metavar="SCHEDULE", help="run the test under this schedule only")
    parser.set_defaults(main=main)


def arguments(options: argparse.Namespace) -> list[str]:
    """Translate the options for pytest."""
    words = ["--fiber-explore"]
    for name in ("schedules", "switch", "preemptions", "seed", "html", "replay"):
        value = getattr(options, name)
        if value is not None:
            words.append(f"--fiber-{name}={value}")
    for name in ("include", "exclude"):
        words += [f"--fiber-{name}={module}" for module in getattr(options, name) or ()]
    autoload = not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    if not (autoload and entry_points(group="pytest11", name="pyfiber")):
        words += ["-p", PLUGIN]
    return [*words, *options.tests, *options.for_pytest]


def main(options: argparse.Namespace) -> int:
    """Run the tests."""
    try:
        import pytest
    except ModuleNotFoundError:
        raise SystemExit("python -m pyfiber explore needs pytest: pip install pytest") from None
    return int(pytest.main(arguments(options)))
