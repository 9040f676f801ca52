"""explore_cancellation: every wait of a program, cancelled in turn."""

from __future__ import annotations

from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Fiber,
    current,
    gather,
    net,
    park,
    pmap,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import ScheduleFailure, explore_cancellation


class Lock:
    """A lock that hands itself over; `careful` ones survive a cancelled waiter."""

    def __init__(self, careful: bool) -> None:
        self.careful = careful
        self.owner: Fiber[Any] | None = None
        self.waiting: list[Fiber[Any]] = []

    def acquire(self) -> None:
        me = current()
        if self.owner is None:
            self.owner = me
            return
        self.waiting.append(me)
        try:
            while self.owner is not me:
                park()
        except Cancelled:
            if self.careful:
                if self.owner is me:
                    self.release()
                else:
                    self.waiting.remove(me)
            raise

    def release(self) -> None:
        self.owner = self.waiting.pop(0) if self.waiting else None
        if self.owner is not None:
            self.owner.unpark()


def use(lock: Lock) -> None:
    def work() -> None:
        lock.acquire()
        try:
            sleep(1)
        finally:
            lock.release()

    for fiber in [spawn(work) for _ in range(3)]:
        fiber.join()


def check(lock: Lock) -> None:
    assert lock.owner is None
    assert lock.waiting == []


def test_careful_lock_survives_a_cancellation_at_every_point() -> None:
    assert explore_cancellation(use, setup=lambda: Lock(True), check=check) > 15


def test_careless_lock_is_found_with_the_point_named() -> None:
    with pytest.raises(ScheduleFailure, match=r"when '.*' was cancelled while it waited") as e:
        explore_cancellation(use, setup=lambda: Lock(False), check=check)
    assert e.value.number is not None
    assert "who ran when" in str(e.value)


def test_every_wait_is_cancelled_while_it_waits_and_before_it_goes_on() -> None:
    seen = set()

    def main() -> None:
        for i in range(3):
            try:
                sleep(1)
            except Cancelled:
                seen.add(i)
                raise
        seen.add("end")

    points = explore_cancellation(main)
    # Before it starts; in each of three sleeps; before going on after each.
    assert points == 7
    assert seen == {0, 1, 2, "end"}


def test_program_that_fails_by_itself_is_reported_as_such() -> None:
    with pytest.raises(ScheduleFailure, match="without any cancellation"):
        explore_cancellation(lambda: 1 // 0)


def test_wrong_error_from_a_cancelled_program_is_a_failure() -> None:
    def main() -> None:
        try:
            yield_now()
        except Cancelled:
            raise ValueError("in the cleanup") from None

    with pytest.raises(ScheduleFailure, match="in the cleanup"):
        explore_cancellation(main)


def test_fiber_that_hangs_once_cancelled_is_found() -> None:
    def main() -> None:
        done = spawn(park)

        def release() -> None:
            sleep(1)
            if not done.done():
                done.unpark()

        helper = spawn(release)
        done.join()
        helper.join()

    with pytest.raises(ScheduleFailure, match="DeadlockError"):
        explore_cancellation(main)


def test_max_points_bounds_the_search() -> None:
    assert explore_cancellation(lambda: [yield_now() for _ in range(50)], max_points=9) == 9
    with pytest.raises(ValueError, match="max_points must be at least 1"):
        explore_cancellation(lambda: None, max_points=0)
    with pytest.raises(TypeError, match="check must be callable"):
        explore_cancellation(lambda: None, check=1)  # type: ignore[arg-type]


# pyfiber's own helpers ----------------------------------------------------------------------------


def test_helpers_of_a_server_are_not_cancelled_by_themselves() -> None:
    """A server whose keeper of handlers alone was cancelled waited for ever; nobody does that."""

    def echo(stream: net.Stream) -> None:
        for line in stream:
            stream.write(line)

    def scenario() -> None:
        with (
            net.serve(echo, "127.0.0.1", 7000, grace=1) as server,
            net.connect(*server.address) as client,
        ):
            client.write(b"hi\n")
            next(client, None)

    assert explore_cancellation(scenario, network=True) > 5


def test_functions_that_pyfibers_helpers_call_are_cancelled() -> None:
    """Where code of the program waits, also in a fiber that pyfiber has made."""
    cancelled = []

    def work() -> None:
        try:
            sleep(1)
        except Cancelled:
            cancelled.append("work")
            raise

    def item(number: int) -> None:
        try:
            sleep(1)
        except Cancelled:
            cancelled.append("item")
            raise

    def scenario() -> None:
        gather(work)
        list(pmap(item, [1], limit=1))

    explore_cancellation(scenario)
    assert set(cancelled) == {"work", "item"}
