"""Servers of pyfiber, the standard library and the peers, each as its makers would write it.

A server is a function of a listening socket and a file with key and certificate, or None; it serves
until it is killed. Arguments before these say what the server does with a connection: echo, or
answer HTTP requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable, Coroutine
from functools import partial
from threading import Thread
from typing import Any, cast

import pyfiber

from ..peers import load
from .hello import BODY, Requests

Serve = Callable[[socket.socket, str | None], object]
#: A function that serves a connection, a socket, from its first byte to its last.
Body = Callable[..., None]
AsyncServe = Callable[[socket.socket, str | None], Coroutine[Any, Any, None]]

#: Bytes of a small stack: the smallest size that there is.
SMALL_STACK = 128 * 1024
#: How many bytes are read at once.
CHUNK = 16 * 1024
#: How many connections may wait to be accepted; the kernel may allow fewer.
BACKLOG = 4096


def context_of(module: Any, certificate: str | None) -> Any:
    """The context of a TLS server, made by `ssl` or by a module like it; None without TLS."""
    if certificate is None:
        return None
    context = module.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


# asyncio and uvloop -----------------------------------------------------------------------------


class Echo(asyncio.Protocol):
    """Sends received bytes back, without a task."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self.write = cast(asyncio.WriteTransport, transport).write

    def data_received(self, data: bytes) -> None:
        """Send the bytes back."""
        self.write(data)


class Hello(Echo):
    """Answers HTTP requests, without a task."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        super().connection_made(transport)
        self.answers = Requests().answers

    def data_received(self, data: bytes) -> None:
        """Answer all complete requests."""
        self.write(self.answers(data))


async def protocols(
    factory: type[asyncio.Protocol], listener: socket.socket, certificate: str | None
) -> None:
    """Serve each connection by a protocol."""
    loop = asyncio.get_running_loop()
    context = context_of(ssl, certificate)
    server = await loop.create_server(factory, sock=listener, ssl=context, backlog=BACKLOG)
    await server.serve_forever()


async def echo_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve a connection, as a task."""
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    writer.close()


async def streams(listener: socket.socket, certificate: str | None) -> None:
    """Serve each connection by a task with a reader and a writer."""
    context = context_of(ssl, certificate)
    server = await asyncio.start_server(echo_stream, sock=listener, ssl=context, backlog=BACKLOG)
    await server.serve_forever()


def on_loop(loop: str, serve: AsyncServe) -> Serve:
    """Serve on a loop of `asyncio`, `uvloop` or `pyfiber.aio`."""

    def served(listener: socket.socket, certificate: str | None) -> None:
        with asyncio.Runner(loop_factory=load(loop).new_event_loop) as runner:
            runner.run(serve(listener, certificate))

    return served


def in_a_fiber(serve: AsyncServe) -> Serve:
    """Serve on the loop of the standard library, which a fiber runs."""
    return partial(pyfiber.run, on_loop("pyfiber.aio", serve))


def on_uvloop_in_turns(serve: Serve) -> Serve:
    """Run pyfiber's fibers in the turns of uvloop's loop."""

    async def hosted(listener: socket.socket, certificate: str | None) -> None:
        async with load("pyfiber.aio").Host() as host:
            await host.run(serve, listener, certificate)

    return on_loop("uvloop", hosted)


# What looks like blocking code --------------------------------------------------------------------


def echo(connection: Any, _address: object = None) -> None:
    """Echo, as the body of a fiber, a greenlet or a thread. Ends when the peer is gone."""
    with connection:
        try:
            while data := connection.recv(CHUNK):
                connection.sendall(data)
        except OSError:
            return


def hello(connection: Any, _address: object = None) -> None:
    """Answer HTTP requests, as the body of a fiber, a greenlet or a thread."""
    answers = Requests().answers
    with connection:
        try:
            while data := connection.recv(CHUNK):
                connection.sendall(answers(data))
        except OSError:
            return


def on_top_of(context: Any, body: Body) -> Body:
    """Return the body with TLS below it, if there is a context."""
    if context is None:
        return body

    def with_tls(connection: Any) -> None:
        body(context.wrap_socket(connection, server_side=True))

    return with_tls


def accepting(body: Body, listener: socket.socket, certificate: str | None) -> None:
    """Accept connections in a fiber, and start a fiber for each."""
    own = load("pyfiber.socket").socket(fileno=listener.detach())
    if certificate is not None:
        body = on_top_of(context_of(load("pyfiber.ssl"), certificate), body)

    while True:
        connection, _ = own.accept()
        pyfiber.spawn(body, connection)


def fibers(body: Body, listener: socket.socket, certificate: str | None) -> None:
    """Serve each connection by a fiber of pyfiber."""
    pyfiber.run(accepting, body, listener, certificate)


def small_fibers(body: Body, listener: socket.socket, certificate: str | None) -> None:
    """Serve each connection by a fiber of pyfiber on a small stack."""
    pyfiber.stack_size(SMALL_STACK)
    fibers(body, listener, certificate)


def gevent(body: Body, listener: socket.socket, certificate: str | None) -> None:
    """Run gevent's StreamServer, with a greenlet for each connection."""
    own = load("gevent.socket").socket(fileno=listener.detach())
    tls = {}
    if certificate is not None:
        tls["ssl_context"] = context_of(load("gevent.ssl"), certificate)
    load("gevent.server").StreamServer(own, body, **tls).serve_forever()


def threads(body: Body, listener: socket.socket, certificate: str | None) -> None:
    """Serve each connection by a thread with the standard library's blocking sockets."""
    body = on_top_of(context_of(ssl, certificate), body)
    while True:
        connection, _ = listener.accept()
        Thread(target=body, args=(connection,), daemon=True).start()


# WSGI -------------------------------------------------------------------------------------------


def hello_app(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Say hello: the WSGI application that all WSGI servers run."""
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(BODY)))]
    start_response("200 OK", headers)
    return [BODY]


def fibers_wsgi(listener: socket.socket, certificate: str | None) -> None:
    """Run pyfiber.wsgi."""
    pyfiber.run(serving_wsgi, listener, certificate)


def serving_wsgi(listener: socket.socket, certificate: str | None) -> None:
    """Run pyfiber.wsgi's server in a fiber."""
    own = load("pyfiber.socket").socket(fileno=listener.detach())
    tls = context_of(load("pyfiber.ssl"), certificate) if certificate else None
    listening = load("pyfiber.net").Listener(own)
    with load("pyfiber.wsgi").Server(hello_app, listening, tls=tls, limit=None) as server:
        server.wait()


def gevent_wsgi(listener: socket.socket, certificate: str | None) -> None:
    """Run gevent's WSGI server, without its log."""
    own = load("gevent.socket").socket(fileno=listener.detach())
    tls = {}
    if certificate is not None:
        tls["ssl_context"] = context_of(load("gevent.ssl"), certificate)
    load("gevent.pywsgi").WSGIServer(own, hello_app, log=None, **tls).serve_forever()


def gunicorn(
    worker: str, settings: dict[str, Any], listener: socket.socket, certificate: str | None
) -> None:
    """Run gunicorn with one worker process."""
    application = load("gunicorn.app.base").BaseApplication
    settings = {
        "worker_class": worker,
        "bind": f"fd://{listener.detach()}",
        "certfile": certificate,
        "loglevel": "warning",
        "control_socket_disable": True,
        **settings,
    }

    class Hello(application):  # type: ignore[misc, valid-type]
        def load_config(self) -> None:
            for name, value in settings.items():
                if name in self.cfg.settings:
                    self.cfg.set(name, value)

        def load(self) -> Callable[..., Any]:
            return hello_app

    Hello().run()


# trio -------------------------------------------------------------------------------------------


def trio(listener: socket.socket, certificate: str | None) -> None:
    """Serve each connection by a task with trio's streams."""
    module = load("trio")

    async def echo_task(stream: Any) -> None:
        with contextlib.suppress(module.BrokenResourceError):
            async with stream:
                while data := await stream.receive_some(CHUNK):
                    await stream.send_all(data)

    listening: Any = module.SocketListener(module.socket.from_stdlib_socket(listener))
    if certificate is not None:
        listening = module.SSLListener(listening, context_of(ssl, certificate))
    module.run(module.serve_listeners, echo_task, [listening])
