"""What all kinds share that need a scheduler: runs, and what their fibers do to each other."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable
from typing import Any

import pyfiber
from pyfiber import _engine
from pyfiber.testing import VirtualClock

from .generators import GeneratorActs
from .program import acts

#: Looked up on the type: a subclass's attributes may do something when they are looked at.
DAEMON = pyfiber.Fiber.daemon.__get__
SET_PARENT = pyfiber.Fiber.parent.__set__
LATE_SECONDS = 3


class Late(SystemExit):
    """Ends a run."""


def end_late() -> None:
    """End the run if it has nothing else to do for long. A stop() would not: whoever was left by a
    direct switch does not hear of it.
    """
    pyfiber.sleep(LATE_SECONDS)
    raise Late


class ScheduledActs(GeneratorActs):
    """Runs of schedulers, and their fibers beside raw ones."""

    ACTS = acts(
        "spawn 14, spawn_now 4, start 5, pause 14, await_fiber 8, cancel 5, unpark 6, park 5,"
        "nested_run 2, count 3, look_around 2, select_fibers 2,"
        "new 6, switch 8, throw 3, to_parent 2, reparent 3, again 2"
    )
    EXPECTED = (
        *(pyfiber.Cancelled, pyfiber.FiberCancelled, pyfiber.DeadlockError, TimeoutError, Late),
        BaseExceptionGroup,  # of what nobody handled
    )
    FATES = (pyfiber.Cancelled,)
    #: Beside another thread, which could wake somebody, no deadlock would be noticed.
    ANY_THREAD = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.thread = threading.get_ident()

    def main(self) -> None:
        if self.random.random() < 0.3:
            self.step()
        else:
            self.run()

    # ------------------------------------------------------------------ runs

    def run(self) -> None:
        """One run, of whatever sort."""
        sort = self.random.choice((self.plain_run, self.virtual_run, self.virtual_run))
        sort(self.main_body())
        if self.random.random() < 0.5:
            self.forget()

    def plain_run(self, body: Callable[[], Any]) -> None:
        self.call("run", pyfiber.run, self.bounded(body), **self.unhandled())

    def unhandled(self) -> dict[str, Any]:
        """What becomes of failures that nobody looks at."""
        if self.random.random() < 0.6:
            return {}

        def hear(fiber: Any, error: BaseException) -> None:
            self.betray("on_unhandled")

        return {"on_unhandled": self.maybe(self.random.choice(("log", "raise", hear)))}

    def virtual_run(self, body: Callable[[], Any]) -> None:
        """Time stands still while something can run."""
        scheduler = self.call("Scheduler", pyfiber.Scheduler, **self.unhandled())
        if scheduler is None:
            return
        self.keep("scheduler", scheduler)
        clock = VirtualClock(threads=True)
        try:
            self.call("attach", clock.attach, scheduler)
            self.call("Scheduler.run", scheduler.run, self.bounded(body))
        finally:
            with contextlib.suppress(pyfiber.FiberError):
                clock.detach()
            self.call("close", scheduler.close)

    def main_body(self) -> Callable[[], Any]:
        """What the main fiber of a run does: start some, then as they do."""

        def main() -> Any:
            for _ in range(self.random.randrange(1, 4)):
                self.spawn()
            for _ in range(self.random.randrange(2, 8)):
                self.step()
            return self.value()

        return main

    def nested_run(self) -> None:
        if _engine._running_scheduler() is not None or self.random.random() < 0.2:
            self.call("run inside", pyfiber.run, self.bounded(self.body()))

    def bounded(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """The main function of a run. On another thread a run whose fibers were all left by direct
        switches, which nothing leads back to, would wait for ever: the main thread might have a
        call for it.
        """
        if threading.get_ident() == self.thread:
            return body

        def main() -> Any:
            pyfiber.Fiber(end_late, daemon=True).start()
            return body()

        return main

    # ----------------------------------------------------------------- waiting

    def forever(self) -> bool:
        """May something wait without a limit here? Only where a deadlock is noticed."""
        return threading.get_ident() == self.thread and _engine._running_scheduler() is not None

    def limit(self) -> Any:
        """A timeout: none, some or an evil one, whose __float__ may even leave the run."""
        if self.random.random() < self.malice:
            return self.evil()
        return None if self.forever() and self.random.random() < 0.4 else self.seconds()

    def seconds(self) -> Any:
        if self.random.random() < 0.6:
            return self.random.choice((0, 0.0001, 0.001, 0.002))
        return super().seconds()

    def pause(self) -> None:
        act = self.random.choice(("yield", "yield", "sleep", "sleep_until", "check"))
        if act == "yield":
            self.call("yield_now", pyfiber.yield_now)
        elif act == "sleep":
            self.call("sleep", pyfiber.sleep, self.maybe(self.seconds()))
        elif act == "sleep_until":
            self.call("sleep_until", lambda: pyfiber.sleep_until(pyfiber.now() + 0.001))
        else:
            self.call("check_cancelled", pyfiber.check_cancelled)

    def park(self) -> None:
        self.call("park", pyfiber.park, self.limit())

    def unpark(self) -> None:
        fiber = self.fiber()
        self.call(f"{self.name(fiber)}.unpark", fiber.unpark, self.value())

    def await_fiber(self) -> None:
        fiber = self.fiber()
        name = self.random.choice(("join", "join", "result", "exception"))
        self.call(f"{self.name(fiber)}.{name}", getattr(fiber, name), self.limit())

    def select_fibers(self) -> None:
        cases = [self.fiber() for _ in range(self.random.randrange(1, 3))]
        self.call("select", pyfiber.select, *cases, timeout=self.maybe(self.seconds()))

    # ----------------------------------------------------------- making, ending

    def spawn(self) -> None:
        fiber = self.call("spawn", pyfiber.spawn, self.target(), *self.few_values())
        if fiber is not None:
            self.keep("fiber", fiber)

    def spawn_now(self) -> None:
        fiber = self.call("spawn_now", pyfiber.spawn_now, self.target(), *self.few_values())
        if fiber is not None:
            self.keep("fiber", fiber)

    def few_values(self) -> list[Any]:
        return [self.value() for _ in range(self.random.choice((0, 0, 1)))]

    def start(self) -> None:
        fiber = self.fiber()
        self.call(f"{self.name(fiber)}.start", fiber.start)

    def cancel(self) -> None:
        fiber = self.fiber()
        self.call(f"{self.name(fiber)}.cancel", fiber.cancel, self.value())

    # ---------------------------------------------------------------- looking

    def count(self) -> None:
        """A scheduler's counters are those of its fibers; raw ones that wait are listed only."""
        scheduler = _engine._running_scheduler()
        if scheduler is None:
            return
        doubts = self.doubts
        before, fibers = scheduler.stats(), scheduler.fibers()
        own = [fiber for fiber in fibers if self.is_scheduled(fiber)]
        counts = {"fibers": len(own), "foreground": len([f for f in own if not DAEMON(f)])}
        stats = scheduler.stats()
        if stats != before or self.doubts != doubts:
            return  # the collector or a trace function did something in between, or raised
        for what, number in counts.items():
            if stats[what] != number:
                self.found(f"{number} {what}, but {stats}")

    @staticmethod
    def is_scheduled(fiber: Any) -> bool:
        """A raw fiber may be without a parent, too: a generator's is while nobody pulls. But it
        may be given one; itself is none that it would take.
        """
        try:
            SET_PARENT(fiber, fiber)
        except (pyfiber.FiberError, ValueError) as error:
            return "a fiber of a scheduler has no parent" in str(error)
        raise AssertionError("a fiber is its own parent")

    def look_around(self) -> None:
        acts = [_engine._threads, pyfiber.current_deadline, pyfiber.debug.info, pyfiber.now]
        acts += [pyfiber.current_scheduler, self.dump]
        act = self.random.choice(acts)
        self.call(act.__name__, act)

    @staticmethod
    def dump() -> None:
        pyfiber.debug.dump_fibers(io.StringIO())

    def end(self) -> None:
        self.leave_run()
        super().end()

    def leave_run(self) -> None:
        """A raw fiber that a run's fiber has switched to may have ended past that run's loop, here:
        let the loop go on and end.
        """
        for _ in range(20):
            scheduler = _engine._running_scheduler()
            if scheduler is None:
                break
            try:
                scheduler.stop()
                pyfiber.park()
            except BaseException as error:
                self.judge("the last park", error)


class Kind(ScheduledActs):
    """Scheduled fibers without more."""
