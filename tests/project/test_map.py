"""The maps of the source lead somewhere: every path that they name is there."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATH = re.compile(r"`((?:csrc|pyfiber|tests|bench|docs|examples|\.ci)/[\w./-]*)`")

pytestmark = pytest.mark.skipif(not (ROOT / "csrc").exists(), reason="needs the source tree")


DOCUMENTS = [
    "CONTRIBUTING.md",
    "docs/design.md",
    "docs/design_interpreter.md",
    "docs/design_state.md",
    "docs/developing.md",
    "docs/source_map.md",
    "tests/README.md",
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_map_names_files_that_are_there(document: str) -> None:
    named = set(PATH.findall((ROOT / document).read_text(encoding="utf-8")))
    planned = {"csrc/python/sync/gate.c"}  # the example of a new primitive
    assert named
    assert [path for path in sorted(named - planned) if not (ROOT / path).exists()] == []


def test_map_names_every_room() -> None:
    text = (ROOT / "docs" / "developing.md").read_text(encoding="utf-8")
    rooms = {file.parent.name for file in (ROOT / "csrc").rglob("*.h")}
    assert sorted(room for room in rooms if room not in text) == []


@pytest.mark.skipif(not (ROOT / ".ci").exists(), reason="needs a checkout")
def test_drawing_has_the_floors_that_are_checked() -> None:
    checked = runpy.run_path(str(ROOT / ".ci" / "rooms.py"))["FLOORS"]
    drawn = [
        {where.removeprefix("csrc/").removesuffix("/") + f"/{room}" for room in rooms}
        for where, rooms, _ in runpy.run_path(str(ROOT / "docs" / "make_drawings.py"))["FLOORS"]
    ]
    full = [
        {room if room != "context" else "context/context" for room in floor} for floor in checked
    ]
    assert drawn[:2] == [{"pyfiber/pyfiber"}, {"python/module.c"}]
    assert drawn[2:] == [floor - {"include"} for floor in full[-2::-1]]


def test_contributing_is_one_page() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split()) <= 600
