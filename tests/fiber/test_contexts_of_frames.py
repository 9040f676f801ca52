"""Frames that are dropped are closed in the context of the fiber or grain that they belong to.

A generator that resets a ContextVar's token in `finally` fails in any other context, and what it
raises there is printed as ignored.
"""

from __future__ import annotations

import contextvars
import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyfiber
from pyfiber import grains
from tests.conftest import Child

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")
ended: list[str] = []


def rows() -> Iterator[int]:
    token = variable.set(1)
    try:
        yield 1
    finally:
        variable.reset(token)
        ended.append("reset")


def waits() -> None:
    iterator = rows()
    next(iterator)
    pyfiber.sleep(1000)


def waits_in_a_finally() -> None:
    try:
        waits()
    finally:
        pyfiber.yield_now()


def fails() -> None:
    iterator = rows()
    next(iterator)
    raise LookupError


def steps() -> Iterator[Any]:
    iterator = rows()
    next(iterator)
    yield grains.READY
    yield grains.SLEEPING
    del iterator


def steps_and_fails() -> Iterator[Any]:
    iterator = rows()
    next(iterator)
    yield grains.READY
    raise LookupError


def cancelled_fiber(fn: Callable[[], object] = waits) -> None:
    fiber = pyfiber.spawn(fn)
    pyfiber.yield_now()
    fiber.cancel()
    fiber.join()


def cancelled_in_a_finally() -> None:
    cancelled_fiber(waits_in_a_finally)


def cancelled_group() -> None:
    with pyfiber.TaskGroup() as group:
        group.spawn(waits)
        pyfiber.yield_now()
        group.cancel()


def failed_fiber() -> None:
    fiber = pyfiber.spawn(fails)
    fiber.join()
    assert isinstance(fiber.exception(), LookupError)


def dropped_raw_fiber() -> None:
    def body() -> None:
        iterator = rows()
        next(iterator)
        parent.switch()

    parent = pyfiber.current()
    fiber = pyfiber.Fiber(body)
    fiber.switch()
    del fiber
    gc.collect()
    pyfiber.yield_now()


def left_at_the_end_of_a_run() -> None:
    fiber = pyfiber.Fiber(waits, daemon=True)
    fiber.start()
    pyfiber.yield_now()


def cancelled_grain() -> None:
    grain = grains.spawn(steps())
    pyfiber.sleep(0.01)
    grain.cancel()
    grain.join()


def failed_grain() -> None:
    grain = grains.spawn(steps_and_fails())
    grain.join()
    assert isinstance(grain.exception(), LookupError)


def left_grain() -> None:
    grains.spawn(steps(), daemon=True) if False else None
    pool = grains.GrainPool().start()
    pool.queue(steps)
    pyfiber.sleep(0.01)
    pool.interrupt()
    pool.shutdown()


@pytest.mark.parametrize(
    "main",
    [
        cancelled_fiber,
        cancelled_in_a_finally,
        cancelled_group,
        failed_fiber,
        dropped_raw_fiber,
        left_at_the_end_of_a_run,
        cancelled_grain,
        failed_grain,
        left_grain,
    ],
    ids=lambda main: main.__name__,
)
def test_dropped_frames_are_closed_in_their_own_context(main: Callable[[], None]) -> None:
    """The project's settings make a failure that is printed as ignored one of the test."""
    ended.clear()
    pyfiber.run(main)
    gc.collect()
    assert ended == ["reset"]


def test_failure_of_garbage_is_dropped_where_variables_can_be_looked_up(child: Child) -> None:
    """The collector clears the fiber's context first; then the failure goes."""
    done = child(
        """
        import contextvars, datetime, gc
        from pyfiber import Fiber

        variable = contextvars.ContextVar("variable", default="default")

        class Last(datetime.tzinfo):
            def __del__(self):
                print(variable.get(), len(contextvars.copy_context()))

        class Loop(Fiber):
            pass

        def fail():
            # The collector does not see what a datetime refers to.
            raise ValueError(datetime.datetime(2000, 1, 1, tzinfo=Last()))

        gc.collect()
        gc.disable()
        context = contextvars.copy_context()
        fiber = Loop(fail, context=context)
        fiber.itself = fiber
        try:
            fiber.switch()
        except ValueError:
            pass
        del fiber, context
        gc.collect()
        """
    )
    assert done.stdout == "default 0\n"


def test_generator_closed_at_the_end_of_a_cancelled_fiber_may_wait() -> None:
    log = []

    def body() -> Iterator[int]:
        try:
            yield 1
        finally:
            with pyfiber.shield():
                pyfiber.sleep(0.01)
            log.append("closed")

    def job() -> None:
        iterator = body()
        next(iterator)
        pyfiber.sleep(1000)

    def main() -> None:
        fiber = pyfiber.spawn(job)
        pyfiber.yield_now()
        fiber.cancel()
        fiber.join()
        log.append("ended")
        assert fiber.cancelled()

    pyfiber.run(main)
    assert log == ["closed", "ended"]


def test_variables_of_a_failed_fibers_frames_can_be_seen() -> None:
    def job() -> None:
        shown = "value"
        raise LookupError(shown)

    def main() -> str:
        fiber = pyfiber.spawn(job)
        fiber.join()
        exc = fiber.exception()
        assert exc is not None
        assert exc.__traceback__ is not None
        return str(exc.__traceback__.tb_frame.f_locals["shown"])

    assert pyfiber.run(main) == "value"
