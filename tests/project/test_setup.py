"""setup.py refuses, by a sentence, what it cannot build for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.subprocesses import run_python

SETUP = Path(__file__).resolve().parents[2] / "setup.py"

pytestmark = pytest.mark.skipif(not SETUP.exists(), reason="needs the source tree")

#: What setup.py sees, and its answer.
REFUSED = {
    "import platform; platform.python_implementation = lambda: 'PyPy'": "pyfiber needs CPython",
    "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1": "a free-threaded build",
    "import platform, sysconfig; platform.machine = lambda: 'riscv64';"
    "sysconfig.get_config_vars()['HOST_GNU_TYPE'] = 'riscv64-alpine-linux-musl'": (
        "musl has no makecontext()"
    ),
}


@pytest.mark.parametrize("seen", REFUSED)
def test_interpreter_or_system_that_does_not_fit_is_refused(seen: str) -> None:
    program = f"{seen}\nimport runpy, sys; sys.argv[1:] = ['--version']; runpy.run_path('setup.py')"
    done = run_python("-c", program, cwd=SETUP.parent)
    assert done.returncode == 1
    assert REFUSED[seen] in done.stderr
    assert "Traceback" not in done.stderr
