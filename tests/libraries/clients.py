"""Libraries, each as the same few acts: ask, wait at the server, be released.

A client is shared by all fibers of a test, as a service shares its pool. `wait()` is a request that
the server answers when `release()` was called; `waiting()` asks the server how many such requests
it holds at this moment. So a test that has a hundred of them at once proves that each of them
parked its fiber and nothing else; no clock is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Protocol

from tests.libraries.services import Service


class Client(Protocol):
    #: The most requests at once that the library's pool allows.
    most: int

    def ask(self, number: int) -> int:
        """Send the number, get it back."""

    def wait(self) -> None: ...

    def waiting(self) -> int: ...

    def release(self) -> None: ...


# Redis --------------------------------------------------------------------------------------------


class Redis:
    """redis-py with its pool."""

    most = 1000

    def __init__(self, service: Service, hiredis: bool) -> None:
        import redis
        from redis._parsers import _HiredisParser, _RESP2Parser

        self.redis = redis.Redis(port=service.port, protocol=2)
        parser = _HiredisParser if hiredis else _RESP2Parser
        self.redis.connection_pool.connection_kwargs["parser_class"] = parser

    def ask(self, number: int) -> int:
        self.redis.set(f"number {number}", number)
        return int(self.redis.get(f"number {number}"))  # type: ignore[arg-type]

    def wait(self) -> None:
        assert self.redis.blpop(["gate"]) is not None

    def waiting(self) -> int:
        return int(self.redis.info("clients")["blocked_clients"])  # type: ignore[index]

    def release(self) -> None:
        if number := self.waiting():
            self.redis.rpush("gate", *range(number))


@contextlib.contextmanager
def redis(service: Service, hiredis: bool = False) -> Iterator[Redis]:
    client = Redis(service, hiredis)
    with contextlib.closing(client.redis):
        yield client


# SQL ----------------------------------------------------------------------------------------------

Query = Callable[..., Any]


class Sql:
    """A gate made of locks that the server keeps: one connection closes it, the others wait."""

    most = 100
    close_gate: ClassVar[str]
    open_gate: ClassVar[str]
    pass_gate: ClassVar[str]
    count: ClassVar[str]

    def __init__(self, query: Query, keeper: Query) -> None:
        self.query = query  #: one value from the pool's connections
        self.keeper = keeper  #: one value from a connection of its own
        keeper(self.close_gate)

    def ask(self, number: int) -> int:
        return int(self.query(f"select {number}"))

    def wait(self) -> None:
        self.query(self.pass_gate)

    def waiting(self) -> int:
        return int(self.keeper(self.count))

    def release(self) -> None:
        self.keeper(self.open_gate)


class Postgres(Sql):
    close_gate = "select pg_advisory_lock(1)::text"
    open_gate = "select pg_advisory_unlock(1)"
    pass_gate = "select pg_advisory_xact_lock_shared(1)::text"
    count = "select count(*) from pg_locks where locktype = 'advisory' and not granted"


class Mariadb(Sql):
    close_gate = "select get_lock('gate', 100)"
    open_gate = "select release_lock('gate')"
    pass_gate = "select get_lock('gate', 100), release_lock('gate')"
    count = "select count(*) from information_schema.processlist where state = 'User lock'"


def first_value(connection: Any) -> Query:
    """Of a connection of the standard interface for databases."""

    def query(sql: str) -> Any:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(sql)
            return cursor.fetchone()[0]

    return query


@contextlib.contextmanager
def psycopg(service: Service) -> Iterator[Sql]:
    """psycopg 3 with its own pool, which keeps threads for connecting."""
    import psycopg as library
    from psycopg_pool import ConnectionPool

    with (
        ConnectionPool(_dsn(service), min_size=4, max_size=Postgres.most, timeout=60) as pool,
        library.connect(_dsn(service), autocommit=True) as keeper,
    ):

        def query(sql: str) -> Any:
            with pool.connection() as connection:
                return first_value(connection)(sql)

        yield Postgres(query, first_value(keeper))


@contextlib.contextmanager
def psycopg_alone(service: Service) -> Iterator[Sql]:
    """psycopg 3 without a pool."""
    import psycopg as library

    with library.connect(_dsn(service), autocommit=True) as keeper:
        yield Postgres(_connecting(lambda: library.connect(_dsn(service))), first_value(keeper))


@contextlib.contextmanager
def psycopg2_alone(service: Service) -> Iterator[Sql]:
    """psycopg2 without a pool."""
    import psycopg2 as library

    with contextlib.closing(library.connect(_dsn(service))) as keeper:
        keeper.autocommit = True
        yield Postgres(_connecting(lambda: library.connect(_dsn(service))), first_value(keeper))


@contextlib.contextmanager
def psycopg2(service: Service) -> Iterator[Sql]:
    """psycopg2 with its own pool, which leaves it to the user what to do after a failure."""
    import psycopg2 as library
    from psycopg2.pool import ThreadedConnectionPool

    pool = ThreadedConnectionPool(0, Postgres.most, _dsn(service))
    with contextlib.closing(library.connect(_dsn(service))) as keeper:
        keeper.autocommit = True

        def query(sql: str) -> Any:
            connection = pool.getconn()
            healthy = False
            try:
                with connection:
                    value = first_value(connection)(sql)
                healthy = True
            finally:
                pool.putconn(connection, close=not healthy)
            return value

        try:
            yield Postgres(query, first_value(keeper))
        finally:
            pool.closeall()


@contextlib.contextmanager
def pg8000(service: Service) -> Iterator[Sql]:
    """pg8000 without a pool: it has none."""
    import pg8000.dbapi as library

    def connect() -> Any:
        return library.connect(
            service.user,
            host=service.host,
            port=service.port,
            password=service.password,
            database=service.database,
            ssl_context=False,  # its own reads all of the system's authorities, each time
        )

    with contextlib.closing(connect()) as keeper:
        keeper.autocommit = True
        yield Postgres(_connecting(connect), first_value(keeper))


@contextlib.contextmanager
def pymysql(service: Service) -> Iterator[Sql]:
    """PyMySQL without a pool: it has none."""
    import pymysql as library

    def connect() -> Any:
        return library.connect(
            host=service.host,
            port=service.port,
            user=service.user,
            password=service.password,
            database=service.database,
            ssl_disabled=True,  # its own reads all of the system's authorities, each time
        )

    with contextlib.closing(connect()) as keeper:
        yield Mariadb(_connecting(connect), first_value(keeper))


def _connecting(connect: Callable[[], Any]) -> Query:
    def query(sql: str) -> Any:
        with contextlib.closing(connect()) as connection:
            return first_value(connection)(sql)

    return query


def _dsn(service: Service) -> str:
    return (
        f"host={service.host} port={service.port} user={service.user} "
        f"password={service.password} dbname={service.database}"
    )


#: How SQLAlchemy names its drivers, and whose gate it is.
DIALECTS: dict[str, type[Sql]] = {
    "postgresql+psycopg": Postgres,
    "postgresql+psycopg2": Postgres,
    "postgresql+pg8000": Postgres,
    "mysql+pymysql": Mariadb,
}


@contextlib.contextmanager
def sqlalchemy(service: Service, dialect: str, size: int = 20) -> Iterator[Sql]:
    """SQLAlchemy's engine with a QueuePool smaller than the number of fibers."""
    from sqlalchemy import create_engine, text

    url = f"{dialect}://{service.user}:{service.password}@127.0.0.1:{service.port}"
    url += f"/{service.database}"
    engine = create_engine(url, pool_size=size, max_overflow=0, pool_timeout=60)
    keeper = create_engine(url, pool_size=1, isolation_level="AUTOCOMMIT")

    def query(sql: str) -> Any:
        with engine.connect() as connection:
            return connection.execute(text(sql)).scalar_one()

    class Gate(DIALECTS[dialect]):  # type: ignore[misc]
        most = size

    with keeper.connect() as kept:
        yield Gate(query, lambda sql: kept.execute(text(sql)).scalar_one())
    engine.dispose()
    keeper.dispose()
