"""docs/sockets.md names each of CPython's own tests that is not run."""

from __future__ import annotations

import importlib
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "sockets.md"

pytestmark = pytest.mark.skipif(not DOCUMENT.exists(), reason="needs the source tree")


def left_out() -> set[str]:
    """Classes, methods, or Class.method."""
    names: set[str] = set()
    pytest.importorskip("test.test_ssl", reason="not shipped with this Python")
    from tests.io.test_cpython_io import LEFT_OUT as OF_IO

    for of_module in OF_IO.values():
        names |= set(of_module)
    for module in ("test_cpython_ssl", "test_cpython_subprocess"):
        names |= set(importlib.import_module(f"tests.io.{module}").LEFT_OUT)
    return names


def documented() -> set[str]:
    """The patterns in the table's first column."""
    text = DOCUMENT.read_text(encoding="utf-8").split("## What of CPython's own tests", 1)[1]
    rows = re.findall(r"^\| (`.*?) \|", text.split("\n## ")[0], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_all_left_out_tests_are_documented() -> None:
    patterns = documented()
    missing = {
        name
        for name in left_out()
        if not any(fnmatch(name.rpartition(".")[2], pattern) for pattern in patterns)
    }
    assert not missing
