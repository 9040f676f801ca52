"""The plots and tables of docs/performance.md are those of the results that are kept."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("bench", reason="needs the source tree")

from bench.model import CURVES, ROOT
from bench.rows import ROWS, curves, select

DOCS, RESULTS = ROOT / "docs", ROOT / "bench" / "results"


@pytest.fixture(scope="module")
def plots() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_plots", DOCS / "make_plots.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look
    spec.loader.exec_module(module)
    return module


def kept(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return document


def test_plots_are_those_of_the_results(plots: ModuleType) -> None:
    for name, plot in plots.PLOTS.items():
        drawn = plots.draw(kept(plot.file), plot)
        ElementTree.fromstring(drawn)
        assert (DOCS / "images" / name).read_text(encoding="utf-8") == drawn, "docs/make_plots.py"


def test_chart_is_that_of_the_results(plots: ModuleType) -> None:
    drawn = plots.chart_of_results()
    ElementTree.fromstring(drawn)
    assert (DOCS / "images" / plots.CHART).read_text(encoding="utf-8") == drawn


def test_chart_has_rows_in_which_others_are_better(plots: ModuleType) -> None:
    for name in ("curve-yield-100000", "curve-memory-100"):
        each = next(each for each in plots.CHART_ROWS if each.row == name)
        row = next(row for row in kept(each.file)["rows"] if row["name"] == name)
        assert min(r["ratio"] for r in row["results"] if r["subject"] in plots.CHART_SUBJECTS) < 1


def test_every_subject_of_a_curve_has_a_colour(plots: ModuleType) -> None:
    subjects = {case.subject for row in select([], full=True, family=CURVES) for case in row.cases}
    assert sorted(subjects - set(plots.COLOURS)) == []


def table(*arguments: str | Path) -> str:
    """What `python -m bench.table` prints."""
    command = [sys.executable, "-m", "bench.table", *arguments]
    utf8 = {**os.environ, "PYTHONUTF8": "1"}
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", env=utf8, cwd=ROOT, check=True
    )
    return done.stdout


@pytest.mark.parametrize("name", ["curves.json", "servers.json"])
def test_table_is_that_of_the_results(name: str) -> None:
    shown = table("--summary", RESULTS / name)
    assert shown in (DOCS / "performance.md").read_text(encoding="utf-8")
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    assert max(line.count(" | ") for line in lines) <= 6, "who can read so many columns?"


def test_no_server_is_left_out_of_the_tables() -> None:
    shown = table("--summary", RESULTS / "servers.json")
    for row in kept("servers.json")["rows"]:
        assert shown.count(f"| {row['title']} [{row['unit']}] |") == 1
        for result in row["results"]:
            assert f"\n| {result['subject']} | " in shown


def test_ten_rows_are_made_of_two_runs(tmp_path: Path) -> None:
    servers = kept("servers.json")
    rows = ["switch", "deep-python", "spawn-many", "yield-10000", "queue", "timeout", "group"]
    results = [{"subject": "pyfiber", "value": 10.0, "ratio": None}]
    engine = {
        **servers,
        "rows": [
            {"name": name, "title": name, "unit": "ns", "results": results}
            for name in (*rows, "to-thread", "memory")
        ],
    }
    file = tmp_path / "engine.json"
    file.write_text(json.dumps(engine), encoding="utf-8")
    shown = table("--summary", file, "--servers", RESULTS / "servers.json")
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + 10
    row = next(row for row in servers["rows"] if row["name"] == "io-echo-100")
    values = {result["subject"]: result["value"] for result in row["results"]}
    ours, gevents = values["pyfiber"], values["gevent"]
    assert lines[-1].startswith(
        f"| echo of 128 bytes, 100 connections [ns] | {ours:,.0f} |  | {gevents:,.0f} "
        f"({gevents / ours:.2f}x)"
    )


@pytest.mark.parametrize("name", ["curves.json", "servers.json"])
def test_results_are_documents_of_pyperf_with_their_environment(name: str) -> None:
    document = kept(name)
    for fact in ("python", "system", "processor", "processors", "peers", "load_average"):
        assert document["environment"][fact] is not None
    pyperf = pytest.importorskip("pyperf", reason="pyperf is not installed")
    suite = pyperf.BenchmarkSuite.load(str(RESULTS / name))
    measured = [r for row in document["rows"] for r in row["results"] if r["value"]]
    assert len(suite.get_benchmarks()) == len(measured)


def test_curves_have_a_row_for_each_point() -> None:
    rows = {row.name: row for row in ROWS if row.family == CURVES}
    assert {f"curve-depth-{depth}" for depth in curves.DEPTHS} <= set(rows)
    assert {"wave-first", "wave-warm"} <= set(rows)
    assert not any(row.family == CURVES for row in select([], full=True))


@pytest.mark.parametrize("kind", ["wave-first", "wave-warm", "curve-depth-10", "curve-yield-10"])
def test_small_measurement_of(kind: str) -> None:
    (row,) = select([kind], full=True)
    own = next(case for case in row.cases if case.subject == "pyfiber")
    sample = own.measure(100)
    assert sample.operations >= 100
    assert sample.value > 0
