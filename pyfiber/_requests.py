"""Which request each fiber of a server answers, for ``python -m pyfiber ps``.

A server registers its connections, not its requests, so all that a request costs is to remember
when it began. ``ps`` asks on a separate thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final, Protocol, TypeAlias

from pyfiber._engine import Fiber, current

#: Method, path, and when it began, by ``time.monotonic()``.
Request: TypeAlias = tuple[str, str, float]


class Connection(Protocol):
    """An object that serves requests, one after the other, in one fiber."""

    def answering(self) -> Request | None:
        """Return the request that is being answered, None between two. Must not park."""


#: By the fiber's id(): to hash a fiber could run foreign code, which ``ps`` must not do.
_CONNECTIONS: Final[dict[int, Connection]] = {}


@contextlib.contextmanager
def served_by_this_fiber(connection: Connection) -> Iterator[None]:
    """Within the block ``request_of()`` of the current fiber asks the connection."""
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
    """The request that a fiber answers, None if it answers none. Any thread may call this."""
    connection = _CONNECTIONS.get(id(fiber))
    return None if connection is None else connection.answering()
