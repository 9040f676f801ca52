"""Flask and Django over PostgreSQL, unchanged, under gunicorn with pyfiber's worker."""

from __future__ import annotations

import concurrent.futures
import json
import sys
from pathlib import Path

import pytest

from tests.libraries.acts import need
from tests.libraries.services import Service, until
from tests.libraries.serving import serving
from tests.support.examples import EXAMPLES

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the servers are Debian's"),
]

TOGETHER = 20


def database(service: Service) -> str:
    return f"{service.host} {service.port} {service.user} {service.password} {service.database}"


@pytest.mark.parametrize("worker", ["Worker", "PlainWorker"])
@pytest.mark.parametrize("preload", [(), ("--preload",)], ids=["", "preload"])
@pytest.mark.parametrize("framework", ["flask", "django"])
def test_requests_at_once_have_a_connection_each(
    framework: str,
    preload: tuple[str, ...],
    worker: str,
    tmp_path: Path,
    postgres_server: Service,
) -> None:
    need(framework, "psycopg", "psycopg_pool")
    site = {
        "worker": worker,
        "program": f"tests.libraries.{framework}_program:app",
        "SITE_DATABASE": database(postgres_server),
    }
    with (
        serving(tmp_path, *preload, **site) as server,
        concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool,
    ):
        backends = set(pool.map(server.get, ["/together"] * TOGETHER))
        assert len(backends) == TOGETHER
        assert int(server.get("/alone"))
        if framework == "django":  # which closes them at the end of their requests
            until(lambda: int(server.get("/open")) == 1)


def test_connections_of_djangos_pool_are_shared(tmp_path: Path, postgres_server: Service) -> None:
    need("django", "psycopg", "psycopg_pool")
    site = {
        "program": "tests.libraries.django_program:app",
        "SITE_DATABASE": database(postgres_server),
        "SITE_POOL": "yes",
    }
    with (
        serving(tmp_path, **site) as server,
        concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool,
    ):
        for _ in range(2):
            assert len(set(pool.map(server.get, ["/together"] * TOGETHER))) == TOGETHER
        assert TOGETHER <= int(server.get("/open")) <= 25


def test_example_of_a_service_answers_many_at_once(
    tmp_path: Path, postgres_server: Service
) -> None:
    need("flask", "psycopg", "psycopg_pool")
    where = postgres_server
    dsn = f"host={where.host} port={where.port} user={where.user} password={where.password}"
    site = {
        "program": "flask_postgres:app",
        "DATABASE": f"{dsn} dbname={where.database}",
        "POOL": str(TOGETHER),
    }
    with (
        serving(tmp_path, "--chdir", str(EXAMPLES), **site) as server,
        concurrent.futures.ThreadPoolExecutor(TOGETHER) as pool,
    ):
        answers = list(pool.map(server.get, ["/"] * 2 * TOGETHER))
    assert [json.loads(answer) for answer in answers] == [{"user": "tester"}] * 2 * TOGETHER
