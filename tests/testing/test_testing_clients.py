"""Unmodified client libraries against small servers, on a network in memory with faults."""

from __future__ import annotations

import http.server
import random
import socketserver
from collections.abc import Iterator
from typing import Any

import pytest

import pyfiber
from pyfiber import now, sleep, spawn, testing
from pyfiber.testing import Network, ScheduleFailure


@pytest.fixture(autouse=True)
def _patched() -> Iterator[None]:
    with pyfiber.patch():
        yield


class Server(socketserver.TCPServer):
    """A server of the standard library that handles each connection in a fiber."""

    allow_reuse_address = True

    def process_request(self, request: Any, client_address: Any) -> None:
        spawn(self.handle_and_close, request, client_address)

    def handle_and_close(self, request: Any, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # the connection was lost
        finally:
            self.shutdown_request(request)


def serve(handler: type[socketserver.BaseRequestHandler], port: int) -> None:
    with Server(("", port), handler) as server:
        server.serve_forever(poll_interval=60)


# Redis ----------------------------------------------------------------------------------------


class Redis(socketserver.StreamRequestHandler):
    """As much of Redis as a client needs that counts and reads."""

    data: dict[bytes, bytes]

    def handle(self) -> None:
        while head := self.rfile.readline():
            words = [self.word() for _ in range(int(head[1:]))]
            self.wfile.write(self.answer(words[0].upper(), *words[1:]))

    def word(self) -> bytes:
        size = int(self.rfile.readline()[1:])
        return self.rfile.read(size + 2)[:-2]

    def answer(self, command: bytes, *words: bytes) -> bytes:
        if command == b"HELLO":
            return b"%1\r\n+proto\r\n:3\r\n"
        if command in (b"INCR", b"INCRBY"):
            self.data[words[0]] = b"%d" % (int(self.data.get(words[0], b"0")) + 1)
            return b":%s\r\n" % self.data[words[0]]
        if command == b"GET":
            value = self.data.get(words[0])
            return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)
        return b"+OK\r\n"


def redis_with_data() -> type[Redis]:
    return type("RedisWithData", (Redis,), {"data": {}})


def count_in_redis() -> list[int]:
    redis = pytest.importorskip("redis")
    with redis.Redis(host="db", socket_timeout=5) as client:
        return [client.incr("visitors") for _ in range(3)]


def test_redis_runs_unchanged() -> None:
    def main() -> None:
        network = Network.current()
        network.node("db", serve, redis_with_data(), 6379)
        assert network.node("web", count_in_redis).fiber.result() == [1, 2, 3]

    network = Network(latency=0.01)
    testing.run(main, network=network)
    assert testing.explore(main, 30, network=network, preempt=True).distinct > 20


def test_redis_retries_an_increment_whose_reply_is_lost() -> None:
    """By default redis-py repeats any command after a lost connection."""
    network = Network(latency=0.01, resets=True, faults=1)

    def main() -> None:
        random.seed(0)  # for the pauses between attempts
        network.node("db", serve, redis_with_data(), 6379)
        counted = network.node("web", count_in_redis).fiber.result()
        assert counted == [1, 2, 3], counted

    with pytest.raises(ScheduleFailure) as caught:
        testing.explore(main, 200, network=network)
    text = str(caught.value)
    assert "AssertionError: [" in text
    assert "what db sends to web is lost: the connection of web to db on port 6379 is reset" in text
    with pytest.raises(ScheduleFailure) as again:
        testing.replay(main, caught.value.schedule, network=network)
    assert again.value.log == caught.value.log


def test_redis_gives_up_a_silent_connection() -> None:
    redis = pytest.importorskip("redis")
    network = Network(latency=0.01, half_open=True, faults=1)
    took: set[int] = set()

    def count() -> None:
        with redis.Redis(host="db", socket_timeout=5, retry=None) as client:
            try:
                client.incr("visitors")
            except redis.TimeoutError:
                took.add(round(now()))

    def main() -> None:
        network.node("db", serve, redis_with_data(), 6379)
        network.node("web", count).fiber.join()

    testing.explore(main, 50, network=network)
    assert took == {5}


# HTTP -----------------------------------------------------------------------------------------


class Shop(http.server.BaseHTTPRequestHandler):
    """A shop that takes orders by POST, and shows them by GET."""

    protocol_version = "HTTP/1.1"
    orders: list[str]

    def do_POST(self) -> None:
        self.orders.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = ",".join(self.orders).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def shop_with_orders() -> type[Shop]:
    return type("ShopWithOrders", (Shop,), {"orders": []})


def order(retries: Any) -> str:
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retries))
        session.get("http://shop/", timeout=5)
        session.post("http://shop/", data="tea", timeout=5)
        text: str = session.get("http://shop/", timeout=5).text
        return text


def order_twice_at_most(network: Network, retries: Any) -> None:
    network.node("shop", serve, shop_with_orders(), 80)
    orders = network.node("web", order, retries).fiber.result()
    assert orders == "tea", orders


def test_requests_that_repeat_a_post_order_twice() -> None:
    urllib3 = pytest.importorskip("urllib3")
    network = Network(latency=0.01, resets=True, faults=1)

    def repeated() -> None:
        order_twice_at_most(network, urllib3.Retry(3, allowed_methods=None, backoff_factor=1))

    testing.run(repeated, network=network)  # fills the library's caches
    with pytest.raises(ScheduleFailure, match="AssertionError: tea,tea") as caught:
        testing.explore(repeated, 200, network=network)
    assert "what shop sends to web is lost" in str(caught.value)
    with pytest.raises(ScheduleFailure) as again:
        testing.replay(repeated, caught.value.schedule, network=network)
    assert again.value.log == caught.value.log


def test_requests_reconnect_when_the_server_was_restarted() -> None:
    requests = pytest.importorskip("requests")
    network = Network(latency=0.01, faults=2)

    def read() -> list[str]:
        found = []
        with requests.Session() as session:
            for _ in range(4):
                found.append(session.get("http://shop/", timeout=5).text)
                sleep(1)
        return found

    def main() -> None:
        shop = network.node("shop", serve, shop_with_orders(), 80)
        reader = network.node("web", read)
        while not reader.fiber.done():
            sleep(0.5)
            if network.fault("the shop is restarted"):
                shop.crash()
                shop.restart()
        assert reader.fiber.result() == [""] * 4

    testing.run(main, network=network)  # urllib3 looks once whether poll() works
    testing.explore(main, 60, network=network)
