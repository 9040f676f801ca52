"""The errors that a run under test adds to those of the program itself."""

from __future__ import annotations

from collections.abc import Callable

from pyfiber import DeadlockError


class ScheduleFailure(AssertionError):
    """A schedule was found under which the program fails; the text has the details.

    ``exception`` is what the program raised, ``schedule`` the string that `replay()` takes,
    ``seed`` and ``number`` say which schedule of the exploration it was (``number`` counts from 1),
    ``log`` says which fiber ran when, ``story`` what the network in memory did besides moving
    bytes, ``verdict`` whether the failure can happen with a GIL; it is empty if that was not asked.
    """

    def __init__(
        self,
        text: str,
        *,
        exception: BaseException,
        schedule: str,
        seed: int | None = None,
        number: int | None = None,
        log: str = "",
        verdict: str = "",
        story: str = "",
        page: Callable[[], str] = str,
    ) -> None:
        super().__init__(text)
        self.exception = exception
        self.schedule = schedule
        self.seed = seed
        self.number = number
        self.log = log
        self.verdict = verdict
        self.story = story
        self._page = page

    def html(self) -> str:
        """The report as a page of HTML, with a lane for each fiber, which needs no other file."""
        return self._page()


class ScheduleError(ValueError):
    """A schedule string that cannot be used: cut off, mistyped, or of another version."""


class ReplayDivergence(RuntimeError):
    """The program did not reach the choices of the schedule; the text names the step."""


class NondeterminismError(RuntimeError):
    """The same schedule gave two different runs; the text says where, and possible causes."""


class LivelockError(RuntimeError):
    """The run made more steps than allowed; the text lists the fibers still running."""


class NeverAwaitedError(RuntimeError):
    """A fiber failed and nobody asked for its result; the failure is the cause."""


class LeftRunningError(RuntimeError):
    """The function under test returned while fibers it had started were still running."""


def repr_of(exc: BaseException | None) -> str:
    """The exception's repr(), or its type if that fails."""
    try:
        return repr(exc)
    except Exception:
        return f"{type(exc).__name__}(<its repr() failed>)"


def failed_before(exc: BaseException) -> NeverAwaitedError | None:
    """What has ended threads before a deadlock: often its cause."""
    before = exc.__context__
    deadlock = isinstance(exc, DeadlockError)
    return before if deadlock and isinstance(before, NeverAwaitedError) else None


def first_line(exc: BaseException) -> str:
    """Type and message, in one line, after what has led to a deadlock."""
    before = failed_before(exc)
    if before is not None:
        return f"{one_line(before)}; then {one_line(exc)}"
    return one_line(exc)


def one_line(exc: BaseException) -> str:
    """Type and message."""
    try:
        message = str(exc).partition("\n")[0]
    except Exception:
        message = "<its str() failed>"
    return f"{type(exc).__name__}: {message}" if message else type(exc).__name__
