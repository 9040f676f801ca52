"""What a server does when there is no descriptor, memory or thread: it says so once, and waits.

``net.Server`` and gunicorn's worker use this for accept(), and for fibers that could not begin.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from functools import cache
from typing import Final

from pyfiber._engine import _load, now, sleep

#: Errors of the system that say that the process, or all of it, has too little of something. A
#: connection that is not accepted for that reason stays in the listener's queue.
_ERRORS: Final = frozenset(
    getattr(errno, name)
    for name in ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ENOSPC", "WSAEMFILE")
    if hasattr(errno, name)
)

#: Seconds until the next try: at first, and at most.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

#: Seconds without a failure after which the trouble is over. A server at its limit succeeds now and
#: then, whenever a connection ends; it must not log each of these times.
QUIET: Final = 1.0

#: What logging and pyfiber's own messages import at their first use, which needs a descriptor.
_NEEDED: Final = (
    "concurrent.futures",
    "encodings.ascii",
    "encodings.latin_1",
    "logging",
    "threading",
    "traceback",
    "pyfiber._cancelled",
    "pyfiber._descriptors",
    "pyfiber._report",
    "pyfiber._words",
)


def prepare() -> None:
    """Import what a server needs in trouble, before there is any."""
    for name in _NEEDED:
        _load(name)
    _format_a_failure()


@cache
def _format_a_failure() -> None:
    """Make the text of a traceback, for its modules import others in the middle of that."""
    import traceback

    try:
        _prepare_for_failures  # type: ignore[name-defined]  # noqa: B018
    except NameError as exc:
        "".join(traceback.format_exception(ExceptionGroup("a rehearsal", [exc])))


def is_scarce(exc: BaseException) -> bool:
    """Whether the exception says that there is too little of something, not that all is lost."""
    return isinstance(exc, MemoryError) or (isinstance(exc, OSError) and exc.errno in _ERRORS)


class Scarcity:
    """The trouble of one server.

    ``tell(exc)`` and ``tell_end()`` log its beginning and its end.
    """

    def __init__(self, tell: Callable[[BaseException], object], tell_end: Callable[[], object]):
        self._tell = tell
        self._tell_end = tell_end
        self._pause = FIRST_PAUSE
        self._must_wait = False
        self._last = 0.0
        self.lasts = False

    def note(self, exc: BaseException) -> None:
        """Something was not to be had: ``wait()`` pauses before the next try."""
        self._must_wait = True
        self._last = now()
        if not self.lasts:
            self.lasts = True
            with contextlib.suppress(MemoryError, OSError):
                self._tell(exc)

    def wait(self) -> None:
        """Pause if the last try has failed."""
        if self._must_wait:
            self._must_wait = False
            pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
            sleep(pause)

    def relax(self) -> None:
        """A connection is being served: the next try that fails is the first of its kind."""
        self._pause = FIRST_PAUSE
        if self.lasts and now() - self._last >= QUIET:
            self.lasts = False
            with contextlib.suppress(MemoryError, OSError):
                self._tell_end()
