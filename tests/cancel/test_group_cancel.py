"""TaskGroup: cancelling one, and groups that are abandoned."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelledOutcome,
    CancelScope,
    Fiber,
    Scheduler,
    TaskGroup,
    current,
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
from pyfiber.testing import run as run_virtually
from tests.support.failing import Boom, fails_late

Log = list[Any]


# Cancelling ---------------------------------------------------------------------------------------


def test_cancel_ends_block_and_fibers_and_is_no_error() -> None:
    log: Log = []

    def main() -> None:
        with TaskGroup() as group:
            fiber = group.spawn(park)
            yield_now()
            assert group.cancel("enough")
            park()
            log.append("never")
        assert group.cancelled()
        assert fiber.outcome == CancelledOutcome("enough")
        sleep(0)

    run(main)
    assert log == []


def test_cancel_by_one_of_its_fibers() -> None:
    def main() -> None:
        with TaskGroup() as group:
            fiber = group.spawn(park)
            group.spawn(group.cancel)
        assert fiber.cancelled()
        assert group.cancelled()

    run(main)


def test_cancel_from_another_thread() -> None:
    def main() -> None:
        with TaskGroup() as group:
            for _ in range(10):
                group.spawn(park)
            thread = threading.Thread(target=group.cancel)
            thread.start()
        thread.join()
        assert group.cancelled()

    run(main)


def test_cancel_of_the_last_fiber_is_no_error() -> None:
    def main() -> None:
        with TaskGroup() as group:
            fiber = group.spawn(park)
            yield_now()
            fiber.cancel()
        assert fiber.cancelled()
        assert not group.cancel_called

    run(main)


def test_spawn_into_a_cancelled_group_never_runs() -> None:
    log: Log = []

    def main() -> None:
        with TaskGroup() as group:
            group.cancel("early")
            fiber = group.spawn(log.append, "ran")
        assert fiber.outcome == CancelledOutcome("early")

    run(main)
    assert log == []


def test_fiber_in_the_group_s_cleanup_may_spawn_shielded_help() -> None:
    log: Log = []

    def body() -> None:
        try:
            park()
        finally:
            with shield(), TaskGroup() as inner:
                inner.spawn(sleep, 0.001)
                inner.spawn(log.append, "helped")

    def main() -> None:
        with TaskGroup() as group:
            group.spawn(body)
            yield_now()
            group.cancel()

    run(main)
    assert log == ["helped"]


def test_outer_scope_reaches_every_descendant() -> None:
    fibers: list[Fiber[Any]] = []

    def tree(depth: int) -> None:
        fibers.append(current())
        with TaskGroup() as group:
            if depth:
                group.spawn(tree, depth - 1)
                group.spawn(tree, depth - 1)
            park()

    def main() -> None:
        with CancelScope() as scope:
            with TaskGroup() as group:
                group.spawn(tree, 5)
                for _ in range(10):
                    yield_now()
                assert len(fibers) == 2**6 - 1
                scope.cancel("all")
            pytest.fail("the group did not pass it on")
        assert scope.cancelled()
        assert all(fiber.outcome == CancelledOutcome("all") for fiber in fibers)

    run(main)


def test_outer_cancellation_while_the_group_waits_comes_out_of_it() -> None:
    log: Log = []

    def main() -> None:
        with move_on_after(2) as scope:
            with TaskGroup() as group:
                group.spawn(park)
            log.append("never")
        assert scope.cancelled()
        assert not group.cancelled()

    run_virtually(main)
    assert log == []


def test_cancel_of_the_owner_cancels_the_fibers_and_waits() -> None:
    log: Log = []

    def slow() -> None:
        try:
            park()
        finally:
            with shield():
                sleep(2)
            log.append("slow")

    def owner() -> None:
        try:
            with TaskGroup() as group:
                group.spawn(slow)
        finally:
            log.append("owner")

    def main() -> None:
        fiber = spawn(owner)
        yield_now()
        yield_now()
        fiber.cancel("why")
        fiber.join()
        assert fiber.outcome == CancelledOutcome("why")

    run_virtually(main)
    assert log == ["slow", "owner"]


def test_inner_group_cancelled_leaves_the_outer_one_alone() -> None:
    def main() -> None:
        with TaskGroup() as outer:
            fiber = outer.spawn(park)
            with TaskGroup() as inner:
                inner.spawn(park)
                yield_now()
                inner.cancel()
            assert fiber.state == "parked"
            fiber.unpark(1)
        assert fiber.result() == 1

    run(main)


def test_shielded_group_outlives_the_cancellation_around_it() -> None:
    def main() -> None:
        with CancelScope() as scope:
            with TaskGroup(shield=True) as group:
                scope.cancel()
                fiber = group.spawn(lambda: sleep(1) or "done")
            assert fiber.result() == "done"
            sleep(0)
        assert scope.cancelled()

    run_virtually(main)


def test_shield_around_a_group_holds_for_its_fibers_at_the_end_of_the_run() -> None:
    log: Log = []

    def body() -> None:
        sleep(2)
        log.append("done")

    def daemon() -> None:
        with shield(), TaskGroup() as group:
            group.spawn(body)

    def main() -> None:
        Fiber(daemon, daemon=True).start()
        yield_now()
        yield_now()

    run_virtually(main)
    assert log == ["done"]


def test_group_with_a_deadline() -> None:
    def main() -> None:
        with TaskGroup(now() + 2) as group:
            fiber = group.spawn(park)
        assert group.cancelled()
        assert fiber.outcome == CancelledOutcome("the deadline has passed")

    run_virtually(main)


def test_timeout_around_a_group() -> None:
    def main() -> None:
        with pytest.raises(TimeoutError), timeout(2), TaskGroup() as group:
            group.spawn(park)
            group.spawn(park)

    run_virtually(main)


def test_error_beats_the_cancellation_from_outside() -> None:
    def main() -> None:
        with CancelScope() as scope:
            with pytest.raises(ExceptionGroup), TaskGroup() as group:
                group.spawn(fails_late, Boom())
                yield_now()
                scope.cancel()
                park()
            with pytest.raises(Cancelled):
                sleep(0)

    run(main)


def test_fibers_that_ended_before_the_cancellation_beat_it() -> None:
    log: Log = []

    def main() -> None:
        with CancelScope() as scope:
            with TaskGroup() as group:
                group.spawn(lambda: None)
                group.spawn(lambda: None).add_done_callback(lambda fiber: log.append("last"))
                spawn(lambda: log.append(scope.cancel()))
            log.append("left the group")
            sleep(0)
            log.append("never")

    run(main)
    assert log == ["last", True, "left the group"]


def test_swallowing_body_keeps_the_group_s_verdict() -> None:
    def main() -> None:
        with TaskGroup() as group:
            group.cancel()
            with pytest.raises(Cancelled):
                sleep(0)
        assert not group.cancelled()

    run(main)


# Abandoned ----------------------------------------------------------------------------------------


def test_owner_abandoned_while_it_waits_lets_its_fibers_go() -> None:
    log: Log = []
    scheduler = Scheduler()

    def child(name: str) -> None:
        try:
            park()
        finally:
            log.append(name)

    def owner() -> None:
        try:
            with TaskGroup() as group:
                group.spawn(child, "a")
                group.spawn(child, "b")
        finally:
            log.append("owner")

    scheduler.spawn(owner)
    scheduler.run_once()
    scheduler.run_once()
    scheduler.close()
    assert sorted(log) == ["a", "b", "owner"]


def test_owner_abandoned_in_its_block_lets_its_fibers_go() -> None:
    log: Log = []
    scheduler = Scheduler()

    def owner() -> None:
        with TaskGroup() as group:
            fibers.append(group.spawn(park))
            try:
                park()
            finally:
                log.append("owner")

    fibers: list[Fiber[Any]] = []
    scheduler.spawn(owner)
    scheduler.run_once()
    scheduler.run_once()
    scheduler.close()
    assert log == ["owner"]
    assert fibers[0].done()


def test_raw_owner_dropped_inside_of_a_group() -> None:
    """It cannot wait for the fibers then; they are cancelled all the same."""

    def main() -> None:
        me = current()
        fibers: list[Fiber[Any]] = []

        def raw() -> None:
            with TaskGroup() as group:
                fibers.append(group.spawn(park))
                me.switch()

        Fiber(raw).switch()
        fibers[0].join()
        assert fibers[0].outcome == CancelledOutcome("the block of the group ended early")

    run(main)


def test_group_whose_exit_is_never_called_cancels_its_fibers() -> None:
    def body() -> None:
        group = TaskGroup().__enter__()
        fibers.append(group.spawn(park))
        yield_now()

    fibers: list[Fiber[Any]] = []

    def main() -> None:
        fiber = spawn(body)
        fiber.join()
        fibers[0].join()
        assert fibers[0].cancelled()

    run(main)


def test_second_interrupt_while_a_group_waits_for_a_unresponsive_fiber(child: Any) -> None:
    done = child("""
        import logging, signal
        from pyfiber import *
        logging.disable()
        def deaf():
            try:
                while True:
                    try: sleep(10)
                    except Cancelled: pass
            finally:
                print("deaf")
        def main():
            try:
                with TaskGroup() as group:
                    group.spawn(deaf)
                    yield_now()
                    signal.raise_signal(signal.SIGINT)
                    spawn(lambda: signal.raise_signal(signal.SIGINT))
            finally:
                print("main")
        try:
            run(main)
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert sorted(done.stdout.split()) == ["deaf", "interrupted", "main"]
