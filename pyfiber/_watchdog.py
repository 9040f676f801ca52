"""Reports which fiber keeps a loop from running: the half of the watchdog in Python.

The engine's half is a thread without the GIL, which notices it (csrc/python/watch/watchdog.c). The
half here is a daemon thread that waits for reports of the other one and logs them, as long as it
can get the GIL. While it does so it imports nothing: the blocked fiber may be in the middle of an
import.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING

from pyfiber import _blocking, _engine, _hooks, _native, _report

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Looked up here: getLogger() takes a lock, which a blocked fiber in logging.config may hold.
_logger = logging.getLogger("pyfiber")
#: All limits that were set and not undone. An undo() out of order must not bring an old one back.
_layers: list[Watchdog] = []
#: Has the watchdog ever been started, in this process or a parent?
_wanted = False


class Watchdog:
    """What `watchdog()` returns: the limit that it has set."""

    def __init__(self, seconds: float | None) -> None:
        #: The limit that was asked for.
        self.seconds = seconds

    def undo(self) -> None:
        """Restore the limit from before; does nothing the second time."""
        if self in _layers:
            _layers.remove(self)
            _apply()

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()


def watchdog(seconds: float | None) -> Watchdog:
    """Report every fiber that keeps its loop from running for longer than `seconds`.

    The limit applies to all threads and runs of the process, except for runs to which
    `run(..., watchdog=...)` gave another one; None turns the reports off. Each report goes to the
    logger "pyfiber" as a warning: which fiber has been running for how long without waiting, its
    stack, how many fibers wait for their turn, and, on Linux and macOS, the C functions it is in.
    The report is repeated when the time has doubled, and another line says when the loop runs
    again.

    Returns an object whose `undo()` restores the limit from before; as a context manager it does so
    at the end of the block. The environment variable PYFIBER_WATCHDOG sets a limit from the start.

    If no Python code can run, because a C function keeps the GIL, the report goes to the standard
    error stream, without the help of Python code.

    The watchdog costs a thread that wakes four times in `seconds` (at least once in a second, at
    most 200 times), and nothing for switches. To find the C functions it sends the blocked thread
    SIGURG, once for each report, unless the program has a handler for it.

    Raises TypeError or ValueError unless `seconds` is None or a positive finite number.
    """
    before = _engine._watchdog_limit(seconds)  # raises for a wrong value
    layer = Watchdog(seconds)
    if not _layers:
        _layers.append(Watchdog(before))
    _layers.append(layer)
    if seconds is not None:
        try:
            start()
        except BaseException:
            layer.undo()
            raise
    return layer


def _apply() -> None:
    _engine._watchdog_limit(_layers[-1].seconds)


def start() -> None:
    """Start both threads; does nothing if they run already.

    The Python thread is started without `threading`, which in a patched program would let other
    fibers run meanwhile, even in the middle of os.fork().
    """
    global _wanted
    if (started := _engine._watchdog_start()) is None:
        return
    try:
        _native.start_new_thread(_report_all, (started,))
    except BaseException:  # the system may refuse a thread, and one without the other is of no use
        _stop()
        raise
    _wanted = True
    _engine._watchdog_await(started)  # until runs do not count it as one that may wake a fiber


def start_for_debugging() -> None:
    """start() for a run with debug=True, which goes on without a watchdog if that fails."""
    with contextlib.suppress(RuntimeError):
        start()


def _stop() -> None:
    _engine._watchdog_stop()


def _start_again() -> None:
    """Start the threads again in the child of a fork, which has neither of them."""
    in_run = _wanted and _engine._running_scheduler() is not None  # the run may have a limit
    if in_run or (_layers and _layers[-1].seconds is not None):
        start()


atexit.register(_stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_again)


def _report_all(started: object) -> None:
    with _printing_errors():
        _engine._only_watches()
        threading.current_thread().name = "pyfiber-watchdog"
    while True:
        with _printing_errors():
            if (report := _engine._watchdog_next(started)) is None:
                return
            _report_one(*report)


@contextlib.contextmanager
def _printing_errors() -> Iterator[None]:
    """Print an exception, of a log handler, say, and go on: the next report may succeed."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(BaseException):
            sys.excepthook(*sys.exc_info())


def _report_one(
    thread: int, seconds: float, over: bool, lacks_gil: bool, debug: bool, native: str
) -> None:
    if debug:
        if not over and not lacks_gil:
            _blocking.report(thread, seconds)
        return
    title = _report.thread_title(thread)
    if over:
        text = f"the loop of {title} runs again, after {seconds:.3g} s"
    elif lacks_gil:
        text = (
            f"the loop of {title} has waited {seconds:.3g} s for the GIL: "
            "another thread did not let it go"
        )
    else:
        lines = [
            f"the loop of {title} has not run for {seconds:.3g} s: {who_runs(thread)}",
            *stack_lines(thread),
        ]
        if native:
            lines.append(f"  in C: {native}")
        text = "\n".join(lines)
    _logger.warning("%s", text)


def stack_lines(thread: int) -> Iterator[str]:
    frame = _hooks.frame_on(thread)
    return _report.indented(_report.cut(_report.stack_at(frame)), "")


def who_runs(thread: int) -> str:
    """Text that names the fiber that runs on the thread, and how many others it keeps waiting."""
    for ident, current, root, scheduler, _ in _engine._threads():
        if ident == thread and scheduler is not None:
            if current is root:
                return "by now it runs again, or ends"
            waiting = scheduler.stats()["ready"]
            others = f", and {waiting:,} others wait for their turn" if waiting else ""
            return f"{_report.name_of(current)} does not wait{others}"
    return "by now its run has ended"
