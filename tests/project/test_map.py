"""The maps of the source lead somewhere: every path that they name is there."""

from __future__ import annotations

import re
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
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rooms = {file.parent.name for file in (ROOT / "csrc").rglob("*.h")}
    assert sorted(room for room in rooms if room not in text) == []
