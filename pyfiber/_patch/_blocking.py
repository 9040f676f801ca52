"""A list of extension modules that wait in C, where no fiber can park; for ``patch_report()``."""

from __future__ import annotations

import sys
from collections.abc import Iterator

TO_THREAD = "call it through pyfiber.to_thread()"
ONE_THREAD = "call it through a pyfiber.threads.OneThread: its objects belong to one thread"

#: For each module: (what waits there, what to do about it).
BLOCKING = {
    "MySQLdb._mysql": ("mysqlclient waits in libmysqlclient", f"use PyMySQL, or {TO_THREAD}"),
    "_mysql_connector": (
        "mysql-connector waits in its C extension",
        "pass use_pure=True, and its sockets park",
    ),
    "mariadb._mariadb": ("MariaDB's connector waits in C", f"use PyMySQL, or {TO_THREAD}"),
    "oracledb.thick_impl": (
        "oracledb's thick mode waits in Oracle's client",
        f"use its thin mode, whose sockets park, or {TO_THREAD}",
    ),
    "cx_Oracle": ("it waits in Oracle's client", f"use oracledb's thin mode, or {TO_THREAD}"),
    "pyodbc": ("the ODBC driver waits", TO_THREAD),
    "pymssql._pymssql": ("it waits in FreeTDS", f"use python-tds, or {TO_THREAD}"),
    "_sqlite3": ("SQLite reads and writes files, and waits for their locks", ONE_THREAD),
    "apsw": ("SQLite reads and writes files, and waits for their locks", ONE_THREAD),
    "duckdb": ("queries run in DuckDB's threads, and the caller waits", TO_THREAD),
    "grpc._cython.cygrpc": ("grpcio waits in its own core", TO_THREAD),
    "confluent_kafka.cimpl": (
        "librdkafka waits",
        f"poll with a timeout of 0, or {TO_THREAD}",
    ),
    "pycurl": (
        "perform() waits in libcurl",
        f"use its multi interface with pyfiber.wait_readable(), or {TO_THREAD}",
    ),
    "zmq.backend.cython._zmq": (
        "libzmq waits",
        "use NOBLOCK and pyfiber.wait_readable() on the socket's FD",
    ),
    "cassandra.io.libevwrapper": ("the driver runs in threads", "wait for its futures' callbacks"),
    "pylibmc": ("it waits in libmemcached", f"use pymemcache, whose sockets park, or {TO_THREAD}"),
    "_pylibmc": ("it waits in libmemcached", f"use pymemcache, whose sockets park, or {TO_THREAD}"),
    "_ldap": ("python-ldap waits in libldap", f"use ldap3, whose sockets park, or {TO_THREAD}"),
    "ibm_db": ("it waits in Db2's client", TO_THREAD),
    "rocksdb": ("it reads and writes files", TO_THREAD),
    "pygit2._pygit2": ("fetches and pushes wait in libgit2", TO_THREAD),
}

#: Modules of drivers that pyfiber has a hook for; they block while the hook is not installed.
HOOKED = {
    "psycopg2._psycopg": "psycopg2",
    "psycopg_c": "psycopg",
    "psycopg_binary": "psycopg",
}


def blocking_modules() -> Iterator[tuple[str, str, str]]:
    """Yield name, reason and advice for each loaded module that blocks."""
    for name, (reason, advice) in BLOCKING.items():
        if name in sys.modules:
            yield name, reason, advice
    for name, driver in HOOKED.items():
        if name in sys.modules and not _is_installed(driver):
            yield name, f"{driver} waits in libpq", f"call pyfiber.{driver}.install()"


def _is_installed(driver: str) -> bool:
    hook = sys.modules.get(f"pyfiber.{driver}")
    return hook is not None and bool(hook.is_installed())
