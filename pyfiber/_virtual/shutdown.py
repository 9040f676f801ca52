"""The end of a block of virtual threads, as the end of a program with threads.

First the functions run that are called before threads are joined, those of thread pools among them.
Then threads that are no daemons are waited for, then the others are cut off: FiberExit is raised
where each waits, and its ``finally`` blocks run. A thread that waits again there, or computes
for long, is abandoned.
"""

from __future__ import annotations

import _thread
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from pyfiber import _engine
from pyfiber._patch._threading import HANDLE, is_virtual
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
    STATE = (HANDLE, "_tstate_lock", "_is_stopped")

    def __init__(self, session: Session) -> None:
        self._thread: Any = threading.main_thread()
        thread: Any = self._thread
        names = vars(thread)
        self._before = {name: names[name] for name in self.STATE if name in names}
        self._handle = session.main_handle = _engine._main_handle()
        self._stays_ended = False
        setattr(thread, HANDLE, self._handle)
        self._lock = _thread.allocate_lock()
        if "_tstate_lock" in names:
            self._lock.acquire()
            thread._tstate_lock = self._lock
            # threading._shutdown() waits for these.
            threading._shutdown_locks.discard(self._before["_tstate_lock"])  # type: ignore[attr-defined]

    def has_ended(self) -> bool:
        """Whether the main thread has ended; threading._shutdown() may end it before the block."""
        return self._handle.is_done() or vars(self._thread).get("_is_stopped", False)

    def ends(self) -> None:
        """Wake the threads that join the main thread."""
        self._stays_ended = self.has_ended()
        self._handle._set_done()
        if self._lock.locked():
            self._lock.release()

    def restore(self) -> None:
        """The block is over, and the main thread is alive, unless the program has ended it."""
        if self._stays_ended:
            return
        for name in self.STATE:
            vars(self._thread).pop(name, None)
        vars(self._thread).update(self._before)
        if "_tstate_lock" in self._before:
            threading._shutdown_locks.add(self._before["_tstate_lock"])  # type: ignore[attr-defined]
        threading._SHUTTING_DOWN = False  # type: ignore[attr-defined]


_register = threading._register_atexit  # type: ignore[attr-defined]


def register_atexit(func: Any, /, *args: Any, **kwargs: Any) -> None:
    """``threading._register_atexit()``: the function is called before threads are joined."""
    _register(func, *args, **kwargs)
    session = starting.session
    if session is not None and not _is_of_process(func):
        session.exits.append(threading._threading_atexits[-1])  # type: ignore[attr-defined]


def _is_of_process(func: object) -> bool:
    """Whether an exit function is for the process, and not for the threads of the block.

    The block calls those of POOLS, and the interpreter calls them again.
    """
    module = str(getattr(func, "__module__", ""))
    return module.startswith("pyfiber.") or any(module == name for name, _, _ in POOLS)


def call_exits(session: Session) -> None:
    """Call what register_atexit() was given in the block, the latest first."""
    threading._SHUTTING_DOWN = True  # type: ignore[attr-defined]
    calls: list[Callable[[], object]] = threading._threading_atexits  # type: ignore[attr-defined]
    for call in reversed(session.exits):
        if call not in calls:
            continue
        calls.remove(call)
        try:
            call()
        except BaseException as exc:
            print(f"Exception ignored in: {threading!r}", file=sys.stderr)
            traceback.print_exception(exc)


def end_thread_pools() -> None:
    """Let the threads of pools end, as at the exit of the program."""
    for name, function, _ in POOLS:
        if name in sys.modules:
            getattr(sys.modules[name], function)()


def allow_thread_pools() -> None:
    """The block is over: pools take work again."""
    for name, _, flag in POOLS:
        if name in sys.modules:
            setattr(sys.modules[name], flag, False)


def wait_for_threads(session: Session) -> None:
    """Wait until no other thread is left that the end of a program waits for."""
    here = _engine._running_thread()
    while True:
        left = [each for each in session.threads() if each is not here and not each._daemon]
        if not left:
            return
        for handle in left:
            handle.join()


def thread_shutdown() -> None:
    """``_thread._shutdown()``, by which threading._shutdown() joins threads, from 3.13 on."""
    if starting.session is not None:
        wait_for_threads(starting.session)
    starting.original["_shutdown"]()


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
