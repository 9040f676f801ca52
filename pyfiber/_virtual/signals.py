"""Signals in a block of virtual threads: handlers run in the main program.

The interpreter calls a handler in whatever fiber runs when the signal comes. So each handler of
the program is kept here, and the interpreter calls dispatch() instead, which runs the handler where
a program with threads would:

- The main program runs: at once.
- The main program is about to run: at its next bytecodes.
- The main program waits: in a fiber that counts as the main program. What the handler raises is
  raised in the main program's wait.
"""

from __future__ import annotations

import signal as standard
import threading
from types import FrameType
from typing import Any

from pyfiber import _engine
from pyfiber._engine import Fiber, _Latch

#: The interpreter's own functions.
original: dict[str, Any] = {
    name: vars(standard).get(name)
    for name in ("signal", "getsignal", "set_wakeup_fd", "pause", "pthread_kill")
}

#: The handlers of the program, during a block, by the numbers of their signals.
_handlers: dict[int, Any] = {}


class _Block:
    """The block that is open, as far as handlers need it."""

    #: The fiber of the main program; None: no block is open.
    main: Fiber[Any] | None = None
    #: Rung when a handler has run.
    handled = _Latch(outside=True)
    #: The block is over, and the run of its fibers is ending.
    leaving = False


def begin(main: Fiber[Any]) -> None:
    """Let dispatch() take the place of the program's handlers."""
    _Block.main, _Block.leaving = main, False
    _engine._set_main(main)
    for number in standard.valid_signals():
        handler = original["getsignal"](number)
        if callable(handler):
            _handlers[number] = handler
            original["signal"](number, dispatch)


def forked() -> None:
    """In the child of a fork the only thread is the main thread."""
    _Block.main = None
    _engine._set_main(None)


def leave() -> None:
    """The main program does not wait any more, but for the end of the run."""
    _Block.leaving = True


def end() -> BaseException | None:
    """Put the handlers back; return an exception that has not reached the main program."""
    for number, handler in _handlers.items():
        if original["getsignal"](number) is dispatch:
            original["signal"](number, handler)
    _handlers.clear()
    _Block.main = None
    left: BaseException | None = _engine._set_main(None)
    return left


def dispatch(number: int, frame: FrameType | None) -> None:
    """What the interpreter calls when a signal has come."""
    handler = _handlers.get(number)
    if handler is None:
        return
    if _engine._in_main() or _Block.main is None:
        try:
            handler(number, frame)
        finally:
            _Block.handled.ring()
    elif _Block.leaving and handler is standard.default_int_handler:
        _engine._on_sigint(number, frame)
    elif not _engine._main_waits():
        _engine._signal_main(number)
    elif handler is standard.default_int_handler:
        _engine._throw_into_main(KeyboardInterrupt())
    else:
        Fiber(_handle, (handler, number), daemon=True).start()


def _handle(handler: Any, number: int) -> None:
    """Run the handler on behalf of the main program, which waits."""
    main = _Block.main
    if main is None:
        return
    try:
        # Only a raw fiber uses the main thread's values of threading.local.
        Fiber(handler, (number, main.frame), context=main.context).switch()
    except BaseException as exc:
        _engine._throw_into_main(exc)
    finally:
        _Block.handled.ring()


# the stand-ins for functions of the module signal -------------------------------------------------


def _main_only(what: str) -> None:
    if _Block.main is not None and threading.get_ident() != threading.main_thread().ident:
        raise ValueError(f"{what} only works in main thread of the main interpreter")


def signal(signalnum: int, handler: Any) -> Any:
    """``signal.signal()``."""
    _main_only("signal")
    if _Block.main is None:
        return original["signal"](signalnum, handler)
    before = getsignal(signalnum)
    original["signal"](signalnum, dispatch if callable(handler) else handler)
    if callable(handler):
        _handlers[int(signalnum)] = handler
    else:
        _handlers.pop(int(signalnum), None)
    return before


def getsignal(signalnum: int) -> Any:
    """``signal.getsignal()``."""
    handler = original["getsignal"](signalnum)
    return _handlers.get(int(signalnum)) if handler is dispatch else handler


def set_wakeup_fd(fd: int, /, *, warn_on_full_buffer: bool = True) -> int:
    """``signal.set_wakeup_fd()``."""
    _main_only("set_wakeup_fd")
    return original["set_wakeup_fd"](fd, warn_on_full_buffer=warn_on_full_buffer)  # type: ignore[no-any-return]


def pause() -> None:
    """``signal.pause()``: wait until a handler has run."""
    if _Block.main is None or not _engine._may_park():
        original["pause"]()
        return
    _engine._call_patched(_Block.handled.wait, None, "signal.pause()")


def pthread_kill(thread_id: int, signalnum: int, /) -> None:
    """``signal.pthread_kill()``: the main thread gets the signals of fibers."""
    from pyfiber._virtual import starting

    session = starting.session
    if session is not None and thread_id & 1:  # no thread of the system has an odd number
        if not any(handle.ident == thread_id for handle in session.threads()):
            raise ProcessLookupError(3, "No such process")
        thread_id = threading.main_thread().ident or 0
    original["pthread_kill"](thread_id, signalnum)
