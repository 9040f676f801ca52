"""The pytest plugin: ``@pytest.mark.fiber`` runs a test function in virtual time.

    @pytest.mark.fiber                                     # once, in the usual order
    @pytest.mark.fiber(schedules=500, strategy="pct")      # as explore() does
    @pytest.mark.fiber(clock=datetime(2030, 1, 1))         # where time starts

The function is plain; it runs in a fiber, once for each schedule, with its fixtures: fixtures.py.
`--fiber-seed`, `--fiber-schedules` and others override the marks; with `--fiber-explore` tests
without the mark are explored as well, with their threads: `python -m pyfiber explore`.
"""

from __future__ import annotations

import functools
import inspect
import re
import shlex
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from _pytest.fixtures import SubRequest
from _pytest.unittest import TestCaseFunction

from pyfiber.testing.clock import VirtualClock
from pyfiber.testing.errors import ScheduleFailure
from pyfiber.testing.explore import explore_program, replay_program, run_program
from pyfiber.testing.fixtures import belongs_in_the_run, fixtures_of
from pyfiber.testing.runner import RUN_STEPS, Program, check_count, clock_of, network_of
from pyfiber.testing.schedule import Schedule
from pyfiber.testing.search import Exploration, How, how_to

__tracebackhide__ = True  # pytest's

EXPLORING = ("schedules", "strategy", "seed", "depth", "preemptions")
PLACES = ("switch", "include", "exclude")
PROGRAM = ("preempt", "unfair", "max_steps", "leftovers", "virtualize_time", "threads", *PLACES)
OPTIONS = (*EXPLORING, "clock", "network", *PROGRAM)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pyfiber", "fibers under test")
    group.addoption("--fiber-seed", type=int, metavar="N", help="seed of all explorations")
    group.addoption(
        "--fiber-schedules", type=int, metavar="N", help="schedules of each exploration"
    )
    group.addoption(
        "--fiber-replay", metavar="SCHEDULE", help="run the selected test under this schedule only"
    )
    group.addoption(
        "--fiber-explore",
        action="store_true",
        help="explore all selected tests, interrupting their threads at lines",
    )
    group.addoption("--fiber-switch", metavar="WHERE", help="wait, line, access or gil")
    group.addoption(
        "--fiber-preemptions", type=int, metavar="N", help="interruptions in a schedule"
    )
    for name in ("include", "exclude"):
        group.addoption(
            f"--fiber-{name}", action="append", metavar="MODULE", help=f"{name} this module's code"
        )
    group.addoption("--fiber-html", metavar="DIR", help="write reports of failures there as HTML")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "fiber(schedules=1, strategy='random', seed=0, depth=3, clock='virtual', ...): run the "
        "function in a fiber, in virtual time, under that many schedules (pyfiber.testing)",
    )


def settings(item: pytest.Item) -> dict[str, Any] | None:
    """What the nearest mark and the options say; None if the test is not run in fibers.

    UsageError if the mark is wrong.
    """
    mark = item.get_closest_marker("fiber")
    option = item.config.getoption
    given: dict[str, Any] = {"threads": "simulated", "switch": "line"}
    if mark is None:
        return given | overriding(option) if option("fiber_explore") else None
    unknown = [name for name in mark.kwargs if name not in OPTIONS]
    if mark.args or unknown:
        what = f"{unknown[0]!r}" if unknown else "positional arguments"
        raise pytest.UsageError(
            f"{item.nodeid}: mark.fiber does not take {what}; it takes {', '.join(OPTIONS)}"
        )
    if not option("fiber_explore"):
        given.clear()
    return given | dict(mark.kwargs) | overriding(option)


def overriding(option: Callable[[str], Any]) -> dict[str, Any]:
    """The options of the command line that override marks."""
    names = ("switch", "preemptions", "include", "exclude")
    return {name: value for name in names if (value := option(f"fiber_{name}")) is not None}


def quoted(nodeid: str) -> str:
    """Quote a test's ID for the command line of most shells."""
    return shlex.quote(nodeid) if set(nodeid) & set('"$`\\!') else f'"{nodeid}"'


EXPLORED = pytest.StashKey[dict[str, Exploration]]()


def write_page(failure: ScheduleFailure, folder: str, nodeid: str) -> Path:
    """Write the report of a failure into the folder; return the file."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    path = Path(folder, re.sub(r"[^\w.-]+", "_", nodeid) + ".html")
    path.write_text(failure.html(), encoding="utf-8")
    return path


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how much was explored, if the command line has asked for it."""
    if config.getoption("fiber_explore"):
        for nodeid, found in config.stash.get(EXPLORED, {}).items():
            terminalreporter.write_line(f"{nodeid}: {found}")


class Exploring:
    """How a test is to be explored: its mark, and what the command line overrides."""

    def __init__(self, item: pytest.Item, given: dict[str, Any]) -> None:
        self.item = item
        self.given = given
        option = item.config.getoption
        self.seeded = "seed" in given or option("fiber_seed") is not None
        self.wanted = "schedules" in given or given.get("strategy", "fifo") != "fifo"
        self.wanted |= given.get("switch", "wait") != "wait"
        if option("fiber_schedules") is not None:
            check_count(option("fiber_schedules"), "--fiber-schedules")
        self.schedule = option("fiber_replay")

    def how(self, program: Program) -> How:
        """The search that the mark asks for, unless the command line overrides it."""
        given, option = self.given, self.item.config.getoption
        seed, schedules = option("fiber_seed"), option("fiber_schedules")
        return how_to(
            program,
            given.get("schedules", 1000) if schedules is None else schedules,
            given.get("strategy"),
            given.get("seed", 0) if seed is None else seed,
            given.get("depth", 3),
            given.get("preemptions", 2),
        )

    def program(self, fn: Callable[..., Any], args: tuple[Any, ...] = ()) -> Program:
        """The Program that runs the function."""
        rest = {name: self.given[name] for name in PROGRAM if name in self.given}
        return Program(
            fn,
            args,
            clock=self.clock(),
            network=network_of(self.given.get("network", False)),
            replay=self.replay(),
            **rest,
        )

    def replay(self) -> str:
        """The command that repeats a failure."""
        option = self.item.config.getoption
        test = quoted(self.item.nodeid)
        explored = option("fiber_explore")
        words = ["python -m pyfiber explore" if explored else "pytest", test]
        prefix = "--" if explored else "--fiber-"
        words.append(f"{prefix}replay=SCHEDULE")
        for name in ("include", "exclude"):
            words += [f"{prefix}{name}={module}" for module in option(f"fiber_{name}") or ()]
        return " ".join(words)

    def clock(self) -> VirtualClock | None:
        """The clock of the fixture `virtual_clock` if the test has it, else the mark's."""
        fixtures: dict[str, Any] = getattr(self.item, "funcargs", {})
        clock = fixtures.get("virtual_clock")
        return clock if clock is not None else clock_of(self.given.get("clock"))

    def run(self, fn: Callable[..., Any]) -> Any:
        """Replay, explore or run the function once; write a failure as HTML if that is asked."""
        folder = self.item.config.getoption("fiber_html")
        try:
            return self.run_program(fn)
        except ScheduleFailure as failure:
            if folder is not None:
                failure.add_note(f"report: {write_page(failure, folder, self.item.nodeid)}")
            raise

    def run_program(self, fn: Callable[..., Any]) -> Any:
        program = self.program(fn)
        if self.schedule is not None:
            return replay_program(program, Schedule.parse(self.schedule))
        how = self.how(program)
        if self.wanted:
            found = explore_program(program, how)
            self.item.config.stash.setdefault(EXPLORED, {})[self.item.nodeid] = found
            return found
        if "max_steps" not in self.given:
            program.max_steps = RUN_STEPS
        return run_program(program, how.seed if self.seeded else None, None, how.depth)


def wrapped(exploring: Exploring, function: Callable[..., Any]) -> Callable[..., Any]:
    """The test function, each call of which is a run, or many."""

    fixtures = fixtures_of(exploring.item)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> None:
        with_fixtures = partial(fixtures.call, function, args, kwargs)
        exploring.run(functools.wraps(function)(lambda: with_fixtures()))

    return called


@contextmanager
def in_fibers(item: pytest.Function) -> Iterator[None]:
    """Make the item run as its mark says, if it has one."""
    given = settings(item)
    if given is None:
        yield
        return
    function = item.obj
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        if item.get_closest_marker("fiber") is None:
            pytest.skip("async functions are not explored: call asyncio.run() in a plain one")
        pytest.fail("mark.fiber is for plain functions, not for coroutines", pytrace=False)
    try:
        exploring = Exploring(item, given)
        exploring.how(exploring.program(function))
    except (TypeError, ValueError) as exc:
        raise pytest.UsageError(f"{item.nodeid}: mark.fiber: {exc}") from None
    if (item.config.getoption("fiber_schedules") or 1) > 1:
        exploring.wanted = True
    # For a hypothesis test, each example is explored, not the search for examples.
    hypothesis = getattr(function, "hypothesis", None)
    if hypothesis is not None:
        owner, name, inner = hypothesis, "inner_test", hypothesis.inner_test
    else:
        owner, name, inner = item, "obj", function
    setattr(owner, name, wrapped(exploring, inner))
    try:
        yield
    finally:
        setattr(owner, name, inner)


@pytest.hookimpl(tryfirst=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any], request: SubRequest) -> object:
    """Leave a fixture of a marked test to the runs. None: pytest makes the fixture."""
    if not belongs_in_the_run(fixturedef) or settings(request.node) is None:
        return None
    return fixtures_of(request.node).setup(fixturedef, request)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    with in_fibers(pyfuncitem):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Run methods of unittest.TestCase, which the hook above does not call."""
    if isinstance(item, TestCaseFunction):
        with in_fibers(item):
            return (yield)
    return (yield)


@pytest.fixture
def virtual_clock(request: pytest.FixtureRequest) -> VirtualClock:
    """The VirtualClock of a test with the mark; a new one otherwise."""
    given = settings(request.node) or {}
    clock = clock_of(given.get("clock"))
    if clock is None:
        raise pytest.UsageError(f"{request.node.nodeid}: virtual_clock with clock='real'")
    return clock


class FiberRun:
    """The fixture `fiber_run`: call it with a function to run that in fibers.

    The options are those of the mark; those of the command line apply here, too.
    """

    def __init__(self, item: pytest.Item) -> None:
        self.item = item

    def __call__(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Run fn(*args) once (or as options say) and return its result."""
        return Exploring(self.item, checked(options)).run(bound(fn, args))

    def explore(self, fn: Callable[..., Any], *args: Any, **options: Any) -> Exploration:
        """Explore fn(*args)."""
        given = {"schedules": 1000, **checked(options)}
        found: Exploration = Exploring(self.item, given).run(bound(fn, args))
        return found


def checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options; TypeError for an unknown one."""
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"no option {name!r}: there are {', '.join(OPTIONS)}")
    return options


def bound(fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[], Any]:
    """fn(*args) as a function without arguments, under the same name."""
    return functools.wraps(fn)(lambda: fn(*args)) if args else fn


@pytest.fixture
def fiber_run(request: pytest.FixtureRequest) -> FiberRun:
    """Runs functions in fibers, in virtual time."""
    return FiberRun(request.node)
