"""Every Python block of README.md and docs/ passes ``mypy --strict`` and pyright.

What a fragment takes for granted stands in a comment ``given`` before it, which no reader sees::

    <!-- given
    import pytest
    -->
    ```python
    @pytest.mark.fiber
    def test_bank() -> None: ...
    ```
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.facade.test_typing import environment
from tests.project.test_readme import ROOT, documents

pytestmark = [
    pytest.mark.slow,  # the checkers take seconds to begin
    pytest.mark.skipif(not documents(), reason="needs the source tree"),
]

BLOCK = re.compile(
    r"(?:<!-- given\n(?P<given>(?:(?!-->).)*)-->\n+)?^```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    """A Python block, and the name of the file that it is checked as."""

    name: str
    program: str

    def missing(self) -> set[str]:
        """The modules that it imports and that are not installed."""
        names = set()
        for node in ast.walk(ast.parse(self.program)):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names.add(node.module)
        tops = {name.partition(".")[0] for name in names}
        return {top for top in tops if importlib.util.find_spec(top) is None}


def blocks() -> list[Block]:
    found = []
    for document in documents():
        text = document.read_text(encoding="utf-8")
        where = re.sub(r"\W", "_", str(document.relative_to(ROOT).with_suffix("")))
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start("code")) + 1
            program = (match["given"] or "") + match["code"]
            found.append(Block(f"{where}_line_{line}.py", program))
    return found


ALL = blocks()


def checked(place: Path, command: list[str]) -> None:
    """Write all blocks whose imports can be followed, and run a checker over them."""
    for block in ALL:
        if not block.missing():
            (place / block.name).write_text(block.program, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", *command, "."],
        cwd=place,
        env=environment(place),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_python_block_is_found() -> None:
    fences = sum(
        document.read_text(encoding="utf-8").count("\n```python\n") for document in documents()
    )
    assert len(ALL) == fences > 100


def test_snippets_pass_mypy_strict(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is NOT INSTALLED: pip install --group lint")
    checked(tmp_path, ["mypy", "--strict"])


def test_snippets_pass_pyright(tmp_path: Path) -> None:
    pytest.importorskip("pyright", reason="pyright is NOT INSTALLED: pip install --group lint")
    package = environment(tmp_path).get("PYTHONPATH", "")
    settings = {"extraPaths": [package] if package else [], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    checked(tmp_path, ["pyright", "--pythonpath", sys.executable])


def test_no_snippet_is_left_out() -> None:
    missing = {name for block in ALL for name in block.missing()}
    if missing:
        pytest.skip(f"NOT INSTALLED, their snippets are not checked: {', '.join(sorted(missing))}")
