"""What the tests of compose share."""

from __future__ import annotations

from typing import Any

from pyfiber import Ok
from pyfiber.compose import Work, blocking


def outcome(work: Work[Any]) -> Any:
    """How a work ends, comparable: a value, or the kind and text of an exception."""
    try:
        return Ok(blocking(work))
    except Exception as exc:
        return type(exc), str(exc)
