"""outcome: Ok, Failed and CancelledOutcome, for match."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from pyfiber import (
    CancelledOutcome,
    Failed,
    Fiber,
    FiberExit,
    Ok,
    current,
    park,
    run,
    spawn,
    yield_now,
)
from tests.conftest import Child


def matched(fiber: Fiber[Any]) -> str:
    match fiber.outcome:
        case Ok(value):
            return f"ok {value}"
        case Failed(ZeroDivisionError()):
            return "failed by division"
        case Failed():
            return "failed otherwise"
        case CancelledOutcome(reason):
            return f"cancelled {reason}"
        case None:
            return "not done"
    raise AssertionError(fiber.outcome)


def test_outcome_matches_each_way_to_end() -> None:
    def main() -> None:
        fine, failing, cancelled = spawn(lambda: 5), spawn(lambda: 1 // 0), spawn(park)
        assert matched(fine) == "not done"
        yield_now()
        cancelled.cancel("reason")
        yield_now()
        assert matched(fine) == "ok 5"
        assert matched(failing) == "failed by division"
        assert matched(cancelled) == "cancelled reason"

    run(main)


def test_outcome_is_none_until_the_end() -> None:
    def main() -> None:
        fiber = spawn(park)
        assert fiber.outcome is None
        yield_now()
        assert fiber.outcome is None
        assert current().outcome is None
        fiber.unpark()

    run(main)


def test_outcome_holds_the_very_objects() -> None:
    thing, error = object(), KeyError("mine")

    def fail() -> None:
        raise error

    def main() -> None:
        fine, failing = spawn(lambda: thing), spawn(fail)
        yield_now()
        assert isinstance(fine.outcome, Ok)
        assert fine.outcome.value is thing
        assert isinstance(failing.outcome, Failed)
        assert failing.outcome.exception is error

    run(main)


def test_outcome_of_none_is_ok() -> None:
    assert run(lambda: spawn(lambda: None)).outcome == Ok(None)


def test_outcome_of_a_returned_exception_is_ok() -> None:
    error = ValueError("returned, not raised")
    assert run(lambda: spawn(lambda: error)).outcome == Ok(error)


def test_outcome_of_raw_fibers() -> None:
    fine = Fiber(lambda: 5)
    fine.switch()
    failing = Fiber(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        failing.switch()
    exited: Fiber[None] = Fiber(lambda: None)
    assert exited.throw(FiberExit) is None
    assert matched(fine) == "ok 5"
    assert matched(failing) == "failed by division"
    assert matched(exited) == "cancelled None"


@pytest.mark.parametrize("outcome", [Ok(1), Failed(ValueError()), CancelledOutcome("reason")])
def test_outcomes_are_frozen_dataclasses(outcome: Any) -> None:
    assert dataclasses.is_dataclass(outcome)
    field = dataclasses.fields(outcome)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(outcome, field, None)


@pytest.mark.parametrize("outcome", [Ok(1), Failed(ValueError()), CancelledOutcome("reason")])
def test_outcomes_are_copied_pickled_and_replaced(outcome: Any) -> None:
    name = dataclasses.fields(outcome)[0].name
    assert dataclasses.replace(outcome) == copy.copy(outcome) == outcome
    assert getattr(dataclasses.replace(outcome, **{name: 7}), name) == 7
    assert repr(outcome) == f"{type(outcome).__name__}({name}={getattr(outcome, name)!r})"
    assert repr(pickle.loads(pickle.dumps(outcome))) == repr(outcome)


def test_outcome_is_there_while_imports_are_suspended(child: Child) -> None:
    """Whatever modules a fiber is in the midst of importing."""
    done = child(
        """
        import sys
        from pyfiber import Fiber, current

        class Finder:
            def find_spec(self, name, path=None, target=None):
                main.switch(name)

        main = current()
        ended = Fiber(int)
        ended.switch()
        sys.meta_path.insert(0, Finder())
        importing = Fiber(lambda: __import__("dataclasses"))
        while (name := importing.switch()) and not hasattr(name, "dataclass"):
            assert repr(ended.outcome) == "Ok(value=0)"
        from pyfiber import Failed
        print(Failed)
        """
    )
    assert done.stdout == "<class 'pyfiber._outcome.Failed'>\n"


def test_outcomes_compare_by_value() -> None:
    assert Ok(1) == Ok(1) != Ok(2)
    assert CancelledOutcome() == CancelledOutcome(None) != CancelledOutcome("reason")
    assert Ok("reason") != CancelledOutcome("reason")
    assert hash(Ok(1)) == hash(Ok(1))


def test_outcome_cannot_be_set() -> None:
    with pytest.raises(AttributeError):
        Fiber(lambda: None).outcome = Ok(1)  # type: ignore[misc]
