"""select() over queues, events and semaphores: what its users see, and who cannot take what it got.

test_select_model.py has the interleavings of one thread.
"""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import (
    BoundedSemaphore,
    Cancelled,
    Channel,
    Event,
    LifoQueue,
    Lock,
    PriorityQueue,
    Queue,
    Scheduler,
    Semaphore,
    ShutDown,
    now,
    run,
    select,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import explore
from pyfiber.testing import run as run_virtually
from tests.support.failing import Boom
from tests.support.growth import BLOCKS_ARE_COUNTED, grows
from tests.support.threads import in_thread

QUEUES = pytest.mark.parametrize("kind", [Queue, LifoQueue, PriorityQueue])
Kind = Callable[..., Any]


def test_select_matches_each_kind() -> None:
    jobs: Queue[int] = Queue()
    full: Queue[str] = Queue(1)
    stop, tokens = Event(), Semaphore(1)
    full.put("x")

    def chosen() -> str:
        cases = jobs.getting(), full.putting("y"), stop.waiting(), tokens.acquiring()
        match select(*cases, timeout=0):
            case 0, item:
                return f"got {item}"
            case 1, None:
                return "put"
            case 2, None:
                return "happened"
            case 3, None:
                return "acquired"
        return "nothing"

    assert [chosen(), chosen()] == ["acquired", "nothing"]
    stop.set()
    assert chosen() == "happened"
    full.get()
    assert [chosen(), chosen()] == ["put", "happened"]
    jobs.put(3)
    assert chosen() == "got 3"
    assert full.get() == "y"


@QUEUES
def test_select_gets_from_a_queue(kind: Kind) -> None:
    def main() -> None:
        line, other = kind(), kind()
        line.put(1)
        assert select(other.getting(), line.getting()) == (1, 1)
        fiber = spawn(select, other.getting(), line.getting())
        yield_now()
        line.put(2)
        assert fiber.result() == (1, 2)
        line.task_done()
        line.task_done()
        line.join()
        assert select(line.getting(), timeout=0) is None

    run(main)


@QUEUES
def test_select_puts_into_a_queue(kind: Kind) -> None:
    def main() -> None:
        line = kind(1)
        assert select(line.putting(1), Event().waiting()) == (0, None)
        fiber = spawn(select, line.putting(2))
        yield_now()
        assert not fiber.done()
        assert line.unfinished_tasks == 1
        assert line.get() == 1
        fiber.join()
        assert line.get() == 2
        unlimited = kind()
        for _ in range(3):
            select(unlimited.putting("x"))
        assert unlimited.qsize() == 3

    run(main)


@QUEUES
def test_select_of_a_queue_that_is_shut_down(kind: Kind) -> None:
    def main() -> None:
        line = kind(1)
        line.put(1)
        waiting = [
            spawn(select, line.putting(2), Event().waiting()),
            spawn(select, line.putting(3)),
        ]
        yield_now()
        line.shutdown()
        for fiber in waiting:
            assert isinstance(fiber.exception(), ShutDown)
        assert select(line.getting()) == (0, 1)
        for case in (line.getting(), line.putting(4)):
            with pytest.raises(ShutDown):
                select(Event().waiting(), case)

    run(main)


@QUEUES
def test_select_timed_out_and_cancelled_did_nothing(kind: Kind) -> None:
    def main() -> None:
        full, empty = kind(1), kind()
        full.put(1)
        cases = full.putting(2), empty.getting()
        assert select(*cases, timeout=3) is None
        assert now() == 3
        fiber = spawn(select, *cases)
        yield_now()
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()
        assert full.get() == 1
        empty.put("kept")
        assert (full.qsize(), empty.qsize()) == (0, 1)

    run_virtually(main)


@QUEUES
def test_select_item_beats_a_cancellation(kind: Kind) -> None:
    def main() -> None:
        line, got = kind(), []

        def body() -> None:
            try:
                got.append(select(line.getting(), Event().waiting())[1])
            except Cancelled:
                got.append("not taken")
                raise
            yield_now()
            got.append("never")

        fiber = spawn(body)
        yield_now()
        line.put(5)
        fiber.cancel()
        fiber.join()
        assert got in ([5], ["not taken"])
        assert line.qsize() == (0 if got == [5] else 1)
        assert kind is PriorityQueue or got == [5]

    run(main)


def test_select_what_an_unwound_fiber_was_given_goes_back() -> None:
    line: Queue[int] = Queue()
    stack: LifoQueue[int] = LifoQueue()
    tokens = Semaphore(0)
    scheduler = Scheduler()
    for case in (line.getting(), stack.getting(), tokens.acquiring()):
        scheduler.spawn(select, Event().waiting(), case)
    scheduler.run_once()
    line.put(1)
    stack.put(2)
    tokens.release()
    assert (line.qsize(), stack.qsize(), tokens._value) == (0, 0, 0)
    scheduler.close()
    assert (line.get_nowait(), stack.get_nowait(), tokens._value) == (1, 2, 1)


def test_select_what_an_unwound_fiber_was_given_goes_to_the_next() -> None:
    line: Queue[int] = Queue()
    tokens = Semaphore(0)
    scheduler = Scheduler()
    for case in (line.getting(), tokens.acquiring()):
        scheduler.spawn(select, case)
    scheduler.run_once()
    results: list[Any] = []

    def elsewhere() -> None:
        for _ in range(2):
            results.append(select(line.getting(), tokens.acquiring()))

    thread = threading.Thread(target=elsewhere)
    line.put(1)
    tokens.release()
    thread.start()
    scheduler.close()
    thread.join()
    assert sorted(results) == [(0, 1), (1, None)]


def test_select_is_in_line_with_other_waiters() -> None:
    def main() -> None:
        line: Queue[int] = Queue()
        tokens = Semaphore(0)
        log: list[Any] = []
        order = [
            lambda: log.append(("get", line.get())),
            lambda: log.append(("select", select(tokens.acquiring(), line.getting())[1])),
            lambda: log.append(("get", line.get())),
        ]
        for body in order:
            spawn(body)
        yield_now()
        for n in range(3):
            line.put(n)
        sleep(0)
        assert log == [("get", 0), ("select", 1), ("get", 2)]
        assert tokens._waiters() == []

    run(main)


def test_select_event_that_is_cleared_at_once_has_happened() -> None:
    def main() -> None:
        event = Event()
        fiber = spawn(select, event.waiting(), Event().waiting())
        yield_now()
        event.set()
        event.clear()
        assert fiber.result() == (0, None)
        assert select(event.waiting(), timeout=0) is None

    run(main)


def test_select_semaphore_is_held_by_who_selected() -> None:
    def main() -> None:
        tokens = BoundedSemaphore(1)
        fiber = spawn(lambda: (select(Event().waiting(), tokens.acquiring()), sleep(1)))
        tokens.acquire()
        yield_now()
        tokens.release()
        assert tokens._holders() == [fiber]
        assert not tokens.acquire(blocking=False)
        tokens.release()
        with pytest.raises(ValueError, match="too many"):
            tokens.release()

    run_virtually(main)


def test_select_from_plain_threads() -> None:
    line: Queue[int] = Queue()
    tokens = Semaphore(0)
    timer = threading.Timer(0.01, line.put, (7,))
    timer.start()
    assert select(tokens.acquiring(), line.getting(), timeout=60) == (1, 7)
    timer.join()
    assert in_thread(lambda: select(line.putting(8))) == (0, None)


def test_select_queue_wakes_a_fiber_of_another_thread() -> None:
    jobs: Queue[int] = Queue(1)
    done: Queue[int] = Queue()
    stop = Event()

    def worker() -> int:
        count = 0
        while True:
            match select(jobs.getting(), stop.waiting()):
                case 0, item:
                    done.put(item)
                    count += 1
                case 1, _:
                    return count

    counts: list[int] = []
    threads = [threading.Thread(target=lambda: counts.append(run(worker))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(300):
        select(jobs.putting(n), stop.waiting())
    assert sorted(done.get() for _ in range(300)) == list(range(300))
    stop.set()
    for thread in threads:
        thread.join()
    assert sum(counts) == 300


# Queues that keep their items in their own way ----------------------------------------------------


def test_select_priority_queue_gives_the_least_first() -> None:
    line: PriorityQueue[int] = PriorityQueue()
    for n in (3, 1, 2):
        select(line.putting(n))
    assert [select(line.getting())[1] for _ in range(3)] == [1, 2, 3]


def test_select_priority_queue_whose_items_cannot_be_compared_loses_no_place() -> None:
    def main() -> None:
        line: PriorityQueue[Any] = PriorityQueue(2)
        line.put(1)
        with pytest.raises(TypeError, match="'<' not supported"):
            select(line.putting("x"))
        line.put_nowait(2)
        assert line.full()

    run(main)


def test_select_queue_of_ones_own_runs_its_code() -> None:
    log: list[str] = []

    class Own(Queue[int]):
        def _get(self) -> int:
            log.append("get")
            if len(log) == 1:
                raise Boom
            yield_now()
            return super()._get()

    def main() -> None:
        line = Own()
        line.put(1)
        with pytest.raises(Boom):
            select(line.getting())
        fiber = spawn(select, Event().waiting(), line.getting())
        assert fiber.result() == (1, 1)
        assert log == ["get", "get"]

    run(main)


def test_select_answer_of_a_queue_of_ones_own_is_the_collectors() -> None:
    """A collection while the queue's code runs takes a pair of a number and None for a leaf."""

    class Own(Queue[Any]):
        def _get(self) -> Any:
            gc.collect()
            return super()._get()

    line = Own()
    item: list[Any] = []
    line.put(item)
    item.append(select(line.getting()))
    assert item[0] == (0, item)
    assert gc.is_tracked(item[0])


# The objects --------------------------------------------------------------------------------------


def test_select_cases_say_what_they_are_and_may_be_used_again() -> None:
    line: Queue[int] = Queue()
    own: PriorityQueue[int] = PriorityQueue()
    for queue_, name in ((line, "<pyfiber.Queue at "), (own, "<PriorityQueue at ")):
        gets, puts = queue_.getting(), queue_.putting(1)
        assert repr(gets).startswith(f"<pyfiber.Case getting of {name}")
        assert repr(puts).startswith(f"<pyfiber.Case putting of {name}")
        for _ in range(2):
            assert select(puts) == (0, None)
            assert select(gets) == (0, 1)
    assert repr(Semaphore().acquiring()).startswith("<pyfiber.Case acquiring of <pyfiber.Semaphore")
    assert repr(Event().waiting()).startswith("<pyfiber.Case waiting of <pyfiber.Event at ")


@pytest.mark.parametrize("thing", [Queue(), Lock(), Semaphore(), queue.Queue(), threading.Event()])
def test_select_object_that_is_no_case_is_refused(thing: Any) -> None:
    line: Queue[int] = Queue()
    with pytest.raises(TypeError, match=r"queue\.getting\(\)"):
        select(line.putting(1), thing)
    assert line.empty(), "nothing was done"


class Tell:
    """Calls a function when it dies."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call

    def __del__(self) -> None:
        self.call()


def test_select_whose_unsent_values_act_when_they_die() -> None:
    """They go when the choice is made and all else is done."""

    def main() -> None:
        line: Queue[Any] = Queue()
        full: Queue[Any] = Queue(1)
        full.put("full")
        log: list[Any] = []

        def act() -> None:
            log.append(full.qsize())
            line.put("late")
            yield_now()

        fiber = spawn(lambda: select(line.getting(), full.putting(Tell(act))))
        yield_now()
        line.put("first")
        assert fiber.result() == (0, "first")
        assert log == [1]
        assert line.get_nowait() == "late"

    run(main)


def test_select_timeout_that_acts_while_it_is_converted() -> None:
    def main() -> None:
        line: Queue[int] = Queue(1)
        own: PriorityQueue[int] = PriorityQueue(1)

        class Seconds(float):
            def __float__(self) -> float:
                line.put(1)
                own.put(2)
                yield_now()
                return 0.0

        class Index:
            def __float__(self) -> float:
                return float(Seconds())

        assert select(line.putting(3), timeout=Index()) is None  # type: ignore[call-overload]
        assert (line.get_nowait(), own.get_nowait()) == (1, 2)

    run(main)


def test_select_cases_in_a_cycle_are_collected() -> None:
    class Box:
        case: Any = None

    box = Box()
    line: Queue[Any] = Queue()
    box.case = (line.putting(box), Channel[Any]().sending(box))
    gone = weakref.ref(box)
    del box
    gc.collect()
    assert gone() is None


@pytest.mark.skipif(not BLOCKS_ARE_COUNTED, reason="memory blocks are not counted")
def test_select_over_queues_leaves_nothing_behind() -> None:
    line: Queue[Any] = Queue()
    own: PriorityQueue[Any] = PriorityQueue()
    tokens, event = Semaphore(1), Event()

    def act() -> None:
        select(line.putting(object()))
        select(own.getting(), line.getting())
        select(own.putting(1))
        select(own.getting(), event.waiting())
        select(event.waiting(), tokens.acquiring())
        tokens.release()
        select(event.waiting(), own.getting(), line.getting(), timeout=0)

    assert not grows(act, 200)


# Explored -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["random", "pct"])
@QUEUES
def test_select_over_queues_in_explored_schedules(kind: Kind, strategy: str) -> None:
    """Everything that was put is got exactly once, whenever one of the getters is cancelled."""

    def main() -> None:
        jobs, stop, tokens = kind(2), Event(), Semaphore(0)
        taken: list[int] = []
        acquired: list[int] = []

        def take_one() -> bool:
            match select(jobs.getting(), tokens.acquiring(), stop.waiting()):
                case 0, item:
                    taken.append(item)
                case 1, _:
                    acquired.append(1)
                case 2, _:
                    return False
            return True

        def work() -> None:
            while take_one():
                yield_now()

        fibers = [spawn(work), spawn(work), spawn(take_one)]
        for n in range(6):
            select(jobs.putting(n))
            tokens.release()
            if n == 2:
                fibers[2].cancel()
        while jobs.qsize():
            yield_now()
        stop.set()
        for fiber in fibers:
            fiber.join()
        assert sorted(taken) == [*range(6)]
        assert tokens._value + len(acquired) == 6

    explore(main, 100, strategy)


@pytest.mark.parametrize("strategy", ["random", "pct"])
def test_select_between_two_queues_in_explored_schedules(strategy: str) -> None:
    def main() -> None:
        a: Queue[int] = Queue(1)
        b: PriorityQueue[int] = PriorityQueue(1)
        taken: list[int] = []

        def put(start: int) -> None:
            for n in range(start, start + 3):
                select(a.putting(n), b.putting(n))

        def get() -> None:
            for _ in range(3):
                taken.append(select(b.getting(), a.getting())[1])

        fibers = [spawn(put, 0), spawn(put, 10), spawn(get), spawn(get)]
        for fiber in fibers:
            fiber.join()
        assert sorted(taken) == [0, 1, 2, 10, 11, 12]

    explore(main, 200, strategy)
