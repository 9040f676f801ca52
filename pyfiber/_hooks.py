"""What the engine needs from Python: outcome classes, logging, reports.

The native module knows none of these; this module passes them to it, so
dependencies point only down.  None of it is on the hot path.
"""

from __future__ import annotations

import sys

from pyfiber import _engine, _outcome
from pyfiber._engine import _load

TYPE_CHECKING = False  # typing itself takes as long to import as all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from traceback import StackSummary
    from types import CodeType, FrameType
    from typing import Any

    from pyfiber._outcome import Outcome
    from pyfiber._queues import HookedQueue

    Task = _engine.Fiber[object] | _engine.Grain[object]


def make_outcome(kind: int, value: Any) -> Outcome[Any]:
    """How a fiber ended, as a dataclass; ``kind`` is the engine's PF_OUTCOME."""
    return (_outcome.Ok, _outcome.Failed, _outcome.CancelledOutcome)[kind - 1](value)


class Call:
    """Stands in for the frame of a call that another thread may go on with, in reports."""

    __slots__ = ("f_back", "f_code", "f_globals", "f_lineno")

    def __init__(self, code: CodeType, line: int, back: Call | None) -> None:
        self.f_code = code
        self.f_lineno = line
        self.f_back = back
        self.f_globals: dict[str, Any] = {}


def innermost(calls: list[tuple[CodeType, int]]) -> Call | None:
    """Of (code, line) of each call, innermost first, as the engine tells them."""
    call = None
    for code, line in reversed(calls):
        call = Call(code, line, call)
    return call


def frame_of(task: Task) -> FrameType | Call | None:
    """Where a fiber or grain is suspended; for another thread's, without a GIL, a stand-in."""
    if isinstance(task, _engine.Fiber) and _engine._has_no_frames(task):
        return innermost(_engine._calls(task))
    return task.frame


def frame_on(thread: int) -> FrameType | Call | None:
    """What a thread runs, which may have gone on by now."""
    calls = _engine._thread_calls(thread)
    return sys._current_frames().get(thread) if calls is None else innermost(calls)


def stack_summary(frame: Any) -> StackSummary:
    """The stack that ends in ``frame``, or consists of those frames, outermost call first.

    A list has frames, outermost first, or (code, line) of calls, innermost first.
    """
    _load("tokenize")  # from Python 3.13 on linecache imports it in the middle of its work
    _load("traceback")
    import traceback

    if isinstance(frame, list) and frame and isinstance(frame[0], tuple):
        frame = innermost(frame)
    if isinstance(frame, list):
        return traceback.StackSummary.extract((each, each.f_lineno) for each in frame)
    summary = traceback.StackSummary.extract(traceback.walk_stack(frame) if frame else [])
    summary.reverse()
    return summary


def log_failure(subject: object, exc: BaseException, text: str) -> None:
    """Log a failure that nobody would see otherwise; ``text`` has a %r for its origin."""
    _load("logging")
    import logging

    logger = logging.getLogger("pyfiber")
    if not logger.isEnabledFor(logging.ERROR):
        return
    exc_info = (type(exc), exc, exc.__traceback__)
    with NoInventedThread(), LoopLogs():
        record = logger.makeRecord(
            "pyfiber", logging.ERROR, __file__, 0, text, (subject,), exc_info
        )
        if not PARSER_CAN_BE_INTERRUPTED:
            record.exc_text = text_without_carets(exc)
        logger.handle(record)


class LoopLogs:
    """While the loop logs a handler's RLock is its thread's, also if a fiber of it has taken it."""

    def __enter__(self) -> None:
        self.before = _engine._loop_logs(True)

    def __exit__(self, *_: object) -> None:
        _engine._loop_logs(self.before)


class NoInventedThread:
    """While a thread ends, threading no longer knows it, and makes up an object for a log record.

    From Python 3.13 on that object would wait in a threading.local for the thread's end, which has
    begun without it, and complain when the interpreter exits.
    """

    def __enter__(self) -> None:
        _load("threading")
        import threading

        self.known = threading.get_ident() in threading._active  # type: ignore[attr-defined]

    def __exit__(self, *_: object) -> None:
        import threading

        invented = getattr(threading, "_thread_local_info", None)
        if not self.known and invented is not None:
            vars(invented).pop("_track_dummy_thread_ref", None)


#: A traceback's text needs ast.parse() to place its carets. If a garbage collection within another
#: ast.parse() ends a fiber whose failure is logged, the outer one raises SystemError ("AST
#: constructor recursion depth mismatch"), up to 3.11.8 and 3.12.2.
PARSER_CAN_BE_INTERRUPTED = sys.version_info >= (3, 12, 3) or (
    (3, 11, 9) <= sys.version_info < (3, 12)
)


def text_without_carets(exc: BaseException) -> str:
    _load("traceback")
    import traceback

    def strip(told: traceback.TracebackException | None) -> None:
        if told is not None:
            for frame in told.stack:
                frame.colno = frame.end_colno = None
            for inner in (told.__cause__, told.__context__, *(told.exceptions or ())):
                strip(inner)

    told = traceback.TracebackException.from_exception(exc)
    strip(told)
    return "".join(told.format()).rstrip("\n")


def unhandled(
    failures: list[tuple[str, BaseException]], raised: BaseException | None
) -> BaseException:
    """What a run raises if failures that nobody looked at end it.

    ``raised`` is what it would raise otherwise, such as main's own failure. That comes first in the
    group, unless it is KeyboardInterrupt, SystemExit or the cancellation of main.
    """
    _load("concurrent.futures")
    from concurrent.futures import CancelledError

    _load("pyfiber._words")
    from pyfiber import _words

    names = _words.some([repr(name) for name, _ in failures])
    exceptions = [exc for _, exc in failures]
    apart = isinstance(raised, (KeyboardInterrupt, SystemExit, CancelledError))
    if raised is not None and not apart and not any(raised is exc for exc in exceptions):
        exceptions.insert(0, raised)
    text = f"nobody looked at the failure of {names}; {_words.how_to_catch(exceptions)}"
    group = BaseExceptionGroup(text, exceptions)
    group.__context__ = raised if isinstance(raised, CancelledError) else None
    return group


def group_text(exceptions: list[BaseException]) -> str:
    """The message of a task group's exception."""
    _load("pyfiber._words")
    from pyfiber import _words

    return f"errors in a TaskGroup; {_words.how_to_catch(exceptions)}"


def log_unresponsive(fiber: Task) -> None:
    """Warn of a cancelled fiber or grain that keeps waiting; its stack shows where."""
    _load("logging")
    import logging

    logger = logging.getLogger("pyfiber")
    if not logger.isEnabledFor(logging.WARNING):
        return
    _load("pyfiber._report")
    from pyfiber import _report

    text = "%r was cancelled, catches Cancelled and goes on; it is slowed down from here on\n%s"
    if isinstance(fiber, _engine.Grain):
        stack = fiber.stack()
    else:
        frame = fiber.frame  # this function's: it runs on that fiber
        stack = stack_summary(frame and frame.f_back)
    with LoopLogs():
        logger.warning(text, fiber, "\n".join(_report.lines_of(stack)))


def could_be_woken() -> bool:
    """Whether something else than a thread of Python's could wake a fiber of a run that waits."""
    _load("pyfiber._help")
    from pyfiber import _help

    return _help.could_be_woken()


def cannot_wait(what: object, holder: Task | None, why: str) -> str:
    """Why a patched wait is refused in a place where no fiber may be left."""
    _load("pyfiber._report")
    from pyfiber import _report

    return _report.cannot_wait_text(what, holder, why)


def log_blocked(what: object, why: str) -> None:
    """Warn that a wait in such a place blocks the thread, and with it every fiber of a run."""
    _load("logging")
    import logging

    _load("pyfiber._report")
    from pyfiber import _report

    logging.getLogger("pyfiber").warning("%s", _report.blocked_text(stall_limit, what, why))


def log_stall(fibers: list[Task]) -> None:
    """Warn that nothing has happened for some time, and only another thread could change that."""
    _load("logging")
    import logging

    logger = logging.getLogger("pyfiber")
    if logger.isEnabledFor(logging.WARNING):
        _load("pyfiber._report")
        from pyfiber import _report

        with LoopLogs():
            logger.warning("%s", _report.stall_text(stall_limit, fibers))


#: log_stall() is called after this many seconds in which nothing happened; 0: never.
STALL_LIMIT = 10.0
stall_limit = STALL_LIMIT


def set_stall_limit(seconds: float) -> None:
    """See docs/deadlocks.md; ValueError if it is negative or not a number."""
    global stall_limit
    _engine._set_stall_limit(seconds)
    stall_limit = seconds


def seconds_from(variable: str, otherwise: float) -> float:
    """What a variable of the environment says."""
    import os

    text = os.environ.get(variable, "")
    try:
        return float(text) if text else otherwise
    except ValueError:
        raise ValueError(
            f"{variable} must be a number of seconds (0: never), not {text!r}"
        ) from None


def debug_wanted() -> bool:
    """Does PYFIBER_DEBUG want a socket for `python -m pyfiber ps`?"""
    import os

    text = os.environ.get("PYFIBER_DEBUG", "")
    if text not in ("", "0", "1"):
        raise ValueError(f"PYFIBER_DEBUG must be 0 or 1, not {text!r}")
    return text == "1"


def open_debug_socket() -> None:
    """Answer `python -m pyfiber ps` from now on; that it cannot be done is only logged."""
    if sys.platform == "win32":
        return  # Python has no Unix sockets there
    _load("pyfiber._debug.server")
    from pyfiber._debug.server import server

    try:
        server.open()
    except (OSError, RuntimeError) as exc:  # such as: no thread can be started at exit
        _load("logging")
        import logging

        logging.getLogger("pyfiber").warning("%s", exc)


def watch_if_wanted() -> None:
    """Start the watchdog if PYFIBER_WATCHDOG says so; in development mode it watches runs."""
    import os

    seconds = seconds_from("PYFIBER_WATCHDOG", 0.0)
    if sys.flags.dev_mode and "PYFIBER_WATCHDOG" not in os.environ:
        _engine._watchdog_debug()
    if seconds != 0:
        _load("pyfiber._watchdog")
        from pyfiber import _watchdog

        _watchdog.watchdog(seconds)


#: A run that Ctrl-C ends gets this many seconds before a message is printed.
INTERRUPT_PATIENCE = 1.0


def interrupted() -> Callable[[], object]:
    """The first Ctrl-C: print what is going on, unless the run ends soon and calls the result.

    It needs a thread of its own, because the fibers may compute for long; this is started without
    threading, whose import may be in progress.
    """
    import _thread

    over = _thread.allocate_lock()
    over.acquire()
    begun = _thread.allocate_lock()
    begun.acquire()
    thread = _thread.get_ident()

    def tell() -> None:
        _engine._only_watches()
        begun.release()
        if not over.acquire(timeout=INTERRUPT_PATIENCE) and sys.stderr is not None:
            print(
                "\npyfiber: Ctrl-C: every fiber is cancelled and waited for until it ends"
                f"{running_on(thread)}; press Ctrl-C again to stop at once",
                file=sys.stderr,
                flush=True,
            )

    try:
        _thread.start_new_thread(tell, ())
        begun.acquire()  # the loop must not count it as a thread that may wake a fiber
        return over.release
    except RuntimeError:  # no thread can be had: the hint is left out
        return lambda: None
    except BaseException:  # a second Ctrl-C: the run ends at once
        over.release()
        raise


def running_on(thread: int) -> str:
    """Which fiber runs, and where; empty while the loop is idle."""
    frame = frame_on(thread)
    for ident, current, root, *_ in _engine._threads():
        if ident == thread and current is not root and frame is not None:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            return f", and fiber {current.name!r} runs {frame.f_code.co_name}() at {place}"
    return ""


def deadlock_text(fibers: list[Task]) -> str:
    """The text of a DeadlockError."""
    _load("pyfiber._report")
    from pyfiber import _report

    return _report.deadlock_text(fibers)


def fiber_cancelled(task: Task, cancelled: BaseException) -> BaseException:
    """What result() of a fiber or grain that has ended with ``cancelled`` raises."""
    _load("pyfiber._cancelled")
    from pyfiber import _cancelled

    return _cancelled.fiber_cancelled(task, cancelled)


def log_abandoned(function: Callable[..., object], exc: BaseException) -> None:
    """A function of to_thread() failed after its caller was cancelled and stopped waiting."""
    _load("pyfiber._threads")
    from pyfiber import _threads

    _threads.log_abandoned(function, exc)


def start_worker(run: Callable[[], object]) -> None:
    """A thread that calls ``run``, for to_thread()."""
    _load("pyfiber._threads")
    from pyfiber import _threads

    _threads.start_worker(run)


def hooked_queue(queue: _engine.Queue[Any], maxsize: int) -> HookedQueue:
    """The methods of a Queue whose class stores its items in its own way."""
    _load("pyfiber._queues")
    from pyfiber import _queues

    return _queues.HookedQueue(queue, maxsize)


def trace_hook() -> object:
    """What threading.settrace() was given, or None."""
    threading = sys.modules.get("threading")
    return getattr(threading, "_trace_hook", None)


def no_run() -> str:
    """How the message of an error goes on that is raised where no scheduler runs."""
    _load("pyfiber._advice")
    from pyfiber import _advice

    return _advice.no_run()


class StackNumber:
    """memray writes its number of a fiber's stack here."""


#: Of each fiber by its id(), while it has not ended.
stack_numbers: dict[int, StackNumber] = {}


def profiled_switch(
    left: _engine.Fiber[Any], entered: _engine.Fiber[Any]
) -> tuple[Callable[..., object], str, tuple[StackNumber, StackNumber]] | None:
    """How to tell a profiler with a stack of calls of its own that the thread has another now.

    memray is the one; it has such a function for greenlets.  Returns it and its arguments: it looks
    at the calls that lead to it, and the one of this function is over when it is called.
    """
    memray = sys.modules.get("memray._memray")
    if memray is None:
        return None
    green = sys.modules.get("pyfiber.greenlet")
    if green is not None and green.gettrace() is memray.greenlet_trace_function:
        green.settrace(None)  # it would be told of greenlets' switches twice
    before = stack_numbers.setdefault(id(left), StackNumber())
    if left.done():
        del stack_numbers[id(left)]
    now = stack_numbers.setdefault(id(entered), StackNumber())
    return memray.greenlet_trace_function, "switch", (before, now)


def install() -> None:
    """Give the engine all of the above."""
    _engine._set_hooks(
        "pyfiber",
        make_outcome=make_outcome,
        log_failure=log_failure,
        deadlock_text=deadlock_text,
        stack_summary=stack_summary,
        log_unresponsive=log_unresponsive,
        log_stall=log_stall,
        could_be_woken=could_be_woken,
        cannot_wait=cannot_wait,
        log_blocked=log_blocked,
        profiled_switch=profiled_switch,
        unhandled=unhandled,
        group_text=group_text,
        interrupted=interrupted,
        fiber_cancelled=fiber_cancelled,
        log_abandoned=log_abandoned,
        start_worker=start_worker,
        hooked_queue=hooked_queue,
        no_run=no_run,
        trace_hook=trace_hook,
    )
    set_stall_limit(seconds_from("PYFIBER_STALL_WARNING", STALL_LIMIT))
    watch_if_wanted()
    if debug_wanted():
        open_debug_socket()
