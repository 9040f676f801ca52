"""The programs of examples/, run and imported by tests."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyfiber
from tests.support.subprocesses import run_python

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

#: Ctrl-C works in it even if this process was started in the background, where it is ignored.
WITH_CTRL_C = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def run_example(name: str, *arguments: str, code: int = 0) -> str:
    """What an example prints, on either of its outputs."""
    done = run_python(str(EXAMPLES / name), *arguments, env={"PYTHONIOENCODING": "utf-8"})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def example_in_child(
    name: str, *arguments: str, stderr: int | None = None
) -> subprocess.Popen[str]:
    root = os.path.dirname(os.path.dirname(os.path.abspath(pyfiber.__file__)))
    return subprocess.Popen(
        [sys.executable, "-c", WITH_CTRL_C, str(EXAMPLES / name), *arguments],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )


def imported(name: str) -> ModuleType:
    """The example, as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
