"""A crawler: every page of a site, so many at a time, with time limits and retries.

    python examples/crawl.py
    python examples/crawl.py --check    # compares with a crawl of one page after the other

The site is generated, and served here by a thread of http.server: some of its pages are slow, some
fail at first, some hang when they are first asked for, some links lead nowhere. http.client blocks,
so each request is made in a thread, while a fiber waits for it. Ctrl-C stops everything and reports
what there is.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from typing import Any, NamedTuple

import pyfiber
from pyfiber import Cancelled, Channel, Fiber, TaskGroup, move_on_after, pmap, sleep
from pyfiber.threads import ThreadLimiter

HOST = "127.0.0.1"
START = "/0"

# The site ----------------------------------------------------------------------------------------


class Site:
    """Pages that link to each other, the same ones for the same seed."""

    def __init__(self, pages: int, seed: int, hang: float) -> None:
        draw = Random(seed)
        self.links: list[list[int]] = [[] for _ in range(pages)]
        for page in range(1, pages):  # each can be reached
            self.links[draw.randrange(page)].append(page)
        for links in self.links:  # and some are not there
            links += (draw.randrange(pages + pages // 100 + 1) for _ in range(5))
        self.failures = Counter({page: 1 + page % 3 for page in range(pages) if page % 20 == 7})
        self.delays = {page: 0.02 for page in range(pages) if page % 25 == 3}
        self.hangs = dict.fromkeys(range(5, pages, max(5, pages // 4)), hang)
        self.over = threading.Event()

    def answer(self, page: int) -> tuple[int, str]:
        """The status and the text; not the same every time."""
        if page >= len(self.links):
            return 404, "no such page"
        self.over.wait(self.hangs.pop(page, 0) or self.delays.get(page, 0))
        if self.failures[page] > 0:
            self.failures[page] -= 1
            return 503, "try again"
        return 200, "".join(f'<p><a href="/{link}">{link}</a></p>\n' for link in self.links[page])


@contextmanager
def served(site: Site) -> Iterator[int]:
    """Serve it, at the port returned, until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open
        wbufsize = -1  # an answer goes out as a whole

        def do_GET(self) -> None:
            status, text = site.answer(int(self.path[1:]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 128
        daemon_threads = False  # server_close() waits for the threads

        def handle_error(self, *_: Any) -> None:
            """Say nothing of clients that hang up."""

    with Server((HOST, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            site.over.set()
            server.shutdown()
            thread.join()


# A page ------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """What a crawl keeps of it. Without an answer the status is 0."""

    status: int
    links: tuple[str, ...] = ()


def get(connection: HTTPConnection, path: str) -> Page:
    """Ask for a page, by ordinary code that blocks."""
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        links = re.findall('href="([^"]*)"', answer.read().decode())
        return Page(answer.status, tuple(links))
    except (OSError, HTTPException):
        connection.close()
        return Page(0)


# The crawl ---------------------------------------------------------------------------------------


class Crawl:
    """A crawl, and what has come of it so far."""

    def __init__(self, port: int, parallel: int, patience: float, attempts: int) -> None:
        self.port = port
        self.parallel = parallel
        self.patience = patience
        self.attempts = attempts
        self.threads = ThreadLimiter(parallel)
        self.idle: list[HTTPConnection] = []
        self.seen = {START}
        self.pages: dict[str, Page] = {}
        self.retries = self.timeouts = 0

    def run(self) -> None:
        """Visit all pages that can be reached, `parallel` at a time."""
        Fiber(self.show_progress, daemon=True).start()
        frontier: Channel[str] = Channel(sys.maxsize)
        frontier.send(START)
        with (
            ExitStack() as self.connections,
            pmap(self.visit, frontier, limit=self.parallel, ordered=False) as visits,
        ):
            for path, page in visits:
                self.pages[path] = page
                for link in page.links:
                    if link not in self.seen:
                        self.seen.add(link)
                        frontier.send(link)
                if len(self.pages) == len(self.seen):
                    frontier.close()

    def visit(self, path: str) -> tuple[str, Page]:
        """A page, if not at once then later."""
        for attempt in range(self.attempts):
            if attempt > 0:
                self.retries += 1
                sleep(0.005 * 2**attempt)
            with move_on_after(self.patience) as limit:
                page = self.fetch(path)
                if page.status in (200, 404):
                    return path, page
            self.timeouts += limit.cancelled()
        return path, Page(0)

    def fetch(self, path: str) -> Page:
        """Have a thread ask for it. If that is cancelled, hang up: then the thread comes back."""
        connection = self.idle.pop() if self.idle else self.connect()
        with TaskGroup() as group:
            request = group.spawn(self.threads.to_thread, get, connection, path)
            try:
                request.join()
            except Cancelled:
                with suppress(AttributeError, OSError):  # there is no socket, or none any more
                    connection.sock.shutdown(socket.SHUT_RDWR)
                raise
        self.idle.append(connection)
        return request.result()

    def connect(self) -> HTTPConnection:
        connection = HTTPConnection(HOST, self.port, timeout=10 * self.patience)
        return self.connections.enter_context(closing(connection))

    def show_progress(self) -> None:
        """On a terminal, ten times a second."""
        while sys.stderr.isatty():
            line = f"{len(self.pages):,} of {len(self.seen):,} pages, {self.retries:,} retries"
            print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)
            try:
                sleep(0.1)
            except Cancelled:
                print("\r\033[K", end="", file=sys.stderr, flush=True)
                raise

    def report(self) -> str:
        kinds = Counter(page.status for page in self.pages.values())
        return (
            f"{kinds[200]:,} pages, {kinds[404]:,} missing, {kinds[0]:,} without an answer, "
            f"{self.retries:,} retries, {self.timeouts:,} timeouts"
        )


def crawl_in_sequence(port: int, patience: float, attempts: int) -> dict[str, Page]:
    """The same in a loop, without fibers and threads."""
    pages: dict[str, Page] = {}
    waiting = deque([START])
    with closing(HTTPConnection(HOST, port, timeout=patience)) as connection:
        while waiting:
            path = waiting.popleft()
            if path in pages:
                continue
            for _ in range(attempts):
                page = get(connection, path)
                if page.status in (200, 404):
                    break
            else:
                page = Page(0)
            pages[path] = page
            waiting += page.links
    return pages


# The program -------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pages", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parallel", type=int, default=16, help="pages at a time")
    parser.add_argument("--patience", type=float, default=0.5, help="seconds for a page")
    parser.add_argument("--attempts", type=int, default=8, help="for a page")
    parser.add_argument("--check", action="store_true", help="compare with a sequential crawl")
    options = parser.parse_args()
    if min(options.pages, options.parallel, options.attempts) < 1 or not options.patience > 0:
        parser.error("all numbers must be positive")
    return options


def main() -> int | str:
    """Crawl, report; the exit code, or what is wrong."""
    options = arguments()

    def site() -> Site:
        return Site(options.pages, options.seed, hang=4 * options.patience)

    with served(site()) as port:
        crawl = Crawl(port, options.parallel, options.patience, options.attempts)
        start = time.perf_counter()
        try:
            pyfiber.run(crawl.run)
        except KeyboardInterrupt:
            print("interrupted:", crawl.report())
            return 130
        print(f"{crawl.report()}: {time.perf_counter() - start:.2f} seconds")
    if options.check:
        with served(site()) as port:
            start = time.perf_counter()
            pages = crawl_in_sequence(port, options.patience, options.attempts)
            print(f"one after the other: {time.perf_counter() - start:.2f} seconds")
        if pages != crawl.pages:
            return "the pages are not the same"
        print("the same pages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
