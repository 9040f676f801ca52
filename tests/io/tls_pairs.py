"""Two ends of a TLS connection, for tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pyfiber import socket, spawn, ssl
from tests.io.certificates import HOST, certificate

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


def server_context(name: str = HOST) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate(name))
    return context


def client_context(version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificate())
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


def wrapped(
    client: ssl.SSLContext,
    server: ssl.SSLContext | None = None,
    sockets: tuple[Any, Any] | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """The client's end and the server's, after the handshake; in a fiber of a run."""
    left, right = sockets or socket.socketpair()
    other = spawn((server or server_context()).wrap_socket, right, server_side=True)
    one = client.wrap_socket(left, server_hostname=HOST, **options)
    return one, other.result()


@contextlib.contextmanager
def tls_pair(version: ssl.TLSVersion | None = None, **options: Any) -> Iterator[tuple[Any, Any]]:
    one, other = wrapped(client_context(version), **options)
    with one, other:
        yield one, other


def receive(sock: Any, size: int) -> bytes:
    """So many bytes, or up to the end."""
    parts = []
    while size and (part := sock.recv(min(size, 65536))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
