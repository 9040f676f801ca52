"""Streams, connections and servers for new programs.

A client::

    with net.connect("example.org", 443, tls=True) as stream:
        stream.write(b"GET / HTTP/1.0\\r\\nHost: example.org\\r\\n\\r\\n")
        for line in stream:
            print(line)

A server, which calls its handler in a new fiber for each connection::

    def echo(stream):
        while data := stream.read():
            stream.write(data)

    with net.serve(echo, "127.0.0.1", 7000, grace=5) as server:
        server.wait()

Operations park the running fiber; ``pyfiber.timeout()`` limits any of them. A Stream and a Listener
made in a run also work outside of one, where they block their thread; ``serve()`` needs a run.
For UDP and all other kinds of sockets see ``pyfiber.socket``.
"""

from __future__ import annotations

import sys

from pyfiber.net._connect import connect, connect_unix
from pyfiber.net._listen import Listener, listen, listen_unix
from pyfiber.net._server import Server, serve
from pyfiber.net._stream import IncompleteRead, LimitExceeded, Stream

__all__ = [
    "IncompleteRead",
    "LimitExceeded",
    "Listener",
    "Server",
    "Stream",
    "connect",
    "connect_unix",
    "listen",
    "listen_unix",
    "serve",
]

for _name in __all__:
    getattr(sys.modules[__name__], _name).__module__ = __name__
del _name
