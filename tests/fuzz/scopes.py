"""Cancel scopes, task groups, and the functions made of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pyfiber
from pyfiber import CancelScope, TaskGroup

from .program import acts
from .scheduled import ScheduledActs


class ScopeActs(ScheduledActs):
    """Scopes are entered, cancelled and changed at random, by those inside and by others."""

    ACTS = acts(
        "scope 16, group 12, group_spawn 12, cancel_scope 10, set_deadline 6, set_shield 4,"
        "gather 4, race 3, first_success 2, pmap 4, look_at_scope 4, scope_again 3,"
        "enter_by_hand 3, cancel_in_exit 2"
    )
    EXPECTED = (RuntimeError, StopIteration, ExceptionGroup, BaseExceptionGroup, AttributeError)

    def deadline(self) -> Any:
        """A time at which a scope ends."""
        return self.random.choice((None, 0.0, self.seconds(), pyfiber.now() + 0.001, self.evil()))

    # ------------------------------------------------------------------ scopes

    def new_scope(self) -> Any:
        """A scope or a group, of whatever sort."""
        makers: list[Callable[[], Any]] = [
            lambda: CancelScope(self.maybe(None), self.maybe(False)),
            lambda: CancelScope(deadline=self.deadline()),
            lambda: pyfiber.timeout(self.limit()),
            lambda: pyfiber.move_on_after(self.limit()),
            lambda: pyfiber.shield(self.limit()),
            TaskGroup,
        ]
        scope = self.call("make a scope", self.random.choice(makers))
        return self.keep("scope", scope) if scope is not None else None

    def scope(self) -> None:
        scope = self.new_scope()
        if scope is not None:
            self.call(f"with {self.name(scope)}", self.inside, scope)

    def group(self) -> None:
        self.call("with TaskGroup", self.inside, self.keep("scope", TaskGroup()))

    def inside(self, scope: Any) -> None:
        """Some steps in it; a group's children are waited for at its end."""
        with scope:
            for _ in range(self.random.randrange(4)):
                self.step()

    def cancel_scope(self) -> None:
        if (scope := self.any("scope")) is not None:
            self.call(f"{self.name(scope)}.cancel", scope.cancel, self.value())

    def set_deadline(self) -> None:
        if (scope := self.any("scope")) is not None:
            self.call(f"{self.name(scope)}.deadline =", setattr, scope, "deadline", self.deadline())

    def set_shield(self) -> None:
        if (scope := self.any("scope")) is not None:
            value = self.maybe(True)
            self.call(f"{self.name(scope)}.shield =", setattr, scope, "shield", value)

    def scope_again(self) -> None:
        """__init__ once more, perhaps of one that somebody is in."""
        if (scope := self.any("scope")) is not None:
            arguments = () if isinstance(scope, TaskGroup) else (self.deadline(), self.maybe(False))
            self.call(f"{self.name(scope)}.__init__", scope.__init__, *arguments)

    def enter_by_hand(self) -> None:
        """Entered or left out of turn, or by another fiber."""
        if (scope := self.any("scope")) is None:
            return
        if self.random.random() < 0.5:
            self.call(f"{self.name(scope)}.__enter__", scope.__enter__)
        else:
            error = self.random.choice((None, ValueError("by hand")))
            arguments = (type(error), error, None) if error else (None, None, None)
            self.call(f"{self.name(scope)}.__exit__", scope.__exit__, *arguments)

    def cancel_in_exit(self) -> None:
        """Something is done while an ExitStack is left that holds a scope."""

        def leave() -> None:
            with contextlib.ExitStack() as stack:
                stack.callback(self.step)
                stack.enter_context(CancelScope())
                stack.callback(self.step)

        self.call("ExitStack", leave)

    def look_at_scope(self) -> None:
        if (scope := self.any("scope")) is not None:
            for name in ("deadline", "shield", "cancel_called", "cancelled", "reason"):
                self.call(f"{self.name(scope)}.{name}", getattr, scope, name)
            self.call("repr", repr, scope)

    # ------------------------------------------------------------------ groups

    def group_spawn(self) -> None:
        scope = self.any("scope")
        if not isinstance(scope, TaskGroup):
            return
        way = self.random.choice((scope.spawn, scope.spawn, scope.spawn_now))
        what = self.random.choice((self.target, self.fiber))()
        fiber = self.call(f"{self.name(scope)}.spawn", way, what)
        if isinstance(fiber, pyfiber.Fiber):
            self.keep("fiber", fiber)

    def some(self) -> list[Any]:
        """Functions and fibers."""
        makers = (self.target, self.target, self.fiber)
        return [self.random.choice(makers)() for _ in range(self.random.randrange(3))]

    def gather(self) -> None:
        self.call("gather", pyfiber.gather, *self.some(), return_exceptions=self.maybe(False))

    def race(self) -> None:
        self.call("race", pyfiber.race, *self.some())

    def first_success(self) -> None:
        self.call("first_success", pyfiber.first_success, *self.some())

    def pmap(self) -> None:
        """Drawn from for a while; the rest is left to the iterator's end."""
        items = self.maybe([1, 2, 3])
        ordered = self.random.random() < 0.5

        def draw() -> None:
            results = pyfiber.pmap(self.body(), items, limit=self.maybe(2), ordered=ordered)
            for _ in range(self.random.randrange(4)):
                next(results)

        self.call("pmap", draw)


class Kind(ScopeActs):
    """All of them."""
