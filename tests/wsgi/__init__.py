"""Tests of pyfiber.wsgi: none of them where its parser is not installed."""

import pytest

pytest.importorskip(
    "httptools", reason='httptools is NOT INSTALLED: pip install "pyfiber-engine[wsgi]"'
)
