"""Measures a service of Flask over PostgreSQL under gunicorn, with threads and with fibers.

    python -m bench.service [--clients 200] [--seconds 8] [--rounds 3]

Serves examples/flask_postgres.py, whose requests take the database 50 ms each, in one worker
process of gunicorn, with each set of options in WAYS. A PostgreSQL is started as for the tests in
tests/libraries. wrk sends requests on --clients connections that stay open. For each way the round
with the median throughput is printed: requests a second; the median and the 99th percentile of the
time of a request; the worker's time on a processor for each; the worker's memory at the end,
without what it shares with other processes; and how many requests failed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from .model import ROOT
from .peers import load
from .proc import private_memory, processor_time

#: The ways to serve: a name, gunicorn's options, the number of pooled connections.
WAYS = (
    ("gthread, 20 threads, pool of 20", ["-k", "gthread", "--threads", "20"], 20),
    ("gthread, 200 threads, pool of 200", ["-k", "gthread", "--threads", "200"], 200),
    ("pyfiber, pool of 20", ["-k", "pyfiber.gunicorn.Worker"], 20),
    ("pyfiber, pool of 200", ["-k", "pyfiber.gunicorn.Worker"], 200),
)

MICROSECONDS = {"us": 1, "ms": 1_000, "s": 1_000_000}


@dataclass
class Found:
    """The results of one run."""

    requests_per_s: float
    median_ms: float
    p99_ms: float
    processor_us: float
    memory_mb: float
    failed: int


@contextlib.contextmanager
def gunicorn(options: list[str], port: int, dsn: str, pool: int) -> Iterator[int]:
    """Run gunicorn; yields the process id of its worker."""
    command = [sys.executable, "-m", "gunicorn", "--chdir", str(ROOT / "examples"), *options]
    command += ["--bind", f"127.0.0.1:{port}", "--log-level", "warning", "flask_postgres:app"]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    more = {"DATABASE": dsn, "POOL": str(pool), "PYTHONPATH": os.pathsep.join(paths)}
    with subprocess.Popen(command, env={**os.environ, **more}) as process:
        try:
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while not (found := children.read_text().split()):
                time.sleep(0.05)
            time.sleep(2)  # the worker imports the application
            yield int(found[0])
        finally:
            process.terminate()


def ask(port: int, clients: int, seconds: float) -> str:
    """Run wrk and return its output."""
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds:g}", "--latency", "--timeout", "30"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/"], check=True, capture_output=True, text=True
    )
    return done.stdout


def milliseconds(told: str, percent: str) -> float:
    """Return a percentile of wrk's distribution in milliseconds."""
    found = re.search(rf"{percent}%\s+([\d.]+)(us|ms|s)", told)
    assert found is not None, told
    return float(found[1]) * MICROSECONDS[found[2]] / 1000


def failures(told: str) -> int:
    """Return how many requests got no answer, or an error."""
    count = 0
    if found := re.search(r"Non-2xx or 3xx responses: (\d+)", told):
        count += int(found[1])
    if found := re.search(r"Socket errors: (.*)", told):
        count += sum(map(int, re.findall(r"\d+", found[1])))
    return count


def measure(options: list[str], dsn: str, pool: int, clients: int, seconds: float) -> Found:
    """Make one run, with a new worker that is warmed up before."""
    port = load("tests.libraries.services").free_port()
    with gunicorn(options, port, dsn, pool) as pid:
        ask(port, clients, 2)
        before = processor_time(pid)
        told = ask(port, clients, seconds)
        spent = processor_time(pid) - before
        found = re.search(r"(\d+) requests in ([\d.]+)s", told)
        assert found is not None, told
        count = int(found[1])
        return Found(
            count / float(found[2]),
            milliseconds(told, "50"),
            milliseconds(told, "99"),
            1e6 * spent / count,
            private_memory(pid) / 1e6,
            failures(told),
        )


def main() -> None:
    """Measure all ways and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    services = load("tests.libraries.services")
    found: dict[str, list[Found]] = {name: [] for name, _, _ in WAYS}
    with services.postgres() as service:
        dsn = f"host={service.host} port={service.port} user={service.user}"
        dsn += f" password={service.password} dbname={service.database}"
        for _ in range(options.rounds):
            for name, more, pool in WAYS:
                found[name].append(measure(more, dsn, pool, options.clients, options.seconds))
    print(f"{'':36} requests/s   median      99 %  CPU/request   memory  failed")
    for name, runs in found.items():
        middle = statistics.median_low([run.requests_per_s for run in runs])
        run = next(run for run in runs if run.requests_per_s == middle)
        print(
            f"{name:36}{run.requests_per_s:11,.0f}{run.median_ms:6.0f} ms{run.p99_ms:7.0f} ms"
            f"{run.processor_us:10,.0f} us{run.memory_mb:6.0f} MB{run.failed:8}"
        )


if __name__ == "__main__":
    main()
