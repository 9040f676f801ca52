"""Grains, their pools and policies; generators that misbehave."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pyfiber
from pyfiber import _engine
from pyfiber.grains import (
    READY,
    SLEEPING,
    STOPPED,
    FairShare,
    Grain,
    GrainPool,
    Policy,
    Priority,
    RoundRobin,
    current_grain,
    spawn,
    until,
)

from .program import acts
from .scopes import ScopeActs


class Unfair(Policy):
    """Betrays, forgets and chooses badly."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.ready: list[Any] = []

    def add(self, grain: Any) -> None:
        self.program.betray("Policy.add")
        self.ready.append(grain)

    def take(self) -> Any:
        self.program.betray("Policy.take")
        if self.program.random.random() < 0.1:
            return self.program.value()
        index = self.program.random.randrange(len(self.ready) or 1)
        return self.ready.pop(index)

    def remove(self, grain: Any) -> None:
        self.program.betray("Policy.remove")
        self.ready = [other for other in self.ready if other is not grain]

    def ran(self, grain: Any, seconds: float) -> None:
        self.program.betray("Policy.ran")


class GrainActs(ScopeActs):
    """Grains beside fibers."""

    ACTS = acts(
        "new_grain 14, start_grain 10, spawn_grain 12, grain_call 14, look_at_grain 5,"
        "new_pool 6, queue_grain 10, dequeue 4, pool_call 6, pool_block 3, use_generator 6,"
        "group_grain 6, wait_for_grain 6, grain_callback 3, policy_again 2,"
        "count 0"  # stats() count grains as well
    )
    EXPECTED = (StopIteration, IndexError, GeneratorExit, RuntimeError)

    # ------------------------------------------------------------ what grains run

    def generator(self) -> Callable[..., Any]:
        """A generator function whose generator does as it likes."""

        def steps(*args: Any) -> Iterator[Any]:
            try:
                for _ in range(self.random.randrange(4)):
                    self.step()
                    yield self.yielded()
            except self.fates:
                if self.random.random() < 0.3:
                    yield READY
                if self.random.random() < 0.8:
                    raise
            finally:
                self.step()
            return self.value()

        return steps

    def coroutine(self) -> Callable[..., Any]:
        """The same as a coroutine function."""

        async def steps(*args: Any) -> Any:
            for _ in range(self.random.randrange(3)):
                self.step()
                what = self.any("fiber") if self.random.random() < 0.5 else self.any("grain")
                if what is not None:
                    await until(what)
            return self.value()

        return steps

    def yielded(self) -> Any:
        """What a grain says comes next."""
        choice = self.random.randrange(8)
        if choice < 3:
            return READY
        if choice == 3:
            return self.random.choice((SLEEPING, STOPPED))
        if choice == 4:
            return self.random.choice((0, 0.001, -1))
        if choice == 5:
            return lambda: self.random.choice((READY, STOPPED, self.value()))
        return self.maybe(self.any("grain") or READY)

    def start_of(self) -> Any:
        """Something to make a grain of."""
        choice = self.random.randrange(8)
        if choice == 0:
            return self.evil()
        if choice == 1:
            return self.coroutine()()
        if choice == 2:
            return iter([self.yielded() for _ in range(3)])
        return self.coroutine() if choice == 3 else self.generator()

    def new_grain(self) -> Any:
        start = self.start_of()
        grain = self.call("Grain", Grain, start, *self.few_grain_values(start))
        if inspect.iscoroutine(start) and grain is None:
            start.close()  # it would warn
        return self.keep("grain", grain) if grain is not None else None

    def few_grain_values(self, start: Any) -> list[Any]:
        return self.few_values() if inspect.isfunction(start) else []

    def grain(self) -> Any:
        return self.any("grain") or self.new_grain() or self.keep("grain", Grain(self.generator()))

    # --------------------------------------------------------------------- grains

    def start_grain(self) -> None:
        grain = self.grain()
        self.call(f"{self.name(grain)}.start", grain.start, *self.few_values())

    def spawn_grain(self) -> None:
        grain = self.call("grains.spawn", spawn, self.generator(), *self.few_values())
        if grain is not None:
            self.keep("grain", grain)

    def grain_call(self) -> None:
        grain = self.grain()
        name = self.random.choice(("cancel", "unpark", "done", "cancelled", "start"))
        values = [self.value()] if name in ("cancel", "unpark") else []
        self.call(f"{self.name(grain)}.{name}", getattr(grain, name), *values)

    def wait_for_grain(self) -> None:
        grain = self.grain()
        name = self.random.choice(("join", "result", "exception"))
        self.call(f"{self.name(grain)}.{name}", getattr(grain, name), self.maybe(0.001))

    def grain_callback(self) -> None:
        grain = self.grain()
        self.call("add_done_callback", grain.add_done_callback, self.maybe(self.body()))

    def look_at_grain(self) -> None:
        grain = self.grain()
        for name in (
            "state",
            "last_known_state",
            "suspended_state",
            "waiting_on",
            "outcome",
            "pool",
        ):
            if self.random.random() < 0.4:
                self.call(f"{self.name(grain)}.{name}", getattr, grain, name)
        self.call("stack", lambda: (grain.stack(), grain.frame, repr(grain), current_grain()))

    def use_generator(self) -> None:
        """The generator of a grain is used behind its back, even while it runs."""
        generator = self.call("generator", self.generator())
        if generator is None:
            return
        grain = self.keep("grain", Grain(generator))
        self.call("start", grain.start)
        act = self.random.choice((generator.close, lambda: next(generator)))
        self.call("generator behind its back", act)

    def group_grain(self) -> None:
        scope = self.any("scope")
        if isinstance(scope, pyfiber.TaskGroup):
            self.call(f"{self.name(scope)}.spawn", scope.spawn, self.grain())

    # ---------------------------------------------------------------------- pools

    def new_pool(self) -> Any:
        policies = (RoundRobin, Priority, FairShare, lambda: Unfair(self), lambda: None)
        policy = self.random.choice(policies)()
        on_error = self.random.choice(("grain", "pool"))
        pool = self.call("GrainPool", GrainPool, self.maybe(policy), on_error=on_error)
        return self.keep("pool", pool) if pool is not None else None

    def pool(self) -> Any:
        return self.any("pool") or self.new_pool() or self.keep("pool", GrainPool())

    def queue_grain(self) -> None:
        pool = self.pool()
        what = self.random.choice((self.grain, self.generator))()
        grain = self.call(f"{self.name(pool)}.queue", pool.queue, what)
        if isinstance(grain, Grain):
            self.keep("grain", grain)

    def dequeue(self) -> None:
        pool, grain = self.pool(), self.grain()
        self.call(f"{self.name(pool)}.dequeue", pool.dequeue, grain)

    def pool_call(self) -> None:
        pool = self.pool()
        acts = {
            "start": lambda: pool.start(thread=False),
            "shutdown": lambda: pool.shutdown(wait=False),
            "interrupt": lambda: pool.interrupt(self.value()),
            "look": lambda: (len(pool), list(pool), self.evil() in pool, repr(pool)),
        }
        name = self.random.choice(list(acts))
        self.call(f"{self.name(pool)}.{name}", acts[name])

    def pool_block(self) -> None:
        pool = self.pool()
        if not self.forever():
            return

        def block() -> None:
            with pyfiber.move_on_after(0.01), pool:
                self.queue_grain()
                self.step()

        self.call(f"with {self.name(pool)}", block)

    def policy_again(self) -> None:
        pool = self.pool()
        label = f"{self.name(pool)}.__init__"
        self.call(label, _engine.GrainPoolBase.__init__, pool, self.maybe(Unfair(self)))

    def end(self) -> None:
        for pool in filter(None, (ghost() for ghost in self.ghosts.get("pool", ()))):
            self.call("the last interrupt", pool.interrupt)
        super().end()


class Kind(GrainActs):
    """All of them."""
