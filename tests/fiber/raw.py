"""Raw fibers in two states."""

from __future__ import annotations

from typing import Any

from pyfiber import Fiber, current


def parked(target: Fiber[Any] | None = None) -> Fiber[Any]:
    """A fiber suspended in a switch to the caller's, or to another; it returns what it is sent."""
    fiber: Fiber[Any] = Fiber((target or current()).switch)
    fiber.switch()
    return fiber


def finished() -> Fiber[Any]:
    fiber: Fiber[Any] = Fiber(lambda: None)
    fiber.switch()
    return fiber
