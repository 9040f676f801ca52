"""A server: a fiber for each connection, a limit, and an orderly end."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias

from pyfiber._engine import (
    CancelScope,
    Event,
    Fiber,
    FiberError,
    TaskGroup,
    _check_function,
    _load,
    move_on_after,
    shield,
    timeout,
)
from pyfiber.net._listen import BACKLOG, Listener, listen
from pyfiber.net._scarce import Scarcity, is_scarce, prepare
from pyfiber.net._slots import Slots
from pyfiber.net._stream import Stream, context_of, place

if TYPE_CHECKING:
    from logging import Logger
    from ssl import SSLContext
    from types import TracebackType

Handler: TypeAlias = Callable[[Stream], object]
OnError: TypeAlias = Callable[[Exception, Any], object]

#: Seconds that a client has for the TLS handshake, by default.
HANDSHAKE: Final = 60.0


def serve(
    handler: Handler,
    host: str,
    port: int,
    *,
    tls: SSLContext | None = None,
    limit: int | None = None,
    grace: float | None = None,
    on_error: OnError | None = None,
    handshake_timeout: float = HANDSHAKE,
    backlog: int = BACKLOG,
    reuse_port: bool = False,
) -> Server:
    """Make a Server that calls ``handler(stream)`` in a new fiber for each connection.

    The server listens from here on, and serves within its ``with`` block. The other arguments are
    those of ``Server`` and of ``listen()``.
    """
    listener = listen(host, port, backlog=backlog, reuse_port=reuse_port)
    try:
        return Server(
            handler,
            listener,
            tls=tls,
            limit=limit,
            grace=grace,
            on_error=on_error,
            handshake_timeout=handshake_timeout,
        )
    except BaseException:
        listener.close()
        raise


class Server:
    """Serves the connections of a listener, in the run and within the ``with`` block.

    The handler gets the stream, which is closed when the handler returns. An Exception that a
    handler raises ends its own connection only, and is passed to ``on_error(exception, peer)``,
    which by default logs it with the peer's address under the logger "pyfiber". Other exceptions,
    such as KeyboardInterrupt and SystemExit, end the server.

    ``tls`` is a ``pyfiber.ssl.SSLContext`` with the server's certificate. A client has
    ``handshake_timeout`` seconds, a minute by default, for the handshake, and keeps no other client
    waiting meanwhile. A handshake that fails is treated like a handler that fails. At most
    ``limit`` connections are served at a time (None: any number); others wait in the listener's
    queue. When the server runs out of descriptors or memory, that is logged once, and the server
    tries again, with pauses of up to a second. A connection that was accepted but finds no memory
    for its fiber is closed.

    When the block is left or cancelled, or after ``stop()``, nobody can connect any more. Clients
    that have connected before, and find room below the limit, are served, and the handlers get
    ``grace`` seconds; those left then are cancelled and waited for. With None they get as long as
    they take, but no time at all if the block is cancelled or fails.
    """

    def __init__(
        self,
        handler: Handler,
        listener: Listener,
        *,
        tls: SSLContext | None = None,
        limit: int | None = None,
        grace: float | None = None,
        on_error: OnError | None = None,
        handshake_timeout: float = HANDSHAKE,
    ) -> None:
        _check_function("serve()", handler)
        if limit is not None and limit < 1:
            raise ValueError("the limit must be at least 1 connection")
        if grace is not None and not grace >= 0:
            raise ValueError("grace is a number of seconds: not negative")
        if not handshake_timeout > 0:
            raise ValueError("handshake_timeout is a positive number of seconds")
        self._handler = handler
        self._listener = listener
        self._address = listener.address
        self._tls = context_of(tls, server_side=True) if tls else None
        self._slots = Slots(limit)
        self._grace = grace
        self._handshake_timeout = handshake_timeout
        self._on_error = on_error or log_failure
        prepare()
        self._scarcity = Scarcity(self._log_scarcity, self._log_end_of_scarcity)
        self._streams: set[Stream] = set()
        self._group = TaskGroup()  # of _keep_handlers() and _accept_all()
        self._accepting = CancelScope()
        self._patience = CancelScope()
        self._handlers: TaskGroup | None = None
        self._stopped = Event()  # the server accepts no new connections any more
        self._accepted = Event()  # the connections that were there before are accepted
        self._idle = Event()  # set when the last connection ends
        self._entered = False
        self._in_a_hurry = False

    @property
    def address(self) -> Any:
        """The address: (host, port, ...), or a path; available after the server's end, too."""
        return self._address

    @property
    def connections(self) -> int:
        """How many connections there are just now."""
        return len(self._streams)

    def stop(self) -> None:
        """Accept no more connections; ``wait()`` returns. Handlers go on, see the class."""
        self._accepting.cancel("the server was stopped")
        self._stopped.set()
        if not self._entered:
            self._listener.close()

    def abort(self) -> None:
        """End the server at once: the handlers are cancelled, whatever ``grace`` says."""
        self._patience.cancel("the server was aborted")
        self.stop()

    def wait(self) -> None:
        """Park until ``stop()`` is called, in a handler, say. A cancellation point."""
        self._stopped.wait()

    def __enter__(self) -> Self:
        if self._listener.fileno() < 0:
            raise FiberError("this server has ended: make another one with serve()")
        self._group.__enter__()
        self._entered = True
        ready = Event()
        self._group.spawn(self._keep_handlers, ready)
        self._group.spawn(self._accept_all, ready)
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._in_a_hurry = self._in_a_hurry or exc is not None
        self.stop()
        try:
            return self._group.__exit__(exc_type, exc, traceback)
        finally:
            self._listener.close()  # the fiber that accepts may have been cancelled before it ran

    # The fiber that accepts

    def _accept_all(self, ready: Event) -> None:
        try:
            ready.wait()  # also if the server is stopped meanwhile: connections wait already
            with self._accepting:
                self._accept_until_stopped()
            self._accept_the_rest()
        except BaseException:
            self._in_a_hurry = True
            raise
        finally:
            self._listener.close()
            self._stopped.set()
            self._accepted.set()

    def _accept_until_stopped(self) -> None:
        while True:
            self._slots.take(self._listener.socket)
            try:
                stream = self._accept()
            except BaseException:
                self._slots.release()
                raise
            self._begin(stream)

    def _accept_the_rest(self) -> None:
        """Accept connections that the system has made already: closing the listener resets them."""
        self._listener.socket.settimeout(0)
        for _ in range(BACKLOG):
            if self._is_in_a_hurry() or not self._slots.take_free():
                return
            try:
                stream = self._listener.accept()
            except (OSError, MemoryError):
                self._slots.release()
                return
            self._begin(stream)

    def _accept(self) -> Stream:
        while True:
            self._scarcity.wait()
            try:
                return self._listener.accept()
            except (OSError, MemoryError) as exc:
                if not is_scarce(exc):
                    raise
                self._slots.end_one()
                self._scarcity.note(exc)

    def _begin(self, stream: Stream) -> None:
        """Start the fiber of a connection. There must be no wait between accept() and this call."""
        assert self._handlers is not None
        self._streams.add(stream)
        try:
            fiber = Fiber(self._serve, (stream,))
            self._handlers._spawn_watched(fiber, partial(self._look_after, stream))
        except MemoryError as exc:
            self._end(stream)
            self._scarcity.note(exc)
        except BaseException:
            self._end(stream)
            raise

    def _log_scarcity(self, exc: BaseException) -> None:
        text = str(exc) or type(exc).__name__
        _logger().error("%r cannot accept connections, which wait until it can: %s", self, text)

    def _log_end_of_scarcity(self) -> None:
        _logger().warning("%r accepts connections again", self)

    # The fiber that the handlers belong to

    def _keep_handlers(self, ready: Event) -> None:
        """Run the group of the handlers, which have their seconds of grace.

        The shield is there because cancelling the block must not cancel the handlers.
        """
        with shield():
            try:
                with TaskGroup() as self._handlers:
                    ready.set()
                    self._accepted.wait()
                    self._give_grace()
                    self._handlers.cancel("the server has ended")
            finally:
                self._accepting.cancel("the server has failed")
                for stream in list(self._streams):
                    self._end(stream)  # the fiber was cancelled before it ran

    def _give_grace(self) -> None:
        if self._is_in_a_hurry():
            return
        with self._patience, move_on_after(self._grace):
            while True:
                self._idle.clear()  # before the check: handlers may end on other threads
                if not self._streams:
                    return
                self._idle.wait()

    def _is_in_a_hurry(self) -> bool:
        return self._patience.cancel_called or (self._grace is None and self._in_a_hurry)

    # The fiber of a connection

    def _look_after(self, stream: Stream, fiber: Fiber[Any]) -> None:
        """Called when the fiber is over, or could not begin for lack of memory for its stack."""
        if fiber.cancelled():
            return
        exc = fiber.exception()
        if isinstance(exc, MemoryError) and stream in self._streams:
            self._scarcity.note(exc)
            self._end(stream)
        elif exc is not None:
            raise exc  # which ends the server

    def _serve(self, stream: Stream) -> None:
        if self._scarcity.lasts:
            self._scarcity.relax()
        complete = False
        try:
            if self._tls is not None:
                self._shake_hands(stream, self._tls)
            self._handler(stream)
            complete = True
        except Exception as exc:
            self._report(exc, stream.peer)
        finally:
            self._end(stream, complete)

    def _shake_hands(self, stream: Stream, context: SSLContext) -> None:
        try:
            with timeout(self._handshake_timeout):
                stream.start_tls(context, server_side=True)
        except TimeoutError as exc:
            text = f"no TLS handshake within {self._handshake_timeout:g} seconds"
            raise ConnectionAbortedError(errno.ECONNABORTED, text) from exc

    def _report(self, exc: Exception, peer: Any) -> None:
        try:
            self._on_error(exc, peer)
        except Exception as failure:
            failure.__context__ = exc
            log_failure(failure, peer)

    def _end(self, stream: Stream, complete: bool = False) -> None:
        try:
            self._streams.remove(stream)
        except KeyError:
            return  # the connection has ended already
        stream._close(complete)
        self._slots.release()
        if not self._streams:
            self._idle.set()

    def __repr__(self) -> str:
        state = "ended" if self._listener.fileno() < 0 else f"{self.connections} connections"
        return f"<pyfiber.net.Server at {place(self._address)}, {state}>"


def log_failure(exc: Exception, peer: Any) -> None:
    """Log how a handler failed; in one line if the peer has broken the connection."""
    leaves = list(_leaves(exc))
    if all(isinstance(e, ConnectionError) or type(e).__module__ == "ssl" for e in leaves):
        _logger().warning("the connection of %s was lost: %s", place(peer), leaves[0])
    else:
        _logger().error("the handler of the connection of %s failed", place(peer), exc_info=exc)


def _leaves(exc: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, such as that of fibers which used a connection together."""
    if isinstance(exc, BaseExceptionGroup):
        for each in exc.exceptions:
            yield from _leaves(each)
    else:
        yield exc


def _logger() -> Logger:
    _load("logging")
    import logging

    return logging.getLogger("pyfiber")
