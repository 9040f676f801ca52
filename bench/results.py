"""What bench/run_all.py left behind, for the scripts that show it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Run:
    """The results of one interpreter."""

    document: dict[str, Any]

    @property
    def python(self) -> str:
        """The version of the interpreter."""
        return str(self.document["environment"]["python"])

    @property
    def order(self) -> tuple[int, ...]:
        """Sorts versions as numbers, 3.9 before 3.10."""
        return tuple(
            int("".join(filter(str.isdigit, part)) or 0) for part in self.python.split(".")
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows, in the order of the table."""
        yield from self.document["rows"]

    def result(self, row: str, subject: str) -> dict[str, Any] | None:
        """What came of one subject in one row."""
        for candidate in self.rows():
            if candidate["name"] == row:
                for result in candidate["results"]:
                    if result["subject"] == subject:
                        found: dict[str, Any] = result
                        return found
        return None


def load(directory: Path) -> list[Run]:
    """Every run in a directory, oldest Python first."""
    files = sorted(directory.glob("*.json"))
    if not files:
        raise SystemExit(f"no results in {directory}: run bench/run_all.py first")
    runs = [Run(json.loads(file.read_text(encoding="utf-8"))) for file in files]
    return sorted(runs, key=lambda run: run.order)


def row_names(runs: list[Run]) -> list[str]:
    """The names of the rows that any run has, in the order of the table."""
    return list(dict.fromkeys(row["name"] for run in runs for row in run.rows()))


def subjects(runs: list[Run], row_name: str) -> list[str]:
    """The subjects of a row in any run, in the order of the table."""
    return list(
        dict.fromkeys(
            result["subject"]
            for run in runs
            for row in run.rows()
            if row["name"] == row_name
            for result in row["results"]
        )
    )


def description(runs: list[Run], row_name: str) -> dict[str, Any]:
    """A row as one of the runs describes it."""
    return next(row for run in runs for row in run.rows() if row["name"] == row_name)
