"""Timelines and profiles: what they tell of every turn of a fiber."""

from __future__ import annotations

import gc
import gzip
import io
import itertools
import json
import pathlib
import threading
import time
import weakref
from typing import Any

import pytest

from pyfiber import (
    Channel,
    Event,
    Fiber,
    FiberError,
    Queue,
    TaskGroup,
    current,
    grains,
    park,
    run,
    sleep,
    spawn,
    testing,
    timeout,
    yield_now,
)
from pyfiber.debug import Profiler, trace
from tests.support.gil import needs_gil


def recorded(fn: Any, *args: Any, **options: Any) -> dict[str, Any]:
    file = io.StringIO()
    with trace(file, **options):
        run(fn, *args)
    told: dict[str, Any] = json.loads(file.getvalue())
    return told


def rows_of(told: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The spans of each row, by its title; rows of the same title are refused."""
    titles = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in told["traceEvents"]
        if event["name"] == "thread_name"
    }
    rows: dict[str, list[dict[str, Any]]] = {title: [] for title in titles.values()}
    assert len(rows) == len(titles)
    for event in told["traceEvents"]:
        if event["ph"] == "X":
            rows[titles[event["pid"], event["tid"]]].append(event)
    return rows


def names(spans: list[dict[str, Any]]) -> list[str]:
    return [span["name"] for span in sorted(spans, key=lambda span: span["ts"])]


def test_timeline_tells_what_a_fiber_waited_for() -> None:
    event, queue = Event(), Queue[int]()

    def waiter() -> None:
        event.wait()
        queue.get()
        park()
        yield_now()

    def main() -> None:
        fiber = spawn(waiter)
        yield_now()
        event.set()
        yield_now()
        queue.put(1)
        yield_now()
        fiber.unpark()

    spans = rows_of(recorded(main))["test_timeline_tells_what_a_fiber_waited_for.<locals>.waiter"]
    assert names(spans) == [
        "runs",
        "waits: Event",
        "runs",
        "waits: Queue",
        "runs",
        "waits: park()",
        "runs",
        "ready",
        "runs",
    ]


def test_timeline_has_no_gaps_and_no_overlaps() -> None:
    """Each span of a fiber begins where the one before has ended, and so do those of the loop."""

    def main() -> None:
        with TaskGroup() as group:
            for i in range(5):
                group.spawn(sleep, i / 1000).name = f"sleeper {i}"
            group.spawn(yield_now).name = "yielder"

    for title, spans in rows_of(recorded(main)).items():
        spans.sort(key=lambda span: span["ts"])
        for before, after in itertools.pairwise(spans):
            gap = after["ts"] - (before["ts"] + before["dur"])
            assert gap >= -0.01 if title == "the loop" else abs(gap) < 0.01


def test_timeline_shows_on_the_loops_row_who_ran() -> None:
    def main() -> None:
        for name in ("one", "two"):
            fiber = spawn(yield_now)
            fiber.name = name

    row = rows_of(recorded(main))["the loop"]
    assert names(row)[:5] == [f"{main.__qualname__}", "one", "two", "one", "two"]


def test_wait_that_was_cut_short_says_how() -> None:
    def main() -> None:
        try:
            with timeout(0.001):
                park()
        except TimeoutError:
            pass
        fiber = spawn(park)
        fiber.name = "cancelled"
        yield_now()
        fiber.cancel()

    rows = rows_of(recorded(main))
    ends = {
        title: [span["args"]["end"] for span in spans if "args" in span]
        for title, spans in rows.items()
    }
    assert ends["cancelled"] == ["cancelled"]
    assert ends[main.__qualname__] == ["cancelled"]  # by its timeout


def test_timeline_keeps_the_last_turns_and_counts_the_others() -> None:
    def main() -> None:
        for _ in range(100):
            yield_now()

    told = recorded(main, limit=10)
    assert told["otherData"]["turns lost"] == 92  # of 101 turns and the end
    assert len(rows_of(told)[main.__qualname__]) == 9 + 8


def test_fiber_that_has_the_memory_of_another_is_a_row_of_its_own() -> None:
    def main() -> None:
        for i in range(50):
            fiber = spawn(int)
            fiber.name = f"number {i}"
            fiber.join()
            del fiber

    rows = rows_of(recorded(main))
    assert all(names(rows[f"number {i}"]) == ["runs"] for i in range(50))


def test_grain_is_a_row_as_well() -> None:
    def grain() -> Any:
        yield
        yield

    def main() -> None:
        grains.spawn(grain).join()

    spans = rows_of(recorded(main))["Grain"]
    assert names(spans) == ["runs", "ready", "runs", "ready", "runs"]


@needs_gil("without the GIL one thread's turns are recorded")
def test_timeline_shows_runs_of_all_threads() -> None:
    file = io.StringIO()
    all_there = threading.Barrier(3)  # or a later one may get the identifier of one that is over
    with trace(file):
        threads = [threading.Thread(target=run, args=(all_there.wait,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    loops = [
        event
        for event in json.loads(file.getvalue())["traceEvents"]
        if event["name"] == "process_name"
    ]
    assert len(loops) == 3


def test_timeline_of_a_run_on_its_way_begins_and_ends_in_it() -> None:
    file = io.StringIO()

    def main() -> None:
        yield_now()
        with trace(file):
            yield_now()
        yield_now()

    run(main)
    (spans,) = (v for k, v in rows_of(json.loads(file.getvalue())).items() if k != "the loop")
    assert names(spans) == ["runs"]


def test_timeline_goes_to_a_file_compressed_if_its_name_says_so(tmp_path: pathlib.Path) -> None:
    for name, opener in (("a.json", open), ("a.json.gz", gzip.open)):
        with trace(tmp_path / name):
            run(yield_now)
        with opener(tmp_path / name, "rt") as file:
            assert json.load(file)["traceEvents"]


def test_timeline_without_any_turn_is_a_file_that_can_be_read() -> None:
    file = io.StringIO()
    with trace(file):
        pass
    assert json.loads(file.getvalue())["traceEvents"] == []


def test_timeline_that_is_on_for_long_forgets_who_is_gone() -> None:
    """What it keeps does not grow with the number of fibers; those in its records are right."""

    def main() -> int:
        old = Fiber(park, name="old").start()
        yield_now()
        for number in range(5000):
            Fiber(yield_now, name=f"request {number}").start().join()
        kept = len(tracing._recorder.timeline()[1])
        old.unpark()
        old.join()
        return kept

    file = io.StringIO()
    with trace(file, limit=100) as tracing:
        kept = run(main)
    rows = rows_of(json.loads(file.getvalue()))
    assert 50 < kept < 2000
    assert names(rows["old"]) == ["runs"]
    assert names(rows["request 4999"])[-1] == "runs"
    assert names(rows["request 4999"]) == ["runs", "ready", "runs"]
    assert "request 4900" not in rows


def test_timeline_outlives_types_that_give_names() -> None:
    """To drop the last reference to one may run code, in the middle of a switch."""
    gone = []

    def main() -> None:
        for number in range(3000):
            kind = type("Job", (), {"__call__": lambda self: None})
            weakref.finalize(kind, gone.append, number)
            Fiber(kind()).start().join()
            if number % 100 == 0:
                gc.collect()

    with trace(io.StringIO(), limit=10):
        run(main)
        gc.collect()
        assert not gone
    gc.collect()
    assert len(gone) == 3000


def test_name_of_a_kind_of_str_is_told_as_a_plain_one() -> None:
    """What tells of it must not meet the methods of that kind."""

    class Evil(str):
        def __len__(self) -> int:
            raise AssertionError

        __hash__ = __repr__ = __eq__ = __format__ = __len__  # type: ignore[assignment]

    def main() -> None:
        fiber = Fiber(yield_now, name=Evil("begin")).start()
        assert type(fiber.name) is str
        yield_now()
        fiber.name = Evil("end")
        assert type(fiber.name) is str

    with Profiler() as profiler:
        told = recorded(main)
    assert "begin" in rows_of(told)
    assert {"begin", "end"} <= {row.name for row in profiler.rows()}


def test_name_that_is_no_text_is_written_escaped(tmp_path: pathlib.Path) -> None:
    """As that of a file may be; the whole timeline was lost."""
    path = tmp_path / "timeline.json"
    with trace(path):
        run(lambda: Fiber(list, name="caf\udce9 \N{HOT BEVERAGE}").start().join())
    assert r"caf\udce9 ☕" in rows_of(json.loads(path.read_text("utf-8")))


def test_timeline_goes_to_a_file_of_any_encoding(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "timeline.json"
    with path.open("w", encoding="ascii") as file, trace(file):
        run(lambda: Fiber(list, name="\N{HOT BEVERAGE}").start().join())
    assert "☕" in rows_of(json.loads(path.read_text("ascii")))


@pytest.mark.parametrize("file", [None, 3, b"timeline.json"])
def test_timeline_into_what_is_no_file_is_refused_at_once(file: Any) -> None:
    with pytest.raises(TypeError, match="file must be a path or an open text file, not '"):
        trace(file)
    trace(io.StringIO()).stop()


def test_second_timeline_at_the_same_time_is_refused() -> None:
    file = io.StringIO()
    with trace(file) as first:
        with pytest.raises(FiberError, match="a timeline is recorded already"):
            trace(file)
        first.stop()
        with pytest.raises(FiberError, match="stopped already"):
            first.stop()
    with pytest.raises(ValueError, match="limit must be positive"):
        trace(file, limit=0)


def test_run_under_test_is_left_alone() -> None:
    """It chooses by itself who runs."""
    told = {}

    def main() -> None:
        yield_now()

    file = io.StringIO()
    with trace(file), Profiler() as profiler:
        testing.run(main)
    told = json.loads(file.getvalue())
    assert told["traceEvents"] == []
    assert profiler.rows() == []


# a profile ----------------------------------------------------------------------------------------


def spend(seconds: float) -> None:
    """Time of the processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_profile_charges_the_turns_of_a_fiber_and_no_wait() -> None:
    channel = Channel[int]()

    def computes() -> None:
        for _ in range(3):
            spend(0.005)
            yield_now()

    def waits() -> None:
        sleep(0.02)
        assert list(channel) == []

    def main() -> None:
        with TaskGroup() as group:
            group.spawn(computes)
            group.spawn(computes)
            group.spawn(waits).name = "waits"
            sleep(0.03)
            channel.close()

    with Profiler() as profiler:
        run(main)
    rows = {row.name: row for row in profiler.rows()}
    computing = rows[computes.__qualname__]
    assert computing.turns == 8
    assert computing.cpu >= 6 * 0.005
    assert computing.real >= computing.longest >= 0.005
    # The whole is some 60 ms; what it charges is much less than what it waited.
    assert rows["waits"].cpu < 0.02


def test_profile_tells_a_blocking_call_from_computing() -> None:
    def blocks() -> None:
        time.sleep(0.02)

    with Profiler() as profiler:
        run(blocks)
    (row,) = profiler.rows()
    assert row.real >= 0.02 > row.cpu


def test_profile_charges_what_a_turn_switches_to() -> None:
    """A raw fiber has no turn of its own."""

    def inner(outer: Fiber[Any]) -> None:
        spend(0.005)
        outer.switch()

    def outer() -> None:
        fiber = Fiber(inner, (current(),))
        fiber.switch()
        fiber.switch()

    with Profiler() as profiler:
        run(outer)
    (row,) = profiler.rows()
    assert row.cpu >= 0.005


def test_profile_goes_on_after_a_pause() -> None:
    profiler = Profiler()
    for _ in range(2):
        with profiler:
            run(yield_now)
        run(yield_now)
    (row,) = profiler.rows()
    assert row.turns == 4


def test_profile_and_timeline_at_the_same_time() -> None:
    file = io.StringIO()
    with trace(file):
        with Profiler() as profiler:
            run(yield_now)
        run(yield_now)
    assert profiler.rows()[0].turns == 2
    spans = [e for e in json.loads(file.getvalue())["traceEvents"] if e["name"] == "runs"]
    assert len(spans) == 4


def test_profile_is_printed_as_a_table() -> None:
    def main() -> None:
        for i in range(3):
            spawn(yield_now).name = f"fiber {i}"

    with Profiler() as profiler:
        run(main)
    file = io.StringIO()
    profiler.print(file, limit=2)
    head, *rows, last = file.getvalue().splitlines()
    assert head.split() == ["cpu", "ms", "real", "ms", "longest", "ms", "turns", "name"]
    assert len(rows) == 2
    assert last == "... and 2 more"


def test_profile_keeps_one_row_for_equal_names() -> None:
    """Each new str was one more to keep."""

    def main() -> None:
        for number in range(1000):
            Fiber(list, name="".join(["work", "er"]) + f" {number % 2}").start().join()

    with Profiler() as profiler:
        run(main)
    assert len(profiler._recorder.profile()) == 3
    turns = {row.name: row.turns for row in profiler.rows()}
    assert (turns["worker 0"], turns["worker 1"]) == (500, 500)


def test_profile_keeps_what_many_names_have_cost() -> None:
    def main() -> None:
        for number in range(200):
            Fiber(list, name=f"job {number}").start().join()

    with Profiler() as profiler:
        run(main)
    turns = {row.name: row.turns for row in profiler.rows() if row.name.startswith("job")}
    assert turns == {f"job {number}": 1 for number in range(200)}


def test_profiler_that_is_started_twice_is_refused() -> None:
    profiler = Profiler()
    with pytest.raises(FiberError, match="has not been started"):
        profiler.stop()
    with profiler:
        with pytest.raises(FiberError, match="a profile is taken already"):
            Profiler().start()
        profiler.stop()
    with pytest.raises(FiberError, match="has not been started"):
        profiler.stop()
