"""Makes the waits of psycopg2 park the running fiber, by psycopg2's wait callback.

::

    import psycopg2
    import pyfiber.psycopg2

    pyfiber.psycopg2.install()

``pyfiber.patch()`` does that by itself, whenever psycopg2 is imported, unless the program has set a
wait callback. In a fiber of a run a query, and the making of a connection, park that fiber;
anywhere else the thread waits. A query that is cancelled (``pyfiber.timeout()``, say) is cancelled
in the server, and its connection is closed, as psycopg2 does whenever its callback fails; ``with
connection`` lets the cancellation pass.

psycopg2 calls no callback for large objects and COPY: those block.
"""

from __future__ import annotations

import contextlib
import select
from typing import Any

import psycopg2 as _psycopg2
from psycopg2 import extensions as _extensions

from pyfiber._engine import (
    Cancelled,
    MethodGate,
    _may_park,
    _outside,
    _set_in_type,
    shield,
    wait_readable,
    wait_writable,
)
from pyfiber._threads import to_thread

__all__ = ["install", "uninstall"]

#: Seconds after which a wait asks libpq again: a descriptor may have been closed.
_LOOK = 1.0


def wait(connection: Any) -> None:
    """The wait callback: wait until psycopg2 need not wait any more."""
    while (state := connection.poll()) != _extensions.POLL_OK:
        if state not in (_extensions.POLL_READ, _extensions.POLL_WRITE):
            raise _psycopg2.OperationalError(f"bad state from poll: {state}")
        writing = state == _extensions.POLL_WRITE
        if _may_park():
            _park(connection, writing)
        else:
            _block(connection, writing)


def _park(connection: Any, writing: bool) -> None:
    try:
        (wait_writable if writing else wait_readable)(connection.fileno(), _LOOK)
    except TimeoutError:
        pass
    except Cancelled:
        with shield(), contextlib.suppress(_psycopg2.Error):
            to_thread(connection.cancel)  # in a thread: cancel() makes a connection, and blocks
        raise


def _block(connection: Any, writing: bool) -> None:
    """Wait as psycopg2.extras.wait_select() does."""
    numbers = [connection.fileno()]
    try:
        _outside(select.select)(*(([], numbers, []) if writing else (numbers, [], [])))
    except KeyboardInterrupt:
        connection.cancel()  # the next poll() raises the server's error


_their_exit: Any = _outside(_extensions.connection.__exit__)


def _exit(connection: Any, kind: Any, value: Any, where: Any) -> Any:
    """The end of ``with connection`` in a fiber: let a cancellation pass.

    psycopg2 would raise instead that the connection is closed, which would hide the timeout that is
    to blame.
    """
    if isinstance(value, Cancelled) and connection.closed:
        return None
    return _their_exit(connection, kind, value, where)


_before: list[Any] = []


def install() -> None:
    """Make psycopg2's waits park in fibers. Calling this twice is fine."""
    if not _before:
        _before.append(_extensions.get_wait_callback())
        _extensions.set_wait_callback(wait)
        _set_in_type(_extensions.connection, "__exit__", MethodGate(_their_exit, _exit))


def uninstall() -> None:
    """Undo install(): restore the earlier wait callback."""
    if _before:
        before = _before.pop()
        _set_in_type(_extensions.connection, "__exit__", _their_exit)
        if _extensions.get_wait_callback() is wait:
            _extensions.set_wait_callback(before)


def is_installed() -> bool:
    """Has install() been called, and uninstall() not?"""
    return bool(_before)
