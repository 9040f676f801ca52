"""Another project of the same import name in the same folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyfiber
from tests.support.subprocesses import run_python


def test_other_project_in_the_same_folder_is_told(tmp_path: Path) -> None:
    package = tmp_path / "pyfiber"
    package.mkdir()
    shutil.copy(pyfiber.__file__, package / "__init__.py")
    (package / "behavior.py").touch()
    done = run_python("-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import pyfiber")
    assert done.returncode == 1
    assert "pyfiber-engine (this one) and pyfiber (fiber photometry)" in done.stderr
    assert "uninstall both" in done.stderr
