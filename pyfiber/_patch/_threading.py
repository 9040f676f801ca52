"""The part ``threading``: locks and what is made of them, threads, and the locks of imports.

The engine changes the types of the interpreter's locks in place (csrc/python/patch/lot.h). So locks
that exist already, in conditions, logging handlers and pools, park as well, and so does Python code
that uses locks. This module adds what Python's code lacks: it handles timeouts, not cancellation.
"""

from __future__ import annotations

import _frozen_importlib
import _thread
import functools
import os
import sys
import threading
import time
import types
import weakref
from typing import Any

from pyfiber import _engine
from pyfiber._engine import Event, ThreadLimiter, shield
from pyfiber._patch._record import Record, gate_for

_start = _engine._outside(threading.Thread.start)
_join = _engine._outside(threading.Thread.join)
_wait = threading.Condition.wait

# conditions ---------------------------------------------------------------------------------------


@functools.wraps(_wait)
def wait(self: Any, timeout: float | None = None) -> bool:
    # No gate, because a gate calls this function from C, and stacks on which C code has called the
    # interpreter are not packed. _call_patched() marks the wait, as a gate does; it calls C only.
    if not wait._parks or not _engine._may_park():  # type: ignore[attr-defined]
        return _wait(self, timeout)
    # This is the standard code, except that a notification of a cancelled waiter goes to the next.
    if not self._is_owned():
        raise RuntimeError("cannot wait on un-acquired lock")
    waiter = _thread.allocate_lock()
    waiter.acquire()
    self._waiters.append(waiter)
    saved = self._release_save()
    notified = given_up = False
    try:
        if timeout is None:
            notified = _engine._call_patched(waiter.acquire)
        elif timeout > 0:
            notified = _engine._call_patched(waiter.acquire, True, timeout)
        else:
            notified = waiter.acquire(False)
        return notified
    except BaseException:
        given_up = True
        raise
    finally:
        self._acquire_restore(saved)
        if not notified and not _leave(self, waiter) and given_up and self._is_owned():
            self.notify()


def open_wait(*, is_open: bool) -> None:
    """Let wait() park, or call the original. Other code may keep wait() after the patch ended."""
    wait._parks = is_open  # type: ignore[attr-defined]


def _leave(condition: Any, waiter: Any) -> bool:
    """Remove the waiter. False if somebody has notified, and so removed, it already."""
    try:
        condition._waiters.remove(waiter)
    except ValueError:
        return False
    return True


def acquire_restore(self: Any, saved: object) -> None:
    """Take the lock of a condition again; for locks that do not restore their state themselves."""
    if type(self._lock) is _thread.LockType:
        _engine._lock_retake(self._lock)
    elif _engine._may_park():
        with shield():
            self._lock.acquire()
    else:
        self._lock.acquire()


# threads ------------------------------------------------------------------------------------------


def start(self: threading.Thread) -> None:
    # start() waits until the thread runs. If a cancellation ended that wait, the thread would run
    # although start() has failed.
    with shield():
        _start(self)


class EndOfThread:
    """Replaces ``_delete()``, the method that a thread calls last, to wake fibers that join it."""

    def __init__(self, thread: threading.Thread) -> None:
        self.thread = weakref.ref(thread)  # weak, as the thread may have made its last call already
        self.event = Event()

    def __call__(self) -> None:
        thread: Any = self.thread()
        type(thread)._delete(thread)
        vars(thread).pop("_delete", None)
        self.event.set()


#: The ends that fibers wait for. A forked child has none of the threads, so they are all set there.
_awaited: weakref.WeakSet[EndOfThread] = weakref.WeakSet()


def _after_fork() -> None:
    for end in list(_awaited):
        end.event.set()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

#: Threads that join a thread whose Python code has ended. The rest of it takes microseconds, unless
#: a destructor of something that the thread leaves behind waits.
_joins = ThreadLimiter(100, abandon_on_cancel=True)
#: Seconds that the fiber's own thread may block for that rest, before one of _joins is used.
INSTANT = 0.001


def join(self: threading.Thread, timeout: float | None = None) -> None:
    if is_virtual(self) or not _waits(self, timeout):
        _join(self, timeout)
        return
    end = vars(self).setdefault("_delete", EndOfThread(self))
    _awaited.add(end)
    until = None if timeout is None else _engine.now() + timeout
    if _calls_delete_later(self) and not end.event.wait(timeout):
        return
    _join(self, INSTANT)
    if self.is_alive():
        left = None if until is None else max(until - _engine.now(), 0)
        _joins.to_thread(_join, self, left)


def _calls_delete_later(thread: threading.Thread) -> bool:
    """Whether the thread will call an EndOfThread that has just become its ``_delete()``.

    No if it is in that method already, or has ended. With the GIL held a thread is never between
    its look-up of the method and the call.
    """
    frame = _current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not _delete_code:
        frame = frame.f_back
    return frame is None and threading._active.get(thread.ident) is thread  # type: ignore[attr-defined]


_current_frames = sys._current_frames
_delete_code = threading.Thread._delete.__code__  # type: ignore[attr-defined]


#: The attribute of a Thread that has its handle; up to 3.12 only threads that are fibers have one.
HANDLE = "_os_thread_handle" if "_os_thread_handle" in vars(threading.main_thread()) else "_handle"


def is_virtual(thread: threading.Thread) -> bool:
    """Is the Thread a fiber, or was it one? Fibers that join it park (virtual/handle.c)."""
    return isinstance(vars(thread).get(HANDLE), _engine._ThreadHandle)


def _waits(thread: threading.Thread, timeout: float | None) -> bool:
    """Whether join() has to wait. Otherwise it returns at once, perhaps with an error."""
    return (
        (timeout is None or timeout > 0)
        and thread is not threading.current_thread()
        and thread.is_alive()
    )


# imports ------------------------------------------------------------------------------------------


def import_threads() -> types.SimpleNamespace:
    """A module ``_thread`` for the import system in which the ident is the fiber's, in a fiber.

    So the owner of a module's lock is a fiber. If it were the thread, a fiber would get a module
    that another fiber of the thread has half imported.
    """
    names = dict(vars(_thread))
    return types.SimpleNamespace(**names | {"get_ident": _engine._fiber_ident})


_imports: Any = _frozen_importlib
_has_deadlock = _imports._ModuleLock.has_deadlock


def has_deadlock(self: Any) -> Any:
    # The module may be in the middle of an import by the code that has begun this run, outside of
    # fibers on this thread. Since that code waits for the run, to wait for it would be a deadlock.
    return self.owner == _thread.get_ident() != _engine._fiber_ident() or _has_deadlock(self)


def keep_imports(owner: int) -> None:
    """Give the locks of modules that the caller is importing to ``owner``, as idents change."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _imports._find_and_load.__code__:
            known = _imports._module_locks.get(frame.f_locals["name"])
            lock = None if known is None else known()
            if lock is not None:
                lock.owner = owner
        frame = frame.f_back


def apply_to_imports(record: Record) -> None:
    keep_imports(_engine._fiber_ident())
    record.on_undo(lambda: keep_imports(_thread.get_ident()))
    record.replace(_imports._ModuleLock, "has_deadlock", has_deadlock)
    record.replace(_imports, "_thread", import_threads())


def apply(record: Record) -> None:
    _engine._patch_methods("LockType", True)
    record.on_undo(lambda: _engine._patch_methods("LockType", False))
    _engine._patch_methods("RLock", True)
    record.on_undo(lambda: _engine._patch_methods("RLock", False))
    record.notes.append("every Lock and RLock, made before or later, and all that is made of them")
    open_wait(is_open=True)
    record.on_undo(lambda: open_wait(is_open=False))
    record.replace(threading.Condition, "wait", wait)
    record.replace(threading.Condition, "_acquire_restore", acquire_restore)
    record.method(threading.Thread, "start", start)
    record.method(threading.Thread, "join", join)
    record.replace(threading, "_time", gate_for(time.monotonic, _engine.now))
    apply_to_imports(record)
