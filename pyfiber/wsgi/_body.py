"""`wsgi.input`: the body of a request, while the body is being received."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyfiber.wsgi._connection import Connection
    from pyfiber.wsgi._parser import Request


class Body(io.BufferedIOBase):
    """A file that reads the body of a request, and parks until as much has come as was asked for.

    The file ends where the body does, also if that is chunked. Reads raise ``Refused``, an OSError,
    if the body is malformed, too large, too slow, or cut off.
    """

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection: Connection | None = connection
        self._request = request
        self._buffer = bytearray()

    def _more(self) -> bool:
        """Add data to the buffer, if need be after a wait. False at the end of the body."""
        if self._connection is None:
            raise ValueError("this request is over: its body cannot be read any more")
        request = self._request
        while not request.chunks:
            if request.complete:
                return False
            self._connection.receive_body(request)
        self._buffer += b"".join(request.chunks)
        request.chunks.clear()
        return True

    def _take(self, size: int) -> bytes:
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken

    def readable(self) -> bool:
        """Always True."""
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        """Read ``size`` bytes, fewer only at the end; all of the body with -1 or None."""
        if size is None or size < 0:
            while self._more():
                pass
            return self._take(len(self._buffer))
        while len(self._buffer) < size and self._more():
            pass
        return self._take(size)

    def read1(self, size: int = -1, /) -> bytes:
        """Read what has come, at most ``size`` bytes; wait if nothing has."""
        if size == 0:
            return b""
        if not self._buffer:
            self._more()
        return self._take(len(self._buffer) if size < 0 else size)

    def readinto(self, buffer: Any, /) -> int:
        """Read into the buffer, as read() does."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readinto1(self, buffer: Any, /) -> int:
        """Read into the buffer, as read1() does."""
        view = memoryview(buffer).cast("B")
        data = self.read1(len(view))
        view[: len(data)] = data
        return len(data)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read the next line, at most ``size`` bytes of it."""
        limit = -1 if size is None else size
        seen = 0
        while True:
            end = self._buffer.find(b"\n", seen) + 1
            seen = len(self._buffer)
            if end or (limit >= 0 and seen >= limit) or not self._more():
                break
        length = end or len(self._buffer)
        return self._take(length if limit < 0 else min(length, limit))

    def end(self) -> None:
        """Let later reads fail: the request is over."""
        self._connection = None
