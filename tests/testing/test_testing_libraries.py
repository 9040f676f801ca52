"""Libraries and modules that use threads and sockets, unchanged, in virtual time and in memory.

Each test lets two threads do something and notes who was first. In some schedule that is the second
one; the same schedule shows the same again.
"""

from __future__ import annotations

import logging
import logging.handlers
import pickle
import queue
import sched
import socketserver
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import pytest

from pyfiber.testing import ScheduleFailure, explore, replay
from tests.testing.servers import Amqp, Mysql, Ssh, serving

SIMULATED: dict[str, Any] = {"threads": "simulated", "network": True}


def explored_and_replayed(main: Callable[[], list[int]]) -> None:
    """Both orders occur, and nothing else; a schedule that has the second one has it again."""

    def in_order() -> None:
        assert sorted(order := main()) == [0, 1]
        assert order == [0, 1], "the second one is first"

    with pytest.raises(ScheduleFailure, match="the second one is first") as failure:
        explore(in_order, schedules=100, **SIMULATED)
    with pytest.raises(ScheduleFailure, match="the second one is first"):
        replay(in_order, failure.value.schedule, **SIMULATED)


def both(target: Callable[[int], object]) -> None:
    together = threading.Barrier(2)

    def begin(number: int) -> None:
        together.wait(60)
        target(number)

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_pymysql_runs_unchanged() -> None:
    pymysql = pytest.importorskip("pymysql")

    def main() -> list[int]:
        numbers: dict[int, int] = {}

        def ask(number: int) -> None:
            with pymysql.connect(host=host, user="tester", connect_timeout=5) as connection:
                cursor = connection.cursor()
                cursor.execute("SELECT n")
                numbers[cursor.fetchone()[0]] = number

        with serving(3306, Mysql().session) as host:
            both(ask)
        return [numbers[1], numbers[2]]

    explored_and_replayed(main)


def test_pika_runs_unchanged() -> None:
    pika = pytest.importorskip("pika")

    def main() -> list[int]:
        def produce(number: int) -> None:
            connection = pika.BlockingConnection(parameters)
            channel = connection.channel()
            channel.basic_publish("", "q", b"%d" % number)
            connection.close()

        with serving(5672, Amqp().session) as host:
            parameters = pika.ConnectionParameters(host)
            both(produce)
            connection = pika.BlockingConnection(parameters)
            connection.sleep(100)
            channel = connection.channel()
            assert channel.queue_declare("q").method.message_count == 2
            found = [channel.basic_get("q", auto_ack=True)[2] for _ in range(2)]
            connection.close()
        return [int(each) for each in found]

    explored_and_replayed(main)


def test_paramiko_runs_unchanged() -> None:
    paramiko = pytest.importorskip("paramiko")
    key = paramiko.RSAKey.generate(1024)

    def main() -> list[int]:
        order: list[int] = []

        def execute(number: int) -> None:
            with paramiko.SSHClient() as ssh:
                ssh.set_missing_host_key_policy(paramiko.AutoAddPolicy())
                ssh.connect(
                    host, 22, "tester", "secret", look_for_keys=False, allow_agent=False, timeout=60
                )
                stdin, stdout, _ = ssh.exec_command("upper", timeout=60)
                stdin.write(b"text" * 1000)
                stdin.channel.shutdown_write()
                assert stdout.read() == b"TEXT" * 1000
                assert stdout.channel.recv_exit_status() == 0
            order.append(number)

        with serving(22, Ssh(paramiko, key).session) as host:
            both(execute)
        return order

    explored_and_replayed(main)


def test_redis_runs_unchanged() -> None:
    redis = pytest.importorskip("redis")

    def main() -> list[int]:
        order: dict[int, int] = {}
        count = 0

        def session(sock: Any) -> None:
            nonlocal count
            with sock.makefile("rb") as stream:
                while line := stream.readline():
                    words = []
                    for _ in range(int(line[1:])):
                        words.append(stream.read(int(stream.readline()[1:]) + 2)[:-2])
                    if words[0] == b"INCRBY":
                        count += 1
                        sock.sendall(b":%d\r\n" % count)
                    else:
                        sock.sendall(b"+OK\r\n")

        def count_up(number: int) -> None:
            order[client.incr("counter")] = number

        with serving(6379, session) as host, redis.Redis(host, protocol=2) as client:
            both(count_up)
        return [order[1], order[2]]

    explored_and_replayed(main)


def test_queue_and_pool_run_unchanged() -> None:
    def main() -> list[int]:
        jobs: queue.PriorityQueue[int] = queue.PriorityQueue(1)
        together = threading.Barrier(2)

        def put(number: int) -> None:
            together.wait(60)
            jobs.put(number)

        with ThreadPoolExecutor(2) as pool:
            putting = [pool.submit(put, number) for number in range(2)]
            order = [jobs.get(timeout=60) for _ in range(2)]
            assert {each.result() for each in as_completed(putting, timeout=60)} == {None}
        with pytest.raises(queue.Empty):
            jobs.get(timeout=1000)
        return order

    explored_and_replayed(main)


def test_sched_runs_unchanged() -> None:
    def main() -> list[int]:
        order: list[int] = []
        began = time.monotonic()

        def run(number: int) -> None:
            events = sched.scheduler()
            events.enter(3600, 1, order.append, (number,))
            events.run()

        both(run)
        assert time.monotonic() - began == 3600
        return order

    explored_and_replayed(main)


class Records(socketserver.StreamRequestHandler):
    """What docs.python.org's logging cookbook has as the receiver of a SocketHandler."""

    def handle(self) -> None:
        while head := self.rfile.read(4):
            (size,) = struct.unpack(">L", head)
            record = logging.makeLogRecord(pickle.loads(self.rfile.read(size)))
            self.server.records.put(record)  # type: ignore[attr-defined]


class Receiver(socketserver.ThreadingTCPServer):
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(address, Records)
        self.records: queue.Queue[logging.LogRecord] = queue.Queue()


def test_logging_and_socketserver_run_unchanged() -> None:
    def main() -> list[int]:
        logger = logging.Logger("simulated")
        with Receiver(("127.0.0.1", logging.handlers.DEFAULT_TCP_LOGGING_PORT)) as server:
            serving = threading.Thread(target=server.serve_forever)
            serving.start()
            sender = logging.handlers.SocketHandler(*server.server_address[:2])
            waiting: queue.Queue[Any] = queue.Queue()
            logger.addHandler(logging.handlers.QueueHandler(waiting))
            listener = logging.handlers.QueueListener(waiting, sender)
            listener.start()
            both(lambda number: logger.warning("%d", number))
            order = [int(server.records.get(timeout=60).getMessage()) for _ in range(2)]
            listener.stop()
            sender.close()
            server.shutdown()
            serving.join()
        return order

    explored_and_replayed(main)
