"""How a fiber ended: ``fiber.outcome`` is one of these three, for ``match``.

A cancellation is a third state of its own, neither a value nor an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Ok(Generic[R]):
    """The function returned ``value``."""

    value: R


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised ``exception``."""

    exception: BaseException


@dataclass(frozen=True, slots=True)
class CancelledOutcome:
    """The fiber was cancelled; ``reason`` is what was given to ``cancel()``."""

    reason: Any = None


Outcome: TypeAlias = Ok[R] | Failed | CancelledOutcome
