"""Makes the waits of psycopg 3 park the running fiber, also those of its C implementation.

::

    import psycopg
    import pyfiber.psycopg

    pyfiber.psycopg.install()

``pyfiber.patch()`` does that by itself, whenever psycopg is imported. In a fiber of a run a query,
and the making of a connection, park that fiber; anywhere else psycopg works as before. When a query
is cancelled (``pyfiber.timeout()``, say) the server is asked to cancel it, too, and the connection
can be used again; if the server does not answer in time, the connection is closed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import psycopg as _psycopg
from psycopg import errors as _errors
from psycopg import waiting as _waiting

from pyfiber._engine import (
    Cancelled,
    Gate,
    MethodGate,
    _outside,
    _wait_any,
    now,
    shield,
    timeout,
    wait_readable,
    wait_writable,
)

__all__ = ["install", "uninstall"]

#: Seconds after which a wait looks whether another fiber or thread has closed its descriptor.
_LOOK = 1.0
#: Seconds for the server to end a query that was cancelled.
_GRACE = 5.0

_R, _W = 1, 2  # values of psycopg's enumerations Wait and Ready


def _ready(number: int, wanted: int, left: float) -> int:
    """What of ``wanted`` the descriptor is ready for; 0: nothing, for ``left`` seconds."""
    try:
        if wanted == _R:
            wait_readable(number, left)
            return _R
        if wanted == _W:
            wait_writable(number, left)
            return _W
        _wait_any([number], [number], left)
    except TimeoutError:
        return 0
    return sum(
        each for each, wait in ((_R, wait_readable), (_W, wait_writable)) if _is_ready(number, wait)
    )


def _is_ready(number: int, wait: Callable[[int, float], object]) -> bool:
    try:
        wait(number, 0)
    except TimeoutError:
        return False
    return True


class _Deadline:
    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else now() + seconds

    def left(self) -> float:
        return _LOOK if self.end is None else max(0.0, min(_LOOK, self.end - now()))

    def check(self) -> None:
        if self.end is not None and now() >= self.end:
            raise _errors._WaitTimeout("wait timeout expired")


def _await(number: int, wanted: int, deadline: _Deadline) -> int:
    """Wait until the descriptor is ready; returns 0 when the caller must check its deadline."""
    try:
        ready = _ready(number, wanted, deadline.left())
        if not ready:
            os.fstat(number)
    except OSError as exc:
        raise _errors.OperationalError("connection socket closed") from exc
    return ready


def _wait(gen: Any, fileno: int, interval: float = 0.0, timeout: float | None = None) -> Any:
    """``psycopg.waiting.wait()`` in a fiber."""
    deadline = _Deadline(timeout)
    try:
        wanted = next(gen)
        while True:
            ready = _await(fileno, wanted, deadline)
            if ready:
                wanted = gen.send(ready)
            deadline.check()
    except StopIteration as exc:
        return exc.value


def _wait_conn(gen: Any, interval: float = 0.0, timeout: float | None = None) -> Any:
    """``psycopg.waiting.wait_conn()`` in a fiber: the descriptor may be another one each time."""
    deadline = _Deadline(timeout or None)
    try:
        fileno, wanted = next(gen)
        while True:
            ready = _await(fileno, wanted, deadline)
            if ready:
                fileno, wanted = gen.send(ready)
            deadline.check()
    except StopIteration as exc:
        return exc.value


_theirs_wait: Any = _outside(_psycopg.Connection.wait)


def _connection_wait(self: Any, gen: Any, *args: Any, **kwargs: Any) -> Any:
    """``psycopg.Connection.wait()`` in a fiber."""
    try:
        return _theirs_wait(self, gen, *args, **kwargs)
    except Cancelled:
        if self.pgconn.transaction_status == _psycopg.pq.TransactionStatus.ACTIVE:
            with shield():
                _end_query(self, gen)
        raise


def _end_query(connection: Any, gen: Any) -> None:
    """End a cancelled query, so that the connection can be used again; close it if that fails."""
    try:
        with timeout(_GRACE):
            connection.cancel_safe()
            _wait(gen, connection.pgconn.socket)
    except _errors.QueryCanceled:
        pass  # as expected
    except Exception:  # the state of the connection is unknown
        connection.pgconn.finish()


_changed: list[tuple[Any, str, Any, Any]] = []


def install() -> None:
    """Make psycopg's waits park in fibers. Calling this twice is fine."""
    if _changed:
        return
    for owner, name, kind, inside in (
        (_waiting, "wait", Gate, _wait),
        (_waiting, "wait_conn", Gate, _wait_conn),
        (_psycopg.Connection, "wait", MethodGate, _connection_wait),
    ):
        theirs = getattr(owner, name)
        gate: Any = kind(theirs, inside)
        setattr(owner, name, gate)
        _changed.append((owner, name, theirs, gate))


def uninstall() -> None:
    """Undo install()."""
    while _changed:
        owner, name, theirs, gate = _changed.pop()
        gate._open = False
        if getattr(owner, name) is gate:
            setattr(owner, name, theirs)


def is_installed() -> bool:
    """Has install() been called, and uninstall() not?"""
    return bool(_changed)
