"""Running Python in a process of its own: for exits, signals, crashes, and whole programs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pyfiber


def run_python(
    *arguments: str, env: dict[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter, with this pyfiber in reach, and say how it ended."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(pyfiber.__file__)))
    paths = [root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    path = os.pathsep.join(filter(None, paths))
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        check=False,
    )


def run_script(
    code: str, *options: str, timeout: float = 60, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` (indented as you like) and return what it printed and how it ended."""
    done = run_python(*options, "-c", textwrap.dedent(code), timeout=timeout)
    if check:
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done
