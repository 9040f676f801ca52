"""Functions that fail, and what comes out of groups of them."""

from __future__ import annotations

from pyfiber import park


class Boom(Exception):
    pass


def fails(error: BaseException) -> None:
    raise error


def fails_late(error: BaseException) -> None:
    """Fail when cancelled."""
    try:
        park()
    finally:
        raise error


def leaves(error: BaseException) -> list[BaseException]:
    """The exceptions in nested groups, from left to right."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]
