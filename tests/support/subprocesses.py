"""Running Python in a process of its own: for exits, signals, crashes, and whole programs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pyfiber

#: Every time-out is so many times as long: for processors that are emulated.
PATIENCE = float(os.environ.get("PYFIBER_TEST_PATIENCE", "1"))
#: This is qemu, which leaves out some of what a kernel does. It hides well: who runs it says so.
EMULATED = bool(os.environ.get("PYFIBER_TEST_EMULATED"))


def run_python(
    *arguments: str,
    env: dict[str, str] | None = None,
    timeout: float = 120,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter, with this pyfiber and these helpers in reach, and say how it ended."""
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout * PATIENCE,
        env=environment(env),
        cwd=cwd,
        check=False,
    )


def start_python(*arguments: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """The same, while it runs: to read what it prints and to send it signals."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(env),
    )


def environment(more: dict[str, str] | None) -> dict[str, str]:
    """With this pyfiber and these helpers in reach."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(pyfiber.__file__)))
    tests = str(Path(__file__).resolve().parents[2])
    wanted = {**os.environ, **(more or {})}
    paths = [root, tests, *wanted.get("PYTHONPATH", "").split(os.pathsep)]
    return {**wanted, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run_script(
    code: str, *options: str, timeout: float = 60, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` (indented as you like) and return what it printed and how it ended."""
    done = run_python(*options, "-c", textwrap.dedent(code), timeout=timeout)
    if check:
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done
