"""What the native Queue leaves to Python: PriorityQueue, subclasses with items of their own.

Keeping items in one's own way means to run code (a comparison, an overridden ``_put``) that may
wait, so that another fiber could come in between.  Hence a lock around it, and two semaphores that
count items and free places; both serve who waits longest first.
"""

from __future__ import annotations

import queue
import sys
from heapq import heappop, heappush
from typing import Any, TypeVar

from pyfiber._engine import Lock, Queue, Semaphore

T = TypeVar("T")

if sys.version_info >= (3, 13):
    from queue import ShutDown as ShutDown
else:

    class ShutDown(Exception):
        """put() or get() of a queue after shutdown(), as queue.ShutDown of Python 3.13."""


#: More than anybody will take: with so many permits nobody waits any more.
PLENTY = sys.maxsize // 4


class HookedQueue:
    """The methods of a queue whose class overrides ``_put``, ``_get``, ``_qsize`` or ``_init``."""

    def __init__(self, owner: Queue[Any], maxsize: int) -> None:
        self._owner = owner
        self._mutex = Lock()
        self._items = Semaphore(0)
        self._places = Semaphore(maxsize) if maxsize > 0 else None

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Take a place, then add the item."""
        if self._owner.is_shutdown:
            raise ShutDown
        if self._places is not None and not acquire(self._places, block, timeout):
            raise queue.Full
        added = 0
        try:
            with self._mutex:
                added = self._add(item)
        finally:
            # An item that replaced another one, or could not be added, needs no place.
            if self._places is not None and added < 1:
                self._places.release(1 - added)
        if added > 0:
            self._items.release(added)

    def _add(self, item: Any) -> int:
        owner = self._owner
        if owner.is_shutdown:
            raise ShutDown
        before = owner._qsize()
        owner._put(item)
        owner._add_tasks(1)
        return owner._qsize() - before

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for an item, then take one out."""
        if not acquire(self._items, block, timeout):
            raise queue.Empty
        taken = 0
        try:
            with self._mutex:
                item, taken = self._take()
        finally:
            if taken < 1:
                self._items.release()
        if self._places is not None:
            self._places.release(taken)
        return item

    def _take(self) -> tuple[Any, int]:
        owner = self._owner
        before = owner._qsize()
        if owner.is_shutdown and not before:
            raise ShutDown
        item = owner._get()
        return item, max(before - owner._qsize(), 1)

    def put_nowait(self, item: Any) -> None:
        """put(item, block=False)"""
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        """get(block=False)"""
        return self.get(block=False)

    def qsize(self) -> int:
        """How many items there are."""
        return self._owner._qsize()

    def empty(self) -> bool:
        """True if there is no item."""
        return not self._owner._qsize()

    def full(self) -> bool:
        """True if there is no place."""
        return 0 < self._owner.maxsize <= self._owner._qsize()

    def shutdown(self, immediate: bool = False) -> None:
        """Let nobody wait any more; with immediate=True drop the items, too."""
        owner = self._owner
        with self._mutex:
            first = not owner.is_shutdown
            owner._mark_shut_down()
            while immediate and owner._qsize():
                owner._get()
                owner._add_tasks(-1)
        if first:
            self._items.release(PLENTY)
            if self._places is not None:
                self._places.release(PLENTY)


def acquire(semaphore: Semaphore, block: bool, timeout: float | None) -> bool:
    """Take one, as the arguments of put() and get() say."""
    return semaphore.acquire(timeout=timeout) if block else semaphore.acquire(blocking=False)


class PriorityQueue(Queue[T]):
    """A Queue that gives the least item first, as queue.PriorityQueue."""

    def _init(self, maxsize: int) -> None:
        self._heap: list[Any] = []

    def _qsize(self) -> int:
        return len(self._heap)

    def _put(self, item: T) -> None:
        heappush(self._heap, item)

    def _get(self) -> T:
        least: T = heappop(self._heap)
        return least


PriorityQueue.__module__ = "pyfiber"
