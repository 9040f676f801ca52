"""What needs other projects: absent from ``import pyfiber``; a clear error without them."""

from __future__ import annotations

import pytest

from tests.support.subprocesses import run_script

#: Module: (a module that it needs, what its error says).
NEEDED = {
    "pyfiber.wsgi": ("httptools", 'pip install "pyfiber-engine[wsgi]"'),
    "pyfiber.gunicorn": ("gunicorn", 'pip install "pyfiber-engine[gunicorn]"'),
    "pyfiber.celery": ("celery", 'pip install "pyfiber-engine[celery]"'),
    "pyfiber.psycopg": ("psycopg", "psycopg"),
    "pyfiber.psycopg2": ("psycopg2", "psycopg2"),
}


@pytest.mark.parametrize("module", NEEDED)
def test_missing_project_is_told_with_the_extra(module: str) -> None:
    needed, words = NEEDED[module]
    done = run_script(
        f"""
        import sys
        sys.modules[{needed!r}] = None  # as if it were not installed
        import {module}
        """,
        check=False,
    )
    assert done.returncode == 1
    assert "ImportError" in done.stderr or "ModuleNotFoundError" in done.stderr
    assert words in done.stderr


def test_import_of_pyfiber_needs_none_of_them() -> None:
    run_script(
        f"""
        import sys, pyfiber
        found = {{{", ".join(repr(name) for name in NEEDED)}}} & sys.modules.keys()
        assert not found, found
        """
    )
