"""What run() raises when something else has ended the run and main fails as well."""

from __future__ import annotations

import logging

import pytest

from pyfiber import park, run, spawn, yield_now


def exits(code: object) -> None:
    raise SystemExit(code)


def test_exit_has_the_failure_of_main_as_its_context(caplog: pytest.LogCaptureFixture) -> None:
    """It was the later one, and nobody else tells of it; so nothing is logged."""

    def main() -> None:
        spawn(exits, 3)
        try:
            park()
        finally:
            raise LookupError("while it was cancelled")

    with caplog.at_level(logging.DEBUG), pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.code == 3
    assert isinstance(caught.value.__context__, LookupError)
    assert not caplog.records


def test_exit_that_has_a_context_keeps_it() -> None:
    def fails_and_exits() -> None:
        try:
            raise KeyError("first")
        except KeyError:
            exits(3)

    def main() -> None:
        spawn(fails_and_exits)
        try:
            park()
        finally:
            raise LookupError("while it was cancelled")

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert isinstance(caught.value.__context__, KeyError)


@pytest.mark.parametrize("how", ["returns", "is cancelled", "exits itself"])
def test_exit_beside_a_main_that_did_not_fail_has_no_context(how: str) -> None:
    def main() -> None:
        if how == "exits itself":
            exits(3)
        spawn(exits, 3)
        if how == "returns":
            return
        yield_now()
        park()

    with pytest.raises(SystemExit) as caught:
        run(main)
    assert caught.value.__context__ is None
