"""Races in released versions of libraries.

Each test calls a library from two threads, as its users do, and asserts what they expect. No test
knows at which lines the library must be interrupted. The versions are installed with pip into
separate folders. `python -m tests.testing.library_races` does that, explores all of them, and
prints the table of docs/races.md; with the name of a race and `--path` it explores that one with
the version in the folder.
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

from pyfiber.testing import Network, ScheduleFailure, explore, run

ROOT = Path(__file__).parents[2]
SEEDS = range(5)
SCHEDULES = 1000


@dataclass(frozen=True, slots=True)
class Race:
    """A race: the version that has it, one that has not, and how a test sees it."""

    test: Callable[[], None]
    broken: str
    fixed: str | None
    link: str
    shows: str  # in the report of the failure
    what: str
    include: tuple[str, ...]
    also: tuple[str, ...] = ()  # what these versions need besides


RACES: dict[str, Race] = {}


def race(**options: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Put the test into RACES."""

    def decorate(test: Callable[[], None]) -> Callable[[], None]:
        RACES[test.__name__] = Race(test, **options)
        return test

    return decorate


def together(*targets: Callable[[], object]) -> None:
    """Run each function in a thread, and wait for all."""
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


GITHUB = "https://github.com/"
FRONTRUN = GITHUB + "lucaswiman/frontrun/blob/main/docs/case_studies.rst"  # found these two
DISTUTILS = "setuptools<81"  # has distutils and pkg_resources, which Python has no longer


# ---------------------------------------------------------------------------- caches


@race(
    broken="cachelib==0.13.0",
    fixed="cachelib==0.17.0",
    link=GITHUB + "pallets-eco/cachelib/issues/446",
    shows="during iteration",
    what="two `set()` of a full `SimpleCache`: `RuntimeError`",
    include=("cachelib",),
)
def cachelib_set() -> None:
    cache = import_module("cachelib").SimpleCache(threshold=1)
    cache.set("a", 1)
    cache.set("b", 2)
    together(partial(cache.set, "c", 3), partial(cache.set, "d", 4))


@race(
    broken="multimethod==1.9",
    fixed="multimethod==1.9.1",
    link=GITHUB + "coady/multimethod/issues/73",
    shows="dictionary changed size during iteration",
    what="two first calls with new types: `RuntimeError`",
    include=("multimethod",),
)
def multimethod_call() -> None:
    multimethod = import_module("multimethod").multimethod

    @multimethod
    def kind(value: int) -> str:
        return "int"

    @multimethod
    def kind(value: str) -> str:  # noqa: F811
        return "str"

    class Small(int):
        pass

    class Name(str):
        pass

    found: list[str] = []
    together(lambda: found.append(kind(Small())), lambda: found.append(kind(Name())))
    assert sorted(found) == ["int", "str"]


NUMBERS = itertools.count()


@race(
    broken="fsspec==2023.4.0",
    fixed="fsspec==2023.6.0",
    link=GITHUB + "fsspec/filesystem_spec/issues/1334",
    shows="already in the registry",
    what="two `get_filesystem_class()` of one protocol: `ValueError`",
    include=("fsspec",),
)
def fsspec_registry() -> None:
    fsspec = import_module("fsspec")
    protocol = f"protocol{next(NUMBERS)}"  # the registry keeps them
    fsspec.register_implementation(protocol, "fsspec.implementations.memory.MemoryFileSystem")
    find = partial(fsspec.get_filesystem_class, protocol)
    together(find, find)


# ------------------------------------------------------------------- things made late


@race(
    broken="networkx==3.5",
    fixed="networkx==3.7",
    link=GITHUB + "networkx/networkx/pull/8659",
    shows="NameError",
    what="two first calls of a decorated function: `NameError`",
    include=("networkx",),
)
def networkx_first_call() -> None:
    networkx = import_module("networkx")

    @networkx.utils.not_implemented_for("directed")  # type: ignore[untyped-decorator]
    def size(graph: Any) -> int:
        return len(graph)

    sizes: list[int] = []
    graph = networkx.path_graph(3)
    together(*[lambda: sizes.append(size(graph))] * 2)
    assert sizes == [3, 3]


@race(
    broken="botocore==1.31.0",
    fixed="botocore==1.31.30",
    link=GITHUB + "boto/botocore/pull/2985",
    shows="KeyError: 'credential_provider'",
    what="two clients are made by one session: `KeyError`",
    include=("botocore",),
)
def botocore_component() -> None:
    session = import_module("botocore.session").Session()
    get = partial(session.get_component, "credential_provider")
    together(get, get)


@race(
    broken="opentelemetry-sdk==1.39.1",
    fixed="opentelemetry-sdk==1.41.0",
    link=GITHUB + "open-telemetry/opentelemetry-python/issues/4892",
    shows="KeyError: 'requests,_Counter,,'",
    what="two `create_counter()` with one name: `KeyError`",
    include=("opentelemetry",),
)
def opentelemetry_counter() -> None:
    metrics = import_module("opentelemetry.sdk.metrics")
    meter = metrics.MeterProvider(shutdown_on_exit=False).get_meter("test")
    create = partial(meter.create_counter, "requests")
    together(create, create)


@race(
    broken="SQLAlchemy==1.4.8",
    fixed=None,  # from 1.4.12 on for most schedules; docs/races.md has the rest
    link=GITHUB + "sqlalchemy/sqlalchemy/issues/6337",
    shows="AssertionError: ['SERIALIZABLE']",
    what="two first connections: one uses a dialect that is not initialized yet",
    include=("sqlalchemy",),
)
def sqlalchemy_connect() -> None:
    engine = import_module("sqlalchemy").create_engine("sqlite://")
    seen: list[object] = []

    def connect() -> None:
        with engine.connect():
            seen.append(engine.dialect.default_isolation_level)

    together(connect, connect)
    assert seen == ["SERIALIZABLE"] * 2, seen


@race(
    broken="python-socketio==5.18.1",
    fixed=None,
    link=FRONTRUN,
    shows="AssertionError: {'",
    what="two clients enter a room of a new namespace: one of them is not in it",
    include=("socketio",),
)
def socketio_enter_room() -> None:
    manager = import_module("socketio.base_manager").BaseManager()
    enter = manager.basic_enter_room
    together(*[partial(enter, client, "/chat", "room", client) for client in ("a", "b")])
    found = {client for client, _ in manager.get_participants("/chat", "room")}
    assert found == {"a", "b"}, found


@race(
    broken="lazy-object-proxy==1.10.0",
    fixed=None,
    link=GITHUB + "ionelmc/python-lazy-object-proxy/issues/83",
    shows="AssertionError: 2 calls",
    what="two first uses of a proxy: its function is called twice",
    include=("lazy_object_proxy",),
)
def lazy_object_proxy_use() -> None:
    calls: list[int] = []

    def make() -> int:
        calls.append(5)
        return 5

    proxy = import_module("lazy_object_proxy.slots").Proxy(make)
    together(lambda: proxy + 1, lambda: proxy + 1)
    assert len(calls) == 1, f"{len(calls)} calls"


# --------------------------------------------------------------------------- clients


@race(
    broken="python-http-client==3.3.7",
    fixed=None,
    link=FRONTRUN,
    shows="AssertionError",
    what="two requests with headers of their own: one is sent with the other's header",
    include=("python_http_client",),
)
def http_client_headers() -> None:
    client_type = import_module("python_http_client").Client
    seen: set[tuple[str, str]] = set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.add((self.path, self.headers["Name"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        client = client_type(f"http://127.0.0.1:{server.server_port}", {"Accept": "*/*"})

        def serve() -> None:
            for _ in range(2):
                server.handle_request()

        together(
            serve,
            lambda: client.ada.get(request_headers={"Name": "Ada"}),
            lambda: client.bob.get(request_headers={"Name": "Bob"}),
        )
    assert seen == {("/ada", "Ada"), ("/bob", "Bob")}, seen


@race(
    broken="redis==3.3.11",
    fixed="redis==3.4.1",
    link=GITHUB + "redis/redis-py/issues/906",
    shows="AssertionError: 2 connections",
    what="a pool with `max_connections=1` makes two",
    include=("redis",),
    also=(DISTUTILS,),
)
def redis_pool() -> None:
    connection = import_module("redis.connection")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        pool = connection.ConnectionPool(host="127.0.0.1", port=port, max_connections=1)
        made: list[Any] = []

        def get() -> None:
            with suppress(connection.ConnectionError):  # there is one already
                made.append(pool.get_connection("GET"))

        together(get, get)
        assert len(made) <= 1, f"{len(made)} connections"


@race(
    broken="urllib3==1.26.15",
    fixed="urllib3==1.26.16",
    link=GITHUB + "urllib3/urllib3/issues/1252",
    shows="ClosedPoolError",
    what="requests to two hosts by a `PoolManager(num_pools=1)`: `ClosedPoolError`",
    include=("urllib3",),
)
def urllib3_hosts() -> None:
    urllib3 = import_module("urllib3")
    manager = urllib3.PoolManager(num_pools=1)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(204)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    def get(server: HTTPServer) -> None:
        assert manager.request("GET", f"http://127.0.0.1:{server.server_port}/").status == 204

    with (
        HTTPServer(("127.0.0.1", 0), Handler) as one,
        HTTPServer(("127.0.0.1", 0), Handler) as two,
    ):
        together(one.handle_request, two.handle_request, partial(get, one), partial(get, two))


@race(
    broken="peewee==4.0.5",
    fixed="peewee==4.0.6",
    link=GITHUB + "coleifer/peewee/issues/3047",
    shows="DeadlockError",
    what="`manual_close()` while another connection is made: a deadlock of two locks",
    include=("peewee", "playhouse"),
)
def peewee_manual_close() -> None:
    pool = import_module("playhouse.pool")
    database = pool.PooledSqliteDatabase(":memory:", max_connections=4)

    def work() -> None:
        database.connect()
        database.manual_close()

    together(work, work)


@race(
    broken="elasticsearch==1.2.0",
    fixed="elasticsearch==1.3.0",
    link=GITHUB + "elastic/elasticsearch-py/issues/158",
    shows="ZeroDivisionError",
    what="a connection is asked for while the last one dies: `ZeroDivisionError`",
    include=("elasticsearch",),
)
def elasticsearch_pool() -> None:
    pool = import_module("elasticsearch.connection_pool").ConnectionPool([("node", {})])
    together(partial(pool.mark_dead, "node"), pool.get_connection)


@race(
    broken="pymemcache==4.0.0",
    fixed=None,
    link=GITHUB + "pinterest/pymemcache/issues/124",
    shows="Error",
    what="two `get()` when a dead server is tried again: `ValueError`, `KeyError`",
    include=("pymemcache",),
)
def pymemcache_retry() -> None:
    client = import_module("pymemcache.client.hash").HashClient(
        [("127.0.0.1", 1)],
        use_pooling=True,
        retry_attempts=0,
        dead_timeout=1,
        ignore_exc=True,
    )
    client.get("key")  # nobody listens there
    time.sleep(2)
    together(partial(client.get, "key"), partial(client.get, "key"))


@race(
    broken="datadog==0.4.0",
    fixed="datadog==0.8.0",
    link=GITHUB + "DataDog/datadogpy/issues/57",
    shows="TimeoutError",
    what="two first metrics: one is lost, as its socket is not connected yet",
    include=("datadog",),
    also=(DISTUTILS,),
)
def datadog_increment() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(1)
        statsd_type = import_module("datadog.dogstatsd.base").DogStatsd
        statsd = statsd_type(host="127.0.0.1", port=server.getsockname()[1])
        together(partial(statsd.increment, "a"), partial(statsd.increment, "b"))
        received = {server.recv(100)[:1] for _ in range(2)}
    assert received == {b"a", b"b"}


@race(
    broken="jsonschema==4.17.3",
    fixed="jsonschema==4.18.6",
    link=GITHUB + "python-jsonschema/jsonschema/issues/223",
    shows="RefResolutionError",
    what="two `validate()` of one validator: references are looked for in the wrong schema",
    include=("jsonschema",),
)
def jsonschema_validate() -> None:
    people = {
        "$id": "http://example/people.json",
        "definitions": {"name": {"type": "string"}, "person": {"$ref": "#/definitions/name"}},
    }
    schema = {
        "$id": "http://example/root.json",
        "definitions": {"number": {"type": "integer"}, "people": people},
        "properties": {
            "age": {"$ref": "#/definitions/number"},
            "owner": {"$ref": "http://example/people.json#/definitions/person"},
        },
    }
    validator = import_module("jsonschema").Draft7Validator(schema)
    together(partial(validator.validate, {"age": 1}), partial(validator.validate, {"owner": "Ada"}))


@race(
    broken="waitress==3.0.0",
    fixed="waitress==3.0.1",
    link=GITHUB + "Pylons/waitress/security/advisories/GHSA-9298-4cf8-g4wj",
    shows="AssertionError: ['/second']",
    what="CVE-2024-49768: after a refused request the next one on its connection is served",
    include=("waitress",),
)
def waitress_lookahead() -> None:
    served: list[str] = []

    def application(environ: dict[str, Any], start_response: Callable[..., object]) -> list[bytes]:
        served.append(environ["PATH_INFO"])
        start_response("204 No Content", [])
        return []

    server = import_module("waitress").create_server(
        application,
        host="127.0.0.1",
        port=0,
        threads=1,
        channel_request_lookahead=1,
        recv_bytes=64,
        clear_untrusted_proxy_headers=True,
    )
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            server.asyncore.loop(timeout=1, map=server._map, count=1)
        server.close()
        for channel in list(server._map.values()):
            channel.close()

    thread = threading.Thread(target=serve)
    thread.start()
    refused = b"GET /first HTTP/1.1\r\nbad header : ".ljust(60, b"a") + b"\r\n\r\n"
    with (
        socket.create_connection(("127.0.0.1", server.effective_port), 5) as client,
        suppress(OSError),
    ):
        client.sendall(refused + b"GET /second HTTP/1.1\r\nHost: host\r\n\r\n")
        while client.recv(4096):
            pass
    server.task_dispatcher.shutdown()
    ended.set()
    thread.join()
    assert not served, served


# -------------------------------------------------------- bars, logs, threads of libraries


@race(
    broken="tqdm==4.28.0",
    fixed="tqdm==4.70.1",
    link=GITHUB + "tqdm/tqdm/pull/700",
    shows="'tqdm' object has no attribute 'pos'",
    what="two bars are made: `AttributeError`",
    include=("tqdm",),
)
def tqdm_bars() -> None:
    tqdm = import_module("tqdm").tqdm
    tqdm.monitor_interval = 0

    def work() -> None:
        for _ in tqdm(range(2), file=io.StringIO()):
            pass

    together(work, work)


@race(
    broken="loguru==0.2.3",
    fixed="loguru==0.2.5",
    link=GITHUB + "Delgan/loguru/issues/22",
    shows="dictionary changed size during iteration",
    what="`add()` while a message is logged: `RuntimeError`",
    include=("loguru",),
    also=(DISTUTILS,),
)
def loguru_add() -> None:
    logger = import_module("loguru").logger
    logger.remove()
    logger.add(lambda message: None)
    try:
        together(partial(logger.add, lambda message: None), partial(logger.info, "hello"))
    finally:
        logger.remove()


@race(
    broken="limits==5.8.0",
    fixed=None,
    link=GITHUB + "alisaifee/limits/issues/26",
    shows="RuntimeError: thread",
    what="two `incr()`: one timer is started twice, `RuntimeError`",
    include=("limits",),
)
def limits_hit() -> None:
    limits = import_module("limits.storage").MemoryStorage()
    time.sleep(1)  # the first timer has ended
    together(partial(limits.incr, "a", 1), partial(limits.incr, "b", 1))


@race(
    broken="filelock==3.10.7",
    fixed="filelock==3.11.0",
    link=GITHUB + "tox-dev/filelock/pull/219",
    shows="AssertionError: 2 threads",
    what="one `FileLock` is taken by two threads at once",
    include=("filelock",),
)
def filelock_with() -> None:
    inside: list[int] = []

    def work() -> None:
        with lock:
            inside.append(1)
            assert len(inside) == 1, f"{len(inside)} threads"
            inside.pop()

    with tempfile.TemporaryDirectory() as folder:
        lock = import_module("filelock").FileLock(os.path.join(folder, "lock"))
        together(work, work)


@race(
    broken="pyrate-limiter==2.10.0",
    fixed=None,
    link=GITHUB + "vutran1710/PyrateLimiter/issues/108",
    shows="DeadlockError",
    what="two `try_acquire()` of the last place: one waits for ever",
    include=("pyrate_limiter",),
)
def pyrate_limiter_acquire() -> None:
    limiter = import_module("pyrate_limiter")
    limit = limiter.Limiter(limiter.RequestRate(1, 10))

    def acquire() -> None:
        with suppress(limiter.BucketFullException):
            limit.try_acquire("name")

    together(acquire, acquire)


@race(
    broken="watchdog==6.0.0",
    fixed=None,
    link=GITHUB + "gorakhargosh/watchdog/issues/1044",
    shows="AssertionError: not watched",
    what="`schedule()` during `start()`: the folder is never watched",
    include=("watchdog",),
)
def watchdog_start() -> None:
    observer = import_module("watchdog.observers.polling").PollingObserver()
    handler = import_module("watchdog.events").FileSystemEventHandler()
    with tempfile.TemporaryDirectory() as folder:
        together(observer.start, partial(observer.schedule, handler, folder))
        watched = all(emitter.is_alive() for emitter in observer.emitters)
        observer.stop()
        observer.join()
    assert watched, "not watched"


# ------------------------------------------------------------------------ exploring them


def install(requirements: list[str], folder: Path) -> str:
    """Install with pip into the folder; return pip's last words if that fails, or an empty text."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    command += ["--target", str(folder), *requirements]
    done = subprocess.run(command, capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["failed"])[-1]


def explored(name: str, folder: Path, seeds: range = SEEDS) -> list[dict[str, Any]]:
    """Explore a race in a process that has the library from the folder."""
    command = [sys.executable, "-m", "tests.testing.library_races", name]
    command += ["--path", str(folder), "--seeds", str(len(seeds))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


def explore_here(name: str, seeds: range) -> Iterator[dict[str, Any]]:
    """Explore a race with the library that this process imports."""
    case = RACES[name]
    network = "datadog" not in name  # which sends by UDP, really
    options: Any = {"threads": "simulated", "network": Network() if network else False}
    run(case.test, **options)  # what the first call imports and keeps
    for seed in seeds:
        try:
            explore(case.test, SCHEDULES, seed=seed, switch="line", include=case.include, **options)
        except ScheduleFailure as failure:
            yield {"number": failure.number, "verdict": failure.verdict, "text": str(failure)}
        else:
            yield {"number": None, "verdict": "", "text": ""}


def table() -> Iterator[str]:
    """Install and explore everything; yield the lines of the table."""
    yield "| package | what goes wrong | found in schedule | with a GIL | repaired |"
    yield "|---|---|---:|---|---|"
    for name, case in RACES.items():
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place, "site-packages")
            problem = install([case.broken, *case.also], folder)
            if problem:
                raise SystemExit(f"{case.broken}: {problem}")
            found = explored(name, folder)
        numbers = sorted(each["number"] for each in found)
        package = case.broken.replace("==", " ")
        verdict = found[0]["verdict"].partition(";")[0].partition(" of ")[0]
        fixed = case.fixed.partition("==")[2] if case.fixed else "no"
        middle = numbers[len(numbers) // 2]
        yield (
            f"| [{package}]({case.link}) | {case.what} | {middle} ({numbers[-1]}) | {verdict} "
            f"| {fixed} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="Explore races in released libraries.")
    parser.add_argument("race", nargs="?", choices=RACES)
    parser.add_argument("--path", help="the folder with the library")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--story", action="store_true", help="print the first report")
    options = parser.parse_args()
    if options.race is None:
        for line in table():
            print(line, flush=True)
        return
    logging.disable(logging.CRITICAL)
    sys.path.insert(0, options.path)
    if os.path.isdir(os.path.join(options.path, "setuptools")):
        import_module("setuptools")  # brings distutils
    found = list(explore_here(options.race, range(options.seeds)))
    if options.story:
        print(found[0]["text"])
    print(json.dumps(found))


if __name__ == "__main__":
    main()
