"""Fibers of several runs and plain threads over threading's and queue's classes, patched.

A lock has one holder, nothing is lost in a queue or twice in it, a semaphore ends as it began, and
nobody waits on, whoever was cancelled, timed out or unwound. When a thread comes back depends on
the machine: what is judged holds whatever the order.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyfiber
from pyfiber import _engine

from .program import JOIN_SECONDS, Program, Unfinished

SLOTS = 2  # of the semaphore


class Guarded:
    """A lock, and who is inside."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.inside: list[Any] = []


class World:
    """What all workers share."""

    def __init__(self, chance: random.Random) -> None:
        kinds = (threading.Lock, threading.RLock, threading.Condition)
        self.locks = [Guarded(chance.choice(kinds)()) for _ in range(chance.choice((1, 2, 3)))]
        self.condition = threading.Condition(chance.choice(kinds[:2])())
        self.semaphore = threading.Semaphore(SLOTS)
        self.queues: list[Any] = [queue.Queue(2), queue.LifoQueue(), queue.SimpleQueue()]
        self.put: list[list[object]] = [[] for _ in self.queues]
        self.got: list[list[object]] = [[] for _ in self.queues]


class Worker:
    """One fiber or thread: some acts, each whole or not at all."""

    def __init__(self, program: Kind, world: World, rest: Callable[[float], object]) -> None:
        self.program = program
        self.world = world
        self.rest = rest
        self.random = random.Random(program.random.random())
        self.count = program.random.randrange(2, 12)

    def __call__(self) -> None:
        for _ in range(self.count):
            act = self.random.choice(
                (self.hold, self.hold, self.hold, self.put, self.get, self.wait, self.limited)
            )
            with contextlib.suppress(queue.Empty, queue.Full):
                act()

    def seconds(self) -> float:
        return self.random.choice((0, 0.0001, 0.001, 0.004))

    def pause(self) -> None:
        if self.random.random() < 0.6:
            self.rest(self.random.choice((0, 0, 0.0001, 0.001)))

    def hold(self) -> None:
        guarded = self.random.choice(self.world.locks)
        how = self.random.randrange(3)
        if how == 0:
            with guarded.lock:
                self.inside(guarded)
        elif guarded.lock.acquire(timeout=self.seconds() if how == 1 else -1):
            try:
                self.inside(guarded)
            finally:
                guarded.lock.release()

    def inside(self, guarded: Guarded) -> None:
        if guarded.inside:
            self.program.found(f"two hold {type(guarded.lock).__name__}")
        guarded.inside.append(self)
        try:
            self.pause()
            if type(guarded.lock) is not threading.Lock().__class__ and self.random.random() < 0.5:
                with guarded.lock:
                    self.pause()
        finally:
            guarded.inside.remove(self)

    def put(self) -> None:
        at = self.random.randrange(len(self.world.queues))
        item = object()
        self.world.queues[at].put(item, timeout=self.seconds())
        self.world.put[at].append(item)

    def get(self) -> None:
        at = self.random.randrange(len(self.world.queues))
        self.world.got[at].append(self.world.queues[at].get(timeout=self.seconds()))

    def wait(self) -> None:
        with self.world.condition:
            if self.random.random() < 0.5:
                self.world.condition.wait(self.seconds())
            else:
                self.world.condition.notify(self.random.choice((1, 2)))

    def limited(self) -> None:
        if self.world.semaphore.acquire(timeout=self.seconds()):
            try:
                self.pause()
            finally:
                self.world.semaphore.release()


class Kind(Program):
    """A world, and who is in it."""

    ANY_THREAD = False
    EXPECTED = (pyfiber.Cancelled, pyfiber.FiberCancelled)

    def go(self) -> None:
        with pyfiber.patch(time=True, threading=True, queue=True):
            world = World(self.random)
            threads = [threading.Thread(target=self.guard(each)) for each in self.others(world)]
            for thread in threads:
                thread.start()
            (self.run if self.random.random() < 0.6 else self.turns)(self.workers(world))
            for thread in threads:
                thread.join(JOIN_SECONDS)
                if thread.is_alive():
                    raise Unfinished
            self.check(world)
        self.fuel = 0

    def guard(self, function: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            try:
                function()
            except BaseException as error:
                self.judge("thread", error)

        return run

    def others(self, world: World) -> Iterator[Callable[[], object]]:
        """What other threads do."""
        for _ in range(self.random.choice((0, 1, 1, 2))):
            yield Worker(self, world, time.sleep)
        for _ in range(self.random.choice((0, 1, 1))):
            workers = self.workers(world)
            yield lambda workers=workers: self.run(workers)

    def workers(self, world: World) -> list[Worker]:
        count = min(self.random.choice((1, 2, 3, 5, 8)), max(self.fuel, 1))
        return [Worker(self, world, time.sleep) for _ in range(count)]

    def run(self, workers: list[Worker]) -> None:
        """A run of their own; some are cancelled, or given up after a while."""
        chance = random.Random(len(workers) + workers[0].count)

        def limited(worker: Worker) -> None:
            with pyfiber.move_on_after(chance.choice((0.0002, 0.001, 0.005))):
                worker()

        def main() -> None:
            fibers = [
                pyfiber.spawn(*((limited, each) if chance.random() < 0.4 else (each,)))
                for each in workers
            ]
            for _ in fibers:
                pyfiber.sleep(chance.choice((0, 0, 0.0005)))
                if chance.random() < 0.5:
                    chance.choice(fibers).cancel()
            for fiber in fibers:
                with contextlib.suppress(pyfiber.FiberCancelled):
                    fiber.result()

        pyfiber.run(main)

    def turns(self, workers: list[Worker]) -> None:
        """A few turns of a scheduler, which then unwinds who is left."""
        scheduler = pyfiber.Scheduler()
        fibers = [scheduler.spawn(each) for each in workers]
        for _ in range(self.random.randrange(20)):
            scheduler.run_once(self.random.choice((0, 0, 0.0003)))
        scheduler.close()
        for fiber in fibers:
            if fiber.done() and not fiber.cancelled() and (error := fiber.exception()):
                self.judge("a worker in turns", error)

    def check(self, world: World) -> None:
        for guarded in world.locks:
            self.check_free(guarded.lock)
        self.check_free(world.condition)
        for at, each in enumerate(world.queues):
            while not each.empty():
                world.got[at].append(each.get(timeout=0))
            if sorted(map(id, world.got[at])) != sorted(map(id, world.put[at])):
                found = f"{len(world.put[at])} put, {len(world.got[at])} got"
                self.found(f"{type(each).__name__}: {found}")
        if world.semaphore._value != SLOTS:
            self.found(f"the semaphore has {world.semaphore._value} of {SLOTS}")
        if _engine._lot_count():
            self.found(f"{_engine._lot_count()} entries are left in the parking lot")

    def check_free(self, lock: Any) -> None:
        taken: list[bool] = []

        def take() -> None:
            taken.append(lock.acquire(False))
            if taken[0]:
                lock.release()

        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
        if taken != [True]:
            self.found(f"{type(lock).__name__} is not free")
