"""Fibers of several schedulers and plain threads that use the same primitives at once.

A program is some games. Each has actors, which do random calls in fibers of two to eight threads
or on threads of their own, and knows what must hold afterwards: nobody was inside with another,
each item came out once and in its producer's order, what was counted adds up, and all actors come
to their end. When which of them runs is the machine's choice; the clock only tells a hang.
"""

from __future__ import annotations

import faulthandler
import gc
import queue
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyfiber
from pyfiber import Cancelled, ChannelClosed, _engine

from .program import Program

#: Seconds that a program may take; it takes some hundredths of one.
PATIENCE = 40
SHORT = 0.0005

Actor = Callable[[random.Random], None]


def in_a_run() -> bool:
    return _engine._running_scheduler() is not None


def pause(chance: random.Random) -> None:
    """Let others run, for a while or not at all."""
    choice = chance.randrange(8)
    if choice == 0 and in_a_run():
        pyfiber.yield_now()
    elif choice == 1:
        (pyfiber.sleep if in_a_run() else time.sleep)(chance.random() * SHORT)
    elif choice == 2:
        for _ in range(chance.randrange(300)):
            pass


class Tally:
    """A number that threads add to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.number = self.most = 0

    def add(self, change: int) -> int:
        with self.lock:
            self.number += change
            self.most = max(self.most, self.number)
            return self.number


class Game:
    """Some primitives, who uses them, and what holds then."""

    #: May its actors run on plain threads?
    PLAIN = True

    def __init__(self, chance: random.Random) -> None:
        self.rounds = chance.choice((3, 20, 100))
        self.wrong: list[str] = []

    def actors(self, count: int) -> Sequence[Actor]:
        """So many, or a few more."""
        raise NotImplementedError

    def victims(self) -> Sequence[Actor]:
        """Others in fibers that may be cancelled at any time."""
        return []

    def check(self) -> None:
        """When all have come to their end."""

    def must(self, holds: object, text: str) -> None:
        if not holds:
            self.wrong.append(f"{type(self).__name__}: {text}")


class Exclusion(Game):
    """No more are inside than may be."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.places = chance.choice((1, 1, 2, 3))
        kinds: list[Callable[[], Any]] = [pyfiber.Lock, pyfiber.RLock, pyfiber.Condition]
        semaphores = (pyfiber.Semaphore, pyfiber.BoundedSemaphore)
        kinds = kinds * (self.places == 1) + [partial(s, self.places) for s in semaphores]
        self.lock = chance.choice(kinds)()
        self.inside, self.taken = Tally(), Tally()
        self.plain = 0  # without a lock of its own, where one at most is inside

    def take(self, chance: random.Random) -> bool:
        choice = chance.randrange(4)
        if choice == 0:
            return bool(self.lock.acquire(timeout=SHORT))
        if choice == 1:
            return bool(self.lock.acquire(blocking=False))
        if choice == 2 and hasattr(self.lock, "acquiring"):
            return pyfiber.select(self.lock.acquiring(), timeout=1) is not None
        return bool(self.lock.acquire())

    def act(self, chance: random.Random) -> None:
        for _ in range(self.rounds):
            pause(chance)
            if self.take(chance):
                try:
                    self.use(chance)
                finally:
                    self.lock.release()

    def use(self, chance: random.Random) -> None:
        self.must(self.inside.add(1) <= self.places, "too many are inside")
        before = self.plain
        try:
            pause(chance)
        finally:
            if self.places == 1:
                self.must(self.plain == before, "somebody else was inside")
                self.plain = before + 1
            self.taken.add(1)
            self.inside.add(-1)

    def actors(self, count: int) -> Sequence[Actor]:
        return [self.act] * count

    def victims(self) -> Sequence[Actor]:
        return [self.act] * 2

    def check(self) -> None:
        self.must(self.places > 1 or self.plain == self.taken.number, "counts differ")
        for _ in range(self.places):
            self.must(self.lock.acquire(blocking=False), "it is not free afterwards")
        self.must(self.places == 1 or not self.lock.acquire(blocking=False), "it is free too often")


class Items(Game):
    """What is put into one of two places comes out once, and what one puts in its order."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        size = chance.randrange(4)
        queues: list[Any] = [pyfiber.Queue, pyfiber.LifoQueue, pyfiber.PriorityQueue]
        self.kind = chance.choice([pyfiber.Channel, pyfiber.Channel, *queues])
        self.pipes: list[Any] = [self.kind(size), self.kind(size)]
        self.put: list[tuple[int, int]] = []
        self.got: list[tuple[int, int, int]] = []  # and the consumer
        self.numbers, self.producing = Tally(), Tally()

    def try_put(self, chance: random.Random, item: tuple[int, int]) -> bool:
        """With a time limit or none. Each producer keeps to one pipe, which keeps its order."""
        pipe = self.pipes[item[0] % 2]
        channel = isinstance(pipe, pyfiber.Channel)
        choice = chance.randrange(4)
        limit = SHORT if choice == 0 else None
        try:
            if choice == 1:
                case = pipe.sending(item) if channel else pipe.putting(item)
                return pyfiber.select(case, timeout=chance.choice((SHORT, None))) is not None
            if channel:
                pipe.send(item, timeout=limit)
            else:
                pipe.put(item, timeout=limit)
        except (TimeoutError, queue.Full):
            return False
        return True

    def try_get(self, chance: random.Random) -> tuple[int, int] | None:
        choice = chance.randrange(3)
        cases = [p.receiving() if hasattr(p, "receiving") else p.getting() for p in self.pipes]
        if choice == 0:
            done = pyfiber.select(*cases, timeout=chance.choice((SHORT, None)))
            return None if done is None else done[1]
        pipe = chance.choice(self.pipes)
        try:
            if isinstance(pipe, pyfiber.Channel):
                item = pipe.receive(timeout=SHORT)
            else:
                item = pipe.get(timeout=SHORT) if choice == 1 else pipe.get_nowait()
        except (TimeoutError, queue.Empty):
            pause(chance)
            return None
        return (item[0], item[1])

    def produce(self, chance: random.Random) -> None:
        me = self.numbers.add(1)
        for number in range(self.rounds):
            pause(chance)
            while not self.try_put(chance, (me, number)):
                pass
            self.put.append((me, number))

    def last_produce(self, chance: random.Random) -> None:
        """Whoever is last shuts the pipes: then the consumers end when these are empty."""
        self.produce(chance)
        if self.producing.add(-1) == 0:
            for pipe in self.pipes:
                pipe.close() if isinstance(pipe, pyfiber.Channel) else pipe.shutdown()

    def consume(self, chance: random.Random) -> None:
        me = self.numbers.add(1)
        shut: set[int] = set()
        while len(shut) < 2:
            pause(chance)
            try:
                item = self.try_get(chance)
            except (ChannelClosed, pyfiber.ShutDown):
                shut = {id(p) for p in self.pipes if self.is_over(p)}
                continue
            if item is not None:
                self.got.append((*item, me))

    def is_over(self, pipe: Any) -> bool:
        """It is shut, and empty: no more can come."""
        try:
            get = pipe.receiving() if hasattr(pipe, "receiving") else pipe.getting()
            done = pyfiber.select(get, timeout=0)
        except (ChannelClosed, pyfiber.ShutDown):
            return True
        if done is not None:
            self.got.append((*done[1], 0))
        return False

    def actors(self, count: int) -> Sequence[Actor]:
        half = max(1, count // 2)
        self.producing.add(half)
        return [self.last_produce] * half + [self.consume] * max(1, count - half)

    def victims(self) -> Sequence[Actor]:
        return [self.consume, self.consume]

    def check(self) -> None:
        items = [item[:2] for item in self.got]
        self.must(sorted(items) == sorted(self.put), f"{len(self.put)} put, {len(items)} got")
        if self.kind in (pyfiber.LifoQueue, pyfiber.PriorityQueue):
            return
        seen: dict[tuple[int, int], int] = {}
        for producer, number, consumer in self.got:
            if consumer != 0:
                last = seen.get((producer, consumer), -1)
                self.must(last < number, "items of one producer come out of order")
                seen[producer, consumer] = number


class Buffer(Game):
    """A buffer made of a condition: notify() reaches somebody, wait_for() tells the truth."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.condition = pyfiber.Condition(chance.choice((None, pyfiber.Lock(), pyfiber.RLock())))
        self.items: list[int] = []
        self.got = Tally()
        self.due = 0

    def produce(self, chance: random.Random) -> None:
        for number in range(self.rounds):
            pause(chance)
            with self.condition:
                self.items.append(number)
                if chance.random() < 0.3:
                    self.condition.notify_all()
                else:
                    self.condition.notify()

    def consume(self, chance: random.Random) -> None:
        for _ in range(self.rounds):
            pause(chance)
            with self.condition:
                while not self.items:
                    self.condition.wait(chance.choice((None, None, SHORT)))
                self.items.pop()
                self.got.add(1)

    def wait_vainly(self, chance: random.Random) -> None:
        """It takes nothing, so it passes on what reaches it."""
        for _ in range(self.rounds):
            with self.condition:
                if self.condition.wait(SHORT):
                    self.condition.notify()

    def actors(self, count: int) -> Sequence[Actor]:
        half = max(1, count // 2)
        self.due = half * self.rounds
        return [self.produce] * half + [self.consume] * half + [self.wait_vainly]

    def check(self) -> None:
        self.must(self.got.number == self.due and not self.items, "items are left")


class Signals(Game):
    """Whoever waits for an event, a future, a barrier or unpark() is woken."""

    PLAIN = False  # park() needs a run

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.events = [pyfiber.Event() for _ in range(self.rounds)]
        self.futures: list[Future[int]] = [Future() for _ in range(self.rounds)]
        self.parked: list[Any] = []
        self.calls, self.due = Tally(), 0
        self.barrier: Any = None
        self.met = Tally()

    def wait(self, chance: random.Random) -> None:
        for number, (event, future) in enumerate(zip(self.events, self.futures, strict=True)):
            pause(chance)
            if chance.random() < 0.4:
                pyfiber.select(event.waiting())
            else:
                while not event.wait(chance.choice((None, SHORT))):
                    pass
            self.must(event.is_set(), "an event that is not set has ended a wait")
            self.must(pyfiber.await_future(future) == number, "a future has another's result")

    def signal(self, chance: random.Random) -> None:
        for number in chance.sample(range(self.rounds), self.rounds):
            pause(chance)
            self.events[number].set()
            pause(chance)
            self.futures[number].set_result(number)

    def park(self, chance: random.Random) -> None:
        """Each call is counted before it wakes: so the last one cannot be missed."""
        self.parked.append(pyfiber.current())
        while self.calls.number < self.due:
            pyfiber.park()

    def unpark(self, chance: random.Random) -> None:
        while not self.parked:
            pyfiber.sleep(SHORT)
        for _ in range(self.rounds):
            pause(chance)
            self.calls.add(1)
            try:
                self.parked[0].unpark()
            except pyfiber.FiberError:
                self.must(self.calls.number >= self.due, "the fiber has ended too early")

    def meet(self, chance: random.Random) -> None:
        for number in range(self.rounds):
            pause(chance)
            self.met.add(1)
            self.barrier.wait()
            enough = self.met.number >= (number + 1) * self.barrier.parties
            self.must(enough, "a barrier opens before all are there")

    def actors(self, count: int) -> Sequence[Actor]:
        self.due = 2 * self.rounds
        self.barrier = pyfiber.Barrier(count)
        return [
            *[self.wait] * count,
            *[self.meet] * count,
            self.signal,
            self.park,
            self.unpark,
            self.unpark,
        ]

    def wait_for_ever(self, chance: random.Random) -> None:
        cases: list[Any] = [pyfiber.Channel().receiving(), pyfiber.Queue().getting()]
        future: Future[None] = Future()
        ways = (
            *(pyfiber.park, pyfiber.Event().wait, partial(pyfiber.select, *cases)),
            partial(pyfiber.await_future, future),
        )
        chance.choice(ways)()

    def victims(self) -> Sequence[Actor]:
        return [self.wait_for_ever] * 3


class Threads(Game):
    """Functions in threads, few at a time, and back."""

    PLAIN = False

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.places = chance.choice((1, 2, 3))
        self.limiter = pyfiber.threads.ThreadLimiter(self.places)
        self.one = pyfiber.threads.OneThread()
        self.inside, self.calls, self.done = Tally(), Tally(), Tally()

    def work(self, number: int, back: bool) -> int:
        self.must(self.inside.add(1) <= self.places, "too many threads work")
        try:
            self.calls.add(1)
            if back:
                self.must(pyfiber.from_thread(abs, -number) == number, "a call back went wrong")
            return number
        finally:
            self.inside.add(-1)

    def act(self, chance: random.Random) -> None:
        for number in range(1, self.rounds + 1):
            pause(chance)
            if chance.random() < 0.3:
                self.must(self.one.run(abs, -number) == number, "another call's result")
                continue
            back = chance.random() < 0.3
            result = self.limiter.to_thread(self.work, number, back)
            self.must(result == number, "another call's result")
            self.done.add(1)

    def actors(self, count: int) -> Sequence[Actor]:
        return [self.act] * count

    def victims(self) -> Sequence[Actor]:
        return [self.act] * 2

    def check(self) -> None:
        self.one.close()
        self.must(self.inside.number == 0, "a call is still inside")
        self.must(self.done.number <= self.calls.number, "a call was never made")
        self.must(self.limiter.borrowed_tokens == self.limiter.waiting == 0, "tokens are lost")


class Kind(Program):
    """Some games at once."""

    GAMES = (Exclusion, Exclusion, Items, Items, Items, Buffer, Signals, Threads)

    def play(self) -> None:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(self.random.choice((0.005, 0.0001, 0.00001)))
        try:
            self.play_games()
        finally:
            sys.setswitchinterval(interval)

    def play_games(self) -> None:
        kinds = self.random.sample(self.GAMES, min(self.fuel, self.random.choice((1, 1, 2, 3))))
        games = [kind(self.chance()) for kind in kinds]
        runs: list[list[tuple[Actor, bool]]] = [[] for _ in range(self.random.randrange(2, 9))]
        bodies: list[Callable[[], None]] = []
        self.unfinished: dict[int, str] = {}
        self.targets: list[Any] = []
        for game in games:
            for actor in game.actors(self.random.randrange(2, 7)):
                if game.PLAIN and self.random.random() < 0.25:
                    bodies.append(self.guarded(actor, False))
                else:
                    self.random.choice(runs).append((actor, False))
            for actor in game.victims() if self.random.random() < 0.6 else ():
                self.random.choice(runs).append((actor, True))
        bodies += [partial(self.scheduler, run) for run in runs if run]
        self.over = threading.Event()
        stirring = threading.Thread(target=self.stir, args=(self.chance(),), daemon=True)
        if self.finish(bodies, stirring):
            for game in games:
                game.check()
        for game in games:
            for text in game.wrong:
                self.found(text)
        self.targets.clear()

    def chance(self) -> random.Random:
        return random.Random(self.random.random())

    def guarded(self, actor: Actor, victim: bool) -> Callable[[], None]:
        """To be called on a thread or in a fiber, at any time."""
        chance = self.chance()

        def act() -> None:
            self.unfinished[id(act)] = getattr(actor, "__qualname__", "?")
            try:
                if victim:
                    self.targets.append(pyfiber.current())
                actor(chance)
            except Cancelled:
                if not victim:
                    self.found(f"{self.unfinished[id(act)]} was cancelled")
            except BaseException as error:
                self.judge(self.unfinished[id(act)], error)
            finally:
                del self.unfinished[id(act)]

        return act

    def scheduler(self, run: list[tuple[Actor, bool]]) -> None:
        def main() -> None:
            for act in acts:
                fibers.append(pyfiber.spawn(act))
            for fiber in fibers:
                fiber.join()

        acts = [self.guarded(actor, victim) for actor, victim in run]
        fibers: list[Any] = []
        try:
            pyfiber.run(main)
        except BaseException as error:
            self.judge("run", error)
        fibers.clear()

    def stir(self, chance: random.Random) -> None:
        """From outside: cancel, collect; and in the end all that are to be cancelled."""
        while self.unfinished or not self.over.is_set():
            if (self.targets and chance.random() < 0.2) or self.over.wait(SHORT):
                for target in chance.sample([*self.targets], min(2, len(self.targets))):
                    target.cancel("at random")
            if chance.random() < 0.02:
                gc.collect()

    def finish(self, bodies: list[Callable[[], None]], stirring: threading.Thread) -> bool:
        threads = [threading.Thread(target=body, daemon=True) for body in bodies]
        self.random.shuffle(threads)
        end = time.monotonic() + PATIENCE
        for thread in [*threads, stirring]:
            thread.start()
        for thread in threads:
            thread.join(max(0, end - time.monotonic()))
        hang = any(thread.is_alive() for thread in threads)
        self.over.set()
        if hang:
            faulthandler.dump_traceback(all_threads=True)
            self.found(f"hangs: {sorted(self.unfinished.values())}")
        else:
            stirring.join()
        return not hang
