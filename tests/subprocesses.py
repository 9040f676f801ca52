"""Running a script in an interpreter of its own: for exits, signals and crashes."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run_script(
    code: str, *options: str, timeout: float = 60, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` (indented as you like) and return what it printed and how it ended."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if check:
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done
