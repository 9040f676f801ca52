"""Measures the processor time of library calls in fibers, in gevent's greenlets and in threads.

    python -m bench.libraries [REDIS|PSYCOPG|...] [--rounds 5]

The program starts the servers that the libraries need, as the tests in tests/libraries do. A
hundred fibers, greenlets or threads of one process perform the same act with the same library,
again and again; the process's time on processors, user and system, is divided by the number of
acts. The candidates are interleaved. For each one the median of the rounds is printed, with the
ratio to pyfiber's.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from .model import ROOT
from .peers import load
from .proc import processor_time

AT_ONCE = 100
CANDIDATES = ("pyfiber", "gevent", "threads")
HERE = [sys.executable, "-m", "bench.libraries"]


# In the measured process --------------------------------------------------------------------------


def redis(port: int) -> Callable[[], Callable[[], Any]]:
    client = load("redis").Redis(port=port)
    client.set("key", "value")
    return lambda: lambda: client.get("key")


def psycopg(port: int) -> Callable[[], Callable[[], Any]]:
    connect_to = load("psycopg").connect

    def connect() -> Callable[[], Any]:
        connection = connect_to(_dsn(port), autocommit=True)
        return lambda: connection.execute("select 1").fetchone()

    return connect


def psycopg2(port: int) -> Callable[[], Callable[[], Any]]:
    connect_to = load("psycopg2").connect

    def connect() -> Callable[[], Any]:
        connection = connect_to(_dsn(port))
        connection.autocommit = True

        def ask() -> Any:
            with connection.cursor() as cursor:
                cursor.execute("select 1")
                return cursor.fetchone()

        return ask

    return connect


def _dsn(port: int) -> str:
    return f"host=127.0.0.1 port={port} user=tester password=secret dbname=postgres"


LIBRARIES = {"redis": redis, "psycopg": psycopg, "psycopg2": psycopg2}


def measured(candidate: str, library: str, port: int, number: int) -> None:
    """Print the seconds of processor time for one act."""
    if candidate == "gevent":
        load("gevent.monkey").patch_all()
        if library == "psycopg2":
            load("psycogreen.gevent").patch_psycopg()
    at_once, main = _ways(candidate)
    spent = []

    def program() -> None:
        prepare = LIBRARIES[library](port)
        acts: list[Callable[[], Any]] = []
        at_once([lambda: acts.append(prepare())] * AT_ONCE)

        def repeat(times: int) -> list[Callable[[], None]]:
            def perform(act: Callable[[], Any]) -> None:
                for _ in range(times):
                    act()

            return [lambda act=act: perform(act) for act in acts]  # type: ignore[misc]

        at_once(repeat(10))
        before = time.process_time()
        at_once(repeat(number))
        spent.append(time.process_time() - before)

    main(program)
    print(json.dumps(spent[0] / (AT_ONCE * number)), flush=True)
    os._exit(0)


Calls = list[Callable[[], Any]]


def _ways(candidate: str) -> tuple[Callable[[Calls], Any], Callable[[Callable[[], None]], Any]]:
    """Return a function that makes calls at the same time, and one that runs the program."""
    if candidate == "pyfiber":
        import pyfiber

        pyfiber.patch()
        return lambda calls: pyfiber.gather(*calls), pyfiber.run
    if candidate == "gevent":
        gevent = load("gevent")
        return (
            lambda calls: gevent.joinall([gevent.spawn(call) for call in calls], raise_error=True),
            lambda program: program(),
        )
    import threading

    def in_threads(calls: Calls) -> None:
        threads = [threading.Thread(target=call) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return in_threads, lambda program: program()


# In the measuring process -------------------------------------------------------------------------


def measure(candidate: str, library: str, port: int, number: int) -> float:
    command = [*HERE, "--measured", candidate, library, str(port), str(number)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return float(json.loads(done.stdout.splitlines()[-1]))


# Celery's worker ---------------------------------------------------------------------------------

POOLS = {"pyfiber": "custom", "gevent": "gevent", "threads": "threads"}


def measure_celery(candidate: str, library: str, port: int, number: int) -> float:
    """Return the worker's processor time for one short task; a hundred may be under way."""
    client = load("redis").Redis(port=port, db=1)
    environment = {
        **os.environ,
        "CELERY_CUSTOM_WORKER_POOL": "pyfiber.celery:TaskPool",
        "PYTHONPATH": str(ROOT),
        "TASKS_FOLDER": tempfile.gettempdir(),
        "TASKS_REDIS": str(port),
    }
    command = [sys.executable, "-m", "celery", "-A", "tests.libraries.celery_program"]
    worker = [*command, "worker", "--pool", POOLS[candidate], "--concurrency", str(AT_ONCE)]
    worker += ["--without-mingle", "--without-gossip", "--loglevel", "WARNING"]
    client.flushall()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(worker, env=environment, cwd=ROOT, **quiet) as process:  # type: ignore[call-overload]
        try:
            spent = []
            for times in (2, number // 4):  # the first round warms the worker up
                before = client.dbsize() + times * AT_ONCE
                start = processor_time(process.pid)
                send = [*HERE, "--send", str(times * AT_ONCE)]
                subprocess.run(send, check=True, env=environment, cwd=ROOT)
                while client.dbsize() < before:
                    if process.poll() is not None:
                        raise RuntimeError(f"{command} has ended")
                    time.sleep(0.05)
                spent.append(processor_time(process.pid) - start)
        finally:
            process.kill()
    return spent[-1] / (number // 4 * AT_ONCE)


def send(number: int) -> None:
    """Put short tasks into the queue; the sender does not wait for their results."""
    celery_program = load("tests.libraries.celery_program")
    add = celery_program.app.tasks["tests.libraries.celery_program.add"]
    celery_program.app.backend.on_task_call = lambda *_: {}
    for each in range(number):
        add.delay(each, 1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "libraries", nargs="*", help=", ".join([*LIBRARIES, "celery"]), metavar="LIBRARY"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--number", type=int, default=200, help="acts of each of the hundred")
    options = parser.parse_args()
    services = load("tests.libraries.services")
    for library in options.libraries or [*LIBRARIES, "celery"]:
        server = services.redis if library in ("redis", "celery") else services.postgres
        measure_one = measure_celery if library == "celery" else measure
        with server() as service:
            times: dict[str, list[float]] = {name: [] for name in CANDIDATES}
            for _ in range(options.rounds):
                for name in CANDIDATES:
                    times[name].append(measure_one(name, library, service.port, options.number))
            ours = statistics.median(times["pyfiber"])
            for name, each in times.items():
                found = statistics.median(each)
                print(f"{library:10} {name:10} {1e6 * found:8.1f} us {found / ours:6.2f}x")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--send"]:
        send(int(sys.argv[2]))
    elif sys.argv[1:2] == ["--measured"]:
        measured(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main()
