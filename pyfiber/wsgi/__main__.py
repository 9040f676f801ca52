"""`python -m pyfiber.wsgi module:app`: a whole program that serves a WSGI application.

At a SIGTERM or SIGINT the program accepts no more connections, gives the requests that have come
`--grace` seconds, and ends. A second signal ends the program at once.
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
    from ssl import SSLContext
    from types import ModuleType
    from wsgiref.types import WSGIApplication

#: The default address.
HOST = "127.0.0.1"
PORT = 8000


class Refused(Exception):
    """Why it cannot serve what the command line says, as a sentence."""


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line, or exit with an error."""
    parser = argparse.ArgumentParser(prog="python -m pyfiber.wsgi", description=__doc__)
    parser.add_argument("app", metavar="MODULE:NAME", help="the application; NAME: app if left out")
    parser.add_argument(
        "--host", help=f"the address to listen at ({HOST}, which only this machine reaches)"
    )
    parser.add_argument("--port", type=int, help=f"0: one that is free ({PORT})")
    parser.add_argument("--unix", metavar="PATH", help="a Unix socket, in place of host and port")
    parser.add_argument("--limit", type=int, default=1000, help="connections at a time (1000)")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds to end in (30)")
    parser.add_argument("--keep-alive", type=float, default=30.0, help="seconds of silence (30)")
    parser.add_argument("--certificate", metavar="FILE", help="serve TLS, with this certificate")
    parser.add_argument("--key", metavar="FILE", help="its key, if it is not in the same file")
    add_patch(parser)
    options = parser.parse_args(arguments)
    if options.unix is not None and (options.host is not None or options.port is not None):
        parser.error("--unix is in place of --host and --port")
    return options


def find(name: str) -> WSGIApplication:
    """Import the application; its module may be in the current folder, too. Raises Refused."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    found: Any = imported(module)
    try:
        app = reduce(getattr, (attribute or "app").split("."), found)
    except AttributeError as exc:
        raise Refused(f"there is no {name}: {exc}") from None
    if not callable(app):
        raise Refused(f"{name} is no WSGI application: it cannot be called")
    return app  # type: ignore[no-any-return]


def imported(module: str) -> ModuleType:
    """Import the application's module. Refused if there is none; its own errors are raised."""
    if not module or module.startswith("."):
        raise Refused(f"{module!r} is no module's name: MODULE:NAME is needed, as in service:app")
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as exc:
        if exc.name is None or not f"{module}.".startswith(f"{exc.name}."):
            raise  # the application needs a module that is not there
        raise Refused(str(exc)) from None


def server_of(options: argparse.Namespace, app: WSGIApplication) -> wsgi.Server:
    """Make the server, which listens from then on. Raises Refused."""
    more: wsgi._server.Options = {
        "tls": tls_of(options),
        "limit": options.limit,
        "grace": options.grace,
        "keep_alive": options.keep_alive,
    }
    address = place_of(options)
    try:
        if options.unix is not None:
            return wsgi.serve_unix(app, options.unix, **more)
        return wsgi.serve(app, *address, **more)
    except (OSError, ValueError) as exc:
        raise Refused(f"cannot serve at {options.unix or place(address)}: {exc}") from None


def place_of(options: argparse.Namespace) -> tuple[str, int]:
    """Host and port."""
    return (
        HOST if options.host is None else options.host,
        PORT if options.port is None else options.port,
    )


def tls_of(options: argparse.Namespace) -> SSLContext | None:
    """The TLS context; None if TLS is not wanted. Raises Refused."""
    if options.certificate is None:
        return None
    from pyfiber import ssl

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        tls.load_cert_chain(options.certificate, options.key)
    except OSError as exc:
        key = f" and the key {options.key}" if options.key else ""
        raise Refused(f"cannot use the certificate {options.certificate}{key}: {exc}") from None
    return tls


def work(options: argparse.Namespace) -> None:
    """Serve, in a run, until a signal comes. Raises Refused."""
    app = find(options.app)
    with service.running():
        with signals(SIGTERM, SIGINT) as received:
            server = server_of(options, app)
            with TaskGroup() as group:
                ending = group.spawn(end_at_signals, received, server)
                with server:
                    say(f"pyfiber.wsgi serves at {place(server.address)}")
                    server.wait()
                ending.cancel()
        service.end_others("the server has ended", options.grace, lambda: None)


def say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def end_at_signals(received: signals, server: wsgi.Server) -> None:
    """At the first signal end in order, at the second at once."""
    received.get()
    service.stop()
    server.stop()
    received.get()
    server.abort()


def main(arguments: list[str] | None = None) -> int:
    """Serve, and return the exit status."""
    options = parse(arguments)
    patch_as(options)  # before the application is imported
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    try:
        run(work, options)
    except Refused as exc:
        say(f"pyfiber.wsgi: {exc}")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
