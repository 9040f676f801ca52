"""``threading.Event`` in less memory: csrc/python/patch/event.c.

An Event of exactly this class has no Condition until somebody needs one. Subclasses have the
standard methods, as they may replace some of them.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

from pyfiber import _engine
from pyfiber._patch._record import Record

Event: Any = threading.Event

_init = Event.__init__
_set = Event.set
_clear = Event.clear
_wait = Event.wait
_at_fork_reinit = Event._at_fork_reinit


@functools.wraps(_init)
def init(self: Any) -> None:
    if type(self) is Event:
        self._flag = False
    else:
        _init(self)


@functools.wraps(_set)
def set(self: Any) -> None:
    if not _engine._event_flag(self, True):
        _set(self)


@functools.wraps(_clear)
def clear(self: Any) -> None:
    if not _engine._event_flag(self, False):
        _clear(self)


@functools.wraps(_wait)
def wait(self: Any, timeout: float | None = None) -> bool:
    signaled = _engine._event_wait(self, timeout)
    return _wait(self, timeout) if signaled is None else signaled


@functools.wraps(_at_fork_reinit)
def at_fork_reinit(self: Any) -> None:
    if not _engine._event_is_light(self):
        _at_fork_reinit(self)


class Turn:
    """A place among a Condition's waiters, of a fiber that waits for the event without it."""

    __slots__ = ("event",)

    def __init__(self, event: threading.Event) -> None:
        self.event = event

    def release(self) -> None:
        """Wake the first such fiber. RuntimeError if there is none, as notify() expects."""
        if not _engine._event_wake(self.event):
            raise RuntimeError("release unlocked lock")


def _make(event: threading.Event) -> tuple[threading.Condition, Turn]:
    return threading.Condition(threading.Lock()), Turn(event)


def apply(record: Record) -> None:
    """Make events light. An event that has no Condition at the end gets one when needed."""
    Event._cond = _engine._event_condition(Event, _make)
    record.replace(Event, "__init__", init)
    record.replace(Event, "set", set)
    record.replace(Event, "clear", clear)
    record.replace(Event, "wait", wait)
    record.replace(Event, "_at_fork_reinit", at_fork_reinit)
