"""`pyfiber.metrics`: the schedulers' counters in Prometheus' format."""

from __future__ import annotations

import re
import sys
import threading
import urllib.request
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from pyfiber import Scheduler, metrics, net, run, sleep, spawn, to_thread, yield_now

NOT_THERE = "prometheus_client is NOT INSTALLED: pip install --group libraries"
NAMES = {
    **dict.fromkeys(("fibers", "ready", "timers"), "gauge"),
    **dict.fromkeys(("switches", "wakeups", "messages", "timeouts", "waits"), "counter"),
    "preemptions": "counter",
}


def of_thread(text: str, thread: str) -> dict[str, int]:
    """The samples of one thread, in either format."""
    pattern = rf'^pyfiber_(\w+)\{{thread="{re.escape(thread)}"\}} (\d+)$'
    return {name: int(n) for name, n in re.findall(pattern, text, re.MULTILINE)}


def on_a_thread(name: str, fn: Any) -> Any:
    """What fn() returns on a thread of that name, which has no schedulers from before."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(fn()), name=name)
    thread.start()
    thread.join()
    return results[0]


# what is counted ----------------------------------------------------------------------------------


def test_counters_are_those_of_the_scheduler() -> None:
    def counted() -> tuple[dict[str, int], Any]:
        scheduler = Scheduler()
        fibers = [scheduler.spawn(sleep, 0), scheduler.spawn(sleep, 60)]
        while len(scheduler.fibers()) > 1:
            scheduler.run_once()
        found = of_thread(metrics.render(), "own thread"), scheduler.stats()
        fibers[1].cancel()
        scheduler.close()
        return found

    told, stats = on_a_thread("own thread", counted)
    for name, kind in NAMES.items():
        assert told[name + "_total" * (kind == "counter")] == stats[name]
    assert told["fibers"] == 1
    assert told["switches_total"] >= 2


def test_counters_of_ended_runs_stay() -> None:
    def counted() -> list[dict[str, int]]:
        found = []
        for _ in range(3):
            run(lambda: [spawn(yield_now).join() for _ in range(10)])
            found.append(of_thread(metrics.render(), "many runs"))
        return found

    found = on_a_thread("many runs", counted)
    switches = [each["switches_total"] for each in found]
    assert 10 <= switches[0] < switches[1] < switches[2]
    assert switches[2] == 3 * switches[0]
    assert [each["fibers"] for each in found] == [0, 0, 0]


def test_schedulers_of_a_thread_are_added_up() -> None:
    def counted() -> dict[str, int]:
        schedulers = [Scheduler(), Scheduler()]
        fibers = [scheduler.spawn(sleep, 60) for scheduler in schedulers]
        found = of_thread(metrics.render(), "two schedulers")
        for fiber in fibers:
            fiber.cancel()
        for scheduler in schedulers:
            scheduler.close()
        return found

    assert on_a_thread("two schedulers", counted)["fibers"] == 2


def test_thread_without_schedulers_is_not_told_of() -> None:
    assert not of_thread(on_a_thread("nothing", metrics.render), "nothing")


def test_label_is_quoted() -> None:
    name = 'a "b" \\ c\nd \udc80'
    text = on_a_thread(name, lambda: run(metrics.render))
    assert r'{thread="a \"b\" \\ c\nd \\udc80"} 1' in text
    text.encode()


# the formats --------------------------------------------------------------------------------------


def test_text_is_read_by_prometheus_own_parser() -> None:
    parser = pytest.importorskip("prometheus_client.parser", reason=NOT_THERE)
    families = {
        each.name: each for each in parser.text_string_to_metric_families(run(metrics.render))
    }
    check(families)


def test_open_metrics_is_read_by_prometheus_own_parser() -> None:
    parser = pytest.importorskip("prometheus_client.openmetrics.parser", reason=NOT_THERE)
    text = run(lambda: metrics.render(openmetrics=True))
    check({each.name: each for each in parser.text_string_to_metric_families(text)})
    assert text.endswith("\n# EOF\n")


def check(families: dict[str, Any]) -> None:
    name = threading.current_thread().name
    assert {name: each.type for name, each in families.items()} == {
        f"pyfiber_{name}": kind for name, kind in NAMES.items()
    }
    for family in families.values():
        assert family.documentation.endswith(".")
        [sample] = [each for each in family.samples if each.labels == {"thread": name}]
        assert sample.name == family.name + "_total" * (family.type == "counter")


def samples(text: str) -> dict[str, float]:
    """Each one's value: the two write large numbers differently."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_collector_tells_the_same_as_the_text() -> None:
    prometheus = pytest.importorskip("prometheus_client", reason=NOT_THERE)
    registry = prometheus.CollectorRegistry()
    collector = metrics.register(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        metrics.register(registry)
    theirs = prometheus.generate_latest(registry).decode()
    assert samples(metrics.render()) == samples(theirs)
    registry.unregister(collector)
    assert prometheus.generate_latest(registry) == b""


def test_registration_without_the_library_is_an_import_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ImportError):
        metrics.register()


# serving them -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("text/html", metrics.CONTENT_TYPE),
        (
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
            metrics.OPENMETRICS_CONTENT_TYPE,
        ),
    ],
)
def test_application_answers_in_the_format_that_is_asked_for(accept: str, kind: str) -> None:
    environ: dict[str, Any] = {"HTTP_ACCEPT": accept, "QUERY_STRING": ""}
    setup_testing_defaults(environ)
    started: list[Any] = []
    answer = validator(metrics.app)(environ, lambda *told: started.append(told))  # type: ignore[arg-type]
    body = b"".join(answer)
    answer.close()  # type: ignore[attr-defined]
    status, headers = started[0]
    assert status == "200 OK"
    assert dict(headers) == {"Content-Type": kind, "Content-Length": str(len(body))}
    assert body.startswith(b"# HELP pyfiber_fibers ")
    assert body.endswith(b"# EOF\n") is (kind == metrics.OPENMETRICS_CONTENT_TYPE)


def test_application_answers_a_head_without_a_body() -> None:
    environ: dict[str, Any] = {"REQUEST_METHOD": "HEAD"}
    setup_testing_defaults(environ)
    assert list(metrics.app(environ, lambda *told: None)) == []


@pytest.mark.parametrize("openmetrics", [False, True])
def test_handler_answers_over_http(openmetrics: bool) -> None:
    def get(url: str) -> tuple[str, str]:
        accept = "application/openmetrics-text" if openmetrics else "*/*"
        request = urllib.request.Request(url, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.headers["Content-Type"], answer.read().decode()

    def main() -> tuple[str, str]:
        with net.serve(metrics.handler, "127.0.0.1", 0) as server:
            host, port = server.address[:2]
            return to_thread(get, f"http://{host}:{port}/metrics")

    kind, body = run(main)
    assert kind == (metrics.OPENMETRICS_CONTENT_TYPE if openmetrics else metrics.CONTENT_TYPE)
    assert of_thread(body, threading.current_thread().name)["fibers"] >= 1
    assert body.endswith("# EOF\n") is openmetrics
