"""The drawings in docs/images are those that docs/make_drawings.py makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="needs the source tree")


def test_drawings_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("make_drawings", DOCS / "make_drawings.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.DRAWINGS
    for name, draw in module.DRAWINGS.items():
        kept = (DOCS / "images" / name).read_text(encoding="utf-8")
        assert kept == draw().svg(), "run docs/make_drawings.py"
        ElementTree.fromstring(kept)
