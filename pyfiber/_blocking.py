"""Reports of calls that block a fiber's thread, for development mode: each place is reported once.

When the watchdog's thread notices that a loop has not run for a while, its reporter calls report()
here. A fiber that computes is not reported, only one that waits in a call that does not park. The
functions of this module import nothing: the blocked fiber may be in the middle of an import.
"""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import threading
import time
from types import CodeType
from typing import Any

from pyfiber import _engine, _hooks, _report

_logger = logging.getLogger("pyfiber")
#: How often a thread is examined, and seconds in between. A blocked thread sleeps each time.
LOOKS, BETWEEN = 3, 0.005
#: Places that have been reported: file and line. No more than MOST_PLACES are reported.
_reported: set[tuple[str, int]] = set()
MOST_PLACES = 1000
NOT_THE_USERS = ("site-packages", "dist-packages", "<frozen", _report.__file__.rpartition("_")[0])
LIBRARY = sysconfig.get_path("stdlib")
#: Frames of these files are a debugger's: a user at its prompt knows that everything waits.
DEBUGGERS = frozenset(os.path.join(LIBRARY, name) for name in ("bdb.py", "pdb.py", "code.py"))

WITHOUT_PATCH = (
    "pyfiber.patch() at the start of the program lets such calls of the standard library park, and "
    "pyfiber.to_thread() calls any function in a thread"
)
WITH_PATCH = "patch() does not reach this call: give the function to pyfiber.to_thread()"


Calls = list[tuple[CodeType, int]]


def report(thread: int, seconds: float) -> None:
    """Warn if a call blocks the loop of this thread, which has not run for so many seconds."""
    fiber = _running_on(thread)
    calls = _blocked_in(thread) if fiber is not None else []
    if not calls or _is_debugged(calls):
        return
    place = _place(calls)
    if place in _reported or len(_reported) >= MOST_PLACES:
        return
    _reported.add(place)
    lines = [
        f"{_report.name_of(fiber)} blocks the loop of {_report.thread_title(thread)}: no other "
        f"fiber has run for {seconds:.3g} s; {_advice()}",
        *_report.cut(_report.stack_at(calls)),
    ]
    _logger.warning("%s", "\n".join(lines))


def _running_on(thread: int) -> Any:
    """The fiber that runs on this thread; None between fibers, and if the run has ended."""
    for ident, current, root, scheduler, _ in _engine._threads():
        if ident == thread and scheduler is not None and current is not root:
            return current
    return None


def _blocked_in(thread: int) -> Calls:
    """The thread's calls, if it stays in them while the system says that it sleeps; else none.

    The thread may continue at any moment, and its frames change while they are read. So the calls
    count only if every look finds the same ones.
    """
    known = threading._active.get(thread)  # type: ignore[attr-defined]
    calls = _calls(thread)
    for _ in range(LOOKS):
        if not _sleeps(getattr(known, "native_id", None)):
            return []
        time.sleep(BETWEEN)
        if _calls(thread) != calls:
            return []
    return [(code, line) for code, line, _ in calls]


def _calls(thread: int) -> list[tuple[CodeType, int, int]]:
    """Code, line and instruction of each call of the thread, innermost first."""
    frame: Any = _hooks.frame_on(thread)
    found = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lineno, getattr(frame, "f_lasti", 0)))
        frame = frame.f_back
    return found


def _sleeps(number: int | None) -> bool:
    """Does the thread with this native id sleep? True where that is unknown: only Linux says it."""
    if number is None or sys.platform != "linux":
        return True
    try:
        with open(f"/proc/self/task/{number}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return True
    return state != b"R"


def _place(calls: Calls) -> tuple[str, int]:
    """File and line of the innermost call in the user's own code; without any, of the innermost."""
    for code, line in calls:
        path = code.co_filename
        if not path.startswith(LIBRARY) and not any(part in path for part in NOT_THE_USERS):
            return path, line
    return calls[0][0].co_filename, calls[0][1]


def _is_debugged(calls: Calls) -> bool:
    return any(code.co_filename in DEBUGGERS for code, _ in calls)


def _advice() -> str:
    patch = sys.modules.get("pyfiber._patch")
    return WITH_PATCH if patch is not None and patch._records else WITHOUT_PATCH
