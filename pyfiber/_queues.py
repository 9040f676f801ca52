"""The part of Queue in Python: PriorityQueue, and subclasses that store items in their own way.

Such a queue runs code (a comparison, an overridden ``_put``) that may wait, and another fiber could
then get in between. So a lock protects the items, and two semaphores count the items and the free
places; both serve the longest waiter first.
"""

from __future__ import annotations

import queue
import sys
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

from pyfiber._engine import (
    Case,
    FiberError,
    Queue,
    RLock,
    Semaphore,
    _holding,
    _hooked_case,
    _hooked_get,
    _hooked_put,
    _insistent,
    _with_permit,
)

T = TypeVar("T")

if sys.version_info >= (3, 13):
    from queue import ShutDown as ShutDown
else:

    class ShutDown(Exception):
        """Raised by put() and get() after shutdown(), as queue.ShutDown of Python 3.13."""


#: More permits than are ever taken: once a semaphore has this many, nothing waits for it.
PLENTY = sys.maxsize // 64


class HookedQueue:
    """The methods of a queue whose class overrides ``_put``, ``_get``, ``_qsize`` or ``_init``."""

    def __init__(self, owner: Queue[Any], maxsize: int) -> None:
        self._owner = owner
        self._mutex = RLock()
        self._items = Semaphore(0)
        self._places = Semaphore(maxsize) if maxsize > 0 else None
        self._is_open = False  # has shutdown() released PLENTY of permits?

    def _refuse_reentry(self) -> None:
        """Raise FiberError if the subclass's code has called its queue again; needs the mutex."""
        if self._mutex._recursion_count() > 1:
            raise FiberError(
                "this queue is just being changed by this fiber: its _put(), _get() and the "
                "comparisons of its items must not call put(), get() or shutdown() of it"
            )

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Take a place, then add the item."""
        if self._owner.is_shutdown:
            raise ShutDown
        if self._places is None:
            _hooked_put(self, item)
        else:
            wait = waiting(block, timeout)
            _with_permit(self._places, *wait, queue.Full, _hooked_put, self, item)

    def putting(self, item: Any) -> Case[None]:
        """put(item), as a case for select()."""
        places = self._places if self._places is not None else Semaphore(PLENTY)
        return _hooked_case(True, self._owner, places, partial(_hooked_put, self, item))

    def _add(self, item: Any) -> None:
        """Add the item. The caller has the mutex and a place, and counts the items."""
        self._refuse_reentry()
        if self._owner.is_shutdown:
            raise ShutDown
        self._owner._put(item)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Wait for an item, then take one out."""
        return _with_permit(self._items, *waiting(block, timeout), queue.Empty, _hooked_get, self)

    def getting(self) -> Case[Any]:
        """get(), as a case for select()."""
        return _hooked_case(False, self._owner, self._items, partial(_hooked_get, self))

    def _take(self) -> Any:
        """Take an item. The caller has the mutex, and an item unless the queue is shut down."""
        self._refuse_reentry()
        if self._owner.is_shutdown and not self._owner._qsize():
            raise ShutDown
        return self._owner._get()

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
        """True if there is no free place."""
        return 0 < self._owner.maxsize <= self._owner._qsize()

    def shutdown(self, immediate: bool = False) -> None:
        """End every wait, now and later; with immediate=True drop the items, too."""
        immediate = bool(immediate)  # here, so that a __bool__() runs without the mutex
        dropped: list[Any] = []  # finalizers of dropped items run without the mutex, too
        _holding(self._mutex, _insistent(self._shut), immediate, dropped)

    def _shut(self, immediate: bool, dropped: list[Any]) -> None:
        """Shut down with the mutex held; called again if an exception interrupts it."""
        self._refuse_reentry()
        owner = self._owner
        owner._mark_shut_down()
        if not self._is_open:
            self._items.release(PLENTY)
            if self._places is not None:
                self._places.release(PLENTY)
            self._is_open = True
        while immediate and owner._qsize():
            dropped.append(owner._get())
            owner._add_tasks(-1)


def waiting(block: bool, timeout: float | None) -> tuple[bool, float | None]:
    """The arguments for acquire(), which takes no timeout if it does not wait."""
    return (True, timeout) if block else (False, None)


class PriorityQueue(Queue[T]):
    """A Queue that returns the smallest item first, as queue.PriorityQueue."""

    def _init(self, maxsize: int) -> None:
        self._heap: list[Any] = []
        self._in_order = True

    def _qsize(self) -> int:
        return len(self._heap)

    # When a comparison raises, heapq's functions stop half-way: an added item stays in the heap,
    # one taken out is lost. Here a put() or get() that raises changes nothing. The order cannot be
    # restored at once, because that compares items: the next call does it first.

    def _put(self, item: T) -> None:
        self._restore_order()
        heap = self._heap
        size = len(heap)
        try:
            heappush(heap, item)
        except BaseException:
            self._in_order = False
            if len(heap) > size:  # unless a trace function raised before
                self._take_back(item)
            raise

    def _get(self) -> T:
        self._restore_order()
        heap = self._heap
        least: T = heap[0]
        size = len(heap)
        try:
            heappop(heap)
        except BaseException:
            self._in_order = False
            if len(heap) < size:
                heap.append(least)
            raise
        return least

    def _take_back(self, item: T) -> None:
        heap = self._heap
        for place in reversed(range(len(heap))):
            if heap[place] is item:
                heap[place] = heap[-1]
                heap.pop()
                return

    def _restore_order(self) -> None:
        if not self._in_order:
            heapify(self._heap)
            self._in_order = True


PriorityQueue.__module__ = "pyfiber"
