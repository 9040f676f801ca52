"""Finds out why two runs of one schedule differ: clocks, threads, random numbers, hash order."""

from __future__ import annotations

import _thread
import ast
import datetime
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pyfiber.testing.accesses import is_a
from pyfiber.testing.orders import (
    ADDRESSES,
    SETS,
    elements,
    is_unordered,
    iterations,
    text_of,
)

CLOCK = "the real clock"
SLEEP = "a sleep in real time, which stops every fiber"
THREAD = "a real thread"
SYSTEM = "random numbers of the system"
ORDER = "hash order"
HASHES = "hashes or addresses"

CALLS: dict[object, str] = {
    **dict.fromkeys((time.time, time.time_ns, time.monotonic, time.monotonic_ns), CLOCK),
    **dict.fromkeys((time.perf_counter, time.perf_counter_ns, time.localtime, time.gmtime), CLOCK),
    **dict.fromkeys((time.process_time, time.process_time_ns, time.ctime), CLOCK),
    time.sleep: SLEEP,
    _thread.start_new_thread: THREAD,
    os.urandom: SYSTEM,
    id: HASHES,
    hash: HASHES,
}
if sys.version_info >= (3, 13):
    CALLS[_thread.start_joinable_thread] = THREAD

HERE = os.path.dirname(__file__)
LIBRARY = tuple(
    os.path.join(path, "") for path in (os.path.dirname(HERE), sysconfig.get_path("stdlib"))
)
INSTALLED = ("site-packages", "dist-packages")


def is_library(path: str) -> bool:
    """Is this the path of Python's or pyfiber's own code?"""
    if path.startswith("<frozen"):
        return True
    return path.startswith(LIBRARY) and not any(name in path for name in INSTALLED)


# ------------------------------------------------------------------------ the watch


class Suspects:
    """Watches runs for things that make runs differ."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}
        self.files: dict[str, dict[int, list[ast.expr]] | None] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Trace every call and line on this thread, unless a debugger or profiler does."""
        profiled, traced = sys.getprofile() is not None, sys.gettrace() is not None
        if not profiled:
            sys.setprofile(self.calls)
        if not traced:
            sys.settrace(self.enters)
        try:
            yield
        finally:
            if not traced:
                sys.settrace(None)
            if not profiled:
                sys.setprofile(None)
        # Not in a fiber: the parser needs more stack than a fiber may have.
        for path, known in self.files.items():
            if known is None:
                self.files[path] = iterations(path)

    def watch(self, run: Callable[[], object]) -> None:
        """Watch the run twice: the first time shows which files to read."""
        for _ in range(2):
            with self.watching():
                run()

    def calls(self, frame: FrameType, event: str, function: Any) -> None:
        """The profile function."""
        if event == "c_call":
            what = self.kind(function)
            if what is HASHES and is_library(frame.f_code.co_filename):
                return  # copies and such use id() in ways that do not affect any order
            if what is not None:
                self.note(what, function.__name__, frame)

    def kind(self, function: Any) -> str | None:
        """What a call of this C function may make differ, if anything."""
        owner = getattr(function, "__self__", None)
        if is_a(owner, type):
            reads = function.__name__ in ("now", "utcnow", "today")
            return CLOCK if reads and issubclass(owner, datetime.date) else None
        if is_a(owner, set):
            return ORDER if function.__name__ == "pop" and is_unordered(list(owner)) else None
        return CALLS.get(function)

    def enters(self, frame: FrameType, event: str, _: Any) -> Any:
        """The trace function: lines matter only in some files."""
        path = frame.f_code.co_filename
        if is_library(path):
            return None
        return self.lines if self.files.setdefault(path, None) else None

    def lines(self, frame: FrameType, event: str, value: Any) -> Any:
        """The trace function of a frame."""
        if event == "return":
            self.returns(frame.f_back, value)
            return self.lines
        known = self.files[frame.f_code.co_filename]
        if event == "line" and known is not None:
            for expr in known.get(frame.f_lineno, ()):
                if isinstance(expr, ast.Name) and expr.id in ADDRESSES:
                    self.note(HASHES, expr.id, frame)
                    continue
                try:
                    found = elements(expr, frame)
                except LookupError:
                    continue
                if is_unordered(found):
                    self.note_order(expr, frame)
        return self.lines

    def returns(self, caller: FrameType | None, value: object) -> None:
        """Note a set that a function or property returns to a line that iterates over it."""
        if caller is None or not is_a(value, SETS) or not is_unordered(list(value)):
            return
        known = self.files.get(caller.f_code.co_filename) or {}
        for expr in known.get(caller.f_lineno, ()):
            if isinstance(expr, (ast.Call, ast.Attribute)):
                self.note_order(expr, caller)
                return

    def note(self, what: str, name: str, frame: FrameType | None) -> None:
        """Record what the program itself called, not what that called in turn."""
        while frame is not None and is_library(frame.f_code.co_filename):
            if not frame.f_code.co_filename.startswith(HERE):
                name = frame.f_code.co_name
            frame = frame.f_back
        if frame is not None:
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self.seen.setdefault(what, f"{what}: {name}() called at {where}")

    def note_order(self, expr: ast.expr, frame: FrameType) -> None:
        if ORDER not in self.seen:
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            self.seen[ORDER] = f"{ORDER}: iterates over the set {text_of(expr)} at {where}"

    def lines_of_text(self) -> str:
        """The suspects that were seen, one line each."""
        return "\n".join(f"  - {line}" for line in self.seen.values())

    def text(self) -> str:
        """The suspects that were seen, or other possible causes."""
        others = (
            "state that one run leaves for the next (globals, caches, class attributes: make it "
            "in the function or in setup=), or an order that comes from hashes or addresses "
            "(iterating over a set, id())"
        )
        if not self.seen:
            return f"Nothing known to be random was called. It may be {others}."
        return (
            f"What was used that differs from run to run:\n{self.lines_of_text()}\n"
            f"Besides, it may be {others}."
        )
