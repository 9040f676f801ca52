"""Runs a server that is written in Python.

    python -m bench.io.serve SUBJECT [--speaks http|wsgi] [--certificate FILE] [--compute]

Prints the port on which the server listens at 127.0.0.1, and serves until it is killed. With
--compute another thread runs Python code all the time.
"""

from __future__ import annotations

import argparse
import ctypes
import signal
import socket
import sys
from threading import Thread

from .servers import BACKLOG
from .subjects import ECHO, find

#: Seconds after which the process ends, even if the measuring process still runs.
LONGEST_LIFE = 600
PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """End this process when its parent ends, and after LONGEST_LIFE in any case."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.alarm(LONGEST_LIFE)


def listening_socket() -> socket.socket:
    """Return a socket of the standard library that listens on a free port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which connections inherit
    return listener


def compute() -> None:
    """Run Python code that never waits."""
    number = 0
    while True:
        number += 1


def main() -> None:
    """Print the port and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("subject")
    parser.add_argument("--speaks", default=ECHO)
    parser.add_argument("--certificate")
    parser.add_argument("--compute", action="store_true")
    options = parser.parse_args()
    end_with_parent()
    serve = find(options.subject, options.speaks).serve
    assert serve is not None
    listener = listening_socket()
    print(listener.getsockname()[1], flush=True)
    if options.compute:
        Thread(target=compute, daemon=True).start()
    serve(listener, options.certificate)


if __name__ == "__main__":
    main()
