"""Threads that C makes: they are Python's only while a callback runs."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from pyfiber import Fiber, FiberExit, current

CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


@functools.cache
def libc() -> Any:
    return ctypes.CDLL(None)


def can_make() -> bool:
    try:
        return hasattr(libc(), "pthread_create")
    except (TypeError, OSError):
        return False


def ends_are_seen() -> bool:
    """Does the C library call us while the ending thread is still known to the interpreter?"""
    return hasattr(libc(), "__cxa_thread_atexit_impl")


def in_c_thread(*callbacks: Callable[[], object]) -> None:
    """Each in a thread of its own, one after the other. It outlives its callback a little."""
    for fn in callbacks:
        start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _, fn=fn: fn() and None)
        thread = ctypes.c_ulong()
        assert libc().pthread_create(ctypes.byref(thread), None, start, None) == 0
        assert libc().pthread_join(thread, None) == 0


def call_through_c(fn: Callable[[], object]) -> None:
    """fn(), called once by C code that Python code has called."""
    pair = (ctypes.c_int * 2)(2, 1)
    calls = iter([fn])
    compare = CALLBACK(lambda a, b: sum(call() is not None for call in calls))
    libc().qsort(pair, 2, ctypes.sizeof(ctypes.c_int), compare)


def suspended_in_callback(at_end: Callable[[], object]) -> Fiber[Any]:
    """A fiber that waits inside of a nested callback, and calls at_end() when it is unwound."""
    main = current()

    def waits() -> None:
        try:
            main.switch()
        except FiberExit:
            at_end()

    fiber = Fiber(call_through_c, args=(waits,), name="nested")
    fiber.switch()
    return fiber
