"""How many connections a server has at a time, and which of them gives way to another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyfiber._engine import Semaphore, wait_readable

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

    from pyfiber._engine import CancelScope


#: When a server ends, a connection that has been served ends after so many seconds of silence. A
#: client that sends requests more often than that has its next one answered before.
LAST_SILENCE: Final = 1.0


class Slots:
    """A place for each connection, up to a limit; None: any number.

    A client that finds no place free takes that of an idle connection: the one that has been idle
    for the longest time, or else the first one that becomes idle. Connections may be served on
    several threads, so each step is one operation of a dict.
    """

    def __init__(self, limit: int | None) -> None:
        self._free = None if limit is None else Semaphore(limit)
        #: The idle connections, the one that has been idle for the longest time first, and the
        #: scopes in which they wait for their next requests.
        self.idle: dict[object, CancelScope] = {}
        #: A token for each wait for a place, in the semaphore's order. Servers test for emptiness.
        self.wanted: dict[object, None] = {}
        #: hasten() was called.
        self.hastened = False

    def take_free(self) -> bool:
        """Take a place if one is free."""
        return self._free is None or self._free.acquire(blocking=False)

    def take(self, listener: FileDescriptorLike) -> None:
        """Wait for a place for the next connection of this listener."""
        free = self._free
        if free is None or self.take_free():
            return
        wait_readable(listener)  # no connection gives way before there is a client for its place
        if self.take_free():
            return
        token = object()
        self.wanted[token] = None
        try:
            self.end_one()
            free.acquire()
        except BaseException:
            self.wanted.pop(token, None)
            raise

    def release(self) -> None:
        """Give the place of a connection back; the first client that waits gets it."""
        if self._free is not None:
            for token in self.wanted:
                del self.wanted[token]
                break
            self._free.release()

    def end_one(self) -> None:
        """End the wait of the connection that has been idle for the longest time."""
        for connection in self.idle:
            self.idle.pop(connection).cancel("another client waits for its place")
            break

    def hasten(self, patience: float) -> None:
        """The server ends: let idle connections wait for LAST_SILENCE seconds at most.

        ``patience`` is the seconds that they were to wait. A scope without a deadline is cancelled:
        its connection then computes by itself how long it waits.
        """
        if self.hastened:
            return
        self.hastened = True
        less = max(0, patience - LAST_SILENCE)
        for scope in list(self.idle.values()):
            if scope.deadline is None:
                scope.cancel("the server ends")
            else:
                scope.deadline -= less
