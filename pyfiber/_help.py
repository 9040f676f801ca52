"""Who, beside Python's threads, could still wake a fiber when all of a run's fibers wait."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from pyfiber import _engine

#: Modules whose handlers wake nobody: pyfiber's own wake only fibers that are known to wait for a
#: signal, and pytest-timeout's raises an exception.
_HARMLESS = ("pyfiber._signals", "pyfiber._report", "pytest_timeout")


def handled_signals() -> Iterator[signal.Signals]:
    """Signals with a handler that the program has set, which may do anything."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if (
            callable(handler)
            and handler is not signal.default_int_handler
            and handler is not _engine._on_sigint
            and getattr(handler, "__module__", None) not in _HARMLESS
        ):
            yield signal.Signals(number)


def could_be_woken() -> bool:
    """Whether a handler of the program's could wake a fiber, or a thread that Python does not know.

    Called on the main thread, or where only such threads are left: no other thread of Python's
    could.
    """
    return _engine._has_unknown_threads() or any(True for _ in handled_signals())
