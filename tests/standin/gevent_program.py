"""gevent, compiled and unmodified: greenlets, pools, queues, timeouts, threads, HTTP."""

# ruff: noqa: E402
from gevent import monkey

monkey.patch_all()

import http.server
import threading
import urllib.request

import gevent
import gevent._greenlet_primitives
import greenlet
from gevent.event import AsyncResult, Event
from gevent.local import local
from gevent.lock import BoundedSemaphore
from gevent.pool import Pool
from gevent.queue import Queue

import pyfiber.greenlet

assert greenlet is pyfiber.greenlet
assert gevent._greenlet_primitives.__file__.endswith((".so", ".pyd")), "gevent is not compiled"


def spawning() -> None:
    """Results, failures, kills, links."""
    assert [g.get() for g in [gevent.spawn(pow, n, 2) for n in range(100)]] == [
        n * n for n in range(100)
    ]
    bad = gevent.spawn(lambda: {}["missing"])  # gevent prints the traceback
    bad.join()
    assert isinstance(bad.exception, KeyError)
    seen = []
    slow = gevent.spawn(gevent.sleep, 60)
    slow.link(seen.append)
    gevent.sleep(0)
    slow.kill()
    gevent.sleep(0)
    assert slow.dead
    assert seen == [slow]
    assert isinstance(slow.value, gevent.GreenletExit)


def talking() -> None:
    """Queues, events, semaphores, locals."""
    queue, out = Queue(2), []

    def produce() -> None:
        for n in range(50):
            queue.put(n)
        queue.put(None)

    def consume() -> None:
        while (n := queue.get()) is not None:
            out.append(n)

    gevent.joinall([gevent.spawn(produce), gevent.spawn(consume)], raise_error=True)
    assert out == list(range(50))

    event, result = Event(), AsyncResult()
    waiters = [gevent.spawn(event.wait) for _ in range(20)]
    gevent.spawn(result.set, "value")
    event.set()
    assert all(w.get() for w in waiters)
    assert result.get(timeout=5) == "value"

    semaphore, own, most = BoundedSemaphore(3), local(), [0, 0]

    def guarded(n: int) -> int:
        own.n = n
        with semaphore:
            most[0] += 1
            most[1] = max(most)
            gevent.sleep(0)
            most[0] -= 1
        return own.n

    assert Pool(20).map(guarded, range(40)) == list(range(40))
    assert most == [0, 3]


def timing_out() -> None:
    """Timeouts in the middle of waiting, and across a pool."""
    try:
        with gevent.Timeout(0.01):
            gevent.sleep(60)
    except gevent.Timeout:
        pass
    else:
        raise AssertionError("no timeout")
    assert gevent.with_timeout(0.01, gevent.sleep, 60, timeout_value="late") == "late"


def threads() -> None:
    """Real threads beside greenlets: the hub's pool."""
    pool = gevent.get_hub().threadpool
    assert pool.apply(sum, ([1, 2, 3],)) == 6
    assert [pool.spawn(pow, 2, n).get() for n in range(5)] == [1, 2, 4, 8, 16]


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers slowly."""

    def do_GET(self) -> None:
        gevent.sleep(0.01)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"you asked for " + self.path.encode())

    def log_message(self, *_: object) -> None:
        pass


def serving() -> None:
    """The standard library's server and client on patched sockets."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def get(n: int) -> bytes:
        url = f"http://127.0.0.1:{server.server_port}/{n}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read()

    assert Pool(20).map(get, range(100)) == [b"you asked for /%d" % n for n in range(100)]
    server.shutdown()
    thread.join()
    server.server_close()


for part in (spawning, talking, timing_out, threads, serving):
    part()
print("gevent", gevent.__version__, "works on", greenlet.__name__)
