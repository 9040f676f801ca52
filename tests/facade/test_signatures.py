"""The primitives have the methods of threading's and queue's, with the same parameters."""

from __future__ import annotations

import inspect
import queue
import threading
from typing import Any

import pytest

import pyfiber

THEIRS = [
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Event,
    threading.Condition,
    threading.Semaphore,
    threading.BoundedSemaphore,
    threading.Barrier,
    queue.Queue,
    queue.LifoQueue,
    queue.PriorityQueue,
]

#: Other names of the same, from Python 2 and before; threading warns of some.
OLD_NAMES = {"notifyAll", "isSet", "acquire_lock", "release_lock", "locked_lock"}


def name_of(theirs: type) -> str:
    return {"lock": "Lock", "LockType": "Lock"}.get(theirs.__name__, theirs.__name__)


def parameters(function: Any) -> list[tuple[str, Any]] | None:
    """Their names and defaults; None: it does not tell, as some functions in C."""
    try:
        found = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    return [(each.name, each.default) for each in found if each.name not in ("self", "/")]


@pytest.mark.parametrize("theirs", THEIRS, ids=name_of)
def test_methods_and_parameters_are_theirs(theirs: type) -> None:
    ours = getattr(pyfiber, name_of(theirs))
    compared = 0
    functions = {"()": (theirs, ours)}
    for name in dir(theirs):
        if not name.startswith("_") and name not in OLD_NAMES:
            functions[name] = (getattr(theirs, name), getattr(ours, name))
    for name, (their, our) in functions.items():
        if callable(their) and (expected := parameters(their)) is not None:
            assert parameters(our) == expected, name
            compared += 1
    assert len(functions) >= 3
    assert compared >= 2 or theirs.__module__ == "_thread"
