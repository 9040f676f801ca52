"""`python -m pyfiber.wsgi module:app --host HOST --port PORT`: a whole program that serves.

SIGTERM and SIGINT end it: no more connections, and `--grace` seconds for the requests that have
come. A second one ends it at once.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from functools import reduce
from signal import SIGINT, SIGTERM
from typing import TYPE_CHECKING, Any

from pyfiber import TaskGroup, run, service, signals, wsgi
from pyfiber._patch.command import add_patch, patch_as
from pyfiber.net._stream import place

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """What the user wants."""
    parser = argparse.ArgumentParser(prog="python -m pyfiber.wsgi", description=__doc__)
    parser.add_argument("app", metavar="MODULE:NAME", help="the application; NAME: app if left out")
    parser.add_argument("--host", help="the address to listen at; 127.0.0.1: this machine only")
    parser.add_argument("--port", type=int, help="0: one that is free")
    parser.add_argument("--unix", metavar="PATH", help="a Unix socket, in place of host and port")
    parser.add_argument("--limit", type=int, default=1000, help="connections at a time (1000)")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds to end in (30)")
    parser.add_argument("--keep-alive", type=float, default=30.0, help="seconds of silence (30)")
    parser.add_argument("--certificate", metavar="FILE", help="serve TLS, with this certificate")
    parser.add_argument("--key", metavar="FILE", help="its key, if it is not in the same file")
    add_patch(parser)
    options = parser.parse_args(arguments)
    if options.unix is None and (options.host is None or options.port is None):
        parser.error("say where to listen: --host and --port, or --unix")
    if options.unix is not None and (options.host is not None or options.port is not None):
        parser.error("--unix is in place of --host and --port")
    return options


def find(name: str) -> WSGIApplication:
    """The application, from the folder in which the program was started, too."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    app: Any = reduce(getattr, (attribute or "app").split("."), importlib.import_module(module))
    if not callable(app):
        raise TypeError(f"{name} is no WSGI application: it cannot be called")
    return app  # type: ignore[no-any-return]


def server_of(options: argparse.Namespace, app: WSGIApplication) -> wsgi.Server:
    """The server, which listens."""
    tls = None
    if options.certificate is not None:
        from pyfiber import ssl

        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.certificate, options.key)
    more: wsgi._server.Options = {
        "tls": tls,
        "limit": options.limit,
        "grace": options.grace,
        "keep_alive": options.keep_alive,
    }
    if options.unix is not None:
        return wsgi.serve_unix(app, options.unix, **more)
    return wsgi.serve(app, options.host, options.port, **more)


def work(options: argparse.Namespace) -> None:
    """In a run, until a signal comes."""
    app = find(options.app)
    with service.running():
        with signals(SIGTERM, SIGINT) as received, TaskGroup() as group:
            server = server_of(options, app)
            ending = group.spawn(end_at_signals, received, server)
            with server:
                print(
                    f"pyfiber.wsgi serves at {place(server.address)}", file=sys.stderr, flush=True
                )
                server.wait()
            ending.cancel()
        service.end_others("the server has ended", options.grace, lambda: None)


def end_at_signals(received: signals, server: wsgi.Server) -> None:
    """The first one is a request, the second one an order."""
    received.get()
    service.stop()
    server.stop()
    received.get()
    server.abort()


def main(arguments: list[str] | None = None) -> int:
    """Serve."""
    options = parse(arguments)
    patch_as(options)  # before the application is imported
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    run(work, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
