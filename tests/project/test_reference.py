"""The reference has every public name, and each of them has something to say."""

from __future__ import annotations

import importlib.util
import json
import pkgutil
import re
import sys
from pathlib import Path

import pytest

import pyfiber
from tests.support.subprocesses import run_python

DOCS = Path(__file__).resolve().parents[2] / "docs"
ENTRY = re.compile(
    r"^ *\.\. (?:auto(?:function|class|exception)|py:(?:data|exception)):: ([\w.]+)$", re.MULTILINE
)
MODULE = re.compile(r"^\.\. automodule:: ([\w.]+)$(?!\n   :no-members:)", re.MULTILINE)
MODULES = sorted(
    f"pyfiber.{module.name}"
    for module in pkgutil.iter_modules(pyfiber.__path__)
    if not module.name.startswith("_")
)
TWINS = ("pyfiber.socket", "pyfiber.ssl", "pyfiber.selectors", "pyfiber.subprocess")

pytestmark = pytest.mark.skipif(not DOCS.exists(), reason="needs the source tree")


#: Tells what is public in a module, and what of it has no docstring. In a process of its own: some
#: modules patch the one that imports them.
LOOK = """
import importlib, json, sys
try:
    module = importlib.import_module(sys.argv[1])
except ImportError:
    sys.exit("not installed")
names = [name for name in getattr(module, "__all__", ()) if name[0] != "_"]
if sys.argv[2:] == ["twin"]:  # of a standard module: what is its own
    names += dir(importlib.import_module(module.__name__.rpartition(".")[2]))
    homes = {name: str(getattr(getattr(module, name, 0), "__module__", "")) for name in names}
    names = [n for n in names if n[0] != "_" and f"{homes[n]}.".startswith(f"{module.__name__}.")]
values = {name: getattr(module, name) for name in names}
bare = [name for name, value in values.items() if callable(value) and not value.__doc__]
print(json.dumps([sorted(set(names)), bare]))
"""


def text() -> str:
    """All pages of the reference."""
    return "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))


def look(name: str) -> tuple[list[str], list[str]]:
    """The public names of a module, and those without a docstring."""
    done = run_python("-c", LOOK, name, *(["twin"] if name in TWINS else []))
    if done.stderr.strip() == "not installed":
        pytest.skip(f"what {name} is for is NOT INSTALLED")
    names, bare = json.loads(done.stdout)
    return names, bare


def test_reference_has_every_name_of_the_package() -> None:
    entries, modules = set(ENTRY.findall(text())), set(MODULE.findall(text()))
    names = {f"pyfiber.{name}" for name in pyfiber.__all__}
    assert sorted(names - entries - modules) == [], "add them to a page in docs/reference"


@pytest.mark.parametrize("name", MODULES)
def test_reference_has_every_name_of(name: str) -> None:
    assert f".. automodule:: {name}\n" in text(), "give it a place in docs/reference"
    names, bare = look(name)
    assert bare == [], "they have no docstring"
    if name in TWINS and sys.platform != "linux":
        return  # the site is made on Linux, and these differ between systems
    if name not in MODULE.findall(text()):  # else all that it has
        entries = set(ENTRY.findall(text()))
        assert [each for each in names if f"{name}.{each}" not in entries] == []


def test_reference_has_every_function_of_the_header() -> None:
    path = DOCS / "extensions" / "c_reader.py"
    spec = importlib.util.spec_from_file_location("c_reader", path)
    assert spec
    assert spec.loader
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    header = reader.HEADER.read_text(encoding="utf-8")
    shown = "\n".join(reader.of_functions(header))
    macros = re.findall(r"^#define (PyFiber_\w+)\(", header, re.MULTILINE)
    assert len(macros) > 30
    assert [name for name in macros if f"{name}(" not in shown] == []
    types = "\n".join(reader.of_types(header))
    named = re.findall(r"^} (PyFiber_\w+);$", header, re.MULTILINE)
    assert [name for name in named if name not in types and name != "PyFiber_CAPI"] == []
