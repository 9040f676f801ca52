"""What libraries do in `finally` and `except` when a time limit ends the block that uses them."""

from __future__ import annotations

import sys
import time

import pytest

import pyfiber
from tests.libraries.acts import need
from tests.libraries.services import Service
from tests.support.subprocesses import run_script

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the servers are Debian's"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # theirs
]


def conninfo(service: Service) -> str:
    return (
        f"host={service.host} port={service.port} user={service.user} "
        f"password={service.password} dbname={service.database}"
    )


def test_psycopg_rolls_back_and_its_pool_gets_the_connection_back(postgres_server: Service) -> None:
    need("psycopg", "psycopg_pool")
    import psycopg_pool
    from psycopg.pq import TransactionStatus

    def main() -> tuple[object, int]:
        with psycopg_pool.ConnectionPool(
            conninfo(postgres_server), min_size=1, max_size=1, open=True
        ) as pool:
            with pool.connection() as connection:
                connection.execute("create temporary table kept (number int)")
            for _ in range(3):
                with (
                    pyfiber.move_on_after(0.1),
                    pool.connection(timeout=10) as connection,
                    connection.transaction(),
                ):
                    connection.execute("insert into kept values (1)")
                    time.sleep(5)
            with pool.connection(timeout=10) as connection:
                status = connection.pgconn.transaction_status
                row = connection.execute("select count(*) from kept").fetchone()
            assert pool.get_stats()["pool_size"] == 1
            assert row is not None
            return status, row[0]

    with pyfiber.patch():
        assert pyfiber.run(main) == (TransactionStatus.IDLE, 0)


def test_psycopg_rolls_back_a_query_that_a_deadline_ends(postgres_server: Service) -> None:
    need("psycopg")
    import psycopg
    from psycopg.pq import TransactionStatus

    def main() -> list[object]:
        with psycopg.connect(conninfo(postgres_server)) as connection:
            with pyfiber.move_on_after(0.2):
                try:
                    connection.execute("select pg_sleep(10)")
                finally:
                    connection.rollback()
            return [connection.info.transaction_status, connection.closed]

    with pyfiber.patch():
        assert pyfiber.run(main) == [TransactionStatus.IDLE, False]


def test_redis_connection_is_released_and_of_use(redis_server: Service) -> None:
    need("redis")
    import redis

    def main() -> tuple[int, bool]:
        pool = redis.BlockingConnectionPool(
            host=redis_server.host, port=redis_server.port, max_connections=2, timeout=5
        )
        client = redis.Redis(connection_pool=pool)

        def asks() -> None:
            with pyfiber.move_on_after(0.1):
                client.blpop("nothing", timeout=5)

        for _ in range(4):
            pyfiber.gather(*[asks] * 2)
        alive = bool(client.ping())
        made = len(pool._connections)
        client.close()
        pool.disconnect()
        return made, alive

    with pyfiber.patch():
        assert pyfiber.run(main) == (2, True)


DJANGO = """
    import os, time
    import pyfiber
    pyfiber.patch()
    from tests.libraries import django_program
    from django.db import connection, transaction

    def main():
        with connection.cursor() as cursor:
            cursor.execute("create temporary table kept (number int)")
        with pyfiber.move_on_after(0.2):
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("insert into kept values (1)")
                    time.sleep(5)
        with pyfiber.move_on_after(0.2):
            with transaction.atomic():
                with connection.cursor() as cursor:
                    cursor.execute("insert into kept values (1)")
                    cursor.execute("select pg_sleep(10)")
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from kept")
            print(cursor.fetchone()[0], connection.in_atomic_block, connection.is_usable())
        connection.close()

    pyfiber.run(main)
"""


def test_django_rolls_back_and_goes_on(
    postgres_server: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("django", "psycopg")
    where = postgres_server
    monkeypatch.setenv(
        "SITE_DATABASE", f"{where.host} {where.port} {where.user} {where.password} {where.database}"
    )
    assert run_script(DJANGO).stdout == "0 False True\n"
