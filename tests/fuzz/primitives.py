"""What fibers meet in: locks, semaphores, events, conditions, barriers, locals, limiters."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyfiber
from pyfiber import Barrier, BoundedSemaphore, Condition, Event, Lock, RLock, Semaphore
from pyfiber.threads import ThreadLimiter

from .program import acts
from .queues import Makers, QueueActs, Token


class Locked(pyfiber.local):
    """A local whose __init__ does something, for each fiber."""

    def __init__(self, program: Any = None) -> None:
        if program is not None:
            program.betray("local.__init__")


class PrimitiveActs(QueueActs):
    """Random use of everything that fibers meet in."""

    ACTS = acts(
        "acquire 12, release 8, hold 8, sem_release 4, event 6, cond_wait 8, cond_notify 6,"
        "barrier 4, locals 5, limiter 2, init_again 8, peek 4"
    )
    EXPECTED = (RuntimeError, AttributeError, threading.BrokenBarrierError)

    # ----------------------------------------------------------------- making

    def makers(self) -> Makers:
        size = self.random.randrange(3)
        return {
            **super().makers(),
            "lock": [Lock, RLock],
            "sem": [lambda s=s: s(self.maybe(size)) for s in (Semaphore, BoundedSemaphore)],
            "event": [Event],
            "cond": [Condition, lambda: Condition(self.maybe(self.shared_lock()))],
            "barrier": [lambda: Barrier(size + 1, self.maybe(None) and self.body(), 0.001)],
            "local": [pyfiber.local, lambda: Locked(self)],
            "limiter": [lambda: ThreadLimiter(self.maybe(size + 1))],
        }

    def shared_lock(self) -> Any:
        """For a condition, which acquires and releases it in ways of its own."""
        lock = self.any("lock")
        if lock is not None:
            self.ledgers[id(lock)].known = False
        return lock

    def init_again(self) -> None:
        sorts = ("lock", "sem", "event", "cond", "barrier", "queue", "channel", "local")
        sort = self.random.choice(sorts)
        thing = self.get_any(sort)
        if thing is None:
            return
        size = [self.maybe(self.random.randrange(3))]
        arguments = {
            "cond": [self.maybe(self.shared_lock())],
            "barrier": [2],
            "sem": size,
            "queue": size,
            "channel": size,
        }
        self.ledgers[id(thing)].known = False
        label = f"{self.name(thing)}.__init__"
        self.call(label, thing.__init__, *arguments.get(sort, []))

    # ---------------------------------------------------- locks, semaphores, events

    def moved(self, thing: Any, by: int) -> None:
        """A lock or semaphore was acquired or released."""
        self.ledgers[id(thing)].level += by

    def acquire(self) -> None:
        thing = self.get_any(self.random.choice(("lock", "lock", "sem")))
        if thing is None:
            return
        if self.forever() and self.random.random() < 0.4:
            arguments: list[Any] = []
        else:
            arguments = [True, self.maybe(0.001)]
            if self.random.random() < 0.3:
                arguments = [self.maybe(False), *([0.001] if self.malice else [])]
        if self.call(f"{self.name(thing)}.acquire", thing.acquire, *arguments):
            self.moved(thing, -1)

    def release(self) -> None:
        thing = self.get_any("lock")
        if thing is not None and self.call(
            f"{self.name(thing)}.release", self.released, self.let_go, thing, thing.release
        ):
            self.moved(thing, 1)

    def let_go(self, thing: Any, release: Callable[..., Any], *arguments: Any) -> None:
        """Who was given a lock, and is ended before its acquire() returns, may no longer have it:
        then it was released twice, and acquired once as far as anybody has seen."""
        if isinstance(thing, Lock) and thing._holders() != [pyfiber.current()]:
            self.ledgers[id(thing)].known = False
        release(*arguments)

    def sem_release(self) -> None:
        thing = self.get_any("sem")
        if thing is None:
            return
        n = self.random.choice((1, 1, 2))
        count = self.maybe(n)
        if count is not n:
            self.ledgers[id(thing)].known = False
        if self.call(f"{self.name(thing)}.release", self.released, thing.release, count):
            self.moved(thing, n)

    def within(self, thing: Any) -> None:
        thing.__enter__()
        self.moved(thing, -1)
        try:
            for _ in range(self.random.randrange(3)):
                self.step()
        finally:
            self.let_go(thing, thing.__exit__, None, None, None)
            self.moved(thing, 1)

    def hold(self) -> None:
        thing = self.get_any(self.random.choice(("lock", "sem", "cond")))
        if thing is not None and self.forever():
            self.call(f"with {self.name(thing)}", self.within, thing)

    def event(self) -> None:
        event = self.get_any("event")
        if event is None:
            return
        act = self.random.choice(("set", "clear", "wait", "is_set"))
        arguments = [self.limit()] if act == "wait" else []
        self.call(f"{self.name(event)}.{act}", getattr(event, act), *arguments)

    def cases(self, item: Token) -> list[Callable[[], tuple[str, Any, Any]]]:
        return [
            *super().cases(item),
            lambda: self.case("sem", "acquiring"),
            lambda: self.case("event", "waiting"),
        ]

    def selected(self, way: str, thing: Any, value: Any, item: Token) -> None:
        if way == "acquiring":
            self.moved(thing, -1)
        else:
            super().selected(way, thing, value, item)

    # ------------------------------------------------------------ conditions, barriers

    def cond_wait(self) -> None:
        cond = self.get_any("cond")
        if cond is None or not self.forever():
            return
        predicate = self.maybe(lambda: self.random.random() < 0.5)

        def wait() -> None:
            with cond:
                if self.random.random() < 0.7:
                    cond.wait(self.limit())
                else:
                    cond.wait_for(predicate, self.limit())
                self.step()

        self.call(f"{self.name(cond)}.wait", wait)

    def cond_notify(self) -> None:
        cond = self.get_any("cond")
        if cond is None or not self.forever():
            return

        def notify() -> None:
            with cond:
                if self.random.random() < 0.6:
                    cond.notify(self.maybe(1))
                else:
                    cond.notify_all()
                self.step()

        self.call(f"{self.name(cond)}.notify", notify)

    def barrier(self) -> None:
        barrier = self.get_any("barrier")
        if barrier is None:
            return
        act = self.random.choice(("wait", "wait", "wait", "abort", "reset"))
        arguments = [self.maybe(0.001)] if act == "wait" else []
        if self.forever() or self.may_act_on(barrier):
            self.call(f"{self.name(barrier)}.{act}", getattr(barrier, act), *arguments)

    @staticmethod
    def may_act_on(barrier: Barrier) -> bool:
        """Does nobody hold its lock? As with threading.Barrier, who acts on one waits without a
        limit while the action runs or a timeout is converted: for ever if that waits for this
        thread to end.
        """
        free = barrier._changed.acquire(False)
        if free:
            barrier._changed.release()
        return free

    # --------------------------------------------------------------------- others

    def locals(self) -> None:
        thing = self.get_any("local")
        if thing is None:
            return
        act = self.random.choice(("set", "set", "get", "del"))
        name = self.random.choice("ab")
        if act == "set":
            self.call(f"{self.name(thing)}.{name} =", setattr, thing, name, self.evil())
        elif act == "get":
            self.call(f"{self.name(thing)}.{name}", getattr, thing, name, None)
        else:
            self.call(f"del {self.name(thing)}.{name}", delattr, thing, name)

    def limiter(self) -> None:
        limiter = self.get_any("limiter")
        if limiter is None or not self.forever():
            return
        if self.random.random() < 0.3:
            self.call("total_tokens =", setattr, limiter, "total_tokens", self.maybe(2))
        elif self.random.random() < 0.3:
            self.call("borrowed_tokens", lambda: (limiter.borrowed_tokens, limiter.waiting))
        else:
            self.call("to_thread", limiter.to_thread, divmod, 7, self.random.choice((3, 2)))

    def peek(self) -> None:
        sort = self.random.choice(("lock", "sem", "event", "cond", "queue", "channel"))
        thing = self.get_any(sort)
        for name in ("_holders", "_waiters", "__repr__"):
            if thing is not None:
                self.call(f"{self.name(thing)}.{name}", getattr(thing, name))


class Kind(PrimitiveActs):
    """All of them."""
