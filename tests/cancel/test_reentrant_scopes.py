"""Scopes and groups that their own arguments, reprs and finalizers enter, leave or cancel.

Each test lets code run where the engine cannot help running it, and has that code change what the
engine is about to work on.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest

import pyfiber
from pyfiber import CancelScope, Fiber, FiberError, TaskGroup, current, run, sleep, spawn, yield_now


class Number:
    """A number that runs a function when it is converted."""

    def __init__(self, value: float, first: Any) -> None:
        self.value, self.first = value, first

    def __float__(self) -> float:
        self.first()
        return float(self.value)

    def __bool__(self) -> bool:
        self.first()
        return bool(self.value)


def leave(scope: CancelScope) -> None:
    scope.__exit__(None, None, None)


def test_init_of_a_scope_that_its_deadline_enters() -> None:
    def main() -> None:
        scope = CancelScope()
        with pytest.raises(FiberError, match="comes too late"):
            scope.__init__(Number(pyfiber.now() + 3600, scope.__enter__))  # type: ignore[misc]
        assert scope.deadline is None
        leave(scope)

    run(main)


def test_deadline_of_a_scope_that_is_left_by_its_value() -> None:
    def main() -> None:
        with CancelScope() as outer:
            scope = CancelScope().__enter__()
            with pytest.raises(FiberError, match="has been left"):
                scope.deadline = Number(0, lambda: leave(scope))  # type: ignore[assignment]
            yield_now()
        assert not outer.cancel_called

    run(main)


def test_shield_of_a_scope_that_is_left_by_its_value() -> None:
    def main() -> None:
        scope = CancelScope().__enter__()
        with pytest.raises(FiberError, match="has been left"):
            scope.shield = Number(1, lambda: leave(scope))  # type: ignore[assignment]
        assert not scope.shield

    run(main)


def test_shield_that_cannot_be_deleted_asks_nothing() -> None:
    scope = CancelScope()
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del scope.shield
    with pytest.raises(AttributeError, match="cannot be deleted"):
        del scope.deadline


class Telling(CancelScope):
    """A scope that runs a function when it is shown."""

    action: Any = None

    def __repr__(self) -> str:
        if self.action is not None:
            action, self.action = self.action, None
            action()
        return "Telling"


def test_scope_left_out_of_order_whose_repr_leaves_the_inner_one() -> None:
    def main() -> None:
        outer = Telling().__enter__()
        inner = [CancelScope().__enter__()]
        outer.action = lambda: leave(inner.pop())
        with pytest.raises(FiberError, match="still in"):
            leave(outer)
        leave_nothing_behind()

    def leave_nothing_behind() -> None:
        with CancelScope() as scope:
            assert scope.deadline is None

    run(main)


def test_scope_left_elsewhere_whose_repr_drops_its_fiber() -> None:
    def main() -> None:
        scopes = []
        parent = current()

        def body() -> None:
            scopes.append(Telling().__enter__())
            parent.switch()

        fibers = [Fiber(body)]
        fibers[0].switch()
        scopes[0].action = fibers.clear
        with pytest.raises(FiberError, match="cannot be left"):
            leave(scopes[0])

    run(main)


def test_fiber_that_ends_inside_of_a_scope_whose_repr_leaves_it() -> None:
    def main() -> None:
        def body() -> None:
            scope = Telling().__enter__()
            scope.action = lambda: leave(scope)
            scope.cancel()
            sleep(3600)

        failed = spawn(body)
        failed.join()
        assert isinstance(failed.exception(), FiberError)

    run(main)


def test_group_left_with_an_exception_class_in_place_of_an_exception() -> None:
    def fail() -> None:
        raise ValueError

    def main() -> None:
        group = TaskGroup().__enter__()
        spawn_and_wait(group)
        with pytest.raises(BaseExceptionGroup):
            group.__exit__(None, KeyboardInterrupt, None)  # type: ignore[arg-type]

    def spawn_and_wait(group: TaskGroup) -> None:
        group.spawn(fail)
        with pyfiber.shield():
            yield_now()

    run(main)


@pytest.mark.filterwarnings("ignore:unpark")
def test_group_that_is_left_again_while_it_waits_ends_its_wait() -> None:
    def main() -> None:
        group = TaskGroup()

        class Last:
            def __del__(self) -> None:
                with pytest.raises(FiberError):
                    group.__exit__(None, None, None)
                left.append(True)

        left: list[bool] = []
        has_a_permit = spawn(sleep, 3600)
        has_a_permit.unpark()
        with group:
            waits = group.spawn(sleep, 3600)
            yield_now()
            elsewhere(lambda: has_a_permit.unpark(Last()))  # arrives, and is dropped, in the wait
        assert left
        waits.join()
        assert waits.cancelled()
        has_a_permit.cancel()

    run(main)


def elsewhere(fn: Any) -> None:
    thread = threading.Thread(target=fn)
    thread.start()
    thread.join()
