"""The server: a site at an address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from pyfiber import net
from pyfiber.net._listen import BACKLOG
from pyfiber.net._server import HANDSHAKE
from pyfiber.wsgi._site import Site

if TYPE_CHECKING:
    from ssl import SSLContext
    from typing import Unpack
    from wsgiref.types import WSGIApplication


class SiteOptions(TypedDict, total=False):
    """The options of ``Server`` that are about requests."""

    max_header: int
    max_fields: int
    max_body: int
    header_timeout: float
    body_timeout: float
    write_timeout: float
    keep_alive: float
    script_name: str
    environ: dict[str, Any] | None


class Options(SiteOptions, total=False):
    """The options of ``serve()``, ``serve_unix()`` and ``Server``; see ``Server``."""

    tls: SSLContext | None
    limit: int | None
    grace: float | None
    on_error: net._server.OnError | None
    handshake_timeout: float


def serve(
    app: WSGIApplication,
    host: str,
    port: int,
    *,
    backlog: int = BACKLOG,
    reuse_port: bool = False,
    **options: Unpack[Options],
) -> Server:
    """Make a Server that calls the WSGI application in a fiber for each connection.

    The server listens at this address from here on, and serves within its ``with`` block, in a
    run::

        with wsgi.serve(app, "127.0.0.1", 8000, grace=10) as server:
            server.wait()

    ``backlog`` and ``reuse_port`` are those of ``pyfiber.net.listen()``; the other options are
    those of ``Server``.
    """
    return _on(net.listen(host, port, backlog=backlog, reuse_port=reuse_port), app, options)


def serve_unix(
    app: WSGIApplication,
    path: str | bytes,
    *,
    backlog: int = BACKLOG,
    mode: int = 0o600,
    **options: Unpack[Options],
) -> Server:
    """Do what ``serve()`` does, at a Unix socket; ``mode`` says who may connect.

    ``backlog`` and ``mode`` are those of ``pyfiber.net.listen_unix()``.
    """
    return _on(net.listen_unix(path, backlog=backlog, mode=mode), app, options)


def _on(listener: net.Listener, app: WSGIApplication, options: Options) -> Server:
    try:
        return Server(app, listener, **options)
    except BaseException:
        listener.close()
        raise


class Server(net.Server):
    """Serves a WSGI application (PEP 3333) to the connections of a listener.

    The class is a ``pyfiber.net.Server``, with ``address``, ``connections``, ``wait()`` and
    ``stop()``; that class describes ``tls``, ``limit``, ``grace``, ``on_error`` and
    ``handshake_timeout``. At most 1,000 connections are served at a time unless ``limit`` says
    otherwise; idle ones give way to clients that wait for a place. ``on_error`` is for errors
    outside of the application. An exception of the application is answered with status 500 if
    nothing has been sent, and logged under the logger "pyfiber".

    max_header: bytes of a request's head (also of its first line alone)
    max_fields: fields of a head
    max_body: bytes of a body
    header_timeout: seconds for the head, once it has begun
    body_timeout: seconds for each 64 KiB of a body, and for the last bytes of it
    write_timeout: seconds that the client may take for each 64 KiB of an answer
    keep_alive: seconds that a client may be silent before the next request; before the first one,
    ``header_timeout`` if that is more
    script_name: the application's place: the path that all its URLs begin with
    environ: more keys for the environ of each request
    """

    def __init__(
        self,
        app: WSGIApplication,
        listener: net.Listener,
        *,
        tls: SSLContext | None = None,
        limit: int | None = 1000,
        grace: float | None = None,
        on_error: net._server.OnError | None = None,
        handshake_timeout: float = HANDSHAKE,
        **more: Unpack[SiteOptions],
    ) -> None:
        site = self._site = Site(app, listener.address, tls=tls is not None, **more)
        super().__init__(
            site.talk,
            listener,
            tls=tls,
            limit=limit,
            grace=grace,
            on_error=on_error,
            handshake_timeout=handshake_timeout,
        )
        site.slots = self._slots

    def stop(self) -> None:
        """Accept no more connections; ``wait()`` returns.

        Connections that have been accepted are answered, also if their first request has not come
        yet. A connection that is kept alive ends after a second of silence.
        """
        self._site.end()
        super().stop()
