"""A site: an application, how it is served, and what all connections to it share."""

from __future__ import annotations

import sys
import time
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from pyfiber._engine import _load
from pyfiber._requests import served_by_this_fiber
from pyfiber.net._slots import Slots
from pyfiber.net._stream import place
from pyfiber.wsgi._answer import FileWrapper
from pyfiber.wsgi._connection import Connection
from pyfiber.wsgi._parser import PIECE

if TYPE_CHECKING:
    from logging import Logger
    from wsgiref.types import WSGIApplication

    from pyfiber.net import Stream
    from pyfiber.wsgi._parser import Refused


class Site:
    """Answers the requests of connections. The options are those of ``Server``."""

    #: The value of the field "Server".
    software = "pyfiber"
    #: The class that answers the requests of one connection.
    connection: type[Connection] = Connection

    def __init__(
        self,
        app: WSGIApplication,
        address: Any,
        *,
        tls: bool = False,
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
        self.first_timeout = max(keep_alive, header_timeout)  # for the first byte of the first head
        self.is_ending = False
        self.template = _template(address, tls, self.software, script_name, environ or {})
        self.most_keys = len(self.template) + max_fields
        self.slots = Slots(None)  # a server puts its own Slots here
        self._second = -1
        self._stamps = ("", "", "", "")

    def talk(self, stream: Stream) -> None:
        """Answer the requests of a connection, up to its end."""
        connection = self.connection(self, stream)
        with served_by_this_fiber(connection):
            connection.serve()

    def end(self) -> None:
        """Answer one more request of each connection.

        A connection whose first request has not come is new, and keeps its time for that request. A
        connection that has been served ends when it has been silent for a second since then.
        """
        self.is_ending = True
        self.slots.hasten(self.keep_alive)

    # Methods that connections call

    def stamp(self, date: bool, server: bool) -> str:
        """The fields Date and Server, without those that the application has given."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            when, who = (
                f"Date: {formatdate(second, usegmt=True)}\r\n",
                f"Server: {self.software}\r\n",
            )
            self._stamps = (when + who, when, who, "")
        return self._stamps[2 * date + server]

    def report(self, exc: Exception, environ: dict[str, Any], peer: Any) -> None:
        """Log a failure of the application."""
        what = f"{environ.get('REQUEST_METHOD')} {environ.get('REQUEST_URI')}"
        _logger().error("%s of %s failed", what, place(peer), exc_info=exc)

    def note_refused(self, refused: Refused, peer: Any) -> None:
        """Called when the server itself answers a request, to say what is wrong with it."""

    def note_lost(self, exc: Exception, peer: Any) -> None:
        """Log a connection that was lost, which is nothing unusual."""
        _logger().debug("the connection of %s was lost: %s", place(peer), exc)


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not number > 0:
            raise ValueError(f"{name} is a positive number, not {number!r}")


def _template(
    address: Any, tls: bool, software: str, script_name: str, more: dict[str, Any]
) -> dict[str, Any]:
    """The environ that is copied for each request; it has all keys, so that there is room."""
    host, port = "localhost", 443 if tls else 80  # PEP 3333 requires both, for a Unix socket, too
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
        "SERVER_SOFTWARE": software,
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
