"""A Flask program over PostgreSQL, with psycopg's pool: SITE_DATABASE says where."""

from __future__ import annotations

import atexit
import os
import threading

from flask import Flask, g
from psycopg_pool import ConnectionPool

HOST, PORT, USER, PASSWORD, DATABASE = os.environ["SITE_DATABASE"].split()

app = Flask(__name__)
pool = ConnectionPool(
    f"host={HOST} port={PORT} user={USER} password={PASSWORD} dbname={DATABASE}",
    min_size=0,
    max_size=25,
    open=False,
)
atexit.register(pool.close)  # else its threads are waited for in vain, 20 seconds long

#: So many requests wait for each other, each with a connection of its own.
TOGETHER = 20
_barrier = threading.Barrier(TOGETHER)
_opening = threading.Lock()


@app.before_request
def open_pool() -> None:
    with _opening:
        pool.open()


@app.get("/alone")
def alone() -> str:
    with pool.connection() as connection:
        return str(connection.execute("select pg_backend_pid()").fetchone()[0])


@app.get("/together")
def together() -> str:
    with pool.connection() as connection:
        g.backend = connection.execute("select pg_backend_pid()").fetchone()[0]
        _barrier.wait(60)
        return str(g.backend)


@app.get("/open")
def open_connections() -> str:
    with pool.connection() as connection:
        asked = "select count(*) from pg_stat_activity where backend_type = 'client backend'"
        return str(connection.execute(asked).fetchone()[0])
