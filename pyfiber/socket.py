"""The standard module ``socket``, whose calls park the running fiber.

Every public name of the standard module is here. In a fiber of a run a call that would block parks
that fiber, and others run; made anywhere else it does what the standard library does.
"""

from __future__ import annotations

import os
import socket as _standard
from _socket import dup as _dup
from socket import *  # noqa: F403
from socket import __all__ as _names
from typing import TYPE_CHECKING, Any

from pyfiber import _engine

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import BinaryIO

_Native: Any = _engine._socket_type()

#: Bytes that sendfile() gives to the system at a time.
_AT_A_TIME = 2**30


class socket(_Native):  # type: ignore[misc]
    """A ``socket.socket`` whose operations park the running fiber.

    Its descriptor never blocks, whatever timeout is set: code that reads from the number itself
    gets BlockingIOError. One fiber may read and one may write at a time, several only from
    datagram sockets and listeners; more are refused with FiberError. When an exception ends
    ``sendall()``, its attribute ``sent`` says how many bytes went.
    """

    __slots__ = ()

    def __init__(
        self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None
    ) -> None:
        super().__init__(family, type, proto, fileno)
        self._adopt()

    def listen(self, *backlog: int) -> None:
        """As the standard one; several fibers may accept() then."""
        super().listen(*backlog)
        self._set_turns()

    def accept(self) -> tuple[socket, Any]:
        """Wait for a connection: a new socket, and the address of its other end."""
        number, address = self._accept()
        return socket(self.family, self.type, self.proto, number), address

    def connect(self, address: Any) -> None:
        """Connect to the address; TimeoutError after the socket's timeout."""
        error = self._connect(address)
        if error:
            raise OSError(error, os.strerror(error))

    def connect_ex(self, address: Any) -> int:
        """As connect(), but returns the error's number, 0 if there is none."""
        try:
            return self._connect(address)
        except TimeoutError as exc:
            return exc.errno or _standard.errno.EAGAIN

    def dup(self) -> socket:
        """A new socket of the same connection."""
        self._set_duplicated()
        number = _dup(self.fileno())
        twin = type(self)(self.family, self.type, self.proto, number)
        twin._set_duplicated()
        twin.settimeout(self.gettimeout())
        return twin
