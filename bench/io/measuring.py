"""The measurements of the rows of input and output.

Each sample starts a new server and a new load generator.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..model import Sample
from ..proc import memory_of
from .counting import count_calls
from .processes import Load, loading, require_descriptors, server
from .subjects import Subject

#: Seconds between the last message and reading the memory, so that a server may tidy up.
REST = 5.0

#: A function that makes the load for a number of messages.
LoadOf = Callable[[int], Load]


def details(found: dict[str, float]) -> dict[str, float]:
    """The details that the load generator reports of a run."""
    seconds = found["wall_ns"] / 1e9
    return {
        "messages_per_s": found["messages"] / seconds,
        "p50_us": found["p50_ns"] / 1e3,
        "p99_us": found["p99_ns"] / 1e3,
    }


def server_time(subject: Subject, load: Load, *, tls: bool = False) -> Sample:
    """Measure the server's time on processors, in nanoseconds a message."""
    require_descriptors(load.connections)
    with server(subject, tls=tls) as running, loading(load, running) as generator:
        found = generator.measure()
    return Sample(found["server_ns"], found["messages"], details(found))


def time_beside_computing(subject: Subject, load: Load) -> Sample:
    """Measure the wall-clock time of a message while another thread of the server computes."""
    require_descriptors(load.connections)
    with server(subject, compute=True) as running, loading(load, running) as generator:
        found = generator.measure()
    return Sample(found["wall_ns"], found["messages"], details(found))


def system_calls(subject: Subject, load: Load) -> Sample:
    """Count the system calls of the server."""
    require_descriptors(load.connections)
    with server(subject) as running, loading(load, running) as generator:
        calls, found = count_calls(running.pid, generator.measure)
    return Sample(calls, found["messages"])


def idle_memory(subject: Subject, load: Load) -> Sample:
    """Measure the growth of the server's memory, some time after each connection's message."""
    load = replace(load, messages=0, warm_up=load.connections)
    require_descriptors(load.connections)
    with server(subject) as running:
        before = memory_of(running.pid)
        with loading(load, running):
            at_once = memory_of(running.pid) - before
            time.sleep(REST)
            later = memory_of(running.pid) - before
            return Sample(later, load.connections, {"at_once_bytes": at_once / load.connections})
