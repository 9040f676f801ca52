"""Tracing, profiling, contexts, exceptions and limits of fibers whose stacks move."""

from __future__ import annotations

import contextvars
import cProfile
import pstats
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from pyfiber import Fiber, current, park, sleep, spawn, yield_now
from tests.fiber.sharing import counted, deep, needs_packing, running

pytestmark = needs_packing


def add(i: int, lap: int) -> int:
    yield_now()
    return i + lap


def traced(i: int) -> int:
    total = 0
    for lap in range(3):
        total += add(i, lap)
    try:
        raise KeyError(i)
    except KeyError:
        yield_now()
    return total + sum(numbers(i))


def numbers(i: int) -> Any:
    for lap in range(2):
        yield_now()
        yield i + lap


def turn() -> None:
    back = current().parent
    assert back is not None
    for _ in range(3):
        back.switch()


def switcher() -> int:
    """Has raw fibers that are often at home where it is itself."""
    mine: list[Fiber[Any]] = [Fiber(turn) for _ in range(4)]
    for _ in range(4):
        for fiber in mine:
            fiber.switch()
        yield_now()
    return 0


OURS = {"add", "traced", "numbers", "turn", "switcher"}
WANTED = [2 * i + 1 + 3 * i + 3 for i in range(8)] + [0] * 3


def program() -> None:
    fibers = [spawn(traced, i) for i in range(8)] + [spawn(switcher) for _ in range(3)]
    assert [fiber.result() for fiber in fibers] == WANTED


def seen(set_hook: Callable[[Any], Any], slots: int) -> list[tuple[str, str, int]]:
    """What a trace or profile function is called for."""
    log: list[tuple[str, str, int]] = []

    def hook(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_name in OURS:
            log.append((frame.f_code.co_name, event, frame.f_lineno))
        return hook

    def main() -> None:
        before = sys.gettrace(), sys.getprofile()
        set_hook(hook)
        try:
            program()
        finally:
            sys.settrace(before[0])
            sys.setprofile(before[1])

    running(main, slots)
    return log


@pytest.mark.parametrize("slots", [2, 3])
@pytest.mark.parametrize("set_hook", [sys.settrace, sys.setprofile])
def test_hooks_see_the_same_as_with_a_stack_for_each(
    set_hook: Callable[[Any], Any], slots: int
) -> None:
    log = seen(set_hook, slots)
    assert len(log) > 200
    assert log == seen(set_hook, 0)


def test_trace_function_of_one_fiber_stays_with_it() -> None:
    """f_trace of a frame that is suspended, and a thread that is traced from its beginning."""
    log: list[tuple[int, str]] = []

    def hook(frame: FrameType, event: str, arg: object) -> Any:
        if frame.f_code.co_name == "count":
            log.append((frame.f_locals["i"], event))
        return hook

    def count(i: int) -> int:
        lap = 0
        while lap < 3:
            yield_now()
            lap += 1
        return i

    results: list[int] = []

    def in_thread() -> None:
        results.extend(running(lambda: [f.result() for f in [spawn(count, i) for i in range(8)]]))

    before = sys.gettrace()
    threading.settrace(hook)
    try:
        thread = threading.Thread(target=in_thread)
        thread.start()
        thread.join()
    finally:
        threading.settrace(before)  # type: ignore[arg-type]
    assert results == [*range(8)]
    each = [[event for number, event in log if number == i] for i in range(8)]
    assert each[0].count("line") == 12
    assert all(events == each[0] for events in each)


def test_trace_functions_of_threading_are_each_fibers_own() -> None:
    """Each sees the calls of its fiber alone, wherever that is left for."""

    class Stack:
        def __init__(self) -> None:
            self.calls: list[str] = []
            made.append(self)

        def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
            name = frame.f_code.co_name
            if name not in {"work", "step"}:
                return None
            if event == "call":
                self.calls.append(name)
                seen.add((id(self), frame.f_locals["i"]))
            elif event == "return":
                wrong.append((name, self.calls.pop())) if self.calls[-1] != name else None
                if self.calls[-1:] == [name]:
                    self.calls.pop()
            return self

    def begin(frame: FrameType, event: str, arg: object) -> Any:
        function = Stack()
        sys.settrace(function)
        return function(frame, event, arg)

    made: list[Stack] = []
    seen: set[tuple[int, int]] = set()
    wrong: list[tuple[str, str]] = []

    def main() -> None:
        fibers: list[Fiber[Any]] = []

        def step(i: int) -> None:
            fibers[(i + 1) % 9].switch()

        def work(i: int) -> None:
            for _ in range(5):
                step(i)

        fibers.extend(Fiber(work, (i,)) for i in range(9))
        before = sys.gettrace(), threading.gettrace()
        threading.settrace(begin)
        sys.settrace(begin)
        try:
            while alive := [fiber for fiber in fibers if not fiber.done()]:
                alive[0].switch()
        finally:
            sys.settrace(before[0])
            threading.settrace(before[1])  # type: ignore[arg-type]

    running(main)
    assert wrong == []
    assert len({i for _, i in seen}) == 9
    assert len(seen) == 9
    assert all(stack.calls == [] for stack in made)


def test_profiler_counts_the_calls_of_all() -> None:
    def calls(slots: int) -> dict[str, Any]:
        profile = cProfile.Profile()

        def main() -> None:
            profile.enable()
            try:
                program()
            finally:
                profile.disable()

        running(main, slots)
        stats: Any = pstats.Stats(profile)
        return {key[2]: value[:2] for key, value in stats.stats.items() if key[2] in OURS}

    few = calls(2)
    assert set(few) == OURS
    assert few == calls(0)


def test_contexts_of_raw_fibers_move_with_them() -> None:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("variable")

    def main() -> None:
        root = current()
        variable.set("root")

        def work(i: int) -> Any:
            variable.set(i)
            for _ in range(3):
                root.switch()
                assert variable.get() == i
            inside = contextvars.copy_context()
            inside.run(lambda: (variable.set(-i), root.switch()))
            assert inside[variable] == -i
            return variable.get()

        fibers: list[Fiber[Any]] = [Fiber(work, (i,)) for i in range(12)]
        for _ in range(5):
            got = [fiber.switch() for fiber in fibers]
            assert variable.get() == "root"
        assert got == [*range(12)]

    running(main)


def test_exceptions_that_are_handled_stay_with_their_fiber() -> None:
    """One within the other, in generators and in raw fibers that are left for each other."""

    def main() -> None:
        fibers: list[Fiber[Any]] = []

        def numbers(i: int) -> Any:
            try:
                raise IndexError(i)
            except IndexError:
                yield 1
                switch_on(i)
                assert repr(sys.exc_info()[1]) == f"IndexError({i})"
                yield 2

        def switch_on(i: int) -> None:
            fibers[(i + 1) % 12].switch()

        def is_handled(error: BaseException) -> bool:
            return sys.exc_info()[1] is error

        def work(i: int) -> list[bool]:
            seen = []
            try:
                raise KeyError(i)
            except KeyError as outer:
                switch_on(i)
                seen.append(is_handled(outer))
                try:
                    raise ValueError(i)
                except ValueError as inner:
                    seen.append(inner.__context__ is outer)
                    switch_on(i)
                    seen.append(is_handled(inner))
                    seen.append([*numbers(i)] == [1, 2])
                    seen.append(is_handled(inner))
                seen.append(is_handled(outer))
                switch_on(i)
                seen.append(is_handled(outer))
            seen.append(sys.exc_info()[1] is None)
            return seen

        fibers.extend(Fiber(work, (i,)) for i in range(12))
        for _ in range(100):
            for fiber in fibers:
                if not fiber.done():
                    fiber.switch()
        assert [fiber.result(0) for fiber in fibers] == [[True] * 8] * 12

    running(main)


def test_depth_of_recursion_moves_with_its_fiber() -> None:
    def down(depth: int) -> int:
        if depth == 0:
            yield_now()
            return free()
        return down(depth - 1)

    def free() -> int:
        """So many more calls are allowed here."""
        try:
            return free() + 1
        except RecursionError:
            return 0

    def measured(slots: int) -> list[int]:
        def main() -> list[int]:
            fibers = [spawn(down, i * 50) for i in range(10)]
            return [fiber.result() for fiber in fibers]

        got: list[int] = running(main, slots)
        return got

    few = measured(2)
    assert few == measured(0)
    assert few[0] - few[9] == 450


def test_depth_of_recursion_is_right_after_many_moves() -> None:
    """Also where one fiber at home in a slot is left for another one of that slot."""

    def free() -> int:
        try:
            return free() + 1
        except RecursionError:
            return 0

    def main() -> list[int]:
        fibers: list[Fiber[Any]] = []

        def work(i: int) -> int:
            for _ in range(200):
                fibers[(i + 1) % 9].switch()
            return free()

        fibers.extend(Fiber(work, (i,)) for i in range(9))
        while alive := [fiber for fiber in fibers if not fiber.done()]:
            alive[0].switch()
        return [fiber.result(0) for fiber in fibers]

    few = running(main)
    assert len(set(few)) == 1
    assert few == running(main, slots=0)


def test_limit_of_recursion_that_is_set_while_they_are_packed_holds() -> None:
    def work() -> int:
        park()

        def free() -> int:
            try:
                return free() + 1
            except RecursionError:
                return 0

        return free()

    def main() -> tuple[set[int], set[int]]:
        limit = sys.getrecursionlimit()
        fibers = [spawn(work) for _ in range(12)]
        yield_now()
        assert counted("packed") >= 10
        try:
            sys.setrecursionlimit(limit + 500)
            for fiber in fibers[:6]:
                fiber.unpark()
            high = {fiber.result() for fiber in fibers[:6]}
            sys.setrecursionlimit(limit)
            for fiber in fibers[6:]:
                fiber.unpark()
            low = {fiber.result() for fiber in fibers[6:]}
        finally:
            sys.setrecursionlimit(limit)
        return high, low

    high, low = running(main)
    assert len(high) == len(low) == 1
    assert high.pop() - low.pop() == 500


def test_deep_stacks_of_python_and_of_c_come_back() -> None:
    """Far more than a small image holds, and many chunks of the interpreter's own stack."""

    def work(i: int) -> int:
        got = deep(200 + i, lambda: (yield_now(), through_c(20))[1])
        return int(got) + i

    def through_c(depth: int) -> int:
        if depth == 0:
            sleep(0)
            return 0
        return max([depth], key=lambda _: through_c(depth - 1) >= 0) and depth

    def main() -> list[int]:
        fibers = [spawn(work, i) for i in range(10)]
        return [fiber.result() for fiber in fibers]

    assert running(main) == [20 + i for i in range(10)]
