"""Queue, LifoQueue, PriorityQueue: what their users see."""

from __future__ import annotations

import gc
import math
import queue
import sys
import threading
import weakref
from contextlib import suppress

import pytest

import pyfiber
from pyfiber import (
    Cancelled,
    Fiber,
    FiberError,
    LifoQueue,
    PriorityQueue,
    Queue,
    Scheduler,
    ShutDown,
    _engine,
    run,
    select,
    sleep,
    spawn,
    yield_now,
)
from tests.support.interfering import Interfering, Stop, stop
from tests.support.threads import PATIENCE


class Doubling(Queue):
    """A subclass that keeps its items in its own way."""

    def _put(self, item):
        super()._put(item)


KINDS = [Queue, LifoQueue, PriorityQueue, Doubling]


def drain(q):
    items = []
    while not q.empty():
        items.append(q.get())
    return items


@pytest.mark.parametrize(
    ("kind", "order"),
    [(Queue, [3, 1, 2]), (LifoQueue, [2, 1, 3]), (PriorityQueue, [1, 2, 3]), (Doubling, [3, 1, 2])],
)
def test_queue_order(kind, order):
    q = kind()
    for item in (3, 1, 2):
        q.put(item)
    assert (q.qsize(), q.empty(), q.full()) == (3, False, False)
    assert drain(q) == order


@pytest.mark.parametrize("kind", KINDS)
def test_queue_hands_items_to_who_waits_longest(kind):
    def main():
        q, got = kind(), []
        fibers = [spawn(lambda i=i: got.append((i, q.get()))) for i in range(3)]
        yield_now()
        for item in range(3):
            q.put(item)
        for fiber in fibers:
            fiber.join()
        assert got == [(0, 0), (1, 1), (2, 2)]

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_queue_gives_places_to_who_waits_longest(kind):
    def main():
        q = kind(1)
        q.put(0)
        fibers = [spawn(q.put, i) for i in (1, 2)]
        yield_now()
        assert q.full()
        got = [q.get()]
        with pytest.raises(queue.Full):
            q.put_nowait(9)
        for fiber in fibers:
            fiber.join(0.01)
        got += [q.get(), q.get()]
        assert got == [0, 1, 2]
        assert all(fiber.join(PATIENCE) for fiber in fibers)

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_queue_item_given_before_the_cancellation_is_delivered(kind):
    def main():
        q, got = kind(), []

        def body():
            got.append(q.get())
            with pytest.raises(Cancelled):
                sleep(1)

        fiber = spawn(body)
        yield_now()
        q.put("x")
        fiber.cancel()
        fiber.join()
        assert got == ["x"]

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_queue_cancelled_put_puts_nothing(kind):
    def main():
        q = kind(1)
        q.put(1)
        fiber = spawn(q.put, 2)
        yield_now()
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()
        assert drain(q) == [1]
        assert q.unfinished_tasks == 1

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_queue_item_given_to_an_unwound_fiber_goes_back(kind):
    q = kind()
    scheduler = Scheduler()
    scheduler.spawn(q.get)
    scheduler.spawn(q.get)
    scheduler.run_once()
    q.put(1)
    q.put(2)
    scheduler.close()
    items = drain(q)
    assert sorted(items) == [1, 2]
    assert items == [1, 2] or kind is LifoQueue


@pytest.mark.parametrize("kind", KINDS)
def test_queue_item_given_to_an_unwound_fiber_goes_to_who_waits_behind_it(kind):
    q = kind()
    scheduler, later = Scheduler(), Scheduler()
    scheduler.spawn(q.get)
    scheduler.run_once()
    behind = later.spawn(q.get)
    later.run_once()
    q.put(1)
    scheduler.close()
    later.run_once()
    assert behind.result() == 1
    assert q._waiters() == []
    assert q.empty()
    later.close()


@pytest.mark.parametrize("kind", KINDS)
def test_queue_item_of_a_put_that_waited_is_a_task_too(kind):
    def main():
        q = kind(1)
        q.put(1)
        putter = spawn(q.put, 2)
        yield_now()
        assert q.unfinished_tasks == 1
        q.get()
        putter.join()
        assert q.unfinished_tasks == 2
        q.task_done()
        q.task_done()
        with pytest.raises(ValueError, match="too many times"):
            q.task_done()

    run(main)


def test_queue_whose_init_hook_fails_is_not_made():
    class Failing(Queue):
        def _init(self, maxsize):
            raise LookupError(maxsize)

    with pytest.raises(LookupError, match="5"):
        Failing(5)


@pytest.mark.parametrize("kind", KINDS)
def test_queue_without_waiting(kind):
    q = kind(1)
    with pytest.raises(queue.Empty):
        q.get_nowait()
    with pytest.raises(queue.Empty):
        q.get(block=False)
    with pytest.raises(queue.Empty):
        q.get(timeout=0.001)
    q.put_nowait(1)
    for attempt in (q.put_nowait, lambda x: q.put(x, False), lambda x: q.put(x, timeout=0.001)):
        with pytest.raises(queue.Full):
            attempt(2)
    assert q.get(False) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("timeout", [-1, math.nan, -math.inf])
def test_queue_bad_timeout_is_refused(kind, timeout):
    q = kind(1)
    with pytest.raises(ValueError, match="timeout"):
        q.get(timeout=timeout)
    q.put(1)
    with pytest.raises(ValueError, match="timeout"):
        q.put(2, timeout=timeout)
    assert drain(q) == [1]


def test_queue_wrong_arguments_are_refused():
    with pytest.raises(TypeError):
        Queue("x")
    with pytest.raises(TypeError):
        Queue().put()
    with pytest.raises(TypeError):
        Queue().get(timeout="x")
    with pytest.raises(TypeError):
        Queue().put(1, True, 2, 3)
    with pytest.raises(FiberError, match="for subclasses"):
        Queue()._put(1)
    with pytest.raises(FiberError, match="for subclasses"):
        Queue()._get()
    with pytest.raises(AttributeError):
        Queue().maxsize = 3


@pytest.mark.parametrize("kind", KINDS)
def test_queue_join_waits_for_task_done(kind):
    def main():
        q = kind()
        q.join()
        with pytest.raises(ValueError, match="too many times"):
            q.task_done()
        done = []

        def work():
            while True:
                item = q.get()
                sleep(0)
                done.append(item)
                q.task_done()

        worker = spawn(work)
        for item in range(5):
            q.put(item)
        assert q.unfinished_tasks == 5
        q.join()
        assert sorted(done) == [0, 1, 2, 3, 4]
        worker.cancel()

    run(main)


def test_queue_join_is_a_cancellation_point():
    def main():
        q = Queue()
        q.put(1)
        fiber = spawn(q.join)
        yield_now()
        assert q._waiters() == [fiber]
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()
        assert q._waiters() == []

    run(main)


# shutdown ----------------------------------------------------------------------------------------


def test_shutdown_error_is_queues_own_where_it_has_one():
    if sys.version_info >= (3, 13):
        assert ShutDown is queue.ShutDown
    else:
        assert issubclass(ShutDown, Exception)
        assert pyfiber.ShutDown is ShutDown


@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_lets_the_rest_be_taken(kind):
    q = kind()
    q.put(1)
    q.shutdown()
    assert q.is_shutdown
    with pytest.raises(ShutDown):
        q.put(2)
    with pytest.raises(ShutDown):
        q.put_nowait(2)
    assert q.get() == 1
    for get in (q.get, q.get_nowait, lambda: q.get(timeout=1)):
        with pytest.raises(ShutDown):
            get()
    q.task_done()
    q.join()
    q.shutdown()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("immediate", [False, True])
def test_shutdown_wakes_who_waits(kind, immediate):
    def main():
        empty, full = kind(), kind(1)
        full.put(1)
        fibers = [spawn(empty.get), spawn(empty.get), spawn(full.put, 2), spawn(full.join)]
        yield_now()
        empty.shutdown(immediate)
        full.shutdown(immediate)
        for fiber in fibers[:3]:
            assert isinstance(fiber.exception(timeout=PATIENCE), ShutDown)
        if immediate:
            assert fibers[3].join(PATIENCE)
            assert full.qsize() == 0
        else:
            assert full.get() == 1
            full.task_done()
            fibers[3].result(timeout=PATIENCE)

    run(main)


@pytest.mark.parametrize("kind", KINDS)
def test_shutdown_immediate_forgets_the_tasks_of_its_items_alone(kind):
    q = kind()
    for item in range(3):
        q.put(item)
    q.get()
    q.shutdown(immediate=True)
    assert q.unfinished_tasks == 1  # of the item that was taken
    q.task_done()
    q.join()


def test_shutdown_immediate_runs_the_items_last_acts():
    """What a dropped item's __del__ does finds the queue shut down and empty."""
    seen = []

    class Item:
        def __del__(self):
            seen.append((q.qsize(), q.is_shutdown))

    q = Queue()
    for _ in range(3):
        q.put(Item())
    q.shutdown(immediate=True)
    gc.collect()
    assert seen == [(0, True)] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_code_that_shutdown_runs_may_wait_for_another_thread_at_the_queue(kind):
    """No lock is held while `immediate` is asked for its truth, nor while items die."""
    q = kind()
    refused = []

    def use() -> None:
        try:
            q.get(timeout=PATIENCE)
        except ShutDown:
            refused.append(True)

    def use_elsewhere() -> None:
        thread = threading.Thread(target=use, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()

    class Now:
        def __bool__(self):
            q.put(Item())
            use_elsewhere()
            q.put(Item())
            return True

    class Item:
        def __del__(self):
            if q.is_shutdown:
                use_elsewhere()

    q.shutdown(immediate=Now())
    gc.collect()
    assert refused == [True]


def test_block_that_is_neither_true_nor_false_fails_before_anything_happens():
    class Unclear:
        def __bool__(self):
            raise LookupError

    q = Queue()
    with pytest.raises(LookupError):
        q.put("refused", Unclear())
    q.put("kept")
    with pytest.raises(LookupError):
        q.get(Unclear())
    assert q.get() == "kept"
    assert q.empty()


# subclasses --------------------------------------------------------------------------------------


def test_subclass_with_items_of_its_own():
    class Unique(Queue):
        def _init(self, maxsize):
            self.items = {}

        def _qsize(self):
            return len(self.items)

        def _put(self, item):
            self.items[item] = None

        def _get(self):
            item = next(iter(self.items))
            del self.items[item]
            return item

    def main():
        q = Unique(2)
        q.put(1)
        q.put(1)
        q.put(2)
        assert q.full()
        with pytest.raises(queue.Full):
            q.put_nowait(3)
        assert [q.get(), q.get()] == [1, 2]
        with pytest.raises(queue.Empty):
            q.get_nowait()
        fiber = spawn(q.get)
        yield_now()
        q.put(5)
        assert fiber.result() == 5
        q.put(6)
        q.put(7)
        assert not spawn(q.put, 8).join(0.01)
        assert [q.get(), q.get(), q.get(timeout=PATIENCE)] == [6, 7, 8]

    run(main)


def test_subclass_whose_put_fails_keeps_its_place():
    class Failing(Queue):
        def _put(self, item):
            if item is None:
                raise ValueError("no item")
            super()._put(item)

    q = Failing(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="no item"):
            q.put(None)
    q.put(1)
    assert q.full()
    assert q.get() == 1


def test_subclass_that_only_adds_methods_stays_native():
    class More(Queue):
        def put_all(self, items):
            for item in items:
                self.put(item)

    q = More()
    q.put_all("abc")
    assert drain(q) == ["a", "b", "c"]
    with pytest.raises(FiberError):
        q._put(1)


def test_priority_queue_whose_comparison_waits():
    """A comparison that yields lets others come in between: they wait for the heap."""

    class Slow(int):
        def __lt__(self, other):
            yield_now()
            return int(self) < int(other)

    def main():
        q = PriorityQueue()
        fibers = [spawn(q.put, Slow(n)) for n in (5, 2, 8, 1, 9, 3)]
        for fiber in fibers:
            fiber.result()
        got = [spawn(q.get) for _ in range(6)]
        assert [fiber.result() for fiber in got] == [1, 2, 3, 5, 8, 9]

    run(main)


def test_priority_queue_item_that_cannot_be_compared_is_refused():
    q = PriorityQueue(2)
    q.put(1)
    with pytest.raises(TypeError):
        q.put("x")
    # heapq has put it at the end before it compared; as with queue.PriorityQueue.
    assert q.get() == 1


# life --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_queue_in_a_cycle_is_collected(kind):
    q = kind()
    q.put((1, q))
    gone = weakref.ref(q)
    del q
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("kind", KINDS)
def test_queue_lets_go_of_what_it_gave(kind):
    class Item:
        def __lt__(self, other):
            return False

    def main():
        q = kind()
        item = Item()
        gone = weakref.ref(item)
        fiber = spawn(q.get)
        yield_now()
        q.put(item)
        q.put(item)
        fiber.result()
        q.get()
        del item, fiber
        yield_now()
        gc.collect()
        assert gone() is None

    run(main)


def test_queue_many_items_through_a_growing_ring():
    q = Queue()
    expected = []
    for i in range(1000):
        q.put(i)
        expected.append(i)
        if i % 3 == 0:
            assert q.get() == expected.pop(0)
    assert drain(q) == expected


def test_raw_fiber_outside_a_run_does_not_wait_for_an_item():
    q, errors = Queue(), []

    def body():
        try:
            q.get()
        except FiberError as error:
            errors.append(error)

    Fiber(body).switch()
    assert len(errors) == 1
    assert q._waiters() == []


# Exceptions that come in between ------------------------------------------------------------------


def check_permits(q):
    """Of its two places as many are free as there is no item in, and its items can be had."""
    while q.qsize() < 2:
        q.put_nowait(0)
    with pytest.raises(queue.Full):
        q.put_nowait(0)
    for _ in range(2):
        q.get_nowait()
        q.task_done()
    with pytest.raises(queue.Empty):
        q.get_nowait()


def get_one(q):
    with suppress(queue.Empty):
        q.get(timeout=0)
        q.task_done()


USES = {
    "put": lambda q: q.put(1),
    "get": get_one,
    "put, selected": lambda q: select(q.putting(1)),
    "get, selected": lambda q: select(q.getting(), timeout=0),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", [PriorityQueue, Doubling])
def test_queue_loses_no_permit_wherever_a_trace_function_raises(kind, use):
    nth = 1

    def main():
        q = kind(2)
        q.put(1)
        interfering = Interfering(nth, stop, "pyfiber._queues", __name__)
        with suppress(Stop):
            interfering.play(lambda: USES[use](q))
        check_permits(q)
        return interfering.left <= 0

    while run(main):
        nth += 1
    assert nth > 10


@pytest.mark.parametrize("immediate", [False, True])
@pytest.mark.parametrize("kind", [PriorityQueue, Doubling])
def test_shutdown_lets_all_go_wherever_a_trace_function_raises(kind, immediate):
    nth = 1

    def main():
        q = kind(1)
        waiting = [spawn(q.get) for _ in range(2)]
        yield_now()

        def traced():
            with suppress(Stop):
                q.shutdown(immediate)

        interrupted = Interfering(nth, stop, "pyfiber._queues").play(traced)
        if not q.is_shutdown:
            q.shutdown()
        for fiber in waiting:
            with pytest.raises(ShutDown):
                fiber.result()
        return interrupted

    while run(main):
        nth += 1
    assert nth > 5


def test_step_of_a_hooked_queue_without_its_arguments_is_refused():
    with pytest.raises(TypeError, match="takes a HookedQueue and an item"):
        _engine._hooked_put()


def test_exceptions_are_the_standard_ones() -> None:
    with pytest.raises(queue.Empty):
        pyfiber.Queue[int]().get(block=False)
    small = pyfiber.Queue[int](1)
    small.put(1)
    with pytest.raises(queue.Full):
        small.put(2, block=False)
