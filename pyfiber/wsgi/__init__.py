"""A WSGI server (PEP 3333) with a fiber for each connection, so that the application may wait.

::

    from pyfiber import run, wsgi

    def app(environ, start_response):
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"Hello, world!"]

    def main():
        with wsgi.serve(app, "127.0.0.1", 8000, grace=10) as server:
            server.wait()

    run(main)

or, as a whole program: ``python -m pyfiber.wsgi module:app --host 127.0.0.1 --port 8000``.

httptools reads HTTP/1.1 and 1.0: ``pip install "pyfiber-engine[wsgi]"``.
"""

from __future__ import annotations

import sys

from pyfiber.wsgi._answer import FileWrapper
from pyfiber.wsgi._parser import Refused
from pyfiber.wsgi._server import Server, serve, serve_unix

__all__ = ["FileWrapper", "Refused", "Server", "serve", "serve_unix"]

for _name in __all__:
    getattr(sys.modules[__name__], _name).__module__ = __name__
del _name
