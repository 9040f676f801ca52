"""Stacks: their sizes, the pool they come from, and what happens when there are none."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import pyfiber
from pyfiber import Fiber, current, run, stack_size
from pyfiber.debug import stack_stats, trim_stacks
from tests.conftest import Child
from tests.support.subprocesses import EMULATED

KIB = 1024
SMALLEST = pyfiber.debug.info()["min_stack_size"]
DEFAULT = (8 if os.name == "nt" else 1) * 1024 * KIB


@pytest.fixture
def _default_size() -> Iterator[None]:
    before = stack_size()
    yield
    stack_size(before)


def stats_of(size: int) -> dict[str, int]:
    """The statistics of the pool whose stacks are nearest to `size`."""
    return min(stack_stats(), key=lambda stats: abs(stats["stack_size"] - size))


def levels(depth: int) -> int:
    """C recursion: each level takes C stack."""
    return 0 if depth == 0 else max(map(levels, [depth - 1])) + 1


# ----------------------------------------------------------------------------- sizes


def test_default_stack_size_holds_an_ordinary_recursion() -> None:
    assert stack_size() == DEFAULT
    assert Fiber(levels, (300,)).switch() == 300


def test_stack_size_of_one_fiber() -> None:
    size = 3 * 1024 * KIB
    fiber: Fiber[Any] = Fiber(current().switch, stack_size=size)
    fiber.switch()
    stats = stats_of(size)
    assert size <= stats["stack_size"] <= size + 64 * KIB
    assert stats["live"] == 1
    fiber.switch()
    assert stats_of(size)["live"] == 0


def test_smallest_stack_runs_python() -> None:
    def work() -> list[int]:
        return sorted(int(text) for text in ["3", "1", "2"])

    assert Fiber(work, stack_size=SMALLEST).switch() == [1, 2, 3]


def test_smallest_stack_imports_and_compiles() -> None:
    def work() -> int:
        sys.modules.pop("colorsys", None)
        import colorsys

        space: dict[str, Any] = {}
        exec("def f(x):\n    return [x + 1 for _ in range(2)]\n", space)
        return len(colorsys.__all__) + len(space["f"](1))

    assert Fiber(work, stack_size=SMALLEST).switch() == 8


def test_smallest_stack_raises_and_formats_exceptions() -> None:
    import traceback

    def work() -> str:
        try:
            raise KeyError("small")
        except KeyError:
            return traceback.format_exc()

    assert "KeyError: 'small'" in Fiber(work, stack_size=SMALLEST).switch()


@pytest.mark.parametrize("size", [SMALLEST, SMALLEST + 1, 200_000, 262_145, 999_999, 5_000_001])
def test_any_size_above_the_least_works(size: int) -> None:
    assert Fiber(levels, (5,), stack_size=size).switch() == 5


@pytest.mark.parametrize("size", [0, 1, -1, SMALLEST - 1, -(2**40)])
def test_too_small_a_stack_size_raises(size: int) -> None:
    with pytest.raises(ValueError, match="at least"):
        Fiber(int, stack_size=size)
    with pytest.raises(ValueError, match="at least"):
        stack_size(size)


@pytest.mark.parametrize("size", ["1M", 1.5, object()])
def test_stack_size_that_is_no_integer_raises(size: Any) -> None:
    with pytest.raises(TypeError):
        Fiber(int, stack_size=size)
    with pytest.raises(TypeError):
        stack_size(size)


def test_stack_size_beyond_the_machine_raises() -> None:
    with pytest.raises(OverflowError):
        Fiber(int, stack_size=2**70)
    with pytest.raises(OverflowError):
        stack_size(2**70)


@pytest.mark.parametrize("size", [2**50, 2**62, sys.maxsize])
def test_stack_size_the_system_cannot_give_raises_memory_error(size: int) -> None:
    fiber: Fiber[int] = Fiber(int, stack_size=size)
    with pytest.raises(MemoryError):
        fiber.switch()
    assert fiber.state == "new"


@pytest.mark.usefixtures("_default_size")
def test_stack_size_holds_for_fibers_that_start_later_and_tells_the_one_before() -> None:
    assert stack_size(200 * KIB) == DEFAULT
    assert stack_size() == stack_size(None) == 200 * KIB
    fiber: Fiber[Any] = Fiber(current().switch)
    stack_size(300 * KIB)
    fiber.switch()  # it starts now
    assert stats_of(300 * KIB)["live"] >= 1
    fiber.switch()


def test_bigger_stack_holds_a_deeper_recursion() -> None:
    def deep(size: int) -> int:
        fiber: Fiber[int] = Fiber(sort_levels, stack_size=size)
        return fiber.switch()

    assert deep(SMALLEST) < deep(512 * KIB) < deep(1024 * KIB)


def sort_levels() -> int:
    deepest = 0

    def down(depth: int) -> int:
        nonlocal deepest
        deepest = depth
        return sorted([0], key=lambda item: down(depth + 1))[0]

    with contextlib.suppress(RecursionError):
        down(0)
    return deepest


# ---------------------------------------------------------------- environment variable


@pytest.mark.parametrize(
    ("text", "size"),
    [("262144", 262144), ("256K", 262144), ("256k", 262144), ("2M", 2**21), ("", DEFAULT)],
)
def test_environment_sets_the_default(child: Child, text: str, size: int) -> None:
    done = child(
        "import pyfiber; print(pyfiber.stack_size(), pyfiber.Fiber(int).switch())",
        env={"PYFIBER_STACK_SIZE": text},
    )
    assert done.stdout == f"{size} 0\n"


@pytest.mark.parametrize(
    "text", ["big", "1G", "12x", "0x10000", "-1", "1", "0", "K", "1e6", "9" * 30]
)
def test_environment_with_a_bad_size_raises_at_import(child: Child, text: str) -> None:
    done = child(
        """
        try:
            import pyfiber
        except ValueError as error:
            print(error)
        """,
        env={"PYFIBER_STACK_SIZE": text},
    )
    assert "PYFIBER_STACK_SIZE" in done.stdout


def test_environment_size_that_overflows_raises_at_import(child: Child) -> None:
    done = child(
        """
        try:
            import pyfiber
        except ValueError as error:
            print("refused")
        """,
        env={"PYFIBER_STACK_SIZE": "9000000000000000000M"},
    )
    assert done.stdout == "refused\n"


# -------------------------------------------------------------------------- the pool


def test_stats_are_counted() -> None:
    size = 777 * KIB
    before: dict[str, int] = {"acquired": 0}
    main = current()
    fibers = [Fiber(main.switch, stack_size=size, own_stack=True) for _ in range(10)]
    for fiber in fibers:
        fiber.switch()
    during = stats_of(size)
    assert during["live"] == 10
    assert during["peak"] >= 10
    assert during["acquired"] - before["acquired"] == 10
    assert during["mapped"] >= during["slots"] * during["stack_size"]
    for fiber in fibers:
        fiber.switch()
    after = stats_of(size)
    assert after["live"] == 0
    assert after["peak"] == during["peak"]


def test_stack_is_released_when_the_fiber_ends_not_when_it_is_collected() -> None:
    size = 559 * KIB
    fibers = [Fiber(int, stack_size=size) for _ in range(50)]
    for fiber in fibers:
        fiber.switch()
    assert stats_of(size)["live"] == 0
    assert stats_of(size)["peak"] == 1
    assert len(fibers) == 50


def test_stack_of_a_dropped_fiber_is_released() -> None:
    size = 444 * KIB
    fiber: Fiber[Any] = Fiber(current().switch, stack_size=size)
    fiber.switch()
    assert stats_of(size)["live"] == 1
    del fiber
    assert stats_of(size)["live"] == 0


def test_trim_gives_memory_back() -> None:
    size = 333 * KIB
    main = current()
    fibers = [Fiber(main.switch, stack_size=size, own_stack=True) for _ in range(5000)]
    for fiber in fibers:
        fiber.switch()
    mapped = stats_of(size)["mapped"]
    fibers.clear()
    assert trim_stacks() > 0
    after = stats_of(size)
    assert after["mapped"] < mapped
    assert Fiber(levels, (5,), stack_size=size).switch() == 5


def test_trim_leaves_suspended_fibers_alone() -> None:
    main = current()

    def work(number: int) -> list[int]:
        kept = [number] * 10
        main.switch()
        return kept

    fibers = [Fiber(work, (n,)) for n in range(200)]
    for fiber in fibers:
        fiber.switch()
    kept = fibers[::7]
    fibers.clear()
    trim_stacks()
    for fiber in kept:
        result = fiber.switch()
        assert len(set(result)) == 1


def test_trim_inside_a_fiber() -> None:
    assert isinstance(Fiber(trim_stacks).switch(), int)


def test_trim_twice_gives_nothing_more(child: Child) -> None:
    done = child(
        """
        from pyfiber import *
        from pyfiber.debug import trim_stacks
        Fiber(int).switch()
        print(trim_stacks() > 0, trim_stacks())
        """
    )
    assert done.stdout == "True 0\n"


def test_pools_belong_to_their_thread() -> None:
    found: list[Any] = []

    def thread() -> None:
        found.append(stack_stats())
        Fiber(int).switch()
        found.append(stack_stats())

    Fiber(int).switch()
    worker = threading.Thread(target=thread)
    worker.start()
    worker.join()
    assert found[0] == []
    assert [stats["acquired"] for stats in found[1]] == [1]


def test_deep_stack_memory_is_used_again() -> None:
    """A stack that was deep once serves the next fiber, whatever it left there."""
    for _ in range(200):
        assert Fiber(levels, (200,)).switch() == 200
        assert Fiber(int).switch() == 0


def test_many_different_sizes_at_once() -> None:
    main = current()
    fibers = [Fiber(main.switch, stack_size=SMALLEST + n * 4096) for n in range(64)]
    for fiber in fibers:
        fiber.switch()
    assert [fiber.switch(n) for n, fiber in enumerate(fibers)] == list(range(64))


# ---------------------------------------------------------------------- when it fails

LIMITED = """
import gc, resource, sys
from pyfiber import Fiber, current
from pyfiber.debug import stack_stats
main = current()
Fiber(int).switch()
with open("/proc/self/statm") as statm:
    used = int(statm.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (96 << 20),) * 2)
"""

#: Fibers that share stacks would not run out of them.
ONE_STACK_EACH = {"PYFIBER_SLOTS": "0"}

needs_rlimit = pytest.mark.skipif(
    not sys.platform.startswith("linux") or EMULATED,
    reason="reads /proc, sets RLIMIT_AS, which qemu does not obey",
)


@needs_rlimit
def test_memory_error_names_the_limit(child: Child) -> None:
    done = child(
        LIMITED
        + """
fibers = []
try:
    while True:
        fiber = Fiber(main.switch)
        fiber.switch()
        fibers.append(fiber)
except MemoryError as error:
    text = str(error)
    count = len(fibers)
    state = fiber.state
    fibers[-1].switch()
    again = Fiber(lambda: "there is room again").switch()
    fibers.clear()
print(count > 10, state)
print(text)
print(again)
""",
        env=ONE_STACK_EACH,
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "True new"
    assert "RLIMIT_AS" in lines[1]
    assert "1048576 bytes" in lines[1]
    assert lines[2] == "there is room again"


@needs_rlimit
def test_fiber_that_got_no_stack_can_be_started_later(child: Child) -> None:
    done = child(
        LIMITED
        + """
fibers = []
try:
    while True:
        fiber = Fiber(main.switch)
        fiber.switch()
        fibers.append(fiber)
except MemoryError:
    pass
fibers.clear()
print(fiber.state, fiber.switch(), fiber.switch("late"))
""",
        env=ONE_STACK_EACH,
    )
    assert done.stdout == "new None late\n"


@needs_rlimit
def test_garbage_is_collected_before_memory_runs_out(child: Child) -> None:
    """Suspended fibers in cycles through finished ones are garbage that holds stacks."""
    done = child(
        LIMITED
        + """
gc.set_threshold(1_000_000)  # not by itself
class Node: pass
for number in range(2000):
    node = Node()
    node.self = node
    node.fiber = Fiber(main.switch, stack_size=1 << 20)
    node.fiber.switch()
print("never ran out")
""",
        env=ONE_STACK_EACH,
    )
    assert done.stdout == "never ran out\n"


def test_fiber_kept_by_a_weak_reference_only_holds_no_stack() -> None:
    fiber: Fiber[Any] = Fiber(current().switch, stack_size=222 * KIB)
    fiber.switch()
    reference = weakref.ref(fiber)
    del fiber
    gc.collect()
    assert reference() is None
    assert stats_of(222 * KIB)["live"] == 0


def test_stacks_asked_for_in_vain_do_not_collect_garbage_each_time() -> None:
    collections = [0]

    def count(phase: str, info: dict[str, int]) -> None:
        collections[0] += phase == "stop" and info["generation"] == 2

    def main() -> int:
        fibers = [Fiber(int, stack_size=1 << 50).start() for _ in range(5000)]
        return sum(isinstance(fiber.exception(), MemoryError) for fiber in fibers)

    gc.callbacks.append(count)
    try:
        assert run(main) == 5000
    finally:
        gc.callbacks.remove(count)
    assert collections[0] < 2500
