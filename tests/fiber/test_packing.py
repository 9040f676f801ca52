"""Fibers that wait without a stack of their own: each must go on as if it had never lost it."""

from __future__ import annotations

import queue as queue_module
import random
import sys
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyfiber
import pyfiber.debug
from pyfiber import (
    Fiber,
    Scheduler,
    TaskGroup,
    park,
    sleep,
    spawn,
    yield_now,
)
from tests.fiber.sharing import counted, deep, in_a_fresh_thread, needs_packing, packs, running
from tests.support.subprocesses import run_python

pytestmark = needs_packing

# ------------------------------------------------------------- what goes on with it


def test_cancelled_fibers_unwind() -> None:
    ended: list[int] = []

    def work(i: int) -> None:
        try:
            deep(i % 3, park)
        finally:
            ended.append(i)

    def main() -> None:
        with TaskGroup() as group:
            for i in range(20):
                group.spawn(work, i)
            yield_now()
            yield_now()
            group.cancel()

    running(main)
    assert sorted(ended) == list(range(20))


def test_end_of_a_run_unwinds_packed_daemons() -> None:
    ended: list[int] = []

    def work(i: int) -> None:
        try:
            deep(i % 3, park)
        finally:
            ended.append(i)

    def main() -> int:
        for i in range(20):
            pyfiber.Fiber(work, (i,), daemon=True).start()
        yield_now()
        return counted("packed")

    assert running(main) >= 18
    assert sorted(ended) == list(range(20))


def test_timeouts_end_the_waits_of_packed_fibers() -> None:
    queue: pyfiber.Queue[int] = pyfiber.Queue()

    def wait() -> str:
        try:
            queue.get(timeout=0.005)
        except queue_module.Empty:
            return "late"
        return "in time"

    def main() -> list[str]:
        fibers = [spawn(deep, i % 3, wait) for i in range(20)]
        return [fiber.result() for fiber in fibers]

    assert running(main) == ["late"] * 20
    assert queue.empty()


def test_context_variables_stay_with_their_fiber() -> None:
    import contextvars

    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    def work(i: int) -> bool:
        variable.set(i)
        for _ in range(5):
            yield_now()
        return variable.get() == i

    def main() -> bool:
        fibers = [spawn(work, i) for i in range(20)]
        return all(fiber.result() for fiber in fibers)

    assert running(main)


def test_handled_exception_is_still_being_handled() -> None:
    def work(i: int) -> None:
        try:
            raise KeyError(i)
        except KeyError:
            for _ in range(4):
                yield_now()
            error = sys.exc_info()[1]
            assert error is not None
            assert error.args == (i,)
            with pytest.raises(KeyError, match=str(i)):
                raise

    def main() -> None:
        fibers = [spawn(work, i) for i in range(20)]
        for fiber in fibers:
            fiber.result()

    running(main)


# ------------------------------------------------------------------- numbers


@pytest.mark.parametrize("count", [100, 1_000])
def test_up_to_four_times_as_many_fibers_as_slots_are_never_packed(count: int) -> None:
    def main() -> int:
        before = counted("packings")
        fibers = [spawn(park) for _ in range(count)]
        yield_now()
        for fiber in fibers:
            fiber.unpark()
            fiber.result()
        return counted("packings") - before

    assert running(main, slots=256) == 0


def test_fibers_that_take_turns_get_a_stack_each() -> None:
    def turns() -> None:
        for _ in range(10):
            yield_now()

    def main() -> int:
        fibers = [spawn(turns) for _ in range(300)]
        for _ in range(5):
            yield_now()
        before = counted("packings")
        for _ in range(4):
            yield_now()
        moved = counted("packings") - before
        for fiber in fibers:
            fiber.result()
        return moved

    running(main, slots=64)
    assert running(main, slots=64) == 0


@pytest.mark.parametrize("stack_size", [None, 256 << 10])
def test_more_fibers_share_so_many_slots(stack_size: int | None) -> None:
    """One stack of a slab stays in use, and the next one in use is behind all its vacant ones."""

    def main() -> int:
        fibers = [Fiber(park, stack_size=stack_size).start() for _ in range(2_000)]
        yield_now()
        wanted = max(stats["wanted"] for stats in pyfiber.debug.stack_stats() if stats["packed"])
        for fiber in fibers:
            fiber.unpark()
            fiber.result()
        return wanted

    assert in_a_fresh_thread(partial(running, main, slots=256)) == 256


def test_many_that_wait_share_the_slots() -> None:
    def main() -> int:
        fibers = [spawn(deep, 1, park) for _ in range(2000)]
        yield_now()
        packed = counted("packed")
        for fiber in fibers:
            fiber.unpark(fiber)
        assert all(fiber.result() is fiber for fiber in fibers)
        return packed

    assert in_a_fresh_thread(partial(running, main, slots=64)) >= 2000 - 80


def test_idle_loop_takes_the_stacks_of_those_that_were_busy() -> None:
    """On the real clock: a second is what an idle loop waits for."""

    def wait_thrice() -> None:
        for _ in range(3):
            park()

    def main() -> tuple[int, int, int]:
        fibers = [spawn(wait_thrice) for _ in range(1000)]
        yield_now()
        for _ in range(2):
            for fiber in fibers:
                fiber.unpark()
            yield_now()
        busy = counted("packed")
        waits = pyfiber.current_scheduler().stats()["waits"]
        ends = pyfiber.now() + 30
        while counted("packed") < 1000 - 64 and pyfiber.now() < ends:
            sleep(0.5)
        idle = counted("packed")
        waits = pyfiber.current_scheduler().stats()["waits"] - waits
        for fiber in fibers:
            fiber.unpark()
            fiber.result()
        return busy, idle, waits

    busy, idle, waits = running(main, slots=64)
    assert busy < 950
    assert idle >= 1000 - 64
    assert waits < 80


def test_statistics_are_zero_after_all_have_ended() -> None:
    names = ("packed", "packed_bytes", "packings", "unpackings")
    before = [counted(name) for name in names]
    packs(lambda: sleep(0.001), lambda: None)
    packed, held, packings, unpackings = (
        counted(name) - was for name, was in zip(names, before, strict=True)
    )
    assert packed == held == 0
    assert packings == unpackings > 0


def test_without_slots_nothing_is_packed() -> None:
    def main() -> int:
        before = counted("packings")
        fibers = [spawn(park) for _ in range(600)]
        yield_now()
        for fiber in fibers:
            fiber.unpark()
            fiber.result()
        return counted("packings") - before

    assert running(main, slots=0) == 0


@pytest.mark.parametrize("slots", [-1, 1])
def test_number_of_slots_that_makes_no_sense_is_refused(slots: int) -> None:
    with pytest.raises(ValueError, match="slots must be 0"):
        Scheduler(slots=slots)


def test_slots_must_be_a_number() -> None:
    with pytest.raises(TypeError):
        Scheduler(slots="many")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1", "-3", "many", "2x"])
def test_environment_that_makes_no_sense_is_refused(text: str) -> None:
    done = run_python("-c", "import pyfiber", env={"PYFIBER_SLOTS": text})
    assert done.returncode != 0
    assert "PYFIBER_SLOTS must be 0 or a number from 2 on" in done.stderr


def test_environment_sets_the_default() -> None:
    code = "import pyfiber; print(pyfiber.debug.info()['slots'])"
    done = run_python("-c", code, env={"PYFIBER_SLOTS": "7"})
    assert done.stdout == "7\n"


# -------------------------------------------------------------------- at random


@pytest.mark.parametrize("slots", [2, 3, 17])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_random_programs_do_the_same_with_few_stacks(slots: int, seed: int) -> None:
    """Who shares stacks and who has one of his own see the same order of everything."""

    def program() -> list[Any]:
        numbers = random.Random(seed)
        queue: pyfiber.Queue[int] = pyfiber.Queue(3)
        lock = pyfiber.Lock()
        log: list[Any] = []

        def act(name: int, depth: int) -> None:
            kind = numbers.randrange(6)
            log.append((name, depth, kind))
            if depth > 0 and kind < 2:
                act(name, depth - 1)
            elif kind == 2:
                with lock:
                    yield_now()
            elif kind == 3 and not queue.full():
                queue.put(name)
            elif kind == 4 and not queue.empty():
                log.append(queue.get())
            else:
                yield_now()

        def work(name: int) -> None:
            mine = [name]
            for _ in range(8):
                act(name, 4)
                assert mine == [name]

        def main() -> None:
            fibers = [spawn(work, name) for name in range(numbers.randrange(2, 20))]
            for fiber in fibers:
                fiber.result()

        running(main, slots)
        return log

    few = program()
    slots = 0
    assert program() == few


# ------------------------------------------------------------------------- at exit


def test_fiber_freed_at_exit_is_not_looked_for_on_its_stack() -> None:
    """Then nothing is unwound any more: the stack stays in use, without its fiber."""
    program = """if True:
        import pyfiber

        class Last:
            def __del__(self, pyfiber=pyfiber):
                for _ in range(40):
                    pyfiber.Fiber(pyfiber.current().switch).switch()
                pyfiber.run(lambda: [pyfiber.spawn(pyfiber.sleep, 0) for _ in range(100)])
                print("done")

        pyfiber.run(int)
        last = Last()
    """
    done = run_python("-c", program, env={"PYFIBER_SLOTS": "2"})
    assert done.stdout == "done\n", done.stderr
