"""The file objects of pyfiber.subprocess: ends of pipes whose reads and writes park the fiber."""

from __future__ import annotations

import functools
import io
import os
import select
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from pyfiber._engine import RLock, _may_park, wait_readable, wait_writable, yield_now

T = TypeVar("T")

#: Bytes per read where everything is read: as much as a pipe has room for.
AT_A_TIME = 65536

#: Operations that a fiber may do in a row before it lets other fibers run.
MOST_IN_A_ROW = 64

#: Bytes that a pipe takes at once whenever it is writable.
ALWAYS_FITS: int = getattr(select, "PIPE_BUF", 512)


def _one_at_a_time(*names: str) -> Callable[[type[T]], type[T]]:
    """Decorate a class of file objects: these methods wait while another fiber is in one of them.

    Python's buffers distinguish threads only: they take two fibers of one thread for a call within
    a call.
    """

    def with_turn(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self._turn:
                return method(self, *args, **kwargs)

        return call

    def line_with_turn(method: Callable[..., Any]) -> Callable[..., Any]:
        """A with_turn() for readline(), which iteration calls, that takes half the time."""

        @functools.wraps(method)
        def call(self: Any, size: int = -1, /) -> Any:
            turn = self._turn
            turn.acquire()
            try:
                return method(self, size)
            finally:
                turn.release()

        return call

    def decorate(cls: type[T]) -> type[T]:
        for name in names:
            wrap = line_with_turn if name == "readline" else with_turn
            setattr(cls, name, wrap(getattr(cls, name)))
        return cls

    return decorate


@_one_at_a_time("close")
class Pipe(io.FileIO):
    """One end of a pipe, without a buffer.

    The descriptor is non-blocking, which is a property of the pipe's end, and other processes may
    come to share that end. So fileno() makes it blocking before it hands out the number, and from
    then on each operation first waits until the pipe is ready.
    """

    def __init__(self, number: int, mode: str) -> None:
        self._turn = RLock()
        super().__init__(number, mode)
        self._number = number
        self._wait = wait_readable if mode == "rb" else wait_writable
        self._handed_out = False
        self._in_a_row = 0
        os.set_blocking(number, False)

    def fileno(self) -> int:
        """Return the descriptor's number; the descriptor blocks from now on."""
        number = super().fileno()
        if not self._handed_out:
            os.set_blocking(number, True)
            self._handed_out = True
        return number

    def readinto(self, buffer: Any, /) -> int:
        """Wait for data; return the number of bytes, 0 at the end."""
        count: int = self._in_turn(super().readinto, buffer)
        return count

    def read(self, size: int | None = -1, /) -> bytes:
        """Wait for data: at most ``size`` bytes, b"" at the end. Without a size, read it all."""
        if size is None or size < 0:
            return self.readall()
        data: bytes = self._in_turn(super().read, size)
        return data

    def readall(self) -> bytes:
        """Read everything up to the end."""
        return b"".join(iter(lambda: self.read(AT_A_TIME), b""))

    def write(self, data: Any, /) -> int:
        """Wait for room, and write at least a part; return the number of bytes."""
        return self._in_turn(self._write, data)

    def _write(self, data: Any) -> int | None:
        if self._handed_out and _may_park():
            data = memoryview(data).cast("B")[:ALWAYS_FITS]
        return super().write(data)

    def _in_turn(self, operation: Callable[[Any], T | None], argument: Any) -> T:
        with self._turn:
            if self._handed_out and not _may_park():
                return operation(argument)  # type: ignore[return-value]  # None if set non-blocking
            if self._handed_out and not self.closed:
                self._wait(self._number)
            else:
                self._give_way()
            while (result := operation(argument)) is None:
                self._in_a_row = 0
                self._wait(self._number)
            return result

    def _give_way(self) -> None:
        """Let other fibers run after many operations in a row that did not wait."""
        self._in_a_row += 1
        if self._in_a_row > MOST_IN_A_ROW:
            self._in_a_row = 0
            if _may_park():
                yield_now()


@_one_at_a_time(
    "read", "read1", "readinto", "readinto1", "readline", "peek", "flush", "close", "detach"
)
class Reader(io.BufferedReader):
    """A buffer to read from a pipe's end."""

    def __init__(self, raw: Pipe, size: int) -> None:
        self._turn = RLock()
        super().__init__(raw, size)


@_one_at_a_time("write", "flush", "close", "detach")
class Writer(io.BufferedWriter):
    """A buffer to write to a pipe's end."""

    def __init__(self, raw: Pipe, size: int) -> None:
        self._turn = RLock()
        super().__init__(raw, size)


@_one_at_a_time("read", "readline", "write", "flush", "close", "detach", "reconfigure")
class Text(io.TextIOWrapper):
    """Text on top of a buffer."""

    def __init__(self, buffer: Any, **options: Any) -> None:
        self._turn = RLock()
        super().__init__(buffer, **options)


def buffered(raw: Pipe, size: int) -> Pipe | Reader | Writer:
    """Give a pipe's end the buffer that open() would; ``size`` is open()'s ``buffering``."""
    if size == 0:
        return raw
    if size == 1:
        warnings.warn(
            "line buffering (buffering=1) isn't supported in binary mode, the default buffer size "
            "will be used",
            RuntimeWarning,
            stacklevel=6,
        )
    size = io.DEFAULT_BUFFER_SIZE if size <= 1 else size
    return Reader(raw, size) if raw.readable() else Writer(raw, size)


def end_of(file: Any) -> Any:
    """The Pipe beneath a file object's layers."""
    file = getattr(file, "buffer", file)
    return getattr(file, "raw", file)
