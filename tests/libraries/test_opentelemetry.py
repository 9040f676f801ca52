"""OpenTelemetry keeps its current span in a contextvar, of which each fiber has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import Channel, TaskGroup, from_thread, gather, run, sleep, spawn, to_thread, yield_now
from pyfiber.threads import FiberExecutor

NOT_THERE = "opentelemetry-sdk is NOT INSTALLED: pip install --group libraries"
pytest.importorskip("opentelemetry.sdk.trace", reason=NOT_THERE)

from opentelemetry import trace  # noqa: E402
from opentelemetry.sdk.trace import TracerProvider  # noqa: E402
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import (  # noqa: E402
    InMemorySpanExporter,
)

MANY = 100


class Spans:
    """A tracer, and what it has exported."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider = provider
        self.span = provider.get_tracer("tests").start_as_current_span

    def parents(self) -> dict[str, str | None]:
        """The name of each span's parent."""
        spans: Any = self.exporter.get_finished_spans()
        names = {span.context.span_id: span.name for span in spans}
        assert len(set(names.values())) == len(names)
        return {
            span.name: None if span.parent is None else names[span.parent.span_id] for span in spans
        }


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def requests(handle: Callable[[int], object]) -> None:
    """A hundred fibers at once, each for a request."""
    with TaskGroup() as group:
        for number in range(MANY):
            group.spawn(handle, number)


def test_spans_of_fibers_that_run_in_turns_do_not_mix(spans: Spans) -> None:
    def handle(number: int) -> None:
        with spans.span(f"request {number}"):
            sleep(0)
            with spans.span(f"query {number}"):
                yield_now()
            with spans.span(f"answer {number}"):
                sleep(0)

    run(requests, handle)
    parents = spans.parents()
    assert len(parents) == 3 * MANY
    for number in range(MANY):
        assert parents[f"request {number}"] is None
        assert parents[f"query {number}"] == f"request {number}"
        assert parents[f"answer {number}"] == f"request {number}"


@pytest.mark.parametrize(
    "start",
    [
        lambda fn: spawn(fn).join(),
        lambda fn: gather(fn),
        lambda fn: to_thread(fn),
        lambda fn: to_thread(from_thread, fn),
    ],
    ids=["spawn", "gather", "to_thread", "from_thread"],
)
def test_what_a_fiber_starts_has_its_span_as_parent(
    spans: Spans, start: Callable[[Callable[[], None]], object]
) -> None:
    def handle(number: int) -> None:
        def inner() -> None:
            with spans.span(f"inner {number}"):
                pass

        with spans.span(f"request {number}"):
            sleep(0)
            start(inner)

    run(requests, handle)
    parents = spans.parents()
    assert len(parents) == 2 * MANY
    assert all(parents[f"inner {n}"] == f"request {n}" for n in range(MANY))


def test_members_of_a_task_group_have_the_span_in_which_they_were_spawned(spans: Spans) -> None:
    def handle(number: int) -> None:
        def part(name: str) -> None:
            with spans.span(f"{name} {number}"):
                sleep(0)

        with spans.span(f"request {number}"), TaskGroup() as group:
            group.spawn(part, "outer")
            with spans.span(f"phase {number}"):
                group.spawn(part, "inner")

    run(requests, handle)
    parents = spans.parents()
    assert len(parents) == 4 * MANY
    for number in range(MANY):
        assert parents[f"outer {number}"] == f"request {number}"
        assert parents[f"inner {number}"] == f"phase {number}"
        assert parents[f"phase {number}"] == f"request {number}"


def test_value_of_a_channel_does_not_bring_its_senders_span(spans: Spans) -> None:
    """Who receives keeps its own span; to follow the sender, send its span's context, too."""
    channel: Channel[tuple[int, Any]] = Channel(0)

    def worker() -> None:
        with spans.span("worker"):
            for number, context in channel:
                with spans.span(f"own {number}"):
                    pass
                with spans.span(f"followed {number}", context=context):
                    pass

    def handle(number: int) -> None:
        with spans.span(f"request {number}") as span:
            channel.send((number, trace.set_span_in_context(span)))

    def main() -> None:
        fiber = spawn(worker)
        requests(handle)
        channel.close()
        fiber.join()

    run(main)
    parents = spans.parents()
    assert len(parents) == 3 * MANY + 1
    for number in range(MANY):
        assert parents[f"own {number}"] == "worker"
        assert parents[f"followed {number}"] == f"request {number}"


def test_executor_of_fibers_passes_the_span_on(spans: Spans) -> None:
    def inner(number: int) -> None:
        with spans.span(f"inner {number}"):
            sleep(0)

    def main() -> None:
        with FiberExecutor() as executor:
            for number in range(MANY):
                with spans.span(f"request {number}"):
                    executor.submit(inner, number)

    run(main)
    parents = spans.parents()
    assert all(parents[f"inner {n}"] == f"request {n}" for n in range(MANY))
