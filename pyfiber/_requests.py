"""Which request each fiber of a server answers, for ``python -m pyfiber ps``.

A server registers its connections, not its requests, so a request costs it nothing but to remember
when it began. ``ps`` asks from a thread of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, Protocol, TypeAlias

from pyfiber._engine import Fiber, current

#: Method, path, and when it began, by ``time.monotonic()``.
Request: TypeAlias = tuple[str, str, float]


class Connection(Protocol):
    """What serves requests, one after the other, in one fiber."""

    def answering(self) -> Request | None:
        """Tell of the request that is being answered; None between two. Parks nowhere."""


#: By the identity of the fiber: a hash may be foreign code, which ``ps`` must not run.
_CONNECTIONS: Final[dict[int, Connection]] = {}


@contextlib.contextmanager
def served_by_this_fiber(connection: Connection) -> Iterator[None]:
    """Within the block ``request_of(current())`` tells what the connection says."""
    key = id(current())
    outer = _CONNECTIONS.get(key)
    _CONNECTIONS[key] = connection
    try:
        yield
    finally:
        if outer is None:
            _CONNECTIONS.pop(key, None)
        else:
            _CONNECTIONS[key] = outer


def request_of(fiber: Fiber[object]) -> Request | None:
    """The request that a fiber answers; None if it answers none. Any thread may ask."""
    connection = _CONNECTIONS.get(id(fiber))
    return None if connection is None else connection.answering()
