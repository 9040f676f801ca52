"""explore(switch=...) finds textbook races, and nothing in their right versions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

import pyfiber
from pyfiber.testing import explore
from tests.testing.textbook import TEXTBOOK, schedules_needed

SEEDS = range(20)


@pytest.fixture(autouse=True, scope="module")
def patched() -> Iterator[None]:
    """Keep the patch in force: each exploration would make it and undo it."""
    patch = pyfiber.patch()
    yield
    patch.undo()


@pytest.mark.parametrize("name", TEXTBOOK)
def test_race_passes_in_the_usual_order(name: str) -> None:
    explore(partial(TEXTBOOK[name], False), strategy="fifo", threads="simulated")


@pytest.mark.parametrize("name", TEXTBOOK)
def test_race_is_found_with_nearly_every_seed(name: str) -> None:
    needed = [schedules_needed(TEXTBOOK[name], "line", seed) for seed in SEEDS]
    assert sum(number is None for number in needed) <= 1, needed


@pytest.mark.parametrize("switch", ["line", "access", "gil"])
@pytest.mark.parametrize("name", TEXTBOOK)
def test_right_version_passes(name: str, switch: str) -> None:
    explore(partial(TEXTBOOK[name], True), 200, switch=switch, threads="simulated")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["line", "access", "gil"])
@pytest.mark.parametrize("name", TEXTBOOK)
def test_right_version_passes_ten_thousand_schedules(name: str, switch: str) -> None:
    explore(partial(TEXTBOOK[name], True), 10_000, switch=switch, threads="simulated")  # type: ignore[arg-type]
