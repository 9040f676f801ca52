"""``os.read()`` and ``os.write()`` in a fiber: they park where a thread would block in the kernel.

Programs with threads pass data through pipes, from thread to thread and from process to process.
patch() leaves these calls as they are, since other fibers of its programs are not threads that the
caller might wait for.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import Any

from pyfiber._engine import wait_readable, wait_writable
from pyfiber._patch._record import Record
from pyfiber._threads import to_thread

#: A pipe that is ready takes so many bytes at least without blocking.
_SURE = select.PIPE_BUF if hasattr(select, "PIPE_BUF") else 512

_theirs: dict[str, Any] = {
    name: vars(os).get(name) for name in ("read", "write", "readv", "writev")
}


def _await(ready: Callable[..., None], fd: Any) -> bool:
    """Wait until the call would not block. From then on no other fiber runs before the call.

    False if the call is to raise an error, or never blocks.
    """
    if not isinstance(fd, int):
        return False
    try:
        if not os.get_blocking(fd):
            return False
        while True:
            try:
                ready(fd, 0)
                return True
            except TimeoutError:
                ready(fd)
    except OSError:
        return False


def read(fd: int, length: int, /) -> bytes:
    _await(wait_readable, fd)
    return _theirs["read"](fd, length)  # type: ignore[no-any-return]


def readv(fd: int, buffers: Any, /) -> int:
    _await(wait_readable, fd)
    return _theirs["readv"](fd, buffers)  # type: ignore[no-any-return]


def write(fd: int, data: Any, /) -> int:
    if not _await(wait_writable, fd) or memoryview(data).nbytes <= _SURE:
        return _theirs["write"](fd, data)  # type: ignore[no-any-return]
    return to_thread(_theirs["write"], fd, data)  # type: ignore[no-any-return]


def writev(fd: int, buffers: Any, /) -> int:
    if not _await(wait_writable, fd) or sum(memoryview(b).nbytes for b in buffers) <= _SURE:
        return _theirs["writev"](fd, buffers)  # type: ignore[no-any-return]
    return to_thread(_theirs["writev"], fd, buffers)  # type: ignore[no-any-return]


def apply(record: Record) -> None:
    """Put the gates in place; the record undoes it."""
    if sys.platform == "win32":
        return  # only sockets can be waited for there
    for inside in (read, readv, write, writev):
        record.function(os, inside.__name__, inside)
