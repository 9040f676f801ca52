from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.gil import GIL, PATCH_NEEDS_IT
from tests.support.subprocesses import run_python

#: Run a program's source, and return what it prints.
Prints = Callable[..., str]


@pytest.fixture(autouse=True, scope="session")
def there_is_a_gil() -> None:
    if not GIL:
        pytest.skip(PATCH_NEEDS_IT)


@pytest.fixture
def prints(tmp_path: Path) -> Prints:
    """Run the body of a block of virtual threads in a process of its own."""

    def run(source: str) -> str:
        program = "import pyfiber\nwith pyfiber.virtual_threads():\n"
        program += textwrap.indent(textwrap.dedent(source), "    ")
        done = run_python("-X", "faulthandler", "-c", program)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
        return done.stdout

    return run


@pytest.fixture
def command(tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """Run a program by the command line: (status, stdout, stderr)."""

    def run(source: str, *options: str) -> tuple[int, str, str]:
        path = tmp_path / "program.py"
        path.write_text(textwrap.dedent(source), encoding="utf-8")
        done = run_python("-m", "pyfiber", "run", "--virtual-threads", *options, str(path))
        return done.returncode, done.stdout, done.stderr

    return run
