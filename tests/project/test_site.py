"""The documentation holds together: without Sphinx, what its own build looks at as well.

The build (CONTRIBUTING.md has the command) sees the pages in docs/; this sees README.md,
CONTRIBUTING.md and what they link to as well.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s:#]*)#([^)\s]+)\)")
TABLE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="needs the source tree")


def documents() -> list[Path]:
    """README.md and its neighbours, and docs/."""
    return [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))] if DOCS.exists() else []


def prose(path: Path) -> str:
    """A document without its blocks of code."""
    return FENCED.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """What its headings are called in links, as the repository's view and the site name them."""
    found = re.findall(r"^#+ (.+?)$", prose(path), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in found]
    return {heading.replace(" ", "-") for heading in words}


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_to_headings_lead_to_one(document: Path) -> None:
    lost = []
    for name, anchor in LINK.findall(prose(document)):
        target = document.parent / name if name else document
        if target.suffix == ".md" and anchor not in anchors(target):
            lost.append(f"{name}#{anchor}")
    assert lost == []


def pages_of(contents: Path) -> set[Path]:
    """What the tables of contents on a page lead to."""
    found: set[Path] = set()
    for block in TABLE.findall(contents.read_text(encoding="utf-8")):
        for entry in block.splitlines():
            if entry and not entry.startswith(":"):
                found |= set(contents.parent.glob(f"{entry}.md")) or {contents.parent / entry}
    return {page for page in found if "*" not in page.name}


def test_every_page_is_in_a_table_of_contents() -> None:
    pages = set(DOCS.rglob("*.md"))
    listed = {page for contents in pages for page in pages_of(contents)}
    assert listed == pages - {DOCS / "index.md"}
