"""``Answer``: turns what an application says by PEP 3333 into an answer in HTTP."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from pyfiber.wsgi._parser import LONGEST_KEPT, keep

if TYPE_CHECKING:
    from types import TracebackType
    from wsgiref.types import WSGIApplication

    from pyfiber.wsgi._connection import Connection
    from pyfiber.wsgi._parser import Request

    ExcInfo = (
        tuple[type[BaseException], BaseException, TracebackType] | tuple[None, None, None] | None
    )

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_STATUS: Final = re.compile(r"([2-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")

#: Kinds of fields. The server writes those from _LENGTH to _DROPPED itself, or leaves them out.
(
    _ORDINARY,
    _LENGTH,
    CODING,
    _CONNECTION,
    _DROPPED,
    _DATE,
    _SERVER,
) = range(7)
_SPECIAL: Final = {
    "content-length": _LENGTH,
    "transfer-encoding": CODING,
    "connection": _CONNECTION,
    "keep-alive": _DROPPED,
    "proxy-connection": _DROPPED,
    "te": _DROPPED,
    "trailer": _DROPPED,
    "upgrade": _DROPPED,
    "date": _DATE,
    "server": _SERVER,
}

#: Caches: the kind of each name, and the code of each status, that applications have used.
_KINDS: Final[dict[str, int]] = {}
_CODES: Final[dict[str, int]] = {}


class FileWrapper:
    """``wsgi.file_wrapper``: an application returns this to have the system send a file.

    Iteration gives the file's blocks of ``blksize`` bytes, for what cannot be sent that way.
    """

    def __init__(self, filelike: BinaryIO, blksize: int = 65536) -> None:
        self.filelike = filelike
        self.blksize = blksize
        if hasattr(filelike, "close"):
            self.close = filelike.close

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.filelike.read(self.blksize), b"")


class Answer:
    """The answer to one request."""

    #: The status that start_response() was given; None before that call.
    _status: str | None = None
    #: The fields of the head, Date and Server included.
    _head = ""
    #: Bytes of the body to come; None: any number.
    _left: int | None = None
    _chunked = False
    #: The answer has no body.
    _bare = False
    #: Something of the answer has been sent.
    began = False

    def __init__(self, connection: Connection, request: Request) -> None:
        self._connection = connection
        self._request = request
        self.closes = not request.keep_alive  # the connection ends after this answer

    # What the application calls

    def start_response(
        self,
        status: str,
        headers: list[tuple[str, str]],
        exc_info: ExcInfo = None,
        /,
    ) -> Any:
        """Keep status and headers until the first block of the body comes."""
        if exc_info is not None:
            try:
                if self.began and exc_info[1] is not None:
                    raise exc_info[1].with_traceback(exc_info[2])
            finally:
                exc_info = None  # the traceback refers to this frame
        elif self._status is not None:
            raise AssertionError("start_response() was called twice, without exc_info")
        if type(status) is not str:
            status = _plain("a status", status)
        code = _CODES.get(status) or _code_of(status)
        self._left = None
        self._head = self._fields(headers)
        self._bare = code == 204 or code == 304
        if code == 204:
            self._left = None  # such an answer must not have a Content-Length
        self._status = status if len(status) > 3 else f"{status} "
        return self.write

    def write(self, data: bytes, /) -> None:
        """Send a block of the body. Only old applications call this; others return blocks."""
        if not isinstance(data, bytes):
            raise TypeError(f"a body is made of bytes, not {type(data).__name__!r}")
        if data:
            self._send(data)

    def _fields(self, headers: list[tuple[str, str]]) -> str:
        """The lines of the head, checked so that no value can contain another line."""
        lines = ""
        date = server = False
        for name, value in headers:
            if type(name) is not str:
                name = _plain("the name of a header", name)
            kind = _KINDS.get(name)
            if kind is None:
                kind = _kind_of(name)
            if type(value) is not str:
                value = _plain(f"the value of {name}", value)
            if not (value.isascii() and value.isprintable()):
                _check_value(name, value)
            if kind:
                if kind < _DATE:
                    self._takes(kind, value)
                    continue
                date = date or kind == _DATE
                server = server or kind == _SERVER
            lines += f"{name}: {value}\r\n"
        return self._connection.site.stamp(date, server) + lines

    def _takes(self, kind: int, value: str) -> None:
        """Take a field about the connection or the body, which the server writes itself."""
        if kind == _LENGTH:
            if self._left is not None or not (value.isascii() and value.isdigit()):
                raise ValueError(f"Content-Length comes twice, or is no number: {value!r}")
            self._left = int(value)
        elif kind == CODING:
            raise ValueError("Transfer-Encoding is for the server to choose, not the application")
        elif kind == _CONNECTION:
            self.closes = self.closes or "close" in value.lower()

    # Sending

    def send(self, app: WSGIApplication) -> None:
        """Call the application and send what it returns."""
        result = app(self._request.environ, self.start_response)
        try:
            if type(result) is list or type(result) is tuple:
                self._send_whole(result)
            elif type(result) is FileWrapper:
                self._send_file(result)
            else:
                self._send_blocks(result)
        finally:
            close = getattr(result, "close", None)
            if close is not None:
                close()

    def _send_whole(self, blocks: list[bytes] | tuple[bytes, ...]) -> None:
        """Send a body that is there as a whole: its length is known, and it goes with the head."""
        for block in blocks:
            if not isinstance(block, bytes):
                raise TypeError(f"a body is made of bytes, not {type(block).__name__!r}")
        body = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        size = len(body)
        if not self.began:
            if self._left is None:
                self._expect(size)
            head = self._begin()
            if self._bare or self._left == size:
                return self._connection.send_all(head, b"" if self._bare else body)
            self._connection.send(head)
        if body:
            self._send(body)
        return self._finish()

    def _send_blocks(self, blocks: Iterable[bytes]) -> None:
        """Send the blocks as they come; no more than the head if there is no body.

        An application that is a generator calls start_response() when asked for its first block.
        """
        if not self._has_no_body():
            for block in blocks:
                if not isinstance(block, bytes):
                    raise TypeError(f"a body is made of bytes, not {type(block).__name__!r}")
                if block:
                    self._send(block)
                if self._has_no_body():
                    break  # the blocks may be endless
        self._finish()

    def _has_no_body(self) -> bool:
        return self._status is not None and (self._bare or self._request.is_head)

    def _send_file(self, wrapper: FileWrapper) -> None:
        """Have the system send the file, if it is a regular one."""
        file = wrapper.filelike
        size = None if self.began else _bytes_left(file)
        if size is None:
            return self._send_blocks(wrapper)
        self._expect(size)
        if self._bare or self._request.is_head:
            self._send(b"")
        elif self._left is not None and 0 < self._left <= size:
            self._send(b"")
            self._connection.send_file(file, self._left)
            self._left = 0
        else:
            return self._send_blocks(wrapper)
        return self._finish()

    def _expect(self, size: int) -> None:
        """Make ``size`` the length of the body, if the application has not given one.

        Not a size of 0 for HEAD: the application may have left out the body that GET returns.
        """
        if self._left is None and not self._bare and (size or not self._request.is_head):
            self._left = size

    def _send(self, block: bytes) -> None:
        """Send a block of the body, after the head if that was not sent yet."""
        head = b"" if self.began else self._begin()
        tail = b""
        too_much = 0
        if self._bare:
            block = b""
        elif self._left is not None:
            too_much = max(0, len(block) - self._left)
            self._left -= len(block) - too_much
            if too_much:
                block = block[: len(block) - too_much]
        elif self._chunked and block:
            head += b"%x\r\n" % len(block)
            tail = b"\r\n"
        if head or block:
            self._connection.send_all(head, block, tail)
        if too_much:
            raise ValueError(f"the body has {too_much} bytes more than its Content-Length")

    def _begin(self) -> bytes:
        """Make the head, and decide how the client will recognize the end of the body."""
        if self._status is None:
            raise AssertionError("start_response() was not called")
        request, connection = self._request, self._connection
        bare = self._bare or request.is_head
        framing = ""
        if self._left is not None:
            framing = f"Content-Length: {self._left}\r\n"
        elif bare:
            pass
        elif request.http11:
            self._chunked = True
            framing = "Transfer-Encoding: chunked\r\n"
        else:
            self.closes = True
        site = connection.site
        if not request.complete or site.is_ending or site.slots.wanted:
            self.closes = self.closes or not connection.may_go_on(request)
        if self.closes:
            framing += "Connection: close\r\n"
        elif not request.http11:
            framing += "Connection: keep-alive\r\n"
        self._bare = bare
        self.began = True
        return f"HTTP/1.1 {self._status}\r\n{self._head}{framing}\r\n".encode("latin-1")

    def _finish(self) -> None:
        """End the answer: the application has given all of it."""
        if not self.began:
            self._expect(0)
            self._send(b"")
        if self._bare:
            return
        if self._chunked:
            self._connection.send(b"0\r\n\r\n")
        elif self._left:
            raise ValueError(f"the body has {self._left} bytes less than its Content-Length")

    @property
    def ends_by_closing(self) -> bool:
        """Whether only the end of the connection says that the body is complete."""
        return self.began and not self._bare and self._left is None and not self._chunked


def field(name: str, value: str) -> str:
    """A line of a head, checked so that it cannot contain another line."""
    _kind_of(name := _plain("the name of a header", name))
    _check_value(name, value := _plain(f"the value of {name}", value))
    return f"{name}: {value}\r\n"


def _plain(what: str, text: Any) -> str:
    """The characters of a str, also of one of a subclass with its own methods."""
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {type(text).__name__!r}")
    return str.__str__(text)


def _code_of(status: str) -> int:
    found = _STATUS.fullmatch(status)
    if found is None:
        raise ValueError(f"a status is of the form '200 OK', not {status!r}")
    code = int(found[1])
    if len(status) <= LONGEST_KEPT:
        keep(_CODES, status, code)
    return code


def _kind_of(name: str) -> int:
    if _NAME.fullmatch(name) is None:
        raise ValueError(f"that cannot be the name of a header: {name!r}")
    kind = _SPECIAL.get(name.lower(), _ORDINARY)
    if len(name) <= LONGEST_KEPT:
        keep(_KINDS, name, kind)
    return kind


def _check_value(name: str, value: str) -> None:
    if _VALUE.fullmatch(value) is None:
        raise ValueError(f"that cannot be the value of {name}: {value!r}")


def _bytes_left(file: Any) -> int | None:
    """The bytes of a regular file from its position on; None if it is no regular file."""
    with contextlib.suppress(AttributeError, OSError, ValueError, TypeError):
        found = os.fstat(file.fileno())
        if stat.S_ISREG(found.st_mode):
            return max(0, found.st_size - int(file.tell()))
    return None
