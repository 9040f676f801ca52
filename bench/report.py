"""Formats the results: a table for people, a document for programs."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyfiber

from .model import BYTES, CALLS, MILLISECONDS, NANOSECONDS, PYFIBER, Row, Sample
from .peers import PEERS, install_command, version
from .runner import FAILED, MEASURED, Result, RowResult, Settings, missing_peers
from .table import number

FORMAT = 1
#: The version of pyperf's format, and pyperf's units for the units of rows.
PYPERF_FORMAT = "1.0"
PYPERF_UNITS = {
    NANOSECONDS: ("second", 1e-9),
    MILLISECONDS: ("second", 1e-3),
    BYTES: ("byte", 1),
    CALLS: ("integer", 1),
}
#: The unit of a detail, by the end of its name.
DETAIL_UNITS = {"_ns": " ns", "_us": " us", "_per_s": "/s", "_bytes": " bytes"}
GC_SETTING = "collected before each measurement, as usual during it"

#: Widths of the columns: subject, value, ratio.
SUBJECT, VALUE, RATIO = 18, 12, 9


def format_ratio(ratio: float) -> str:
    """A subject's value divided by the reference's; exact where the two are close."""
    if ratio >= 100:
        return f"{ratio:,.0f}x"
    return f"{ratio:.1f}x" if ratio >= 2 else f"{ratio:.2f}x"


def ratio_of(result: Result, row: RowResult) -> float | None:
    """A subject's value divided by that of the row's reference, which mostly is pyfiber."""
    if not result.best or not row.reference or result.case.subject == row.row.reference:
        return None
    return result.best.value / row.reference


def processor() -> str:
    """The processor's name, as far as the system reports it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def load_average() -> float | None:
    """The load average of the last minute, where the system reports it."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def environment() -> dict[str, Any]:
    """Everything about this interpreter and machine that the numbers depend on."""
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "compiler": platform.python_compiler(),
        "system": platform.platform(),
        "processor": processor(),
        "processors": os.cpu_count(),
        "pyfiber": dict(pyfiber.debug.info()),
        "peers": {name: version(name) for name in PEERS},
        "gc": GC_SETTING,
    }


# The table --------------------------------------------------------------------------------------


def header(facts: dict[str, Any], settings: Settings, load: float | None) -> list[str]:
    """The first lines: what was measured, on which machine, and how."""
    own = facts["pyfiber"]
    peers = ", ".join(f"{name} {found}" for name, found in facts["peers"].items() if found)
    lines = [
        f"pyfiber {own.get('version')} ({own.get('backend')}), {facts['implementation']} "
        f"{facts['python']}, {facts['system']}",
        f"{facts['processor']}, {facts['processors']} processors",
        f"Beside {peers or 'no other library'}.",
        f"Best of {settings.repetitions} interleaved repetitions, each subject in its own process; "
        f"garbage {GC_SETTING}.",
        "The last column is the subject's value divided by pyfiber's, unless a row says otherwise: "
        "above 1, pyfiber is better.",
    ]
    if load is not None and load > (facts["processors"] or 1) / 2:
        lines.append(f"The machine was busy when this began (load {load:.1f}): times are too high.")
    return lines


def result_line(result: Result, row: RowResult) -> str:
    """The line of one subject of a row."""
    subject = f"  {result.case.subject:<{SUBJECT}}"
    best = result.best
    if best is None:
        what = "failed" if result.status == FAILED else "unavailable"
        return f"{subject}{'-':>{VALUE}}  {what}: {result.reason}"
    ratio = ratio_of(result, row)
    written = format_ratio(ratio) if ratio is not None else ""
    line = f"{subject}{number(best.value):>{VALUE}}{written:>{RATIO}}"
    notes = "; ".join(
        note for note in (result.case.note, middle(result, row.row), details(best)) if note
    )
    return f"{line}  {notes}".rstrip()


def middle(result: Result, row: Row) -> str:
    """The median, for rows that show it."""
    if not row.show_median or result.median is None:
        return ""
    return f"median {number(result.median)}"


def details(sample: Sample) -> str:
    """The details of a sample, such as times beside memory."""
    return ", ".join(detail(name, value) for name, value in sample.details.items())


def detail(name: str, value: float) -> str:
    """One detail; its name ends with its unit."""
    for ending, unit in DETAIL_UNITS.items():
        if name.endswith(ending):
            return f"{name.removesuffix(ending)} {number(value)}{unit}"
    raise ValueError(f"{name!r} ends with no unit")


def compared_with(row: Row) -> str:
    """The reference of a row's ratios, where it is not pyfiber."""
    if row.reference == PYFIBER:
        return ""
    return f" Ratios: the value divided by that of {row.reference}."


def row_lines(measured: RowResult) -> list[str]:
    """A row: its title, what is timed, and a line for each subject."""
    row = measured.row
    unit = "bytes" if row.unit == BYTES else row.unit
    return [
        f"{row.name}: {row.title} [{unit}]",
        f"  {row.description}{compared_with(row)}",
        *(result_line(result, measured) for result in measured.results),
        *(f"  {name:<{SUBJECT}}{'-':>{VALUE}}  {why}" for name, why in row.impossible.items()),
    ]


def missing_line(names: Iterable[str]) -> str:
    """How to install the peers that are missing; empty if none is."""
    names = list(names)
    if not names:
        return ""
    return f"Not installed: {', '.join(names)}. To measure them too: {install_command(names)}"


def unmeasured_lines(results: list[RowResult]) -> list[str]:
    """Warnings for the rows in which pyfiber itself was not measured."""
    rows: dict[str, list[str]] = {}
    for measured in results:
        for result in measured.results:
            if result.case.subject == PYFIBER and result.status != MEASURED:
                rows.setdefault(result.reason, []).append(measured.row.name)
    return [f"PYFIBER WAS NOT MEASURED in {', '.join(rows[why])}: {why}" for why in rows]


def table(
    results: list[RowResult], facts: dict[str, Any], settings: Settings, load: float | None
) -> str:
    """The whole report as text."""
    blocks = [header(facts, settings, load), *(row_lines(result) for result in results)]
    closing = [*unmeasured_lines(results), missing_line(missing_peers(results))]
    blocks.append([line for line in closing if line])
    return "\n\n".join("\n".join(block) for block in blocks if block)


# The document -----------------------------------------------------------------------------------


def result_entry(result: Result, row: RowResult) -> dict[str, Any]:
    """The entry of one subject of a row, for programs."""
    best = result.best
    entry: dict[str, Any] = {
        "subject": result.case.subject,
        "status": result.status,
        "reason": result.reason,
        "note": result.case.note,
        "value": best.value if best else None,
        "median": result.median,
        "ratio": ratio_of(result, row),
        "operations": best.operations if best else None,
        "details": dict(best.details) if best else {},
        "samples": [sample.value for sample in result.samples],
    }
    return entry


def row_entry(measured: RowResult) -> dict[str, Any]:
    """The entry of a row, for programs."""
    row = measured.row
    return {
        "name": row.name,
        "title": row.title,
        "description": row.description,
        "unit": row.unit,
        "family": row.family,
        "reference": row.reference,
        "results": [result_entry(result, measured) for result in measured.results],
        "impossible": dict(row.impossible),
    }


def benchmark(result: Result, row: Row) -> dict[str, Any]:
    """One subject of a row in pyperf's format: one process with all values."""
    unit, factor = PYPERF_UNITS[row.unit]
    name = f"{row.name}: {result.case.subject}"
    return {
        "metadata": {"name": name, "unit": unit, "loops": result.samples[0].operations},
        "runs": [{"values": [sample.value * factor for sample in result.samples]}],
    }


def for_pyperf(
    results: list[RowResult], facts: dict[str, Any], load: float | None
) -> dict[str, Any]:
    """The samples in pyperf's format; pyperf ignores the other keys of a document."""
    metadata = {
        "python_version": facts["python"],
        "platform": facts["system"],
        "cpu_model_name": facts["processor"],
        "cpu_count": facts["processors"],
        "load_avg_1min": load,
    }
    return {
        "version": PYPERF_FORMAT,
        "metadata": {name: value for name, value in metadata.items() if value},
        "benchmarks": [
            benchmark(result, measured.row)
            for measured in results
            for result in measured.results
            if result.best and result.best.value > 0
        ],
    }


def document(
    results: list[RowResult], facts: dict[str, Any], settings: Settings, load: float | None
) -> dict[str, Any]:
    """The whole report as a JSON document."""
    missing = missing_peers(results)
    return {
        "format": FORMAT,
        "environment": {**facts, "load_average": load},
        "settings": asdict(settings),
        "missing": {name: install_command([name]) for name in missing},
        "rows": [row_entry(result) for result in results],
        **for_pyperf(results, facts, load),
    }
