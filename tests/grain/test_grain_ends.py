"""How a grain ends: cancelled, with a result, with an exception, with the run."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Generator
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    CancelledOutcome,
    Failed,
    FiberCancelled,
    FiberError,
    Ok,
    current,
    run,
    sleep,
    yield_now,
)
from pyfiber.grains import (
    READY,
    SLEEPING,
    Grain,
    spawn,
)
from pyfiber.testing import run as run_virtually
from tests.grain.grain_makers import deadlock, numbers
from tests.support.threads import PATIENCE

# --- cancelling


def test_cancelled_before_its_first_turn_never_runs() -> None:
    ran = []

    def main() -> Any:
        grain = spawn(lambda: iter(ran.append(1) or [READY] for _ in range(1)))
        assert grain.cancel("early")
        grain.join()
        assert not grain.cancel()
        return grain.outcome, grain.cancelled(), ran

    assert run(main) == (CancelledOutcome("early"), True, [])


@pytest.mark.parametrize(
    "wait",
    [READY, 10, SLEEPING, lambda: False, None],
    ids=["ready", "seconds", "sleeping", "predicate", "none"],
)
def test_cancelled_at_every_kind_of_wait(wait: Any) -> None:
    order: list[Any] = []

    def grain() -> Generator[Any, Any, None]:
        try:
            while True:
                yield wait
        except Cancelled as exc:
            order.append((exc.reason, exc.by))
            raise

    def main() -> Any:
        waits = spawn(grain)
        yield_now()
        waits.cancel("reason")
        waits.join()
        return waits.outcome, current()

    outcome, by = run(main)
    assert outcome == CancelledOutcome("reason")
    assert order == [("reason", by)]


def test_cancellation_is_raised_at_every_yield() -> None:
    count = []

    def stubborn() -> Generator[Any, Any, str]:
        for wait in (10, SLEEPING, lambda: False, READY):
            try:
                yield wait
            except Cancelled:
                count.append(wait)
        return "done"

    def main() -> Any:
        grain = spawn(stubborn)
        yield_now()
        grain.cancel()
        return grain.result()

    assert run(main) == "done"
    assert len(count) == 4


def test_result_that_came_first_is_delivered() -> None:
    got = []

    def grain() -> Generator[Any, Any, None]:
        got.append((yield SLEEPING))
        yield READY

    def main() -> Any:
        waits = spawn(grain)
        yield_now()
        waits.unpark("value")
        waits.cancel()
        waits.join()
        return waits.outcome

    assert run(main) == CancelledOutcome(None)
    assert got == ["value"]


def test_cancelling_the_caller_cancels_the_callee_first() -> None:
    order = []

    def inner() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        except Cancelled as exc:
            order.append(f"inner {exc.reason}")
            raise

    def middle() -> Generator[Any, Any, None]:
        yield Grain(inner)

    def outer() -> Generator[Any, Any, None]:
        try:
            yield Grain(middle)
        except Cancelled as exc:
            order.append(f"outer {exc.reason}")
            raise

    def main() -> Any:
        grain = spawn(outer)
        for _ in range(5):
            yield_now()
        grain.cancel("tree")
        grain.join()
        return grain.outcome

    assert run(main) == CancelledOutcome("tree")
    assert order == ["inner tree", "outer tree"]


def test_cancelling_who_waits_leaves_the_other_alone() -> None:
    def slow() -> Generator[Any, Any, int]:
        yield 5
        return 1

    def waits(grain: Any) -> Generator[Any, Any, Any]:
        return (yield grain)

    def main() -> Any:
        target = spawn(slow)
        waiter = spawn(waits, target)
        yield_now()
        yield_now()
        waiter.cancel()
        waiter.join()
        return waiter.cancelled(), target.result()

    assert run_virtually(main) == (True, 1)


def test_long_chain_of_called_grains_is_cancelled() -> None:
    def down(n: int) -> Generator[Any, Any, None]:
        yield SLEEPING if n == 0 else Grain(down, n - 1)

    def main() -> Any:
        grain = spawn(down, 20_000)
        for _ in range(20_050):
            yield_now()
        grain.cancel()
        grain.join()
        return grain.outcome

    assert run(main) == CancelledOutcome(None)


def test_cancel_from_a_thread() -> None:
    def main() -> Any:
        grain = spawn(lambda: iter([10]))
        thread = threading.Thread(target=grain.cancel, args=("thread",))
        thread.start()
        grain.join()
        thread.join()
        return grain.outcome

    assert run(main) == CancelledOutcome("thread")


def test_cancel_of_a_grain_that_was_never_started() -> None:
    grain = Grain(numbers)
    assert grain.cancel("never")
    assert grain.done()
    assert grain.outcome == CancelledOutcome("never")
    with pytest.raises(FiberCancelled):
        grain.result()


# --- ends


def test_outcomes() -> None:
    def fails() -> Generator[Any, Any, None]:
        yield READY
        raise error

    error = KeyError("x")

    def main() -> tuple[Any, ...]:
        good, bad = spawn(numbers, 1), spawn(fails)
        assert good.outcome is None
        good.join()
        bad.join()
        return good.outcome, bad.outcome, good.exception(), bad.exception()

    assert run(main) == (Ok((1,)), Failed(error), None, error)


def test_result_times_out() -> None:
    def main() -> None:
        grain = spawn(lambda: iter([10]))
        with pytest.raises(TimeoutError):
            grain.result(0)
        with pytest.raises(TimeoutError):
            grain.exception(timeout=1)
        assert not grain.join(1)
        grain.cancel()

    run_virtually(main)


@pytest.mark.parametrize(("timeout", "error"), [(-1, ValueError), ("1", TypeError)])
def test_bad_timeouts(timeout: Any, error: type[Exception]) -> None:
    def main() -> None:
        grain = spawn(numbers)
        for wait in (grain.join, grain.result, grain.exception):
            with pytest.raises(error):
                wait(timeout)

    run(main)


def test_waiting_for_an_unstarted_grain() -> None:
    def main() -> None:
        with pytest.raises(FiberError, match="was not started"):
            Grain(numbers).join()

    run(main)


def test_joined_by_another_thread() -> None:
    results: list[Any] = []

    def main() -> None:
        grain = spawn(lambda: iter([0.005]))
        thread = threading.Thread(
            target=lambda: results.append((grain.join(PATIENCE), grain.result()))
        )
        thread.start()
        grain.join()
        thread.join()

    run(main)
    assert results == [(True, None)]


def test_done_callbacks() -> None:
    got: list[Any] = []

    def main() -> None:
        grain = spawn(numbers)
        grain.add_done_callback(got.append)
        grain.join()
        grain.add_done_callback(got.append)
        assert got == [grain, grain]
        with pytest.raises(TypeError, match="must be callable"):
            grain.add_done_callback(5)  # type: ignore[arg-type]

    run(main)


def test_done_callback_must_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    def main() -> None:
        grain = spawn(numbers)
        grain.add_done_callback(lambda _: sleep(0))
        grain.join()

    with caplog.at_level(logging.ERROR, "pyfiber"):
        run(main)
    assert "a done-callback of" in caplog.text


def test_failure_nobody_looked_at_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> Generator[Any, Any, None]:
        yield READY
        raise KeyError("lost")

    with caplog.at_level(logging.ERROR, "pyfiber"):
        run(lambda: spawn(fails) and None)
        gc.collect()
    assert "fails" in caplog.text
    assert "lost" in caplog.text


def test_run_waits_for_grains() -> None:
    done: list[int] = []

    def slow() -> Generator[Any, Any, None]:
        yield 5
        done.append(1)

    run_virtually(lambda: spawn(slow) and None)
    assert done == [1]


def test_failing_main_cancels_grains() -> None:
    order = []

    def grain() -> Generator[Any, Any, None]:
        try:
            yield SLEEPING
        except Cancelled as exc:
            order.append(exc.reason)
            raise

    def main() -> None:
        spawn(grain)
        yield_now()
        raise KeyError("main")

    with pytest.raises(KeyError):
        run(main)
    assert order == ["another fiber ended the run"]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_grain_ends_the_run(kind: type[BaseException]) -> None:
    def grain() -> Generator[Any, Any, None]:
        yield READY
        raise kind

    def main() -> None:
        spawn(grain)
        sleep(10)

    with pytest.raises(kind):
        run(main)


def test_deadlock_report_lists_grains(child: Any) -> None:
    text = deadlock(child, "yield inner()")
    assert text.startswith("1 grain waits and nothing can wake one")
    assert "has yielded SLEEPING" in text
    assert "in stuck" in text
    assert "in inner" in text


def test_grain_left_at_the_end_is_closed() -> None:
    order = []

    def grain() -> Generator[Any, Any, None]:
        while True:
            try:
                yield SLEEPING
            except Cancelled:
                order.append("no")
                if len(order) > 2:
                    raise

    def main() -> None:
        spawn(grain)
        yield_now()
        raise KeyError("main")

    with pytest.raises(KeyError):
        run(main)
    assert order == ["no"] * 3
