"""The end of a block of virtual threads, as the end of a program with threads.

First the exit functions of thread pools run, then threads that are no daemons are waited for, then
the others are cut off: FiberExit is raised where each waits, and its ``finally`` blocks run. A
thread that waits again there, or computes for long, is abandoned.
"""

from __future__ import annotations

import _thread
import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from pyfiber import _engine
from pyfiber._patch._threading import is_virtual
from pyfiber._virtual import starting
from pyfiber._virtual.starting import Session

#: Modules whose thread pools end at the exit of the program, with the names of their exit
#: functions and of the flags that these set and that are put back, as the program goes on.
POOLS = (
    ("concurrent.futures.thread", "_python_exit", "_shutdown"),
    ("concurrent.futures.process", "_python_exit", "_global_shutdown"),
)


class MainThread:
    """The main thread's Thread object during a block: joining it waits for the block's end.

    Threads that are no daemons may join the main thread, and its end does not wait for itself: so
    the main thread counts as ended from the moment when nothing but its threads keeps the block.
    """

    #: The attributes that hold the state of a Thread, by version.
    STATE = ("_handle", "_tstate_lock", "_is_stopped")

    def __init__(self, session: Session) -> None:
        self._thread: Any = threading.main_thread()
        thread: Any = self._thread
        names = vars(thread)
        self._before = {name: names[name] for name in self.STATE if name in names}
        self._handle = session.main_handle = _engine._main_handle()
        thread._handle = self._handle
        self._lock = _thread.allocate_lock()
        if "_tstate_lock" in names:
            self._lock.acquire()
            thread._tstate_lock = self._lock

    def ends(self) -> None:
        """Wake the threads that join the main thread."""
        self._handle._set_done()
        if self._lock.locked():
            self._lock.release()

    def restore(self) -> None:
        """The block is over, and the main thread is alive."""
        for name in self.STATE:
            vars(self._thread).pop(name, None)
        vars(self._thread).update(self._before)


def register_atexit(func: Callable[..., object], /, *args: Any, **kwargs: Any) -> None:
    """``threading._register_atexit()``.

    The functions of pools stay registered for the exit of the program, which may use pools again.
    """
    session = starting.session
    name: Any = getattr(func, "__module__", None), getattr(func, "__name__", None)
    if session is None or name in [pool[:2] for pool in POOLS]:
        _register(func, *args, **kwargs)
    else:
        session.exits.append(functools.partial(func, *args, **kwargs))


_register: Any = threading._register_atexit  # type: ignore[attr-defined]


def end_thread_pools(session: Session) -> None:
    """Let the threads of pools end, as at the exit of the program."""
    while session.exits:
        session.exits.pop()()
    for name, function, _ in POOLS:
        if name in sys.modules:
            getattr(sys.modules[name], function)()


def allow_thread_pools() -> None:
    """The block is over: pools take work again."""
    for name, _, flag in POOLS:
        if name in sys.modules:
            setattr(sys.modules[name], flag, False)


def wait_for_threads(session: Session) -> None:
    """Wait until no thread is left that the end of a program waits for."""
    while True:
        left = [handle for handle in session.threads() if not handle._daemon]
        if not left:
            return
        for handle in left:
            handle.join()


def cut_off_threads(session: Session) -> None:
    """End the threads that are left. None can be started from here on."""
    session.over = True
    while left := session.threads():
        for handle in left:
            _silence(handle)
            _engine._cut_off(handle)


def _silence(handle: Any) -> None:
    """Keep threading from reporting the FiberExit that ends a thread."""
    thread = threading._active.get(handle.ident)  # type: ignore[attr-defined]
    if thread is not None:
        thread._invoke_excepthook = lambda _: None


def forget_threads() -> None:
    """Remove from threading's tables what threads have left that were cut off."""
    for table in (threading._active, threading._limbo):  # type: ignore[attr-defined]
        for key, thread in list(table.items()):
            if is_virtual(thread):
                table.pop(key, None)
