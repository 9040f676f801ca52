"""Recursion on a fiber ends as on a thread: in RecursionError, and the fiber goes on.

The shapes are in recursion_shapes.py.  Where the stack of a fiber cannot hold what a thread's
can, the error may come earlier; a crash may not.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber import Fiber, current
from tests.conftest import Child
from tests.core.recursion_shapes import CALLING, NESTING, Shape

V312 = sys.version_info >= (3, 12)

#: Sorting takes some 5 KB of C stack a level: these end earlier on a fiber.
DEAR = {"sorted_key", "sort_compare"}

#: The parser and the compiler look at counters of their own, and not at the stack.
SOURCE = [name for name in NESTING if name.startswith(("eval_", "ast_"))]
WALKS = [name for name in NESTING if name not in SOURCE and name != "marshal_dumps"]


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Callbacks of other tests' libraries would run where there is no room for a call."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def limit() -> Iterator[Any]:
    before = sys.getrecursionlimit()
    yield sys.setrecursionlimit
    sys.setrecursionlimit(before)


def calling(name: str) -> tuple[int, str]:
    shape = Shape(name)
    depth = shape.run_calling()
    return depth, type(shape.error).__name__


def nesting(name: str, depth: int) -> str:
    shape = Shape(name)
    return "ok" if shape.survives(depth) else type(shape.error).__name__


# ---------------------------------------------------------------- every shape, once


@pytest.mark.parametrize("name", CALLING)
def test_calling_shape_ends_in_recursion_error_and_the_fiber_goes_on(name: str) -> None:
    main = current()

    def work() -> list[Any]:
        first = calling(name)
        main.switch(first)
        # The fiber is as good as before: it recurses as deep again, and counts C calls.
        assert sorted([2, 1], key=lambda item: item) == [1, 2]
        return [first, calling(name)]

    fiber: Fiber[Any] = Fiber(work)
    depth, error = fiber.switch()
    assert error == "RecursionError"
    assert depth >= 100
    first, again = fiber.switch()
    assert first[1] == again[1] == "RecursionError"
    assert abs(first[0] - again[0]) <= 2


@pytest.mark.parametrize("name", [name for name in CALLING if name not in DEAR])
def test_calling_shape_reaches_the_depth_of_the_main_thread(name: str) -> None:
    # Started from as many frames as the fiber has below it: the test's own do not count there.
    before = sys.getrecursionlimit()
    frames = len([*iterate_frames()])
    sys.setrecursionlimit(before + frames)
    try:
        on_main = calling(name)[0]
    finally:
        sys.setrecursionlimit(before)
    on_fiber = Fiber(calling, (name,)).switch()[0]
    assert on_fiber >= on_main - 3


def iterate_frames() -> Iterator[Any]:
    frame: Any = sys._getframe()
    while frame is not None:
        yield frame
        frame = frame.f_back


@pytest.mark.parametrize("name", WALKS)
def test_nesting_shape_ends_in_recursion_error_and_the_fiber_goes_on(name: str) -> None:
    main = current()

    def work() -> list[str]:
        first = nesting(name, 60_000)
        main.switch(first)
        return [first, nesting(name, 50), nesting(name, 60_000), nesting(name, 50)]

    fiber: Fiber[Any] = Fiber(work)
    fiber.switch()
    assert fiber.switch() == ["RecursionError", "ok", "RecursionError", "ok"]


@pytest.mark.parametrize("name", WALKS)
def test_fiber_goes_on_after_recursion_error_without_a_switch(name: str) -> None:
    def work() -> list[str]:
        return [nesting(name, 60_000), nesting(name, 50), nesting(name, 60_000)]

    assert Fiber(work).switch() == ["RecursionError", "ok", "RecursionError"]


@pytest.mark.parametrize("name", WALKS)
def test_nesting_shape_of_300_levels_works(name: str) -> None:
    assert Fiber(nesting, (name, 300)).switch() == "ok"


@pytest.mark.parametrize("depth", [3000, 8000, 50_000])
@pytest.mark.parametrize("name", SOURCE)
def test_compile_of_a_deep_expression_ends_as_on_a_thread(
    child: Child, name: str, depth: int
) -> None:
    """Either it works or there is an exception; in a process of its own, should it crash."""
    done = child(
        """
        import sys
        from pyfiber import Fiber
        from tests.core.recursion_shapes import Shape
        name, depth = sys.argv[1], int(sys.argv[2])
        shape = Shape(name)
        def work():
            answer = shape.survives(depth)
            return answer, [1] == [1.5]
        answer = Fiber(work).switch()
        print(answer[1])
        """,
        name,
        str(depth),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"


def test_marshal_of_its_deepest_structure_works() -> None:
    deepest = 900 if os.name == "nt" else 1900
    assert Fiber(nesting, ("marshal_dumps", deepest)).switch() == "ok"
    assert Fiber(nesting, ("marshal_dumps", 5000)).switch() == "ValueError"


# ------------------------------------------------------------------- limits that move


def plain(depth: int = 0) -> int:
    try:
        return plain(depth + 1)
    except RecursionError:
        return depth


def test_python_recursion_reaches_the_limit() -> None:
    assert sys.getrecursionlimit() - 5 <= Fiber(plain).switch() <= sys.getrecursionlimit()


@pytest.mark.parametrize("most", [100, 5000, 20_000])
def test_python_recursion_reaches_another_limit(limit: Any, most: int) -> None:
    limit(most)
    assert most - 5 <= Fiber(plain).switch() <= most


def test_python_recursion_inside_a_started_fiber_follows_a_raised_limit(limit: Any) -> None:
    main = current()

    def work() -> int:
        main.switch()
        return plain()

    fiber: Fiber[int] = Fiber(work)
    fiber.switch()
    limit(20_000)
    assert 19_990 <= fiber.switch() <= 20_000


def test_python_recursion_inside_a_started_fiber_follows_a_lowered_limit(limit: Any) -> None:
    main = current()

    def work() -> int:
        main.switch()
        return plain()

    fiber: Fiber[int] = Fiber(work)
    fiber.switch()
    limit(300)
    assert 290 <= fiber.switch() <= 300


def test_limit_lowered_below_the_depth_of_a_suspended_fiber(limit: Any) -> None:
    main = current()

    def down(depth: int) -> int:
        if depth:
            return 1 + down(depth - 1)
        main.switch()
        return 0

    fiber: Fiber[int] = Fiber(down, (800,))
    fiber.switch()
    limit(200)
    assert fiber.switch() == 800
    assert Fiber(plain).switch() <= 200


def test_limit_changed_inside_a_fiber_holds_for_the_caller(limit: Any) -> None:
    Fiber(limit, (3000,)).switch()
    assert sys.getrecursionlimit() == 3000
    assert 2000 < plain() < 3000


def test_limit_raised_deep_inside_a_fiber(limit: Any) -> None:
    main = current()

    def down(depth: int) -> int:
        if depth:
            return down(depth - 1)
        main.switch()
        limit(5000)
        return plain()

    fiber: Fiber[int] = Fiber(down, (500,))
    fiber.switch()
    assert 4480 <= fiber.switch() <= 4500


def test_depths_of_fibers_do_not_add_up() -> None:
    """Each starts from the full limit, however deep the one that enters it is."""

    def down(depth: int) -> int:
        return down(depth - 1) if depth else Fiber(plain).switch()

    assert down(700) >= sys.getrecursionlimit() - 5


def test_depth_of_the_main_fiber_is_its_own_after_a_fiber_recursed() -> None:
    before = plain()
    Fiber(plain).switch()
    assert plain() == before


def test_recursion_error_thrown_out_of_a_fiber_and_again() -> None:
    def endless() -> None:
        endless()

    for _ in range(5):
        with pytest.raises(RecursionError):
            Fiber(endless).switch()


def test_recursion_with_a_suspended_stack_in_between() -> None:
    """A fiber stopped deep in C calls is left there while others recurse to their limits."""
    main = current()

    def down(depth: int) -> Any:
        if depth:
            return sorted([0], key=lambda item: down(depth - 1))
        return main.switch("deep")

    fibers = [Fiber(down, (60,)) for _ in range(5)]
    for fiber in fibers:
        assert fiber.switch() == "deep"
        assert Fiber(calling, ("map",)).switch()[1] == "RecursionError"
    for fiber in fibers:
        fiber.switch(0)
        assert fiber.done()


def test_recursion_that_switches_at_every_level() -> None:
    main = current()

    def down() -> None:
        main.switch()
        sorted([0], key=lambda item: down())

    fibers = [Fiber(down) for _ in range(3)]
    alive = list(fibers)
    turns = 0
    while alive:
        turns += 1
        for fiber in list(alive):
            try:
                fiber.switch()
            except RecursionError:
                alive.remove(fiber)
    assert turns > 50
    assert all(fiber.done() for fiber in fibers)


def test_fibers_nested_to_the_recursion_limit() -> None:
    """A fiber in a fiber in a fiber: each has a stack of its own."""

    def nest(depth: int) -> int:
        return 0 if depth == 0 else 1 + Fiber(nest, (depth - 1,)).switch()

    assert nest(2000) == 2000


def test_finally_blocks_run_in_a_recursion_that_failed() -> None:
    log = []

    def down(depth: int) -> None:
        try:
            sorted([0], key=lambda item: down(depth + 1))
        finally:
            log.append(depth)

    with pytest.raises(RecursionError):
        Fiber(down, (0,)).switch()
    assert log == list(range(max(log), -1, -1))


@pytest.mark.skipif(not V312, reason="3.11 counts C and Python depth together")
def test_c_recursion_beyond_the_python_limit() -> None:
    assert Fiber(nesting, ("list_repr", 1300)).switch() == "ok"


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 128, 256, 2048])
def test_no_shape_crashes_on_a_stack_of_another_size(child: Child, size: int) -> None:
    """Walks and calls alike; each in turn on the same stack, pooled."""
    done = child(
        """
        import sys
        from pyfiber import Fiber, FiberError
        from pyfiber.debug import info
        from tests.core.recursion_shapes import CALLING, Shape, NESTING
        size = max(int(sys.argv[1]) * 1024, info()["min_stack_size"])
        def call(name):
            for _ in range(2):
                shape = Shape(name)
                shape.run_calling()
                assert isinstance(shape.error, RecursionError), (name, shape.error)
        def walk(name):
            for _ in range(2):
                shape = Shape(name)
                assert not shape.survives(60_000), name
        for name in CALLING:
            if name in ("exec", "eval", "json_hook", "json_default", "formatter"):
                continue  # MemoryError, should the parser run out of stack
            print(name, flush=True)
            Fiber(call, (name,), stack_size=size).switch()
        for name in sys.argv[2:]:
            print(name, flush=True)
            Fiber(walk, (name,), stack_size=size).switch()
        """,
        str(size),
        *(name for name in WALKS if name != "yield_from_next"),
        check=False,
    )
    assert done.returncode == 0, [*done.stdout.splitlines()[-1:], done.stderr]
