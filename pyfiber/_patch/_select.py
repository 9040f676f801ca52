"""The part ``select``: the module ``select`` and the classes of ``selectors``."""

from __future__ import annotations

import select
import selectors
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import pyfiber.selectors as ours
from pyfiber._engine import now
from pyfiber._memory import in_epoll
from pyfiber._patch._polling import look_until
from pyfiber._patch._record import Record, gate_for


def _selecting(theirs: Any, wait: Callable[..., Any]) -> Callable[..., Any]:
    def select(self: Any, timeout: float | None = None) -> Any:
        return wait(self, partial(theirs, self), timeout)

    return select


# The selectors above call these methods with a timeout of 0. Such a call returns at once.


def epoll_poll(self: Any, timeout: float | None = None, maxevents: int = -1) -> Any:
    """``poll()`` of an epoll object."""
    if timeout == 0 and not in_epoll(self):
        return _theirs_epoll(self, timeout, maxevents)
    return ours.poll_epoll(self, timeout, maxevents)


def poll(self: Any, timeout: float | None = None, /) -> list[tuple[int, int]]:
    """``poll()`` of a poll object that was made elsewhere.

    Such an object does not reveal its descriptors, so this looks at it again and again.
    """
    theirs = _theirs_poll
    if timeout == 0:
        return theirs(self, timeout)  # type: ignore[no-any-return]
    seconds = None if timeout is None or timeout < 0 else timeout / 1000
    return look_until(lambda: theirs(self, 0), seconds)


def control(
    self: Any, changelist: Any, max_events: int, timeout: float | None = None, /
) -> list[Any]:
    """``control()`` of a kqueue."""
    found: list[Any] = _theirs_control(self, changelist, max_events, 0)
    if found or max_events == 0 or (timeout is not None and timeout <= 0):
        return found
    ask = partial(_theirs_control, self, None, max_events)
    return ours.select_by_descriptor(self, ask, timeout)


_METHODS: list[tuple[type[Any], str, Callable[..., Any]]] = []
for _name, _wait in (
    ("SelectSelector", ours.select_by_keys),
    ("PollSelector", ours.select_by_keys),
    ("EpollSelector", ours.select_by_descriptor),
    ("DevpollSelector", ours.select_by_descriptor),
    ("KqueueSelector", ours.select_by_descriptor),
):
    if hasattr(selectors, _name):
        _class: Any = getattr(selectors, _name)
        _METHODS.append((_class, "select", _selecting(_class.select, _wait)))
        _METHODS += [(_class, _each, ours.entering(_class, _each)) for _each in ours.ENTERING]
if hasattr(select, "epoll"):
    _theirs_epoll: Any = select.epoll.poll
    _METHODS.append((select.epoll, "poll", epoll_poll))
    _METHODS += [(select.epoll, _each, ours.entering_epoll(_each)) for _each in ours.ENTERING]
if hasattr(select, "kqueue"):
    _theirs_control: Any = select.kqueue.control
    _METHODS.append((select.kqueue, "control", control))
if hasattr(select, "poll"):
    _theirs_poll: Any = type(select.poll()).poll
    _METHODS.append((type(select.poll()), "poll", poll))


def slightly_fast() -> float:
    """The run's clock, fast by 1 ns a second.

    ``handle_request()`` selects again until its deadline has passed. Virtual time stands at the
    deadline after the wait for it; so the clock that decides must be fast.
    """
    return now() * (1 + 1e-9)


def socketserver_clock(record: Record, module: ModuleType) -> None:
    """Have ``handle_request()`` measure its timeout by the clock by which its fiber waits."""
    record.replace(module, "time", gate_for(time.monotonic, slightly_fast))


def apply(record: Record) -> None:
    """Apply this part; the record undoes it."""

    record.when_imported("socketserver", partial(socketserver_clock, record))
    record.function(select, "select", ours.select)
    if hasattr(select, "poll"):
        record.function(select, "poll", ours.poll)
        record.notes.append("select.poll() made elsewhere is looked at every 20 ms")
    for cls, name, inside in _METHODS:
        record.method(cls, name, inside)
