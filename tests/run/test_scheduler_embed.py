"""Scheduler for embedders: one pass at a time inside of another loop, and calls from anywhere."""

from __future__ import annotations

import asyncio
import contextvars
import os
import select
import threading
from typing import Any

import pytest

from pyfiber import (
    Fiber,
    FiberCancelled,
    FiberError,
    Lock,
    Scheduler,
    current,
    current_scheduler,
    park,
    run,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.threads import Portal
from tests.support.threads import in_thread

Log = list[Any]
needs_descriptor = pytest.mark.skipif(os.name == "nt", reason="no descriptor on Windows")


def readable(scheduler: Scheduler, timeout: float = 0) -> bool:
    return bool(select.select([scheduler.fileno()], [], [], timeout)[0])


# current_scheduler --------------------------------------------------------------------------------


def test_current_scheduler_is_the_one_whose_run_the_caller_is_in(scheduler: Scheduler) -> None:
    seen: Log = []

    def look(*_: object) -> None:
        seen.append(current_scheduler())

    def main() -> None:
        look()
        Fiber(look).switch()
        spawn(look).add_done_callback(look)
        scheduler.call_soon_threadsafe(look)

    scheduler.run(main)
    assert len(seen) == 5
    assert all(each is scheduler for each in seen)


def test_current_scheduler_of_run_serves_it() -> None:
    def main() -> None:
        assert current_scheduler() is current_scheduler()
        assert current_scheduler().fibers() == [current()]
        assert current_scheduler().spawn(lambda: 3).result() == 3

    run(main)


def test_current_scheduler_outside_of_a_run_is_refused() -> None:
    def elsewhere() -> None:
        with pytest.raises(FiberError, match=r"current_scheduler\(\) .* pyfiber.run\(\) runs"):
            current_scheduler()

    elsewhere()
    Fiber(elsewhere).switch()
    run(in_thread, elsewhere)
    elsewhere()


# run ----------------------------------------------------------------------------------------------


def test_scheduler_run_is_run(scheduler: Scheduler) -> None:
    assert scheduler.run(lambda *a, **k: (a, k), 1, b=2) == ((1,), {"b": 2})
    with pytest.raises(ZeroDivisionError):
        scheduler.run(lambda: 1 // 0)


def test_scheduler_run_waits_for_what_was_spawned_before(scheduler: Scheduler) -> None:
    log: Log = []
    scheduler.spawn(lambda: (yield_now(), yield_now(), log.append("early")))
    assert scheduler.run(lambda: "result") == "result"
    assert log == ["early"]


def test_scheduler_run_failure_cancels_what_was_spawned_before(scheduler: Scheduler) -> None:
    fiber = scheduler.spawn(park)
    with pytest.raises(ZeroDivisionError):
        scheduler.run(lambda: (yield_now(), 1 // 0))
    assert fiber.cancelled()


def test_scheduler_run_inside_a_run_is_refused(scheduler: Scheduler) -> None:
    other = Scheduler()

    def main() -> None:
        for refused in (scheduler, other):
            with pytest.raises(FiberError, match="runs on this thread already"):
                refused.run(lambda: None)
            with pytest.raises(FiberError, match="runs on this thread already"):
                refused.run_once()

    scheduler.run(main)
    other.close()


def test_join_of_a_fiber_outside_of_its_run_is_refused(scheduler: Scheduler) -> None:
    fiber = scheduler.spawn(int)
    with pytest.raises(FiberError, match=r"waiting for a fiber needs a running scheduler"):
        fiber.join()
    assert not fiber.done()


def test_scheduler_made_inside_a_run_is_usable_after_it() -> None:
    scheduler: Scheduler = run(Scheduler)
    assert scheduler.run(lambda: 5) == 5
    scheduler.close()


def test_scheduler_takes_no_arguments() -> None:
    with pytest.raises(TypeError):
        Scheduler(1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Scheduler(name="x")  # type: ignore[call-arg]


# run_once -----------------------------------------------------------------------------------------


def test_run_once_with_nothing_to_do_says_false(scheduler: Scheduler) -> None:
    assert scheduler.run_once() is False
    assert scheduler.run_once(0) is False
    assert scheduler.run_once(timeout=0.001) is False
    assert scheduler.run_once(None) is False


def test_run_once_runs_each_ready_fiber_once(scheduler: Scheduler) -> None:
    log: Log = []

    def body(name: str) -> None:
        for i in range(3):
            log.append(f"{name}{i}")
            yield_now()

    for name in "ab":
        scheduler.spawn(body, name)
    assert log == []
    assert scheduler.run_once() is True
    assert log == ["a0", "b0"]
    assert scheduler.run_once() is True
    assert log == ["a0", "b0", "a1", "b1"]
    assert scheduler.run_once() is True
    assert scheduler.run_once() is False
    assert log == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_run_once_does_not_run_what_becomes_ready_meanwhile(scheduler: Scheduler) -> None:
    log: Log = []
    scheduler.spawn(lambda: (spawn(log.append, "child"), log.append("parent")))
    scheduler.run_once()
    assert log == ["parent"]
    assert scheduler.run_once() is False
    assert log == ["parent", "child"]


def test_run_once_says_true_while_foreground_fibers_are_left(scheduler: Scheduler) -> None:
    fiber = scheduler.spawn(park)
    assert scheduler.run_once() is True
    fiber.unpark()
    assert scheduler.run_once() is False


def test_run_once_says_false_when_only_daemons_are_left(scheduler: Scheduler) -> None:
    scheduler.spawn(lambda: Fiber(park, daemon=True).start())
    scheduler.run_once()
    assert scheduler.run_once() is False
    assert scheduler.stats()["fibers"] == 1


def test_run_once_waits_for_a_timer(scheduler: Scheduler) -> None:
    log: Log = []
    scheduler.spawn(lambda: (sleep(0.002), log.append("slept")))
    scheduler.run_once()
    while scheduler.run_once(timeout=60):
        pass
    assert log == ["slept"]


def test_run_once_does_not_wait_longer_than_its_timeout(scheduler: Scheduler) -> None:
    scheduler.spawn(sleep, 3600)
    for timeout in (0, 0.001):
        assert scheduler.run_once(timeout) is True


def test_run_once_without_limit_waits_for_another_thread(scheduler: Scheduler) -> None:
    fiber = scheduler.spawn(park)
    scheduler.run_once()
    thread = threading.Thread(target=fiber.unpark, args=("woken",))
    thread.start()
    while scheduler.run_once(None):
        pass
    thread.join()
    assert fiber.result() == "woken"


@pytest.mark.parametrize("bad", ["soon", [], 1j])
def test_run_once_timeout_must_be_a_number(scheduler: Scheduler, bad: Any) -> None:
    with pytest.raises(TypeError, match="must be a number"):
        scheduler.run_once(bad)


@pytest.mark.parametrize("bad", [-1, float("nan")])
def test_run_once_timeout_must_not_be_negative_or_nan(scheduler: Scheduler, bad: float) -> None:
    with pytest.raises(ValueError, match="must not be"):
        scheduler.run_once(bad)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_run_once_raises_what_ends_a_run(scheduler: Scheduler, kind: type[BaseException]) -> None:
    def exits() -> None:
        raise kind("out")

    scheduler.spawn(exits)
    with pytest.raises(kind, match="out"):
        scheduler.run_once()
    assert scheduler.run_once() is False


def test_run_once_inside_a_raw_fiber(scheduler: Scheduler) -> None:
    fiber = scheduler.spawn(lambda: (yield_now(), "value")[1])

    def raw() -> list[bool]:
        return [scheduler.run_once(), scheduler.run_once()]

    assert Fiber(raw).switch() == [True, False]
    assert fiber.result() == "value"


def test_run_once_from_different_raw_fibers_in_turn(scheduler: Scheduler) -> None:
    log: Log = []
    scheduler.spawn(lambda: [(log.append(i), yield_now()) for i in range(4)])
    while Fiber(scheduler.run_once).switch():
        pass
    assert log == [0, 1, 2, 3]


def test_two_schedulers_of_one_thread_take_turns() -> None:
    one, two = Scheduler(), Scheduler()
    log: Log = []

    def body(name: str) -> None:
        for i in range(3):
            log.append(f"{name}{i}")
            yield_now()

    one.spawn(body, "a")
    two.spawn(body, "b")
    while any([one.run_once(), two.run_once()]):
        pass
    assert log == ["a0", "b0", "a1", "b1", "a2", "b2"]
    one.close()
    two.close()


def test_fiber_of_one_scheduler_may_be_joined_in_another() -> None:
    one, two = Scheduler(), Scheduler()
    target = one.spawn(park)
    joiner = two.spawn(target.result)
    one.run_once()
    two.run_once()
    target.unpark("value")
    one.run_once()
    assert two.run_once() is False
    assert joiner.result() == "value"
    one.close()
    two.close()


# spawn --------------------------------------------------------------------------------------------


def test_spawn_before_running(scheduler: Scheduler) -> None:
    fiber = scheduler.spawn(lambda *a, **k: (a, k), 1, fn=2)
    assert fiber.state == "ready"
    scheduler.run_once()
    assert fiber.result() == ((1,), {"fn": 2})


def test_spawn_on_another_thread_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(FiberError, match=r"use call_soon_threadsafe\(\)"):
        in_thread(lambda: scheduler.spawn(lambda: None))


@pytest.mark.parametrize("bad", [None, 1, "name"])
def test_spawn_of_what_cannot_be_called(scheduler: Scheduler, bad: Any) -> None:
    with pytest.raises(TypeError, match="takes a function"):
        scheduler.spawn(bad)
    with pytest.raises(TypeError, match="takes a function"):
        scheduler.call_soon_threadsafe(bad)
    with pytest.raises(TypeError, match="takes a function"):
        scheduler.run(bad)


def test_methods_without_a_function(scheduler: Scheduler) -> None:
    for method in (scheduler.spawn, scheduler.call_soon_threadsafe, scheduler.run):
        with pytest.raises(TypeError, match="needs a function"):
            method()  # type: ignore[call-arg]


# A fiber must not be entered when its loop does not run -------------------------------------------


def left_by_a_raw_switch(scheduler: Scheduler) -> Fiber[Any]:
    """A fiber of the scheduler suspended in a direct switch, and nobody runs the scheduler."""
    raws: list[Fiber[Any]] = []

    def body() -> str:
        raws.append(Fiber(park))
        raws[0].switch()
        return "end"

    fiber = scheduler.spawn(body)
    scheduler.run_once()
    assert fiber.state == "parked"
    fiber.add_done_callback(lambda _: raws.clear())
    return fiber


def test_fiber_left_by_a_switch_cannot_be_entered_outside_of_its_run(
    scheduler: Scheduler,
) -> None:
    fiber = left_by_a_raw_switch(scheduler)
    for enter in (fiber.switch, lambda: fiber.throw(ValueError)):
        with pytest.raises(FiberError):
            enter()


def test_fiber_left_by_a_switch_cannot_be_entered_in_another_schedulers_run(
    scheduler: Scheduler,
) -> None:
    fiber = left_by_a_raw_switch(scheduler)

    def main() -> None:
        with pytest.raises(FiberError):
            fiber.switch()

    run(main)


# fileno -------------------------------------------------------------------------------------------


@needs_descriptor
def test_fileno_is_not_readable_at_rest(scheduler: Scheduler) -> None:
    assert not readable(scheduler)


@needs_descriptor
def test_fileno_is_readable_after_a_call_and_not_after_it_ran(scheduler: Scheduler) -> None:
    log: Log = []
    scheduler.fileno()
    for i in range(3):
        scheduler.call_soon_threadsafe(log.append, i)
        assert readable(scheduler)
        while scheduler.run_once():
            pass
        scheduler.run_once()
        assert log == list(range(i + 1))
        assert not readable(scheduler)


@needs_descriptor
def test_fileno_is_readable_for_a_call_made_before_it_was_asked_for(
    scheduler: Scheduler,
) -> None:
    scheduler.call_soon_threadsafe(lambda: None)
    assert readable(scheduler)


@needs_descriptor
def test_fileno_is_readable_after_a_pass_that_waited(scheduler: Scheduler) -> None:
    """Waiting by itself in between must not make the scheduler forget who waits for it."""
    scheduler.fileno()
    scheduler.spawn(sleep, 0.001)
    while scheduler.run_once(None):
        pass
    in_thread(lambda: scheduler.call_soon_threadsafe(lambda: None))
    assert readable(scheduler)


@needs_descriptor
def test_fileno_is_readable_after_a_run(scheduler: Scheduler) -> None:
    scheduler.fileno()
    scheduler.run(lambda: sleep(0.001))
    in_thread(lambda: scheduler.call_soon_threadsafe(lambda: None))
    assert readable(scheduler)


@needs_descriptor
@pytest.mark.parametrize("wake", ["unpark", "unpark with a value", "cancel", "stop"])
def test_fileno_is_readable_after_a_wake_up_from_a_thread(scheduler: Scheduler, wake: str) -> None:
    fiber = scheduler.spawn(park)
    scheduler.run_once()
    assert not readable(scheduler)
    acts: dict[str, Any] = {
        "unpark": fiber.unpark,
        "unpark with a value": lambda: fiber.unpark(5),
        "cancel": fiber.cancel,
        "stop": scheduler.stop,
    }
    in_thread(acts[wake])
    assert readable(scheduler)
    while scheduler.run_once():
        pass
    assert fiber.done()


@needs_descriptor
@pytest.mark.parametrize("act", ["spawn", "unpark", "cancel", "release"])
def test_fileno_is_readable_while_fibers_are_ready(scheduler: Scheduler, act: str) -> None:
    """The host gave the work itself, between two passes, and now goes back to its select()."""
    scheduler.fileno()
    lock = Lock()
    lock.acquire()
    fiber = scheduler.spawn(park)
    scheduler.spawn(lock.acquire)
    scheduler.run_once()
    assert not readable(scheduler)
    acts: dict[str, Any] = {
        "spawn": lambda: scheduler.spawn(yield_now),
        "unpark": fiber.unpark,
        "cancel": fiber.cancel,
        "release": lock.release,
    }
    acts[act]()
    assert readable(scheduler)


@needs_descriptor
@pytest.mark.skipif(not hasattr(select, "epoll"), reason="no epoll on this system")
def test_fileno_is_watched_by_another_epoll(scheduler: Scheduler) -> None:
    """Level triggered: as long as there is something to do, and no longer."""
    with select.epoll() as host:
        host.register(scheduler.fileno(), select.EPOLLIN)
        for _ in range(3):
            assert not host.poll(0)
            in_thread(lambda: scheduler.call_soon_threadsafe(lambda: None))
            assert host.poll(0)
            assert host.poll(0)
            while scheduler.run_once():
                pass
            scheduler.run_once()


# next_timeout -------------------------------------------------------------------------------------


def test_next_timeout_is_none_when_only_others_can_give_work(scheduler: Scheduler) -> None:
    assert scheduler.next_timeout() is None
    scheduler.spawn(park)
    scheduler.run_once()
    assert scheduler.next_timeout() is None


def test_next_timeout_is_zero_when_there_is_work(scheduler: Scheduler) -> None:
    fiber = scheduler.spawn(park)
    assert scheduler.next_timeout() == 0
    scheduler.run_once()
    fiber.unpark()
    assert scheduler.next_timeout() == 0
    scheduler.run_once()
    scheduler.call_soon_threadsafe(lambda: None)
    assert scheduler.next_timeout() == 0


def test_next_timeout_is_the_time_to_the_first_timer(scheduler: Scheduler) -> None:
    for seconds in (3600, 60, 600):
        scheduler.spawn(sleep, seconds)
    scheduler.run_once()
    timeout = scheduler.next_timeout()
    assert timeout is not None
    assert 30 < timeout <= 60


def test_next_timeout_is_never_negative(scheduler: Scheduler) -> None:
    scheduler.spawn(sleep, 1e-6)
    scheduler.run_once()
    while scheduler.next_timeout() != 0:
        pass
    assert scheduler.run_once() is False


@pytest.mark.parametrize("closed", [False, True])
def test_next_timeout_on_another_thread_or_closed_is_refused(closed: bool) -> None:
    scheduler = Scheduler()
    if closed:
        scheduler.close()
    with pytest.raises(FiberError, match="closed" if closed else "another thread"):
        in_thread(scheduler.next_timeout)
    scheduler.close()


@needs_descriptor
def test_next_timeout_hosts_sleepers_in_a_select_loop(scheduler: Scheduler) -> None:
    log: Log = []
    for seconds in (0.003, 0.001, 0.002):
        scheduler.spawn(lambda seconds=seconds: (sleep(seconds), log.append(seconds)))
    passes = 0
    while scheduler.run_once():
        select.select([scheduler.fileno()], [], [], scheduler.next_timeout())
        passes += 1
    assert sorted(log) == [0.001, 0.002, 0.003]
    assert passes < 30


@needs_descriptor
def test_fileno_hosts_in_a_select_loop(scheduler: Scheduler) -> None:
    log: Log = []

    def feeds() -> None:
        for i in range(200):
            scheduler.call_soon_threadsafe(log.append, i)

    fd = scheduler.fileno()
    thread = threading.Thread(target=feeds)
    thread.start()
    while len(log) < 200:
        assert select.select([fd], [], [], 30)[0], "the wake-up was lost"
        scheduler.run_once()
    thread.join()
    assert log == list(range(200))


@needs_descriptor
def test_fileno_hosted_by_asyncio(scheduler: Scheduler) -> None:
    """asyncio watches the descriptor; fibers and coroutines take turns in one thread."""
    log: Log = []

    def consumer() -> str:
        for _ in range(5):
            log.append(park())
        return "end"

    async def main() -> str:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[str] = loop.create_future()
        fiber = scheduler.spawn(consumer)
        fiber.add_done_callback(lambda done: ended.set_result(done.result()))

        def feed() -> None:
            for i in range(5):
                while fiber.state != "parked":
                    pass
                fiber.unpark(i)
                while len(log) <= i:
                    pass

        loop.add_reader(scheduler.fileno(), scheduler.run_once)
        scheduler.run_once()
        feeding = loop.run_in_executor(None, feed)
        result = await asyncio.wait_for(ended, 30)
        await feeding
        loop.remove_reader(scheduler.fileno())
        return result

    assert asyncio.run(main()) == "end"
    assert log == [0, 1, 2, 3, 4]


# call_soon_threadsafe -----------------------------------------------------------------------------


def test_call_soon_runs_in_a_fiber_of_its_own(scheduler: Scheduler) -> None:
    log: Log = []

    def called(*args: int) -> None:
        log.append(args)
        yield_now()
        log.append(current().name)

    scheduler.call_soon_threadsafe(called, 1, 2)
    while scheduler.run_once():
        pass
    assert log == [(1, 2), called.__qualname__]


def test_call_soon_keeps_its_order(scheduler: Scheduler) -> None:
    log: Log = []
    for i in range(100):
        scheduler.call_soon_threadsafe(log.append, i)
    scheduler.run_once()
    assert log == list(range(100))


def test_call_soon_failure_is_logged(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.call_soon_threadsafe(lambda: 1 // 0)
    scheduler.run_once()
    scheduler.run_once()
    assert "ZeroDivisionError" in caplog.text


def test_call_soon_from_inside_the_run(scheduler: Scheduler) -> None:
    log: Log = []

    def main() -> None:
        scheduler.call_soon_threadsafe(log.append, "called")
        while not log:
            yield_now()

    scheduler.run(main)
    assert log == ["called"]


def test_call_soon_from_a_finished_fibers_callback(scheduler: Scheduler) -> None:
    log: Log = []

    def main() -> None:
        fiber = spawn(lambda: None)
        fiber.add_done_callback(lambda _: scheduler.call_soon_threadsafe(log.append, "called"))
        sleep(0.001)

    scheduler.run(main)
    assert log == ["called"]


def test_call_soon_takes_the_callers_context(scheduler: Scheduler) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    log: Log = []

    def other() -> None:
        variable.set("the thread's")
        scheduler.call_soon_threadsafe(lambda: log.append(variable.get()))

    in_thread(other)
    scheduler.run_once()
    assert log == ["the thread's"]


def test_call_soon_from_four_threads_loses_none(scheduler: Scheduler) -> None:
    got: list[Log] = [[] for _ in range(4)]
    barrier = threading.Barrier(4)

    def feeds(i: int) -> None:
        barrier.wait()
        for n in range(300):
            scheduler.call_soon_threadsafe(got[i].append, n)

    threads = [threading.Thread(target=feeds, args=(i,)) for i in range(4)]

    def main() -> None:
        for thread in threads:
            thread.start()
        while any(len(calls) < 300 for calls in got):
            sleep(0.0005)

    scheduler.run(main)
    for thread in threads:
        thread.join()
    assert got == [list(range(300))] * 4


def test_call_soon_wakes_an_idle_run(scheduler: Scheduler) -> None:
    def main() -> str:
        me = current()
        thread = threading.Thread(
            target=lambda: scheduler.call_soon_threadsafe(me.unpark, "called")
        )
        thread.start()
        value: str = park()
        thread.join()
        return value

    assert scheduler.run(main) == "called"


def test_call_soon_takes_no_keywords(scheduler: Scheduler) -> None:
    with pytest.raises(TypeError, match="keyword"):
        scheduler.call_soon_threadsafe(dict, a=1)  # type: ignore[call-arg]


# stats, fibers ------------------------------------------------------------------------------------


def test_stats_count(scheduler: Scheduler) -> None:
    assert set(scheduler.stats()) == {
        "fibers",
        "foreground",
        "ready",
        "timers",
        "switches",
        "wakeups",
        "messages",
        "timeouts",
        "waits",
        "preemptions",
    }
    assert not any(scheduler.stats().values())

    def main() -> None:
        spawn(sleep, 3600)
        Fiber(park, daemon=True).start()
        spawn(yield_now)
        scheduler.call_soon_threadsafe(lambda: None)
        sleep(0.001)
        stats = scheduler.stats()
        assert (stats["fibers"], stats["foreground"], stats["timers"]) == (3, 2, 1)
        assert stats["messages"] == 1
        assert stats["timeouts"] == 1
        assert stats["waits"] >= 0
        assert stats["switches"] >= 5
        for fiber in scheduler.fibers():
            fiber.cancel()

    with pytest.raises(FiberCancelled):
        scheduler.run(lambda: (main(), park()))
    assert scheduler.stats()["fibers"] == scheduler.stats()["ready"] == 0


def test_stats_from_another_thread(scheduler: Scheduler) -> None:
    scheduler.spawn(lambda: None)
    assert in_thread(scheduler.stats)["ready"] == 1


def test_fibers_lists_them_oldest_first(scheduler: Scheduler) -> None:
    made = [scheduler.spawn(park) for _ in range(3)]
    assert scheduler.fibers() == made
    made[1].cancel()
    scheduler.run_once()
    assert scheduler.fibers() == [made[0], made[2]]


def test_fibers_lists_those_that_have_been_posted_and_not_arrived(scheduler: Scheduler) -> None:
    def listed() -> list[str]:
        return [fiber.name for fiber in scheduler.fibers()]

    def first() -> None: ...
    def second() -> None: ...
    def third() -> None: ...

    scheduler.spawn(first)
    in_thread(lambda: scheduler.call_soon_threadsafe(second))
    in_thread(lambda: scheduler.call_soon_threadsafe(third))
    before = listed()
    assert scheduler.stats()["fibers"] == scheduler.stats()["foreground"] == 3
    scheduler.run_once()
    assert listed() == []
    assert scheduler.stats()["fibers"] == scheduler.stats()["foreground"] == 0
    assert [name.rpartition(".")[2] for name in before] == ["first", "second", "third"]


def test_fiber_that_is_posted_by_the_last_one_keeps_the_run_going(scheduler: Scheduler) -> None:
    log: Log = []

    def main() -> None:
        scheduler.call_soon_threadsafe(log.append, "ran")

    scheduler.run(main)
    assert log == ["ran"]


def test_fiber_that_is_posted_to_a_run_that_fails_is_cancelled_and_told_why(
    scheduler: Scheduler,
) -> None:
    portal = Portal(scheduler)

    def main() -> Any:
        posted.append(in_thread(lambda: portal.spawn(log.append, "ran")))
        raise ValueError("failed")

    log: Log = []
    posted: list[Fiber[Any]] = []
    with pytest.raises(ValueError, match="failed"):
        scheduler.run(main)
    assert posted[0].cancelled()
    assert log == []
    with pytest.raises(FiberCancelled, match="another fiber ended the run"):
        posted[0].result()


def test_fibers_on_another_thread_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(FiberError, match="another thread"):
        in_thread(scheduler.fibers)
