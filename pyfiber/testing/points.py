"""Where a run may interrupt a thread between two waits: the option ``switch`` of explore().

``"line"``: before a line that touches what threads share; ``"access"``: before each such
instruction; ``"gil"``: only where CPython with a GIL can take the GIL away. The interpreter reports
these places to csrc/python/testing/points.c: from 3.12 on by sys.monitoring, for the included code
objects alone; on 3.11 by a trace function.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, wraps
from types import CodeType
from typing import Any, Literal

from pyfiber import _engine
from pyfiber.testing.accesses import CALLS, Access, accesses_of
from pyfiber.testing.guards import Change, Shared
from pyfiber.testing.releases import PACKAGE, gives_up_gil
from pyfiber.testing.schedule import SWITCHES

Switch = Literal["wait", "line", "access", "gil"]
TOOLS = (3, 4)  # ids that no other kind of tool claims
STANDARD = os.path.join(sysconfig.get_path("stdlib"), "")
INSTALLED = ("site-packages", "dist-packages")
MOST_PREEMPTIONS = 15
#: The engine's mark for a jump of a loop without points: such a loop may spin for another fiber.
QUIET = (1 << 32) - 1
#: RESUME with a larger argument is the continuation after `yield from` or `await`.
AFTER_YIELD = 1

#: The module that reports events; None before 3.12, where a trace function does.
MONITORING: Any = getattr(sys, "monitoring", None)
#: Does the interpreter report events by sys.monitoring?
MONITORED = MONITORING is not None

Places = tuple[tuple[int, int], ...]


def check_switch(switch: object) -> str:
    """Check the option; ValueError with the possible values."""
    if switch not in SWITCHES:
        raise ValueError(f"switch is one of {', '.join(map(repr, SWITCHES))}, not {switch!r}")
    return str(switch)


def check_names(names: object, what: str) -> tuple[str, ...]:
    """Check a sequence of names of modules; TypeError otherwise."""
    if isinstance(names, str) or not isinstance(names, (list, tuple, set, frozenset)):
        raise TypeError(f"{what} is a list of names of modules, not {names!r}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} has names of modules, not {name!r}")
    return tuple(names)


EVERYTHING = "*"


def names_module(names: Sequence[str], module: str) -> bool:
    """Is this one of the modules, or in one of the packages? "*" is every module."""
    return any(name in (module, EVERYTHING) or module.startswith(f"{name}.") for name in names)


def is_installed(path: str) -> bool:
    """Is this a file of an installed package?"""
    parts = path.split(os.sep)
    return any(name in parts for name in INSTALLED)


def is_standard(path: str) -> bool:
    """Is this a file of the standard library?"""
    return path.startswith("<frozen") or (path.startswith(STANDARD) and not is_installed(path))


def is_programs(path: str) -> bool:
    """Is this a file of the program, not of the standard library or an installed package?"""
    return not is_standard(path) and not is_installed(path)


@dataclass(frozen=True, slots=True)
class Site:
    """A place of the program where runs may switch: a line, or an instruction of it."""

    path: str
    function: str
    line: int
    reads: tuple[str, ...]
    writes: tuple[str, ...]


class Points:
    """The points of the runs of one exploration."""

    def __init__(self, switch: str, include: Sequence[str], exclude: Sequence[str]) -> None:
        self.switch = switch
        self.include = include
        self.exclude = exclude
        self.sites: list[Site] = []
        self.names: dict[str, int] = {}
        self.places: dict[CodeType, tuple[Places, Places]] = {}
        disable = MONITORING.DISABLE if MONITORED else None
        self.engine = _engine._Points(self.classify, disable, switch == "gil")
        self.events = 0
        self.tool = -1

    # ------------------------------------------------------------ which code, which places

    def includes(self, code: CodeType, variables: Mapping[str, Any]) -> bool:
        """May a run switch in this code, which has these global variables?"""
        module = str(variables.get("__name__", ""))
        path = code.co_filename
        if path.startswith("<") and "__file__" in variables:
            path = str(variables["__file__"])  # a method that dataclasses has made, say
        if path.startswith(PACKAGE) or module.partition(".")[0] in ("pyfiber", "importlib"):
            return False
        if names_module(self.exclude, module):
            return False
        return names_module(self.include, module) or is_programs(path)

    def classify(self, code: CodeType) -> tuple[Places, Places] | None:
        """Called by the engine once for each code object that runs."""
        frame: Any = sys._getframe(1)
        if frame.f_code is not code:
            frame = None
        if not self.includes(code, {} if frame is None else frame.f_globals):
            return None
        found = self.places.get(code)
        if found is None:
            found = self.places[code] = self.find(code, accesses_of(code, frame))
        if found == ((), ()):
            return None
        if self.tool >= 0:
            MONITORING.set_local_events(self.tool, code, self.events)
        return found

    def find(self, code: CodeType, accesses: list[Access]) -> tuple[Places, Places]:
        """The points of a code object: (lines, offsets of instructions), each with its site."""
        if self.switch == "line":
            return self.lines(code, accesses)
        if self.switch == "access":
            points = [access for access in accesses if access.point or is_call(access)]
            sites = [(p.offset, self.site(code, p.line, [p])) for p in points]
            return (), (*sites, *quiet_jumps(accesses, {p.offset for p in points}))
        return (), tuple(self.releases(code, accesses))

    def releases(self, code: CodeType, accesses: list[Access]) -> Iterator[tuple[int, int]]:
        """Where CPython may give up the GIL.

        The evaluation loop looks whether it has to where a function begins or a generator
        continues, at a jump backward, and after a call of a C function. `calls()` adds the
        functions that give up the GIL themselves. The trace function of 3.11 sees a jump only when
        it has arrived, and no calls of C functions.
        """
        for access in accesses:
            backward = "JUMP_BACKWARD" in access.opname
            if access.opname == "JUMP_BACKWARD_NO_INTERRUPT":
                continue
            if access.opname == "RESUME" and access.argument & 3 > AFTER_YIELD:
                continue
            if backward or access.opname == "RESUME" or access.opname in CALLS:
                offset = access.target if backward and not MONITORED else access.offset
                yield offset, self.site(code, access.line, accesses)

    def calls(self, code: CodeType, offset: int, function: object, _: object) -> None:
        """Called by the interpreter before a call."""
        if gives_up_gil(function):
            self.engine.enters(code, offset)

    def lines(self, code: CodeType, accesses: list[Access]) -> tuple[Places, Places]:
        """Lines that share something, and the jumps of loops that are one line.

        If a loop is one line, no LINE event reports that the line begins again.
        """
        by_line: dict[int, list[Access]] = {}
        for access in accesses:
            by_line.setdefault(access.line, []).append(access)
        sites = {
            line: self.site(code, line, there)
            for line, there in by_line.items()
            if any(access.point for access in there)
        }
        line_at = {access.offset: access.line for access in accesses}
        jumps = [
            (access.offset, sites[access.line])
            for access in accesses
            if access.opname == "JUMP_BACKWARD"
            and access.line in sites
            and line_at.get(access.target) == access.line
        ]
        in_sites = {access.offset for access in accesses if access.line in sites}
        quiet = quiet_jumps(accesses, in_sites)
        if MONITORED:
            return tuple(sites.items()), (*jumps, *quiet)
        ends = {line_at[jump.target]: QUIET for jump in accesses if (jump.offset, QUIET) in quiet}
        return tuple((ends | sites).items()), ()

    def site(self, code: CodeType, line: int, accesses: Sequence[Access]) -> int:
        """Make a site with the names that these instructions use."""
        reads = sorted({name for access in accesses for name in access.reads})
        writes = sorted({name for access in accesses for name in access.writes})
        self.sites.append(
            Site(code.co_filename, code.co_qualname, line, tuple(reads), tuple(writes))
        )
        return self.engine.add(
            tuple(
                2 * self.names.setdefault(name, len(self.names)) + written
                for written, names in enumerate((reads, writes))
                for name in names
            )
        )

    # ------------------------------------------------------------------- the interpreter

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have the interpreter report what happens to the engine."""
        with IMPORT_HOOKS:
            if sys.version_info < (3, 12):
                with TRACE_HOOKS:
                    yield
                return
            self.begin()
            try:
                yield
            finally:
                self.end()

    def begin(self) -> None:
        """Ask the interpreter for events."""
        monitoring = MONITORING
        events = monitoring.events
        self.tool = take_tool()
        callbacks: dict[int, Callable[..., object]] = {
            events.PY_START: self.engine.enters,
            events.PY_RESUME: self.engine.enters,
        }
        if self.switch == "line":
            callbacks |= {events.LINE: self.engine.line, events.JUMP: self.engine.place}
        elif self.switch == "access":
            callbacks |= {events.INSTRUCTION: self.engine.place}
            if beside_another_tool():
                callbacks |= {events.LINE: keep_line}
        else:
            callbacks |= {
                events.JUMP: self.engine.place,
                events.CALL: self.calls,
                events.C_RETURN: self.engine.enters,
            }
        for event, callback in callbacks.items():
            monitoring.register_callback(self.tool, event, callback)
            self.events |= event
        self.events &= ~events.C_RETURN  # comes with CALL, and cannot be asked for itself
        monitoring.restart_events()
        monitoring.set_events(self.tool, events.PY_START | events.PY_RESUME)

    def end(self) -> None:
        """Give the tool id back, with nothing left of it in any code object."""
        monitoring = MONITORING
        monitoring.set_events(self.tool, 0)
        for code in self.engine.codes():
            monitoring.set_local_events(self.tool, code, 0)
        events = monitoring.events
        for event in (events.PY_START, events.PY_RESUME, events.LINE, events.JUMP):
            monitoring.register_callback(self.tool, event, None)
        for event in (events.INSTRUCTION, events.CALL, events.C_RETURN):
            monitoring.register_callback(self.tool, event, None)
        monitoring.free_tool_id(self.tool)
        self.tool = -1


def beside_another_tool() -> bool:
    """Does a tool other than an exploration use sys.monitoring: coverage, say?"""
    return any(MONITORING.get_tool(tool) for tool in range(6) if tool not in TOOLS)


def keep_line(code: CodeType, line: int) -> None:
    """Keep the LINE event of a place, so that its INSTRUCTION event is reported.

    CPython (3.13 at least) drops the INSTRUCTION event of a place when the last tool that has asked
    for its LINE event disables that, as coverage does when the line has run once.
    """


def take_tool() -> int:
    """Take an id of sys.monitoring that no other tool uses; RuntimeError if there is none."""
    monitoring = MONITORING
    for tool in TOOLS:
        try:
            monitoring.use_tool_id(tool, "pyfiber.testing")
        except ValueError:
            continue
        return tool
    users = ", ".join(str(monitoring.get_tool(tool)) for tool in TOOLS)
    raise RuntimeError(
        f"switch= other than 'wait' needs an id of sys.monitoring, and {users} use both that are "
        "free: end one of these tools, or explore with switch='wait'"
    )


def quiet_jumps(accesses: Sequence[Access], points: set[int]) -> list[tuple[int, int]]:
    """The jumps backward of loops in which no offset is a point."""
    return [
        (jump.offset, QUIET)
        for jump in accesses
        if "JUMP_BACKWARD" in jump.opname and points.isdisjoint(range(jump.target, jump.offset + 1))
    ]


def is_call(access: Access) -> bool:
    return access.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX")


def import_hooks() -> Iterator[Change]:
    """The replacement by which the engine sees imports of modules that are not loaded yet.

    The interpreter looks this function up by name for each of them. A `partial` does not show in
    tracebacks.
    """
    bootstrap: Any = importlib._bootstrap
    real = bootstrap._find_and_load
    yield bootstrap, "_find_and_load", partial(_engine._importing, real)


IMPORT_HOOKS = Shared(import_hooks)


if sys.version_info < (3, 12):

    def trace_hooks() -> Iterator[Change]:
        """The replacements that put a run's trace function before that of a tool begun in it."""
        real = sys.settrace

        @wraps(real)
        def settrace(function: Any, /) -> None:
            real(function)
            _engine._trace_replaced()

        yield sys, "settrace", settrace
        yield sys, "gettrace", _engine._trace_object

    TRACE_HOOKS = Shared(trace_hooks)
