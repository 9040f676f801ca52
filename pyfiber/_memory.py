"""The readiness of sockets in memory, for selectors and poll objects.

A run under test may have a network in memory (pyfiber.testing). The numbers of sockets in memory
are ones that no system gives out, so the system's calls do not take them, and selectors.py asks
this module instead.
"""

from __future__ import annotations

import errno
import os
import select
from typing import Any, Final

from pyfiber import _engine

#: The first number of a socket in memory. No system gives such numbers to descriptors: a system
#: call with one fails with EBADF.
FIRST_NUMBER: Final = 1_000_000_000

READABLE, WRITABLE, ERROR, HUNG_UP = 1, 2, 4, 8


def is_in_memory(number: int) -> bool:
    """Is this the number of a socket in memory, open or closed?"""
    return number >= FIRST_NUMBER


def end_of(number: int) -> _engine._MemoryEnd | None:
    """The end of the connection whose socket in this run has the number; None: it is closed."""
    network = _engine._network()
    end: _engine._MemoryEnd | None = None if network is None else network._end_of(number)
    return end


def ready(number: int) -> int:
    """What a socket in memory is ready for: bits of the constants above; 0 if it is closed."""
    end = end_of(number)
    return 0 if end is None else end.ready


def polled(number: int, mask: int) -> int:
    """What a poll object that watches for the events of ``mask`` reports of a socket in memory."""
    end = end_of(number)
    if end is None:
        return select.POLLNVAL
    found = end.ready
    events = (
        (select.POLLIN if found & READABLE else 0)
        | (select.POLLOUT if found & WRITABLE else 0)
        | (getattr(select, "POLLRDHUP", 0) if found & HUNG_UP else 0)
    )
    always = (select.POLLERR if found & ERROR else 0) | (select.POLLHUP if found & HUNG_UP else 0)
    return events & mask | always


def in_epoll(epoll: Any) -> dict[int, int]:
    """The sockets in memory that an epoll object of this run watches: events, by number."""
    network = _engine._network()
    sockets: dict[int, int] | None = None if network is None else network._epolls.get(epoll)
    return sockets or {}


def enter_in_epoll(epoll: Any, name: str, number: int, eventmask: int | None = None) -> None:
    """``register()``, ``modify()`` or ``unregister()`` of an epoll object, for a socket in memory.

    OSError as the system has it; FiberError for a mode that sockets in memory do not have.
    """
    epoll.fileno()  # ValueError if it is closed
    sockets = in_epoll(epoll)
    if end_of(number) is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if (number in sockets) == (name == "register"):
        code = errno.EEXIST if number in sockets else errno.ENOENT
        raise OSError(code, os.strerror(code))
    if name == "unregister":
        del sockets[number]
        return
    if eventmask is None:
        eventmask = select.EPOLLIN | select.EPOLLPRI | select.EPOLLOUT
    if eventmask & (select.EPOLLET | select.EPOLLONESHOT):
        raise _engine.FiberError(
            "a socket in memory is watched without EPOLLET and EPOLLONESHOT only: use a class of "
            "selectors or select.poll(), or run the test without network="
        )
    _engine._network()._epolls.setdefault(epoll, {})[number] = eventmask
