"""`python -m pyfiber run --virtual-threads`: a whole program whose threads are fibers.

What the program prints when it ends comes in the interpreter's order: the traceback of the main
program, then what its threads print, then what its exit functions print.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyfiber import _hooks
from pyfiber._program import run_program
from pyfiber._virtual import table
from pyfiber._virtual.block import TIME_SLICE, VirtualThreads

if TYPE_CHECKING:
    import argparse

Call = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]

#: The program's exit functions. They may wait for daemon threads, so they run before these end.
_at_exit: list[Call] = []


def _register(func: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``atexit.register()``."""
    if not callable(func):
        raise TypeError("the first argument must be callable")
    _at_exit.append((func, args, kwargs))
    return func


def _unregister(func: Any, /) -> None:
    """``atexit.unregister()``."""
    _at_exit[:] = [call for call in _at_exit if not (call[0] == func)]
    _their_unregister(func)


def _run_exitfuncs() -> None:
    """``atexit._run_exitfuncs()``, for the functions of the program."""
    failure = None
    while _at_exit:
        func, args, kwargs = _at_exit.pop()
        try:
            func(*args, **kwargs)
        except BaseException as exc:
            failure = exc
            if not isinstance(exc, SystemExit):
                sys.excepthook(type(exc), exc, exc.__traceback__)
    if failure is not None:
        raise failure


def _run_at_exit() -> None:
    try:
        _run_exitfuncs()
    except BaseException:
        pass  # has been printed, and the status of the program stays


_their_unregister = atexit.unregister

EXITS = (
    table.Row("atexit", "register", _register, "exit functions run while threads do"),
    table.Row("atexit", "unregister", _unregister, "the same"),
)


def run(options: argparse.Namespace, log: Callable[[_hooks.Task, BaseException], object]) -> None:
    """Run the program; raises how it ends, which has been printed if the interpreter prints it."""
    time_slice = TIME_SLICE if options.time_slice is None else options.time_slice or None
    ended: BaseException | None = None
    with VirtualThreads(time_slice, log, _run_at_exit):
        exits = table.install(EXITS)
        try:
            run_program(options)
        except BaseException as exc:
            ended = _report(exc)
    exits.undo()
    if ended is not None:
        raise ended


def _report(exc: BaseException) -> BaseException:
    """Print how the main program ends; return what the process is to end with."""
    if isinstance(exc, SystemExit):
        if exc.code is None or isinstance(exc.code, int):
            return exc
        print(exc.code, file=sys.stderr)
        return SystemExit(1)
    sys.excepthook(type(exc), exc, exc.__traceback__)
    if not isinstance(exc, KeyboardInterrupt):
        return SystemExit(1)
    sys.excepthook = lambda *_: None  # it has been printed; the interpreter ends by the signal
    return exc
