"""The worker: what a process of gunicorn does from its first to its last request."""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from pyfiber import (
    Cancelled,
    Event,
    Fiber,
    TaskGroup,
    _patch,
    current,
    move_on_after,
    now,
    run,
    service,
    spawn,
    timeout,
    yield_now,
)
from pyfiber._engine import _load
from pyfiber._requests import served_by_this_fiber
from pyfiber.gunicorn._needs import own_code
from pyfiber.net import Stream
from pyfiber.net._scarce import Scarcity, prepare
from pyfiber.net._server import HANDSHAKE
from pyfiber.net._slots import LAST_SILENCE, Slots
from pyfiber.socket import socket

try:
    from gunicorn.sock import ssl_context
    from gunicorn.workers.base_async import AsyncWorker
except ImportError as exc:
    raise ImportError(
        'pyfiber.gunicorn needs gunicorn: pip install "pyfiber-engine[gunicorn]"', name=exc.name
    ) from exc

if TYPE_CHECKING:
    from types import FrameType

    from pyfiber.gunicorn._site import GunicornSite

#: Seconds between two signs of life to gunicorn's main process.
_HEARTBEAT: Final = 1.0

#: The last part of ``graceful_timeout``, at most a heartbeat long, in which requests that have not
#: ended are cancelled. Afterwards the main process kills the worker, so that no ``finally`` block
#: would run.
_ENDING: Final = 0.2

#: Seconds that a new connection has for the head of its first request.
_HEAD: Final = 15.0

#: Errors of accept() that mean that one connection is lost.
_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM})


class Worker(AsyncWorker):  # type: ignore[misc]
    """gunicorn's asynchronous worker, whose connections have a fiber each.

    After a SIGTERM, after ``max_requests`` requests and at a reload the worker accepts no more
    connections, and gives the requests that are being served ``graceful_timeout`` seconds; then
    their fibers are cancelled. SIGINT and SIGQUIT cancel them at once. A keep-alive connection that
    is silent for ``keepalive`` seconds is closed.
    """

    sockets: list[Any]

    @classmethod
    def setup(cls) -> None:
        """Patch the standard library; the main process calls this before it imports the app."""
        _patch.patch()

    def init_process(self) -> None:
        """Run the worker in its new process, up to its end."""
        self._stopping = Event()
        self._in_a_hurry = False
        self.aborts = False
        super().init_process()

    def run(self) -> None:
        """Serve until somebody ends this worker."""
        run(self._serve)

    # The fiber that keeps the worker alive

    def _serve(self) -> None:
        """Serve, between the functions that pyfiber.service has for the start and for the end."""
        self.booted = False  # a worker that cannot start stops gunicorn, which tries no further one
        with service.running():
            self.booted = True
            self._serve_connections()
            left = max(self._end - now(), _HEARTBEAT)
            service.end_others("the worker has ended", left, self.notify)

    def _serve_connections(self) -> None:
        self.sockets = [_native(listener) for listener in self.sockets]
        self._tls = ssl_context(self.cfg) if self.cfg.is_ssl else None
        self._slots = Slots(self.worker_connections)
        self._connections: set[Fiber[None]] = set()
        self._kept: set[Fiber[Any]] = set()  # served by gunicorn's code, and have had an answer
        self._sites: list[GunicornSite] = []
        self._idle = Event()
        prepare()
        self._scarcity = Scarcity(self._log_scarcity, self._log_end_of_scarcity)
        talks = self._talks()
        with TaskGroup() as accepting:
            for listener, talk in zip(self.sockets, talks, strict=True):
                accepting.spawn(self._accept_all, listener, talk)
            self._until_stopped()
            accepting.cancel("the worker is being stopped")
        service.stop()
        self._end = now() + self.cfg.graceful_timeout
        for listener in self.sockets:
            listener.close()
        self._end_connections()

    def _talks(self) -> list[Callable[[Any, Any], None]]:
        """For each listener a function that serves a connection, given its socket and address."""
        if (reason := self._own_code()) is not None:
            self.log.info("HTTP is served by gunicorn's own code, because of %s", reason)
            return [partial(self.handle, listener) for listener in self.sockets]
        ours: Any = _load("pyfiber.gunicorn._site")  # this module needs httptools
        self._sites = [ours.GunicornSite(self, sock.getsockname()) for sock in self.sockets]
        for site in self._sites:
            site.slots = self._slots
        return [partial(self._talk, site) for site in self._sites]

    def _own_code(self) -> str | None:
        """What needs gunicorn's own code for HTTP; None if nothing does."""
        return own_code(self.cfg, type(self), Worker)

    def _end_connections(self) -> None:
        for site in self._sites:
            site.is_ending = True
        self._slots.hasten(self.cfg.keepalive)
        if not self._in_a_hurry:
            self._give_grace()
        if self._connections and not self._in_a_hurry:
            self.log.warning("Worker graceful timeout (pid:%s)", self.pid)
        for fiber in list(self._connections):
            fiber.cancel("the worker has ended")
        for fiber in list(self._connections):
            fiber.join(_HEARTBEAT)

    def _until_stopped(self) -> None:
        while self.alive:
            self.notify()
            self._stopping.wait(_HEARTBEAT)

    def _give_grace(self) -> None:
        seconds = self.cfg.graceful_timeout
        with move_on_after(seconds - min(_ENDING * seconds, _HEARTBEAT)):
            while self._connections and not self._in_a_hurry:
                self.notify()
                self._idle.clear()
                self._idle.wait(_HEARTBEAT)

    def notify(self) -> None:
        """Give the main process a sign of life; stop if the main process has ended."""
        super().notify()
        if self.ppid != os.getppid():
            self.log.info("Parent changed, shutting down: %s", self)
            self._stop(in_a_hurry=False)

    def _stop(self, *, in_a_hurry: bool) -> None:
        self.alive = False
        self._in_a_hurry = self._in_a_hurry or in_a_hurry
        self._stopping.set()
        if in_a_hurry and hasattr(self, "_idle"):
            self._idle.set()

    # Signals: the handlers run in whichever fiber runs, so they only note what is to be done

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM: end in order."""
        self._stop(in_a_hurry=False)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT and SIGQUIT: end quickly."""
        self._stop(in_a_hurry=True)
        spawn(self.cfg.worker_int, self)

    def handle_usr1(self, sig: int, frame: FrameType | None) -> None:
        """SIGUSR1: open the log files again."""
        spawn(super().handle_usr1, sig, frame)

    def handle_abort(self, sig: int, frame: FrameType | None) -> None:
        """SIGABRT: the main process has waited for a sign of life for too long."""
        self.aborts = True
        super().handle_abort(sig, frame)

    # Connections

    def _accept_all(self, listener: Any, talk: Callable[[Any, Any], None]) -> None:
        while True:
            self._slots.take(listener)
            try:
                client, address = self._accept(listener)
            except BaseException:
                self._slots.release()
                raise
            try:
                fiber = spawn(talk, client, address)
            except MemoryError as exc:
                self._scarcity.note(exc)
                client.close()
                self._slots.release()
                continue
            self._connections.add(fiber)
            fiber.add_done_callback(self._ended)
            yield_now()  # serve it, and leave the next one to another worker, if that is idle

    def _accept(self, listener: Any) -> tuple[Any, Any]:
        while True:
            self._scarcity.wait()
            try:
                found = listener.accept()
            except OSError as exc:
                if exc.errno not in _GONE:
                    self._slots.end_one()
                    self._scarcity.note(exc)
            except MemoryError as exc:
                self._scarcity.note(exc)
            else:
                self._scarcity.relax()
                return found  # type: ignore[no-any-return]

    def _log_scarcity(self, exc: BaseException) -> None:
        self.log.error("%s cannot accept connections: %s", self, str(exc) or type(exc).__name__)

    def _log_end_of_scarcity(self) -> None:
        self.log.warning("%s accepts connections again", self)

    def _ended(self, fiber: Fiber[None]) -> None:
        exc = None if fiber.cancelled() else fiber.exception()
        if isinstance(exc, MemoryError):
            self._scarcity.note(exc)  # without memory the fiber has not begun
        elif isinstance(exc, Exception):
            self.log.error("Error processing a connection", exc_info=exc)
        self._connections.discard(fiber)
        self._kept.discard(fiber)
        self._slots.release()
        if not self._connections:
            self._idle.set()

    def _with_tls(self, client: Any, context: ssl.SSLContext) -> Any:
        """Do the TLS handshake, and return the socket with TLS; None if the handshake fails."""
        try:
            with timeout(HANDSHAKE):
                client = context.wrap_socket(
                    client,
                    server_side=True,
                    suppress_ragged_eofs=self.cfg.suppress_ragged_eofs,
                    do_handshake_on_connect=False,
                )
                client.do_handshake()
        except OSError as exc:
            self.log.debug("The TLS handshake failed: %s", exc)
            client.close()
            return None
        except BaseException:
            client.close()
            raise
        return client

    # Connections whose HTTP is pyfiber.wsgi's

    def _talk(self, site: GunicornSite, client: Any, address: Any) -> None:
        """Serve all requests of one connection. Each connection has its own fiber."""
        if self._tls is not None:
            client = self._with_tls(client, self._tls)
            if client is None:
                return
        stream = Stream(client, address)
        complete = False
        try:
            site.talk(stream)
            complete = True
        except OSError as exc:
            self.log.debug("The connection was lost: %s", exc)
        except Exception:
            self.log.exception("Error processing a connection")
        finally:
            stream._close(complete)

    def end_soon(self) -> None:
        """Stop the worker: it has begun the last of max_requests requests."""
        if self.alive:
            self.log.info("Autorestarting worker after current request.")
            self._stop(in_a_hurry=False)
            for site in self._sites:
                site.is_ending = True

    # Connections whose HTTP is gunicorn's

    def handle(self, listener: Any, client: Any, address: Any) -> None:
        """Serve all requests of one connection. Each connection has its own fiber."""
        if self._tls is not None:
            client = self._with_tls(client, self._tls)
            if client is None:
                return
        super().handle(listener, client, address)

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> bool:
        """Serve one request. False if the application took the connection over."""
        if self._slots.wanted:
            req.force_close()
        try:
            with served_by_this_fiber(_Answering(req)):
                return bool(super().handle_request(listener_name, req, sock, addr))
        except Cancelled:
            raise StopIteration from None  # ends the connection without an answer for the error
        finally:
            self._kept.add(current())
            if not self.alive:  # this was the last one of max_requests
                self._stopping.set()

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:
        """Limit the time for the head of the next request, from the end of the last one on."""
        seconds, idle, fiber = self.cfg.keepalive, self._slots.idle, current()
        if fiber not in self._kept:
            seconds = max(seconds, _HEAD)
        elif self._slots.hastened:
            seconds = min(seconds, LAST_SILENCE)
        with move_on_after(seconds) as scope:
            if fiber in self._kept:
                idle[fiber] = scope
            try:
                yield
            finally:
                idle.pop(fiber, None)


class _Answering:
    """A request that gunicorn's code serves, as pyfiber's debugging tools show it."""

    def __init__(self, request: Any) -> None:
        self._shown = str(request.method), str(request.path), monotonic()

    def answering(self) -> tuple[str, str, float]:
        """Method and path of the request, and when it began, by time.monotonic()."""
        return self._shown


class PlainWorker(Worker):
    """A Worker whose HTTP is always read and written by gunicorn's own code."""

    def _own_code(self) -> str:
        return "PlainWorker"


class _Listener(socket):
    """A listener that has its address after close(), too: gunicorn's code asks for it anytime."""

    def __init__(self, family: int, kind: int, proto: int, fileno: int) -> None:
        super().__init__(family, kind, proto, fileno)
        self._name = super().getsockname()

    def getsockname(self) -> Any:
        """The address."""
        return self._name


def _native(listener: Any) -> Any:
    """Make a socket of pyfiber's that takes over the descriptor of gunicorn's listening socket."""
    sock = listener.sock
    ours = _Listener(sock.family, sock.type, sock.proto, sock.detach())
    ours._set_turns()  # type: ignore[attr-defined]
    return ours
