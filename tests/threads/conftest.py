"""What the tests of threads share."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

Log = list[Any]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Log:
    """The exceptions that nobody could catch."""
    told: Log = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_type))
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_type))
    return told
