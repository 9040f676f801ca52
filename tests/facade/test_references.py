"""What objects refer to: the collector sees all of it, and nothing is kept for ever."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    BoundedSemaphore,
    Cancelled,
    CancelScope,
    Channel,
    Condition,
    Event,
    Fiber,
    LifoQueue,
    Lock,
    Queue,
    RLock,
    Scheduler,
    Semaphore,
    TaskGroup,
    park,
    run,
    select,
    spawn,
    yield_now,
)
from pyfiber.grains import until
from pyfiber.threads import ThreadLimiter
from tests.conftest import Child
from tests.support.gil import needs_gil
from tests.support.growth import BLOCKS_ARE_COUNTED, bytes_left, grows
from tests.support.threads import in_thread


class Thing:
    """What is referred to; it can be told from all others."""


# what the collector sees --------------------------------------------------------------------------


def with_items(kind: type[Any]) -> Callable[[list[Thing]], Any]:
    def fill(things: list[Thing]) -> Any:
        queue = kind()
        for _ in range(3):  # its places are used in turn: begin with another than the first
            queue.put(0)
            queue.get()
        for thing in things:
            queue.put(thing)
        return queue

    return fill


def with_values(things: list[Thing]) -> Channel[Any]:
    channel: Channel[Any] = Channel(len(things))
    for _ in range(3):
        channel.send(0)
        channel.receive()
    for thing in things:
        channel.send(thing)
    return channel


def with_start(things: list[Thing]) -> Any:
    limiter = ThreadLimiter(1)
    limiter._own_thread(things[0])  # type: ignore[attr-defined]
    del things[1:]
    return limiter


def only_one(make: Callable[[Thing], Any]) -> Callable[[list[Thing]], Any]:
    def made(things: list[Thing]) -> Any:
        del things[1:]
        return make(things[0])

    return made


class OddLock(Thing):
    """What a Condition takes for a lock."""

    def acquire(self, *args: Any) -> list[int]:
        return [1]

    def release(self) -> None:
        pass

    def _is_owned(self) -> list[int]:
        return [1]


REFERRING: dict[str, Callable[[list[Thing]], Any]] = {
    "Queue": with_items(Queue),
    "LifoQueue": with_items(LifoQueue),
    "Channel": with_values,
    "ThreadLimiter": with_start,
    "Condition": only_one(lambda thing: Condition(thing)),  # type: ignore[arg-type]
    "Sending": only_one(lambda thing: Channel[Any]().sending(thing)),
    "Putting": only_one(lambda thing: Queue[Any]().putting(thing)),
    "until": only_one(lambda thing: until(thing)),
}


@pytest.mark.parametrize("name", REFERRING)
def test_collector_sees_what_an_object_refers_to_and_its_type(name: str) -> None:
    things = [OddLock() for _ in range(5)]
    made = REFERRING[name](things)
    seen = gc.get_referents(made)
    assert type(made) in seen
    for thing in things:
        assert any(it is thing for it in seen)


def test_collector_sees_the_source_of_a_case() -> None:
    queue: Queue[Any] = Queue()
    channel: Channel[Any] = Channel()
    semaphore = Semaphore()
    assert queue in gc.get_referents(queue.getting())
    assert channel in gc.get_referents(channel.receiving())
    assert semaphore in gc.get_referents(semaphore.acquiring())


def test_collector_sees_who_waits_for_a_token() -> None:
    leave = threading.Event()
    limiter = ThreadLimiter(1)

    def main() -> None:
        fibers = [spawn(limiter.to_thread, leave.wait, 20) for _ in range(3)]
        yield_now()
        assert limiter.waiting == 2
        jobs = [it for it in gc.get_referents(limiter) if type(it).__name__ == "_Job"]
        assert jobs
        leave.set()
        for fiber in fibers:
            fiber.join()

    run(main)
    assert type(limiter) in gc.get_referents(limiter)


class OwnQueue(Queue[Any]):
    """Keeps its items its own way, so that select() leaves the rest to Python."""

    def _put(self, item: Any) -> None:
        super()._put(item)


def test_collector_sees_what_a_case_of_an_own_queue_needs() -> None:
    queue = OwnQueue()
    for case in (queue.getting(), queue.putting(1)):
        seen = gc.get_referents(case)
        assert queue in seen
        assert Semaphore in map(type, seen)
        assert any(callable(it) and it is not type(case) for it in seen)


def test_collector_sees_what_select_answers() -> None:
    channel: Channel[Any] = Channel(1)
    thing = Thing()
    assert select(channel.sending(thing)) == (0, None)
    received = select(channel.receiving())
    assert [0, thing] == sorted(gc.get_referents(received), key=lambda it: it is thing)


@needs_gil("without it, code objects are freed by the collector")
def test_collector_does_not_see_what_select_answered_while_that_is_freed() -> None:
    collected: list[object] = []
    channel: Channel[Any] = Channel(2)
    channel.send(compile("0", "<code>", "eval"))  # not the collector's, but its end can be seen
    answer = select(channel.receiving())
    channel.send("kept")
    watch = weakref.ref(answer[1], lambda _: collected.append(gc.collect()))
    del answer
    assert watch() is None
    assert collected
    assert len(channel) == 1, "the answer's reference counted as one of nobody's"


def test_until_lets_go_of_what_it_was_given() -> None:
    def happens() -> bool:
        return True

    watch = weakref.ref(happens)
    asks = until(happens)
    del happens
    assert next(asks.__await__()) is watch()
    del asks
    assert watch() is None


# without memory -----------------------------------------------------------------------------------


def test_lists_for_reports_are_whole_or_memory_errors(child: Child) -> None:
    """The n-th request for memory fails, for each n."""
    pytest.importorskip("_testcapi")
    done = child(
        """
        import _testcapi
        from pyfiber import (
            Channel, Condition, Event, Lock, Queue, RLock, Scheduler, Semaphore, spawn, yield_now)

        def lists(n, ask):
            try:
                _testcapi.set_nomemory(n, n + 1)
                return ask()
            except MemoryError:
                failed.append(n)
            finally:
                _testcapi.remove_mem_hooks()

        failed = []
        scheduler = Scheduler()
        full = Queue(1)
        full.put(0)
        channels = [Channel(), Channel()]
        lock, semaphore = Lock(), Semaphore()
        lock.acquire(), semaphore.acquire()
        waits = {
            Queue(): "get", full: "put_zero", channels[0]: "receive", channels[1]: "send_zero",
            lock: "acquire", semaphore: "acquire", Event(): "wait"}
        for it, how in waits.items():
            for _ in range(3):
                name, _, zero = how.partition("_")
                scheduler.spawn(getattr(it, name), *([0] if zero else []))
        scheduler.run_once()
        for it in waits:
            whole = it._waiters()
            assert len(whole) == 3, it
            for ask in (it._waiters, it._holders):
                right = ask()
                for n in range(12):
                    found = lists(n, ask)
                    assert found is None or found == right, (it, n, found)
        scheduler.close()
        print(len(failed) > 10)
        """
    )
    assert done.stdout == "True\n", done.stderr


def test_primitives_without_memory_work_or_say_so(child: Child) -> None:
    """The n-th request for memory fails, for each n."""
    pytest.importorskip("_testcapi")
    done = child(
        """
        import _testcapi
        from pyfiber import (
            Channel, Condition, Event, Lock, Queue, RLock, Semaphore, select)

        class OddLock:
            def acquire(self, *args): return True
            def release(self): pass
            def _is_owned(self): return True

        class SavingLock(OddLock):
            def _release_save(self): pass
            def _acquire_restore(self, state): pass  # only what was saved is restored

        full, empty, values = Queue(1), Queue(), Channel(3)
        full.put(0)
        taken, odd, saving = Lock(), Condition(OddLock()), Condition(SavingLock())
        taken.acquire()
        acts = [
            lambda: odd.wait(0.001), lambda: odd.wait_for(int, 0.001),
            lambda: saving.wait(0.001),
            lambda: taken.acquire(timeout=0.001), lambda: Event().wait(0.001),
            lambda: Semaphore(0).acquire(timeout=0.001),
            lambda: (values.send(1), values.receive()),
            lambda: (empty.put(1), empty.get()),
            lambda: select(values.receiving(), empty.getting(), timeout=0.001),
            lambda: (Lock(), RLock(), Condition(), Channel(), Queue()),
            lambda: (Channel(1).send(1), Queue().put(1)),
            lambda: select(*[values.receiving()] * 20, timeout=0.001),
            taken.__repr__, odd.__repr__, full.__repr__, values.__repr__]
        failed = 0
        for act in acts:
            act()
            for n in range(25):
                try:
                    _testcapi.set_nomemory(n, n + 1)
                    act()
                except MemoryError:
                    failed += 1
                finally:
                    _testcapi.remove_mem_hooks()
                while not empty.empty():
                    empty.get()
                while len(values):
                    values.receive()
            act()
        print(failed > 50)
        """
    )
    assert done.stdout == "True\n", done.stderr


# nothing is left behind ---------------------------------------------------------------------------


def condition_times_out() -> None:
    condition = Condition()
    with condition:
        assert not condition.wait(0)


def condition_waits_for_what_never_comes() -> None:
    condition = Condition()
    with condition:
        assert condition.wait_for(list, 0) == []  # a new one each time


def condition_with_a_lock_of_the_programs() -> None:
    condition = Condition(OddLock())  # type: ignore[arg-type]
    with suppress(RuntimeError):
        condition.wait(0)
    condition.notify()


def condition_waiter_is_notified() -> None:
    condition = Condition(Lock())

    def wait() -> None:
        with condition:
            assert condition.wait()

    fiber = spawn(wait)
    yield_now()
    with condition:
        condition.notify_all()
    fiber.join()


def waiter_is_cancelled(wait: Callable[[], object]) -> None:
    def body() -> None:
        with suppress(Cancelled):
            wait()

    fiber = spawn(body)
    yield_now()
    fiber.cancel()
    fiber.join()


def values_go_through(it: Any, put: str, get: str) -> None:
    fiber = spawn(getattr(it, get))
    yield_now()
    getattr(it, put)(Thing())
    fiber.join()
    fiber = spawn(getattr(it, put), Thing())
    yield_now()
    getattr(it, get)()
    fiber.join()


class Hooked(Queue[Any]):
    def _put(self, item: Any) -> None:
        super()._put([item])


class Failing(Queue[Any]):
    def _init(self, maxsize: int) -> None:
        raise LookupError


def subclasses_of_queue() -> None:
    queue = Hooked()
    queue.put(1)
    assert queue.get() == [1]
    with suppress(LookupError):
        Failing()


def select_finds_something() -> None:
    channel: Channel[Any] = Channel(1)
    queue: Queue[Any] = Queue()
    fiber = spawn(select, channel.receiving(), queue.getting())
    yield_now()
    channel.send(Thing())
    fiber.join()
    queue.put(Thing())
    select(channel.receiving(), queue.getting())


def limiter_grows() -> None:
    limiter = ThreadLimiter(1)
    leave = threading.Event()
    fibers = [spawn(limiter.to_thread, leave.wait, 20) for _ in range(3)]
    yield_now()
    limiter.total_tokens = 3
    leave.set()
    for fiber in fibers:
        fiber.join()


def limiter_is_left_by_who_waits() -> None:
    limiter = ThreadLimiter(1)
    leave = threading.Event()
    first = spawn(limiter.to_thread, leave.wait, 20)
    yield_now()
    waiter_is_cancelled(lambda: limiter.to_thread(int))
    leave.set()
    first.join()


def value_is_dropped_with_its_sender() -> None:
    for it, put in ((Channel[Any](), "send"), (Queue[Any](1), "put")):
        if put == "put":
            it.put(Thing())  # type: ignore[union-attr]
        waiter_is_cancelled(lambda it=it, put=put: getattr(it, put)(Thing()))


def semaphore_is_waited_for() -> None:
    semaphore = BoundedSemaphore(1)
    with semaphore:
        assert not semaphore.acquire(timeout=0)
        fiber = spawn(semaphore.acquire)
        yield_now()
    fiber.join()


KEPT: dict[str, Callable[[], object]] = {
    "condition times out": condition_times_out,
    "condition waits for what never comes": condition_waits_for_what_never_comes,
    "condition with a lock of the program's": condition_with_a_lock_of_the_programs,
    "condition waiter is notified": condition_waiter_is_notified,
    "event waiter is cancelled": lambda: waiter_is_cancelled(Event().wait),
    "queue waiter is cancelled": lambda: waiter_is_cancelled(Queue[Any]().get),
    "channel waiter is cancelled": lambda: waiter_is_cancelled(Channel[Any]().receive),
    "rlock is made": lambda: RLock().acquire(),
    "values go through a channel": lambda: values_go_through(Channel(), "send", "receive"),
    "values go through a queue": lambda: values_go_through(Queue(1), "put", "get"),
    "values go through a stack": lambda: values_go_through(LifoQueue(1), "put", "get"),
    "subclasses of Queue": subclasses_of_queue,
    "select finds something": select_finds_something,
    "limiter grows": limiter_grows,
    "limiter is left by who waits": limiter_is_left_by_who_waits,
    "value is dropped with its sender": value_is_dropped_with_its_sender,
    "semaphore is waited for": semaphore_is_waited_for,
}


def test_making_a_queue_keeps_nothing_of_its_class() -> None:
    hook = Hooked.__dict__["_put"]
    before = sys.getrefcount(hook)
    for _ in range(10):
        Hooked()
    gc.collect()
    assert sys.getrefcount(hook) == before


def left(scope: Any) -> Any:
    with scope:
        yield_now()
    return scope


MADE: dict[str, Callable[[], object]] = {
    "Case": lambda: Channel().receiving(),
    "Case that something dies with": lambda: Channel[Any]().sending([[]]),
    "Fiber": lambda: spawn(int).join(),
    "Fiber that never starts": lambda: Fiber(int),
    "CancelScope": lambda: left(CancelScope()),
    "CancelScope that is not entered": CancelScope,
    "TaskGroup": lambda: left(TaskGroup()),
    "Scheduler": lambda: Scheduler().close(),
    "until": lambda: until(1),
}


@pytest.mark.parametrize("name", MADE)
def test_type_is_let_go_by_all_that_it_made(name: str) -> None:
    def main() -> None:
        kind = getattr(pyfiber, name.split()[0], until)
        before = sys.getrefcount(kind)
        for _ in range(3):
            many = [MADE[name]() for _ in range(400)]
            del many
        gc.collect()
        assert sys.getrefcount(kind) < before + 300, "some may be spare ones"

    run(main)


@pytest.mark.skipif(not BLOCKS_ARE_COUNTED, reason="this allocator does not count")
@pytest.mark.parametrize("name", KEPT)
def test_nothing_is_left_behind(name: str) -> None:
    assert not run(lambda: grows(KEPT[name], 400))


def test_wait_with_a_lock_of_the_programs_leaves_no_lock_behind() -> None:
    """A lock of the system's, which is no object, stands in while the program's is released."""
    condition = Condition(threading.Lock())  # type: ignore[arg-type]

    def times_out() -> None:
        with condition:
            assert not condition.wait(0)

    few = 2000 * 12  # a lock takes 32 or more
    assert bytes_left(times_out, 2000, few) < few


def test_wake_ups_with_a_value_leave_no_message_behind() -> None:
    """One from another thread travels in a message, which is no object."""

    def act() -> None:
        fibers = [spawn(park) for _ in range(50)]
        in_thread(lambda: [fiber.unpark(1) for fiber in fibers])
        for fiber in fibers:
            assert fiber.result() == 1

    few = 50 * 50 * 12  # a message takes 40 or more
    assert run(bytes_left, act, 50, few) < few


def test_scopes_that_were_left_are_kept_for_reuse_up_to_a_number(child: Child) -> None:
    done = child(
        """
        import sys
        from pyfiber import CancelScope

        before = sys.getrefcount(CancelScope)
        for _ in range(2):
            scopes = [CancelScope() for _ in range(2000)]
            del scopes
        print(sys.getrefcount(CancelScope) - before)  # each has one
        """
    )
    assert int(done.stdout) < 300
