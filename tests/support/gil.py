"""Tests that count on the GIL: they are skipped without one, and say why."""

from __future__ import annotations

import pytest

import pyfiber

GIL = pyfiber.debug.info()["gil"]
PATCH_NEEDS_IT = "patch() is refused without the GIL"
#: What a thread drops of another is told to the owner, which unwinds it at the next opportunity.
DROPS_ARE_QUEUED = "without the GIL the interpreter queues what another thread drops for its owner"


def needs_gil(why: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not GIL, reason=why)
