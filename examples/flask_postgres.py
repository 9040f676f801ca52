"""A service of Flask over PostgreSQL: ordinary blocking code, which knows nothing of fibers.

    pip install flask gunicorn "psycopg[binary,pool]"
    cd examples
    export DATABASE="host=127.0.0.1 user=me password=secret dbname=postgres"
    gunicorn -k gthread --threads 20 flask_postgres:app
    gunicorn -k pyfiber.gunicorn.Worker flask_postgres:app

A request of / asks for something that takes the database 50 ms, on a connection of the pool, which
has POOL of them. docs/gunicorn.md tells what each of the two commands makes of that.
"""

from __future__ import annotations

import atexit
import os

from flask import Flask
from psycopg_pool import ConnectionPool

app = Flask(__name__)
pool = ConnectionPool(
    os.environ["DATABASE"],
    min_size=1,
    max_size=int(os.environ.get("POOL", "20")),
    timeout=60,  # seconds that a request waits for a connection
    open=True,
)
atexit.register(pool.close)  # else the process takes its time to end


@app.get("/")
def ask() -> dict[str, str]:
    """What the database knows, after a while."""
    with pool.connection() as connection:
        row = connection.execute("SELECT current_user, pg_sleep(0.05)").fetchall()[0]
    return {"user": row[0]}
