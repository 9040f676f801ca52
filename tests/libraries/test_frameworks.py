"""Flask and Django over PostgreSQL, unchanged, under gunicorn with pyfiber's worker."""

from __future__ import annotations

import concurrent.futures
import sys
from pathlib import Path

import pytest

from tests.libraries.acts import need
from tests.libraries.services import Service
from tests.libraries.serving import serving, until

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
