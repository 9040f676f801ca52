"""Scheduler for embedders: stop(), close(), whose thread it is, what is kept."""

from __future__ import annotations

import contextlib
import gc
import os
import select
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sized
from typing import Any

import pytest

from pyfiber import (
    Cancelled,
    Fiber,
    FiberCancelled,
    FiberError,
    Scheduler,
    current,
    park,
    run,
    spawn,
    yield_now,
)
from tests.support.threads import in_thread

Log = list[Any]
needs_descriptor = pytest.mark.skipif(os.name == "nt", reason="no descriptor on Windows")


def readable(scheduler: Scheduler, timeout: float = 0) -> bool:
    return bool(select.select([scheduler.fileno()], [], [], timeout)[0])


# stop ---------------------------------------------------------------------------------------------


def test_stop_from_a_thread_ends_the_run(scheduler: Scheduler) -> None:
    ended: Log = []

    def body() -> None:
        try:
            park()
        except Cancelled as exc:
            ended.append(exc.reason)
            raise

    def main() -> None:
        spawn(body)
        yield_now()
        thread = threading.Thread(target=scheduler.stop)
        thread.start()
        thread.join()
        body()

    with pytest.raises(FiberCancelled, match="stopped"):
        scheduler.run(main)
    assert ended == ["the scheduler was stopped"] * 2


def test_stop_from_a_fiber_ends_the_run(scheduler: Scheduler) -> None:
    def main() -> None:
        scheduler.stop()
        park()

    with pytest.raises(FiberCancelled):
        scheduler.run(main)


def test_stop_of_a_run_that_swallows_it_returns_its_result(scheduler: Scheduler) -> None:
    def main() -> str:
        scheduler.stop()
        with pytest.raises(Cancelled):
            park()
        return "cleaned up"

    assert scheduler.run(main) == "cleaned up"


def test_stop_ends_a_busy_fiber(scheduler: Scheduler) -> None:
    started = threading.Event()

    def main() -> None:
        started.set()
        while True:
            yield_now()

    thread = threading.Thread(target=lambda: started.wait() and scheduler.stop())
    thread.start()
    with pytest.raises(FiberCancelled):
        scheduler.run(main)
    thread.join()


def test_stop_leaves_the_scheduler_usable(scheduler: Scheduler) -> None:
    test_stop_from_a_fiber_ends_the_run(scheduler)
    assert scheduler.run(lambda: 5) == 5


def test_stop_before_the_run_keeps_its_function_from_running(scheduler: Scheduler) -> None:
    log: Log = []
    waiting = threading.Event()
    thread = threading.Thread(target=waiting.wait, args=(10,))
    thread.start()  # with a thread around, a loop that wrongly idles would wait for it
    scheduler.stop()
    try:
        with pytest.raises(FiberCancelled, match="stopped"):
            scheduler.run(log.append, "ran")
    finally:
        waiting.set()
        thread.join()
    assert log == []


def test_stop_twice_and_after_close() -> None:
    scheduler = Scheduler()
    scheduler.stop()
    scheduler.stop()
    scheduler.run_once()
    scheduler.close()
    scheduler.stop()


# close --------------------------------------------------------------------------------------------


def test_close_unwinds_what_is_left() -> None:
    log: Log = []

    def body() -> None:
        try:
            park()
        finally:
            log.append("unwound")

    scheduler = Scheduler()
    parked, fresh = scheduler.spawn(body), None
    scheduler.run_once()
    fresh = scheduler.spawn(body)
    scheduler.close()
    assert log == ["unwound"]
    assert parked.done()
    assert fresh.done()
    assert scheduler.stats()["fibers"] == 0


def test_close_twice_is_fine() -> None:
    scheduler = Scheduler()
    scheduler.close()
    scheduler.close()


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.run(lambda: None),
        lambda s: s.run_once(),
        lambda s: s.spawn(lambda: None),
        lambda s: s.call_soon_threadsafe(lambda: None),
        lambda s: s.fileno(),
    ],
    ids=["run", "run_once", "spawn", "call_soon_threadsafe", "fileno"],
)
def test_closed_scheduler_refuses(use: Any) -> None:
    scheduler = Scheduler()
    scheduler.close()
    with pytest.raises(FiberError, match="closed"):
        use(scheduler)


def test_close_while_it_runs_is_refused(scheduler: Scheduler) -> None:
    def main() -> str:
        with pytest.raises(FiberError, match="is running"):
            scheduler.close()
        return "fine"

    assert scheduler.run(main) == "fine"


def test_close_on_another_thread_while_fibers_are_left_is_refused(scheduler: Scheduler) -> None:
    fiber = scheduler.spawn(park)
    with pytest.raises(FiberError, match="another thread"):
        in_thread(scheduler.close)
    assert not fiber.done()


def test_close_from_a_fiber_that_is_being_unwound_by_close() -> None:
    scheduler = Scheduler()

    def body() -> None:
        try:
            park()
        finally:
            scheduler.close()

    fiber = scheduler.spawn(body)
    scheduler.run_once()
    scheduler.close()
    assert fiber.done()


def test_spawn_while_being_closed_is_refused() -> None:
    scheduler = Scheduler()
    errors: Log = []

    def body() -> None:
        try:
            park()
        finally:
            with pytest.raises(FiberError) as caught:
                scheduler.spawn(lambda: None)
            errors.append(caught.value)

    scheduler.spawn(body)
    scheduler.run_once()
    scheduler.close()
    assert len(errors) == 1


# Whose thread -------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["run", "run_once"])
def test_run_on_another_thread_is_refused(scheduler: Scheduler, method: str) -> None:
    args = [lambda: None] if method == "run" else []
    with pytest.raises(FiberError, match="another thread"):
        in_thread(lambda: getattr(scheduler, method)(*args))


@pytest.mark.parametrize("spawned", [False, True])
@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.close(),
        lambda s: s.run_once(),
        lambda s: s.run(lambda: None),
        lambda s: s.spawn(lambda: None),
        lambda s: s.fibers(),
        lambda s: s.stats(),
        lambda s: s.stop(),
        lambda s: s.call_soon_threadsafe(lambda: None),
        lambda s: None,
    ],
    ids=["close", "run_once", "run", "spawn", "fibers", "stats", "stop", "call_soon", "nothing"],
)
def test_scheduler_of_a_thread_that_ended_is_no_danger(use: Any, spawned: bool) -> None:
    def body() -> tuple[Scheduler, Fiber[Any] | None]:
        scheduler = Scheduler()
        return scheduler, scheduler.spawn(lambda: None) if spawned else None

    scheduler, fiber = in_thread(body)
    in_thread(lambda: run(lambda: None))  # its memory is used anew
    with contextlib.suppress(FiberError):
        use(scheduler)
    if fiber is not None:
        assert fiber.frame is None
        assert list(fiber.stack()) == []
        assert fiber.state in ("ready", "done")
        repr(fiber)


def test_scheduler_dropped_on_another_thread() -> None:
    box = [Scheduler()]
    in_thread(box.clear)
    assert box == []


# Nothing is kept for ever -------------------------------------------------------------------------


def is_freed(make: Callable[[], Scheduler], close: bool = True) -> bool:
    """The scheduler comes from a function, lest the caller's frame keeps it."""
    scheduler = make()
    if close:
        scheduler.close()
    gone = weakref.ref(scheduler)
    del scheduler
    gc.collect()
    return gone() is None


@pytest.mark.parametrize("close", [False, True])
def test_fresh_scheduler_is_freed(close: bool) -> None:
    assert is_freed(Scheduler, close)


def test_scheduler_that_ran_is_freed() -> None:
    def make() -> Scheduler:
        scheduler = Scheduler()
        scheduler.run(lambda: [spawn(yield_now) for _ in range(10)])
        return scheduler

    assert is_freed(make)


@pytest.mark.parametrize("message", ["call_soon_threadsafe", "stop"])
def test_scheduler_with_an_unread_message_is_freed(message: str) -> None:
    def make() -> Scheduler:
        scheduler = Scheduler()
        if message == "stop":
            scheduler.stop()
        else:
            scheduler.call_soon_threadsafe(lambda: None)
        return scheduler

    assert is_freed(make)


@pytest.mark.parametrize("state", ["ready", "parked"])
def test_scheduler_closed_with_fibers_is_freed(state: str) -> None:
    def make() -> Scheduler:
        scheduler = Scheduler()
        scheduler.spawn(park)
        if state == "parked":
            scheduler.run_once()
        return scheduler

    assert is_freed(make)


def test_scheduler_with_late_wake_ups_from_a_thread_is_freed() -> None:
    """They were sent to a fiber that had not ended yet, and arrive when nobody looks any more."""

    def make() -> Scheduler:
        scheduler = Scheduler()
        fiber = scheduler.spawn(park)
        scheduler.run_once()
        in_thread(lambda: (fiber.unpark(), fiber.unpark("value"), fiber.cancel()))
        return scheduler

    assert is_freed(make)


def forget(make: Callable[[], Scheduler], warned: Sized | None = None) -> weakref.ref[Scheduler]:
    """Make one and drop it; wait until it is gone, or for a warning if there is to be one.

    From 3.15 on a recorded warning keeps what it is about: clear the record then. The collector may
    run on another thread first, pytest's own, say: then the scheduler comes back to this one, which
    closes it at its next switch.
    """
    made = weakref.ref(make())
    hangs = time.monotonic() + 30
    gc.collect()
    while time.monotonic() < hangs:
        Fiber(int).switch()
        if made() is None if warned is None else warned:
            break
        gc.collect()
    return made


def test_scheduler_whose_maker_has_ended_is_closed_with_fibers_in_it() -> None:
    """It is nobody's loop: who made it is not looked for."""
    ends = []

    def make() -> None:
        scheduler = Scheduler()
        scheduler.spawn(lambda: None).add_done_callback(lambda fiber: ends.append(fiber.state))
        made.append(scheduler)

    made: list[Scheduler] = []
    Fiber(make).switch()
    with pytest.warns(ResourceWarning, match="dropped without close") as warned:
        forget(made.pop, warned)
    assert ends == ["done"]


def test_scheduler_with_a_finalizer_of_its_own_and_fibers_is_freed() -> None:
    """They hold each other: the collector ends them, and `finally` blocks run."""
    ends = []

    class Finalized(Scheduler):
        def __del__(self) -> None:
            ends.append("del")

    def parks() -> None:
        try:
            park()
        finally:
            ends.append("finally")

    def make() -> Scheduler:
        scheduler = Finalized()
        scheduler.spawn(parks)
        scheduler.run_once()
        scheduler.spawn(parks)
        return scheduler

    with pytest.warns(ResourceWarning, match="dropped without close") as warned:
        made = forget(make, warned)
    warned.clear()
    assert (made(), sorted(ends)) == (None, ["del", "finally"])  # in the collector's order


@needs_descriptor
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_idle_scheduler_of_a_forked_child_does_not_wake_the_parents(scheduler: Scheduler) -> None:
    scheduler.fileno()
    pid = os.fork()
    if pid == 0:
        scheduler.call_soon_threadsafe(lambda: None)
        os._exit(0)
    os.waitpid(pid, 0)
    assert not readable(scheduler)


def test_fiber_spawned_between_two_runs_belongs_to_the_second() -> None:
    """It was cancelled before it had run, as if the first run were still ending."""
    log: list[str] = []
    scheduler = Scheduler()
    scheduler.run(log.append, "first")
    scheduler.spawn(log.append, "between")
    scheduler.run(log.append, "second")
    scheduler.spawn(log.append, "after")
    while scheduler.run_once():
        pass
    scheduler.close()
    assert log == ["first", "between", "second", "after"]


def test_scheduler_dropped_with_fibers_warns() -> None:
    """Whoever forgets it forgets them."""
    scheduler = Scheduler()
    scheduler.spawn(park)
    scheduler.run_once()
    kept = [scheduler]
    del scheduler
    with pytest.warns(
        ResourceWarning, match=r"dropped without close\(\).* 1 that have not ended"
    ) as warned:
        forget(kept.pop, warned)


def test_scheduler_that_the_collector_of_another_thread_finds_warns_at_the_next_switch() -> None:
    """It was freed without a word, and the fiber ended."""
    ended: list[int] = []

    def parks() -> None:
        try:
            park()
        finally:
            ended.append(threading.get_ident())

    scheduler = Scheduler()
    scheduler.spawn(parks)
    scheduler.run_once()
    del scheduler
    in_thread(gc.collect)
    assert ended == []
    with pytest.warns(ResourceWarning, match=r"dropped without close\(\).* 1 that have not ended"):
        Fiber(int).switch()
    assert ended == [threading.get_ident()]


def test_scheduler_dropped_with_calls_that_it_never_saw_warns() -> None:
    """They held it, and it was kept for ever with what they would have called."""
    called: Log = []

    def make() -> Scheduler:
        scheduler = Scheduler()
        scheduler.call_soon_threadsafe(called.append, 1)
        scheduler.stop()
        scheduler.call_soon_threadsafe(called.append, 2)
        return scheduler

    with pytest.warns(
        ResourceWarning, match=r"dropped without close\(\).* 2 that have not ended"
    ) as warned:
        made = forget(make, warned)
    warned.clear()
    assert (made(), called) == (None, [])


@pytest.mark.parametrize("call", [lambda fiber: fiber.unpark("value"), Fiber.cancel])
@pytest.mark.filterwarnings("ignore:.*dropped without close:ResourceWarning")
def test_scheduler_dropped_with_calls_to_its_fibers_is_freed(
    call: Callable[[Fiber[Any]], object],
) -> None:
    """The calls held the fibers, which hold the scheduler."""

    def make() -> Scheduler:
        scheduler = Scheduler()
        fiber = scheduler.spawn(park)
        scheduler.run_once()
        in_thread(lambda: call(fiber))
        return scheduler

    assert forget(make)() is None


def test_scheduler_stopped_and_dropped_is_freed() -> None:
    def make() -> Scheduler:
        scheduler = Scheduler()
        scheduler.stop()
        return scheduler

    assert forget(make)() is None


def test_call_into_a_run_that_is_abandoned_goes_with_the_scheduler() -> None:
    """Its fiber was ended before the call had arrived, which then kept both."""
    called: Log = []
    raw = Fiber(current().switch)

    def make() -> Scheduler:
        scheduler = Scheduler()
        runner = Fiber(lambda: scheduler.run(raw.switch))
        runner.switch()
        scheduler.call_soon_threadsafe(called.append, 1)
        del runner
        return scheduler

    with pytest.warns(
        ResourceWarning, match=r"dropped without close\(\).* 1 that have not ended"
    ) as warned:
        made = forget(make, warned)
    warned.clear()
    assert (made(), called) == (None, [])


def test_call_into_a_run_that_is_abandoned_is_made_in_the_next() -> None:
    called: Log = []
    raw = Fiber(current().switch)
    scheduler = Scheduler()
    runner = Fiber(lambda: scheduler.run(raw.switch))
    runner.switch()
    scheduler.call_soon_threadsafe(called.append, 1)
    del runner
    assert called == []
    scheduler.run(yield_now)
    scheduler.close()
    assert called == [1]


def test_scheduler_dropped_with_nothing_in_it_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = Scheduler()
        scheduler.run(lambda: None)
        del scheduler
        gc.collect()


def test_second_failure_that_would_end_the_run_is_the_context_of_the_first() -> None:
    """It was lost without a trace."""

    def ends_later(exc: BaseException) -> None:
        try:
            park()
        finally:
            raise exc

    def main() -> None:
        spawn(ends_later, SystemExit(2))
        yield_now()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run(main)
    assert isinstance(caught.value.__context__, SystemExit)


def test_reason_of_a_fiber_cancelled_before_its_start_dies_without_a_switch_of_who_parks() -> None:
    """It dies while the one that parks looks for the next to run."""
    refused: list[str] = []

    class Reason:
        def __del__(self) -> None:
            try:
                yield_now()
            except FiberError as error:
                refused.append(str(error))

    def main() -> None:
        other = spawn(yield_now)
        spawn(print).cancel(Reason())
        assert other.join()

    run(main)
    assert len(refused) == 1
    assert "fiber ends" in refused[0]
