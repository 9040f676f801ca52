"""Drivers of databases, unchanged, in fibers.

A hundred requests at once, and what becomes of a pool whose users run out of time or are cancelled
in the midst of a request.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest

import pyfiber
from tests.libraries import clients
from tests.libraries.acts import ACTS, Opener, need, play
from tests.libraries.clients import Client
from tests.libraries.services import Service

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="the servers are Debian's"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # theirs
]

#: Each with the server it needs, the modules it is made of, and how it is opened.
ALL: dict[str, tuple[str, tuple[str, ...], Callable[..., AbstractContextManager[Any]]]] = {
    "redis": ("redis_server", ("redis",), clients.redis),
    "redis-hiredis": (
        "redis_server",
        ("redis", "hiredis"),
        functools.partial(clients.redis, hiredis=True),
    ),
    "psycopg": ("postgres_server", ("psycopg", "psycopg_pool"), clients.psycopg),
    "psycopg2": ("postgres_server", ("psycopg2",), clients.psycopg2),
    "pg8000": ("postgres_server", ("pg8000",), clients.pg8000),
    "pymysql": ("mariadb_server", ("pymysql",), clients.pymysql),
    **{
        f"sqlalchemy-{dialect}": (
            "mariadb_server" if dialect.startswith("mysql") else "postgres_server",
            ("sqlalchemy", dialect.partition("+")[2]),
            functools.partial(clients.sqlalchemy, dialect=dialect),
        )
        for dialect in clients.DIALECTS
    },
}


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.slow] if server == "mariadb_server" else [])
        for name, (server, _, _) in ALL.items()
    ]
)
def opener(request: pytest.FixtureRequest) -> Iterator[Opener]:
    """Opens a client, with the patch on; the library was imported before."""
    server, modules, open_client = ALL[request.param]
    need(*modules)
    service = request.getfixturevalue(server)
    with pyfiber.patch():
        yield functools.partial(open_client, service)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_fibers_with_requests_that(act: Callable[[Client], None], opener: Opener) -> None:
    play(opener, act)


@pytest.mark.parametrize("name", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_queries_by_a_drivers_own_hook_that(
    act: Callable[[Client], None], name: str, request: pytest.FixtureRequest
) -> None:
    """Nothing is patched; a pool that waits for threading's locks cannot be had so."""
    need(name)
    server: Service = request.getfixturevalue("postgres_server")
    hook = importlib.import_module(f"pyfiber.{name}")
    hook.install()
    try:
        play(functools.partial(getattr(clients, f"{name}_alone"), server), act)
    finally:
        hook.uninstall()
