"""Downloads put together before they begin: two at once, then ten with three under way.

    python examples/downloads.py

The server is started here: it answers slowly, page 1 slowest of all, so that one sees that the
others do not wait for it. A socket of the standard library blocks its thread, so each download is
performed by a thread of the pool.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

from pyfiber.compose import Work, blocking, call, describe, run_parallel


class Pages(BaseHTTPRequestHandler):
    """Pages of text, each 1,000 bytes longer than the one before."""

    delay = 0.05

    def do_GET(self) -> None:
        number = int(self.path.rpartition("=")[2])
        time.sleep(self.delay * (4 if number == 1 else 1))
        body = b"x" * (1000 * number)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def read(address: str) -> bytes:
    """The body, by ordinary code."""
    with urlopen(address) as answer:
        body: bytes = answer.read()
        return body


def download(server: str, page: int) -> Work[int]:
    """The size of a page."""
    return call(read, f"{server}/?page={page}").map(len).on_thread_pool()


@describe
def both(server: str) -> Generator[Work[Any], Any, tuple[int, int]]:
    """Two downloads that are under way at the same time."""
    first = yield download(server, 2).start_child()
    second = yield download(server, 3).start_child()
    return (yield first), (yield second)


def many(server: str, pages: int, at_once: int) -> Work[tuple[float, list[int]]]:
    """All pages, always so many at once, traced and timed."""
    works = [download(server, page).traced(f"page {page}") for page in range(1, pages + 1)]
    return run_parallel(at_once, works).timed()


def main() -> None:
    """Start the server, download."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pages", type=int, default=10)
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--delay", type=float, default=0.05, help="seconds the server takes")
    options = parser.parse_args()
    Pages.delay = options.delay
    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        print("both:", blocking(both(address)))
        seconds, sizes = blocking(many(address, options.pages, options.at_once))
        print("all:", sizes)
        print(f"{seconds:.2f} seconds")
        server.shutdown()


if __name__ == "__main__":
    main()
