"""`python -m pyfiber`: run programs in fibers, look at them, measure pyfiber."""

from __future__ import annotations

import argparse
import json
import sys

import pyfiber


def add_bench(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `bench`, which prints a small table of measurements."""
    text = "measure pyfiber beside greenlet, gevent, asyncio, uvloop and trio, if installed"
    parser = commands.add_parser("bench", help=text, description=text)
    parser.add_argument("--quick", action="store_true", help="two repetitions instead of five")
    parser.add_argument(
        "--only", metavar="ROW", action="append", help="this row; may be given several times"
    )
    parser.add_argument("--json", metavar="FILE", help="write all values there as well")
    parser.set_defaults(main=bench)


def bench(options: argparse.Namespace) -> int:
    """Run the benchmark, whose modules no other command imports."""
    from pyfiber import _bench

    return _bench.main(options)


def add_explore(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `explore`, which finds races in tests of threaded code."""
    from pyfiber.testing import command

    parser = commands.add_parser(
        "explore", help="find races in tests of threaded code", description=command.DESCRIPTION
    )
    command.add_arguments(parser)


def add_greenlet(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `greenlet`, which runs a program with pyfiber in greenlet's place."""
    from pyfiber.greenlet import command

    parser = commands.add_parser(
        "greenlet",
        help="run a program with pyfiber in greenlet's place",
        description=command.DESCRIPTION,
    )
    command.add_arguments(parser)


def add_info(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `info`, which prints what this build is made of."""
    description = "Say what this build is made of: backend, stack size, guard, CPython facts."
    parser = commands.add_parser("info", help="what this build is made of", description=description)
    parser.add_argument("--json", action="store_true", help="as a JSON object")
    parser.set_defaults(main=info)


def info(options: argparse.Namespace) -> int:
    """Print what `pyfiber.debug.info()` returns."""
    facts = dict(pyfiber.debug.info())
    if options.json:
        print(json.dumps(facts, indent=1, default=str))
        return 0
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<{width}}  {value}")
    return 0


def add_ps(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `ps`, which shows the fibers of a running process."""
    from pyfiber._debug import command

    text = "the fibers of a running process"
    command.add_ps(commands.add_parser("ps", help=text, description=command.PS))


def add_top(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `top`, which shows the fibers of a running process again and again."""
    from pyfiber._debug import command

    text = "what the fibers of a running process do, again and again"
    command.add_top(commands.add_parser("top", help=text, description=command.TOP))


def add_run(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `run`, which runs a program in a fiber."""
    from pyfiber._patch import command

    parser = commands.add_parser(
        "run", help="run a program in a fiber, patched if wanted", description=command.DESCRIPTION
    )
    command.add_arguments(parser)


#: Functions that each add one command to the parser.
COMMANDS = (add_bench, add_explore, add_greenlet, add_info, add_ps, add_run, add_top)


def main(arguments: list[str] | None = None) -> int:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m pyfiber", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    words = sys.argv[1:] if arguments is None else arguments
    # What one command needs is not imported for another one.
    named = [add for add in COMMANDS if words[:1] == [add.__name__.removeprefix("add_")]]
    for add in named or COMMANDS:
        add(commands)
    for_pytest: list[str] = []
    if words[:1] == ["explore"] and "--" in words:
        at = words.index("--")
        words, for_pytest = words[:at], words[at + 1 :]
    options = parser.parse_args(words, argparse.Namespace(for_pytest=for_pytest))
    result: int = options.main(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
