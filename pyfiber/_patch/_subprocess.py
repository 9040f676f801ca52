"""The part ``subprocess``: a ``Popen`` that is made in a fiber becomes one of pyfiber.subprocess.

A Popen that is made elsewhere, or is of a program's own subclass, keeps its class. In a fiber its
waits park and ``communicate()`` runs in a thread, but the file objects of its pipes block.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from types import ModuleType
from typing import Any

from pyfiber._engine import (
    Cancelled,
    FiberExit,
    _call_patched,
    _outside,
    shield,
    wait_readable,
    wait_writable,
)
from pyfiber._futures import await_future
from pyfiber._patch import _semaphores
from pyfiber._patch._record import Record
from pyfiber.subprocess import _in_thread, _Popen, wait_in_fiber

_Standard: Any = subprocess.Popen
_theirs_init = _Standard.__init__
_theirs_wait = _Standard._wait
_theirs_communicate = _Standard.communicate


class Shared(_Popen):
    """A Popen that code for threads has made: its waits raise a cancellation once."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for end in vars(self).get("_ends", {}).values():
            end._wait = partial(_call_patched, end._wait)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process."""
        code: int = _call_patched(super().wait, timeout)
        return code

    def communicate(self, input: Any = None, timeout: float | None = None) -> Any:
        """Send the input and collect the output."""
        return _call_patched(super().communicate, input, timeout)


Shared.__name__ = Shared.__qualname__ = "Popen"
Shared.__module__ = "pyfiber.subprocess"


def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
    if type(self) is _Standard:
        self.__class__ = Shared
        self.__init__(*args, **kwargs)
    else:
        _theirs_init(self, *args, **kwargs)


def _wait(self: Any, timeout: float | None) -> int:
    theirs = partial(_theirs_wait, self)
    code: int = (
        theirs(timeout) if isinstance(self, _Popen) else wait_in_fiber(self, theirs, timeout)
    )
    return code


def communicate(self: Any, input: Any = None, timeout: float | None = None) -> Any:
    if isinstance(self, _Popen):
        return _theirs_communicate(self, input, timeout)
    try:
        return await_future(_in_thread(_theirs_communicate, self, input, timeout))
    except Cancelled:
        self.kill()
        with shield():
            self.wait()
        raise
    except FiberExit:  # this fiber cannot park any more
        self.kill()
        _theirs_wait(self, None)
        raise


def _try_wait(self: Any, wait_flags: int) -> tuple[int, int]:
    """Do what the standard method does, but with the original ``os.waitpid()``: it must block."""
    try:
        return _outside(os.waitpid)(self.pid, wait_flags)
    except ChildProcessError:
        return self.pid, 0


if sys.platform != "win32":
    import _posixsubprocess

    _theirs_fork_exec: Any = _outside(_posixsubprocess.fork_exec)

    def fork_exec(*args: Any) -> int:
        """Shield the fiber: with a preexec_fn, hooks of os.register_at_fork() run (see _os.py)."""
        with shield():
            pid: int = _theirs_fork_exec(*args)
        return pid


# multiprocessing's pipes --------------------------------------------------------------------------

#: Bytes that certainly fit into a pipe that is reported writable.
_PIECE = 4096


def _read(fd: int, size: int) -> bytes:
    wait_readable(fd)
    return os.read(fd, size)


def _write(fd: int, data: Any) -> int:
    wait_writable(fd)
    return os.write(fd, memoryview(data)[:_PIECE])


def connections(record: Record, module: ModuleType) -> None:
    """Make multiprocessing's pipes park: Connection takes functions that read and write."""
    kind: Any = module.Connection
    receive, send = kind._recv, kind._send

    def _recv(self: Any, size: int, read: Any = _read) -> Any:
        return receive(self, size, _read)

    def _send(self: Any, buf: Any, write: Any = _write) -> Any:
        return send(self, buf, _write)

    record.method(kind, "_recv", _recv)
    record.method(kind, "_send", _send)


def apply(record: Record) -> None:
    """Apply this part; the record undoes it."""
    for inside in (__init__, _wait, communicate):
        record.method(_Standard, inside.__name__, inside)
    if hasattr(_Standard, "_try_wait"):
        record.method(_Standard, "_try_wait", _try_wait)
    if sys.platform != "win32":
        record.function(_posixsubprocess, "fork_exec", fork_exec)
        record.when_imported("multiprocessing.connection", partial(connections, record))
    record.when_imported("multiprocessing.synchronize", partial(_semaphores.change, record))
    record.notes.append("a Popen made in a fiber is pyfiber.subprocess's")
