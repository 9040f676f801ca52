"""Threads of the operating system, also where the program's threads are fibers."""

from __future__ import annotations

import _thread

from pyfiber._engine import _load

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

#: The interpreter's own functions: this module is imported before anything stands in for them.
start_new_thread = _thread.start_new_thread
get_ident = _thread.get_ident

#: In the namespace of a Thread object: start() starts a thread of the operating system.
MARK = "_is_native"


def native_thread(
    target: Callable[..., object],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str | None = None,
    daemon: bool | None = None,
) -> threading.Thread:
    """Return a ``threading.Thread`` that is not started yet and whose start() makes a real thread.

    Inside of ``virtual_threads()`` other threads are fibers. A native thread is for code that
    blocks where pyfiber cannot park, or that a C library wants on a separate thread. Outside of
    such a block it is a Thread like any other. TypeError if ``target`` is not callable.
    """
    if not callable(target):
        raise TypeError(f"native_thread() takes a function, not {type(target).__name__!r}")
    _load("threading")
    import threading

    thread = threading.Thread(target=target, name=name, args=args, kwargs=kwargs, daemon=daemon)
    vars(thread)[MARK] = True
    return thread


def is_native(thread: threading.Thread) -> bool:
    """Is this a Thread that native_thread() has made?"""
    return getattr(thread, MARK, None) is True  # vars() would make a dict for the Thread


native_thread.__module__ = "pyfiber"
