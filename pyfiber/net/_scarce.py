"""What a server does when there is no descriptor, memory or thread: it logs that once, and waits.

``net.Server`` and gunicorn's worker use this for accept(), and for fibers that could not begin.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from functools import cache
from typing import Final

from pyfiber._engine import _load, now, sleep

#: Errors that mean that the process, or the whole system, has run out of something. A connection
#: that is not accepted for that reason stays in the listener's queue.
_ERRORS: Final = frozenset(
    getattr(errno, name)
    for name in ("EMFILE", "ENFILE", "ENOBUFS", "ENOMEM", "ENOSPC", "WSAEMFILE")
    if hasattr(errno, name)
)

#: Seconds until the next try: at first, and at most.
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 1.0

#: Seconds without a failure after which the shortage is over. A server at its limit can accept
#: whenever a connection ends, and must not log each of these times.
QUIET: Final = 1.0

#: What logging and pyfiber's own messages import at their first use. An import needs a descriptor.
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
    """Import what a server needs when it runs out of something, before that happens."""
    for name in _NEEDED:
        _load(name)
    _format_a_failure()


@cache
def _format_a_failure() -> None:
    """Format a traceback once: modules that do so import others in the middle of it."""
    import traceback

    try:
        _prepare_for_failures  # type: ignore[name-defined]  # noqa: B018
    except NameError as exc:
        "".join(traceback.format_exception(ExceptionGroup("a rehearsal", [exc])))


def is_scarce(exc: BaseException) -> bool:
    """Whether the exception means that something has run out, which may pass."""
    return isinstance(exc, MemoryError) or (isinstance(exc, OSError) and exc.errno in _ERRORS)


class Scarcity:
    """The shortage of something that one server needs.

    ``report(exc)`` and ``report_end()`` log its beginning and its end.
    """

    def __init__(self, report: Callable[[BaseException], object], report_end: Callable[[], object]):
        self._report = report
        self._report_end = report_end
        self._pause = FIRST_PAUSE
        self._must_wait = False
        self._last = 0.0
        self.lasts = False

    def note(self, exc: BaseException) -> None:
        """Note a failure for lack of something: ``wait()`` pauses before the next try."""
        self._must_wait = True
        self._last = now()
        if not self.lasts:
            self.lasts = True
            with contextlib.suppress(MemoryError, OSError):
                self._report(exc)

    def wait(self) -> None:
        """Pause if the last try has failed."""
        if self._must_wait:
            self._must_wait = False
            pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
            sleep(pause)

    def relax(self) -> None:
        """Note a success: the pauses begin anew, and after QUIET seconds the shortage is over."""
        self._pause = FIRST_PAUSE
        if self.lasts and now() - self._last >= QUIET:
            self.lasts = False
            with contextlib.suppress(MemoryError, OSError):
                self._report_end()
