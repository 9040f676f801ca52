"""Schedulers for embedders: run_once, callbacks from other threads, stop, close, parts of a run."""

from __future__ import annotations

import contextlib
from typing import Any

import pyfiber
from pyfiber import FiberError, Scheduler, _engine
from pyfiber.testing import VirtualClock

from .program import acts
from .scheduled import ScheduledActs


class Subclass(Scheduler):
    """Has a finalizer."""

    program: Any = None

    def __del__(self) -> None:
        if self.program is not None:
            self.program.betray("Scheduler.__del__")


class LoopActs(ScheduledActs):
    """Several schedulers on one thread, driven in parts."""

    ACTS = acts(
        "new_scheduler 8, run_once 16, run_one 8, spawn_on 12, soon 8, stop 3, close 3,"
        "look_at_loop 5, soon_from_thread 3, move_clock 4, settle_clock 2, stack_size 2,"
        "callback_on_end 4, outcome 4"
    )
    EXPECTED = (RuntimeError,)

    def main(self) -> None:
        if self.random.random() < 0.3:
            self.run()
        else:
            self.step()

    def new_scheduler(self) -> Any:
        """One, with a clock of its own at times."""
        scheduler = self.call("Scheduler", self.random.choice((Scheduler, Scheduler, Subclass)))
        if scheduler is None:
            return None
        if isinstance(scheduler, Subclass):
            scheduler.program = self
        if self.random.random() < 0.5:
            clock = self.keep("clock", VirtualClock(threads=True))
            self.call("attach", clock.attach, scheduler)
        return self.keep("scheduler", scheduler)

    def scheduler(self) -> Any:
        """Any, the running one as well."""
        running = _engine._running_scheduler()
        if running is not None and self.random.random() < 0.3:
            return running
        return self.any("scheduler") or self.new_scheduler() or Scheduler()

    def run_once(self) -> None:
        scheduler = self.scheduler()
        self.call(f"{self.name(scheduler)}.run_once", scheduler.run_once, self.maybe(0.001))

    def run_one(self) -> None:
        scheduler = self.scheduler()
        main = self.bounded(self.target())
        self.call(f"{self.name(scheduler)}.run", scheduler.run, main)

    def spawn_on(self) -> None:
        scheduler = self.scheduler()
        fiber = self.call(f"{self.name(scheduler)}.spawn", scheduler.spawn, self.target())
        if fiber is not None:
            self.keep("fiber", fiber)

    def soon(self) -> None:
        scheduler = self.scheduler()
        label = f"{self.name(scheduler)}.call_soon_threadsafe"
        self.call(label, scheduler.call_soon_threadsafe, self.target(), *self.few_values())

    def soon_from_thread(self) -> None:
        """Callbacks and wake-ups from another thread."""
        scheduler, fiber = self.scheduler(), self.fiber()

        def post() -> None:
            scheduler.call_soon_threadsafe(self.body())
            fiber.unpark(1)
            fiber.cancel("elsewhere")

        self.call("thread", self.in_thread, post)

    def stop(self) -> None:
        scheduler = self.scheduler()
        self.call(f"{self.name(scheduler)}.stop", scheduler.stop)

    def close(self) -> None:
        scheduler = self.scheduler()
        self.call(f"{self.name(scheduler)}.close", scheduler.close)

    def look_at_loop(self) -> None:
        scheduler = self.scheduler()
        for name in ("next_timeout", "fileno", "stats", "fibers"):
            if self.random.random() < 0.4:
                self.call(f"{self.name(scheduler)}.{name}", getattr(scheduler, name))

    def move_clock(self) -> None:
        if (clock := self.any("clock")) is not None:
            act = self.random.choice((clock.advance, clock.spend))
            self.call(f"{self.name(clock)}.{act.__name__}", act, self.maybe(0.001))

    def settle_clock(self) -> None:
        if (clock := self.any("clock")) is not None:
            act = self.random.choice((clock.run_until_idle, clock.now, clock.detach))
            self.call(f"{self.name(clock)}.{act.__name__}", act)

    def stack_size(self) -> None:
        size = self.random.choice((1 << 18, pyfiber.stack_size(), -1))
        before = pyfiber.stack_size()
        self.call("stack_size", pyfiber.stack_size, self.maybe(size))
        pyfiber.stack_size(before)

    def callback_on_end(self) -> None:
        fiber = self.fiber()
        self.call("add_done_callback", fiber.add_done_callback, lambda _: self.betray("done"))

    def outcome(self) -> None:
        fiber = self.fiber()
        self.call(f"{self.name(fiber)}.outcome", lambda: (fiber.outcome, fiber.cancelled()))

    def end(self) -> None:
        self.leave_run()
        schedulers = [ghost() for ghost in self.ghosts.get("scheduler", ())]
        for scheduler in filter(None, schedulers):
            with contextlib.suppress(FiberError):  # it is closed
                self.finish(scheduler)
        super().end()

    def finish(self, scheduler: Scheduler) -> None:
        """A scheduler holds its fibers until they have ended."""
        for _ in range(50):
            fibers = scheduler.fibers()
            if not fibers:
                break
            for fiber in fibers:
                with contextlib.suppress(FiberError):  # a raw one that waits: close() ends it
                    fiber.cancel("the end")
            del fiber, fibers
            try:
                scheduler.run_once(0.01)
            except BaseException as error:
                self.judge("the last run_once", error)
        scheduler.close()


class Kind(LoopActs):
    """All of them."""
