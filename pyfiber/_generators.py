"""@generator: functions that emit values from any depth of their calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import CO_ASYNC_GENERATOR, CO_COROUTINE, CO_GENERATOR
from typing import Any, ParamSpec

from pyfiber._engine import FiberGenerator

P = ParamSpec("P")

_SUSPENDS_ITSELF = CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR


def generator(fn: Callable[P, object]) -> Callable[P, FiberGenerator[Any]]:
    """Decorate a function that calls emit(value), directly or at any depth, also through C code.

    A call returns an iterator, a FiberGenerator. The function runs on a separate fiber; each
    request for a value runs it up to its next emit(), where it is suspended. Any fiber of the
    thread may request a value; while the function waits, that fiber waits, too.

    Raises TypeError for anything but a function, and for a function with `yield` or `async` in it.
    """
    if not callable(fn):
        raise TypeError(f"@generator takes a function, not {type(fn).__name__!r}")
    if getattr(getattr(fn, "__code__", None), "co_flags", 0) & _SUSPENDS_ITSELF:
        raise TypeError(
            "@generator takes a function that calls emit(value), without 'yield' and 'async': "
            "write emit(value) instead of 'yield value'"
        )

    @wraps(fn)
    def make(*args: P.args, **kwargs: P.kwargs) -> FiberGenerator[Any]:
        return FiberGenerator(fn, *args, **kwargs)

    return make
