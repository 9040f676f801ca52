"""Classic races: every broken one is found, every fixed one survives."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tests.testing.races as gallery
from pyfiber.testing import ScheduleFailure, explore, replay
from tests.testing.races import GALLERY, STRATEGIES, schedules_needed

races = pytest.mark.parametrize("race", GALLERY.values(), ids=GALLERY)


@races
def test_broken_race_is_hidden_in_the_usual_order(race: Any) -> None:
    assert explore(partial(race, False), strategy="fifo").schedules == 1


@races
def test_broken_race_is_found_within_1000_schedules(race: Any) -> None:
    found = [schedules_needed(race, strategy) for strategy in STRATEGIES]
    assert any(found), found


@races
def test_broken_race_replays(race: Any) -> None:
    with pytest.raises(ScheduleFailure) as failure:
        explore(partial(race, False), 10_000, "random")
    with pytest.raises(ScheduleFailure) as again:
        replay(partial(race, False), failure.value.schedule)
    assert again.value.log == failure.value.log
    assert len(failure.value.schedule) < 100


@races
def test_fixed_race_survives_some_schedules(race: Any) -> None:
    for strategy in STRATEGIES:
        explore(partial(race, True), 200, strategy)


@pytest.mark.slow
@races
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fixed_race_survives_10000_schedules(race: Any, strategy: Any) -> None:
    explore(partial(race, True), 10_000, strategy)


@pytest.mark.slow
def test_table_in_the_docs_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    docs = Path(__file__).parents[2] / "docs" / "exploring.md"
    if not docs.exists():
        pytest.skip("the source tree is not there")
    gallery.main()
    printed = capsys.readouterr().out
    assert printed.count("\n") == 2 + len(GALLERY)
    assert printed in docs.read_text(encoding="utf-8")
