"""Locals that several threads use at once, and that end elsewhere than where they were used."""

from __future__ import annotations

import gc
import sys
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any

from pyfiber import Fiber, current, local, spawn, yield_now
from tests.support.parallel import THREADS, in_parallel

ROUNDS = 150


gone: deque[int] = deque()


class Counted:
    """A value that says when it goes."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __del__(self) -> None:
        gone.append(self.n)


def test_local_of_all_threads_keeps_what_each_fiber_has() -> None:
    shared = local()

    def fiber(i: int, k: int) -> None:
        for r in range(ROUNDS):
            shared.value = (i, k, r)
            yield_now()
            assert shared.value == (i, k, r)
            del shared.value
            assert not hasattr(shared, "value")

    def body(i: int) -> None:
        for child in [spawn(fiber, i, k) for k in range(4)]:
            child.result()

    in_parallel(body)


def test_local_that_dies_elsewhere_is_forgotten_here() -> None:
    """Each thread makes locals, which its fibers use, and drops those that others made."""
    boxes: deque[Any] = deque()
    gone.clear()

    def fiber(mine: Any, k: int) -> None:
        for _ in range(3):
            mine.value = Counted(k)
            yield_now()
            assert mine.value.n == k

    def body(i: int) -> None:
        for r in range(ROUNDS):
            mine = local()
            mine.value = Counted(r)
            children = [spawn(fiber, mine, k) for k in range(3)]
            boxes.append(mine)
            del mine
            if len(boxes) > THREADS:
                boxes.popleft()
            for child in children:
                child.result()

    in_parallel(body)
    boxes.clear()
    gc.collect()
    assert len(gone) == THREADS * ROUNDS * (1 + 3 * 3)


def test_local_of_a_fiber_that_dies_elsewhere_loses_its_values() -> None:
    """Fibers are suspended by one thread and dropped by another, while the local is in use."""
    shared = local()
    boxes: deque[Any] = deque()
    gone.clear()

    def suspended(main: Fiber[Any], n: int) -> None:
        shared.value = Counted(n)
        main.switch()

    def body(i: int) -> None:
        for r in range(ROUNDS):
            fiber = Fiber(suspended, (current(), r))
            fiber.switch()
            boxes.append(fiber)
            del fiber
            if len(boxes) > THREADS:
                boxes.popleft()
            shared.value = r
            yield_now()
            assert shared.value == r

    in_parallel(body)
    boxes.clear()
    gc.collect()
    assert len(gone) == THREADS * ROUNDS


def test_locals_that_die_on_another_thread_leave_nothing_in_the_fiber_that_used_them() -> None:
    """What is left of them in its list is freed as it goes on."""
    wanted: SimpleQueue[bool] = SimpleQueue()
    made: SimpleQueue[Any] = SimpleQueue()

    def maker() -> None:
        while wanted.get():
            each = local()
            made.put(each)
            wanted.get()
            del each  # here, where it was made: the interpreter would hand it back to its thread
            made.put(None)

    def use(count: int) -> None:
        for n in range(count):
            wanted.put(True)
            each = made.get()
            each.value = n
            del each
            wanted.put(True)
            made.get()

    thread = threading.Thread(target=maker)
    thread.start()
    use(5)
    before = sys.getallocatedblocks()
    use(500)
    left = sys.getallocatedblocks() - before
    wanted.put(False)
    thread.join()
    assert left < 250
