"""Input and output: what a server costs for each message of the same load.

The load generator is a C program, the same for all. Each sample has a new process for the server
and one for the load, on 127.0.0.1; neither is bound to a processor. Connections are made and warm
before the measurement begins, except in the row that measures making connections. The time on a
processor is the kernel's count for the whole server process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ..io.measuring import idle_memory, server_time, system_calls, time_beside_computing
from ..io.processes import Load
from ..io.subjects import HTTP_SUBJECTS, SMALL_STACKS, SUBJECTS, WSGI_SUBJECTS, C, Subject
from ..model import BYTES, CALLS, IO, NANOSECONDS, PYFIBER, Case, Row, Sample

#: A run ends after so many seconds, also if not all messages are done.
SECONDS = 2.0
BESIDE_COMPUTING = 1.0
MANY = 1_000
VERY_MANY = 100_000

Measured = Callable[[Subject, Load], Sample]


def echo_load(connections: int, count: int) -> Load:
    """Send messages of 128 bytes on connections that are open."""
    return Load(
        connections,
        count,
        seconds=SECONDS,
        warm_up=max(count // 10, 2 * connections),
    )


def short_load(count: int) -> Load:
    """Open a connection for each message, 100 at a time."""
    return Load(100, count, seconds=SECONDS, warm_up=count // 10, short=True)


def computing_load(count: int) -> Load:
    """Use 100 connections; a message may have to wait until the other thread gives way."""
    return Load(100, count, seconds=BESIDE_COMPUTING, warm_up=200)


def idle_load(count: int) -> Load:
    """Open so many connections, which stay idle."""
    return Load(count)


def a_case(subject: Subject, measured: Measured, load: Callable[[int], Load]) -> Case:
    """One server in one row."""

    def measure(count: int) -> Sample:
        return measured(subject, load(count))

    limit = MANY if measured is idle_memory and subject.name == "threads" else None
    return Case(subject.name, measure, peer=subject.peer, limit=limit, note=subject.note)


def io_row(
    name: str,
    title: str,
    description: str,
    measured: Measured,
    load: Callable[[int], Load],
    *,
    count: int,
    quick: int,
    unit: str = NANOSECONDS,
    reference: str = C,
    subjects: tuple[Subject, ...] = SUBJECTS,
    impossible: Mapping[str, str] | None = None,
    full_only: bool = False,
) -> Row:
    """A row with every server that can do it."""
    cases = [
        a_case(subject, measured, load)
        for subject in subjects
        if subject.name not in (impossible or {})
    ]
    return Row(
        name,
        title,
        description,
        tuple(cases),
        count=count,
        quick=quick,
        unit=unit,
        budget=None,
        fresh=True,
        repetitions=5,
        family=IO,
        reference=reference,
        show_median=True,
        impossible=impossible or {},
        full_only=full_only,
    )


def echo_row(connections: int, who: str) -> Row:
    """Echo among so many connections."""
    return io_row(
        f"io-echo-{connections}",
        f"echo of 128 bytes, {who}",
        f"Clients, {who}, send 128 bytes, wait for them to come back and begin again; the "
        "server's time on a processor for each message.",
        server_time,
        partial(echo_load, connections),
        count=30_000,
        quick=2_000,
    )


ROWS = (
    echo_row(1, "one connection"),
    echo_row(100, "100 connections"),
    echo_row(MANY, "1,000 connections"),
    io_row(
        "io-calls",
        "system calls of an echo, 100 connections",
        "The system calls of the server for each message of the row io-echo-100, counted by perf "
        "or, where that is not permitted, by strace.",
        system_calls,
        partial(echo_load, 100),
        count=10_000,
        quick=1_000,
        unit=CALLS,
    ),
    io_row(
        "io-tls",
        "echo of 128 bytes with TLS, 100 connections",
        "The row io-echo-100 with TLS, after the handshakes; the server's time on a processor for "
        "each message.",
        partial(server_time, tls=True),
        partial(echo_load, 100),
        count=20_000,
        quick=1_000,
    ),
    io_row(
        "io-http",
        "HTTP hello, 100 connections",
        "Like the row io-echo-100, with HTTP requests that are parsed by hand in Python and "
        "answered with a few words; the server's time on a processor for each request.",
        server_time,
        partial(echo_load, 100),
        count=20_000,
        quick=1_000,
        reference=PYFIBER,
        subjects=HTTP_SUBJECTS,
    ),
    io_row(
        "io-wsgi",
        "WSGI hello, 100 connections",
        "Like the row io-http, by servers that call a WSGI application, which answers with a few "
        "words; the server's time on a processor for each request.",
        server_time,
        partial(echo_load, 100),
        count=20_000,
        quick=1_000,
        reference=PYFIBER,
        subjects=WSGI_SUBJECTS,
    ),
    io_row(
        "io-short",
        "short connections",
        "Connect, send 128 bytes, receive them, close, 100 at a time; the server's time on a "
        "processor for each connection.",
        server_time,
        short_load,
        count=5_000,
        quick=500,
    ),
    io_row(
        "io-idle",
        "memory of an idle connection",
        "5,000 connections (threads: 1,000) have had a message echoed and have waited for five "
        "seconds since; what the server has gained, page tables included, for each.",
        idle_memory,
        idle_load,
        count=5_000,
        quick=MANY,
        unit=BYTES,
        reference=PYFIBER,
        subjects=(*SUBJECTS, SMALL_STACKS),
    ),
    io_row(
        "io-idle-100000",
        "... among 100,000",
        "The row io-idle with 100,000 connections; the server and the load need a descriptor for "
        "each.",
        idle_memory,
        idle_load,
        count=VERY_MANY,
        quick=VERY_MANY,
        unit=BYTES,
        reference=PYFIBER,
        full_only=True,
    ),
    io_row(
        "io-computing",
        "echo beside a thread that computes, 100 connections",
        "The row io-echo-100 while another thread of the server runs Python code; the time that "
        "goes by for each message.",
        time_beside_computing,
        computing_load,
        count=30_000,
        quick=500,
        reference="uvloop protocols",
        impossible={C: "has no interpreter to share"},
    ),
)
