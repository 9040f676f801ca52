"""spawn(), start(), join(), result(), exception(), done-callbacks, and the log of lost failures."""

from __future__ import annotations

import contextvars
import traceback
from typing import Any

import pytest

from pyfiber import (
    Failed,
    Fiber,
    FiberCancelled,
    FiberError,
    current,
    park,
    run,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import run as run_virtually

Log = list[Any]


# spawn and start ----------------------------------------------------------------------------------


def test_spawn_returns_a_ready_fiber_and_does_not_run_it() -> None:
    log: Log = []

    def main() -> None:
        fiber = spawn(log.append, "ran")
        assert isinstance(fiber, Fiber)
        assert fiber.state == "ready"
        assert not fiber.done()
        assert log == []

    run(main)
    assert log == ["ran"]


def test_spawned_fibers_run_first_in_first_out() -> None:
    log: Log = []

    def main() -> None:
        for i in range(100):
            spawn(log.append, i)

    run(main)
    assert log == list(range(100))


def test_spawned_fibers_that_yield_take_turns() -> None:
    log: Log = []

    def body(name: str) -> None:
        for i in range(3):
            log.append(f"{name}{i}")
            yield_now()

    def main() -> None:
        for name in "abc":
            spawn(body, name)

    run(main)
    assert log == ["a0", "b0", "c0", "a1", "b1", "c1", "a2", "b2", "c2"]


def test_spawn_from_a_fiber_queues_behind_those_that_are_ready() -> None:
    log: Log = []

    def first() -> None:
        log.append("first")
        spawn(log.append, "third")

    def main() -> None:
        spawn(first)
        spawn(log.append, "second")

    run(main)
    assert log == ["first", "second", "third"]


def test_spawn_passes_args_and_kwargs() -> None:
    def fn(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        return args, kwargs

    assert run(lambda: spawn(fn, 1, "two", fn=3, a=4).result()) == ((1, "two"), {"fn": 3, "a": 4})


def test_spawn_with_only_kwargs() -> None:
    assert run(lambda: spawn(dict, a=1).result()) == {"a": 1}


def test_spawned_fiber_has_no_parent() -> None:
    def main() -> None:
        fiber = spawn(lambda: None)
        assert fiber.parent is None
        with pytest.raises(FiberError, match="no parent"):
            fiber.parent = current()

    run(main)


def test_spawn_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError, match=r"spawn\(\) needs a running scheduler"):
        spawn(lambda: None)


@pytest.mark.parametrize("bad", [None, 1, "name"])
def test_spawn_of_what_cannot_be_called_is_a_type_error(bad: Any) -> None:
    def main() -> None:
        with pytest.raises(TypeError, match=f"takes a function, not '{type(bad).__name__}'"):
            spawn(bad)

    run(main)


def test_spawn_without_a_function_is_a_type_error() -> None:
    def main() -> None:
        with pytest.raises(TypeError, match="needs a function"):
            spawn()  # type: ignore[call-arg]

    run(main)


def test_start_returns_the_fiber() -> None:
    def main() -> None:
        fiber = Fiber(lambda: 5)
        assert fiber.start() is fiber
        assert fiber.result() == 5

    run(main)


def test_start_honours_the_constructors_options() -> None:
    context = contextvars.copy_context()
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
    context.run(variable.set, 7)

    def body(a: int, b: int) -> tuple[int, int, int, str]:
        return a, b, variable.get(), current().name

    def main() -> None:
        fiber = Fiber(
            body, (1,), {"b": 2}, name="special", stack_size=512 * 1024, context=context
        ).start()
        assert fiber.result() == (1, 2, 7, "special")

    run(main)


def test_start_runs_a_subclass_that_defines_run() -> None:
    class Mine(Fiber[str]):
        def run(self) -> str:
            yield_now()
            return "mine"

    assert run(lambda: Mine().start().result()) == "mine"


def test_start_of_a_subclass_without_run_fails_in_the_fiber() -> None:
    class Mine(Fiber[str]):
        pass

    def main() -> None:
        with pytest.raises(AttributeError, match="run"):
            Mine().start().result()

    run(main)


def test_start_twice_is_refused() -> None:
    def main() -> None:
        fiber = Fiber(lambda: 5).start()
        with pytest.raises(FiberError, match="started already"):
            fiber.start()
        fiber.join()
        with pytest.raises(FiberError, match="started already"):
            fiber.start()

    run(main)


def test_start_outside_of_a_run_is_refused_and_may_be_tried_again() -> None:
    fiber = Fiber(lambda: 5)
    with pytest.raises(FiberError, match=r"start\(\) needs a running scheduler"):
        fiber.start()
    assert run(lambda: fiber.start().result()) == 5


def test_start_of_a_fiber_that_was_switched_to_is_refused() -> None:
    def main() -> None:
        me = current()
        fiber: Fiber[None] = Fiber(lambda: me.switch())
        fiber.switch()
        with pytest.raises(FiberError, match="started already"):
            fiber.start()
        fiber.switch()

    run(main)


def test_start_of_the_running_fiber_is_refused() -> None:
    def main() -> None:
        with pytest.raises(FiberError, match="started already"):
            current().start()

    run(main)


def test_spawned_fiber_cannot_be_switched_to() -> None:
    def main() -> None:
        fiber = spawn(park)
        for _ in range(2):
            with pytest.raises(FiberError, match="belongs to a scheduler"):
                fiber.switch()
            with pytest.raises(FiberError, match="belongs to a scheduler"):
                fiber.throw(ValueError)
            yield_now()
        fiber.unpark()

    run(main)


def test_spawned_fiber_has_a_copy_of_the_creators_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")

    def child() -> str:
        seen = variable.get()
        variable.set("child's")
        yield_now()
        assert variable.get() == "child's"
        return seen

    def main() -> None:
        variable.set("first")
        one = spawn(child)
        variable.set("second")
        two = spawn(child)
        assert (one.result(), two.result()) == ("first", "second")
        assert variable.get() == "second"

    run(main)


def test_spawn_many_of_different_stack_sizes() -> None:
    def main() -> list[int]:
        sizes = [256 * 1024, 1024 * 1024, 512 * 1024]
        fibers = [
            Fiber(lambda i=i: (yield_now(), i)[1], stack_size=sizes[i % 3]).start()
            for i in range(60)
        ]
        return [fiber.result() for fiber in fibers]

    assert run(main) == list(range(60))


# join, result, exception --------------------------------------------------------------------------


def test_join_waits_and_says_true() -> None:
    def main() -> None:
        fiber = spawn(lambda: [yield_now() for _ in range(3)])
        assert fiber.join() is True
        assert fiber.done()
        assert fiber.join() is True
        assert fiber.join(0) is True

    run(main)


def test_join_after_its_timeout_says_false() -> None:
    def main() -> None:
        fiber = spawn(park)
        assert fiber.join(0.001) is False
        assert fiber.join(timeout=0) is False
        assert fiber.state == "parked"
        fiber.unpark()
        assert fiber.join(60) is True

    run(main)


def test_join_wakes_all_who_wait_in_their_order() -> None:
    log: Log = []

    def waits(name: str, target: Fiber[Any]) -> None:
        target.join()
        log.append(name)

    def main() -> None:
        target = spawn(park)
        for name in "abc":
            spawn(waits, name, target)
        yield_now()
        target.unpark()

    run(main)
    assert log == ["a", "b", "c"]


def test_join_with_one_waiter_timing_out_among_others() -> None:
    log: Log = []

    def waits(name: str, target: Fiber[Any], timeout: float | None) -> None:
        log.append((name, target.join(timeout)))

    def main() -> None:
        target = spawn(park)
        for name, timeout in (("a", None), ("b", 1), ("c", 60), ("d", 1)):
            spawn(waits, name, target, timeout)
        sleep(5)
        target.unpark()

    run_virtually(main)
    assert log == [("b", False), ("d", False), ("a", True), ("c", True)]


def test_join_does_not_raise_the_failure() -> None:
    def main() -> None:
        fiber = spawn(lambda: 1 // 0)
        assert fiber.join()
        assert isinstance(fiber.exception(), ZeroDivisionError)

    run(main)


def test_join_is_not_woken_by_a_stray_unpark() -> None:
    def main() -> None:
        me = current()
        target = spawn(park)
        spawn(me.unpark, "stray")
        assert target.join(0.002) is False
        assert park() == "stray"
        target.unpark()

    run(main)


def test_join_of_itself_is_refused() -> None:
    def main() -> None:
        for wait in (current().join, current().result, current().exception):
            with pytest.raises(FiberError, match="its own end"):
                wait()

    run(main)


def test_join_of_a_fiber_that_was_not_started_is_refused() -> None:
    def main() -> None:
        with pytest.raises(FiberError, match="not started on a scheduler"):
            Fiber(lambda: None).join()

    run(main)


def test_join_outside_of_a_run_works_when_it_is_done() -> None:
    fiber = run(lambda: spawn(lambda: "result"))
    assert fiber.join()
    assert fiber.result() == "result"
    assert fiber.exception() is None


def test_two_fibers_that_join_each_other_end_when_one_is_cancelled() -> None:
    def main() -> None:
        box: list[Fiber[Any]] = []
        box.append(spawn(lambda: box[1].join()))
        box.append(spawn(lambda: box[0].join()))
        yield_now()
        box[0].cancel()
        box[1].join()
        assert box[0].cancelled()
        assert box[1].result() is True

    run(main)


def test_result_gives_the_value_to_everyone() -> None:
    def main() -> None:
        thing = object()
        target = spawn(lambda: (yield_now(), thing)[1])
        others = [spawn(target.result) for _ in range(3)]
        assert [other.result() for other in others] == [thing] * 3
        assert target.result() is thing

    run(main)


def test_result_raises_the_very_exception_each_time() -> None:
    error = ValueError("mine")

    def fail() -> None:
        raise error

    def main() -> None:
        fiber = spawn(fail)
        for _ in range(3):
            with pytest.raises(ValueError, match="mine") as caught:
                fiber.result()
            assert caught.value is error
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        assert names[-1] == "fail"

    run(main)


@pytest.mark.parametrize("method", ["result", "exception"])
def test_result_timeout_raises_timeout_error(method: str) -> None:
    def main() -> None:
        fiber = spawn(park)
        for timeout in (0, 0.001):
            with pytest.raises(TimeoutError, match="not finished"):
                getattr(fiber, method)(timeout)
            with pytest.raises(TimeoutError, match="not finished"):
                getattr(fiber, method)(timeout=timeout)
        fiber.unpark()

    run(main)


def test_exception_of_a_success_is_none() -> None:
    assert run(lambda: spawn(lambda: 1).exception()) is None


def test_exception_of_a_failure_is_returned() -> None:
    assert isinstance(run(lambda: spawn(lambda: 1 // 0).exception()), ZeroDivisionError)


@pytest.mark.parametrize("method", ["result", "exception"])
def test_result_of_a_cancelled_fiber_raises_fiber_cancelled(method: str) -> None:
    def main() -> None:
        fiber = spawn(park)
        yield_now()
        fiber.cancel("reason")
        with pytest.raises(FiberCancelled, match="reason") as caught:
            getattr(fiber, method)()
        assert caught.value.reason == "reason"

    run(main)


@pytest.mark.parametrize("timeout", ["soon", [], object(), 1j])
@pytest.mark.parametrize("method", ["join", "result", "exception"])
def test_join_timeout_must_be_a_number(method: str, timeout: Any) -> None:
    def main() -> None:
        fiber = spawn(lambda: None)
        with pytest.raises(TypeError, match="timeout must be a number"):
            getattr(fiber, method)(timeout)

    run(main)


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("-inf")])
@pytest.mark.parametrize("method", ["join", "result", "exception"])
def test_join_timeout_must_not_be_negative_or_nan(method: str, timeout: float) -> None:
    def main() -> None:
        fiber = spawn(lambda: None)
        with pytest.raises(ValueError, match="must not be"):
            getattr(fiber, method)(timeout)

    run(main)


@pytest.mark.parametrize("timeout", [float("inf"), 1e300, 10**18, None])
def test_join_timeout_may_be_huge(timeout: float | None) -> None:
    assert run(lambda: spawn(lambda: 1).join(timeout)) is True


# Size ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_spawn_a_hundred_thousand_that_all_wait_for_one() -> None:
    def main() -> int:
        gate = spawn(park)
        fibers = [spawn(lambda i=i: (gate.join(), i)[1]) for i in range(100_000)]
        yield_now()
        yield_now()
        gate.unpark()
        return sum(fiber.result() for fiber in fibers)

    assert run(main) == sum(range(100_000))


def test_failure_deep_in_a_stack_keeps_its_traceback() -> None:
    def deep(n: int) -> None:
        if n == 0:
            raise ValueError("deep")
        deep(n - 1)

    def main() -> None:
        fiber = spawn(deep, 200)
        error = fiber.exception()
        assert error is not None
        assert len(traceback.extract_tb(error.__traceback__)) == 201
        assert fiber.outcome == Failed(error)

    run(main)


def test_recursion_error_in_a_fiber_is_its_failure() -> None:
    def deep() -> None:
        deep()

    def main() -> str:
        fiber = spawn(deep)
        assert isinstance(fiber.exception(), RecursionError)
        return "fine"

    assert run(main) == "fine"
