"""The functions that the engine calls in Python: outcome classes, logging, reports.

The native module does not import this one: install() passes the functions to it, so dependencies
point only down. None of the functions is on the hot path.
"""

from __future__ import annotations

import sys

from pyfiber import _engine, _outcome
from pyfiber._engine import _load

TYPE_CHECKING = False  # importing typing takes as long as importing all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from traceback import StackSummary
    from types import CodeType, FrameType
    from typing import Any

    from pyfiber._outcome import Outcome
    from pyfiber._queues import HookedQueue

    Task = _engine.Fiber[object] | _engine.Grain[object]


def make_outcome(kind: int, value: Any) -> Outcome[Any]:
    """The object that says how a fiber ended; ``kind`` is the engine's PF_OUTCOME."""
    return (_outcome.Ok, _outcome.Failed, _outcome.CancelledOutcome)[kind - 1](value)


class Call:
    """Replaces, in reports, the frame of a call that another thread may continue meanwhile."""

    __slots__ = ("f_back", "f_code", "f_globals", "f_lineno")

    def __init__(self, code: CodeType, line: int, back: Call | None) -> None:
        self.f_code = code
        self.f_lineno = line
        self.f_back = back
        self.f_globals: dict[str, Any] = {}


def innermost(calls: list[tuple[CodeType, int]]) -> Call | None:
    """The innermost Call of a stack, from the engine's (code, line) of each, innermost first."""
    call = None
    for code, line in reversed(calls):
        call = Call(code, line, call)
    return call


def frame_of(task: Task) -> FrameType | Call | None:
    """Where a fiber or grain is suspended; without a GIL, a Call for a fiber of another thread."""
    if isinstance(task, _engine.Fiber) and _engine._has_no_frames(task):
        return innermost(_engine._calls(task))
    return task.frame


def frame_on(thread: int) -> FrameType | Call | None:
    """Where a thread is, which may have continued by now."""
    calls = _engine._thread_calls(thread)
    return sys._current_frames().get(thread) if calls is None else innermost(calls)


def stack_summary(frame: Any) -> StackSummary:
    """The stack that ends in ``frame``, outermost call first.

    ``frame`` may also be a list of the stack: of frames, outermost first, or of (code, line) of
    each call, innermost first.
    """
    _load("tokenize")  # from Python 3.13 on linecache imports tokenize in the middle of its work
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
    """Log a failure that nobody would see otherwise; ``text`` has a %r for ``subject``."""
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
    """While the loop logs, its thread may take a log handler's RLock that a fiber of it holds."""

    def __enter__(self) -> None:
        self.before = _engine._loop_logs(True)

    def __exit__(self, *_: object) -> None:
        _engine._loop_logs(self.before)


class NoInventedThread:
    """Discards the Thread object that threading invents for a log record while a thread ends.

    threading has forgotten such a thread already. From Python 3.13 on the object would wait in a
    threading.local for the thread's end, which has begun before, and would print an error when the
    interpreter exits.
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
#: ast.parse() ends a fiber whose failure is logged, that outer call raises SystemError ("AST
#: constructor recursion depth mismatch"), up to Python 3.11.8 and 3.12.2.
PARSER_CAN_BE_INTERRUPTED = sys.version_info >= (3, 12, 3) or (
    (3, 11, 9) <= sys.version_info < (3, 12)
)


def text_without_carets(exc: BaseException) -> str:
    _load("traceback")
    import traceback

    def strip(error: traceback.TracebackException | None) -> None:
        if error is not None:
            for frame in error.stack:
                frame.colno = frame.end_colno = None
            for inner in (error.__cause__, error.__context__, *(error.exceptions or ())):
                strip(inner)

    error = traceback.TracebackException.from_exception(exc)
    strip(error)
    return "".join(error.format()).rstrip("\n")


def unhandled(
    failures: list[tuple[str, BaseException]], raised: BaseException | None
) -> BaseException:
    """The exception of a run that is ended by failures which nobody looked at.

    ``raised`` is what the run would raise otherwise, such as the failure of main; it comes first in
    the group, unless it is KeyboardInterrupt, SystemExit or the cancellation of main.
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
    """Warn about a cancelled fiber or grain that keeps waiting, with its stack."""
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
        frame = fiber.frame  # the frame of this function, which runs on that fiber
        stack = stack_summary(frame and frame.f_back)
    with LoopLogs():
        logger.warning(text, fiber, "\n".join(_report.lines_of(stack)))


def could_be_woken() -> bool:
    """Could anything besides Python's threads wake a fiber of a run in which all fibers wait?"""
    _load("pyfiber._help")
    from pyfiber import _help

    return _help.could_be_woken()


def cannot_wait(what: object, holder: Task | None, why: str) -> str:
    """The error text of a patched wait in a place where no switch to another fiber is allowed."""
    _load("pyfiber._report")
    from pyfiber import _report

    return _report.cannot_wait_text(what, holder, why)


def log_blocked(what: object, why: str) -> None:
    """Warn that a wait where no switch is allowed blocks its thread, and every fiber of the run."""
    _load("logging")
    import logging

    _load("pyfiber._report")
    from pyfiber import _report

    logging.getLogger("pyfiber").warning("%s", _report.blocked_text(stall_limit, what, why))


def log_stall(fibers: list[Task]) -> None:
    """Warn that nothing has happened for some time, and that only another thread could end that."""
    _load("logging")
    import logging

    logger = logging.getLogger("pyfiber")
    if logger.isEnabledFor(logging.WARNING):
        _load("pyfiber._report")
        from pyfiber import _report

        with LoopLogs():
            logger.warning("%s", _report.stall_text(stall_limit, fibers))


#: The engine calls log_stall() after this many seconds in which nothing happened; 0: never.
STALL_LIMIT = 10.0
stall_limit = STALL_LIMIT


def set_stall_limit(seconds: float) -> None:
    """Set after how many seconds log_stall() is called; ValueError if negative or not a number."""
    global stall_limit
    _engine._set_stall_limit(seconds)
    stall_limit = seconds


def seconds_from(variable: str, otherwise: float) -> float:
    """The number of seconds in an environment variable; ``otherwise`` if it is empty or not set."""
    import os

    text = os.environ.get(variable, "")
    try:
        return float(text) if text else otherwise
    except ValueError:
        raise ValueError(
            f"{variable} must be a number of seconds (0: never), not {text!r}"
        ) from None


def debug_wanted() -> bool:
    """Does PYFIBER_DEBUG ask for a socket for `python -m pyfiber ps`?"""
    import os

    text = os.environ.get("PYFIBER_DEBUG", "")
    if text not in ("", "0", "1"):
        raise ValueError(f"PYFIBER_DEBUG must be 0 or 1, not {text!r}")
    return text == "1"


def open_debug_socket() -> None:
    """Answer `python -m pyfiber ps` from now on; a failure to open the socket is only logged."""
    if sys.platform == "win32":
        return  # Python has no Unix sockets there
    _load("pyfiber._debug.server")
    from pyfiber._debug.server import server

    try:
        server.open()
    except (OSError, RuntimeError) as exc:  # for example, no thread can be started at exit
        _load("logging")
        import logging

        logging.getLogger("pyfiber").warning("%s", exc)


def watch_if_wanted() -> None:
    """Start the watchdog if PYFIBER_WATCHDOG says so.

    Without that variable, run() has debug=True by default in Python's development mode.
    """
    import os

    seconds = seconds_from("PYFIBER_WATCHDOG", 0.0)
    if sys.flags.dev_mode and "PYFIBER_WATCHDOG" not in os.environ:
        _engine._watchdog_debug()
    if seconds != 0:
        _load("pyfiber._watchdog")
        from pyfiber import _watchdog

        _watchdog.watchdog(seconds)


def slice_if_wanted() -> None:
    """Give all schedulers a time slice if PYFIBER_TIME_SLICE says so."""
    import os

    text = os.environ.get("PYFIBER_TIME_SLICE", "")
    if text:
        _load("pyfiber._slices")
        from pyfiber._slices import seconds_of

        try:
            _engine._set_time_slice(seconds_of(text))
        except ValueError as exc:
            raise ValueError(f"PYFIBER_TIME_SLICE: {exc}") from None


#: Seconds that a run has for its end after Ctrl-C, before a message is printed.
INTERRUPT_PATIENCE = 1.0


def interrupted() -> Callable[[], object]:
    """At the first Ctrl-C: print a message unless the run ends soon; the run calls the result then.

    A separate thread prints the message, because the fibers may compute for long. The thread is
    started without the module threading, whose import may be in progress.
    """
    import _thread

    _load("pyfiber._native")
    from pyfiber import _native

    over = _thread.allocate_lock()
    over.acquire()
    begun = _thread.allocate_lock()
    begun.acquire()
    thread = _native.get_ident()

    def print_unless_over() -> None:
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
        _native.start_new_thread(print_unless_over, ())
        begun.acquire()  # from now on the loop does not count it as a thread that may wake a fiber
        return over.release
    except RuntimeError:  # no thread can be started: there is no message
        return lambda: None
    except BaseException:  # a second Ctrl-C: the run ends at once
        over.release()
        raise


def running_on(thread: int) -> str:
    """Text that says which fiber of the thread runs, and where; empty while the loop is idle."""
    frame = frame_on(thread)
    for ident, current, root, *_ in _engine._threads():
        if ident == thread and current is not root and frame is not None:
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            return f", and fiber {current.name!r} runs {frame.f_code.co_name}() at {place}"
    return ""


def deadlock_text(fibers: list[Task]) -> str:
    """Describe the deadlock of these fibers, for a DeadlockError."""
    _load("pyfiber._report")
    from pyfiber import _report

    return _report.deadlock_text(fibers)


def fiber_cancelled(task: Task, cancelled: BaseException) -> BaseException:
    """The exception for result() of a fiber or grain that has ended with ``cancelled``."""
    _load("pyfiber._cancelled")
    from pyfiber import _cancelled

    return _cancelled.fiber_cancelled(task, cancelled)


def log_abandoned(function: Callable[..., object], exc: BaseException) -> None:
    """Log that a function of to_thread() failed after its caller was cancelled and did not wait."""
    _load("pyfiber._threads")
    from pyfiber import _threads

    _threads.log_abandoned(function, exc)


def start_worker(run: Callable[[], object]) -> None:
    """Start a thread that calls ``run``, for to_thread()."""
    _load("pyfiber._threads")
    from pyfiber import _threads

    _threads.start_worker(run)


def hooked_queue(queue: _engine.Queue[Any], maxsize: int) -> HookedQueue:
    """The methods of a Queue whose class stores its items in its own way."""
    _load("pyfiber._queues")
    from pyfiber import _queues

    return _queues.HookedQueue(queue, maxsize)


def trace_hook() -> object:
    """The function that was passed to threading.settrace(), or None."""
    threading = sys.modules.get("threading")
    return getattr(threading, "_trace_hook", None)


def no_run() -> str:
    """The advice at the end of an error that is raised where no scheduler runs."""
    _load("pyfiber._advice")
    from pyfiber import _advice

    return _advice.no_run()


class StackNumber:
    """An object on which memray stores its number of a fiber's stack."""


#: By the id() of each fiber that has not ended.
stack_numbers: dict[int, StackNumber] = {}


def profiled_switch(
    left: _engine.Fiber[Any], entered: _engine.Fiber[Any]
) -> tuple[Callable[..., object], str, tuple[StackNumber, StackNumber]] | None:
    """How to notify memray, which keeps a stack of calls for each thread, of a switch to a fiber.

    Returns memray's trace function for greenlets and its arguments, or None without memray. This
    function does not call it, because memray's function looks at the calls that lead to it.
    """
    memray = sys.modules.get("memray._memray")
    if memray is None:
        return None
    green = sys.modules.get("pyfiber.greenlet")
    if green is not None and green.gettrace() is memray.greenlet_trace_function:
        green.settrace(None)  # else memray would be notified twice of the switches of greenlets
    before = stack_numbers.setdefault(id(left), StackNumber())
    if left.done():
        del stack_numbers[id(left)]
    now = stack_numbers.setdefault(id(entered), StackNumber())
    return memray.greenlet_trace_function, "switch", (before, now)


def install() -> None:
    """Pass the functions above to the engine."""
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
    slice_if_wanted()
    if debug_wanted():
        open_debug_socket()
