"""What each Thread object does for itself in ``threading``, done once for many threads."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from pyfiber._patch._record import Record

_threading: Any = threading
_make_reporter = _threading._make_invoke_excepthook
_run = threading.Thread.run

#: The hooks for which the last reporter was made, and the reporter.
_last: tuple[Any, ...] = (None, None, None, None)


def make_invoke_excepthook() -> Callable[[threading.Thread], None]:
    """``threading._make_invoke_excepthook()``: makes the function that reports a thread's failure.

    Threads share it as long as the hooks that it keeps stay. With them it takes 0.4 KB.
    """
    global _last
    last = _last
    if (
        last[0] is not threading.excepthook
        or last[1] is not sys.excepthook
        or last[2] is not print
        or last[0] is None
        or last[1] is None
    ):
        hooks = threading.excepthook, sys.excepthook, print
        _last = last = *hooks, _make_reporter()
    return last[3]  # type: ignore[no-any-return]


class ShutdownLocks:
    """``threading._maintain_shutdown_locks()``, up to 3.12: drops the locks of ended threads.

    Each start and each end of a thread calls it, and it looks at the locks of all threads. This one
    only looks when there are twice as many as were left the last time.
    """

    #: With so many locks it does not look.
    FEW = 64

    def __init__(self) -> None:
        self.enough = self.FEW

    def __call__(self) -> None:
        if len(_threading._shutdown_locks) > self.enough:
            _maintain()
            self.enough = max(self.FEW, 2 * len(_threading._shutdown_locks))


_maintain = getattr(threading, "_maintain_shutdown_locks", None) or ShutdownLocks


@functools.wraps(_run)
def run(self: Any) -> None:
    # For 3.11, where a call with a star goes from the interpreter through C to the interpreter. The
    # stack of a thread that waits in there cannot be packed.
    try:
        target, args = self._target, self._args
        if target is None:
            return
        if self._kwargs or type(args) is not tuple or len(args) > 4:
            target(*args, **self._kwargs)
        elif len(args) == 0:
            target()
        elif len(args) == 1:
            target(args[0])
        elif len(args) == 2:
            target(args[0], args[1])
        elif len(args) == 3:
            target(args[0], args[1], args[2])
        else:
            target(args[0], args[1], args[2], args[3])
    finally:
        del self._target, self._args, self._kwargs


def apply(record: Record) -> None:
    record.replace(_threading, "_make_invoke_excepthook", make_invoke_excepthook)
    if hasattr(threading, "_maintain_shutdown_locks"):
        record.replace(_threading, "_maintain_shutdown_locks", ShutdownLocks())
    if sys.version_info < (3, 12) and threading.Thread.run is _run:
        record.replace(threading.Thread, "run", run)
