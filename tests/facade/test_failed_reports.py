"""A report or message that cannot be made does not lose what it was to be about."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import pytest

from pyfiber import TaskGroup, _words, run, spawn
from tests.support.subprocesses import run_script


class Broken(Exception):
    """Raised by what makes the report: a trace function could do that, say."""


def broken(*_: object) -> NoReturn:
    raise Broken


def fails() -> NoReturn:
    raise ValueError("it failed")


def chain(exc: BaseException | None) -> list[type[BaseException]]:
    """The exception and what it was raised instead of."""
    types = []
    while exc is not None:
        types.append(type(exc))
        exc = exc.__context__
    return types


def test_group_errors_are_kept_when_their_text_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def main() -> None:
        with TaskGroup() as group:
            group.spawn(fails)

    monkeypatch.setattr(_words, "how_to_catch", broken)
    with pytest.raises(Broken) as caught:
        run(main)
    group = caught.value.__context__
    assert isinstance(group, BaseExceptionGroup)
    assert chain(group.exceptions[0]) == [ValueError]


def test_failures_to_raise_are_kept_when_their_text_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def main() -> None:
        spawn(fails)
        raise KeyError

    monkeypatch.setattr(_words, "how_to_catch", broken)
    with pytest.raises(Broken) as caught:
        run(main, on_unhandled="raise")
    assert chain(caught.value) == [Broken, KeyError, ValueError]


def test_deadlock_is_kept_when_its_report_fails() -> None:
    """Where no thread of the test runner could wake the fiber."""
    done = run_script(
        """
        from pyfiber import _report, park, run
        def broken(*_):
            raise LookupError
        _report.deadlock_text = broken
        try:
            run(park)
        except LookupError as exc:
            print(type(exc.__context__).__name__)
        """
    )
    assert done.stdout == "DeadlockError\n"


def test_failure_is_kept_when_logging_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda args: told.append(chain(args.exc_value)))
    monkeypatch.setattr(logging.getLogger("pyfiber"), "isEnabledFor", broken)
    run(spawn, fails)
    assert told == [[Broken, ValueError]]
