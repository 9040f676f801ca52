"""Running a script in an interpreter of its own: for exits, signals and crashes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pyfiber


def run_script(
    code: str, *options: str, timeout: float = 60, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` (indented as you like) and return what it printed and how it ended."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(pyfiber.__file__)))
    paths = [root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    if check:
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done
