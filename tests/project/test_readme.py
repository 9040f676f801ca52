"""The programs in README.md and docs/ run as they are written there, and print what is shown.

A Python block under the comment ``run`` is run in an interpreter of its own. If a block under the
comment ``prints`` comes before the next Python block, the output must be that; ``...`` in it stands
for anything, as in doctest. A program under ``dies`` ends by a signal, and what it prints is on
standard error.
"""

from __future__ import annotations

import doctest
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import Child
from tests.support.gil import GIL, PATCH_NEEDS_IT
from tests.support.subprocesses import EMULATED, run_python

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"^<!-- (run|dies|prints) -->\n+```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FLAGS = doctest.ELLIPSIS

pytestmark = pytest.mark.skipif(not README.exists(), reason="needs the source tree")


class Snippet(NamedTuple):
    """A program of a document."""

    where: str
    program: str
    output: str | None
    dies: bool = False


def snippets(path: Path) -> list[Snippet]:
    """The programs of a document, each with the output shown for it."""
    text = path.read_text(encoding="utf-8")
    found: list[Snippet] = []
    for match in BLOCK.finditer(text):
        kind, body = match.groups()
        if kind != "prints":
            line = text.count("\n", 0, match.start(2)) + 1
            found.append(Snippet(f"{path.name}:{line}", body, None, kind == "dies"))
        else:
            assert found, f"{path.name} shows an output before any program"
            assert found[-1].output is None, f"{found[-1].where} has two outputs"
            found[-1] = found[-1]._replace(output=body)
    return found


def documents() -> list[Path]:
    """README.md and docs/."""
    return [README, *sorted((ROOT / "docs").rglob("*.md"))] if README.exists() else []


ALL = [snippet for document in documents() for snippet in snippets(document)]


def shows(snippet: Snippet, printed: str) -> None:
    """The output in the document is what was printed."""
    if snippet.output is not None:
        same = doctest.OutputChecker().check_output(snippet.output, printed, FLAGS)
        assert same, f"shown:\n{snippet.output}\nprinted:\n{printed}"


@pytest.mark.skipif(sys.platform == "win32", reason="the system says nothing of the fiber there")
@pytest.mark.skipif(sys.version_info >= (3, 15), reason="the interpreter prints the stack itself")
@pytest.mark.skipif(EMULATED, reason="qemu tells of the signal itself, on stderr")
@pytest.mark.parametrize(
    "snippet", [each for each in ALL if each.dies], ids=lambda each: each.where
)
def test_snippet_dies_as_is_shown(
    snippet: Snippet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "overflow.py").write_text(snippet.program, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("PYTHONDEVMODE", "PYTHONFAULTHANDLER"):  # either would add faulthandler's report
        monkeypatch.delenv(name, raising=False)
    done = run_python("overflow.py")
    assert done.returncode < 0
    shows(snippet, done.stderr.replace(f"{tmp_path}{os.sep}", ""))


@pytest.mark.parametrize(
    "snippet", [each for each in ALL if not each.dies], ids=lambda each: each.where
)
def test_snippet_prints_what_is_shown(snippet: Snippet, child: Child, tmp_path: Path) -> None:
    if "pyfiber.aio import" in snippet.program and sys.platform == "win32":
        pytest.skip("the loops of Windows cannot watch a descriptor")
    if "debug_on_signal" in snippet.program and sys.platform == "win32":
        pytest.skip("Python has no Unix sockets there")
    if EMULATED and re.search(r" after 0\.\.\. s", snippet.output or ""):
        pytest.skip("an emulated processor takes longer than is shown")
    if not GIL and re.search(r"\bpatch(ed)?\(", snippet.program):
        pytest.skip(PATCH_NEEDS_IT)
    if re.search(r"^import requests$", snippet.program, re.MULTILINE):
        pytest.importorskip("requests", reason="requests is NOT INSTALLED: pip install --group io")
    if "opentelemetry" in snippet.program:
        pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is NOT INSTALLED")
    if re.search(r"import .*\bwsgi\b", snippet.program):
        pytest.importorskip(
            "httptools", reason="httptools is NOT INSTALLED: pip install --group io"
        )
    program = tmp_path / "snippet.py"
    program.write_text(snippet.program, encoding="utf-8")
    start = f"import os, pyfiber, runpy; os.chdir({str(tmp_path)!r}); "  # it may write files
    done = child(start + "runpy.run_path('snippet.py', run_name='__main__')")
    shows(snippet, done.stdout)


def test_every_document_shows_programs_that_run() -> None:
    assert {snippet.where.split(":")[0] for snippet in ALL} >= {"README.md", "embedding.md"}


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_links_into_the_tree_lead_somewhere(document: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.M | re.S)
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    broken = [link for link in links if not (document.parent / link).exists()]
    assert not broken


def test_commands_are_marked_for_the_ci() -> None:
    for mark, path in (("test", README), ("bench", ROOT / "docs" / "performance.md")):
        text = path.read_text(encoding="utf-8")
        assert re.search(rf"^<!-- ci: {mark} -->\n```sh\npython -m pip ", text, re.MULTILINE)


@pytest.mark.parametrize("table", ["bench ten", "bench", "bench io", "bench curves"])
def test_table_has_its_place(table: str) -> None:
    document = ROOT / "docs" / "performance.md"
    place = rf"<!-- {table}: begin -->\n.*\|.*\n<!-- {table}: end -->"
    assert re.search(place, document.read_text(encoding="utf-8"), re.DOTALL)


def test_front_page_is_short() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900


def test_commands_shown_exist() -> None:
    shown = set(re.findall(r"python -m pyfiber (\w+)", README.read_text(encoding="utf-8")))
    for command in sorted(shown):
        done = run_python("-m", "pyfiber", command, "--help")
        assert done.returncode == 0, (command, done.stderr)
