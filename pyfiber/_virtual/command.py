"""`python -m pyfiber run --virtual-threads`: a whole program whose threads are fibers.

What the program prints when it ends comes in the interpreter's order: the traceback of the main
program, then what its threads print, then what its exit functions print.
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyfiber import _hooks
from pyfiber._program import run_program
from pyfiber._virtual import table
from pyfiber._virtual.block import TIME_SLICE, VirtualThreads

if TYPE_CHECKING:
    import argparse
    from types import TracebackType

#: The folder of pyfiber's code, with a separator.
_OWN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")

Call = tuple[Callable[..., object], tuple[Any, ...], dict[str, Any]]

#: The program's exit functions. Daemon threads still run then, as the functions may need them.
_at_exit: list[Call] = []


def _register(func: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``atexit.register()``."""
    if not callable(func):
        raise TypeError("the first argument must be callable")
    _at_exit.append((func, args, kwargs))
    return func


def _unregister(func: Any, /) -> None:
    """``atexit.unregister()``."""
    _at_exit[:] = [call for call in _at_exit if call[0] != func]
    _theirs["unregister"](func)


def _clear() -> None:
    """``atexit._clear()``."""
    _at_exit.clear()
    _theirs["_clear"]()


def _count() -> int:
    """``atexit._ncallbacks()``."""
    return len(_at_exit) + _theirs["_ncallbacks"]()  # type: ignore[no-any-return]


def _run_all() -> None:
    """``atexit._run_exitfuncs()``."""
    _run_ours()
    _theirs["_run_exitfuncs"]()


def _run_ours() -> None:
    """Call the program's exit functions, the latest first; what they raise is printed."""
    while _at_exit:
        func, args, kwargs = _at_exit.pop()
        try:
            func(*args, **kwargs)
        except BaseException as exc:
            print(f"Exception ignored in atexit callback {func!r}:", file=sys.stderr)
            traceback.print_exception(exc.with_traceback(_without_ours(exc.__traceback__)))


def _without_ours(found: TracebackType | None) -> TracebackType | None:
    """The traceback without pyfiber's own calls at its beginning, as the interpreter prints it."""
    while found is not None and found.tb_frame.f_code.co_filename.startswith(_OWN):
        found = found.tb_next
    return found


def _give_back() -> None:
    """Leave functions that have not run to the interpreter: this is the child of a fork."""
    for func, args, kwargs in _at_exit:
        _theirs["register"](func, *args, **kwargs)
    _at_exit.clear()


_theirs: dict[str, Any] = {
    name: getattr(atexit, name)
    for name in ("register", "unregister", "_clear", "_ncallbacks", "_run_exitfuncs")
}

EXITS = (
    table.Row("atexit", "register", _register, "exit functions run while threads do"),
    table.Row("atexit", "unregister", _unregister, "the same"),
    table.Row("atexit", "_clear", _clear, "the same"),
    table.Row("atexit", "_ncallbacks", _count, "the same"),
    table.Row("atexit", "_run_exitfuncs", _run_all, "a child of multiprocessing calls it"),
)


def run(options: argparse.Namespace, log: Callable[[_hooks.Task, BaseException], object]) -> None:
    """Run the program; raises how it ends, which has been printed if the interpreter prints it."""
    time_slice = TIME_SLICE if options.time_slice is None else options.time_slice or None
    ended: BaseException | None = None
    with VirtualThreads(time_slice, log, _run_ours):
        exits = table.install(EXITS)
        try:
            run_program(options)
        except BaseException as exc:
            ended = _report(exc)
    exits.undo()
    _give_back()
    if ended is not None:
        raise ended


def _report(exc: BaseException) -> BaseException:
    """Print how the main program ends; return what the process is to end with."""
    if isinstance(exc, SystemExit):
        if exc.code is None or isinstance(exc.code, int):
            return exc
        print(exc.code, file=sys.stderr)
        return SystemExit(1)
    found = _without_ours(exc.__traceback__)
    sys.excepthook(type(exc), exc.with_traceback(found), found)
    if not isinstance(exc, KeyboardInterrupt):
        return SystemExit(1)
    sys.excepthook = lambda *_: None  # the traceback has been printed above
    return exc
