"""The laws of compose, with generated works; and long chains."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import reduce
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyfiber
from pyfiber import CancelledOutcome, Failed, Ok, sleep, spawn
from pyfiber.compose import (
    Work,
    blocking,
    call,
    delay,
    fail,
    parallel,
    perform,
    race,
    run_parallel,
    succeed,
)
from pyfiber.testing import NeverAwaitedError
from pyfiber.testing import run as run_virtually
from tests.facade.compose_makers import outcome

# The module behind it is imported now, not within a test: pytest parses it, and where the collector
# then logs a lost failure of an earlier test, whose traceback is parsed as well, CPython 3.11's
# ast.parse() fails ("AST constructor recursion depth mismatch").
st.randoms(use_true_random=False).validate()

law = settings(deadline=None)  # how long an example takes depends on the machine

# --- laws


values = st.integers(-5, 5)


def half(x: int) -> Work[int]:
    return succeed(x // 2) if x % 2 == 0 else fail(ValueError(f"{x} is odd"))


def less(x: int) -> Work[int]:
    return delay(0, x - 1)


def crash(x: int) -> Work[int]:
    raise LookupError(x)


functions = st.sampled_from([succeed, half, less, crash, lambda x: succeed(x).map(lambda y: y * 3)])
leaves = st.one_of(
    values.map(succeed),
    values.map(half),
    values.map(lambda x: delay(0, x)),
    values.map(crash_later := (lambda x: call(crash, x).join())),
)


def grown(inner: st.SearchStrategy[Work[int]]) -> st.SearchStrategy[Work[int]]:
    return st.one_of(
        st.builds(lambda w, f: w.bind(f), inner, functions),
        st.builds(lambda w: w.map(lambda x: x + 1), inner),
        st.builds(lambda w, v: w.combine(v), inner, inner),
        st.builds(lambda w, v: w.catch(lambda _: v), inner, inner),
        st.builds(lambda w: w.timeout(50), inner),
        st.builds(lambda w, v: parallel(w, v).map(sum), inner, inner),
    )


works = st.recursive(leaves, grown, max_leaves=6)


@law
@given(values, functions)
def test_law_left_identity(x: int, f: Callable[[int], Work[int]]) -> None:
    assert outcome(succeed(x).bind(f)) == outcome(call(f, x).join())


@law
@given(works)
def test_law_right_identity(work: Work[int]) -> None:
    assert outcome(work.bind(succeed)) == outcome(work)


@law
@given(works, functions, functions)
def test_law_associativity(
    work: Work[int], f: Callable[[int], Work[int]], g: Callable[[int], Work[int]]
) -> None:
    left = work.bind(f).bind(g)
    right = work.bind(lambda x: f(x).bind(g))
    assert outcome(left) == outcome(right)


@law
@given(works)
def test_law_map_is_bind_and_succeed(work: Work[int]) -> None:
    def double(x: int) -> int:
        return 2 * x

    assert outcome(work.map(double)) == outcome(work.bind(lambda x: succeed(double(x))))


@law
@given(works)
def test_law_map_of_identity_and_of_composition(work: Work[int]) -> None:
    assert outcome(work.map(lambda x: x)) == outcome(work)
    twice = work.map(lambda x: x + 1).map(lambda x: x * 2)
    assert outcome(twice) == outcome(work.map(lambda x: (x + 1) * 2))


@law
@given(works)
def test_law_join_is_bind_with_identity(work: Work[int]) -> None:
    assert outcome(succeed(work).join()) == outcome(work)
    assert outcome(work.map(succeed).join()) == outcome(work)


@law
@given(works, works)
def test_law_combine_is_bind_that_ignores(first: Work[int], second: Work[int]) -> None:
    assert outcome(first.combine(second)) == outcome(first.bind(lambda _: second))


@law
@given(works, works)
def test_law_apply_is_bind_and_map(first: Work[int], second: Work[int]) -> None:
    def adder(x: int) -> Callable[[int], int]:
        return lambda y: x + y

    by_apply = first.map(adder).apply(second)
    assert outcome(by_apply) == outcome(first.bind(lambda x: second.map(lambda y: x + y)))


@law
@given(works, functions)
def test_law_catch_leaves_values_alone(work: Work[int], f: Callable[[int], Work[int]]) -> None:
    caught = work.catch(lambda exc: succeed((type(exc), str(exc))))
    expected = outcome(work)
    got = blocking(caught)
    assert expected in (Ok(got), got)


@law
@given(works)
def test_law_map_outcome_of_identity(work: Work[int]) -> None:
    assert outcome(work.map_outcome(lambda end: end)) == outcome(work)


@law
@given(st.lists(works, max_size=3))
def test_law_parallel_is_one_after_the_other(many: list[Work[int]]) -> None:
    """... if all succeed; and it fails if one of them does."""
    ends = [outcome(work) for work in many]
    together = outcome(parallel(*many))
    if all(isinstance(end, Ok) for end in ends):
        assert together == Ok([end.value for end in ends])
    else:
        assert together in ends
    assert isinstance(outcome(run_parallel(2, many)), Ok) == isinstance(together, Ok)


# --- laws about time, by a virtual clock

durations = st.integers(0, 20)


def ends_after(seconds: int, fails: bool) -> Work[int]:
    """A work that takes so long, then has that as its value or fails."""
    end = fail(LookupError(seconds)) if fails else succeed(seconds)
    return delay(seconds).combine(end)


def in_virtual_time(work: Work[Any]) -> tuple[Any, float]:
    """How a work ends, and when."""
    ends: list[tuple[Any, float]] = []
    with suppress(NeverAwaitedError):  # others may fail beside the one that decides
        run_virtually(lambda: ends.append((outcome(work), pyfiber.now())), clock=0.0)
    return ends[0]


@law
@given(
    st.lists(st.tuples(durations, st.booleans()), min_size=1, max_size=5, unique_by=lambda x: x[0]),
    st.randoms(use_true_random=False),
)
def test_law_race_is_symmetric(ends: list[tuple[int, bool]], random: Any) -> None:
    """The order of the arguments does not matter: the fastest wins, and decides when."""
    works = [ends_after(*end) for end in ends]
    fastest = in_virtual_time(ends_after(*min(ends)))
    assert in_virtual_time(race(*works)) == fastest
    random.shuffle(works)
    assert in_virtual_time(race(*works)) == fastest


@law
@given(st.permutations(range(6)), st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_law_race_is_associative(seconds: list[int], fails: tuple[bool, bool, bool]) -> None:
    a, b, c = map(ends_after, seconds, fails)
    flat = in_virtual_time(race(a, b, c))
    assert in_virtual_time(race(race(a, b), c)) == flat
    assert in_virtual_time(race(a, race(b, c))) == flat


@law
@given(works)
def test_law_race_with_one_and_with_never(work: Work[int]) -> None:
    never: Work[Any] = delay(1000)
    expected = in_virtual_time(work)
    assert in_virtual_time(race(work)) == expected
    assert in_virtual_time(race(work, never)) == expected
    assert in_virtual_time(race(never, work)) == expected


@law
@given(durations, st.booleans(), durations)
def test_law_timeout_is_a_race_with_a_delay(seconds: int, fails: bool, limit: int) -> None:
    work = ends_after(seconds, fails)
    late = limit + 0.5  # never at the same instant
    slow = delay(late).combine(fail(TimeoutError(f"not done after {late} seconds")))
    by_timeout = in_virtual_time(work.timeout(late))
    assert by_timeout == in_virtual_time(race(work, slow)) == in_virtual_time(race(slow, work))
    assert by_timeout[1] == min(seconds, late)


@law
@given(st.lists(st.tuples(durations, st.booleans()), max_size=5, unique_by=lambda x: x[0]))
def test_law_parallel_ends_with_the_slowest_or_the_first_failure(
    ends: list[tuple[int, bool]],
) -> None:
    got, when = in_virtual_time(parallel(*[ends_after(*end) for end in ends]))
    failures = [seconds for seconds, fails in ends if fails]
    if failures:
        assert (got, when) == ((LookupError, str(min(failures))), min(failures))
    else:
        assert got == Ok([seconds for seconds, _ in ends])
        assert when == max([seconds for seconds, _ in ends], default=0)


@law
@given(
    st.lists(st.tuples(durations, st.booleans()), max_size=5, unique_by=lambda x: x[0]),
    st.integers(1, 6),
)
def test_law_run_parallel_ends_with_the_first_failure(
    ends: list[tuple[int, bool]], limit: int
) -> None:
    """It does not wait for the works before the one that fails: it did."""
    got, when = in_virtual_time(run_parallel(limit, [ends_after(*end) for end in ends]))
    if limit >= len(ends):
        assert (got, when) == in_virtual_time(parallel(*[ends_after(*end) for end in ends]))
    else:
        assert isinstance(got, Ok) is not any(fails for _, fails in ends)


@law
@given(st.lists(durations, max_size=8), st.integers(1, 4))
def test_law_run_parallel_takes_no_longer_than_its_batches(times: list[int], limit: int) -> None:
    """Always `limit` under way: no later than batch by batch, no earlier than can be."""
    _, when = in_virtual_time(run_parallel(limit, [delay(seconds, seconds) for seconds in times]))
    batches = sum(max(times[n : n + limit]) for n in range(0, len(times), limit))
    assert max([sum(times) / limit, *times]) <= when <= batches


# --- cancellation reaches every part of any tree


class Leaf(NamedTuple):
    seconds: int
    fails: bool


class Tree(NamedTuple):
    kind: str
    parts: list[Any]


leaf_shapes = st.builds(Leaf, st.integers(0, 10), st.sampled_from([False, False, True]))
KINDS = ["parallel", "race", "run_parallel", "bind", "catch", "child", "timeout", "combine"]
shapes = st.recursive(
    leaf_shapes,
    lambda inner: st.builds(Tree, st.sampled_from(KINDS), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=8,
)


def planted(shape: Any, log: list[str], number: Iterator[int]) -> Work[Any]:
    """The work that a shape describes; each leaf tells `log` when it begins and ends."""
    if isinstance(shape, Leaf):
        return ends_after(*shape).traced(str(next(number)), log.append)
    parts = [planted(part, log, number) for part in shape.parts]
    match shape.kind:
        case "parallel":
            return parallel(*parts)
        case "race":
            return race(*parts)
        case "run_parallel":
            return run_parallel(2, parts)
        case "bind":
            return reduce(lambda first, then: first.bind(lambda _: then), parts)
        case "catch":
            return reduce(lambda first, then: first.catch(lambda _: then), parts)
        case "child":
            return reduce(lambda first, then: first.start_child().combine(then), parts)
        case "timeout":
            return parallel(*[part.timeout(3.5) for part in parts])
        case _:
            return reduce(lambda first, then: first.combine(then), parts)


@law
@given(shapes, st.integers(0, 12))
def test_cancelled_at_any_time_every_part_that_began_ends_then(shape: Any, when: int) -> None:
    log: list[str] = []
    work = planted(shape, log, itertools.count())

    def main() -> None:
        fiber = spawn(perform, work)
        sleep(when + 0.25)
        running = not fiber.done()
        fiber.cancel("enough")
        fiber.join()
        assert pyfiber.now() == when + 0.25
        if running:
            assert fiber.outcome == CancelledOutcome("enough")
        elif isinstance(fiber.outcome, Failed):
            assert isinstance(fiber.outcome.exception, (LookupError, TimeoutError))

    with suppress(NeverAwaitedError):
        run_virtually(main, clock=0.0)
    began = sorted(line.split()[0] for line in log if line.endswith("begins"))
    ended = sorted(line.split()[0] for line in log if not line.endswith("begins"))
    assert began == ended


# --- long chains


long = pytest.mark.parametrize("length", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])


@long
def test_chain_of_binds_to_the_left(length: int) -> None:
    work = succeed(0)
    for _ in range(length):
        work = work.bind(lambda x: succeed(x + 1))
    assert blocking(work) == length
    del work


@long
def test_chain_of_binds_to_the_right(length: int) -> None:
    def count(n: int) -> Work[int]:
        return succeed(n) if n == length else succeed(n + 1).bind(count)

    assert blocking(count(0)) == length


def test_long_chains_of_everything() -> None:
    work: Work[Any] = succeed(0)
    for n in range(20_000):
        match n % 6:
            case 0:
                work = work.map(lambda x: x + 1)
            case 1:
                work = succeed(None).combine(work)
            case 2:
                work = work.catch(lambda exc: succeed(0))
            case 3:
                work = work.map_outcome(lambda end: end)
            case 4:
                work = succeed(work).join()
            case 5:
                work = work.timed().map(lambda pair: pair[1])
    assert blocking(work) == 3334


def test_long_chain_that_fails_at_its_beginning() -> None:
    work: Work[Any] = fail(KeyError("deep"))
    for _ in range(100_000):
        work = work.bind(succeed)
    assert blocking(work.catch(lambda exc: succeed("caught"))) == "caught"


def test_chain_of_failures_and_recoveries() -> None:
    work: Work[Any] = succeed(0)
    for _ in range(5_000):
        work = work.bind(lambda x: fail(KeyError(x))).catch(lambda exc: succeed(exc.args[0] + 1))
    assert blocking(work) == 5_000
