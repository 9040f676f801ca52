"""Compiling C in a test."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest


def compiler(variable: str) -> list[str]:
    """The compiler that this Python was built with, or a skip that says why not."""
    command = shlex.split(sysconfig.get_config_var(variable) or "cc")
    if shutil.which(command[0]) is None:
        pytest.skip(f"no compiler: {command[0]} is not installed")
    return command


def extension_compiler(variable: str) -> list[str]:
    """The same, if it finds Python.h."""
    command = compiler(variable)
    if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
        pytest.skip("no Python.h: the Python headers are not installed")
    return command


def make_library(folder: Path, code: str) -> Path:
    """A shared library of this C, for ctypes."""
    source, made = folder / "library.c", folder / "library.so"
    source.write_text(code)
    command = [*compiler("CC"), "-shared", "-fPIC", str(source), "-o", str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return made
