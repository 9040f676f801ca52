"""The laws of compose, with generated works; and long chains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compose_makers import outcome
from hypothesis import given
from hypothesis import strategies as st

from pyfiber import Ok
from pyfiber.compose import (
    Work,
    blocking,
    call,
    delay,
    fail,
    parallel,
    race,
    run_parallel,
    succeed,
)

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


@given(values, functions)
def test_law_left_identity(x: int, f: Callable[[int], Work[int]]) -> None:
    assert outcome(succeed(x).bind(f)) == outcome(call(f, x).join())


@given(works)
def test_law_right_identity(work: Work[int]) -> None:
    assert outcome(work.bind(succeed)) == outcome(work)


@given(works, functions, functions)
def test_law_associativity(
    work: Work[int], f: Callable[[int], Work[int]], g: Callable[[int], Work[int]]
) -> None:
    left = work.bind(f).bind(g)
    right = work.bind(lambda x: f(x).bind(g))
    assert outcome(left) == outcome(right)


@given(works)
def test_law_map_is_bind_and_succeed(work: Work[int]) -> None:
    def double(x: int) -> int:
        return 2 * x

    assert outcome(work.map(double)) == outcome(work.bind(lambda x: succeed(double(x))))


@given(works)
def test_law_map_of_identity_and_of_composition(work: Work[int]) -> None:
    assert outcome(work.map(lambda x: x)) == outcome(work)
    twice = work.map(lambda x: x + 1).map(lambda x: x * 2)
    assert outcome(twice) == outcome(work.map(lambda x: (x + 1) * 2))


@given(works)
def test_law_join_is_bind_with_identity(work: Work[int]) -> None:
    assert outcome(succeed(work).join()) == outcome(work)
    assert outcome(work.map(succeed).join()) == outcome(work)


@given(works, works)
def test_law_combine_is_bind_that_ignores(first: Work[int], second: Work[int]) -> None:
    assert outcome(first.combine(second)) == outcome(first.bind(lambda _: second))


@given(works, works)
def test_law_apply_is_bind_and_map(first: Work[int], second: Work[int]) -> None:
    def adder(x: int) -> Callable[[int], int]:
        return lambda y: x + y

    by_apply = first.map(adder).apply(second)
    assert outcome(by_apply) == outcome(first.bind(lambda x: second.map(lambda y: x + y)))


@given(works, functions)
def test_law_catch_leaves_values_alone(work: Work[int], f: Callable[[int], Work[int]]) -> None:
    caught = work.catch(lambda exc: succeed((type(exc), str(exc))))
    expected = outcome(work)
    got = blocking(caught)
    assert expected in (Ok(got), got)


@given(works)
def test_law_map_outcome_of_identity(work: Work[int]) -> None:
    assert outcome(work.map_outcome(lambda end: end)) == outcome(work)


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


@given(st.permutations(range(4)))
def test_law_race_is_symmetric(order: list[int]) -> None:
    """The order of the arguments does not matter: the fastest wins."""
    works = {n: delay(0.002 * n, n) if n else delay(0, "first") for n in range(4)}
    assert outcome(race(*[works[n] for n in order])) == Ok("first")


@given(works)
def test_law_race_with_one_and_with_never(work: Work[int]) -> None:
    never: Work[Any] = delay(1000)
    assert outcome(race(work)) == outcome(work)
    assert outcome(race(work, never)) == outcome(race(never, work)) == outcome(work)


@given(works, st.sampled_from([0.0, 500.0]), st.booleans())
def test_law_timeout_is_a_race_with_a_delay(work: Work[int], seconds: float, hangs: bool) -> None:
    if hangs:
        work = delay(1000).combine(work)
    late = delay(seconds).combine(fail(TimeoutError(f"not done after {seconds} seconds")))
    if hangs and seconds:
        return  # would take that long
    assert outcome(work.timeout(seconds)) == outcome(race(work, late))


# --- long chains


def test_a_million_binds_to_the_left() -> None:
    work = succeed(0)
    for _ in range(1_000_000):
        work = work.bind(lambda x: succeed(x + 1))
    assert blocking(work) == 1_000_000
    del work


def test_a_million_binds_to_the_right() -> None:
    def count(n: int) -> Work[int]:
        return succeed(n) if n == 1_000_000 else succeed(n + 1).bind(count)

    assert blocking(count(0)) == 1_000_000


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
