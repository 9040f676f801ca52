"""Clients of HTTP, of websockets and of S3, unchanged, in fibers; the servers are threads."""

from __future__ import annotations

import contextlib
import functools
import http.client
import ssl
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

import pyfiber
from tests.io.certificates import certificate, needs_certificates
from tests.libraries import web
from tests.libraries.acts import ACTS, need, play
from tests.libraries.clients import Client

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # theirs
]

Get = Callable[[str], bytes]


class Web:
    """A client of the servers in web.py."""

    most = 100

    def __init__(self, get: Get, gate: web.Gate) -> None:
        self._get = get
        self._gate = gate

    def ask(self, number: int) -> int:
        return int(self._get(f"/ask/{number}"))

    def wait(self) -> None:
        assert self._get("/wait") == b"object"

    def waiting(self) -> int:
        return self._gate.waiting

    def release(self) -> None:
        self._gate.open()


def _trusting(url: str) -> ssl.SSLContext | None:
    return ssl.create_default_context(cafile=certificate("localhost")) if "https" in url else None


def _ca(url: str) -> str | None:
    return certificate("localhost") if "https" in url else None


# Each gives a function that gets a path from the server.


@contextlib.contextmanager
def by_http_client(url: str) -> Iterator[Get]:
    parts = urllib.parse.urlsplit(url)
    context = _trusting(url)
    connect: Callable[[], http.client.HTTPConnection] = functools.partial(
        http.client.HTTPConnection, parts.netloc
    )
    if context is not None:
        connect = functools.partial(http.client.HTTPSConnection, parts.netloc, context=context)

    def get(path: str) -> bytes:
        with contextlib.closing(connect()) as connection:
            connection.request("GET", path)
            return connection.getresponse().read()

    yield get


@contextlib.contextmanager
def by_urllib(url: str) -> Iterator[Get]:
    context = _trusting(url)

    def get(path: str) -> bytes:
        with urllib.request.urlopen(url + path, context=context) as answer:
            return answer.read()  # type: ignore[no-any-return]

    yield get


@contextlib.contextmanager
def by_urllib3(url: str) -> Iterator[Get]:
    import urllib3

    with urllib3.PoolManager(maxsize=100, block=True, ca_certs=_ca(url)) as pool:
        yield lambda path: pool.request("GET", url + path, retries=False).data


@contextlib.contextmanager
def by_requests(url: str) -> Iterator[Get]:
    import requests

    with requests.Session() as session:
        session.mount(url, requests.adapters.HTTPAdapter(pool_maxsize=100, pool_block=True))
        session.trust_env = False  # which may name another file of authorities
        session.verify = _ca(url)
        yield lambda path: session.get(url + path).content


@contextlib.contextmanager
def by_httpx(url: str) -> Iterator[Get]:
    import httpx

    context = _trusting(url)
    with httpx.Client(verify=True if context is None else context, timeout=None) as client:
        yield lambda path: client.get(url + path).content


@contextlib.contextmanager
def by_botocore(url: str) -> Iterator[Get]:
    import botocore.session
    from botocore.config import Config

    client = botocore.session.Session().create_client(
        "s3",
        region_name="nowhere",
        endpoint_url=url,
        verify=_ca(url),
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        config=Config(
            max_pool_connections=100,
            s3={"addressing_style": "path"},
            retries={"max_attempts": 0},
            response_checksum_validation="when_required",
        ),
    )

    def get(path: str) -> bytes:
        bucket, _, key = path[1:].partition("/")
        return client.get_object(Bucket=bucket, Key=key or "any")["Body"].read()  # type: ignore[no-any-return]

    with contextlib.closing(client):
        yield get


#: Each with the module that must be there.
HTTP: dict[str, tuple[str, Callable[[str], AbstractContextManager[Get]]]] = {
    "http.client": ("http.client", by_http_client),
    "urllib": ("urllib.request", by_urllib),
    "urllib3": ("urllib3", by_urllib3),
    "requests": ("requests", by_requests),
    "httpx": ("httpx", by_httpx),
    "botocore": ("botocore", by_botocore),
}


@contextlib.contextmanager
def opened(by: Callable[[str], AbstractContextManager[Get]], tls: bool) -> Iterator[Client]:
    with web.serving(tls) as (url, gate), by(url) as get:
        yield Web(get, gate)


@needs_certificates
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("name", HTTP)
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_requests_over_http_that(act: Callable[[Client], None], name: str, tls: bool) -> None:
    module, by = HTTP[name]
    need(module)
    with pyfiber.patch():
        play(functools.partial(opened, by, tls), act)


# Websockets ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def websockets() -> Iterator[Client]:
    """websocket-client, with a connection for each message."""
    import websocket

    with web.serving_websockets() as (url, gate):

        def get(path: str) -> bytes:
            connection = websocket.create_connection(url)
            try:
                connection.send(path.rpartition("/")[2])
                answer = connection.recv()
                return b"object" if answer == "wait" else str(answer).encode()
            finally:
                connection.shutdown()

        yield Web(get, gate)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_websockets_with_messages_that(act: Callable[[Client], None]) -> None:
    need("websocket", "websockets")
    with pyfiber.patch():
        play(websockets, act)
