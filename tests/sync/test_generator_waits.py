"""Generators whose function waits: who waits with it, and what cancels it."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelScope,
    Event,
    Fiber,
    FiberError,
    FiberGenerator,
    Lock,
    Queue,
    Scheduler,
    TaskGroup,
    current,
    current_deadline,
    emit,
    generator,
    move_on_after,
    now,
    park,
    run,
    shield,
    sleep,
    spawn,
    timeout,
    yield_now,
)
from pyfiber.debug import dump_fibers
from pyfiber.testing import explore
from pyfiber.testing import run as run_virtually
from tests.support.failing import Boom
from tests.support.subprocesses import run_script
from tests.sync.emitting import Log, numbers, taken_from


def test_generator_that_waits_lets_others_run() -> None:
    log: Log = []

    @generator
    def slow() -> None:
        for i in range(3):
            sleep(1)
            emit(i)

    def tick() -> None:
        for i in range(4):
            sleep(0.8)
            log.append(f"tick {i}")

    def main() -> None:
        spawn(tick)
        for value in slow():
            log.append(value)

    run_virtually(main)
    assert log == ["tick 0", 0, "tick 1", 1, "tick 2", 2, "tick 3"]


def test_generator_that_waits_ends_with_the_scope_around_the_pull() -> None:
    def main() -> None:
        values = taken_from(Queue())
        with move_on_after(1) as scope:
            next(values)
        assert scope.cancelled()
        assert now() == 1
        assert list(values) == []

    run_virtually(main)


def test_generator_that_waits_ends_with_the_fiber_that_pulls() -> None:
    def main() -> None:
        values = taken_from(Queue())
        fiber = spawn(list, values)
        yield_now()
        fiber.cancel("enough")
        fiber.join()
        assert fiber.outcome.reason == "enough"
        assert list(values) == []

    run(main)


def test_generators_that_wait_for_each_other_end_with_who_pulls() -> None:
    log: Log = []

    @generator
    def chain(depth: int) -> None:
        try:
            if not depth:
                park()
            for value in chain(depth - 1):
                emit(value)
        except Cancelled as exc:
            log.append(exc.reason)
            raise

    def main() -> None:
        with move_on_after(1):
            list(chain(100))

    run_virtually(main)
    assert log == ["the deadline has passed"] * 101


def test_generator_that_waits_ends_with_the_run() -> None:
    log: Log = []

    @generator
    def waiting() -> None:
        try:
            park()
        finally:
            log.append("finally")

    def main() -> None:
        spawn(list, waiting())
        yield_now()
        raise Boom

    with pytest.raises(Boom):
        run(main)
    assert log == ["finally"]


def test_generator_asked_inside_of_a_cancelled_scope_may_not_wait() -> None:
    def main() -> None:
        queue: Queue[Any] = Queue()
        values, quick = taken_from(queue), numbers(2)
        with CancelScope() as scope:
            scope.cancel()
            assert next(quick) == 0, "what does not wait is no cancellation point"
            next(values)
        assert scope.cancelled()
        assert next(quick) == 1

    run(main)


def test_generator_is_free_of_a_cancellation_once_it_is_asked_by_others() -> None:
    @generator
    def body() -> None:
        emit("no wait")
        sleep(1)
        emit("waited")

    def main() -> None:
        values = body()
        with CancelScope() as scope:
            scope.cancel()
            assert next(values) == "no wait"
        assert next(values) == "waited"

    run_virtually(main)


def test_generator_has_scopes_of_its_own_across_emit() -> None:
    log: Log = []

    @generator
    def body() -> None:
        with timeout(5):
            emit("in time")
            log.append(current_deadline())
            with shield():
                sleep(4)
            emit("shielded")
            sleep(3)

    def main() -> None:
        values = body()
        with move_on_after(3) as scope:
            assert next(values) == "in time"
            assert next(values) == "shielded"
        assert now() == 4
        assert log == [3]
        assert not scope.cancelled(), "nothing had to be stopped"
        with pytest.raises(TimeoutError):
            next(values)
        assert now() == 5

    run_virtually(main)


def test_generator_within_scopes_whose_puller_is_cancelled_and_gone() -> None:
    """What it was cancelled by is not looked at again."""

    @generator
    def body() -> None:
        with shield(), CancelScope():
            emit(1)
            with CancelScope() as inner:
                inner.cancel()
                sleep(1)
            emit(2)

    def main() -> None:
        values = body()

        def pull() -> int:
            with CancelScope() as scope:
                scope.cancel()
                return next(values)

        assert spawn(pull).result() == 1
        gc.collect()
        assert next(values) == 2
        assert list(values) == []

    run(main)


def test_generator_whose_group_is_cancelled() -> None:
    def main() -> None:
        ready = Event()

        @generator
        def body() -> None:
            ready.set()
            park()

        with TaskGroup() as group:
            fiber = group.spawn(list, body())
            ready.wait()
            group.cancel()
        assert fiber.cancelled()

    run(main)


def test_generator_that_waits_for_ever_is_in_the_deadlock_report() -> None:
    done = run_script(  # where no thread of the test runner could wake it
        """
        from pyfiber import DeadlockError, Queue, run
        from tests.sync.emitting import taken_from
        try:
            run(lambda: list(taken_from(Queue())))
        except DeadlockError as exc:
            print(exc)
        """
    )
    assert "waits for the next value of <pyfiber.FiberGenerator 'taken_from'" in done.stdout


def test_generator_that_is_pulled_is_in_dumps(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> None:
        queue: Queue[Any] = Queue()
        fiber = spawn(list, taken_from(queue))
        yield_now()
        assert isinstance(fiber.waiting_on, FiberGenerator)
        dump_fibers()
        queue.put(None)
        fiber.join()

    run(main)
    assert "waits for the next value of" in capsys.readouterr().err


def test_generator_that_waits_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError, match="cannot wait"):
        next(taken_from(Queue()))


def test_fiber_switched_to_while_it_waits_for_a_generator_is_told() -> None:
    home = current()

    def body() -> None:
        home.switch("past who pulls")
        emit("value")

    values = FiberGenerator(body)
    raw = Fiber(next, (values,))
    assert raw.switch() == "past who pulls"
    with pytest.raises(FiberError, match="waits for the next value of a generator was switched to"):
        raw.switch("no value of the generator's")
    assert next(values) == "value"


def test_fiber_interrupted_while_it_waits_for_a_generator_leaves_it_whole() -> None:
    home = current()

    def body() -> None:
        home.switch("past who pulls")
        emit("value")

    values = FiberGenerator(body)
    raw = Fiber(next, (values,))
    raw.switch()
    with pytest.raises(Boom):
        raw.throw(Boom)
    assert next(values) == "value"


def test_fiber_dropped_while_it_waits_for_a_generator_that_waits() -> None:
    log: Log = []

    def body() -> None:
        try:
            park()
            emit("never")
        finally:
            log.append("finally")

    def begin() -> None:
        next(FiberGenerator(body))

    scheduler = Scheduler()
    scheduler.spawn(begin)
    scheduler.run_once()
    scheduler.close()
    assert log == ["finally"]


# Explored -----------------------------------------------------------------------------------------


def test_generator_under_a_lock_in_explored_schedules() -> None:
    """A producer in the generator, three consumers, one of them cancelled somewhere."""

    def main() -> None:
        queue: Queue[Any] = Queue(1)
        values, lock = taken_from(queue), Lock()
        taken: Log = []

        def consume() -> None:
            while True:
                with lock:
                    value = next(values, None)
                if value is None:
                    return
                taken.append(value)

        consumers = [spawn(consume) for _ in range(3)]
        for i in range(1, 6):
            queue.put(i)
            yield_now()
        queue.put(None)
        for consumer in consumers:
            consumer.join()
        assert sorted(taken) == [1, 2, 3, 4, 5]

    explore(main, 200)
