"""What the rows of input and output measure. A server and its load are new for each sample."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from ..model import Sample
from ..proc import memory_of
from .counting import count_calls
from .processes import Load, loading, require_descriptors, server
from .subjects import Subject

#: Seconds that idle connections have waited when memory is read: a server may tidy up.
REST = 5.0

#: Makes the load for a number of messages.
LoadOf = Callable[[int], Load]


def details(found: dict[str, float]) -> dict[str, float]:
    """What else the load generator says of a run."""
    seconds = found["wall_ns"] / 1e9
    return {
        "messages_per_s": found["messages"] / seconds,
        "p50_us": found["p50_ns"] / 1e3,
        "p99_us": found["p99_ns"] / 1e3,
    }


def server_time(subject: Subject, load: Load, *, tls: bool = False) -> Sample:
    """Nanoseconds of the server on a processor."""
    require_descriptors(load.connections)
    with server(subject, tls=tls) as running, loading(load, running) as generator:
        found = generator.measure()
    return Sample(found["server_ns"], found["messages"], details(found))


def time_beside_computing(subject: Subject, load: Load) -> Sample:
    """Nanoseconds that go by, a message at a time, while another thread computes."""
    require_descriptors(load.connections)
    with server(subject, compute=True) as running, loading(load, running) as generator:
        found = generator.measure()
    return Sample(found["wall_ns"], found["messages"], details(found))


def system_calls(subject: Subject, load: Load) -> Sample:
    """System calls of the server."""
    require_descriptors(load.connections)
    with server(subject) as running, loading(load, running) as generator:
        calls, found = count_calls(running.pid, generator.measure)
    return Sample(calls, found["messages"])


def idle_memory(subject: Subject, load: Load) -> Sample:
    """What the server's memory has grown by, some time after each connection's message."""
    load = replace(load, messages=0, warm_up=load.connections)
    require_descriptors(load.connections)
    with server(subject) as running:
        before = memory_of(running.pid)
        with loading(load, running):
            at_once = memory_of(running.pid) - before
            time.sleep(REST)
            later = memory_of(running.pid) - before
            return Sample(later, load.connections, {"at_once_bytes": at_once / load.connections})
