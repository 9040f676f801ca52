"""docs/origins*.md: each operation has an example that uses it and tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs"
PAGES = [DOCS / "origins.md", DOCS / "origins_fibers.md"]
COLUMNS = ["original", "pyfiber", "example", "test", "difference"]

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="needs the source tree")


def text() -> str:
    """Both pages."""
    return "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.exists())


def rows() -> list[dict[str, str]]:
    lines = text().splitlines()
    cells = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in lines
        if line.startswith("| ")
    ]
    assert all(len(row) == len(COLUMNS) for row in cells)
    return [dict(zip(COLUMNS, row, strict=True)) for row in cells if row[0] != "original"]


ROWS = rows()


def functions(path: Path) -> set[str]:
    """The names of all functions in a file, whatever they are in."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_document_has_its_rows() -> None:
    assert len(ROWS) >= 118
    headings = re.findall(r"^## (.*?)\.", text(), re.MULTILINE)
    assert headings == ["1", "2", "3 and 5", "4"]


def test_no_cell_is_empty() -> None:
    assert [row for row in ROWS if not all(row.values())] == []


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["original"])
def test_examples_use_what_they_are_named_for(row: dict[str, str]) -> None:
    examples = re.findall(r"\]\(([^)]+)\): ([^<]+)", row["example"])
    assert examples
    for path, names in examples:
        example = (DOCS / path).read_text(encoding="utf-8")
        for name in re.findall(r"`([^`]+)`", names):
            assert re.search(rf"\b{name}\b", example), f"{path} has no {name}"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["original"])
def test_tests_named_exist(row: dict[str, str]) -> None:
    named = re.findall(r"`(test_\w+\.py)::(\w+)`", row["test"])
    assert named
    for name, function in named:
        (file,) = TESTS.glob(f"*/{name}")
        assert function in functions(file)
