"""Textbook races of threaded code, each broken and right.

Each is a function `race(right)` for `explore(..., threads="simulated", switch="line")`: with one
switch or two at the wrong lines the broken version fails. `python -m tests.testing.textbook` prints
how many schedules each of them needs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import Queue
from statistics import median
from threading import Condition, Event, Lock, Semaphore, Thread
from typing import Any

from pyfiber.testing.clock import VirtualClock
from pyfiber.testing.runner import Program, Runner
from pyfiber.testing.search import Search, how_to


def together(*targets: Callable[[], object]) -> None:
    """Run each function in a thread, and wait for all."""
    threads = [Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def guard(right: bool) -> AbstractContextManager[object]:
    """A lock, or nothing."""
    return Lock() if right else nullcontext()


# --------------------------------------------------------------- updates that get lost


def lost_update(right: bool) -> None:
    """Two read, two write: one increment is lost."""

    class Counter:
        def __init__(self) -> None:
            self.value = 0
            self.lock = guard(right)

        def add(self) -> None:
            with self.lock:
                value = self.value
                self.value = value + 1

    counter = Counter()
    together(counter.add, counter.add)
    assert counter.value == 2, counter.value


def check_then_act(right: bool) -> None:
    """There is a seat when one looks, and none any more when one takes it."""

    class Theatre:
        def __init__(self) -> None:
            self.seats = 1
            self.lock = guard(right)

        def book(self) -> None:
            with self.lock:
                if self.seats > 0:
                    self.seats -= 1

    theatre = Theatre()
    together(theatre.book, theatre.book)
    assert theatre.seats == 0, theatre.seats


def same_number_twice(right: bool) -> None:
    """Two customers get the same number."""

    class Numbers:
        def __init__(self) -> None:
            self.next = 1
            self.lock = guard(right)

        def take(self) -> int:
            with self.lock:
                number = self.next
                self.next += 1
            return number

    numbers, taken = Numbers(), list[int]()
    together(*[lambda: taken.append(numbers.take())] * 2)
    assert sorted(taken) == [1, 2], taken


def lost_insertion(right: bool) -> None:
    """Two put a node at the head of a linked list, and one of them is not in it."""
    head: tuple[str, Any] | None = None
    lock = guard(right)

    def push(name: str) -> None:
        nonlocal head
        with lock:
            node = (name, head)
            head = node

    together(partial(push, "a"), partial(push, "b"))
    names = set()
    while head is not None:
        name, head = head
        names.add(name)
    assert names == {"a", "b"}, names


def aba(right: bool) -> None:
    """Compare-and-swap sees the same node again and takes it for the same list."""
    following: dict[str, str | None] = {"a": "b", "b": "c", "c": None}
    head: list[Any] = ["a", 0]  # the node, and the number of changes
    atomic = Lock()
    taken: list[str] = []

    def swap(old: str, new: str | None, seen: int) -> bool:
        with atomic:
            if head[0] != old or (right and head[1] != seen):
                return False
            head[:] = [new, seen + 1]
            return True

    def pop() -> str:
        while True:
            with atomic:
                node, seen = head
                after = following[node]
            if swap(node, after, seen):
                return str(node)

    def push(node: str) -> None:
        while True:
            with atomic:
                old, seen = head
                following[node] = old
            if swap(old, node, seen):
                return

    def pop_two_push_one() -> None:
        first = pop()
        taken.append(pop())
        push(first)

    together(lambda: taken.append(pop()), pop_two_push_one)
    free, node = [], head[0]
    while node is not None:
        free.append(node)
        node = following[node]
    assert sorted(free + taken) == ["a", "b", "c"], f"free {free}, taken {taken}"


# ------------------------------------------------------------------ things made late


def double_checked_locking(right: bool) -> None:
    """The lock protects the making, but one who looks without it finds a thing half made."""

    class Settings:
        loaded = False
        instance: Settings | None = None
        lock = Lock()

        @classmethod
        def get(cls) -> Settings:
            if cls.instance is None:
                with cls.lock:
                    if cls.instance is None:
                        made = cls()
                        if right:
                            made.loaded = True
                            cls.instance = made
                        else:
                            cls.instance = made
                            made.loaded = True
            return cls.instance

    def use() -> None:
        assert Settings.get().loaded

    together(use, use)


def published_too_early(right: bool) -> None:
    """A name is in the table before what belongs to it."""
    handlers: dict[str, list[str]] = {}

    def register() -> None:
        if right:
            handlers["save"] = ["write"]
        else:
            handlers["save"] = []
            handlers["save"].append("write")

    def call() -> None:
        if "save" in handlers:
            assert handlers["save"][0] == "write"

    together(register, call)


def two_singletons(right: bool) -> None:
    """Each of two gets an instance of what there must be one of."""

    class Registry:
        def __init__(self) -> None:
            self.only: object = None
            self.lock = guard(right)

        def get(self) -> object:
            with self.lock:
                if self.only is None:
                    self.only = object()
            return self.only

    registry, seen = Registry(), list[object]()
    together(*[lambda: seen.append(registry.get())] * 2)
    assert seen[0] is seen[1]


def started_twice(right: bool) -> None:
    """Whether a service runs is asked, and noted only after it was started."""

    class Service:
        def __init__(self) -> None:
            self.running = False
            self.starts = 0
            self.lock = guard(right)

        def ensure(self) -> None:
            with self.lock:
                if not self.running:
                    self.starts += 1
                    self.running = True

    service = Service()
    together(service.ensure, service.ensure)
    assert service.starts == 1, service.starts


def cache_stampede(right: bool) -> None:
    """Nobody has the value yet, so everybody computes it."""
    cache: dict[str, int] = {}
    computed: list[str] = []
    lock = guard(right)

    def get() -> int:
        with lock:
            if "key" not in cache:
                computed.append("key")
                cache["key"] = 42
        return cache["key"]

    together(get, get)
    assert len(computed) == 1, computed


# ---------------------------------------------------------------------- containers


def changed_during_iteration(right: bool) -> None:
    """One walks over a dictionary while another adds to it."""
    sessions = {"ada": 1, "bob": 2}

    def report() -> int:
        total = 0
        for name in list(sessions) if right else sessions:
            total += len(name)
        return total

    def login() -> None:
        sessions["eve"] = 3

    together(report, login)


def popped_when_empty(right: bool) -> None:
    """The last job is there when one looks, and gone when one takes it."""
    jobs = ["job"]
    lock = guard(right)

    def work() -> None:
        with lock:
            if jobs:
                jobs.pop()

    together(work, work)


def evicted_while_used(right: bool) -> None:
    """A cache throws out the entry that another thread has just found."""
    entries: OrderedDict[str, int] = OrderedDict(a=1)
    lock = guard(right)

    def get() -> None:
        with lock:
            if "a" in entries:
                entries.move_to_end("a")

    def put() -> None:
        with lock:
            entries["b"] = 2
            if len(entries) > 1:
                entries.popitem(last=False)

    together(get, put)


def torn_pair(right: bool) -> None:
    """One reads two fields between the writes of another."""

    class Account:
        def __init__(self) -> None:
            self.checking, self.savings = 100, 0
            self.lock = guard(right)

        def move(self) -> None:
            with self.lock:
                self.checking -= 50
                self.savings += 50

        def total(self) -> int:
            with self.lock:
                total = self.checking
                return total + self.savings

    account, seen = Account(), list[int]()
    together(account.move, lambda: seen.append(account.total()))
    assert seen == [100], seen


# ------------------------------------------------------------------------ deadlocks


def abba(right: bool) -> None:
    """Two transfers in opposite directions lock the accounts in opposite orders."""
    locks = {"a": Lock(), "b": Lock()}
    balance = {"a": 100, "b": 100}

    def transfer(source: str, target: str) -> None:
        first, second = sorted((source, target)) if right else (source, target)
        with locks[first]:  # noqa: SIM117 (dining_philosophers has one line)
            with locks[second]:
                balance[source] -= 10
                balance[target] += 10

    together(partial(transfer, "a", "b"), partial(transfer, "b", "a"))


def dining_philosophers(right: bool) -> None:
    """Each of three holds the left fork and waits for the right one."""
    forks = [Lock() for _ in range(3)]

    def eat(seat: int) -> None:
        left, right_one = seat, (seat + 1) % 3
        first, second = sorted((left, right_one)) if right else (left, right_one)
        with forks[first], forks[second]:
            pass

    together(*[partial(eat, seat) for seat in range(3)])


def lost_notify(right: bool) -> None:
    """One looks outside of the lock, and waits for a notification that was before."""
    ready = False
    changed = Condition()

    def consume() -> None:
        if right:
            with changed:
                while not ready:
                    changed.wait()
        elif not ready:
            with changed:
                changed.wait()

    def produce() -> None:
        nonlocal ready
        with changed:
            ready = True
            changed.notify_all()

    together(consume, produce)


def stolen_wakeup(right: bool) -> None:
    """`if` instead of `while` around wait(): a third was quicker to the item."""
    items: list[int] = []
    filled = Condition()

    def take() -> None:
        with filled:
            if right:
                while not items:
                    filled.wait()
            elif not items:
                filled.wait()
            items.pop()

    def put(item: int) -> None:
        with filled:
            items.append(item)
            filled.notify()

    together(take, take, partial(put, 1), partial(put, 2))


def upgraded_by_two(right: bool) -> None:
    """Two readers of a lock wait for each other to be the writer."""

    class ReadWriteLock:
        def __init__(self) -> None:
            self.readers = 0
            self.upgrading = False
            self.changed = Condition()

        def read(self) -> None:
            with self.changed:
                self.readers += 1

        def upgrade(self) -> bool:
            with self.changed:
                if right and self.upgrading:
                    self.readers -= 1
                    self.changed.notify_all()
                    return False
                self.upgrading = True
                while self.readers > 1:
                    self.changed.wait()
                return True

        def release(self) -> None:
            with self.changed:
                self.readers -= 1
                self.upgrading = False
                self.changed.notify_all()

    lock = ReadWriteLock()

    def update() -> None:
        lock.read()
        if lock.upgrade():
            lock.release()

    together(update, update)


def event_cleared_late(right: bool) -> None:
    """A wake-up that comes between the look at the work and clear() is lost."""
    work: list[str] = []
    done: list[str] = []
    there = Event()
    lock = Lock()

    def take_all() -> None:
        with lock:
            done.extend(work)
            work.clear()

    def consume() -> None:
        while len(done) < 2:
            there.wait()
            if right:
                there.clear()
            take_all()
            if not right:
                there.clear()

    def produce(item: str) -> None:
        with lock:
            work.append(item)
        there.set()

    together(consume, partial(produce, "a"), partial(produce, "b"))


def latch_never_opens(right: bool) -> None:
    """Two count a latch down at once, and who waits for it waits for ever."""

    class Latch:
        def __init__(self) -> None:
            self.count = 2
            self.open = Event()
            self.lock = guard(right)

        def count_down(self) -> None:
            with self.lock:
                left = self.count - 1
                self.count = left
            if left == 0:
                self.open.set()

    latch = Latch()
    together(latch.count_down, latch.open.wait, latch.count_down)


def semaphore_leak(right: bool) -> None:
    """A job that fails because of another one does not give its permit back."""
    permits = Semaphore(1)
    config: dict[str, int] | None = {"size": 1}

    def job() -> None:
        permits.acquire()
        try:
            if config is not None:
                assert config["size"] == 1
        except TypeError:
            if not right:
                return
        permits.release()

    def reload() -> None:
        nonlocal config
        config = None
        config = {"size": 1}

    together(job, reload, job)


# -------------------------------------------------------------------------- shutdown


def submitted_after_shutdown(right: bool) -> None:
    """A pool takes a job after its worker was told to end, and nobody ever does it."""

    class Pool:
        def __init__(self) -> None:
            self.jobs: Queue[Callable[[], object] | None] = Queue()
            self.closed = False
            self.lock = guard(right)
            self.worker = Thread(target=self.work)
            self.worker.start()

        def submit(self, job: Callable[[], object]) -> bool:
            with self.lock:
                if self.closed:
                    return False
                self.jobs.put(job)
                return True

        def shutdown(self) -> None:
            with self.lock:
                self.closed = True
                self.jobs.put(None)

        def work(self) -> None:
            while (job := self.jobs.get()) is not None:
                job()

    pool, done = Pool(), list[int]()
    accepted: list[bool] = []
    together(lambda: accepted.append(pool.submit(lambda: done.append(1))), pool.shutdown)
    pool.worker.join()
    assert len(done) == sum(accepted), "a job that was accepted was not done"


def closed_while_used(right: bool) -> None:
    """A connection is open when one looks, and closed when one sends."""

    class Connection:
        def __init__(self) -> None:
            self.buffer: list[bytes] | None = []
            self.lock = guard(right)

        def send(self, data: bytes) -> None:
            with self.lock:
                if self.buffer is not None:
                    self.buffer.append(data)

        def close(self) -> None:
            with self.lock:
                self.buffer = None

    connection = Connection()
    together(partial(connection.send, b"x"), connection.close)


def lost_callback(right: bool) -> None:
    """A callback is added to a future that has just run its callbacks."""

    class Future:
        def __init__(self) -> None:
            self.done = False
            self.callbacks: list[Callable[[], object]] = []
            self.lock = guard(right)

        def add(self, callback: Callable[[], object]) -> None:
            with self.lock:
                if not self.done:
                    self.callbacks.append(callback)
                    return
            callback()

        def finish(self) -> None:
            with self.lock:
                self.done = True
                callbacks = self.callbacks
            for callback in list(callbacks):
                callback()

    future, called = Future(), list[int]()
    together(lambda: future.add(lambda: called.append(1)), future.finish)
    assert called == [1], called


def counted_in_the_thread(right: bool) -> None:
    """A worker counts itself, so who waits for none to be left may come before it does."""

    class Group:
        def __init__(self) -> None:
            self.active = 0
            self.idle = Condition()
            self.done: list[int] = []

        def start(self) -> Thread:
            if right:
                self.count(1)
            thread = Thread(target=self.work)
            thread.start()
            return thread

        def count(self, number: int) -> None:
            with self.idle:
                self.active += number
                self.idle.notify_all()

        def work(self) -> None:
            if not right:
                self.count(1)
            self.done.append(1)
            self.count(-1)

        def wait(self) -> None:
            with self.idle:
                while self.active > 0:
                    self.idle.wait()

    group = Group()
    thread = group.start()
    group.wait()
    assert group.done == [1], "not waited for"
    thread.join()


def fired_after_cancel(right: bool) -> None:
    """A timer looks whether it is cancelled, and fires after cancel() has returned."""

    class Timer:
        def __init__(self) -> None:
            self.cancelled = False
            self.fired = False
            self.lock = guard(right)

        def run(self) -> None:
            with self.lock:
                if not self.cancelled:
                    self.fired = True

        def cancel(self) -> bool:
            with self.lock:
                self.cancelled = True
                return self.fired

    timer = Timer()
    seen: list[bool] = []
    together(timer.run, lambda: seen.append(timer.cancel()))
    assert seen == [timer.fired], "fired after cancel() had said no"


TEXTBOOK: dict[str, Callable[[bool], None]] = {
    race.__name__: race
    for race in (
        lost_update,
        check_then_act,
        same_number_twice,
        lost_insertion,
        aba,
        double_checked_locking,
        published_too_early,
        two_singletons,
        started_twice,
        cache_stampede,
        changed_during_iteration,
        popped_when_empty,
        evicted_while_used,
        torn_pair,
        abba,
        dining_philosophers,
        lost_notify,
        stolen_wakeup,
        upgraded_by_two,
        event_cleared_late,
        latch_never_opens,
        semaphore_leak,
        submitted_after_shutdown,
        closed_while_used,
        lost_callback,
        counted_in_the_thread,
        fired_after_cancel,
    )
}


def schedules_needed(race: Callable[[bool], None], switch: str, seed: int) -> int | None:
    """How many schedules until the broken version fails; None if 1,000 do not suffice.

    As explore(), but without the report.
    """
    program = Program(
        partial(race, False), threads="simulated", switch=switch, clock=VirtualClock()
    )
    with Runner(program) as runner:
        search = Search(runner, how_to(program, 1000, None, seed, 3, 2))
        for attempt in search.tried():
            if attempt.failure is not None:
                return search.number
    return None


def main() -> None:
    """Print the table of docs/races.md."""
    print("| race | line | access | gil |")
    print("|---|---:|---:|---:|")
    for name, race in TEXTBOOK.items():
        cells = []
        for switch in ("line", "access", "gil"):
            needed = [schedules_needed(race, switch, seed) or 1001 for seed in range(20)]
            middle = median(needed)
            cells.append("-" if middle > 1000 else f"{middle:.0f} ({max(needed)})")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
