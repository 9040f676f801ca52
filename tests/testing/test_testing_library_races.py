"""explore() finds known races in released versions of libraries, and none where they are fixed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.testing.library_races import RACES, explored, install

pytestmark = pytest.mark.slow  # each installs packages


def installed(folder: Path, *requirements: str) -> Path:
    """The folder, with these packages in it; skips the test if pip cannot have them."""
    problem = install(list(requirements), folder)
    if problem:
        pytest.skip(f"{requirements[0]} is NOT INSTALLED: pip says {problem!r}")
    return folder


@pytest.mark.parametrize("name", RACES)
def test_race_in_a_library_is_found(name: str, tmp_path: Path) -> None:
    race = RACES[name]
    folder = installed(tmp_path / "site-packages", race.broken, *race.also)
    for found in explored(name, folder):
        assert found["number"] is not None
        assert race.shows in found["text"]
        assert found["verdict"]


@pytest.mark.parametrize("name", [name for name, race in RACES.items() if race.fixed])
def test_repaired_library_passes(name: str, tmp_path: Path) -> None:
    race = RACES[name]
    assert race.fixed is not None
    folder = installed(tmp_path / "site-packages", race.fixed, *race.also)
    assert [found["number"] for found in explored(name, folder, range(2))] == [None, None]
