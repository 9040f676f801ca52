"""The distribution: its name, what setup.py refuses, what the package index shows."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.subprocesses import run_python

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / "setup.py"

pytestmark = pytest.mark.skipif(not SETUP.exists(), reason="needs the source tree")

#: What setup.py sees, and its answer.
REFUSED = {
    "import platform; platform.python_implementation = lambda: 'PyPy'": "pyfiber needs CPython",
    "import platform, runpy, setuptools, sys; sys.version_info = (3, 10, 13);"
    "platform.python_version = lambda: '3.10.13'": "requires Python 3.11 or later, and this is 3",
    "import runpy, setuptools, sys, sysconfig; sys.version_info = (3, 13, 0);"
    "sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1": "3.14 and 3.15 on Linux, and",
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
    """Only a warning not to install the project of that name may have the name."""
    other = re.compile(
        r"""(?<!not[ \n]`)pip install [^`\n]*?(?<![-\w])pyfiber(?=[`'"\[\s]|$)""", re.MULTILINE
    )
    assert not other.search("Do not `pip install pyfiber`")
    assert other.search('pip install -U "pyfiber[wsgi]"')
    assert not other.search('pip install "pyfiber-engine[wsgi]"')
    for place in (
        "*.md",
        "docs/**/*.md",
        "bench/*.md",
        "bench/**/*.py",
        "examples/*.py",
        "pyfiber/**/*.py",
    ):
        for file in ROOT.glob(place):
            found = other.search(file.read_text(encoding="utf-8"))
            assert not found, f"{file}: {found[0]}"


def metadata(what: str) -> str:
    """What the index is told, as setup.py has it after pyproject.toml was read."""
    done = run_python(
        "-c",
        "import setuptools, distutils.core\n"
        "told = distutils.core.run_setup('setup.py', stop_after='config').metadata\n"
        f"print({what})",
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_index_shows_the_readme_with_links_to_the_files_of_the_version() -> None:
    where, shown = metadata(
        "told.project_urls['Source'] + '/blob/v' + told.version, told.long_description, sep='\\n'"
    ).split("\n", 1)
    assert "# pyfiber\n" in shown
    assert f"]({where}/docs/io.md)" in shown
    assert re.findall(r"\]\((?!https://)[^)]*\)", shown) == []
    assert metadata("told.long_description_content_type") == "text/markdown\n"


LINKS = """
[a](docs/a.md#b) ![c](docs/c.svg) <img src="d.png"> [e](#f) [g](https://h.example/) <a href="i">
```python
j[k](l)
```
"""
ABSOLUTE = """
[a](R/blob/v1/docs/a.md#b) ![c](R/raw/v1/docs/c.svg) <img src="R/raw/v1/d.png"> \
[e](R/blob/v1/README.md#f) [g](https://h.example/) <a href="R/blob/v1/i">
```python
j[k](l)
```
"""


def test_relative_links_become_absolute_but_not_in_code() -> None:
    program = f"""
        import runpy, sys
        sys.argv[1:] = ["--version"]
        function = runpy.run_path("setup.py")["shown_by_the_index"]
        found = function({LINKS!r}, "R", "1")
        assert found == {ABSOLUTE!r}, found
    """
    done = run_python("-c", textwrap.dedent(program), cwd=ROOT)
    assert done.returncode == 0, done.stderr
