"""Starting threads of the program as fibers: the stand-ins for the functions of ``_thread``.

Each function decides when it is called. While no session is open, or in the child of a fork, it
calls the original, so modules that have imported it by name keep working after the block.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable
from contextvars import Context
from types import FrameType, FunctionType
from typing import Any

from pyfiber import _engine
from pyfiber._engine import Fiber, Scheduler, _ThreadHandle
from pyfiber._native import is_native
from pyfiber._patch._threading import HANDLE

#: The interpreter's own functions; None for names that this version does not have.
original: dict[str, Any] = {
    name: vars(_thread).get(name)
    for name in (
        "start_new_thread",
        "start_joinable_thread",
        "stack_size",
        "_count",
        "_set_sentinel",
        "_ThreadHandle",
        "_get_main_thread_ident",
        "_shutdown",
        "set_name",
    )
}
original |= {
    name: vars(sys).get(name)
    for name in (
        "_current_frames",
        "_current_exceptions",
        "setswitchinterval",
        "getswitchinterval",
        "settrace",
        "_settraceallthreads",
        "setprofile",
        "_setprofileallthreads",
    )
}

#: The smallest stack for which a fiber may ask.
SMALLEST_STACK = _engine._facts()["min_stack_size"]


class Session:
    """Threads that the program starts are fibers of one scheduler, from open() until close()."""

    def __init__(self, scheduler: Scheduler, main: Fiber[Any]) -> None:
        self.scheduler = scheduler
        #: The fiber that is the main thread.
        self.main = main
        #: What those wait for that join the main thread; None: nothing stands in for that.
        self.main_handle: _ThreadHandle | None = None
        #: Of new threads, in bytes; 0: the default.
        self.stack_size = 0
        #: Called before threads are joined: see shutdown.register_atexit().
        self.exits: list[Callable[[], object]] = []
        #: No thread may be started any more.
        self.over = False

    def open(self) -> None:
        """Begin. FiberError if a session is open."""
        global session
        if session is not None:
            raise _engine.FiberError("the program's threads are fibers already")
        session = self

    def close(self) -> None:
        """Threads are started as before from now on; nothing is done if open() has failed."""
        global session
        if session is self:
            session = None

    def takes(self) -> bool:
        """Whether a thread that the running code starts belongs to the session."""
        return True

    def threads(self) -> list[_ThreadHandle]:
        """The handles of the threads that have not ended."""
        return _engine._threads_of(self.scheduler)

    def start(
        self,
        handle: _ThreadHandle,
        function: Callable[..., object],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        daemon: bool = True,
        context: Context | None = None,
    ) -> int:
        """Start a thread, and return its ident."""
        if self.over:
            raise RuntimeError("can't create new thread at interpreter shutdown")
        size = self.stack_size and max(self.stack_size, SMALLEST_STACK)
        name = _name_for(function)
        function = self.body(function)
        return _engine._start_thread(
            self.scheduler, handle, function, args, kwargs, daemon, size, context, name
        )

    def body(self, function: Callable[..., object]) -> Callable[..., object]:
        """What the thread's fiber calls."""
        return function


#: The open session, or None.
session: Session | None = None


def _session_for(function: object) -> Session | None:
    """The session whose scheduler the new thread belongs to; None: start a native thread."""
    if session is None or not session.takes():
        return None
    thread = getattr(function, "__self__", None)
    return None if isinstance(thread, threading.Thread) and is_native(thread) else session


def _thread_of(function: object) -> Any:
    """The Thread object whose start() has called, or None."""
    thread = getattr(function, "__self__", None)
    if isinstance(thread, threading.Thread) and function.__name__ == "_bootstrap":  # type: ignore[attr-defined]
        return thread
    return None


def _name_for(function: object) -> str:
    """The name of the thread's fiber in reports."""
    thread = _thread_of(function)
    if thread is not None:
        name = vars(thread).get("_name")
    else:
        name = function.__qualname__ if isinstance(function, FunctionType) else None
    return name if isinstance(name, str) else "a thread"


def _check_call(function: object, args: object, kwargs: object) -> None:
    if not callable(function):
        raise TypeError("first arg must be callable")
    if not isinstance(args, tuple):
        raise TypeError("2nd arg must be a tuple")
    if kwargs is not None and not isinstance(kwargs, dict):
        raise TypeError("optional 3rd arg must be a dictionary")


def start_new_thread(function: Any, args: Any, kwargs: Any = None, /) -> int:
    """Start a new thread and return its identifier, as ``_thread.start_new_thread()`` does."""
    here = _session_for(function)
    if here is None:
        more = () if kwargs is None else (kwargs,)
        return original["start_new_thread"](function, args, *more)  # type: ignore[no-any-return]
    _check_call(function, args, kwargs)
    sys.audit("_thread.start_new_thread", function, args, kwargs)
    thread = _thread_of(function)
    handle = _ThreadHandle()
    if thread is not None:  # up to 3.12, where Thread.start() calls this
        setattr(thread, HANDLE, handle)
    daemon = thread is None or thread.daemon
    return here.start(handle, function, args, kwargs, daemon)


def start_joinable_thread(function: Any, handle: Any = None, daemon: bool = True) -> Any:
    """Start a thread and return its handle, as ``_thread.start_joinable_thread()`` does."""
    here = _session_for(function)
    if here is None:
        return original["start_joinable_thread"](function, handle=handle, daemon=daemon)
    if not callable(function):
        raise TypeError("thread function must be callable")
    if handle is not None and not isinstance(handle, (_ThreadHandle, original["_ThreadHandle"])):
        raise TypeError("'handle' must be a _ThreadHandle")
    sys.audit("_thread.start_joinable_thread", function, daemon, handle)
    thread = _thread_of(function)
    if not isinstance(handle, _ThreadHandle):
        handle = _ThreadHandle()
        if thread is not None:
            setattr(thread, HANDLE, handle)
    # From 3.14 on a Thread has a context, in which the whole fiber runs. A call by it would
    # go from the interpreter through C to the interpreter, and such a stack cannot be packed.
    context = None if thread is None else vars(thread).get("_context")
    if type(context) is not Context:
        here.start(handle, function, daemon=daemon)
        return handle
    thread._context = _DIRECT
    try:
        here.start(handle, function, daemon=daemon, context=context)
    except BaseException:
        thread._context = context
        raise
    return handle


class _Direct:
    """Stands in for the context by which ``Thread._bootstrap_inner()`` calls ``run()``."""

    def run(self, function: Callable[[], object]) -> object:
        return function()


_DIRECT = _Direct()


def set_sentinel() -> Any:
    """A lock that the end of the calling thread releases: ``_thread._set_sentinel()``."""
    handle = _engine._running_thread()
    if handle is None:
        return original["_set_sentinel"]()
    handle._sentinel = lock = _thread.allocate_lock()
    return lock


def stack_size(size: int = 0, /) -> int:
    """Return and set the size of new threads' stacks: ``_thread.stack_size()``."""
    before = original["stack_size"](size)
    if session is None:
        return before  # type: ignore[no-any-return]
    before, session.stack_size = session.stack_size, size
    return before


def main_thread_ident() -> int:
    """The ident of the main thread: ``threading._get_main_thread_ident()``.

    After a fork the thread that has forked is the main thread, also if it is a fiber.
    """
    if session is None:
        return threading.get_ident()
    return original["_get_main_thread_ident"]()  # type: ignore[no-any-return]


def set_name(name: str) -> None:
    """Name the calling native thread for the system: ``_thread.set_name()``, from 3.14 on."""
    if _engine._running_thread() is None:
        original["set_name"](name)


def count() -> int:
    """The number of threads that run, without the main thread: ``_thread._count()``."""
    native: int = original["_count"]()
    return native if session is None else native + len(session.threads())


def current_frames() -> dict[int, FrameType]:
    """Each thread's frame, by the thread's identifier: ``sys._current_frames()``."""
    frames: dict[int, FrameType] = original["_current_frames"]()
    if session is None:
        return frames
    for handle in session.threads():
        fiber = handle._fiber
        if fiber is not None and fiber.frame is not None:
            frames[handle.ident] = fiber.frame
    running = _engine._running_thread()
    if running is not None:
        frames[running.ident] = sys._getframe(1)
        if session.main.frame is not None:
            frames[_thread_ident()] = session.main.frame
    return frames


def current_exceptions() -> dict[int, Any]:
    """Each thread's handled exception: ``sys._current_exceptions()``.

    What a thread that waits is handling is not known: None.
    """
    found: dict[int, Any] = original["_current_exceptions"]()
    if session is not None:
        for handle in session.threads():
            found[handle.ident] = None
        running = _engine._running_thread()
        if running is not None:
            found[running.ident] = found.get(_thread_ident())
            found[_thread_ident()] = None
    return found


def settrace_all(function: Any, /) -> None:
    """Set the trace function of all threads: ``sys._settraceallthreads()``."""
    _engine._set_in_all(original["settrace"], original["_settraceallthreads"], function)


def setprofile_all(function: Any, /) -> None:
    """Set the profile function of all threads: ``sys._setprofileallthreads()``."""
    _engine._set_in_all(original["setprofile"], original["_setprofileallthreads"], function)


#: Returns the identifier of the operating system's thread, also in a fiber.
_thread_ident = _thread.get_ident


def _slices() -> Scheduler | None:
    """The scheduler whose time slice takes the place of the switch interval, or None."""
    return None if session is None or session.scheduler.time_slice is None else session.scheduler


#: The shortest time slice, in seconds.
SHORTEST_SLICE = 0.0001


def set_switch_interval(interval: float, /) -> None:
    """Set the time slice of virtual threads in seconds: ``sys.setswitchinterval()``.

    An interval shorter than the shortest slice counts as that.
    """
    scheduler = _slices()
    if scheduler is None or not interval > 0:
        original["setswitchinterval"](interval)  # raises what is due for such an interval
    else:
        scheduler.time_slice = max(interval, SHORTEST_SLICE)


def get_switch_interval() -> float:
    """Return the time slice of virtual threads in seconds: ``sys.getswitchinterval()``."""
    scheduler = _slices()
    if scheduler is None or scheduler.time_slice is None:
        return original["getswitchinterval"]()  # type: ignore[no-any-return]
    return scheduler.time_slice
