"""pmap: order, how many are in flight, back-pressure, and how it ends."""

from __future__ import annotations

import gc
import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelScope,
    FiberCancelled,
    FiberError,
    Scheduler,
    TaskGroup,
    current,
    move_on_after,
    now,
    park,
    pmap,
    run,
    shield,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import VirtualClock
from pyfiber.testing import run as run_virtually
from tests.support.failing import Boom
from tests.support.interfering import Interfering, Stop, stop

Log = list[Any]
BOTH = pytest.mark.parametrize("ordered", [True, False])


class Meter:
    """Counts calls in flight."""

    def __init__(self, turns: int = 2) -> None:
        self.turns = turns
        self.now = self.most = self.started = self.ended = 0
        self.history: list[int] = []

    def __call__(self, n: int) -> int:
        self.started += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            for _ in range(self.turns):
                yield_now()
                self.history.append(self.now)
        finally:
            self.now -= 1
            self.ended += 1
        return n * n


@BOTH
@pytest.mark.parametrize("limit", [1, 2, 7, 100])
def test_pmap_is_map(limit: int, ordered: bool) -> None:
    def main() -> None:
        results = list(pmap(Meter(), range(50), limit=limit, ordered=ordered))
        assert (results if ordered else sorted(results)) == [n * n for n in range(50)]

    run(main)


@BOTH
def test_pmap_of_nothing(ordered: bool) -> None:
    assert run(lambda: list(pmap(abs, [], limit=3, ordered=ordered))) == []


def test_pmap_keeps_the_order_whatever_ends_first() -> None:
    delays = [random.Random(7).randrange(10) for _ in range(100)]

    def body(item: tuple[int, int]) -> int:
        for _ in range(item[1]):
            yield_now()
        return item[0]

    assert run(lambda: list(pmap(body, enumerate(delays), limit=8))) == list(range(100))


def test_pmap_without_order_gives_what_is_done() -> None:
    def body(turns: int) -> int:
        for _ in range(turns):
            yield_now()
        return turns

    assert run(lambda: list(pmap(body, [30, 20, 10], limit=3, ordered=False))) == [10, 20, 30]


@BOTH
@pytest.mark.parametrize("limit", [1, 3, 10])
def test_pmap_has_limit_in_flight_and_never_more(limit: int, ordered: bool) -> None:
    meter = Meter(turns=40)
    run(lambda: list(pmap(meter, range(100), limit=limit, ordered=ordered)))
    assert meter.most == limit
    # Between the first few and the last few there are always as many.
    middle = meter.history[40 * limit : -40 * limit]
    assert sum(middle) / len(middle) > 0.9 * limit


def test_pmap_does_not_wait_for_the_slowest_of_a_batch() -> None:
    """One that takes long holds up nobody but who comes after it in the results."""
    log: Log = []
    gate: Log = []

    def body(n: int) -> int:
        if n == 0:
            gate.append(current())
            park()
        else:
            yield_now()
            log.append(n)
        if n == 50:
            gate[0].unpark()
        return n

    assert run(lambda: list(pmap(body, range(100), limit=4))) == list(range(100))
    assert log[:50] == list(range(1, 51))


@BOTH
def test_pmap_is_lazy(ordered: bool) -> None:
    log: Log = []

    def items() -> Iterator[int]:
        log.append("asked")
        yield 1

    def main() -> None:
        results = pmap(abs, items(), limit=3, ordered=ordered)
        yield_now()
        assert log == []
        assert next(results) == 1

    run(main)


@BOTH
def test_pmap_of_an_endless_source_takes_what_it_needs(ordered: bool) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for n in itertools.count():
            taken += 1
            yield n

    def main() -> None:
        with pmap(Meter(1), items(), limit=3, ordered=ordered) as results:
            for _ in range(10):
                next(results)
        assert taken <= 10 + 2 * 3

    run(main)


@BOTH
def test_pmap_whose_user_is_slow_does_not_run_ahead(ordered: bool) -> None:
    meter = Meter(1)

    def main() -> None:
        with pmap(meter, itertools.count(), limit=4, ordered=ordered) as results:
            for taken in range(1, 10):
                next(results)
                for _ in range(50):
                    yield_now()
                assert meter.started <= taken + 2 * 4
            ahead = meter.started - taken
            for _ in range(200):
                yield_now()
            assert meter.started - taken == ahead

    run(main)


def test_pmap_with_a_source_that_waits_gives_results_meanwhile() -> None:
    """The next item may be long in coming: results that are there do not wait for it."""
    feeders: Log = []

    def items() -> Iterator[int]:
        for n in itertools.count():
            yield n
            feeders.append(current())
            park()

    def main() -> None:
        with pmap(abs, items(), limit=5) as results:
            for n in range(20):
                assert next(results) == n
                yield_now()
                feeders.pop().unpark()

    run(main)


def test_pmap_never_asks_its_source_twice_at_once() -> None:
    asking = 0

    class Items:
        def __iter__(self) -> Iterator[int]:
            return self

        def __next__(self) -> int:
            nonlocal asking
            assert asking == 0
            asking += 1
            for _ in range(3):
                yield_now()
            asking -= 1
            self.n = getattr(self, "n", -1) + 1
            if self.n == 30:
                raise StopIteration
            return self.n

    assert run(lambda: list(pmap(abs, Items(), limit=8))) == list(range(30))


def test_pmap_in_a_pmap() -> None:
    def row(n: int) -> int:
        return sum(pmap(Meter(), range(n), limit=2))

    assert run(lambda: list(pmap(row, range(8), limit=3))) == [
        sum(k * k for k in range(n)) for n in range(8)
    ]


def test_pmap_of_many() -> None:
    assert run(lambda: sum(pmap(abs, range(20_000), limit=100))) == sum(range(20_000))


# Failures -----------------------------------------------------------------------------------------


def test_pmap_failure_comes_in_its_place() -> None:
    meter = Meter()

    def body(n: int) -> int:
        if n == 5:
            raise Boom(n)
        return meter(n)

    def main() -> None:
        results = pmap(body, range(100), limit=4)
        assert [next(results) for _ in range(5)] == [0, 1, 4, 9, 16]
        with pytest.raises(Boom):
            next(results)
        assert meter.now == 0
        assert meter.started < 20
        with pytest.raises(StopIteration):
            next(results)

    run(main)


def test_pmap_failure_without_order_comes_at_once() -> None:
    def body(n: int) -> None:
        if n == 2:
            raise Boom
        park()

    def main() -> None:
        with pytest.raises(Boom):
            next(pmap(body, range(10), limit=4, ordered=False))

    run(main)


@BOTH
def test_pmap_failure_of_the_source_comes_after_what_it_gave(ordered: bool) -> None:
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise Boom

    def main() -> None:
        results = pmap(abs, items(), limit=4, ordered=ordered)
        assert sorted([next(results), next(results)]) == [1, 2]
        with pytest.raises(Boom):
            next(results)

    run(main)


def test_pmap_failure_is_not_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    def body(n: int) -> None:
        raise Boom

    def main() -> None:
        with pytest.raises(Boom):
            list(pmap(body, range(3), limit=1))

    run(main)
    gc.collect()
    assert not caplog.records


def test_pmap_function_that_is_cancelled_has_failed() -> None:
    def body(n: int) -> None:
        current().cancel("myself")
        sleep(0)

    def main() -> None:
        with pytest.raises(FiberCancelled, match="myself"):
            list(pmap(body, range(3), limit=2))

    run(main)


def test_pmap_function_that_raises_stop_iteration_has_failed() -> None:
    """It must not look like the end."""

    def body(n: int) -> None:
        raise StopIteration(n)

    def main() -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            list(pmap(body, range(3), limit=2))

    run(main)


# Its end ------------------------------------------------------------------------------------------


@BOTH
def test_pmap_closed_cancels_and_waits(ordered: bool) -> None:
    log: Log = []
    begun: Log = []
    scheduler = Scheduler()
    VirtualClock().attach(scheduler)

    def body(n: int) -> int:
        if n == 0:
            return n
        begun.append(n)
        try:
            park()
        finally:
            with shield():
                sleep(1)
            log.append(n)
        return n

    def main() -> None:
        results = pmap(body, range(100), limit=4, ordered=ordered)
        assert next(results) == 0
        for _ in range(4):
            yield_now()
        results.close()
        assert len(begun) in (3, 4)
        assert sorted(log) == begun
        assert scheduler.stats()["fibers"] == 1
        results.close()
        with pytest.raises(StopIteration):
            next(results)

    scheduler.run(main)
    scheduler.close()


def test_pmap_closed_before_its_beginning() -> None:
    def main() -> None:
        results = pmap(abs, [1], limit=1)
        results.close()
        assert list(results) == []

    run(main)


def test_pmap_left_by_break_is_ended() -> None:
    meter = Meter(1000)
    scheduler = Scheduler()

    def body(n: int) -> int:
        return n if n == 0 else meter(n)

    def main() -> None:
        for _ in pmap(body, range(100), limit=4):
            break
        assert scheduler.stats()["fibers"] == 1
        assert meter.now == 0

    scheduler.run(main)
    scheduler.close()


def test_pmap_left_by_an_error_is_ended() -> None:
    scheduler = Scheduler()

    def main() -> None:
        with pytest.raises(Boom), pmap(Meter(), itertools.count(), limit=4) as results:
            raise Boom(next(results))
        assert scheduler.stats()["fibers"] == 1

    scheduler.run(main)
    scheduler.close()


def test_pmap_in_a_cycle_is_cancelled_by_the_collector() -> None:
    """Nobody can wait there; the fibers end in their next turns."""
    scheduler = Scheduler()

    def main() -> None:
        results = pmap(lambda n: n if n == 0 else park(), range(5), limit=4)
        next(results)
        cycle: Log = [results]
        cycle.append(cycle)
        del cycle, results
        gc.collect()
        for _ in range(5):
            yield_now()
        assert scheduler.stats()["fibers"] == 1

    scheduler.run(main)
    scheduler.close()


def test_pmap_is_cancelled_with_the_scope_it_began_in() -> None:
    log: Log = []

    def body(n: int) -> int:
        if n:
            try:
                park()
            finally:
                log.append(n)
        return n

    def main() -> None:
        with move_on_after(2) as scope:
            results = pmap(body, range(3), limit=3)
            next(results)
            with shield():
                sleep(10)
            assert sorted(log) == [1, 2]
            list(results)
        assert scope.cancelled()

    run_virtually(main)


def test_pmap_cancelled_while_its_user_waits() -> None:
    scheduler = Scheduler()

    def main() -> None:
        with move_on_after(0.002) as scope:
            list(pmap(lambda n: park(), range(10), limit=3))
        assert scope.cancelled()
        assert scheduler.stats()["fibers"] == 1

    scheduler.run(main)
    scheduler.close()


def test_pmap_outlives_the_scope_it_began_in() -> None:
    def main() -> None:
        with CancelScope():
            results = pmap(Meter(), range(10), limit=3)
            assert next(results) == 0
        assert list(results) == [n * n for n in range(1, 10)]

    run(main)


def test_pmap_whose_scope_was_cancelled_says_so_later() -> None:
    def main() -> None:
        with CancelScope() as scope:
            results = pmap(lambda n: n and park(), range(10), limit=3)
            next(results)
            scope.cancel("scope")
        with pytest.raises(FiberCancelled):
            list(results)

    run(main)


def test_pmap_does_not_hold_up_the_group_it_began_in() -> None:
    def main() -> None:
        with TaskGroup():
            results = pmap(lambda n: n, itertools.count(), limit=3)
            next(results)
        assert next(results) == 1
        results.close()

    run(main)


def test_pmap_at_the_end_of_the_run() -> None:
    keep: Log = []

    def main() -> str:
        results = pmap(lambda n: n and park(), range(10), limit=3)
        keep.append(results)
        next(results)
        spawn(park).cancel()
        raise Boom

    with pytest.raises(Boom):
        run(main)
    keep.clear()


def test_pmap_that_is_kept_does_not_hold_up_the_run() -> None:
    keep: Log = []

    def main() -> str:
        keep.append(pmap(lambda n: n, itertools.count(), limit=3))
        assert next(keep[0]) == 0
        return "result"

    assert run(main) == "result"
    assert list(keep[0]._stream.group._holders()) == []


def test_pmap_abandoned_with_its_user() -> None:
    log: Log = []
    scheduler = Scheduler()

    def user() -> None:
        with pmap(lambda n: park(), range(10), limit=3) as results:
            try:
                next(results)
            finally:
                log.append("user")

    scheduler.spawn(user)
    for _ in range(5):
        scheduler.run_once()
    scheduler.close()
    assert log == ["user"]


# Misuse -------------------------------------------------------------------------------------------


def test_pmap_refuses_bad_arguments() -> None:
    with pytest.raises(TypeError, match="takes a function"):
        pmap(3, [], limit=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="iterable"):
        pmap(abs, 3, limit=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        pmap(abs, [], limit=0)
    with pytest.raises(TypeError, match="limit must be an int"):
        pmap(abs, [], limit=1.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        pmap(abs, [])  # type: ignore[call-arg]


def test_pmap_outside_of_a_run_is_refused() -> None:
    with pytest.raises(FiberError, match="needs a running scheduler"):
        next(pmap(abs, [1], limit=1))


def test_pmap_with_two_users_at_once_is_refused() -> None:
    def main() -> None:
        results = pmap(lambda n: park(), range(3), limit=2)
        first = spawn(next, results)
        for _ in range(4):
            yield_now()
        with pytest.raises(FiberError, match=r"waits for the next result of a pmap\(\) already"):
            next(results)
        first.cancel()
        first.join()
        results.close()

    run(main)


def test_pmap_handed_to_another_fiber() -> None:
    def main() -> None:
        results = pmap(Meter(), range(10), limit=3)
        got = [spawn(next, results).result() for _ in range(10)]
        assert got == [n * n for n in range(10)]
        results.close()

    run(main)


@pytest.mark.parametrize("nested", [False, True])
def test_pmap_closed_by_its_own_function_is_refused_and_cancelled(nested: bool) -> None:
    log: Log = []

    def close() -> None:
        try:
            results.close()
        except FiberError as exc:
            log.append(str(exc))

    def function(n: int) -> int:
        if n == 3 and nested:
            with TaskGroup() as group:
                group.spawn(close)
        elif n == 3:
            close()
        try:
            yield_now()
        except Cancelled as exc:
            log.append(exc.reason)
            raise
        return n

    def main() -> None:
        nonlocal results
        results = pmap(function, itertools.count(), limit=2)
        assert list(results) == [0, 1]

    results: Any = None
    run(main)
    assert "its own function" in log[0]
    assert set(log[1:]) <= {"the pmap() was closed"}


def test_pmap_closed_by_another_thread_is_refused_and_cancelled() -> None:
    def main() -> None:
        results = pmap(lambda n: n and park(), range(10), limit=3)
        next(results)
        errors: Log = []

        def elsewhere() -> None:
            try:
                results.close()
            except FiberError as error:
                errors.append(error)

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert len(errors) == 1
        results.close()

    run(main)


def test_pmap_user_s_permit_is_left_alone() -> None:
    def main() -> None:
        current().unpark("mine")
        assert list(pmap(Meter(), range(5), limit=2)) == [0, 1, 4, 9, 16]
        assert park(0) == "mine"

    run(main)


def test_pmap_times_are_those_of_the_slowest_not_the_sum() -> None:
    def main() -> float:
        list(pmap(sleep, [2, 1, 3, 2, 1], limit=5))
        return now()

    assert run_virtually(main) == 3.0


def interferes(nth: int, act: Callable[[], object], main: Callable[[], object]) -> bool:
    def traced() -> bool:
        return Interfering(nth, act, "pyfiber._groups").play(main)

    return run(traced, on_unhandled=lambda fiber, exc: None)


def square_after_a_while(n: int) -> int:
    yield_now()
    return n * n


@BOTH
def test_pmap_ends_wherever_a_trace_function_raises(
    ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not always with the results, but it never waits for what cannot come."""
    told: Log = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_type))

    def main() -> None:
        with suppress(Stop, ExceptionGroup):
            assert sorted(pmap(square_after_a_while, range(3), limit=2, ordered=ordered)) == [
                0,
                1,
                4,
            ]

    nth = 1
    while interferes(nth, stop, main):
        nth += 1
    assert nth > 100
    assert set(told) <= {Stop}


@BOTH
@pytest.mark.parametrize("turns", [1, 2, 5])
def test_pmap_misses_no_news_that_come_while_it_looks(ordered: bool, turns: int) -> None:
    """A switch between the look whether a result is there and the wait for one."""

    def give_way() -> None:
        with suppress(FiberError):  # not in a done-callback
            for _ in range(turns):
                yield_now()

    def main() -> None:
        assert sorted(pmap(square_after_a_while, range(3), limit=1, ordered=ordered)) == [0, 1, 4]

    nth = 1
    while interferes(nth, give_way, main):
        nth += 1
    assert nth > 100
