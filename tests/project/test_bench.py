"""`python -m bench`: what it prints and writes, never how fast anything was."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

import pyfiber
from tests.support.subprocesses import EMULATED

pytest.importorskip("bench", reason="needs the source tree")

from bench import __main__ as command
from bench import peers, report, runner
from bench.model import BYTES, ROOT, Case, Row, Sample, Unavailable
from bench.peers import PEERS, install_command
from bench.progress import Progress
from bench.rows import ROWS, find, select, standin
from bench.runner import FAILED, MEASURED, MISSING, Result, RowResult, RowRun, Settings
from bench.worker import answer

FACTS = {
    "python": "3.99.0",
    "implementation": "CPython",
    "system": "Linux",
    "processor": "a processor",
    "processors": 2,
    "pyfiber": {"version": "1.2.3", "backend": "assembly"},
    "peers": {"greenlet": "9.9", "trio": None},
}
TINY = Settings(repetitions=2, quick=True, patience=60)


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)


def no_measure(count: int) -> Sample:
    raise AssertionError("must not be measured")


def a_row(*cases: Case, unit: str = "ns") -> Row:
    return Row("a-row", "a title", "What is timed.", cases, count=10, quick=10, unit=unit)


def measured(subject: str, *values: float) -> Result:
    return Result(Case(subject, no_measure), samples=[Sample(value, 1) for value in values])


# The command, from outside ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def switch_document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    file = tmp_path_factory.mktemp("bench") / "switch.json"
    done = run_bench("--quick", "--only", "switch", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar where there is no terminal
    assert "switch: one switch, ping-pong [ns]" in done.stdout
    document: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
    return document


@pytest.mark.slow
def test_document_names_environment_and_settings(switch_document):
    environment = switch_document["environment"]
    assert switch_document["format"] == report.FORMAT
    assert environment["python"].startswith("3.")
    assert set(environment["peers"]) == set(PEERS)
    assert environment["pyfiber"]["backend"] == pyfiber.debug.info()["backend"]
    assert "garbage" in report.header({**environment}, Settings(), None)[3]
    assert switch_document["settings"]["quick"] is True


@pytest.mark.slow
def test_document_has_a_value_for_every_measured_subject(switch_document):
    (row,) = switch_document["rows"]
    assert (row["name"], row["unit"]) == ("switch", "ns")
    subjects = {result["subject"]: result for result in row["results"]}
    assert {"pyfiber", "greenlet", "generator", "threads"} == set(subjects)
    for result in subjects.values():
        if result["status"] == MEASURED:
            assert len(result["samples"]) == switch_document["settings"]["repetitions"]
            assert result["value"] == min(result["samples"]) > 0
            assert result["operations"] > 0
        else:
            assert result["reason"]


@pytest.mark.slow
def test_document_compares_every_subject_with_pyfiber(switch_document):
    (row,) = switch_document["rows"]
    values = {result["subject"]: result["value"] for result in row["results"]}
    for result in row["results"]:
        if result["subject"] == "pyfiber":
            assert result["ratio"] is None
        elif result["status"] == MEASURED:
            assert math.isclose(result["ratio"], result["value"] / values["pyfiber"])


@pytest.mark.slow
def test_document_is_one_of_pyperf_too(switch_document):
    pyperf = pytest.importorskip("pyperf")
    suite = pyperf.BenchmarkSuite.loads(json.dumps(switch_document))
    own = suite.get_benchmark("switch: pyfiber")
    (row,) = switch_document["rows"]
    assert own.get_nvalue() == len(row["results"][0]["samples"])
    assert own.format_value(row["results"][0]["value"] * 1e-9).endswith(" ns")


@pytest.mark.slow
def test_document_tells_how_to_install_what_is_missing(switch_document):
    (row,) = switch_document["rows"]
    missing = {r["subject"] for r in row["results"] if r["status"] == MISSING}
    assert set(switch_document["missing"]) == missing
    for name, how in switch_document["missing"].items():
        assert how == install_command([name])


def test_json_to_standard_output_is_nothing_but_json():
    done = run_bench("--quick", "--only", "raw-switch", "--json", "-")
    assert done.returncode == 0, done.stderr
    assert [row["name"] for row in json.loads(done.stdout)["rows"]] == ["raw-switch"]


def test_unknown_row_is_refused_with_the_names_there_are():
    done = run_bench("--only", "warp-speed")
    assert done.returncode == 2
    assert "no benchmark is named 'warp-speed'" in done.stderr
    assert "skynet" in done.stderr


def test_list_names_every_row_and_measures_nothing():
    done = run_bench("--list")
    assert done.returncode == 0
    for row in ROWS:
        assert f"\n{row.name} " in "\n" + done.stdout
        assert row.description in done.stdout


# Rows ---------------------------------------------------------------------------------------------


def test_rows_have_names_of_their_own():
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_row_begins_with_pyfiber_and_is_described_in_a_sentence(row):
    subjects = [case.subject for case in row.cases]
    assert subjects[0] == "pyfiber"
    assert len(set(subjects)) == len(subjects)
    assert row.description.endswith((".", ")."))
    assert all(case.peer is None or case.peer in PEERS for case in row.cases)


def test_select_leaves_out_what_takes_gigabytes():
    assert "million" not in [row.name for row in select([], full=False)]
    assert "million" in [row.name for row in select([], full=True)]
    assert [row.name for row in select(["million"], full=False)] == ["million"]


def test_select_takes_patterns_and_keeps_the_order():
    assert [row.name for row in select(["yield-*", "switch"], full=False)] == [
        "switch",
        "yield-100",
        "yield-10000",
    ]


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if not row.full_only and row.name not in ("memory", "grain-memory")],
    ids=lambda row: row.name,
)
def test_every_case_of_pyfiber_does_what_it_says(row):
    if EMULATED and row.name == "curve-yield-100000":
        pytest.skip("an emulated processor takes minutes for so many")
    done = run_worker(row.name, "pyfiber", min(row.quick, 100 if "skynet" in row.name else 2_000))
    assert done["status"] in (MEASURED, "unavailable"), done
    if done["status"] == MEASURED:
        assert done["total"] > 0
        assert done["operations"] >= 1


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_case_counts_bytes_and_says_how_long_it_took():
    done = run_worker("memory", "pyfiber", 1_000)
    assert done["status"] == MEASURED, done
    assert done["operations"] == 1_000
    assert set(done["details"]) == {"park_ns", "finish_ns"}


def run_worker(row: str, subject: str, count: int) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.worker", row, subject],
        cwd=ROOT,
        input=f"{count}\n",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, object] = json.loads(done.stdout)
    return result


# Worker and runner --------------------------------------------------------------------------------


def test_worker_answers_with_the_reason_when_something_cannot_be_measured():
    def impossible(count: int) -> Sample:
        raise Unavailable("not on this system")

    assert answer(Case("x", impossible), 1) == {
        "status": "unavailable",
        "reason": "not on this system",
    }


def test_worker_answers_with_the_error_when_a_measurement_fails():
    def wrong(count: int) -> Sample:
        raise ZeroDivisionError("oh")

    assert answer(Case("x", wrong), 1)["reason"] == "ZeroDivisionError: oh"


def test_collector_runs_before_measuring_and_is_on_while_measuring():
    import gc

    seen: list[bool] = []
    collections: list[str] = []

    def watch(phase: str, info: object) -> None:
        collections.append(phase)

    def measure(count: int) -> Sample:
        seen.append(gc.isenabled() and collections[-2:] == ["start", "stop"])
        return Sample(count, count)

    gc.callbacks.append(watch)
    try:
        answer(Case("x", measure), 1)
    finally:
        gc.callbacks.remove(watch)
    assert seen == [True]


def test_peer_that_is_not_installed_is_named_and_not_measured(monkeypatch):
    monkeypatch.setattr(runner, "is_installed", lambda name: False)
    monkeypatch.setattr(peers, "NOT_FOR", {})
    row = a_row(Case("trio", no_measure, peer="trio"), Case("uvloop", no_measure, peer="uvloop"))
    progress = Progress(4, io.StringIO())
    done = RowRun(row, TINY, progress).run()
    assert [result.status for result in done.results] == [MISSING, MISSING]
    assert runner.missing_peers([done]) == ["trio", "uvloop"]
    assert progress.done == progress.total
    text = report.table([done], FACTS, TINY, None)
    assert "unavailable: trio is not installed" in text
    assert install_command(["trio", "uvloop"]) in text


@pytest.mark.parametrize("subject", ["pyfiber", "greenlet"])
def test_row_of_the_stand_in_tells_how_to_get_what_is_missing(monkeypatch, subject):
    """On the stand-in SQLAlchemy is needed, on greenlet greenlet as well."""
    monkeypatch.setattr(standin, "is_installed", lambda name: False)
    monkeypatch.setattr(standin.pyfiber.greenlet, "install", lambda: None)
    done = answer(find("sqlalchemy-spawn", subject), 1)
    needed = "sqlalchemy" if subject == "pyfiber" else "greenlet"
    assert done["status"] == "unavailable"
    assert done["reason"] == f"{needed} is not installed: {install_command([needed])}"


def test_peer_that_does_not_exist_for_a_system_is_not_proposed(monkeypatch):
    monkeypatch.setattr(peers, "NOT_FOR", {sys.platform: ("uvloop",)})
    row = a_row(Case("uvloop", no_measure, peer="uvloop"))
    done = RowRun(row, TINY, Progress(2, io.StringIO())).run()
    assert done.results[0].reason == f"there is no uvloop for {sys.platform}"
    assert runner.missing_peers([done]) == []


def test_install_command_is_for_this_interpreter():
    assert install_command(["greenlet", "trio"]) == f"{sys.executable} -m pip install greenlet trio"


def test_nothing_missing_says_nothing():
    assert report.missing_line([]) == ""


def test_worker_that_dies_is_reported_and_the_others_are_measured():
    switch = select(["switch"], full=False)[0]
    row = Row(
        "switch",
        "a title",
        "What is timed.",
        (Case("no such subject", no_measure), find("switch", "generator")),
        count=1_000,
        quick=1_000,
    )
    assert switch.name == row.name  # so that its worker finds the generator
    dead, alive = RowRun(row, TINY, Progress(4, io.StringIO())).run().results
    assert dead.status == FAILED
    assert "LookupError: no case of 'no such subject'" in dead.reason
    assert (alive.status, len(alive.samples)) == (MEASURED, TINY.repetitions)


def test_measurement_that_does_not_end_is_given_up():
    endless = 10**12
    row = Row("switch", "t", "d.", (find("switch", "generator"),), count=endless, quick=endless)
    hasty = Settings(repetitions=1, quick=True, patience=0.3)
    (result,) = RowRun(row, hasty, Progress(1, io.StringIO())).run().results
    assert (result.status, result.reason) == (FAILED, "no answer within 0.3 s")


def test_exit_of_a_worker_in_words():
    assert runner.describe_exit(1, "oops") == "the worker ended with exit code 1: oops"
    if sys.platform != "win32":
        assert runner.describe_exit(-9, "") == "the worker was ended by SIGKILL"


def test_repetitions_and_counts_follow_the_settings():
    row = a_row()
    assert Settings().count_of(row) == row.count
    assert Settings(repetitions=3).repetitions_of(row) == 3
    assert runner.QUICK.count_of(row) == row.quick


def test_every_repetition_begins_with_another_subject():
    results = [measured(name) for name in "abc"]
    first = [runner.rotated(results, places)[0].case.subject for places in range(4)]
    assert first == ["a", "b", "c", "a"]
    assert sorted(result.case.subject for result in runner.rotated(results, 2)) == ["a", "b", "c"]
    assert runner.rotated([], 1) == []


def test_family_is_asked_for_by_name():
    parser = command.make_parser()
    assert parser.parse_args([]).family == "engine"
    assert parser.parse_args(["io", "--quick"]).family == "io"


def test_options_change_the_settings():
    parser = command.make_parser()
    settings = command.settings_from(parser.parse_args(["--quick", "--repeat", "7"]))
    assert (settings.quick, settings.repetitions) == (True, 7)
    with pytest.raises(SystemExit):
        parser.parse_args(["--repeat", "0"])


def test_exit_status_tells_whether_pyfiber_failed():
    good, bad = measured("pyfiber", 1.0), measured("greenlet", 1.0)
    bad.give_up(FAILED, "it crashed")
    assert not command.pyfiber_failed([RowResult(a_row(), [good, bad])])
    good.give_up(FAILED, "it crashed")
    assert command.pyfiber_failed([RowResult(a_row(), [good, bad])])


# Report -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.50"), (7.256, "7.26"), (31.44, "31.4"), (198.2, "198"), (15160.0, "15,160")],
)
def test_values_have_three_digits_where_they_matter(value, text):
    assert report.number(value) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.253, "0.25x"), (1.04, "1.04x"), (6.44, "6.4x"), (1234.5, "1,234x")]
)
def test_ratios(ratio, text):
    assert report.format_ratio(ratio) == text


@pytest.mark.parametrize(
    ("unit", "of_pyperf", "values"),
    [
        ("ns", "second", [3e-8, 2e-8]),
        ("ms", "second", [3e-2, 2e-2]),
        ("bytes", "byte", [30.0, 20.0]),
        ("calls", "integer", [30.0, 20.0]),
    ],
)
def test_samples_are_in_units_of_pyperf(unit, of_pyperf, values):
    (entry,) = benchmarks_of([RowResult(a_row(unit=unit), [measured("pyfiber", 30.0, 20.0)])])
    assert entry["metadata"] == {"name": "a-row: pyfiber", "unit": of_pyperf, "loops": 1}
    assert entry["runs"] == [{"values": pytest.approx(values)}]


def test_what_was_not_measured_is_nothing_for_pyperf():
    """It refuses documents with empty entries, and values that are not above zero."""
    own, other = measured("pyfiber", 1.0), measured("greenlet", 1.0, 0.0)
    own.give_up(FAILED, "it crashed")
    assert benchmarks_of([RowResult(a_row(), [own, other])]) == []
    assert all(report.for_pyperf([], {**FACTS, "processor": ""}, None)["metadata"].values())


def benchmarks_of(results: list[RowResult]) -> list[dict[str, object]]:
    entries: list[dict[str, object]] = report.for_pyperf(results, FACTS, None)["benchmarks"]
    return entries


def test_best_repetition_counts():
    result = measured("pyfiber", 30.0, 28.0, 35.0)
    assert result.best is not None
    assert result.best.value == 28.0


def test_row_in_the_table():
    row = a_row(unit=BYTES)
    own, other = measured("pyfiber", 4_413.0), measured("greenlet", 6_046.0)
    assert report.row_lines(RowResult(row, [own, other])) == [
        "a-row: a title [bytes]",
        "  What is timed.",
        "  pyfiber                  4,413",
        "  greenlet                 6,046    1.37x",
    ]


def test_row_where_pyfiber_loses_is_printed_like_the_others():
    own, other = measured("pyfiber", 30.0), measured("generator", 7.5)
    assert report.row_lines(RowResult(a_row(), [own, other]))[-1].split() == [
        "generator",
        "7.50",
        "0.25x",
    ]


def test_row_without_pyfiber_has_no_ratios():
    own, other = measured("pyfiber"), measured("greenlet", 100.0)
    own.give_up("unavailable", "not here")
    lines = report.row_lines(RowResult(a_row(), [own, other]))
    assert lines[-2].split(maxsplit=2) == ["pyfiber", "-", "unavailable: not here"]
    assert lines[-1].split() == ["greenlet", "100"]


def test_row_with_a_reference_of_its_own_compares_with_that():
    row = dataclasses.replace(a_row(), reference="C", show_median=True)
    own, other = measured("pyfiber", 6.0, 5.0, 9.0), measured("C", 4.0)
    lines = report.row_lines(RowResult(row, [own, other]))
    assert lines[1] == "  What is timed. Ratios: the value divided by that of C."
    assert lines[2].split(maxsplit=3) == ["pyfiber", "5.00", "1.25x", "median 6.00"]
    assert lines[3].split(maxsplit=2) == ["C", "4.00", "median 4.00"]
    entry = report.row_entry(RowResult(row, [own, other]))
    assert (entry["reference"], entry["results"][0]["median"]) == ("C", 6.0)


def test_details_have_the_unit_that_their_name_ends_with():
    sample = Sample(1, 1, {"park_ns": 12.0, "p99_us": 7.5, "messages_per_s": 65_000.0})
    assert report.details(sample) == "park 12.0 ns, p99 7.50 us, messages 65,000/s"
    with pytest.raises(ValueError, match="'weight' ends with no unit"):
        report.detail("weight", 1.0)


def test_rows_without_pyfiber_itself_are_named_loudly():
    own, other = measured("pyfiber"), measured("greenlet", 100.0)
    own.give_up("unavailable", "not here")
    text = report.table([RowResult(a_row(), [own, other])], FACTS, TINY, None)
    assert text.endswith("\n\nPYFIBER WAS NOT MEASURED in a-row: not here")


def test_what_a_subject_cannot_do_is_in_the_table():
    row = Row("r", "t", "d.", (), count=1, quick=1, impossible={"generator": "cannot"})
    assert report.row_lines(RowResult(row, []))[-1].split() == ["generator", "-", "cannot"]


def test_header_warns_of_a_busy_machine():
    calm, busy = (report.header(FACTS, Settings(), load) for load in (0.3, 1.9))
    assert not any("busy" in line for line in calm)
    assert any("busy" in line for line in busy)
    assert any("greenlet 9.9" in line and "trio" not in line for line in calm)


# Progress -----------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_on_a_terminal():
    stream = Terminal()
    progress = Progress(4, stream)
    progress.advance(2)
    progress.begin("switch: greenlet")
    progress.begin("")
    assert "\r 50%  switch: greenlet" in stream.getvalue()
    assert stream.getvalue().rsplit("\r", 2)[1].isspace()  # and the line is empty again


def test_no_progress_elsewhere():
    stream = io.StringIO()
    progress = Progress(4, stream)
    progress.begin("switch: greenlet")
    progress.advance(9)
    assert stream.getvalue() == ""
    assert progress.done == 4


def test_document_is_written_to_a_file(tmp_path: Path):
    command.write_json(str(tmp_path / "out.json"), {"format": 1})
    assert json.loads((tmp_path / "out.json").read_text(encoding="utf-8")) == {"format": 1}
