"""The distribution: its name, what setup.py refuses, what the package index shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.subprocesses import run_python

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "setup.py"

pytestmark = pytest.mark.skipif(not SETUP.exists(), reason="needs the source tree")

#: What setup.py sees, and its answer.
REFUSED = {
    "import platform; platform.python_implementation = lambda: 'PyPy'": "pyfiber needs CPython",
    "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1": "a free-threaded build",
}
if sys.platform != "win32":
    REFUSED[
        "import platform, sysconfig; platform.machine = lambda: 'riscv64';"
        "sysconfig.get_config_vars()['HOST_GNU_TYPE'] = 'riscv64-alpine-linux-musl'"
    ] = "musl has no makecontext()"


@pytest.mark.parametrize("seen", REFUSED)
def test_interpreter_or_system_that_does_not_fit_is_refused(seen: str) -> None:
    program = f"{seen}\nimport runpy, sys; sys.argv[1:] = ['--version']; runpy.run_path('setup.py')"
    done = run_python("-c", program, cwd=ROOT)
    assert done.returncode == 1
    assert REFUSED[seen] in done.stderr
    assert "Traceback" not in done.stderr


def test_text_installs_the_distribution_by_its_name() -> None:
    other = re.compile(r"""pip install [^`\n]*?(?<![-\w])pyfiber(?=[`'"\[\s]|$)""", re.MULTILINE)
    assert other.search('pip install -U "pyfiber[wsgi]"')
    assert not other.search('pip install "pyfiber-engine[wsgi]"')
    for place in ("*.md", "docs/**/*.md", "bench/*.*", "examples/*.py", "pyfiber/**/*.py"):
        for file in ROOT.glob(place):
            found = other.search(file.read_text(encoding="utf-8"))
            assert not found, f"{file}: {found[0]}"
