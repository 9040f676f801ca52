"""What pyfiber imports when it first needs it, while user code within the import switches."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyfiber
from tests.conftest import Child
from tests.core.late_importers import OTHERS

SOURCES = Path(pyfiber.__file__).parent
USES = {
    **{name: home for name, home in pyfiber._HOMES.items() if home != "pyfiber._outcome"},
    "compose": "pyfiber.compose",
    "grains": "pyfiber.grains",
    **{use.__name__: module for use, module in OTHERS.items()},
}


@pytest.mark.parametrize("name", sorted(USES))
def test_late_import_is_not_left_half_way(name: str, child: Child) -> None:
    """The hook is refused, and what needed the import comes to its end."""
    done = child(f"from tests.core.late_importers import play; play({name!r})", check=False)
    assert done.returncode == 0, done.stderr
    assert USES[name] in done.stdout.splitlines()


def test_who_leaves_an_import_is_told_what_is_imported(child: Child) -> None:
    done = child(
        """
        import sys
        import pyfiber

        class Finder:
            def find_spec(self, name, path=None, target=None):
                del sys.meta_path[0]
                pyfiber.Fiber(int).switch()

        sys.meta_path.insert(0, Finder())
        try:
            pyfiber.gather
        except pyfiber.FiberError as exc:
            print(exc)
        print(pyfiber.gather.__name__)
        """
    )
    told = "cannot leave this fiber while pyfiber imports pyfiber._groups"
    assert done.stdout.splitlines() == [told, "gather"]


def imports_in_functions(tree: ast.AST) -> Iterator[str]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for statement in ast.walk(function):
                if isinstance(statement, ast.Import | ast.ImportFrom):
                    yield ast.unparse(statement)


#: Those are there as long as the interpreter, or pyfiber, is.
ALWAYS_THERE = {"import os", "import sys", "import _thread", "from pyfiber import __version__"}


def loaded_by(statement: str) -> str:
    """What is to be given to _load() before that import."""
    words = statement.split()
    module = words[1]
    return f"{module}.{words[3]}" if module in ("pyfiber", "pyfiber.greenlet") else module


@pytest.mark.parametrize(
    "path", [*sorted(SOURCES.glob("_[!_]*.py")), *sorted(SOURCES.glob("*/__init__.py"))], ids=str
)
def test_late_import_goes_through_one_place(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    for statement in imports_in_functions(ast.parse(source)):
        if statement not in ALWAYS_THERE:
            assert f'_load("{loaded_by(statement)}")' in source, statement


#: A fiber has been left while it imported the module that stands for %s.
SUSPENDED = """
import sys
import pyfiber
from pyfiber import Fiber, FiberError, current

class Finder:
    def find_spec(self, name, path=None, target=None):
        module = sys.modules.get(%r)
        if module is not None and module.__spec__._initializing and not done:
            done.append(name)
            main.switch()

done = []
main = current()
sys.meta_path.insert(0, Finder())
importing = Fiber(lambda: __import__(%r))
importing.switch()
assert done and not importing.done()
"""


@pytest.mark.parametrize(
    ("module", "use", "text"),
    [
        ("queue", "full.put(2, False)", "cannot import queue: the import of queue is under way"),
        (
            "concurrent.futures",
            "ended.result()",
            "cannot import pyfiber._cancelled: the import of concurrent.futures is under way",
        ),
        ("pyfiber.compose", "pyfiber.compose.call", "cannot import pyfiber.compose: the import"),
    ],
)
def test_import_suspended_by_the_user_is_named(
    module: str, use: str, text: str, child: Child
) -> None:
    """What the import would give cannot be had then, and is there later."""
    done = child(
        "import pyfiber\n"
        "full = pyfiber.Queue(1)\n"
        "full.put(1)\n"
        "ended = pyfiber.Fiber(lambda: main.switch())\n"
        "main = pyfiber.current()\n"
        "ended.switch()\n"
        "try:\n"
        "    ended.throw(pyfiber.Cancelled('the reason'))\n"
        "except pyfiber.Cancelled:\n"
        "    pass\n" + SUSPENDED % (module, module) + f"for attempt in range(2):\n"
        f"    try:\n"
        f"        {use}\n"
        f"    except Exception as exc:\n"
        f"        print(type(exc).__name__, exc)\n"
        f"    if not importing.done():\n"
        f"        importing.switch()\n"
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"FiberError {text}")
    assert not any(line.startswith("FiberError") for line in lines[1:])
