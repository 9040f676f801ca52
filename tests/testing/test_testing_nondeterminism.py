"""Runs that differ although their schedule does not: found, and what may be the cause named."""

from __future__ import annotations

import datetime
import itertools
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable
from os import urandom
from pathlib import Path
from time import time as imported_time
from typing import Any

import pytest

from pyfiber import now, sleep, spawn, yield_now
from pyfiber.testing import NondeterminismError, ScheduleFailure, choose, explore
from pyfiber.testing.orders import has_fixed_hash
from pyfiber.testing.suspects import Suspects
from tests.conftest import Child


@pytest.fixture(autouse=True)
def _unwatched() -> Any:
    """Coverage and debuggers have the trace function otherwise."""
    trace, profile = sys.gettrace(), sys.getprofile()
    sys.settrace(None)
    sys.setprofile(None)
    yield
    assert (sys.gettrace(), sys.getprofile()) == (None, None)
    sys.settrace(trace)
    sys.setprofile(profile)


def cause_of(fn: Callable[[], object], **options: Any) -> str:
    """What the NondeterminismError says."""
    with pytest.raises(NondeterminismError) as caught:
        explore(fn, 200, **options)
    return str(caught.value)


def test_state_kept_between_runs_is_found() -> None:
    calls = []

    def main() -> None:
        calls.append(1)
        for _ in range(len(calls)):
            spawn(yield_now)

    with pytest.raises(NondeterminismError, match="globals, caches") as caught:
        explore(main)
    assert "the same schedule was run twice" in str(caught.value)


class Lazy:
    """Computes a number when it is asked for the first time."""

    def __init__(self) -> None:
        self.number = 0

    def get(self) -> int:
        if self.number == 0:
            self.number = 42
        return self.number


def test_lines_at_which_two_runs_part_are_named() -> None:
    lazy = Lazy()

    def main() -> None:
        for fiber in [spawn(lazy.get), spawn(lazy.get)]:
            fiber.join()

    text = cause_of(main, switch="line")
    before, one, other = text.splitlines()[1:4]
    assert before.endswith("if self.number == 0:")
    assert one.endswith("self.number = 42")
    assert other.endswith("return self.number")
    assert "Only the first call differs." in text


def test_state_that_grows_differs_in_more_than_the_first_call() -> None:
    calls = []

    def main() -> None:
        calls.append(1)
        for _ in calls:
            spawn(yield_now)

    assert "Only the first call" not in cause_of(main)


def test_real_clock_is_named() -> None:
    def main() -> None:
        sleep(time.perf_counter() % 1000)

    with pytest.raises(NondeterminismError, match=r"the real clock: perf_counter\(\) called at"):
        explore(main)


def test_real_thread_is_named_if_threads_are_allowed() -> None:
    count = [0]

    def main() -> None:
        count[0] += 1
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        sleep(count[0])

    with pytest.raises(NondeterminismError, match=r"a real thread: start\(\)"):
        explore(main, threads=True)
    with pytest.raises(ScheduleFailure, match="starts a real thread"):
        explore(main)


def test_failure_that_does_not_come_again_is_nondeterminism() -> None:
    calls = []

    def main() -> None:
        calls.append(1)
        spawn(yield_now)
        if len(calls) == 5:
            raise ValueError("once only")

    with pytest.raises(NondeterminismError, match="once only"):
        explore(main)


def test_dfs_notices_nondeterminism_in_the_middle() -> None:
    calls = []

    def main() -> None:
        calls.append(1)
        for _ in range(3 if len(calls) < 10 else 4):
            spawn(yield_now)

    with pytest.raises(NondeterminismError, match="at choice"):
        explore(main, 1000, "dfs")


def different(value: float) -> float:
    """Some seconds, hardly ever the same twice."""
    return (value * 1e6) % 1000


SOURCES: dict[str, tuple[Callable[[], float], str]] = {
    "time": (time.time, r"the real clock: time\(\) called at"),
    "imported time": (imported_time, r"the real clock: time\(\) called at"),
    "monotonic_ns": (lambda: time.monotonic_ns() / 1e9, r"the real clock: monotonic_ns\(\)"),
    "perf_counter_ns": (
        lambda: time.perf_counter_ns() / 1e9,
        r"the real clock: perf_counter_ns\(\)",
    ),
    "datetime.now": (
        lambda: datetime.datetime.now().timestamp(),
        r"the real clock: now\(\) called at .*test_testing_nondeterminism.py:\d+",
    ),
    "urandom": (
        lambda: int.from_bytes(urandom(5), "big") / 1e12,
        r"random numbers of the system: urandom\(\)",
    ),
}


if sys.platform == "win32":  # whose monotonic clock ticks 64 times a second only
    del SOURCES["monotonic_ns"]


@pytest.mark.parametrize(("source", "text"), SOURCES.values(), ids=SOURCES)
def test_source_of_nondeterminism_is_named_with_its_place(
    source: Callable[[], float], text: str
) -> None:
    def main() -> None:
        seconds = source()
        sleep(different(seconds))

    with pytest.raises(NondeterminismError, match=text):
        explore(main)


def test_real_clock_of_the_run_is_named() -> None:
    def main() -> None:
        sleep(0)
        choose(range(2 + int(now() * 1e9) % 1_000_003))

    assert "the real clock: the run goes by it (clock='real')" in cause_of(main, clock="real")


class Restless:
    """Has another hash each time it is made, as an object with an address has."""

    made = 0

    def __init__(self, name: int) -> None:
        Restless.made += 1
        self.name = name
        self.hash = Restless.made * 7919

    def __hash__(self) -> int:
        return self.hash


def things() -> set[Restless]:
    return {Restless(n) for n in range(20)}


class Keeper:
    def __init__(self) -> None:
        self.things = things()

    @property
    def asked(self) -> set[Restless]:
        return self.things


def by_loop() -> list[int]:
    names = []
    all_things = things()
    for thing in all_things:
        names.append(thing.name)
    return names


def by_comprehension() -> list[int]:
    all_things = things()
    return [thing.name for thing in all_things]


def by_attribute() -> list[int]:
    keeper = Keeper()
    return [thing.name for thing in keeper.things]


def by_list() -> list[int]:
    all_things = frozenset(things())
    return [thing.name for thing in list(all_things)]


def by_literal() -> list[int]:
    return [thing.name for thing in set(list(things()))]  # noqa: C414


def by_star() -> list[int]:
    all_things = things()
    return [thing.name for thing in [*all_things]]


def by_pop() -> list[int]:
    all_things = things()
    return [all_things.pop().name for _ in range(5)]


def in_a_dictionary() -> list[int]:
    rooms = {"hall": things()}
    return [thing.name for thing in rooms["hall"]]


def in_an_attribute_of_an_element() -> list[int]:
    keepers = [Keeper()]
    return [thing.name for thing in keepers[-1].things]


def in_a_dictionary_by_get() -> list[int]:
    rooms = {("hall", 1): things()}
    return list(map(name_of, rooms.get(("hall", 1), ())))


def in_the_values_of_a_dictionary() -> list[int]:
    rooms = {"hall": things()}
    return [thing.name for room in rooms.values() for thing in room]


def in_the_items_of_a_dictionary() -> list[int]:
    rooms = {"hall": things()}
    return [thing.name for _, room in rooms.items() for thing in room]


def in_a_chain() -> list[int]:
    rooms = [things()]
    return [thing.name for thing in itertools.chain.from_iterable(rooms)]


def in_stars() -> list[int]:
    rooms = [things()]
    return [thing.name for thing in itertools.chain(*rooms)]


def from_a_function() -> list[int]:
    return [thing.name for thing in things()]


def from_a_property() -> list[int]:
    keeper = Keeper()
    return [thing.name for thing in keeper.asked]


def from_a_method_of_a_set() -> list[int]:
    some = things()
    return [thing.name for thing in some.union(things())]


def from_an_operation() -> list[int]:
    some = things()
    return [thing.name for thing in some ^ set()]


def from_keys() -> list[int]:
    some = dict.fromkeys(sorted(things(), key=name_of))
    return [thing.name for thing in some.keys() - {1}]


def by_weak_references() -> list[int]:
    kept = sorted(things(), key=name_of)
    weak = weakref.WeakSet(kept)
    return [thing.name for thing in weak]


def by_ties() -> list[int]:
    some = things()
    return list(map(name_of, sorted(some, key=lambda thing: 0)))


def by_the_shorter_of_two() -> list[int]:
    some = things()
    return [thing.name for thing in (some or set())]


def name_of(thing: Restless) -> int:
    return thing.name


ORDERS = [
    *(by_loop, by_comprehension, by_attribute, by_list, by_literal, by_star, by_pop),
    *(in_a_dictionary, in_an_attribute_of_an_element, in_a_dictionary_by_get),
    *(in_the_values_of_a_dictionary, in_the_items_of_a_dictionary, in_a_chain, in_stars),
    *(from_a_function, from_a_property, from_a_method_of_a_set, from_an_operation, from_keys),
    *(by_weak_references, by_ties, by_the_shorter_of_two),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.__name__)
def test_hash_order_is_named_with_its_place(order: Callable[[], list[int]]) -> None:
    def main() -> None:
        for name in order():
            sleep(name)

        def work(seconds: int) -> None:
            sleep(seconds)

        for name in order():
            spawn(work, name + 1)

    line = order.__code__.co_firstlineno
    text = cause_of(main)
    found = [
        int(part.rpartition(":")[2]) for part in text.splitlines() if part.startswith("  - hash or")
    ]
    assert len(found) == 1, text
    assert line < found[0] <= line + 6


def test_order_that_does_not_show_is_not_named() -> None:
    def main() -> None:
        numbers = {1, 2, 3}
        names = {"a", "b", "c"}
        for number in numbers:
            sleep(number)
        for name in sorted(names):
            sleep(len(name))
        total = sum(len(name) for name in names)
        sleep(total + max(len(name) for name in {name + "x" for name in names}))
        sleep(time.perf_counter() % 1000)

    text = cause_of(main)
    assert "the real clock" in text
    assert "hash order" not in text


def test_id_and_hash_are_named() -> None:
    kept: list[object] = []

    def main() -> None:
        kept.append(object())
        sleep(id(kept[-1]) % 10_007)

    assert "hashes or addresses: id() called at" in cause_of(main)


@pytest.mark.parametrize("function", [id, hash])
def test_order_by_id_or_hash_is_named_where_the_function_is_only_handed_over(
    function: Callable[[object], int],
) -> None:
    kept: list[Restless] = []

    def by_id() -> list[int]:
        return [thing.name for thing in sorted(kept[-20:], key=id)]

    def by_hash() -> list[int]:
        return list(map(hash, kept[-20:]))

    def main() -> None:
        kept.extend(Restless(n) for n in random_order)
        for name in by_id() if function is id else by_hash():
            sleep(name)
            spawn(sleep, name)

    random_order = list(range(20))
    assert f"hashes or addresses: {function.__name__}() called at" in cause_of(main)


def test_order_of_hashed_strings_makes_a_replay_elsewhere_differ_and_is_named(
    child: Child, tmp_path: Path
) -> None:
    path = tmp_path / "program.py"  # what has no source is not looked into
    program = """
        import sys
        from pyfiber import sleep, spawn, yield_now
        from pyfiber.testing import ReplayDivergence, ScheduleFailure, explore, replay

        def main():
            seats = {"ann", "bob", "cyd", "dan", "eve", "fay"}
            log = []
            def work(name):
                for _ in range(len(name) if name > "c" else 0):
                    yield_now()
                log.append(name)
            for name in seats:
                spawn(work, name).join(timeout=ord(name[0]) - 96)
            late = spawn(sleep, 1)
            early = [spawn(yield_now) for _ in range(["ann", "bob", "cyd", "dan", "eve",
                     "fay"].index(log[0]))]
            order = []
            for i in range(3):
                spawn(order.append, i)
            late.join()
            assert order == [0, 1, 2]

        if len(sys.argv) == 1:
            try:
                explore(main)
            except ScheduleFailure as failure:
                print(failure.schedule)
        else:
            try:
                replay(main, sys.argv[1])
            except (ReplayDivergence, ScheduleFailure) as exc:
                print(str(exc).partition("who ran when")[0])
    """
    path.write_text(textwrap.dedent(program), encoding="utf-8")

    def run_program(seed: int, *arguments: str) -> str:
        code = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
        return child(code, str(path), *arguments, env={"PYTHONHASHSEED": str(seed)}).stdout.strip()

    schedule = run_program(1)
    assert schedule.startswith("pf2-")
    told = [run_program(seed, schedule) for seed in (2, 3, 4)]
    assert any("the program is not the one that was recorded" in text for text in told), told
    assert any("hash order: iterates over the set seats at" in text for text in told), told


def test_program_under_a_debugger_is_explored_all_the_same() -> None:
    seen: list[str] = []

    def trace(frame: Any, event: str, arg: Any) -> None:
        seen.append(event)

    def main() -> None:
        sleep(time.perf_counter() % 1000)

    sys.settrace(trace)
    sys.setprofile(trace)
    try:
        text = cause_of(main)
        assert (sys.gettrace(), sys.getprofile()) == (trace, trace)
    finally:
        sys.settrace(None)
        sys.setprofile(None)
    assert "the real clock" not in text  # nobody listened
    assert seen


def test_hash_is_fixed_for_numbers_and_what_is_made_of_them() -> None:
    assert has_fixed_hash((1, 2.5, (True, frozenset({1j}))))
    assert not has_fixed_hash("a")
    assert not has_fixed_hash((1, "a"))
    assert not has_fixed_hash(object())


def test_file_without_source_or_with_a_broken_one_is_passed_over() -> None:
    suspects = Suspects()
    space: dict[str, Any] = {"urandom": urandom}
    exec(compile("def f():\n for x in {'a', 'b'}: pass\n urandom(1)", "<nowhere>", "exec"), space)
    suspects.watch(space["f"])
    assert list(suspects.seen.values()) == [
        "random numbers of the system: urandom() called at <nowhere>:3"
    ]
