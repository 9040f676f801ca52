"""Running a function on a thread of its own, and how long to wait for what must happen."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

# Seconds until a test gives up on what must happen: so many that it happens on the busiest machine.
PATIENCE = 30


def in_thread(fn: Callable[[], Any]) -> Any:
    """The result of fn(), or its exception raised, from a thread of its own."""
    results: list[Any] = []

    def body() -> None:
        try:
            results.append((fn(), None))
        except BaseException as exc:
            results.append((None, exc))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    value, error = results[0]
    if error is not None:
        raise error
    return value
