"""Several threads at once, each with a run of its own.

With a GIL they take turns; without one they really run at the same time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyfiber

THREADS = 8
PATIENCE = 60.0


def in_parallel(body: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """body(i) in a run of each thread, all begun together: what they return."""
    start = threading.Barrier(threads)
    results: list[Any] = [None] * threads
    raised: list[BaseException] = []

    def work(i: int) -> None:
        start.wait()
        try:
            results[i] = pyfiber.run(body, i)
        except BaseException as exc:
            raised.append(exc)

    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
    if raised:
        raise raised[0]
    assert not any(worker.is_alive() for worker in workers), "a thread hangs"
    return results
