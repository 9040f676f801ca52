"""The part ``os``: ``wait()`` and its relatives, ``system()``, ``fork()``, locks of files.

``os.popen()`` belongs to the part ``subprocess``.

The system does not notify a fiber when one of several children ends. So a thread waits for that
without reaping, and the fiber reaps the child itself: a cancelled wait loses no child.

In the child of a fork that a fiber made, blocking calls block. If they parked, the copies of the
parent's other fibers would go on there.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

from pyfiber._engine import _block_from_now_on, _outside, shield, sleep, wait_readable
from pyfiber._futures import await_future
from pyfiber._patch._polling import look_until
from pyfiber._patch._record import Record
from pyfiber._slices import no_preemption
from pyfiber.subprocess import _end_of, _in_thread

if sys.platform != "win32":
    import fcntl

#: Seconds between two attempts to reap a child where the system cannot wait without reaping.
_PAUSE = 0.02

_theirs: dict[str, Any] = {
    name: _outside(getattr(os, name))
    for name in ("waitpid", "wait3", "wait4", "waitid", "system", "fork", "forkpty")
    if hasattr(os, name)
}


def _until(ask: Callable[[], Any], pid: int, *, only_end: bool) -> Any:
    """Call ``ask()`` until it reports a child, and return the report; park in between.

    ``pid`` is as for waitpid(): 0 is this process's group. ``only_end``: of a child only the end is
    waited for, not a stop.
    """
    while not (found := ask()) or not found[0]:
        if pid > 0 and only_end and _await_end(pid):
            continue
        _await_any(pid, only_end)
    return found


def _await_end(pid: int) -> bool:
    """Park until the process has ended. False if the system has no descriptor for that."""
    try:
        with _end_of(pid) as number:
            wait_readable(number)
    except ProcessLookupError:
        pass  # the process has ended, or is no child of this one: the next ask() finds out
    except OSError:
        return False
    return True


def _await_any(pid: int, only_end: bool) -> None:
    """Park until a child has ended (or stopped), without reaping it; or for _PAUSE seconds.

    If the fiber is cancelled, the thread that waits stays until the next child ends.
    """
    if "waitid" not in _theirs:
        sleep(_PAUSE)
        return
    events = os.WEXITED if only_end else os.WEXITED | os.WSTOPPED | os.WCONTINUED
    which = (os.P_PID, pid) if pid > 0 else (os.P_ALL, 0) if pid == -1 else (os.P_PGID, abs(pid))
    if pid == 0:
        which = os.P_PGID, os.getpgrp()
    await_future(_in_thread(_wait_without_reaping, *which, events | os.WNOWAIT))


def _wait_without_reaping(*args: Any) -> None:
    with contextlib.suppress(ChildProcessError):  # the next ask() raises this error
        _theirs["waitid"](*args)


def waitpid(pid: int, options: int, /) -> tuple[int, int]:
    theirs = _theirs["waitpid"]
    if not isinstance(pid, int) or not isinstance(options, int) or options & os.WNOHANG:
        return theirs(pid, options)  # type: ignore[no-any-return]
    ask = lambda: theirs(pid, options | os.WNOHANG)  # noqa: E731
    return _until(ask, pid, only_end=options == 0)  # type: ignore[no-any-return]


def wait() -> tuple[int, int]:
    return waitpid(-1, 0)


def wait4(pid: int, options: int) -> Any:
    theirs = _theirs["wait4"]
    if options & os.WNOHANG:
        return theirs(pid, options)
    return _until(lambda: theirs(pid, options | os.WNOHANG), pid, only_end=options == 0)


def wait3(options: int) -> Any:
    theirs = _theirs["wait3"]
    if options & os.WNOHANG:
        return theirs(options)
    return _until(lambda: theirs(options | os.WNOHANG), -1, only_end=options == 0)


def waitid(idtype: int, id: int, options: int, /) -> Any:
    theirs = _theirs["waitid"]
    while True:
        found = theirs(idtype, id, options | os.WNOHANG)
        if found is not None or options & os.WNOHANG:
            return found
        await_future(_in_thread(_wait_without_reaping, idtype, id, options | os.WNOWAIT))


def system(command: Any) -> int:
    """Run the command in a thread. If the fiber is cancelled, thread and command go on."""
    code: int = await_future(_in_thread(_theirs["system"], command))
    return code


def _locking(theirs: Callable[..., None]) -> Callable[..., None]:
    """``fcntl.flock()`` or ``lockf()``, which try again and again until the lock is free."""

    def lock(file: Any, operation: int, *where: Any) -> None:
        if not isinstance(operation, int) or operation & (fcntl.LOCK_NB | fcntl.LOCK_UN):
            return theirs(file, operation, *where)

        def taken() -> bool:
            try:
                theirs(file, operation | fcntl.LOCK_NB, *where)
            except BlockingIOError:
                return False
            return True

        look_until(taken, None)
        return None

    return lock


if sys.platform != "win32":
    _flock = _locking(_outside(fcntl.flock))
    _lockf = _locking(_outside(fcntl.lockf))


# A hook of os.register_at_fork() that takes a lock has a second half, which releases the lock. The
# second half would run even if the first half were cancelled. So the fiber is shielded while the
# hooks run. No slice ends meanwhile: in the child another fiber, which is a copy, would go on.


def fork() -> int:
    with shield(), no_preemption():
        pid: int = _theirs["fork"]()
        if pid == 0:
            _block_from_now_on()
    return pid


def forkpty() -> tuple[int, int]:
    with shield(), no_preemption():
        found: tuple[int, int] = _theirs["forkpty"]()
        if found[0] == 0:
            _block_from_now_on()
    return found


def apply(record: Record) -> None:
    """Apply this part; the record undoes it."""
    record.function(os, "system", system)
    if sys.platform != "win32":
        record.function(fcntl, "flock", _flock)
        record.function(fcntl, "lockf", _lockf)
    if os.name != "nt":  # on Windows waitpid() is the C library's, for one given child
        for inside in (wait, waitpid, wait3, wait4, waitid, fork, forkpty):
            if hasattr(os, inside.__name__):
                record.function(os, inside.__name__, inside)
