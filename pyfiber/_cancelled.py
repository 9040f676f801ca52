"""``FiberCancelled``, in a separate module because its base class takes long to import."""

from __future__ import annotations

from concurrent.futures import CancelledError
from typing import Any

from pyfiber import _engine

Task = _engine.Fiber[Any] | _engine.Grain[Any]


class FiberCancelled(CancelledError):
    """What result() and exception() of a cancelled fiber or grain raise.

    `reason` is the argument of cancel(), or a text that says what cancelled it; `by` is the fiber
    that called cancel(), or None if no fiber did.
    """

    reason: object = None
    by: _engine.Fiber[Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out `by` in a copy, because a fiber can be neither copied nor pickled."""
        return type(self), self.args, {**self.__dict__, "by": None}


FiberCancelled.__module__ = "pyfiber"


def fiber_cancelled(task: Task, cancelled: BaseException) -> FiberCancelled:
    """The exception for result() of ``task``, which has ended with a Cancelled or a FiberExit."""
    error = FiberCancelled(_text(task, cancelled))
    error.reason = getattr(cancelled, "reason", None)
    error.by = getattr(cancelled, "by", None)
    return error


def _text(task: Task, cancelled: BaseException) -> str:
    subject = _name(task)
    if not isinstance(cancelled, _engine.Cancelled):
        return f"{subject} was unwound before it had a result"
    by, reason = cancelled.by, cancelled.reason
    if isinstance(by, _engine.Fiber | _engine.Grain):
        subject += " was cancelled by " + ("itself" if by is task else _name(by))
    else:
        subject += " was cancelled"
    return subject if reason is None else f"{subject}: {_safely(reason)}"


def _name(task: Task) -> str:
    kind = "grain" if isinstance(task, _engine.Grain) else "fiber"
    return f"{kind} {task.name!r}"


def _safely(reason: object) -> str:
    try:
        return str(reason)
    except Exception as exc:  # a reason is any object
        return f"a {type(reason).__name__}, whose str() raised {type(exc).__name__}"
