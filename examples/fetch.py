"""Fetch many pages at once: so many at a time, each within its time.

    python examples/fetch.py http://example.org/ https://www.python.org/
    python examples/fetch.py            # 50 pages of a server in the same process; one never comes

With https:// the server's certificate and name are verified. HTTP/1.0 is all that it speaks.
"""

from __future__ import annotations

import argparse
import time
from urllib.parse import urlsplit

from pyfiber import net, pmap, run, sleep, timeout


def get(url: str) -> tuple[str, bytes]:
    """Return the status and the body of the page."""
    parts = urlsplit(url)
    tls = parts.scheme == "https"
    with net.connect(parts.hostname or "", parts.port or (443 if tls else 80), tls=tls) as stream:
        request = f"GET {parts.path or '/'} HTTP/1.0\r\nHost: {parts.hostname}\r\n\r\n"
        stream.write(request.encode())
        status, *lines = stream.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (s.partition(":") for s in lines)
        }
        if "content-length" in headers:
            body = stream.read_exactly(int(headers["content-length"]))
        else:
            body = b"".join(iter(stream.read, b""))
        return status.partition(" ")[2], body


def fetch(url: str, patience: float) -> str:
    """What became of it, in a line."""
    begun = time.perf_counter()
    try:
        with timeout(patience):  # for all of it: name, connection, TLS, answer
            status, body = get(url)
    except (OSError, EOFError, ValueError) as exc:
        return f"{url}: {type(exc).__name__}: {exc}"
    return f"{url}: {status}, {len(body):,} bytes, {time.perf_counter() - begun:.2f} seconds"


def fetch_all(urls: list[str], parallel: int, patience: float) -> None:
    with pmap(lambda url: fetch(url, patience), urls, limit=parallel) as lines:
        for line in lines:
            print(line, flush=True)


def slow_page(stream: net.Stream) -> None:
    """Serve the pages of the demonstration."""
    page = int(stream.read_until(b"\r\n\r\n").split()[1].strip(b"/"))
    sleep(3600 if page == 13 else page % 10 / 100)
    stream.write(b"HTTP/1.0 200 OK\r\n\r\n" + b"page %d\n" % page * 1000)


def demonstrate(parallel: int, patience: float) -> None:
    with net.serve(slow_page, "127.0.0.1", 0, grace=0) as server:
        host, port = server.address
        fetch_all([f"http://{host}:{port}/{page}" for page in range(50)], parallel, patience)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("urls", nargs="*", metavar="URL")
    parser.add_argument("--parallel", default=20, type=int, help="pages at a time")
    parser.add_argument("--patience", default=1.0, type=float, help="seconds for a page")
    options = parser.parse_args()
    if options.urls:
        run(fetch_all, options.urls, options.parallel, options.patience)
    else:
        run(demonstrate, options.parallel, options.patience)
