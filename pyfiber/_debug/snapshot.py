"""What the fibers of this process do, as plain data.

The thread that makes a snapshot shares the interpreter's lock with the fibers. So the work is done
in slices, between which others have the lock, and stops after a while: the remaining fibers are
only counted. Only pyfiber's own objects are asked for their repr. The repr of others is foreign
code, which may not expect to run on this thread.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, TypedDict

import pyfiber
from pyfiber import _engine, _hooks, _native, _report, _requests
from pyfiber._engine import Fiber

#: Seconds: of work without a pause; of a pause; of work for one answer.
SLICE = 0.001
PAUSE = 0.002
BUDGET = 1.0

MOST_NAMES = 5
LONGEST_NAME = 100
LONGEST_WAIT = 500
LONGEST_PATH = 4096
#: Requests of one group, and characters of a target.
MOST_REQUESTS = 1000
LONGEST_TARGET = 200
#: Calls of a stack. Of a longer stack the two ends are kept.
MOST_CALLS = 60

#: File, line, function. (None, how many, "") marks calls that are left out.
Call = tuple[str | None, int, str]


class Group(TypedDict):
    """Fibers with the same stack and the same kind of wait."""

    count: int
    state: str
    #: The names of the first few fibers, each name once.
    names: list[str]
    #: What the first fiber waits for; None if it does not wait.
    wait: str | None
    #: For how many seconds the fibers have waited: the shortest and the longest wait.
    waited: tuple[float, float] | None
    #: How many of these waits began after the time that the question named.
    moved: int
    #: Method, path and age in seconds of the requests that the fibers answer, the oldest first.
    requests: list[tuple[str, str, float]]
    #: How many more requests there are: the list is bounded.
    more_requests: int
    #: Outermost call first.
    stack: list[Call]


class SchedulerState(TypedDict):
    """A scheduler, and its counters."""

    id: int
    running: bool
    stats: dict[str, int]


class ThreadState(TypedDict):
    """A thread that has fibers."""

    id: int
    name: str | None
    #: The thread is in a scheduler's loop, and runs no fiber at the moment.
    idle: bool
    fibers: int
    #: Fewer than `fibers` if there was no time for all of them.
    examined: int
    schedulers: list[SchedulerState]
    groups: list[Group]


class Snapshot(TypedDict):
    """A process, and all its threads that have fibers."""

    protocol: int
    pid: int
    pyfiber: str
    python: str
    #: Where pyfiber's own files are.
    home: str
    time: float
    threads: list[ThreadState]


#: The version of question and answer. Two sides with different ones do not understand each other.
PROTOCOL = 1


class Pace:
    """Says when the time for an answer is over, and lets other threads run in between."""

    def __init__(self) -> None:
        self.left = BUDGET
        self.begun = time.perf_counter()

    def has_time(self) -> bool:
        now = time.perf_counter()
        if now - self.begun >= SLICE:
            self.left -= now - self.begun
            time.sleep(PAUSE)  # without the interpreter's lock
            self.begun = time.perf_counter()
        return self.left > 0


# one fiber ----------------------------------------------------------------------------------------


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "..."


def name_of(fiber: Fiber[Any]) -> str:
    return cut(fiber.name, LONGEST_NAME)


def is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "pyfiber"


#: Classes of pyfiber's whose repr contains that of another object, which may be foreign.
ASK_OTHERS = ("Condition", "GrainPool", "_Job")


def is_known(what: object) -> bool:
    """Whether describing the object runs no code but pyfiber's and Python's."""
    kind = type(what)
    if is_ours(kind):
        return kind.__name__ not in ASK_OTHERS
    plain_socket = (kind.__module__, kind.__name__) == ("socket", "socket")
    return what is None or kind is str or kind is int or plain_socket


def function_text(function: Any) -> str:
    while isinstance(function, MethodType):
        function = function.__func__
    if isinstance(function, (FunctionType, BuiltinFunctionType)):
        return function.__qualname__
    return object.__repr__(function)


def wait_of(fiber: Fiber[Any]) -> str:
    """What the fiber waits for, in words."""
    what: Any = fiber.waiting_on
    kind = type(what)
    try:
        if is_known(what):
            text = _report.wait_of(fiber)
        elif is_ours(kind) and kind.__name__ == "_Job":
            text = f"waits for <to_thread job {function_text(what.function)} {what.state}>"
        else:
            text = f"waits for <{kind.__module__}.{kind.__qualname__} at {id(what):#x}>"
    except Exception as exc:  # one bad fiber must not make the answer fail
        text = f"waits for something that cannot be described: {type(exc).__name__}"
    return cut(text, LONGEST_WAIT)


def frame_of(fiber: Fiber[Any]) -> Any:
    try:
        return _hooks.frame_of(fiber)
    except Exception:
        return None  # the fiber cannot be inspected


def calls_of(frame: Any) -> list[Call]:
    """The stack that ends at this frame, outermost call first, without its middle if it is long."""
    calls: list[Call] = []
    while frame is not None:
        code = frame.f_code
        file = cut(code.co_filename, LONGEST_PATH)
        calls.append((file, frame.f_lineno or 0, cut(code.co_qualname, LONGEST_NAME)))
        frame = frame.f_back
    calls.reverse()
    left_out = len(calls) - MOST_CALLS
    if left_out <= 0:
        return calls
    half = MOST_CALLS // 2
    return [*calls[:half], (None, left_out, ""), *calls[-half:]]


# alike ones ---------------------------------------------------------------------------------------


def groups_of(
    fibers: list[Fiber[Any]], running: Fiber[Any] | None, frame: Any, since: float, pace: Pace
) -> tuple[int, list[Group]]:
    """How many of the fibers were examined, and groups of alike ones.

    The list is emptied, so that nothing keeps the fibers longer than necessary.
    """
    groups: dict[Any, Group] = {}
    examined = 0
    while fibers and pace.has_time():
        fiber = fibers.pop()
        examined += 1
        if (state := fiber.state) != "done":
            try:
                add(groups, fiber, state, frame if fiber is running else None, since)
            except Exception as exc:  # one bad fiber must not make the answer fail
                add_unknown(groups, state, exc)
    fibers.clear()
    for group in groups.values():
        requests = group["requests"]
        requests.sort(key=lambda request: -request[2])
        group["more_requests"] = max(0, len(requests) - MOST_REQUESTS)
        del requests[MOST_REQUESTS:]
    return examined, list(groups.values())


def add(groups: dict[Any, Group], fiber: Fiber[Any], state: str, frame: Any, since: float) -> None:
    """Put a fiber into its group. ``frame`` is where the fiber runs, None if it does not run."""
    what = fiber.waiting_on if state == "parked" else None
    name = name_of(fiber)
    places = _engine._places(fiber)
    key = state, what if isinstance(what, str) else id(type(what)), places or name
    group = groups.get(key)
    if group is None:
        group = groups[key] = {
            "count": 0,
            "state": state,
            "names": [],
            "wait": wait_of(fiber) if state == "parked" else None,
            "waited": None,
            "moved": 0,
            "requests": [],
            "more_requests": 0,
            "stack": calls_of(frame or frame_of(fiber)),
        }
    group["count"] += 1
    names = group["names"]
    if len(names) < MOST_NAMES and name not in names:
        names.append(name)
    waited = _engine._waited(fiber)
    if waited is not None:
        shortest, longest = group["waited"] or (waited, waited)
        group["waited"] = min(shortest, waited), max(longest, waited)
        group["moved"] += waited < since
    if (request := _requests.request_of(fiber)) is not None:
        method, path, began = request
        age = max(0.0, time.monotonic() - began)
        group["requests"].append((method[:LONGEST_NAME], path[:LONGEST_TARGET], age))


def add_unknown(groups: dict[Any, Group], state: str, exc: Exception) -> None:
    """Count a fiber that cannot be described, in a group of such fibers."""
    unknown: Group = {
        "count": 0,
        "state": state,
        "names": ["?"],
        "wait": f"cannot be described: {type(exc).__name__}",
        "waited": None,
        "moved": 0,
        "requests": [],
        "more_requests": 0,
        "stack": [],
    }
    groups.setdefault((state, type(exc).__name__), unknown)["count"] += 1


# the process --------------------------------------------------------------------------------------


def schedulers_of(ident: int, running: _engine.Scheduler | None) -> Iterator[SchedulerState]:
    for thread, _, schedulers in _engine._schedulers():
        for scheduler in schedulers if thread == ident else ():
            yield {
                "id": id(scheduler),
                "running": scheduler is running,
                "stats": dict(scheduler.stats()),  # type: ignore[arg-type]
            }


def snapshot(since: float = 0.0) -> Snapshot:
    """Describe all threads that have fibers. Group.moved counts waits shorter than ``since`` s."""
    own = _native.get_ident()
    names = {thread.ident: cut(thread.name, LONGEST_NAME) for thread in threading.enumerate()}
    pace = Pace()
    threads: list[ThreadState] = []
    described = _engine._threads()
    while described:
        ident, current, root, scheduler, fibers = described.pop()
        if ident == own and not fibers:
            continue
        frame = _hooks.frame_on(ident)
        total = len(fibers)
        running = None if current is root else current
        examined, groups = groups_of(fibers, running, frame, since, pace)
        threads.append(
            {
                "id": ident,
                "name": names.get(ident),
                "idle": scheduler is not None and running is None,
                "fibers": total,
                "examined": examined,
                "schedulers": list(schedulers_of(ident, scheduler)),
                "groups": groups,
            }
        )
    return {
        "protocol": PROTOCOL,
        "pid": os.getpid(),
        "pyfiber": pyfiber.__version__,
        "python": ".".join(map(str, sys.version_info[:3])),
        "home": os.path.dirname(pyfiber.__file__),
        "time": time.time(),
        "threads": threads,
    }
