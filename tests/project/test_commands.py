"""`python -m pyfiber`: its help, `info`, and the small table of `bench`, never how fast anything
was."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

import pyfiber
from pyfiber import _bench
from pyfiber._bench import ROWS, SUBJECTS, Result, measure_row


def run_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyfiber", *arguments], capture_output=True, text=True, timeout=300
    )


def test_help_of_every_command():
    assert "bench" in run_module("--help").stdout
    assert "--quick" in run_module("bench", "--help").stdout
    assert "--json" in run_module("info", "--help").stdout


def test_no_command_is_a_usage_error():
    assert run_module().returncode == 2


def test_info_prints_every_fact():
    done = run_module("info")
    assert done.returncode == 0, done.stderr
    for name in pyfiber.debug.info():
        assert name.replace("_", " ") in done.stdout


def test_info_as_json():
    facts = json.loads(run_module("info", "--json").stdout)
    assert set(facts) == set(pyfiber.debug.info())
    assert facts["backend"] == pyfiber.debug.info()["backend"]


@pytest.mark.parametrize("module", ["pyfiber", "pyfiber.__main__"])
def test_who_measures_nothing_does_not_import_the_bench(module: str):
    code = f"import {module}, sys; assert 'pyfiber._bench' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# The small table ----------------------------------------------------------------------------------


def measured(row: str, subject: str) -> float:
    """The value of a measurement that takes no time."""
    code = f"""
from pyfiber import _bench
_bench.BUDGET = 0
row = _bench.ROWS[{row!r}]
print(_bench.measured_here(row, row.measures[{subject!r}]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_every_subject_that_is_installed_does_what_the_row_says(row: _bench.Row):
    assert next(iter(row.measures)) == "pyfiber"
    if row.unit == "bytes" and sys.platform != "linux":
        assert measure_row(row, 1)["pyfiber"].reason == "needs /proc, which only Linux has"
        return
    for subject in row.measures:
        if subject not in _bench.PEERS or _bench.version(subject):
            assert measured(row.name, subject) > 0


def test_best_of_several_counts_and_subjects_take_turns(monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []
    values = iter([30.0, 90.0, 20.0, 100.0])

    def measure_once(row: _bench.Row, subject: str, result: Result) -> None:
        order.append(subject)
        result.samples.append(next(values))

    monkeypatch.setattr(_bench, "measure_once", measure_once)
    monkeypatch.setattr(_bench, "version", lambda name: "1.0")
    results = measure_row(ROWS["switch"], 2)
    assert order == ["pyfiber", "greenlet"] * 2
    assert {name: str(result) for name, result in results.items()} == {
        "pyfiber": "20.0",
        "greenlet": "90.0 (4.50x)",
    }


def test_peer_that_is_not_installed_is_named_and_not_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(_bench, "version", lambda name: None)
    monkeypatch.setattr(
        _bench, "measure_once", lambda row, subject, result: result.samples.append(7)
    )
    options = argparse.Namespace(only=["switch"], quick=True, json=None)
    assert _bench.main(options) == 0
    told = capsys.readouterr().out
    assert "beside no other library" in told
    assert ["switch", "7.00", "-"] in [line.split() for line in told.splitlines()]
    assert "- greenlet: not installed\n" in told


def test_pyfiber_that_fails_is_told_and_is_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv("PYFIBER_STACK_SIZE", "nonsense")
    options = argparse.Namespace(only=["yield"], quick=True, json=None)
    assert _bench.main(options) == 1
    assert "- pyfiber: ValueError: PYFIBER_STACK_SIZE" in capsys.readouterr().out


def test_unknown_row_is_refused_with_the_names_there_are():
    done = run_module("bench", "--only", "warp-speed")
    assert done.returncode == 2
    assert done.stderr == f"no row is named 'warp-speed'; there are {', '.join(ROWS)}\n"


def test_table_says_what_it_measures_and_the_document_has_all_values(tmp_path: Path):
    file = tmp_path / "values.json"
    done = run_module("bench", "--quick", "--only", "timeout", "--json", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"pyfiber {pyfiber.__version__} (" in done.stdout
    assert "the best of 2\n" in done.stdout
    for subject in SUBJECTS:
        assert subject in done.stdout
    assert f"\ntimeout   {ROWS['timeout'].description} [ns]\n" in done.stdout
    document = json.loads(file.read_text(encoding="utf-8"))
    assert set(document["environment"]["peers"]) == set(_bench.PEERS)
    own = document["rows"]["timeout"]["results"]["pyfiber"]
    assert own["value"] == min(own["samples"])
    assert len(own["samples"]) == 2
