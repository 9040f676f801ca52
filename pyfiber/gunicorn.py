"""A worker for gunicorn that serves each connection in a fiber.

    gunicorn -k pyfiber.gunicorn.Worker app:app

The application is ordinary blocking WSGI code, with the libraries it always had:
``pyfiber.patch()`` is called, in gunicorn's main process, before the application is imported. At
most ``worker_connections`` connections are served at a time by each worker. gunicorn's own settings
hold: ``keepalive``, ``graceful_timeout``, ``timeout``, ``max_requests``, TLS, access logs, hooks.

Needs the extra ``gunicorn``: ``pip install pyfiber[gunicorn]``.
"""

from __future__ import annotations

import errno
import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyfiber import (
    Cancelled,
    Event,
    Fiber,
    Semaphore,
    TaskGroup,
    _patch,
    move_on_after,
    run,
    sleep,
    spawn,
)
from pyfiber.socket import socket

try:
    from gunicorn.sock import ssl_wrap_socket
    from gunicorn.workers.base_async import AsyncWorker
except ImportError as exc:
    raise ImportError(
        "pyfiber.gunicorn needs gunicorn: pip install pyfiber[gunicorn]", name=exc.name
    ) from exc

if TYPE_CHECKING:
    from types import FrameType

#: Seconds between two signs of life to gunicorn's main process.
_HEARTBEAT: Final = 1.0

#: Seconds until the next accept() when the process or the system has too little of something.
_PAUSE: Final = 0.1

#: Errors of accept() that are those of one connection, which is gone.
_GONE: Final = frozenset({errno.ECONNABORTED, errno.EPROTO, errno.EPERM})


class Worker(AsyncWorker):  # type: ignore[misc]
    """gunicorn's asynchronous worker, whose connections have a fiber each.

    A SIGTERM, ``max_requests`` and a reload stop accepting, and give the requests that are being
    served ``graceful_timeout`` seconds; then their fibers are cancelled. SIGINT and SIGQUIT cancel
    them at once. A keep-alive connection that is silent for ``keepalive`` seconds is closed.
    """

    @classmethod
    def setup(cls) -> None:
        """What gunicorn's main process calls, before it imports the application."""
        _patch.patch()

    def init_process(self) -> None:
        """In the new worker process: up to its end."""
        self._stopping = Event()
        self._in_a_hurry = False
        super().init_process()

    def run(self) -> None:
        """Serve until somebody ends this worker."""
        run(self._serve)

    # The fiber that keeps the worker alive

    def _serve(self) -> None:
        self.sockets = [_native(listener) for listener in self.sockets]
        slots = Semaphore(self.worker_connections)
        self._connections: set[Fiber[None]] = set()
        self._idle = Event()
        with TaskGroup() as accepting:
            for listener in self.sockets:
                accepting.spawn(self._accept_all, listener, slots)
            self._until_stopped()
            accepting.cancel("the worker is being stopped")
        for listener in self.sockets:
            listener.close()
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
        with move_on_after(self.cfg.graceful_timeout):
            while self._connections and not self._in_a_hurry:
                self.notify()
                self._idle.clear()
                self._idle.wait(_HEARTBEAT)

    def notify(self) -> None:
        """Tell the main process that this one lives; end if that has ended."""
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

    # Signals: their handlers run in whatever fiber runs, so they only say what is to be done

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """SIGTERM: an orderly end."""
        self._stop(in_a_hurry=False)

    def handle_quit(self, sig: int, frame: FrameType | None) -> None:
        """SIGINT and SIGQUIT: a quick end."""
        self._stop(in_a_hurry=True)
        spawn(self.cfg.worker_int, self)

    def handle_usr1(self, sig: int, frame: FrameType | None) -> None:
        """SIGUSR1: open the log files again."""
        spawn(super().handle_usr1, sig, frame)

    # Connections

    def _accept_all(self, listener: Any, slots: Semaphore) -> None:
        while True:
            slots.acquire()
            try:
                client, address = self._accept(listener)
            except BaseException:
                slots.release()
                raise
            fiber = spawn(self.handle, listener, client, address)
            self._connections.add(fiber)
            fiber.add_done_callback(lambda fiber: self._ended(fiber, slots))

    def _accept(self, listener: Any) -> tuple[Any, Any]:
        while True:
            try:
                return listener.accept()  # type: ignore[no-any-return]
            except OSError as exc:
                if exc.errno not in _GONE:
                    self.log.error("%s cannot accept connections: %s", self, exc)
                    sleep(_PAUSE)

    def _ended(self, fiber: Fiber[None], slots: Semaphore) -> None:
        self._connections.discard(fiber)
        slots.release()
        if not self._connections:
            self._idle.set()

    def handle(self, listener: Any, client: Any, address: Any) -> None:
        """All requests of one connection, in a fiber of its own."""
        if self.cfg.is_ssl:
            client = self._with_tls(client)
            if client is None:
                return
        super().handle(listener, client, address)

    def _with_tls(self, client: Any) -> Any:
        try:
            return ssl_wrap_socket(client, self.cfg)
        except ssl.SSLError as exc:
            self.log.debug("The TLS handshake failed: %s", exc)
        except OSError as exc:
            self.log.debug("The connection was lost in the TLS handshake: %s", exc)
        except BaseException:
            client.close()
            raise
        client.close()
        return None

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> bool:
        """One request; False if the application took the connection over."""
        try:
            return bool(super().handle_request(listener_name, req, sock, addr))
        except Cancelled:
            raise StopIteration from None  # what ends the connection, without an error's answer
        finally:
            if not self.alive:  # it was the last one of max_requests
                self._stopping.set()

    @contextmanager
    def timeout_ctx(self) -> Iterator[None]:
        """For the head of the next request, from the end of the last one on."""
        with move_on_after(self.cfg.keepalive):
            yield


def _native(listener: Any) -> Any:
    """One of pyfiber.socket for gunicorn's listening socket, whose descriptor it takes over."""
    sock = listener.sock
    ours = socket(sock.family, sock.type, sock.proto, sock.detach())
    ours._set_turns()
    return ours
