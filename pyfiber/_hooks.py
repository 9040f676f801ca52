"""What the engine asks of Python: outcome classes, logging, reports.

The native module knows none of these; it is given them here, so that
dependencies point down only.  All of it is off the hot path.
"""

from __future__ import annotations

import sys

from pyfiber import _engine

TYPE_CHECKING = False  # typing itself takes as long to import as all of this
if TYPE_CHECKING:
    from traceback import StackSummary
    from types import FrameType
    from typing import Any

    from pyfiber._outcome import Outcome

    Task = _engine.Fiber[object] | _engine.Grain[object]


def make_outcome(kind: int, value: Any) -> Outcome[Any]:
    """How a fiber ended, as a dataclass; ``kind`` is the engine's PF_OUTCOME."""
    from pyfiber import _outcome

    return (_outcome.Ok, _outcome.Failed, _outcome.CancelledOutcome)[kind - 1](value)


def stack_summary(frame: FrameType | list[FrameType] | None) -> StackSummary:
    """The stack that ends in ``frame``, or consists of those frames, outermost call first."""
    import traceback

    if isinstance(frame, list):
        return traceback.StackSummary.extract((each, each.f_lineno) for each in frame)
    summary = traceback.StackSummary.extract(traceback.walk_stack(frame) if frame else [])
    summary.reverse()
    return summary


def log_failure(fiber: Task, exc: BaseException, in_callback: bool) -> None:
    """A failure that nobody will ever see otherwise."""
    import logging

    what = "a done-callback of %r failed" if in_callback else "%r failed and nobody looked at it"
    logger = logging.getLogger("pyfiber")
    if not logger.isEnabledFor(logging.ERROR):
        return
    exc_info = (type(exc), exc, exc.__traceback__)
    record = logger.makeRecord("pyfiber", logging.ERROR, __file__, 0, what, (fiber,), exc_info)
    if not PARSER_CAN_BE_INTERRUPTED:
        record.exc_text = text_without_carets(exc)
    logger.handle(record)


#: To place its carets, a traceback's text is made with ast.parse(). A collection within another
#: ast.parse() may end a fiber whose failure is logged; then the outer one raised SystemError ("AST
#: constructor recursion depth mismatch"), up to 3.11.8 and 3.12.2.
PARSER_CAN_BE_INTERRUPTED = sys.version_info >= (3, 12, 3) or (
    (3, 11, 9) <= sys.version_info < (3, 12)
)


def text_without_carets(exc: BaseException) -> str:
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


def log_deaf(fiber: Task) -> None:
    """A cancelled fiber or grain that goes on waiting; its stack shows where."""
    import logging

    logger = logging.getLogger("pyfiber")
    if not logger.isEnabledFor(logging.WARNING):
        return
    text = "%r was cancelled, catches Cancelled and goes on; it is slowed down from here on\n%s"
    if isinstance(fiber, _engine.Grain):
        stack = fiber.stack()
    else:
        frame = fiber.frame  # this function's: it runs on that fiber
        stack = stack_summary(frame and frame.f_back)
    logger.warning(text, fiber, "".join(stack.format()))


def deadlock_text(fibers: list[Task]) -> str:
    """The text of a DeadlockError."""
    from pyfiber import _report

    return _report.deadlock_text(fibers)


def install() -> None:
    """Give the engine all of the above."""
    _engine._set_hooks(
        make_outcome=make_outcome,
        log_failure=log_failure,
        deadlock_text=deadlock_text,
        stack_summary=stack_summary,
        log_deaf=log_deaf,
    )
