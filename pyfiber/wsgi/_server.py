"""The server: what it is told, and what all its connections share."""

from __future__ import annotations

import sys
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, TypedDict

from pyfiber import net
from pyfiber._engine import _load
from pyfiber.net._listen import BACKLOG
from pyfiber.net._stream import place
from pyfiber.wsgi._answer import FileWrapper
from pyfiber.wsgi._connection import Connection
from pyfiber.wsgi._parser import PIECE

if TYPE_CHECKING:
    from logging import Logger
    from ssl import SSLContext
    from typing import Unpack
    from wsgiref.types import WSGIApplication

#: What the field "Server" says.
SOFTWARE: Final = "pyfiber"


class Options(TypedDict, total=False):
    """What ``serve()``, ``serve_unix()`` and ``Server`` may be told; see ``Server``."""

    tls: SSLContext | None
    limit: int | None
    grace: float | None
    on_error: net._server.OnError | None
    max_header: int
    max_fields: int
    max_body: int
    header_timeout: float
    body_timeout: float
    write_timeout: float
    keep_alive: float
    script_name: str
    environ: dict[str, Any] | None


def serve(
    app: WSGIApplication,
    host: str,
    port: int,
    *,
    backlog: int = BACKLOG,
    reuse_port: bool = False,
    **options: Unpack[Options],
) -> Server:
    """A server that calls the WSGI application in a fiber for each connection.

    It listens at this address from here on, and serves within its ``with`` block, in a run::

        with wsgi.serve(app, "127.0.0.1", 8000, grace=10) as server:
            server.wait()

    ``backlog`` and ``reuse_port`` are those of ``pyfiber.net.listen()``; what else there is to say
    is told with ``Server``.
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
    """The same at a Unix socket; ``mode`` says who may connect."""
    return _on(net.listen_unix(path, backlog=backlog, mode=mode), app, options)


def _on(listener: net.Listener, app: WSGIApplication, options: Options) -> Server:
    try:
        return Server(app, listener, **options)
    except BaseException:
        listener.close()
        raise


class Server(net.Server):
    """Serves a WSGI application (PEP 3333) to the connections of a listener.

    It is a ``pyfiber.net.Server``, which has ``address``, ``connections``, ``wait()`` and
    ``stop()``; ``tls``, ``limit``, ``grace`` and ``on_error`` are told there. At most 1,000
    connections are served at a time unless ``limit`` says otherwise. ``on_error`` is for what is
    outside of the application; what the application raises is answered with status 500 if nothing
    has been sent, and logged under the logger "pyfiber".

    max_header: bytes of a request's head (also of its first line alone)
    max_fields: fields of a head
    max_body: bytes of a body
    header_timeout: seconds for the head, once it has begun
    body_timeout: seconds for each 64 KiB of a body, and for the last bytes of it
    write_timeout: seconds that the client may take for each 64 KiB of an answer
    keep_alive: seconds that it may be silent before the next request
    script_name: where the application is: the path that all its URLs begin with
    environ: more keys, for the environ of each request
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
        max_header: int = 65536,
        max_fields: int = 100,
        max_body: int = 1 << 30,
        header_timeout: float = 15.0,
        body_timeout: float = 30.0,
        write_timeout: float = 30.0,
        keep_alive: float = 30.0,
        script_name: str = "",
        environ: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(self._talk, listener, tls=tls, limit=limit, grace=grace, on_error=on_error)
        if not callable(app):
            raise TypeError(f"a WSGI application can be called, {type(app).__name__!r} cannot")
        if script_name and (not script_name.startswith("/") or script_name.endswith("/")):
            raise ValueError(f"script_name is of the form '/app', not {script_name!r}")
        _check_positive(
            max_header=max_header,
            max_fields=max_fields,
            max_body=max_body + 1,
            header_timeout=header_timeout,
            body_timeout=body_timeout,
            write_timeout=write_timeout,
            keep_alive=keep_alive,
        )
        self.app = app
        self.max_header = max_header
        self.first_piece = min(max_header, PIECE)
        self.max_fields = max_fields
        self.max_body = max_body
        self.header_timeout = header_timeout
        self.body_timeout = body_timeout
        self.write_timeout = write_timeout
        self.keep_alive = keep_alive
        self.is_ending = False
        self.template = _template(self.address, tls is not None, script_name, environ or {})
        self.most_keys = len(self.template) + max_fields
        self._talking: set[Connection] = set()
        self._second = -1
        self._stamps = ("", "", "", "")

    def stop(self) -> None:
        """Accept no more connections; ``wait()`` returns. Requests that have come are answered."""
        self.is_ending = True
        for connection in list(self._talking):
            connection.end_if_idle()
        super().stop()

    # What its connections ask for

    def _talk(self, stream: net.Stream) -> None:
        connection = Connection(self, stream)
        self._talking.add(connection)
        try:
            connection.serve()
        finally:
            self._talking.discard(connection)

    def stamp(self, date: bool, server: bool) -> str:
        """The fields Date and Server, but for those that the application has given."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            when, who = f"Date: {formatdate(second, usegmt=True)}\r\n", f"Server: {SOFTWARE}\r\n"
            self._stamps = (when + who, when, who, "")
        return self._stamps[2 * date + server]

    def report(self, exc: Exception, environ: dict[str, Any], peer: Any) -> None:
        """The application has failed."""
        what = f"{environ.get('REQUEST_METHOD')} {environ.get('REQUEST_URI')}"
        _logger().error("%s of %s failed", what, place(peer), exc_info=exc)

    def note_lost(self, exc: Exception, peer: Any) -> None:
        """A client has gone, as clients do."""
        _logger().debug("the connection of %s was lost: %s", place(peer), exc)


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} is a positive number, not {number!r}")


def _template(address: Any, tls: bool, script_name: str, more: dict[str, Any]) -> dict[str, Any]:
    """What all environs have; what each has of its own is there, too, so that there is room."""
    host, port = "localhost", 443 if tls else 80  # PEP 3333 wants some, of a Unix socket as well
    if isinstance(address, tuple):
        host, port = address[:2]
    scheme = "https" if tls else "http"
    return {
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "wsgi.file_wrapper": FileWrapper,
        "wsgi.input_terminated": True,
        "SERVER_NAME": host,
        "SERVER_PORT": str(port),
        "SERVER_SOFTWARE": SOFTWARE,
        "GATEWAY_INTERFACE": "CGI/1.1",
        "REMOTE_ADDR": "",
        "REMOTE_PORT": "",
        "REQUEST_METHOD": "",
        "SCRIPT_NAME": script_name,
        "PATH_INFO": "",
        "QUERY_STRING": "",
        "REQUEST_URI": "",
        "RAW_URI": "",
        "SERVER_PROTOCOL": "",
        "wsgi.input": None,
        **({"HTTPS": "on"} if tls else {}),
        **more,
    }


def _logger() -> Logger:
    _load("logging")
    import logging

    return logging.getLogger("pyfiber")
