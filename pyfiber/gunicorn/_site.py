"""gunicorn's settings, environ and logs where HTTP is read and written by pyfiber.wsgi."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from ipaddress import ip_address, ip_network
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import gunicorn
from gunicorn.glogging import Logger
from gunicorn.http.wsgi import WSGIErrorsWrapper

from pyfiber import now
from pyfiber.wsgi._answer import CODING, Answer, FileWrapper, field
from pyfiber.wsgi._connection import Connection, Gone
from pyfiber.wsgi._parser import (
    BAD,
    HEAD_TOO_LARGE,
    URI_TOO_LONG,
    Parser,
    Refused,
    Request,
)
from pyfiber.wsgi._site import Site

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

    from pyfiber.gunicorn._worker import Worker

Environ = dict[str, Any]

#: Bounds from gunicorn: the highest limits that settings may give for the first line, in bytes, and
#: for the number of fields; and the limit for a field, in bytes, where the setting gives none.
_LONGEST_LINE: Final = 8190
_MOST_FIELDS: Final = 32768
_LONGEST_FIELD: Final = 8190

#: "No limit", in bytes and in seconds.
_ANY_SIZE: Final = 1 << 62
_FOREVER: Final = 1e8

#: Seconds for a request's head, once it has begun.
_HEAD: Final = 15.0

#: Where SCRIPT_NAME of a trusted proxy is kept until the head is complete; no field has this key.
_SCRIPT_NAME: Final = "HTTP SCRIPT_NAME"


class TakenOver(Gone):
    """The application has taken the connection over, through its socket."""


class GunicornParser(Parser):
    """A parser that obeys gunicorn's limits, and believes the proxies that its settings trust."""

    __slots__ = ("_is_long", "_trusts")

    _site: GunicornSite

    def __init__(self, site: GunicornSite, peer: Any) -> None:
        super().__init__(site, peer)
        self._is_long = False  # so much has come of the head that a field may be too long
        self._trusts = site.trusts(peer)
        self._keys = site.keys_of_proxies if self._trusts else site.keys

    def feed(self, data: bytes) -> None:
        """Take received data."""
        self._is_long = self._fed + len(data) > self._site.longest_field
        super().feed(data)

    def on_headers_complete(self) -> None:
        """Check the head by gunicorn's rules, then by the server's own."""
        site, environ = self._site, self._environ
        if environ is None:
            return super().on_headers_complete()
        if self._is_long:
            self._check_sizes(site, environ)
        elif len(self._url) > site.longest_target:
            self._check_line(site.longest_line)
        if self._trusts:
            for key in site.forwarding:
                if key in environ:
                    self._believe(site, environ)
                    break
        if site.named_by_clients:
            site.name_after(environ)
        super().on_headers_complete()
        if site.closes:
            self.ready[-1].keep_alive = False
        return None

    def _check_sizes(self, site: GunicornSite, environ: Environ) -> None:
        self._check_line(site.longest_line)
        for key, value in environ.items():
            name = key.removeprefix("HTTP_")
            is_field = name is not key or key == "CONTENT_TYPE"
            if is_field and len(name) + len(value) > site.longest_field:
                raise self._refuse(HEAD_TOO_LARGE, f"the field {name} is too long")

    def _check_line(self, limit: int) -> None:
        size = len(self._tools.get_method()) + len(self._url) + len("  HTTP/1.1")
        if size > limit:
            raise self._refuse(URI_TOO_LONG, f"the first line has more than {limit} bytes")

    def _key_of(self, name: bytes) -> str:
        known = self._site.names_of_proxies
        upper = name.decode("latin-1").upper()
        if b"_" not in name or not self._trusts or not (upper in known or "*" in known):
            return super()._key_of(name)
        return _SCRIPT_NAME if upper == "SCRIPT_NAME" else f"HTTP_{upper}"

    def _check_host(self, host: str | None, version: str) -> None:
        if host is not None:  # programs that check a service's health may leave it out
            super()._check_host(host, version)

    def _believe(self, site: GunicornSite, environ: Environ) -> None:
        """Take a trusted proxy's word for the scheme, and for the application's path."""
        found = {environ[key] == value for key, value in site.secure.items() if key in environ}
        if found:
            if len(found) > 1:
                raise self._refuse(BAD, "the fields of the scheme contradict each other")
            environ["wsgi.url_scheme"] = "https" if found.pop() else "http"
        if _SCRIPT_NAME in environ:
            environ["HTTP_SCRIPT_NAME"] = environ.pop(_SCRIPT_NAME)
            environ["SCRIPT_NAME"] = environ["HTTP_SCRIPT_NAME"].rstrip("/")

    def _repeat(self, environ: Environ, key: str, value: bytes) -> None:
        secure = self._site.secure.get(key) if self._trusts else None
        if secure is None:
            super()._repeat(environ, key, value)
        elif (environ[key] == secure) != (value.rstrip().decode("latin-1") == secure):
            raise self._refuse(BAD, "the fields of the scheme contradict each other")


class GunicornAnswer(Answer):
    """An answer that counts requests, and accepts what applications may do under gunicorn."""

    def __init__(self, connection: GunicornConnection, request: Request) -> None:
        super().__init__(connection, request)
        self.site = connection.site
        environ = request.environ
        environ["gunicorn.socket"] = connection._socket
        environ["wsgi.early_hints"] = self.send_early_hints
        if "HTTP_UPGRADE" in environ:
            connection.give_socket()

    def send(self, app: WSGIApplication) -> None:
        """Call the application and send what it returns."""
        worker = self.site.worker
        worker.nr += 1
        if worker.nr >= worker.max_requests:
            worker.end_soon()
        try:
            super().send(app)
        except StopIteration:  # of an application that has used "gunicorn.socket"
            raise TakenOver("the application has taken the connection over") from None
        except SystemExit as exc:
            if worker.aborts:
                raise
            raise RuntimeError(f"the application has called sys.exit({exc.code!r})") from exc
        finally:
            self._request.environ.pop("wsgi.early_hints", None)  # no cycle of references

    def _takes(self, kind: int, value: str) -> None:
        if kind != CODING:  # a field that gunicorn ignores
            super()._takes(kind, value)

    def _send_file(self, wrapper: FileWrapper) -> None:
        if self.site.sends_files:
            super()._send_file(wrapper)
        else:
            self._send_blocks(wrapper)

    def send_early_hints(self, headers: list[tuple[str | bytes, str | bytes]]) -> None:
        """``wsgi.early_hints``: send an answer 103 with these fields, before the answer itself."""
        lines = "".join(field(_text(name), _text(value)) for name, value in headers)
        if not self.began and self._request.http11:
            self._connection.send(f"HTTP/1.1 103 Early Hints\r\n{lines}\r\n".encode("latin-1"))


class LoggedAnswer(GunicornAnswer):
    """An answer that keeps what gunicorn's access log shows."""

    _headers: Sequence[tuple[str, str]] = ()
    #: Bytes of the body: the length that was announced, and those sent if none was.
    _length: int | None = None
    _sent = 0

    def start_response(
        self, status: str, headers: list[tuple[str, str]], exc_info: Any = None, /
    ) -> Any:
        """Keep the headers for the log."""
        self._headers = list(headers)
        return super().start_response(status, headers, exc_info)

    def send(self, app: WSGIApplication) -> None:
        """Call the application, send what it returns, and log it."""
        began = now()
        status = "500 Internal Server Error"  # of an application that fails before it answers
        complete = False
        try:
            super().send(app)
            complete = True
        except TakenOver:
            began = -1.0
            raise
        except Refused as refused:
            status = refused.status
            raise
        finally:
            if began >= 0:
                took = timedelta(seconds=now() - began)
                self.site.log(self._response(status, complete), self._request.environ, took)

    def _begin(self) -> bytes:
        head = super()._begin()
        self._length = self._left
        return head

    def _send(self, block: bytes) -> None:
        super()._send(block)
        self._sent += len(block)

    def _response(self, status: str, complete: bool) -> SimpleNamespace:
        """An object like gunicorn's Response, with what loggers look at."""
        if self.began and self._status is not None:
            status = self._status
        sent = self._sent
        if self._bare or not self.began:
            sent = 0
        elif self._length is not None:
            sent = self._length - (0 if complete else self._left or 0)
        return SimpleNamespace(
            status=status,
            status_code=int(status[:3]),
            headers=self._headers,
            headers_sent=self.began,
            response_length=self._length,
            sent=sent,
        )


class GunicornConnection(Connection):
    """A connection whose application may take it over."""

    __slots__ = ()

    parser = GunicornParser
    answer = GunicornAnswer
    site: GunicornSite

    def give_socket(self) -> None:
        """Remove the socket's timeout: the application may take the connection over."""
        self._socket.settimeout(None)
        self._seconds = -1.0


class LoggedConnection(GunicornConnection):
    """A connection whose requests are logged."""

    __slots__ = ()

    answer = LoggedAnswer


class GunicornSite(Site):
    """What the connections to one of the worker's addresses share."""

    software = gunicorn.SERVER
    connection = GunicornConnection

    def __init__(self, worker: Worker, address: Any) -> None:
        cfg = worker.cfg
        fields = _bounded(cfg.limit_request_fields, _MOST_FIELDS)
        field_size = cfg.limit_request_field_size
        if field_size <= 0:
            field_size = _LONGEST_FIELD
        self.longest_field = field_size - len(": \r\n")  # name and value
        self.longest_line = _ANY_SIZE
        if cfg.limit_request_line:
            self.longest_line = _bounded(cfg.limit_request_line, _LONGEST_LINE)
        self.longest_target = self.longest_line - 30  # a longer one is checked with its method
        patience = cfg.timeout or _FOREVER
        super().__init__(
            worker.wsgi,
            address,
            tls=cfg.is_ssl,
            max_header=fields * field_size + _LONGEST_LINE,
            max_fields=fields,
            max_body=_ANY_SIZE,
            header_timeout=_HEAD,
            body_timeout=patience,
            write_timeout=patience,
            keep_alive=cfg.keepalive or _HEAD,
            script_name=os.environ.get("SCRIPT_NAME", "").rstrip("/"),
            environ={
                "wsgi.errors": WSGIErrorsWrapper(cfg),
                "wsgi.multiprocess": cfg.workers > 1,
                "wsgi.early_hints": None,
                "gunicorn.socket": None,
                "SERVER_SOFTWARE": gunicorn.SERVER_SOFTWARE,
            },
        )
        self.worker = worker
        self.closes = not cfg.keepalive
        self.sends_files = cfg.sendfile is not False
        self.named_by_clients = not isinstance(address, tuple)
        self._read_trust(cfg)
        if _logs(worker.log):
            self.connection = LoggedConnection

    def _read_trust(self, cfg: Any) -> None:
        allowed = cfg.forwarded_allow_ips
        self._trusts_all = "*" in allowed
        self._networks = [ip_network(each, strict=False) for each in allowed if each != "*"]
        self.names_of_proxies = frozenset(name.upper() for name in cfg.forwarder_headers)
        self.secure = {
            "HTTP_" + name.replace("-", "_"): value
            for name, value in cfg.secure_scheme_headers.items()
        }
        self.forwarding = (_SCRIPT_NAME, *self.secure)
        self.keys: dict[bytes, str] = {}
        self.keys_of_proxies: dict[bytes, str] = {}

    def trusts(self, peer: Any) -> bool:
        """Whether the peer is a proxy that may say where its requests come from."""
        if self._trusts_all or not isinstance(peer, tuple):
            return True
        try:
            address = ip_address(peer[0])
        except ValueError:
            return False
        return any(address in network for network in self._networks)

    def name_after(self, environ: Environ) -> None:
        """Name the server after the Host: at a Unix socket there is no other name."""
        host = environ.get("HTTP_HOST")
        if host:
            name, colon, port = host.rpartition(":")
            if not colon or host.endswith("]"):
                name, port = host, "443" if environ["wsgi.url_scheme"] == "https" else "80"
            environ["SERVER_NAME"], environ["SERVER_PORT"] = name, port

    # What goes to gunicorn's logger

    def log(self, response: SimpleNamespace, environ: Environ, took: timedelta) -> None:
        """Log a request that was answered."""
        try:
            self.worker.log.access(response, _request(environ), environ, took)
        except Exception:
            self.worker.log.exception("The request could not be logged")

    def report(self, exc: Exception, environ: Environ, peer: Any) -> None:
        """Log a failure of the application."""
        method, uri = environ.get("REQUEST_METHOD"), environ.get("RAW_URI")
        self.worker.log.exception("Error handling request %s %s", method, uri, exc_info=exc)

    def note_refused(self, refused: Refused, peer: Any) -> None:
        """Log a request that is refused."""
        ip = peer[0] if isinstance(peer, tuple) else ""
        self.worker.log.warning("Invalid request from ip=%s: %s", ip, refused)

    def note_lost(self, exc: Exception, peer: Any) -> None:
        """Log a connection that was lost."""
        self.worker.log.debug("Closing connection. %s", exc)


def _bounded(number: int, most: int) -> int:
    return number if 0 < number <= most else most


def _logs(log: Any) -> bool:
    """Whether requests are logged. A derived logger may log them whatever the settings say."""
    return type(log).access is not Logger.access or getattr(log, "access_log_enabled", True)


def _text(data: str | bytes) -> str:
    return data.decode("latin-1") if isinstance(data, bytes) else data


def _request(environ: Environ) -> SimpleNamespace:
    """An object like gunicorn's Request, with what loggers look at."""
    headers = [
        (key[5:].replace("_", "-"), value)
        for key, value in environ.items()
        if key.startswith("HTTP_")
    ]
    headers += [
        (key.replace("_", "-"), environ[key])
        for key in ("CONTENT_TYPE", "CONTENT_LENGTH")
        if key in environ
    ]
    version = environ["SERVER_PROTOCOL"]
    peer = (environ["REMOTE_ADDR"], environ["REMOTE_PORT"])
    return SimpleNamespace(
        headers=headers,
        method=environ["REQUEST_METHOD"],
        uri=environ["RAW_URI"],
        path=environ["RAW_URI"].partition("?")[0],
        query=environ["QUERY_STRING"],
        version=(int(version[5]), int(version[7])),
        scheme=environ["wsgi.url_scheme"],
        remote_addr=peer,
        peer_addr=peer,
    )
