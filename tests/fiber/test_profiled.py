"""A profiler that keeps a stack of calls of its own is told of each switch, where it lands."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber import CancelScope, Fiber, current, emit, generator, run, spawn, yield_now


class Follower:
    """Does what memray does: shadow stacks by number, one for each fiber."""

    def __init__(self) -> None:
        self.shadow: list[str] = []
        self.numbers = 1
        self.number = 1
        self.wrong: list[tuple[list[str], list[str]]] = []
        self.switches = 0

    def calls(self, frame: types.FrameType | None) -> list[str]:
        names = []
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        return names[::-1]

    def profile(self, frame: types.FrameType, event: str, arg: object) -> None:
        if event == "call":
            self.shadow.append(frame.f_code.co_name)
        if event in ("call", "return") and self.calls(frame) != self.shadow:
            self.wrong.append((self.calls(frame), list(self.shadow)))
        if event == "return":
            self.shadow.pop()

    def greenlet_trace_function(self, event: str, pair: tuple[Any, Any]) -> None:
        left, entered = pair
        self.switches += 1
        left._memray_tid = self.number
        if not hasattr(entered, "_memray_tid"):
            self.numbers += 1
            entered._memray_tid = self.numbers
        self.number = entered._memray_tid
        self.shadow = self.calls(sys._getframe())[:-1]


@pytest.fixture
def follower(monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    """A follower while no collection runs.

    CPython 3.11 allocates the frame object of a called function before it reports the call. A
    collection that starts there runs its callbacks first, and a profiler sees their calls before
    the call of the function that is below them.
    """
    follower = Follower()
    monkeypatch.setitem(sys.modules, "memray._memray", follower)
    before = sys.getprofile()
    collecting = gc.isenabled()
    gc.disable()
    yield follower
    sys.setprofile(before)
    if collecting:
        gc.enable()


def deep(depth: int) -> None:
    if depth > 0:
        deep(depth - 1)
    else:
        yield_now()


def follow(follower: Follower, work: Any) -> None:
    follower.shadow = follower.calls(sys._getframe())
    sys.setprofile(follower.profile)
    work()
    sys.setprofile(None)
    assert follower.wrong == []
    assert follower.switches > 0


def test_profiler_follows_the_fibers_of_a_run(follower: Follower) -> None:
    def fiber(depth: int) -> None:
        for _ in range(3):
            deep(depth)
        if depth % 2:
            raise ValueError(depth)

    def main() -> None:
        fibers = [spawn(fiber, depth) for depth in range(6)]
        with CancelScope() as scope:
            spawn(scope.cancel)
            deep(3)
        for each in fibers:
            each.exception()

    follow(follower, lambda: run(main))


def test_profiler_follows_raw_fibers_their_ends_and_those_that_are_thrown_away(
    follower: Follower,
) -> None:
    def begun(main: Fiber[Any], ends: bool) -> None:
        try:
            main.switch()
        finally:
            if ends:
                "".join(str(each) for each in range(3))

    def work() -> None:
        for _ in range(3):
            fiber: Fiber[Any] = Fiber(begun, (current(), True))
            fiber.switch()
            fiber.switch()
            left: Fiber[Any] = Fiber(begun, (current(), False))
            left.switch()
            del left  # it is unwound

    follow(follower, lambda: Fiber(work).switch())


def test_profiler_follows_generators(follower: Follower) -> None:
    @generator
    def numbers() -> None:
        for each in range(5):
            emit(each)

    follow(follower, lambda: sum(numbers()))


def test_profiler_follows_greenlets(follower: Follower) -> None:
    from pyfiber import greenlet

    def work() -> None:
        parent = greenlet.getcurrent()
        one = greenlet.greenlet(lambda: parent.switch(1))
        one.switch()
        one.switch()
        two = greenlet.greenlet(lambda: parent.switch(2))
        two.switch()
        del two

    follow(follower, work)


def test_profiler_with_a_trace_function_for_greenlets_is_not_told_twice(follower: Follower) -> None:
    from pyfiber import greenlet

    memray = types.SimpleNamespace(greenlet_trace_function=follower.greenlet_trace_function)
    sys.modules["memray._memray"] = memray  # type: ignore[assignment]
    greenlet.settrace(memray.greenlet_trace_function)
    try:
        follow(follower, lambda: greenlet.greenlet(lambda: None).switch())
        assert greenlet.gettrace() is None
    finally:
        greenlet.settrace(None)


def test_profiler_that_fails_harms_no_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(event: str, pair: object) -> None:
        raise LookupError("no such stack")

    told: list[Any] = []
    monkeypatch.setitem(
        sys.modules,
        "memray._memray",
        types.SimpleNamespace(greenlet_trace_function=fail),  # type: ignore[arg-type]
    )
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    fiber: Fiber[int] = Fiber(lambda: 7)
    before = sys.getprofile()
    sys.setprofile(lambda *event: None)
    value = fiber.switch()
    sys.setprofile(before)
    assert value == 7
    assert {type(each.exc_value) for each in told} == {LookupError}
