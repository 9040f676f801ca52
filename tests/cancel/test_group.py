"""TaskGroup: who is waited for, who is cancelled, what comes out."""

from __future__ import annotations

import gc
import re
import threading
import traceback
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelledOutcome,
    CancelScope,
    Fiber,
    FiberError,
    Ok,
    TaskGroup,
    current,
    park,
    run,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import run as run_virtually
from tests.support.failing import Boom, fails, fails_late, leaves
from tests.support.threads import PATIENCE

Log = list[Any]


# Waiting ------------------------------------------------------------------------------------------


def test_group_waits_for_its_fibers() -> None:
    log: Log = []

    def body(n: int) -> int:
        sleep(1 * n)
        log.append(n)
        return n

    def main() -> None:
        with TaskGroup() as group:
            fibers = [group.spawn(body, n) for n in (3, 1, 2)]
            log.append("spawned")
        log.append("left")
        assert [fiber.outcome for fiber in fibers] == [Ok(3), Ok(1), Ok(2)]

    run_virtually(main)
    assert log == ["spawned", 1, 2, 3, "left"]


def test_group_where_the_fiber_must_not_be_left_does_not_wait() -> None:
    refused: list[FiberError] = []
    children: list[Fiber[Any]] = []

    def callback(_: object) -> None:
        try:
            with TaskGroup() as group:
                children.append(group.spawn(park))
        except FiberError as exc:
            refused.append(exc)

    run(lambda: spawn(int).add_done_callback(callback))
    assert len(refused) == 1
    assert children[0].cancelled()


def test_empty_group_is_left_at_once() -> None:
    def main() -> None:
        with TaskGroup() as group:
            pass
        assert not group.cancel_called

    run(main)


def test_spawn_passes_arguments_on() -> None:
    def body(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def main() -> None:
        with TaskGroup() as group:
            fiber = group.spawn(body, 1, 2, three=3)
        assert fiber.result() == ((1, 2), {"three": 3})

    run(main)


def test_spawn_takes_a_fiber_that_was_not_started() -> None:
    def main() -> None:
        with TaskGroup() as group:
            mine = Fiber(lambda: current().name, name="mine")
            assert group.spawn(mine) is mine
        assert mine.result() == "mine"

    run(main)


def test_fibers_of_a_group_may_spawn_into_it() -> None:
    log: Log = []

    def main() -> None:
        with TaskGroup() as group:

            def body(depth: int) -> None:
                yield_now()
                log.append(depth)
                if depth:
                    group.spawn(body, depth - 1)

            group.spawn(body, 5)
        log.append("left")

    run(main)
    assert log == [5, 4, 3, 2, 1, 0, "left"]


def test_plain_spawn_in_a_group_is_the_run_s() -> None:
    def main() -> Fiber[Any]:
        with TaskGroup() as group:
            fiber = spawn(park)
            group.spawn(yield_now)
        assert not fiber.done()
        fiber.unpark("value")
        return fiber

    assert run(main).result() == "value"


def test_group_waits_for_a_daemon_fiber() -> None:
    log: Log = []

    def body() -> None:
        sleep(1)
        log.append("done")

    def main() -> None:
        with TaskGroup() as group:
            group.spawn(Fiber(body, daemon=True))
        log.append("left")

    run_virtually(main)
    assert log == ["done", "left"]


def test_group_on_a_raw_fiber() -> None:
    def main() -> None:
        log: Log = []

        def raw() -> None:
            with TaskGroup() as group:
                group.spawn(log.append, 1)
            log.append(2)

        fiber: Fiber[None] = Fiber(raw)
        fiber.switch()
        while not fiber.done():
            yield_now()
        assert log == [1, 2]

    run(main)


# Failures -----------------------------------------------------------------------------------------


def test_failure_of_a_fiber_cancels_the_others_and_the_block() -> None:
    log: Log = []

    def waits(name: str) -> None:
        try:
            park()
        except Cancelled as exc:
            log.append((name, exc.reason, exc.by))
            raise

    def main() -> None:
        fibers: list[Fiber[Any]] = []
        error = Boom()
        with pytest.raises(ExceptionGroup) as caught, TaskGroup() as group:
            fibers.append(group.spawn(waits, "sibling"))
            fibers.append(group.spawn(fails, error))
            waits("body")
        assert caught.value.exceptions == (error,)
        assert caught.value.__suppress_context__
        assert fibers[0].cancelled()
        reason = "another fiber of the group failed"
        assert sorted(log) == [("body", reason, fibers[1]), ("sibling", reason, fibers[1])]
        sleep(0)  # this fiber is not cancelled any more

    run(main)


def test_failure_of_the_block_cancels_the_fibers() -> None:
    def main() -> None:
        fibers: list[Fiber[Any]] = []
        error = Boom()
        with pytest.raises(ExceptionGroup) as caught, TaskGroup() as group:
            fibers.append(group.spawn(park))
            yield_now()
            raise error
        assert caught.value.exceptions == (error,)
        assert fibers[0].outcome == CancelledOutcome("the block of the group ended early")

    run(main)


def test_failure_of_the_block_alone_comes_out_in_a_group_as_well() -> None:
    def main() -> None:
        with pytest.raises(ExceptionGroup) as caught, TaskGroup():
            raise Boom
        assert isinstance(caught.value.exceptions[0], Boom)

    run(main)


def test_all_failures_come_out() -> None:
    """Those of fibers that failed while they were being cancelled, too."""

    def main() -> None:
        with pytest.raises(ExceptionGroup) as caught, TaskGroup() as group:
            for n in (1, 2, 3):
                group.spawn(fails_late, Boom(n))
            yield_now()
            raise Boom(0)
        numbers = [error.args[0] for error in leaves(caught.value)]
        assert numbers[0] == 0
        assert sorted(numbers) == [0, 1, 2, 3]

    run(main)


def test_failure_that_the_block_asked_for_comes_out_once() -> None:
    def main() -> None:
        with pytest.raises(ExceptionGroup) as caught, TaskGroup() as group:
            group.spawn(fails, Boom()).result()
        assert len(caught.value.exceptions) == 1

    run(main)


def test_except_star_takes_errors_apart() -> None:
    log: Log = []

    def main() -> None:
        try:
            with TaskGroup() as group:
                group.spawn(fails_late, KeyError("k"))
                yield_now()
                group.spawn(fails, ValueError("v"))
        except* ValueError as errors:
            log.append(errors.exceptions)
        except* KeyError as errors:
            log.append(errors.exceptions)

    run(main)
    assert [type(errors[0]) for errors in log] == [ValueError, KeyError]


def test_failure_in_a_group_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        with pytest.raises(ExceptionGroup), TaskGroup() as group:
            group.spawn(fails, Boom())
        gc.collect()

    run(main)
    gc.collect()
    assert not caplog.records


def test_traceback_shows_where_the_fiber_failed() -> None:
    def main() -> None:
        with TaskGroup() as group:
            group.spawn(fails, Boom("here"))

    with pytest.raises(ExceptionGroup) as caught:
        run(main)
    text = "".join(traceback.format_exception(caught.value))
    assert "errors in a TaskGroup; catch with" in text
    assert "in fails" in text


def test_base_exceptions_make_a_base_exception_group() -> None:
    class Odd(BaseException):
        pass

    def main() -> None:
        with pytest.raises(BaseExceptionGroup) as caught, TaskGroup() as group:
            group.spawn(fails, Odd())
        assert not isinstance(caught.value, ExceptionGroup)

    run(main)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupts_in_the_block_come_out_as_they_are(kind: type[BaseException]) -> None:
    fibers: list[Fiber[Any]] = []

    def main() -> None:
        with TaskGroup() as group:
            fibers.append(group.spawn(park))
            yield_now()
            raise kind

    with pytest.raises(kind):
        run(main)
    assert fibers[0].cancelled()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupts_in_a_fiber_come_out_as_they_are(kind: type[BaseException]) -> None:
    log: Log = []

    def main() -> None:
        try:
            with TaskGroup() as group:
                group.spawn(fails, kind())
                group.spawn(park)
        except BaseException as exc:
            log.append(type(exc))
            raise

    with pytest.raises(kind):
        run(main)
    assert log == [kind]


def test_interrupt_beside_an_error_keeps_it_as_its_context() -> None:
    def main() -> None:
        with TaskGroup() as group:
            group.spawn(fails_late, Boom())
            yield_now()
            group.spawn(fails, SystemExit(3))

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert isinstance(caught.value.__context__, ExceptionGroup)


def test_generator_exit_in_the_block_is_no_error() -> None:
    def generator() -> Any:
        with TaskGroup() as group:
            fibers.append(group.spawn(park))
            yield

    fibers: list[Fiber[Any]] = []

    def main() -> None:
        items = generator()
        next(items)
        items.close()
        assert fibers[0].done()

    run(main)


# Nested -------------------------------------------------------------------------------------------


def test_nested_groups_nest_their_errors() -> None:
    def inner() -> None:
        with TaskGroup() as group:
            group.spawn(fails, Boom("deep"))

    def main() -> None:
        with pytest.raises(ExceptionGroup) as caught, TaskGroup() as group:
            group.spawn(inner)
            group.spawn(park)
        (error,) = caught.value.exceptions
        assert isinstance(error, ExceptionGroup)
        assert str(error.exceptions[0]) == "deep"

    run(main)


def test_groups_nested_in_one_fiber() -> None:
    log: Log = []

    def main() -> None:
        with TaskGroup() as a, TaskGroup() as b, TaskGroup() as c:
            for group in (a, b, c):
                group.spawn(log.append, 1)
        assert log == [1, 1, 1]

    run(main)


def test_chain_of_groups_as_deep_as_it_gets_is_cancelled_without_recursion() -> None:
    depth = 5_000
    ended = 0

    def body(level: int) -> None:
        nonlocal ended
        try:
            with TaskGroup() as group:
                if level:
                    group.spawn(body, level - 1)
                park()
        finally:
            ended += 1

    def main() -> None:
        with CancelScope() as scope, TaskGroup() as group:
            group.spawn(body, depth - 1)
            for _ in range(depth + 2):
                yield_now()
            scope.cancel()

    run(main)
    assert ended == depth


@pytest.mark.slow
def test_million_children_through_one_group_hold_memory_flat() -> None:
    import psutil

    def main() -> None:
        memory = psutil.Process().memory_info
        with TaskGroup() as group:
            for i in range(1_000_000):
                group.spawn(int)
                if i % 100 == 99:
                    yield_now()
                if i == 50_000:
                    before = memory().rss
        assert memory().rss - before < 4 << 20

    run(main)


def test_children_that_are_done_are_let_go() -> None:
    import weakref

    class Result:
        pass

    def main() -> None:
        with TaskGroup() as group:
            fiber = group.spawn(Result)
            ref = weakref.ref(fiber.result())
            del fiber
            yield_now()
            assert ref() is None

    run(main)


def test_scope_that_lives_long_does_not_grow() -> None:
    def main() -> None:
        with CancelScope():
            gc.collect()
            before = len(gc.get_objects())
            for _ in range(2_000):
                with TaskGroup() as group:
                    group.spawn(int)
                with CancelScope():
                    pass
            gc.collect()
            assert len(gc.get_objects()) < before + 100

    run(main)


# Misuse -------------------------------------------------------------------------------------------


def test_spawn_before_entering_and_after_leaving_is_refused() -> None:
    def main() -> None:
        group = TaskGroup()
        with pytest.raises(FiberError, match="has not been entered"):
            group.spawn(int)
        with group:
            pass
        with pytest.raises(FiberError, match="takes no more fibers"):
            group.spawn(int)

    run(main)


def test_spawn_from_another_thread_is_refused() -> None:
    errors: Log = []

    def main() -> None:
        with TaskGroup() as group:

            def elsewhere() -> None:
                for fn in (lambda: group.spawn(int), lambda: run(group.spawn, int)):
                    try:
                        fn()
                    except FiberError as error:
                        errors.append(str(error))

            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

    run(main)
    assert len(errors) == 2
    assert all("belongs to another run" in error for error in errors)


def test_spawn_refuses_bad_arguments() -> None:
    def main() -> None:
        started = spawn(int)
        with TaskGroup() as group:
            with pytest.raises(TypeError, match="needs a function"):
                group.spawn()  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="not 'int'"):
                group.spawn(3)  # type: ignore[call-overload]
            with pytest.raises(TypeError, match="takes it alone"):
                group.spawn(Fiber(int), 3)  # type: ignore[call-overload]
            with pytest.raises(FiberError, match="started already"):
                group.spawn(started)
            with pytest.raises(FiberError, match="started already"):
                group.spawn(current())
            child = group.spawn(park)
            with pytest.raises(FiberError, match="started already"):
                group.spawn(child)
            child.unpark()
        assert child.result() is None
        started.join()

    run(main)


def test_group_entered_twice_is_refused() -> None:
    def main() -> None:
        with TaskGroup() as group, pytest.raises(FiberError, match="been entered already"):
            group.__enter__()

    run(main)


def test_group_left_in_the_wrong_order_cancels_its_fibers() -> None:
    def main() -> None:
        group = TaskGroup()
        group.__enter__()
        fiber = group.spawn(park)
        yield_now()
        inner = CancelScope()
        inner.__enter__()
        with pytest.raises(FiberError, match="CancelScope"):
            group.__exit__(None, None, None)
        fiber.join()
        assert fiber.cancelled()
        inner.__exit__(None, None, None)

    run(main)


def test_group_left_by_another_fiber_while_its_owner_waits() -> None:
    def main() -> None:
        groups: list[TaskGroup] = []

        def owner() -> None:
            with TaskGroup() as group:
                groups.append(group)
                group.spawn(park)

        fiber = spawn(owner)
        yield_now()
        yield_now()
        with pytest.raises(FiberError, match="cannot be left on"):
            groups[0].__exit__(None, None, None)
        fiber.join(PATIENCE)
        assert fiber.done()

    run(main)


def test_group_in_a_generator_that_the_collector_closes_is_reported() -> None:
    """Nobody can wait there: the fibers are cancelled, and somebody is told."""
    import sys

    raised: Log = []
    fibers: list[Fiber[Any]] = []

    def generator() -> Any:
        with TaskGroup() as group:
            fibers.append(group.spawn(park))
            yield

    def main() -> None:
        items = generator()
        next(items)
        cycle: Log = [items]
        cycle.append(cycle)
        del items, cycle
        yield_now()
        hook = sys.unraisablehook
        sys.unraisablehook = lambda args: raised.append(args.exc_value)
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook
        fibers[0].join()
        assert fibers[0].cancelled()

    run(main)
    assert len(raised) == 1
    assert isinstance(raised[0], FiberError)
    assert "garbage collector" in str(raised[0])


def test_deadlock_report_names_the_group(child: Any) -> None:
    done = child("""
        from pyfiber import *
        def main():
            with TaskGroup() as group:
                group.spawn(park)
        try:
            run(main)
        except DeadlockError as error:
            print(error)
    """)
    assert re.search(
        r"waits for the end of fiber 'park' at \w+, of <TaskGroup entered by 'main' at \w+>\n",
        done.stdout,
    )
    assert "waits in park()" in done.stdout


def test_deadlock_report_names_a_cycle_through_a_group(child: Any) -> None:
    done = child("""
        import re
        from pyfiber import *
        def main():
            lock = Lock()
            with lock, TaskGroup() as group:
                group.spawn(lock.acquire).name = "child"
        try:
            run(main)
        except DeadlockError as error:
            print(re.sub(r" at 0x[0-9a-fA-F]+", "", str(error)))
    """)
    cycle = done.stdout[done.stdout.index("they wait for each other") :].splitlines()[:3]
    assert cycle == [
        "they wait for each other:",
        "  fiber 'main' waits for the end of fiber 'child'",
        "  fiber 'child' waits for <locked pyfiber.Lock object>, held by fiber 'main'",
    ]


def test_group_can_be_subclassed() -> None:
    class Counting(TaskGroup):
        def __init__(self) -> None:
            super().__init__()
            self.spawned = 0

        def spawn(self, *args: Any, **kwargs: Any) -> Any:
            self.spawned += 1
            return super().spawn(*args, **kwargs)

    def main() -> None:
        with Counting() as group:
            group.spawn(int)
        assert group.spawned == 1

    run(main)


# what the message says ----------------------------------------------------------------------------


def message_of(*errors: BaseException) -> str:
    def main() -> None:
        with TaskGroup() as group:
            for error in errors[1:]:
                group.spawn(fails_late, error)
            group.spawn(fails, errors[0])

    with pytest.raises(BaseExceptionGroup) as caught:
        run(main)
    return str(caught.value.message)


def test_group_error_says_how_to_catch_it() -> None:
    """`except ValueError` does not: whoever tries it must be told."""
    assert message_of(ValueError()) == ('errors in a TaskGroup; catch with "except* ValueError:"')
    assert message_of(ValueError(), KeyError(), ValueError()).endswith(
        '"except* (ValueError, KeyError):"'
    )
    assert message_of(ValueError(), KeyError(), TypeError(), OSError()).endswith(
        '"except* Exception:"'
    )


def test_group_error_names_the_errors_in_groups_within() -> None:
    """`except* ExceptionGroup` is a TypeError."""
    inner = ExceptionGroup("inner", [Boom(), ExceptionGroup("innermost", [KeyError()])])
    assert message_of(inner).endswith('"except* (Boom, KeyError):"')


def test_group_error_is_caught_as_it_says() -> None:
    def main() -> None:
        with TaskGroup() as group:
            group.spawn(fails, Boom())

    caught = []
    try:
        run(main)
    except* Boom as exc:
        caught.append(exc)
    assert len(caught) == 1


def test_errors_beside_an_interrupt_that_has_a_context_are_not_lost() -> None:
    """They were dropped: the place for them was taken."""

    def main() -> None:
        with TaskGroup() as group:
            group.spawn(fails_late, Boom())
            yield_now()
            try:
                raise KeyError
            except KeyError:
                raise KeyboardInterrupt from None

    with pytest.raises(KeyboardInterrupt) as caught:
        run(main)
    chain = []
    context = caught.value.__context__
    while context is not None:
        chain.append(context)
        context = context.__context__
    assert [type(each) for each in chain] == [KeyError, ExceptionGroup]
