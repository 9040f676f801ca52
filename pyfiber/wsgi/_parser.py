"""``Parser``: turns the bytes of a connection into requests; httptools (llhttp) reads them.

llhttp is strict: it refuses line ends that are not CR LF, folded lines, spaces around names,
control characters, lengths that are no plain number or come twice, a length beside
Transfer-Encoding, and malformed chunks. This module makes the checks that llhttp leaves to its
caller.

llhttp cannot stop at the end of a request. So it gets received data in steps that end where a
request may end. Bytes after a request are kept as they are until the request has been answered: the
environs of 64 KiB of short requests would take megabytes.
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

try:
    httptools: Any = import_module("httptools")
except ImportError as exc:
    raise ImportError(
        "pyfiber.wsgi needs httptools, which reads the requests:"
        ' pip install "pyfiber-engine[wsgi]"',
        name="httptools",
    ) from exc

if TYPE_CHECKING:
    from pyfiber.wsgi._site import Site

Environ = dict[str, Any]

#: Bytes that are received, or sent, at a time.
PIECE: Final = 65536

#: Substitutes for a head that said "Upgrade:", for the body behind it; see _decline_upgrade().
_BEFORE_LENGTH: Final = b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n"
_BEFORE_CHUNKS: Final = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"

#: Bytes that chunks and trailers may take beside the data: at a time, and for each byte of data.
#: The first bound holds however much data there was, since httptools keeps a trailer's field until
#: the field is complete.
_SPARE: Final = PIECE
_SPARE_OF_EACH: Final = 16

_HOST: Final = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")

#: A head ends with this, and so does a body in chunks.
_BLANK_LINE: Final = b"\r\n\r\n"

#: Chunks of a body that are kept apart. More are joined, as small ones take more than their bytes.
_MOST_CHUNKS: Final = 64

#: Caches: the keys of names, as clients write these, and hosts that are well-formed. Both are few
#: and short. Long ones are not kept, and a cache that somebody has filled is emptied.
_KEPT: Final = 1000
LONGEST_KEPT: Final = 200
_KEYS: Final[dict[bytes, str]] = {}
_HOSTS: Final[dict[str, bool]] = {}

#: The key of fields that are not passed on; no field has it.
NOT_PASSED_ON: Final = "HTTP "
#: Fields that are refused behind a body: a program that passes trailers on could take them for
#: fields of the head. (llhttp refuses the fields that say how long a body is.)
_NOT_IN_TRAILERS: Final = frozenset({b"host", b"authorization", b"te"})
#: Fields that are not passed on: CGI programs would take this one for a setting (CVE-2016-5385).
_UNWANTED: Final = frozenset({b"proxy"})


class Refused(OSError):
    """A request that the server refuses. ``status`` is that of the answer, ``why`` the reason.

    ``read()`` of a body that is malformed, too large, too slow or cut off raises this exception.
    The class is an OSError, as frameworks expect of a client that is gone.
    """

    def __init__(self, status: str, why: str) -> None:
        super().__init__(f"{status}: {why}")
        self.status = status
        self.why = why

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.status, self.why)


BAD: Final = "400 Bad Request"
TOO_LATE: Final = "408 Request Timeout"
TOO_LARGE: Final = "413 Content Too Large"
URI_TOO_LONG: Final = "414 URI Too Long"
EXPECTATION_FAILED: Final = "417 Expectation Failed"
HEAD_TOO_LARGE: Final = "431 Request Header Fields Too Large"
NOT_IMPLEMENTED: Final = "501 Not Implemented"
WRONG_VERSION: Final = "505 HTTP Version Not Supported"


class Request:
    """A request with a complete head, and with as much of its body as has come."""

    #: The client waits for "100 Continue" before it sends the body.
    expects = False
    #: The body has come as a whole.
    complete = False
    #: Bytes of the body: the length that was announced, if any, and what has come so far.
    length: int | None = None
    size = 0

    def __init__(self, environ: Environ, http11: bool, is_head: bool, keep_alive: bool) -> None:
        self.environ = environ
        self.http11 = http11
        self.is_head = is_head  # as the client sent it: the application may change the environ
        self.keep_alive = keep_alive
        self.chunks: list[bytes] = []  # pieces of the body, not read yet

    def join_chunks(self) -> None:
        """Join the chunks into one if there are many."""
        if len(self.chunks) > _MOST_CHUNKS:
            self.chunks = [b"".join(self.chunks)]


class Parser:
    """Reads the requests of one connection."""

    __slots__ = (
        "_at",
        "_counted",
        "_data",
        "_environ",
        "_fed",
        "_keys",
        "_peer",
        "_repeated",
        "_request",
        "_site",
        "_skipping",
        "_spare",
        "_tools",
        "_url",
        "error",
        "ready",
    )

    def __init__(self, site: Site, peer: Any) -> None:
        self.ready: deque[Request] = deque()
        self.error: Refused | None = None  # what is wrong with the request after `ready`
        self._site = site
        self._peer = (peer[0], str(peer[1])) if isinstance(peer, tuple) else ("", "")
        self._environ: Environ | None = None  # the environ of the head that is being read
        self._request: Request | None = None  # the request of the body that is being read
        self._keys = _KEYS
        self._url = b""
        self._fed = 0  # bytes since the head began
        self._spare = 0  # bytes that may come beside the data of the body
        self._counted = 0  # bytes of that data seen by _charge(); -1 while the head is read
        self._repeated = 0  # fields of the head whose names had come before
        self._skipping = False  # a substitute for a head is being read
        self._data = b""  # the data that was received last
        self._at = 0  # how far that data has been read
        self._tools = httptools.HttpRequestParser(self)

    def feed(self, data: bytes) -> None:
        """Take received data. All data before must have been read."""
        self._data = data
        self._at = 0
        self.go_on()

    def go_on(self) -> None:
        """Read the received data, up to the end of the first request that is complete."""
        data = self._data
        size = len(data)
        while self._at < size and self.error is None:
            if self.ready and self._request is None:
                return
            start, end = self._at, self._end_of_step(data)
            self._at = end
            self._feed_step(data if not start and end >= size else memoryview(data)[start:end])
        self._data = b""
        self._at = 0

    def _end_of_step(self, data: bytes) -> int:
        """The earliest place in the data at which a request may end."""
        request = self._request
        if request is not None and request.length is not None:
            return self._at + request.length - request.size
        end = data.find(_BLANK_LINE, self._at)
        return len(data) if end < 0 else end + len(_BLANK_LINE)

    @property
    def is_in_head(self) -> bool:
        """Whether the next request has begun, and its head is not complete."""
        return self._environ is not None

    def _feed_step(self, data: bytes | memoryview) -> None:
        rest = data
        in_body = self._request is not None
        while self.error is None:
            try:
                self._tools.feed_data(rest)
            except httptools.HttpParserUpgrade as exc:
                rest = memoryview(rest)[exc.args[0] :]
                self._decline_upgrade()
            except httptools.HttpParserError as exc:
                raised = exc.__context__  # raised by a callback
                if raised is not None and raised is not self.error:
                    raise raised from None  # Ctrl-C, say, which is no mistake of the client's
                self.error = self.error or _meaning(str(exc))
            else:
                ended = (in_body or self.ready) and self._request is None
                if not ended or self._environ is not None:
                    self._charge(len(data))
                return

    def _charge(self, size: int) -> None:
        """Count the bytes of an incomplete head or body, which must not grow without a bound."""
        self._fed += size
        request = self._request
        if request is None:
            limit = self._site.max_header
            environ = self._environ
            if environ is not None and len(environ) + self._repeated > self._site.most_keys:
                self._refuse(HEAD_TOO_LARGE, "the head has too many fields")
            elif self._fed > limit:
                status = URI_TOO_LONG if 2 * len(self._url) > limit else HEAD_TOO_LARGE
                self.error = Refused(status, f"the head has more than {limit} bytes")
            return
        request.join_chunks()
        data, is_head = request.size - self._counted, self._counted < 0
        self._counted = request.size
        if is_head:
            return
        self._spare = min(self._spare + _SPARE_OF_EACH * data, _SPARE) - (size - data)
        if self._spare < 0:
            self.error = Refused(BAD, "the chunks have more around them than in them")

    def _decline_upgrade(self) -> None:
        """Go on as if the client had not asked for another protocol.

        llhttp takes the head for the last thing that is HTTP. So a new parser reads what follows.
        If that is a body, the parser first gets a substitute head, which announces the body.
        """
        self._tools = httptools.HttpRequestParser(self)
        if self._request is not None:
            self._skipping = True
            length = self._request.length
            head = _BEFORE_CHUNKS if length is None else _BEFORE_LENGTH % length
            self._tools.feed_data(head)

    def _refuse(self, status: str, why: str) -> Refused:
        self.error = Refused(status, why)
        return self.error

    # What httptools calls

    def on_url(self, url: bytes) -> None:
        """Take a part of the target, usually all of it."""
        if self._environ is None and not self._skipping:
            environ = self._environ = self._site.template.copy()
            environ["REMOTE_ADDR"], environ["REMOTE_PORT"] = self._peer
            self._repeated = 0
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a field of the head. A field of a trailer is dropped."""
        environ = self._environ
        if environ is None:
            if name.lower() in _NOT_IN_TRAILERS:
                raise self._refuse(BAD, f"{name.decode('latin-1')} in a trailer")
            return
        key = self._keys.get(name) or self._key_of(name)
        if key not in environ:
            environ[key] = value.rstrip().decode("latin-1")
        else:
            self._repeat(environ, key, value)

    def _repeat(self, environ: Environ, key: str, value: bytes) -> None:
        self._repeated += 1
        if self._repeated > self._site.max_fields:
            raise self._refuse(HEAD_TOO_LARGE, "the head has too many fields")
        if key in ("HTTP_HOST", "CONTENT_TYPE"):
            raise self._refuse(BAD, f"{key} comes twice")
        separator = "; " if key == "HTTP_COOKIE" else ","
        environ[key] += separator + value.rstrip().decode("latin-1")

    def on_headers_complete(self) -> None:
        """Make the request: the head is complete."""
        environ, self._environ = self._environ, None
        url, self._url = self._url, b""
        if environ is None:
            return  # a substitute head
        if NOT_PASSED_ON in environ:
            del environ[NOT_PASSED_ON]
        if len(environ) + self._repeated > self._site.most_keys:
            raise self._refuse(HEAD_TOO_LARGE, "the head has too many fields")
        tools = self._tools
        version = tools.get_http_version()
        if version != "1.1" and version != "1.0":
            raise self._refuse(WRONG_VERSION, f"HTTP/{version} is not spoken here")
        environ["SERVER_PROTOCOL"] = "HTTP/" + version
        environ["REQUEST_METHOD"] = method = tools.get_method().decode()
        split = _split_short if len(url) <= LONGEST_KEPT else _split
        target, path, environ["QUERY_STRING"] = split(url)
        environ["REQUEST_URI"] = environ["RAW_URI"] = target
        if path[:1] != "/" or method == "CONNECT":
            path = self._other_form(environ, method, target)
        if "#" in target:
            raise self._refuse(BAD, "a target has no fragment")
        if environ["SCRIPT_NAME"]:
            path = self._below(environ["SCRIPT_NAME"], path)
        environ["PATH_INFO"] = path
        host = environ.get("HTTP_HOST")
        if host not in _HOSTS:
            self._check_host(host, version)
        if "HTTP_EXPECT" in environ:
            self._check_expect(environ["HTTP_EXPECT"])
        request = Request(environ, version == "1.1", method == "HEAD", tools.should_keep_alive())
        if "HTTP_TRANSFER_ENCODING" in environ or "CONTENT_LENGTH" in environ:
            self._check_body(request, environ, version)
            request.expects = "HTTP_EXPECT" in environ and version == "1.1"
            self._request = request
            self._spare, self._counted = _SPARE, -1
        elif tools.should_upgrade():
            request.complete = True
        else:
            self._request = request
        self._fed = 0
        self.ready.append(request)

    def on_body(self, data: bytes) -> None:
        """Take a piece of the body."""
        request = self._request
        assert request is not None
        request.size += len(data)
        limit = self._site.max_body
        if request.size > limit:
            raise self._refuse(TOO_LARGE, f"the body has more than {limit} bytes")
        request.chunks.append(data)

    def on_message_complete(self) -> None:
        """End the request: the body is complete. Without a body this comes right after the head."""
        request = self._request
        if request is None:
            return
        if self._tools.should_upgrade():
            return  # the body has not been read yet: see _decline_upgrade()
        self._skipping = False
        request.complete = True
        if request.chunks:
            request.join_chunks()
        self._request = None
        self._fed = 0

    # The parts of a head

    def _key_of(self, name: bytes) -> str:
        """The key in the environ for fields of this name, which is not in the cache yet."""
        key = key_of(name)
        if len(name) <= LONGEST_KEPT:
            keep(self._keys, name, key)
        return key

    def _below(self, script: str, path: str) -> str:
        """The rest of a path after ``script``, with which all of the application's paths begin."""
        if path != script and not path.startswith(script + "/"):
            raise self._refuse("404 Not Found", f"all paths here begin with {script}")
        return path[len(script) :]

    def _other_form(self, environ: Environ, method: str, target: str) -> str:
        """The path of a target that is not just a path, such as a URL.

        The end of a URL's host is found before anything is decoded: an encoded slash is no slash.
        """
        if method == "CONNECT":
            raise self._refuse(NOT_IMPLEMENTED, "this is not a proxy")
        if method == "OPTIONS" and target == "*":
            return str(environ["SCRIPT_NAME"])
        scheme, found, rest = target.partition("://")
        if not found or scheme.lower() not in ("http", "https"):
            raise self._refuse(BAD, "the target is neither a path nor a URL")
        host, slash, path = rest.partition("?")[0].partition("/")
        if not host:
            raise self._refuse(BAD, "the target is a URL without a host")
        environ["HTTP_HOST"] = host  # whatever the field says (RFC 9112, 3.2.2)
        return _split((slash + path).encode("latin-1"))[1] or "/"

    def _check_host(self, host: str | None, version: str) -> None:
        if host is None:
            if version == "1.1":
                raise self._refuse(BAD, "there is no Host")
        elif _HOST.fullmatch(host) is None:
            raise self._refuse(BAD, "that is no Host")
        elif len(host) <= LONGEST_KEPT:
            keep(_HOSTS, host, True)

    def _check_expect(self, value: str) -> None:
        for each in value.split(","):
            if each.strip().lower() != "100-continue":
                raise self._refuse(EXPECTATION_FAILED, "all that can be expected is 100-continue")

    def _check_body(self, request: Request, environ: Environ, version: str) -> None:
        coding = environ.get("HTTP_TRANSFER_ENCODING")
        if coding is None:
            request.length = int(environ["CONTENT_LENGTH"])
            limit = self._site.max_body
            if request.length > limit:
                raise self._refuse(TOO_LARGE, f"the body has more than {limit} bytes")
        elif version == "1.0":
            raise self._refuse(BAD, "HTTP/1.0 has no Transfer-Encoding")
        elif coding.lower() != "chunked":
            raise self._refuse(NOT_IMPLEMENTED, "the only Transfer-Encoding here is chunked")


def key_of(name: bytes) -> str:
    """A field's key in the environ. Names with "_" are not passed on: "-" becomes "_" as well."""
    small = name.lower()
    key = small.upper().replace(b"-", b"_").decode("latin-1")
    if b"_" in name or small in _UNWANTED:
        key = NOT_PASSED_ON
    elif small not in (b"content-type", b"content-length"):
        key = "HTTP_" + key
    return key


def keep(cache: dict[Any, Any], key: Any, value: Any) -> None:
    """Put an entry into a cache. A full cache is emptied: what is in use soon comes back."""
    if len(cache) >= _KEPT:
        cache.clear()
    cache[key] = value


def _split(url: bytes) -> tuple[str, str, str]:
    """A target as it came, its path with "%" decoded to bytes (as PEP 3333 says), and its query."""
    target = url.decode("latin-1")
    path, _, query = target.partition("?")
    if "%" in path:
        path = unquote_to_bytes(path).decode("latin-1")
    return target, path, query


_split_short = lru_cache(_KEPT)(_split)


def _meaning(reason: str) -> Refused:
    """The refusal for an error that httptools reports."""
    if reason == "Invalid method encountered":
        return Refused(NOT_IMPLEMENTED, "this method is not known")
    if reason == "Invalid HTTP version":
        return Refused(WRONG_VERSION, reason)
    if reason == "Request has invalid `Transfer-Encoding`":
        return Refused(NOT_IMPLEMENTED, "the only Transfer-Encoding here is chunked")
    return Refused(BAD, reason)
