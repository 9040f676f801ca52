"""The table of what stands in for functions of the standard library, and how it is put back."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from pyfiber import _engine
from pyfiber._patch._record import Record, modules, variables_of
from pyfiber._virtual import masks, shutdown, signals, starting


class Row(NamedTuple):
    """One function of a module, and what stands in for it."""

    module: str
    name: str
    stands_in: Callable[..., Any]
    reason: str
    #: Also where another module has imported the function by name.
    everywhere: bool = True


#: A row whose module or name this interpreter does not have is left out. Each row is put back by
#: giving the name its former value, unless somebody else has changed it since.
THREADS = (
    Row("_thread", "start_new_thread", starting.start_new_thread, "starts a fiber"),
    Row("_thread", "start_new", starting.start_new_thread, "another name of start_new_thread"),
    Row("_thread", "start_joinable_thread", starting.start_joinable_thread, "starts a fiber"),
    Row("_thread", "_set_sentinel", starting.set_sentinel, "join() waits for it, up to 3.12"),
    Row("_thread", "get_ident", _engine.get_ident, "each thread has its own"),
    Row("_thread", "get_native_id", _engine.get_native_id, "each thread has its own"),
    Row("_thread", "stack_size", starting.stack_size, "also of fibers"),
    Row("_thread", "set_name", starting.set_name, "the system has no names for fibers"),
    Row("_thread", "_count", starting.count, "counts fibers, too"),
    Row(
        "_thread",
        "_ThreadHandle",
        _engine._ThreadHandle,
        "for start_joinable_thread(); Thread objects get theirs at their start",
        everywhere=False,
    ),
    Row(
        "threading",
        "_get_main_thread_ident",
        starting.main_thread_ident,
        "names the thread that has forked, in a child",
        everywhere=False,
    ),
    Row("_thread", "_shutdown", shutdown.thread_shutdown, "joins fibers, too"),
    Row("threading", "_register_atexit", shutdown.register_atexit, "calls before fibers end"),
    Row("sys", "settrace", _engine.settrace, "each thread has its own trace function"),
    Row("sys", "setprofile", _engine.setprofile, "each thread has its own profile function"),
    Row("sys", "_settraceallthreads", starting.settrace_all, "reaches fibers, too"),
    Row("sys", "_setprofileallthreads", starting.setprofile_all, "reaches fibers, too"),
    Row("sys", "setswitchinterval", starting.set_switch_interval, "sets the time slice"),
    Row("sys", "getswitchinterval", starting.get_switch_interval, "returns the time slice"),
    Row("sys", "_current_frames", starting.current_frames, "shows fibers, too"),
    Row("sys", "_current_exceptions", starting.current_exceptions, "shows fibers, too"),
)

#: Only for a block on the main thread: signals and the program's end are the main program's.
MAIN = (
    Row("signal", "signal", signals.signal, "handlers run in the main program's fiber"),
    Row("signal", "getsignal", signals.getsignal, "returns what the program has set"),
    Row("signal", "set_wakeup_fd", signals.set_wakeup_fd, "refuses in threads"),
    Row("signal", "pause", signals.pause, "parks"),
    Row("signal", "pthread_kill", signals.pthread_kill, "knows the numbers of fibers"),
    Row("signal", "pthread_sigmask", masks.pthread_sigmask, "each thread has its own mask"),
    Row("signal", "sigwait", masks.sigwait, "parks"),
    Row("signal", "sigwaitinfo", masks.sigwaitinfo, "parks"),
    Row("signal", "sigtimedwait", masks.sigtimedwait, "parks"),
)


def _look_alike(rows: Sequence[Row]) -> None:
    """Give the stand-ins the names of the originals, for messages and for pickle."""
    for row in reversed(rows):
        if not isinstance(row.stands_in, type):
            row.stands_in.__module__ = row.module
        if isinstance(row.stands_in, FunctionType):
            row.stands_in.__name__ = row.stands_in.__qualname__ = row.name


def install(rows: Sequence[Row]) -> Record:
    """Put the stand-ins in place; the result's undo() puts the originals back."""
    _look_alike(rows)
    record = Record()
    sought: dict[int, tuple[Any, Any]] = {}
    for row in rows:
        module = importlib.import_module(row.module)
        old = vars(module).get(row.name)
        if old is None:
            continue
        record.replace(module, row.name, row.stands_in)
        if row.everywhere:
            sought[id(old)] = old, row.stands_in
    for _, module in modules():
        for name, value in list(variables_of(module).items()):
            found = sought.get(id(value))
            if found is not None and found[0] is value:
                record.replace(module, name, found[1])
    return record
