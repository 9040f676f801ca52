"""Signal masks of virtual threads, and the calls that wait for a blocked signal.

The system's thread has one mask, which is the main program's. A virtual thread gets no signals, so
its mask is only kept here, and never keeps a signal from the main program.

``sigwait()`` and its relatives look for a pending signal from time to time, and park in between:
the system notifies nobody of a signal that is blocked.
"""

from __future__ import annotations

import errno
import operator
import os
import signal as standard
import weakref
from collections.abc import Iterable
from typing import Any

from pyfiber import _engine
from pyfiber._engine import _ThreadHandle
from pyfiber._patch._polling import look_until

#: The interpreter's own functions; None for names that this system does not have.
original: dict[str, Any] = {
    name: vars(standard).get(name)
    for name in ("pthread_sigmask", "sigwait", "sigwaitinfo", "sigtimedwait")
}

#: The masks of the virtual threads that have set one.
_masks: weakref.WeakKeyDictionary[_ThreadHandle, set[int]] = weakref.WeakKeyDictionary()


def pthread_sigmask(how: int, mask: Iterable[int], /) -> set[int]:
    """``signal.pthread_sigmask()``."""
    thread = _engine._running_thread()
    if thread is None:
        return original["pthread_sigmask"](how, mask)  # type: ignore[no-any-return]
    before = _masks.get(thread)
    if before is None:
        before = original["pthread_sigmask"](standard.SIG_BLOCK, ())
    given, known = {operator.index(number) for number in mask}, standard.valid_signals()
    if not given <= known:
        raise ValueError("signal number out of range")
    if how == standard.SIG_BLOCK:
        given |= before
    elif how == standard.SIG_UNBLOCK:
        given = before - given
    elif how != standard.SIG_SETMASK:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    _masks[thread] = {number for number in known if number in given}
    return before


def _take(wanted: set[int]) -> Any:
    """Take a pending signal: its number or siginfo. None: no signal is pending."""
    if original["sigtimedwait"] is not None:
        return original["sigtimedwait"](wanted, 0)
    return original["sigwait"](wanted) if wanted & standard.sigpending() else None


def _await(wanted: set[int], timeout: float | None) -> Any:
    """Park until _take() has found a signal. None: the time is over."""
    before = original["pthread_sigmask"](standard.SIG_BLOCK, wanted)
    try:
        return look_until(lambda: _take(wanted), timeout)
    finally:
        original["pthread_sigmask"](standard.SIG_UNBLOCK, wanted - before)


def sigwait(sigset: Iterable[int], /) -> Any:
    """``signal.sigwait()``."""
    if not _engine._may_park():
        return original["sigwait"](sigset)
    found = _engine._call_patched(_await, set(sigset), None)
    number = getattr(found, "si_signo", found)
    return next(each for each in standard.valid_signals() if each == number)


def sigwaitinfo(sigset: Iterable[int], /) -> Any:
    """``signal.sigwaitinfo()``."""
    if not _engine._may_park():
        return original["sigwaitinfo"](sigset)
    return _engine._call_patched(_await, set(sigset), None)


def sigtimedwait(sigset: Iterable[int], timeout: float, /) -> Any:
    """``signal.sigtimedwait()``."""
    if not timeout > 0 or not _engine._may_park():
        return original["sigtimedwait"](sigset, timeout)
    return _engine._call_patched(_await, set(sigset), timeout)
