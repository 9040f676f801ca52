"""Threads of a node: unmodified servers and clients with threads, on a network with faults."""

from __future__ import annotations

import http.server
import socket
import socketserver
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyfiber import now, park, sleep, testing
from pyfiber.testing import Network, ScheduleFailure

SIMULATED: dict[str, Any] = {"virtualize_time": True, "threads": "simulated"}


def test_threads_run_on_the_node_that_starts_them() -> None:
    network = Network()
    seen: list[str] = []

    def work() -> None:
        thread = threading.Thread(target=lambda: seen.append(socket.gethostname()))
        thread.start()
        thread.join()
        with ThreadPoolExecutor(1) as pool:
            seen.append(pool.submit(socket.gethostname).result())

    def main() -> None:
        network.node("web", work).fiber.join()
        work()

    testing.run(main, network=network, **SIMULATED)
    assert seen == ["web", "web", "localhost", "localhost"]


def test_a_crash_ends_the_threads_of_the_node() -> None:
    network = Network()
    ticks: list[float] = []

    def tick() -> None:
        while True:
            ticks.append(now())
            sleep(1)

    def work() -> None:
        threading.Thread(target=tick, daemon=True).start()
        park()

    def main() -> None:
        node = network.node("web", work)
        sleep(2.5)
        node.crash()
        sleep(10)

    testing.run(main, network=network, **SIMULATED)
    assert ticks == [0, 1, 2]


def test_a_crash_is_no_failure_of_the_threads_that_clean_up() -> None:
    network = Network()

    def work() -> None:
        try:
            park()
        finally:
            sleep(1)  # refused: the machine is gone

    def starts_threads() -> None:
        threading.Thread(target=work).start()
        park()

    def main() -> None:
        node = network.node("web", starts_threads)
        sleep(1)
        node.crash()

    testing.run(main, network=network, **SIMULATED)


class Hello(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *args: Any) -> None:
        pass


def serve() -> None:
    with http.server.ThreadingHTTPServer(("", 80), Hello) as server:
        server.serve_forever(60)


def ask() -> list[str]:
    requests = pytest.importorskip("requests")
    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(lambda _: requests.get("http://shop/", timeout=5).text, range(5)))


def test_a_server_with_threads_and_a_pool_of_clients_run_unchanged() -> None:
    network = Network(latency=0.01)

    def main() -> None:
        network.node("shop", serve)
        assert network.node("web", ask).fiber.result() == ["hello"] * 5

    testing.run(main, network=network, **SIMULATED)
    assert testing.explore(main, 30, network=network, **SIMULATED).distinct > 20


# MongoDB --------------------------------------------------------------------------------------


class Mongo(socketserver.BaseRequestHandler):
    """As much of MongoDB as a client needs that updates one document and reads it."""

    data: dict[str, int]

    def handle(self) -> None:
        try:
            while True:
                self.answer()
        except (EOFError, OSError):
            pass

    def exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            part = self.request.recv(size - len(found))
            if not part:
                raise EOFError
            found += part
        return found

    def answer(self) -> None:
        import bson

        size, number, _, kind = struct.unpack("<iiii", self.exactly(16))
        body = self.exactly(size - 16)
        if kind == 2004:  # the first question, in the old form
            self.reply(number, 1, struct.pack("<iqii", 8, 0, 0, 1) + bson.encode(self.hello()))
            return
        command = bson.decode(body[5 : 5 + struct.unpack_from("<i", body, 5)[0]])
        found = self.perform(command)
        self.reply(number, 2013, struct.pack("<I", 0) + b"\0" + bson.encode(found))

    def reply(self, number: int, kind: int, payload: bytes) -> None:
        self.request.sendall(struct.pack("<iiii", 16 + len(payload), 1, number, kind) + payload)

    def hello(self) -> dict[str, Any]:
        sizes = dict.fromkeys(
            ("maxBsonObjectSize", "maxMessageSizeBytes", "maxWriteBatchSize"), 1 << 20
        )
        return {"ismaster": True, "minWireVersion": 0, "maxWireVersion": 21, "ok": 1.0, **sizes}

    def perform(self, command: dict[str, Any]) -> dict[str, Any]:
        if "hello" in command or "ismaster" in command:
            return self.hello()
        if "update" in command:
            self.data["visitors"] += 1
            return {"ok": 1.0, "n": 1, "nModified": 1}
        if "find" in command:
            batch = [{"_id": 1, **self.data}]
            return {"ok": 1.0, "cursor": {"id": 0, "ns": "test.pages", "firstBatch": batch}}
        return {"ok": 1.0}


def serve_mongo(data: dict[str, int]) -> None:
    handler = type("MongoWithData", (Mongo,), {"data": data})
    with socketserver.ThreadingTCPServer(("", 27017), handler) as server:
        server.daemon_threads = True
        server.serve_forever(60)


def count_in_mongo() -> int:
    import pymongo

    with pymongo.MongoClient("db", serverSelectionTimeoutMS=3000) as client:
        for _ in range(3):
            try:
                client.test.pages.update_one({"_id": 1}, {"$inc": {"visitors": 1}})
            except pymongo.errors.AutoReconnect:  # the mistake: perhaps it has been done
                client.test.pages.update_one({"_id": 1}, {"$inc": {"visitors": 1}})
        visitors: int = client.test.pages.find_one()["visitors"]
        return visitors


def test_pymongo_runs_unchanged_and_a_repeated_update_counts_twice() -> None:
    pytest.importorskip("pymongo")
    network = Network(latency=0.01, resets=True, faults=1)

    def main() -> None:
        network.node("db", serve_mongo, {"visitors": 0})
        visitors = network.node("web", count_in_mongo).fiber.result()
        assert visitors == 3, visitors

    testing.run(main, network=network, **SIMULATED)
    with pytest.raises(ScheduleFailure, match="AssertionError: 4") as caught:
        testing.explore(main, 200, network=network, **SIMULATED)
    assert "what db sends to web is lost" in caught.value.story
    with pytest.raises(ScheduleFailure) as again:
        testing.replay(main, caught.value.schedule, network=network, **SIMULATED)
    assert again.value.log == caught.value.log
