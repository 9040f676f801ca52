"""docs/origins.md names examples and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
ORIGINS = TESTS.parent / "docs" / "origins.md"

pytestmark = pytest.mark.skipif(not ORIGINS.exists(), reason="needs the source tree")


def rows() -> list[list[str]]:
    lines = ORIGINS.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines if line[:2] == "| "]
    return [row for row in cells if row[0] != "| there"]


def test_every_row_names_a_test() -> None:
    assert len(rows()) > 90
    assert [row for row in rows() if not re.search(r"`test_\w+\.py", row[3])] == []


def test_the_tests_named_exist() -> None:
    named = {name for row in rows() for name in re.findall(r"`(test_\w+\.py(?:::\w+)?)`", row[3])}
    missing = []
    for name in sorted(named):
        file, _, function = name.partition("::")
        path = TESTS / file
        if not path.exists() or f"def {function}" not in path.read_text(encoding="utf-8"):
            missing.append(name)
    assert missing == []
