"""run, explore and replay: which schedules are tried, that they repeat, what a failure tells."""

from __future__ import annotations

import datetime
import gc
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from itertools import permutations
from math import comb
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    Channel,
    Event,
    FiberError,
    Lock,
    current,
    now,
    park,
    select,
    sleep,
    spawn,
    yield_now,
)
from pyfiber.testing import (
    ReplayDivergence,
    ScheduleFailure,
    choose,
    explore,
    preempt,
    replay,
    run,
)
from pyfiber.testing.schedule import KINDS, Schedule

STRATEGIES = ("random", "pct", "dfs")


def lost_update() -> None:
    """Fails unless the second adder begins when the first has ended."""
    total = 0

    def add(waits: int) -> None:
        nonlocal total
        for _ in range(waits):
            yield_now()
        before = total
        yield_now()
        total = before + 1

    fibers = [spawn(add, waits) for waits in (0, 2)]
    for fiber in fibers:
        fiber.join()
    assert total == 2, total


def order_of(*names: str, yields: int = 1) -> tuple[str, ...]:
    """In which order fibers of these names pass, after some yields."""
    log: list[str] = []

    def work(name: str) -> None:
        for _ in range(yields):
            log.append(name)
            yield_now()
        log.append(name)

    for fiber in [spawn(work, name) for name in names]:
        fiber.join()
    return tuple(log)


def caught(fn: Callable[[], object], *args: Any, **options: Any) -> ScheduleFailure:
    with pytest.raises(ScheduleFailure) as failure:
        explore(fn, *args, **options)
    return failure.value


# -------------------------------------------------------------------- strategies


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy_finds_what_the_usual_order_hides(strategy: Any) -> None:
    assert explore(lost_update, strategy="fifo").schedules == 1
    failure = caught(lost_update, 1000, strategy)
    assert isinstance(failure.exception, AssertionError)
    assert failure.number is not None
    assert failure.number > 1


@pytest.mark.parametrize(("a", "b"), [(0, 0), (1, 1), (2, 3), (4, 4)])
def test_dfs_runs_every_interleaving_of_two_fibers_once(a: int, b: int) -> None:
    seen: list[str] = []

    def main() -> None:
        log: list[str] = []

        def work(name: str, yields: int) -> None:
            for i in range(yields + 1):
                if i > 0:
                    yield_now()
                log.append(name)
            if len(log) == a + b + 2:
                seen.append("".join(log))

        spawn(work, "a", a)
        spawn(work, "b", b)

    found = explore(main, 10_000, "dfs")
    expected = comb(a + b + 2, a + 1)
    assert found.complete
    assert found.schedules == found.distinct == expected
    # The first one is run twice: the second run must be the same.
    assert len(seen) == expected + 1
    assert len(set(seen)) == expected


def test_dfs_of_a_program_without_choices_is_one_schedule() -> None:
    found = explore(lambda: sleep(1), strategy="dfs")
    assert (found.schedules, found.complete, found.choices) == (1, True, 0)


def test_dfs_stops_at_the_number_of_schedules() -> None:
    found = explore(lambda: order_of("a", "b", "c"), 17, "dfs")
    assert (found.schedules, found.complete) == (17, False)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_order_of_three_ready_fibers_comes(strategy: Any) -> None:
    orders = set()

    def main() -> None:
        orders.add(order_of("a", "b", "c", yields=0))

    explore(main, 200, strategy)
    assert orders == set(permutations("abc"))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_order_of_timers_due_together_comes(strategy: Any) -> None:
    orders = set()

    def main() -> None:
        log: list[str] = []
        fibers = [spawn(lambda name=name: (sleep(1), log.append(name))) for name in "abc"]
        for fiber in fibers:
            fiber.join()
        orders.add("".join(log))

    explore(main, 3000, strategy)
    assert len(orders) == 6


def test_timers_of_different_times_keep_their_order() -> None:
    def main() -> None:
        log: list[int] = []
        for i in (3, 1, 2):
            spawn(lambda i=i: (sleep(i), log.append(i)))
        sleep(10)
        assert log == [1, 2, 3]

    assert explore(main, strategy="dfs").complete


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_timeout_and_wake_up_at_the_same_instant_come_in_both_orders(strategy: Any) -> None:
    outcomes = set()

    def main() -> None:
        def wait() -> str:
            try:
                return str(park(timeout=1))
            except TimeoutError:
                return "timeout"

        waiter = spawn(wait)

        def wake() -> None:
            sleep(1)
            if not waiter.done():
                waiter.unpark("woken")

        spawn(wake)
        outcomes.add(waiter.result())

    explore(main, 200, strategy)
    assert outcomes == {"timeout", "woken"}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_choose_gives_every_item(strategy: Any) -> None:
    seen = set()
    explore(lambda: seen.add((choose("abc"), choose([1, 2]))), 300, strategy)
    assert len(seen) == 6


def test_choose_is_the_first_item_outside_of_an_exploration() -> None:
    assert choose("abc") == "a"
    assert run(lambda: choose("abc")) == "a"
    with pytest.raises(ValueError, match="nothing to choose from"):
        choose([])


def test_pct_does_not_starve_whom_a_spinning_fiber_waits_for() -> None:
    def main() -> None:
        flag = False

        def spin() -> None:
            while not flag:
                yield_now()

        spinner = spawn(spin)
        for _ in range(3):
            yield_now()
        flag = True
        spinner.join()

    assert explore(main, 500, "pct", max_steps=2000).schedules == 500


def test_pct_of_depth_one_never_interrupts_and_of_depth_two_does() -> None:
    def main() -> None:
        log: list[str] = []

        def work(name: str) -> None:
            for _ in range(3):
                log.append(name)
                yield_now()

        for fiber in [spawn(work, name) for name in "ab"]:
            fiber.join()
        assert "".join(log) in ("ababab", "aaabbb", "bbbaaa")  # the usual order; priorities

    assert explore(main, 300, "pct", depth=1).distinct > 1
    caught(main, 300, "pct", depth=2)


# -------------------------------------------------------------------- preemption


def test_preemption_happens_at_primitives_if_asked_for() -> None:
    def main() -> None:
        log: list[str] = []
        first = spawn(log.append, "child")
        log.append("parent")
        first.join()
        assert log == ["parent", "child"]

    assert explore(main, strategy="dfs").complete
    assert isinstance(caught(main, 100, "dfs", preempt=True).exception, AssertionError)


def test_preempt_is_a_place_to_switch_in_preempted_runs_only() -> None:
    def main() -> None:
        log: list[int] = []

        def work(i: int) -> None:
            log.append(i)
            preempt()
            log.append(i)

        for fiber in [spawn(work, i) for i in range(2)]:
            fiber.join()
        assert log[0] == log[1]

    preempt()
    assert explore(main, strategy="dfs").complete
    failure = caught(main, 100, "random", preempt=True)
    with pytest.raises(ScheduleFailure):
        replay(main, failure.schedule)


def test_unpark_and_cancel_are_places_to_switch() -> None:
    def main() -> None:
        log: list[str] = []
        waiter = spawn(lambda: (park(), log.append("woken")))
        sleeper = spawn(lambda: sleep(5))
        yield_now()
        waiter.unpark()
        log.append("unparked")
        sleeper.cancel()
        log.append("cancelled" + str(sleeper.done()))
        assert "".join(log) != "wokenunparkedcancelledTrue"

    assert explore(main, strategy="dfs").complete
    caught(main, 10_000, "dfs", preempt=True)


# ------------------------------------------------------------------- repetition


def schedules_of(seed: int, strategy: Any) -> list[tuple[str, ...]]:
    seen: list[tuple[str, ...]] = []
    explore(lambda: seen.append(order_of("a", "b", "c", "d")), 20, strategy, seed)
    return seen


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_same_seed_gives_the_same_schedules(strategy: Any) -> None:
    assert schedules_of(7, strategy) == schedules_of(7, strategy)


@pytest.mark.parametrize("strategy", ["random", "pct"])
def test_another_seed_gives_other_schedules(strategy: Any) -> None:
    assert schedules_of(7, strategy) != schedules_of(8, strategy)


# The same on every CPython and platform: change these with the version of the format only.
GOLDEN = {
    "random": ("zcbcbcaaba1.0", "schedule: pf2-aal6fzojsmteuqa4tyabxay"),
    "pct": ("xaaabbbccc1.0", "schedule: pf2-aalwls4wtxijs7adomka"),
}


@pytest.mark.parametrize("strategy", GOLDEN)
def test_same_seed_gives_the_same_schedule_on_every_platform(strategy: Any) -> None:
    def main() -> str:
        log = [choose("xyz"), *order_of("a", "b", "c", yields=2)]
        sleep(choose([1, 2, 3]))
        raise KeyError("".join(log) + str(now()))

    with pytest.raises(KeyError) as failure:
        run(main, seed=42, strategy=strategy)
    found = failure.value.args[0], failure.value.__notes__[-1]
    assert found == GOLDEN[strategy]


# As above, with a choice of every kind: who runs, timers, waiters, select(), choose(), preemption.
GOLDEN_OF_ALL_KINDS = {
    "random": ("aAcdbCDB8.0", "pf2-amchlkjdklxtzjz6ou5kj42ptg3uzfpp3sgt7waz5e"),
    "pct": ("bdcBaDCA8.0", "pf2-amcve2i43snvf2nt5mvtszlenglobpt5dww36"),
}


def everything() -> None:
    log: list[str] = []
    lock = Lock()
    channels = [Channel[str](1) for _ in range(2)]

    def work(name: str) -> None:
        sleep(1)
        with lock:
            log.append(name)
            sleep(choose([0, 1]))
        channels[choose([0, 1])].send(name)

    fibers = [spawn(work, name) for name in "abcd"]
    for _ in fibers:
        sleep(2)
        found = select(*[channel.receiving() for channel in channels])
        log.append(found[1].upper())
    raise KeyError("".join(log) + str(now()))


@pytest.mark.parametrize("strategy", GOLDEN_OF_ALL_KINDS)
def test_same_seed_gives_the_same_choices_of_every_kind_on_every_platform(strategy: Any) -> None:
    with pytest.raises(KeyError) as failure:
        run(everything, seed=2024, strategy=strategy, preempt=True, unfair=True)
    schedule = failure.value.__notes__[-1].removeprefix("schedule: ")
    assert (failure.value.args[0], schedule) == GOLDEN_OF_ALL_KINDS[strategy]
    with pytest.raises(ScheduleFailure, match=failure.value.args[0]) as again:
        replay(everything, schedule)
    assert again.value.schedule == schedule
    kinds = {kind for kind, _, taken in Schedule.parse(schedule).choices if taken}
    without_faults = set(range(KINDS.index("whether there is a fault")))
    assert strategy == "pct" or kinds == without_faults


def test_select_on_a_plain_thread_takes_no_part_in_it() -> None:
    found: list[Any] = []

    def body() -> None:
        event = Event()
        event.set()
        thread = threading.Thread(
            target=lambda: found.append(select(event.waiting(), event.waiting()))
        )
        thread.start()
        thread.join()

    run(body, threads=True, seed=1)
    assert found == [(0, None)]


def test_depth_first_search_goes_the_same_way_on_every_platform() -> None:
    failure = caught(lambda: order_of("a", "b") == ("b", "b", "a", "a") and 1 // 0, 1000, "dfs")
    assert (failure.number, failure.schedule) == (10, "pf2-ab52agkh3tymw")


def test_run_with_a_seed_notes_the_schedule_that_repeats_it() -> None:
    orders = []

    def main() -> None:
        orders.append(order_of("a", "b", "c", "d", yields=3))
        raise ValueError("at last")

    with pytest.raises(ValueError, match="at last") as failure:
        run(main, seed=3)
    schedule = failure.value.__notes__[0].removeprefix("schedule: ")
    with pytest.raises(ScheduleFailure, match="at last"):
        run(main, schedule=schedule)
    assert orders[0] == orders[1]


def test_replay_of_a_failure_fails_in_the_same_way_every_time() -> None:
    failure = caught(lost_update)
    for _ in range(3):
        with pytest.raises(ScheduleFailure) as again:
            replay(lost_update, failure.schedule)
        assert again.value.schedule == failure.schedule
        assert again.value.log == failure.log


def test_replay_of_a_schedule_that_passes_returns_the_result() -> None:
    orders: list[tuple[str, ...]] = []

    def main(fails: bool) -> tuple[str, ...]:
        orders.append(order_of("a", "b", "c", yields=3))
        assert not fails
        return orders[-1]

    with pytest.raises(AssertionError) as failure:
        run(main, True, seed=1)
    schedule = failure.value.__notes__[-1].removeprefix("schedule: ")
    assert replay(lambda: main(False), schedule) == orders[0]


def test_replay_of_a_changed_program_names_the_step() -> None:
    schedule = caught(lost_update).schedule

    def changed() -> None:
        spawn(lambda: [yield_now() for _ in range(9)])
        lost_update()

    with pytest.raises(ReplayDivergence, match=r"at choice \d+ the schedule says who runs next"):
        replay(changed, schedule)


# ------------------------------------------------------------------- the report


def test_failure_tells_the_traceback_seed_schedule_replay_line_and_who_ran() -> None:
    failure = caught(lost_update, 1000, "random", 5)
    text = str(failure)
    assert "assert total == 2, total" in text
    assert f"schedule {failure.number} of 1000 (strategy 'random', seed 5) fails" in text
    assert f'pyfiber.testing.replay(lost_update, "{failure.schedule}")' in text
    assert failure.log in text
    assert "lost_update#0: starts" in failure.log
    assert "add#" in failure.log
    assert "yields at" in failure.log
    assert "before = total" not in failure.log  # the line it stopped at is the yield
    assert (failure.seed, failure.exception.args) == (5, failure.exception.args)
    assert "pyfiber/testing" not in text.partition("schedule: ")[0]


def test_shrunk_schedule_is_short_and_near_the_usual_order() -> None:
    def main() -> None:
        for _ in range(5):
            spawn(lambda: [yield_now() for _ in range(20)])
        lost_update()

    failure = caught(main, 1000, "random", 1)  # other seeds: 3 to 16 turns out of the usual order
    assert len(failure.schedule) < 60
    assert failure.log.count("*") <= 4


def test_failure_in_the_usual_order_needs_no_deviation() -> None:
    failure = caught(lambda: [][0])  # type: ignore[index]
    assert failure.number == 1
    assert "the usual order)" in str(failure)


def test_long_log_shows_the_last_steps() -> None:
    def main() -> None:
        for _ in range(500):
            yield_now()
        raise KeyError("end")

    log = caught(main).log
    assert "steps are left out" in log
    assert len(log.splitlines()) < 200


OPTIONS: dict[str, dict[str, Any]] = {
    "leftovers": {"leftovers": "error"},
    "max_steps": {"max_steps": 50},
    "setup and check": {"setup": list, "check": len},
    "virtualize_time": {"virtualize_time": True},
    "clock": {"clock": 100.5},
    "datetime": {"clock": datetime.datetime(2030, 1, 1)},
    "real clock": {"clock": "real"},
    "preempt": {"preempt": True, "unfair": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_replay_line_repeats_the_failure_as_it_is_printed(options: dict[str, Any]) -> None:
    def program(*state: Any) -> None:
        if options.get("virtualize_time"):
            time.sleep(3600)
        if options.get("leftovers"):
            spawn(sleep, 1)
            return
        while options.get("max_steps"):
            yield_now()
        raise KeyError(now() if options.get("clock") != "real" else "real")

    failure = caught(program, **options)
    line = next(
        line.partition("replay:")[2].strip()
        for line in str(failure).splitlines()
        if line.startswith("replay:")
    )
    names = {"pyfiber": pyfiber, "datetime": datetime, "program": program}
    with pytest.raises(ScheduleFailure) as again:
        eval(line, {**names, **{name: options.get(name) for name in ("setup", "check")}})
    assert again.value.schedule == failure.schedule
    assert type(again.value.exception) is type(failure.exception)
    addresses = re.compile("0x[0-9a-fA-F]+")
    told, before = [addresses.sub("", str(e.exception)) for e in (again.value, failure)]
    assert told == before


def test_log_names_the_nearest_line_and_tells_starts_from_going_on() -> None:
    def main() -> None:
        barrier = pyfiber.Barrier(2)
        for fiber in [spawn(barrier.wait), spawn(sleep, 1), spawn(barrier.wait)]:
            fiber.join()
        raise KeyError

    log = caught(main).log
    assert "waits for Condition at _barrier.py:" in log  # no line of the program is on that stack
    assert log.count("sleep#2: starts") == 1
    assert log.count("sleep#2: goes on") == 1
    assert " at \n" not in log


# ----------------------------------------------------------- state and conditions


def test_setup_makes_the_state_anew_for_each_schedule_and_check_sees_it() -> None:
    made: list[list[int]] = []

    def setup() -> list[int]:
        made.append([])
        return made[-1]

    def main(state: list[int]) -> None:
        assert state == []
        for i in range(3):
            spawn(state.append, i)

    def check(state: list[int]) -> None:
        assert state is made[-1]
        assert sorted(state) == [0, 1, 2]

    explore(main, 50, setup=setup, check=check)
    assert len(made) == 51  # the first schedule runs twice


def test_check_that_fails_is_a_failure_of_the_schedule() -> None:
    def check(state: list[str]) -> None:
        assert state == ["a", "b"]

    def main(state: list[str]) -> None:
        for name in "ab":
            spawn(state.append, name)

    failure = caught(main, setup=list, check=check)
    assert failure.number is not None
    assert failure.number > 1
    assert 'setup=setup, check=check")' not in str(failure)
    with pytest.raises(ScheduleFailure):
        replay(main, failure.schedule, setup=list, check=check)


def test_exploration_says_what_was_done() -> None:
    found = explore(lambda: order_of("a", "b"), 50, "random")
    assert found.schedules == 50
    assert not found.complete
    assert 1 < found.distinct <= 50
    assert found.steps >= 7
    assert found.choices > 0


# ----------------------------------------------------------------------- misuse


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"strategy": "best"}, ValueError, "no strategy 'best'"),
        ({"schedules": 0}, ValueError, "schedules must be at least 1"),
        ({"schedules": 1.5}, TypeError, "schedules is an integer"),
        ({"depth": 0}, ValueError, "depth must be at least 1"),
        ({"depth": 17}, ValueError, "depth is at most 16"),
        ({"seed": "x"}, TypeError, "a seed is an integer"),
        ({"max_steps": 0}, ValueError, "max_steps must be at least 1"),
        ({"leftovers": "drop"}, ValueError, "leftovers is 'join' or 'error'"),
        ({"setup": 1}, TypeError, "setup must be callable"),
        ({"check": 1}, TypeError, "check must be callable"),
    ],
)
def test_explore_with_bad_options_is_refused(
    options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        explore(lambda: None, **options)


def test_explore_of_something_not_callable_is_refused() -> None:
    with pytest.raises(TypeError, match="fn must be callable"):
        explore(1)  # type: ignore[arg-type]


def test_run_with_schedule_and_seed_or_dfs_is_refused() -> None:
    with pytest.raises(TypeError, match="a schedule says it all"):
        run(lambda: None, schedule="pf2-", seed=1)
    with pytest.raises(ValueError, match="one run has the strategy"):
        run(lambda: None, strategy="dfs")


def test_explore_inside_of_a_run_is_refused() -> None:
    def main() -> None:
        with pytest.raises(FiberError, match="runs on this thread already"):
            explore(lambda: None)

    run(main)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_and_exit_end_the_exploration_as_they_are(error: type[BaseException]) -> None:
    def main() -> None:
        spawn(yield_now)
        raise error

    with pytest.raises(error):
        explore(main)
    assert current().name == "main"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", [1, 2, 17])
def test_ctrl_c_in_the_middle_of_an_exploration_leaves_nothing_behind(
    error: type[BaseException], at: int
) -> None:
    calls = []

    def interrupted() -> None:
        calls.append(1)
        if len(calls) == at:
            raise error

    def main() -> None:
        spawn(interrupted)
        sleep(5)

    before = gc.isenabled(), time.sleep, threading.Thread.start
    with pytest.raises(error):
        explore(main)
    assert len(calls) == at
    assert (gc.isenabled(), time.sleep, threading.Thread.start) == before
    assert explore(lambda: spawn(sleep, 1), 3).schedules == 3


def test_ctrl_c_while_a_failure_is_shrunk_is_raised() -> None:
    calls = []

    def main() -> None:
        calls.append(1)
        if len(calls) > 12:
            raise KeyboardInterrupt
        assert order_of("a", "b", "c", yields=4)[0] == "a"

    with pytest.raises(KeyboardInterrupt):
        explore(main)


class NoException(BaseException):
    """As asyncio.CancelledError is none."""


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("in str()")


@pytest.mark.parametrize("error", [NoException, Unspeakable, GeneratorExit])
def test_odd_exception_is_a_failure_like_any_other(error: type[BaseException]) -> None:
    def main() -> None:
        spawn(yield_now)
        raise error

    failure = caught(main)
    assert isinstance(failure.exception, error)
    assert "raise error" in str(failure)


def test_exploring_in_setup_and_check_is_possible() -> None:
    def inner(*_: object) -> int:
        return explore(lambda: sleep(1), 3).schedules

    assert explore(lambda three: sleep(three), 5, setup=inner, check=inner).schedules == 5


@pytest.mark.parametrize("fn", [run, explore, lambda fn: replay(fn, "pf2-acaetrgdgz4q")])
def test_function_that_would_run_nothing_is_refused(fn: Any) -> None:
    async def coroutine() -> None:
        pass

    def generator() -> Iterator[None]:
        yield

    async def both() -> AsyncIterator[None]:
        yield

    for program in (coroutine, generator, both, partial(generator)):
        with pytest.raises(TypeError, match="a plain one is needed"):
            fn(program)


def test_skip_inside_of_an_explored_function_skips() -> None:
    with pytest.raises(pytest.skip.Exception):
        explore(lambda: pytest.skip("not here"))
    with pytest.raises(ScheduleFailure):
        explore(lambda: pytest.fail("indeed"))
    with pytest.raises(pytest.exit.Exception):
        explore(lambda: pytest.exit("enough"))
