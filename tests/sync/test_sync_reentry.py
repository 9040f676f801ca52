"""Primitives whose arguments, locks and items run code of their own in the midst of a call.

What they find before that code runs may be gone after it: so they convert first and look last.
"""

from __future__ import annotations

import gc
import itertools
import signal
import sys
import threading
from collections.abc import Callable
from queue import Empty
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    Barrier,
    BoundedSemaphore,
    Cancelled,
    Channel,
    ChannelClosed,
    Condition,
    Event,
    Fiber,
    FiberError,
    LifoQueue,
    Lock,
    PriorityQueue,
    Queue,
    RLock,
    Semaphore,
    current,
    local,
    run,
    select,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import run as run_virtually
from tests.support.threads import in_thread

# arguments ----------------------------------------------------------------------------------------

GLOBALS = {
    **{name: getattr(pyfiber, name) for name in pyfiber.__all__},
    "ThreadLimiter": pyfiber.threads.ThreadLimiter,
    "held": lambda lock: lock.acquire() and lock,
}


class Leaver:
    """A number that leaves the run while it is converted."""

    def __init__(self, leave: Callable[[], object], value: float = 0.01) -> None:
        self.leave = leave
        self.value = value

    def __float__(self) -> float:
        self.leave()
        return self.value

    def __index__(self) -> int:
        self.leave()
        return 1

    def __bool__(self) -> bool:
        self.leave()
        return True


def call_that_is_gone_back_to_after_the_run(expression: str) -> str:
    """Evaluate it in a run, with E a number that leaves it; what came of it after the run."""
    root = current()
    way_out: list[Fiber[Any]] = []

    def victim() -> str:
        names = {**GLOBALS, "E": Leaver(lambda: way_out[-1].switch())}
        try:
            return repr(eval(expression, names))
        except Exception as exc:
            return f"{type(exc).__name__}: {exc}"

    def main() -> Fiber[str]:
        way_out.append(current())
        fiber = Fiber(victim)
        fiber.parent = root
        fiber.switch()
        return fiber

    fiber = run(main)
    way_out.append(root)
    while not fiber.done():  # E is converted more than once where there are two
        outcome = fiber.switch()
    return outcome


NEEDS_A_RUN = ["park(E)", "park(timeout=E)", "sleep(E)", "sleep_until(E)"]
WAITS = [
    "held(Lock()).acquire(timeout=E)",
    "held(Lock()).acquire(E, E)",
    "Semaphore(0).acquire(timeout=E)",
    "Semaphore(0).acquire(E, E)",
    "Event().wait(E)",
    "(c := Condition(), c.acquire(), c.wait(E))",
    "(c := Condition(), c.acquire(), c.wait_for(lambda: False, E))",
    "Queue().get(E, E)",
    "PriorityQueue().get(E, E)",
    "(q := Queue(E), q.put(1), q.put(2, E, E))",
    "Channel().receive(E)",
    "Channel().send(1, E)",
    "select(Channel().receiving(), timeout=E)",
    "Barrier(2).wait(E)",
]
MAKES = [
    "Semaphore(E)._value",
    "Queue(E).maxsize",
    "PriorityQueue(E).maxsize",
    "Channel(E).capacity",
    "ThreadLimiter(E, abandon_on_cancel=E).total_tokens",
]


@pytest.mark.parametrize("expression", NEEDS_A_RUN)
def test_timeout_that_leaves_the_run_finds_no_scheduler(expression: str) -> None:
    outcome = call_that_is_gone_back_to_after_the_run(expression)
    assert outcome.startswith("FiberError: ")
    assert "needs a running scheduler" in outcome


@pytest.mark.parametrize("expression", WAITS)
def test_timeout_that_leaves_the_run_cannot_wait(expression: str) -> None:
    outcome = call_that_is_gone_back_to_after_the_run(expression)
    assert outcome.startswith("FiberError: a raw fiber outside of a run cannot wait")


@pytest.mark.parametrize("expression", MAKES)
def test_number_that_leaves_the_run_makes_the_object(expression: str) -> None:
    assert call_that_is_gone_back_to_after_the_run(expression) == "1"


class Counting:
    """A timeout that says how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def __float__(self) -> float:
        self.asked += 1
        return 0.0

    def __bool__(self) -> bool:
        raise AssertionError("a timeout is a number, not a truth")


@pytest.mark.parametrize(
    "call",
    [
        lambda timeout: not GLOBALS["held"](Lock()).acquire(timeout=timeout),
        lambda timeout: not GLOBALS["held"](Lock()).acquire(True, timeout),
        lambda timeout: not Semaphore(0).acquire(timeout=timeout),
        lambda timeout: not Event().wait(timeout),
        lambda timeout: not GLOBALS["held"](Condition()).wait(timeout),
        lambda timeout: select(Channel().receiving(), timeout=timeout) is None,
    ],
)
def test_timeout_is_converted_once_and_zero_does_not_wait(call: Callable[[Any], bool]) -> None:
    timeout = Counting()
    assert call(timeout)
    assert timeout.asked == 1


@pytest.mark.parametrize("timeout", [-1e-12, -0.5, float("-inf")])
def test_timeout_that_is_hardly_negative_is_refused(timeout: float) -> None:
    with pytest.raises(ValueError, match="negative"):
        Event().wait(timeout)
    with pytest.raises(ValueError, match="negative"):
        Lock().acquire(timeout=timeout)


# __init__ once more -------------------------------------------------------------------------------


def test_condition_init_while_a_waiter_takes_the_lock_again_is_refused() -> None:
    def main() -> None:
        condition = Condition()

        def waiter() -> str:
            with condition:
                condition.wait()
                return "held it"

        fiber = spawn(waiter)
        yield_now()
        with condition:
            condition.notify()
            yield_now()
            with pytest.raises(FiberError, match="comes too late: somebody waits"):
                condition.__init__()  # type: ignore[misc]
        assert fiber.result() == "held it"
        condition.__init__()  # type: ignore[misc]

    run(main)


def test_condition_init_while_its_lock_is_held_is_refused() -> None:
    condition = Condition()
    with condition, pytest.raises(FiberError, match="comes too late: somebody holds the lock"):
        condition.__init__()  # type: ignore[misc]
    lock = Lock()
    condition.__init__(lock)  # type: ignore[misc]
    with lock:
        condition.__init__(lock)  # type: ignore[misc]


def test_condition_init_by_its_own_predicate_is_refused() -> None:
    condition = Condition()
    with condition, pytest.raises(FiberError, match="comes too late"):
        condition.wait_for(condition.__init__)  # type: ignore[misc]


def test_semaphore_init_while_somebody_holds_it_is_refused() -> None:
    for kind in Semaphore, BoundedSemaphore:
        semaphore = kind(2)
        with semaphore, pytest.raises(FiberError, match="comes too late"):
            semaphore.__init__(5)  # type: ignore[misc]
        semaphore.__init__(5)  # type: ignore[misc]
        assert semaphore._value == 5


def test_semaphore_init_whose_number_takes_one_is_refused() -> None:
    semaphore = Semaphore(2)
    with pytest.raises(FiberError, match="comes too late"):
        semaphore.__init__(Leaver(semaphore.acquire))  # type: ignore[misc, arg-type]


@pytest.mark.parametrize("kind", [Queue, LifoQueue, PriorityQueue])
def test_queue_init_while_it_is_in_use_is_refused(kind: type[Queue[int]]) -> None:
    queue = kind()
    queue.__init__(3)  # type: ignore[misc]
    assert queue.maxsize == 3
    queue.put(1)
    with pytest.raises(FiberError, match="comes too late: the queue is in use"):
        queue.__init__()  # type: ignore[misc]
    assert queue.get() == 1
    queue.task_done()
    queue.__init__(1)  # type: ignore[misc]
    queue.shutdown()
    with pytest.raises(FiberError, match="comes too late"):
        queue.__init__()  # type: ignore[misc]


@pytest.mark.parametrize("kind", [Queue, PriorityQueue])
def test_queue_init_while_somebody_waits_is_refused(kind: type[Queue[int]]) -> None:
    def main() -> None:
        queue = kind()
        fiber = spawn(queue.get)
        yield_now()
        with pytest.raises(FiberError, match="comes too late"):
            queue.__init__()  # type: ignore[misc]
        queue.put(1)
        assert fiber.result() == 1

    run(main)


def test_queue_init_of_a_subclass_begins_to_serve_when_nobody_waits() -> None:
    """Making what serves a subclass runs code: somebody may begin to wait for an item just then."""

    def main() -> None:
        class Odd(Queue[int], metaclass=type("Meta", (type,), {})):
            def _put(self, item: int) -> None:
                super()._put(item)

        queue = Odd.__new__(Odd)
        waiting: list[Fiber[int]] = []

        def look(kind: type, name: str) -> Any:
            if name == "_init" and not waiting:
                waiting.append(spawn(queue.get))
                yield_now()
            return type.__getattribute__(kind, name)

        type(Odd).__getattribute__ = look  # type: ignore[method-assign, assignment]
        with pytest.raises(FiberError, match="comes too late: somebody waits"):
            queue.__init__()  # type: ignore[misc]
        waiting[0].cancel()

    run(main)


def test_channel_init_while_it_is_in_use_is_refused() -> None:
    channel: Channel[int] = Channel(1)
    channel.__init__(2)  # type: ignore[misc]
    channel.send(1)
    with pytest.raises(FiberError, match="comes too late: the channel is in use"):
        channel.__init__()  # type: ignore[misc]
    assert channel.receive() == 1
    with pytest.raises(FiberError, match="comes too late"):
        channel.__init__(Leaver(lambda: channel.send(2)))  # type: ignore[misc, arg-type]
    channel.close()


def test_barrier_init_while_somebody_waits_is_refused() -> None:
    def main() -> None:
        barrier = Barrier(2)
        fiber = spawn(barrier.wait)
        yield_now()
        with pytest.raises(FiberError, match="comes too late"):
            barrier.__init__(3)  # type: ignore[misc]
        assert barrier.wait() == 1
        with pytest.raises(FiberError, match="comes too late"):
            barrier.__init__(3)  # type: ignore[misc]
        fiber.join()
        barrier.__init__(1)  # type: ignore[misc]
        assert barrier.wait() == 0

    run(main)


# foreign locks of a Condition ---------------------------------------------------------------------


class Wrapped:
    """A lock made of ours, as a user may write it: every step of it may wait."""

    def __init__(self) -> None:
        self.mutex = Lock()
        self.lock = Lock()
        self.owner: Fiber[Any] | None = None

    def acquire(self) -> bool:
        with self.mutex:
            pass
        self.lock.acquire()
        self.owner = current()
        return True

    def release(self) -> None:
        with self.mutex:
            self.owner = None
            self.lock.release()

    def _is_owned(self) -> bool:
        return self.owner is current()

    __enter__ = acquire

    def __exit__(self, *exc: object) -> None:
        self.release()


class Slow:
    """A lock, of nothing, whose release() waits."""

    def __init__(self, wait: Callable[[], object]) -> None:
        self.wait = wait

    def acquire(self, blocking: bool = True) -> bool:
        return True

    def release(self) -> None:
        self.wait()

    def _is_owned(self) -> bool:
        return True


def test_condition_whose_lock_waits_to_be_released_is_notified_afterwards() -> None:
    """The notification must not look like the end of the lock's own wait."""

    def main() -> None:
        gate = Lock()
        gate.acquire()
        condition = Condition(Slow(gate.acquire))  # type: ignore[arg-type]
        fiber = spawn(condition.wait)
        yield_now()
        assert condition._waiters() == [fiber]
        condition.notify()
        yield_now()
        assert fiber.waiting_on is gate
        gate.release()
        assert fiber.result() is True
        assert gate.locked()

    run(main)


def test_condition_whose_lock_sleeps_while_it_is_released_sleeps_its_time() -> None:
    def main() -> float:
        begin = pyfiber.now()
        condition = Condition(Slow(lambda: sleep(5)))  # type: ignore[arg-type]
        fiber = spawn(condition.wait)
        sleep(1)
        condition.notify()
        assert fiber.result() is True
        return pyfiber.now() - begin

    assert run_virtually(main) == 5


def test_condition_lock_is_taken_again_under_cancellation_though_it_has_to_wait() -> None:
    def main() -> None:
        lock = Wrapped()
        condition = Condition(lock)  # type: ignore[arg-type]
        seen = []

        def waiter() -> None:
            with condition:
                try:
                    condition.wait()
                except Cancelled:
                    seen.append(lock._is_owned())
                    raise

        fiber = spawn(waiter)
        yield_now()
        with condition:
            fiber.cancel()
            for _ in range(3):
                yield_now()
            assert seen == []
        fiber.join()
        assert seen == [True]
        assert not lock.lock.locked()

    run(main)


def test_condition_replaced_lock_lives_as_long_as_its_call() -> None:
    class Dropping:
        """Its condition gets another lock at the first look at this one."""

        def __getattr__(self, name: str) -> Callable[..., bool]:
            if armed:
                armed.clear()
                condition.__init__()  # type: ignore[misc]
                gc.collect()
            return lambda *args: True

        def __repr__(self) -> str:
            condition.__init__()  # type: ignore[misc]
            return f"once {id(self)}"

    armed: list[bool] = []
    calls: list[Callable[[], object]] = [
        lambda: condition.acquire(),
        lambda: condition.release(),
        lambda: condition.notify(),
        lambda: condition._is_owned(),
    ]
    for call in calls:
        condition = Condition(Dropping())  # type: ignore[arg-type]
        armed.append(True)
        assert call() in (True, None)
        assert "RLock" in repr(condition)
    condition = Condition(Dropping())  # type: ignore[arg-type]
    assert "once" in repr(condition)
    condition = Condition(Dropping())  # type: ignore[arg-type]
    armed.append(True)
    with pytest.raises(FiberError, match="comes too late: somebody waits"):
        condition.wait(0)


def test_condition_errors_of_its_lock_are_told() -> None:
    class Failing:
        acquire = release = None

        @property
        def _is_owned(self) -> None:
            raise OSError("no idea")

    condition = Condition(Failing())  # type: ignore[arg-type]
    with pytest.raises(OSError, match="no idea"):
        condition.notify()


# items that compare -------------------------------------------------------------------------------


class Item:
    """Something in a PriorityQueue that runs code when it is compared."""

    def __init__(self, rank: int, act: Callable[[], object] = int) -> None:
        self.rank = rank
        self.act = act

    def __lt__(self, other: Item) -> bool:
        self.act()
        other.act()
        return self.rank < other.rank


def ranks(queue: PriorityQueue[Item]) -> list[int]:
    return [queue.get_nowait().rank for _ in range(queue.qsize())]


def fail() -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("maxsize", [0, 10])
def test_priority_queue_put_that_fails_has_not_happened(maxsize: int) -> None:
    queue: PriorityQueue[Item] = PriorityQueue(maxsize)
    for rank in 3, 1, 2:
        queue.put(Item(rank))
    with pytest.raises(ZeroDivisionError):
        queue.put(Item(0, fail))
    assert (queue.qsize(), queue.unfinished_tasks) == (3, 3)
    assert ranks(queue) == [1, 2, 3]
    with pytest.raises(Empty):
        queue.get_nowait()


def test_priority_queue_get_that_fails_has_not_happened() -> None:
    queue: PriorityQueue[Item] = PriorityQueue()
    items = [Item(rank) for rank in range(7)]
    for item in reversed(items):
        queue.put(item)
    for item in items[3:]:
        item.act = fail
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            queue.get()
        assert queue.qsize() == 7
    for item in items[3:]:
        item.act = int
    assert ranks(queue) == list(range(7))


@pytest.mark.parametrize("act", ["put", "get", "shutdown", "__init__"])
def test_priority_queue_that_is_changed_by_a_comparison_is_refused(act: str) -> None:
    queue: PriorityQueue[Item] = PriorityQueue()
    acts: dict[str, Callable[[], object]] = {
        "put": lambda: queue.put(Item(5)),
        "get": queue.get,
        "shutdown": lambda: queue.shutdown(immediate=True),
        "__init__": queue.__init__,  # type: ignore[misc]
    }
    queue.put(Item(1))
    queue.put(Item(2))
    with pytest.raises(FiberError, match=r"just being changed|comes too late"):
        queue.put(Item(0, acts[act]))
    assert ranks(queue) == [1, 2]
    assert not queue.is_shutdown


def test_priority_queue_whose_comparisons_switch_serves_others_afterwards() -> None:
    def main() -> None:
        queue: PriorityQueue[Item] = PriorityQueue()
        fibers = [spawn(queue.put, Item(rank, yield_now)) for rank in (4, 2, 3, 1, 0)]
        taken = [spawn(lambda: queue.get().rank) for _ in range(3)]
        got = [fiber.result() for fiber in taken]
        for one in fibers:
            one.join()
        assert sorted(got + ranks(queue)) == [0, 1, 2, 3, 4]

    run(main)


def test_queue_shutdown_that_fails_half_way_wakes_who_waits() -> None:
    def main() -> None:
        class Stuck(Queue[int]):
            def _get(self) -> int:
                raise OSError("stuck")

            def _put(self, item: int) -> None:
                super()._put(item)

        queue = Stuck(1)
        queue.put(1)
        fiber = spawn(queue.put, 2)
        yield_now()
        with pytest.raises(OSError, match="stuck"):
            queue.shutdown(immediate=True)
        with pytest.raises(pyfiber.ShutDown):
            fiber.result()

    run(main)


# channels -----------------------------------------------------------------------------------------


def test_channel_iterator_that_is_dropped_while_it_waits_lives_on() -> None:
    """chain() lets go of the iterator it is in when another fiber makes it go on."""

    def main() -> None:
        channels: list[Channel[int]] = [Channel(), Channel()]
        first = channels[1]
        numbers = itertools.chain.from_iterable(channels.pop() for _ in range(2))
        fibers = [spawn(next, numbers, "end") for _ in range(2)]
        yield_now()
        assert first._waiters() == fibers
        first.close()
        del first
        assert fibers[1].result() == "end"
        fibers[0].cancel()

    run(main)


@pytest.mark.skipif(sys.platform == "win32", reason="needs pthread_kill()")
def test_channel_loop_is_not_ended_by_the_end_of_another_channel() -> None:
    ended: Channel[int] = Channel()
    ended.close()
    channel: Channel[int] = Channel()
    main = threading.get_ident()

    def interrupt() -> None:
        while not channel._waiters():
            threading.Event().wait(0.001)
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: ended.receive())
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(ChannelClosed) as caught:
            list(channel)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert caught.value.channel is ended


# local --------------------------------------------------------------------------------------------


class SwitchingName(str):
    """A name that lets another fiber run while it is looked up."""

    def __hash__(self) -> int:
        self.act()
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other)

    act: Callable[[], object] = staticmethod(int)


def test_local_name_that_switches_finds_what_is_its_own_fibers() -> None:
    def main() -> None:
        mine = local()

        def other() -> None:
            for _ in range(3):
                mine.x = "other"
                yield_now()

        mine.x = "main"
        spawn(other)
        name = SwitchingName("x")
        name.act = yield_now  # type: ignore[method-assign]
        assert getattr(mine, name) == "main"
        setattr(mine, name, "changed")
        assert mine.x == "changed"
        delattr(mine, name)
        assert not hasattr(mine, "x")

    run(main)


def test_local_whose_fiber_ends_while_another_looks_it_up_keeps_what_is_set() -> None:
    def main() -> None:
        mine = local()

        def other() -> None:
            mine.x = "other"

        name = SwitchingName("x")
        name.act = lambda: spawn(other).join()  # type: ignore[method-assign]
        setattr(mine, name, "main")
        assert mine.x == "main"

    run(main)


def test_local_used_first_by_the_collector_is_initialised_once() -> None:
    made = []

    class Counted(local):
        def __init__(self) -> None:
            made.append(current())

    counted = Counted()

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            counted.x = 1

    def first_use() -> None:
        current()
        gc.collect()
        gc.disable()
        for _ in range(8):
            Cycle()
        dicts = [{} for _ in range(300)]  # so that none is kept to be used again
        gc.set_threshold(1)
        gc.enable()
        counted.y = 2
        del dicts
        gc.collect()
        assert counted.__dict__ == {"x": 1, "y": 2}

    threshold = gc.get_threshold()
    try:
        in_thread(first_use)
    finally:
        gc.set_threshold(*threshold)
    assert len(made) == 2


# the first wait of a thread -----------------------------------------------------------------------


def first_wait(what: Any, wait: Callable[[], Any], serve: Callable[[], object]) -> Any:
    """The result of the first wait on a new thread, while the collector may run serve().

    If it does not, another thread serves.
    """
    # The record of a thread is made of a fiber: none that has died is there to be used again.
    alive = [Fiber(int) for _ in range(300)]
    collected = []
    waiting: list[int] = []

    class Cycle:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if not collected and threading.get_ident() in waiting:  # on that thread only
                collected.append(True)
                serve()

    def body() -> Any:
        gc.collect()
        waiting.append(threading.get_ident())
        for _ in range(8):
            Cycle()
        gc.set_threshold(1)
        return wait()

    def serve_late() -> None:
        while not (over.is_set() or what._waiters()):
            over.wait(0.001)
        if not over.is_set():
            waited_though_served.extend(collected)
            collected.append(True)
            serve()

    over, waited_though_served = threading.Event(), list[bool]()
    helper = threading.Thread(target=serve_late)
    threshold = gc.get_threshold()
    helper.start()
    try:
        return in_thread(body)
    finally:
        gc.set_threshold(*threshold)
        over.set()
        helper.join()
        assert not waited_though_served
        del alive


def test_first_wait_of_a_thread_is_served_by_what_the_collector_runs() -> None:
    """Making the thread's record allocates: what was looked at before may have changed."""
    queue: Queue[int] = Queue()
    assert first_wait(queue, queue.get, lambda: queue.put(1)) == 1
    full: Queue[int] = Queue(1)
    full.put(1)
    first_wait(full, lambda: full.put(2), full.get_nowait)
    assert full.get_nowait() == 2
    channel: Channel[int] = Channel(1)
    assert first_wait(channel, channel.receive, lambda: channel.send(1)) == 1
    channel.send(1)
    first_wait(channel, lambda: channel.send(2), channel.receive)
    assert channel.receive() == 2


# numbers at their ends ----------------------------------------------------------------------------


def test_rlock_taken_more_often_than_can_be_counted_is_refused() -> None:
    lock = RLock()
    lock._acquire_restore(sys.maxsize)
    with pytest.raises(OverflowError):
        lock.acquire()
    assert lock._recursion_count() == sys.maxsize
    assert lock._release_save() == sys.maxsize
