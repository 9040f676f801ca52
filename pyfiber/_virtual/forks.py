"""The child of a fork within a block of virtual threads.

The child has only the thread that has forked, and that is the child's main thread. Threads that it
starts are native ones: the fibers of the other threads are copies that must not go on, so the run
that they belong to never goes on in the child.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Any

from pyfiber import _engine
from pyfiber._virtual import signals, starting


class _LastThread:
    """Ends the process with the thread that has forked, as the system does with the last thread.

    The thread's end releases this, in the place of the lock that it releases otherwise.
    """

    def __init__(self, sentinel: Any) -> None:
        self._sentinel = sentinel

    def release(self) -> None:
        if self._sentinel is not None:
            self._sentinel.release()
        for thread in threading.enumerate():
            if thread is not threading.current_thread():
                thread.join()
        os._exit(0)


def _after_fork() -> None:
    session = starting.session
    if session is None:
        return
    running = _engine._running_thread()
    if running is not None:
        if session.main_handle is not None:
            session.main_handle._set_done()
        running._sentinel = _LastThread(running._sentinel)
    session.close()
    signals.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def leave(undo: contextlib.ExitStack) -> None:
    """Leave the block in the child, which must not wait for threads that it does not have."""
    undo.pop_all()
