"""Counters of all schedulers of the process, for Prometheus and whatever reads its format.

``render()`` is the text; ``app`` is a WSGI application that answers with it; ``handler()`` does so
on a ``net.Stream``; ``register()`` adds the counters to those of prometheus_client, if you use it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from pyfiber import _engine

if TYPE_CHECKING:
    from pyfiber.net import Stream

__all__ = [
    "CONTENT_TYPE",
    "OPENMETRICS_CONTENT_TYPE",
    "app",
    "handler",
    "register",
    "render",
]

#: The content type of what ``render()`` returns.
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
#: The content type of what ``render(openmetrics=True)`` returns.
OPENMETRICS_CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Metric(NamedTuple):
    """One of the numbers of Scheduler.stats(), and how it is exported."""

    stat: str
    is_counter: bool
    help: str

    @property
    def name(self) -> str:
        return f"pyfiber_{self.stat}"


METRICS = (
    Metric("fibers", False, "Fibers that are not done."),
    Metric("ready", False, "Fibers and grains in the ready queue."),
    Metric("timers", False, "Timers that are set."),
    Metric("switches", True, "Turns of fibers and grains."),
    Metric("wakeups", True, "Times a fiber or a grain was made ready."),
    Metric("messages", True, "Messages from other threads."),
    Metric("timeouts", True, "Timers that fired."),
    Metric("waits", True, "Times the loop had nothing to do and asked the system to wait."),
    Metric("preemptions", True, "Times a fiber was over its time slice and had to wait."),
)


def collected() -> dict[str, dict[str, int]]:
    """The numbers of each thread that has had schedulers, ended ones included, by thread name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found: dict[str, dict[str, int]] = {}
    for ident, ended, schedulers in _engine._schedulers():
        if schedulers or any(ended.values()):
            of_thread = found.setdefault(names.get(ident, str(ident)), {})
            for stats in (ended, *(scheduler.stats() for scheduler in schedulers)):
                for metric in METRICS:
                    value: Any = stats.get(metric.stat, 0)
                    of_thread[metric.stat] = of_thread.get(metric.stat, 0) + value
    return found


def quoted(text: str) -> str:
    """Escape the value of a label."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def render(*, openmetrics: bool = False) -> str:
    """Return the counters in Prometheus' text format 0.0.4, or in OpenMetrics 1.0.

    Each counter has the label ``thread``, the name of the schedulers' thread; the schedulers of a
    thread, also those that have ended, are added up. Any thread and any fiber may call this.
    """
    return "\n".join(lines(collected(), openmetrics)) + "\n"


def lines(found: dict[str, dict[str, int]], openmetrics: bool) -> Iterator[str]:
    for metric in METRICS:
        name = f"{metric.name}_total" if metric.is_counter else metric.name
        # OpenMetrics names the family of a counter without the suffix of its samples.
        family = metric.name if openmetrics else name
        yield f"# HELP {family} {metric.help}"
        yield f"# TYPE {family} {'counter' if metric.is_counter else 'gauge'}"
        for thread, stats in found.items():
            yield f'{name}{{thread="{quoted(thread)}"}} {stats[metric.stat]}'
    if openmetrics:
        yield "# EOF"


# serving them -------------------------------------------------------------------------------------


def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """A WSGI application: every path is answered with the counters.

    The format is OpenMetrics if the client says that it accepts that, as Prometheus does.
    """
    openmetrics = "application/openmetrics-text" in environ.get("HTTP_ACCEPT", "")
    body = render(openmetrics=openmetrics).encode()
    kind = OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE
    start_response("200 OK", [("Content-Type", kind), ("Content-Length", str(len(body)))])
    return [] if environ.get("REQUEST_METHOD") == "HEAD" else [body]


def handler(stream: Stream) -> None:
    """Answer one request of HTTP/1, whatever its path, with the counters; for ``net.serve()``.

    This is for processes that serve something else, and needs no package for HTTP.
    """
    head = bytes(stream.read_until(b"\r\n\r\n", limit=16384))
    accept = [line for line in head.lower().split(b"\r\n") if line.startswith(b"accept:")]
    openmetrics = any(b"application/openmetrics-text" in line for line in accept)
    body = render(openmetrics=openmetrics).encode()
    kind = OPENMETRICS_CONTENT_TYPE if openmetrics else CONTENT_TYPE
    stream.write(
        f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n".encode()
    )
    if not head.startswith(b"HEAD "):
        stream.write(body)


def register(registry: Any = None) -> Any:
    """Add the counters to a registry of prometheus_client, by default to its REGISTRY.

    Returns the collector, for ``registry.unregister()``. Raises ImportError without
    prometheus_client, ValueError if the registry has the counters already.
    """
    from prometheus_client import REGISTRY

    collector = Collector()
    (registry or REGISTRY).register(collector)
    return collector


class Collector:
    """A collector that adds the counters to a registry of prometheus_client."""

    def describe(self) -> Iterator[Any]:
        """The families, without samples: the registry checks their names."""
        return self.families({})

    def collect(self) -> Iterator[Any]:
        """The families, with their samples."""
        return self.families(collected())

    def families(self, found: dict[str, dict[str, int]]) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        for metric in METRICS:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            family = kind(metric.name, metric.help, labels=["thread"])
            for thread, stats in found.items():
                family.add_metric([thread], stats[metric.stat])
            yield family
