"""One connection: its requests, one after the other, and how it ends."""

from __future__ import annotations

import contextlib
import io
import os
import struct
from contextvars import copy_context
from time import monotonic
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from pyfiber import socket
from pyfiber._engine import CancelScope, check_cancelled, move_on_after, now
from pyfiber.net._slots import LAST_SILENCE
from pyfiber.wsgi._answer import Answer
from pyfiber.wsgi._body import Body
from pyfiber.wsgi._parser import BAD, PIECE, TOO_LATE, Parser, Refused, Request

if TYPE_CHECKING:
    from pyfiber.net import Stream
    from pyfiber.wsgi._site import Site

#: Bytes that are read of a body which the application has left unread, to reach the next request.
DRAINED: Final = 65536

#: Bytes and seconds: what is read, and dropped, from a client that has had its last answer. If the
#: connection were closed with data unread, the answer could be lost.
LINGERING: Final = 1 << 20
LINGERING_SECONDS: Final = 2.0

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Gone(ConnectionError):
    """The connection is lost, or the client takes its answer too slowly."""


class Connection:
    """Answers the requests that come on a stream."""

    __slots__ = (
        "_answered",
        "_began",
        "_body_piece",
        "_body_waited",
        "_early",
        "_is_new",
        "_may_ask",
        "_parser",
        "_scope",
        "_seconds",
        "_silent_since",
        "_socket",
        "_stream",
        "site",
    )

    #: The classes that read requests, and that answer one.
    parser: type[Parser] = Parser
    answer: type[Answer] = Answer

    def __init__(self, site: Site, stream: Stream) -> None:
        self.site = site
        self._stream = stream
        self._socket: Any = stream.socket
        self._parser = self.parser(site, stream.peer)
        #: Cancelled while the connection is idle, so that _patience() computes the time left anew.
        self._scope = CancelScope()
        self._early = b""  # data that has come just before the scope was cancelled
        self._seconds = -1.0  # the socket's timeout, see _wait_for()
        self._is_new = True  # there was no answer yet
        self._silent_since = now()  # the end of the last answer, or the beginning
        self._may_ask = False  # "100 Continue" may be sent, to ask for a body
        self._body_piece = 0  # bytes of the body when its time last began anew
        self._body_waited = 0.0  # seconds of that time that have been used
        self._answered: Request | None = None  # the request that is being answered
        self._began = 0.0  # when the answer to it began, by time.monotonic()

    # From the first request to the last

    def serve(self) -> None:
        """Serve requests until one side ends the connection."""
        while True:
            with self._scope:
                self._serve_requests()
            if not self._scope.cancelled():
                break
            self._scope = CancelScope()  # the next request has less time to begin, or it has begun
            if self._early and self.site.slots.wanted:
                self.site.slots.end_one()  # this one goes on, so another one gives way

    def _serve_requests(self) -> None:
        try:
            while (request := self._next()) is not None:
                if not self._handle(request):
                    break
        except Refused as refused:
            self.site.note_refused(refused, self._stream.peer)
            self._refuse(refused)
        except Gone as gone:
            self.site.note_lost(gone, self._stream.peer)

    def answering(self) -> tuple[str, str, float] | None:
        """Method, path and time.monotonic() at the start of the request that is being answered.

        None between two requests. Any thread may call this.
        """
        request, began = self._answered, self._began
        if request is None:
            return None
        method, target = request.environ.get("REQUEST_METHOD"), request.environ.get("RAW_URI")
        if type(method) is not str or type(target) is not str:  # the application has changed them
            return "?", "?", began
        return method, target.partition("?")[0], began  # a query may hold secrets

    def _wait_for(self, seconds: float) -> None:
        """Set the socket's timeout, which takes a system call."""
        self._socket.settimeout(seconds)
        self._seconds = seconds

    # Reading

    def _next(self) -> Request | None:
        """The next request; None when there are no more."""
        parser = self._parser
        ready = parser.ready
        if not ready:
            parser.go_on()
        if not ready and parser.error is None:
            if not parser.is_in_head:
                data = self._wait_for_client()
                if not data:
                    return None
                parser.feed(data)
            if not ready:
                self._receive_head()
        if ready:
            return ready.popleft()
        if parser.error is not None:
            raise parser.error
        return None

    def _wait_for_client(self) -> bytes | None:
        """The first bytes of a request, or of several; none if the client is gone or too late."""
        data, self._early = self._early, b""
        if data:
            return data
        site, sock, slots = self.site, self._socket, self.site.slots
        seconds = site.keep_alive
        if self._is_new or site.is_ending or slots.wanted:
            seconds = self._patience()
        if not self._is_new:
            slots.idle[self] = self._scope
        try:
            if 0 < seconds < self._seconds:  # less work than two _wait_for() a request
                with move_on_after(seconds):
                    data = sock.recv(site.first_piece)
            else:
                if seconds != self._seconds:
                    self._wait_for(seconds)
                data = sock.recv(site.first_piece)
        except OSError:  # too late, or lost, between two requests: no answer is missing
            return None
        finally:
            slots.idle.pop(self, None)
        if data and self._scope.cancel_called:
            self._early = data
            check_cancelled()
        if data and not seconds and slots.wanted:
            slots.end_one()  # this connection goes on, so another one gives way
        return data

    def _patience(self) -> float:
        """How many more seconds the client may take before it begins with its next request."""
        site = self.site
        seconds = site.keep_alive
        if self._is_new:
            seconds = site.first_timeout
        elif site.slots.wanted:
            return 0
        elif site.is_ending:
            seconds = min(seconds, LAST_SILENCE)
        return max(0, self._silent_since + seconds - now())

    def _receive_head(self) -> None:
        """Receive the rest of the head, all of it in time, however small the pieces are."""
        parser, sock = self._parser, self._socket
        seconds = self.site.header_timeout
        end = now() + seconds
        while not parser.ready and parser.error is None:
            left = end - now()
            try:
                if left <= 0:
                    raise TimeoutError
                self._wait_for(left)
                data = sock.recv(PIECE)
            except TimeoutError:
                raise Refused(TOO_LATE, f"no complete head within {seconds:g} seconds") from None
            except OSError as exc:
                raise Gone(str(exc)) from exc
            if not data:
                return
            parser.feed(data)

    def receive_body(self, request: Request) -> None:
        """Wait for more of the body. ``Refused`` if the body is late, malformed or cut off."""
        if self._parser.error is not None:
            raise self._parser.error
        if request.expects and self._may_ask and not request.size:
            self.send(CONTINUE)
        self._may_ask = False
        before = now()
        try:
            self._wait_for(self._body_seconds_left(request))
            data = self._socket.recv(PIECE)
        except TimeoutError:
            seconds = self.site.body_timeout
            raise Refused(TOO_LATE, f"the body did not come within {seconds:g} seconds") from None
        except OSError as exc:
            raise Refused(BAD, f"the connection was lost in the body: {exc}") from exc
        self._body_waited += now() - before
        if not data:
            raise Refused(BAD, "the body has ended too early")
        self._parser.feed(data)

    def _body_seconds_left(self, request: Request) -> float:
        """The time left for 64 KiB of the body, without the time that the application has taken."""
        if request.size - self._body_piece >= PIECE:
            self._body_piece = request.size
            self._body_waited = 0.0
        left = self.site.body_timeout - self._body_waited
        if left <= 0:
            raise TimeoutError
        return left

    # Answering

    def _handle(self, request: Request) -> bool:
        """Answer a request. Returns whether the connection goes on."""
        body = None
        if request.complete:
            chunks = request.chunks
            request.environ["wsgi.input"] = io.BytesIO(b"".join(chunks) if chunks else b"")
        else:
            body = self._begin_body(request)
        answer = self.answer(self, request)
        self._began = monotonic()
        self._answered = request
        try:
            copy_context().run(answer.send, self.site.app)
        except Gone:
            raise
        except Refused as refused:
            self.site.note_refused(refused, self._stream.peer)
            self._break_off(refused, answer, request)
            return False
        except Exception as exc:
            self.site.report(exc, request.environ, self._stream.peer)
            failed = Refused("500 Internal Server Error", "the application has failed")
            self._break_off(failed, answer, request)
            return False
        finally:
            self._answered = None
            if body is not None:
                body.end()
        if not answer.closes and (request.complete or self._drain(request)):
            self._is_new = False
            self._silent_since = now()
            return True
        if request.keep_alive or not request.complete:
            self._linger()
        return False

    def _begin_body(self, request: Request) -> Body:
        """Make ``wsgi.input`` for a body that has not come as a whole."""
        self._may_ask = True
        self._body_piece = 0
        self._body_waited = 0.0
        body = request.environ["wsgi.input"] = Body(self, request)
        return body

    def _break_off(self, refused: Refused, answer: Answer, request: Request) -> None:
        """Answer with the error if nothing was sent; else leave the answer visibly incomplete."""
        if not answer.began:
            self._refuse(refused, request.is_head)
        elif answer.ends_by_closing:
            self._abort()

    def may_go_on(self, request: Request) -> bool:
        """Whether the connection may be kept for another request, as known before the answer."""
        if self.site.is_ending or self.site.slots.wanted:
            return False
        if request.complete:
            return True
        if self._parser.error is not None:
            return False
        if request.expects and self._may_ask and not request.size:
            return False  # nobody knows whether the body will come
        return request.length is None or request.length - request.size <= DRAINED

    def _drain(self, request: Request) -> bool:
        """Read what the application has left of the body. Returns whether the body is complete."""
        limit = request.size + DRAINED
        self._may_ask = False
        try:
            while not request.complete and request.size <= limit:
                request.chunks.clear()
                self.receive_body(request)
        except Refused:
            return False
        return request.complete

    def _refuse(self, refused: Refused, is_head: bool = False) -> None:
        """Send an answer that says what is wrong, the last one on this connection."""
        text = f"{refused.status}: {refused.why}\n".encode("latin-1", "replace")
        head = (
            f"HTTP/1.1 {refused.status}\r\n{self.site.stamp(False, False)}"
            f"Content-Type: text/plain; charset=iso-8859-1\r\nContent-Length: {len(text)}\r\n"
            "Connection: close\r\n\r\n"
        ).encode("latin-1")
        with contextlib.suppress(Gone):
            self.send(head if is_head else head + text)
            self._linger()

    # Writing

    def send(self, data: bytes) -> None:
        """Send all of the data, each 64 KiB within ``write_timeout``."""
        sock = self._socket
        seconds = self.site.write_timeout
        if seconds != self._seconds:
            self._wait_for(seconds)
        self._may_ask = False
        try:
            if len(data) <= PIECE:
                sock.sendall(data)
            else:
                view = memoryview(data)
                for start in range(0, len(view), PIECE):
                    sock.sendall(view[start : start + PIECE])
        except TimeoutError as exc:
            raise Gone(f"the client did not take 64 KiB within {seconds:g} seconds") from exc
        except OSError as exc:
            raise Gone(str(exc)) from exc

    def send_all(self, head: bytes, body: bytes, tail: bytes = b"") -> None:
        """Send all three together, but without copying a long body: a copy would live for long."""
        if len(body) <= PIECE:
            return self.send(head + body + tail if tail else head + body)
        if head:
            self.send(head)
        self.send(body)
        return self.send(tail) if tail else None

    def send_file(self, file: BinaryIO, count: int) -> None:
        """Send ``count`` bytes of a file, from its position on."""
        self._wait_for(self.site.write_timeout)
        offset = file.tell()
        try:
            sent = self._socket.sendfile(file, offset, count)
        except OSError as exc:
            raise Gone(str(exc)) from exc
        if sent < count:
            raise ValueError(f"the file has {count - sent} bytes less than it had")

    # The end

    def _abort(self) -> None:
        """Have close() reset the connection, so that the client sees that data is missing."""
        with contextlib.suppress(OSError):
            at_once = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)

    def _linger(self) -> None:
        """End the writing, then read and drop data for a while; see LINGERING."""
        sock = self._socket
        end = now() + LINGERING_SECONDS
        left = LINGERING
        with contextlib.suppress(OSError):
            self._stream.close_write()
            while left > 0 and (seconds := end - now()) > 0:
                self._wait_for(seconds)
                data = sock.recv(PIECE)
                if not data:
                    return
                left -= len(data)
