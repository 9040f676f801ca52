"""The registry: every row of the table, in the order in which it is printed."""

from __future__ import annotations

from fnmatch import fnmatchcase

from ..model import ENGINE, Case, Row
from . import (
    cores,
    curves,
    grains,
    imports,
    io,
    lifecycle,
    memory,
    messages,
    parked,
    raw,
    skynet,
    standin,
    structured,
    switching,
    testing,
    threads,
    wakeups,
    yielding,
)

FAMILIES = (
    switching,
    lifecycle,
    yielding,
    messages,
    structured,
    wakeups,
    threads,
    skynet,
    grains,
    testing,
    memory,
    parked,
    standin,
    raw,
    imports,
    io,
    curves,
    cores,
)

ROWS: tuple[Row, ...] = tuple(row for family in FAMILIES for row in family.ROWS)


def select(patterns: list[str], *, full: bool, family: str = ENGINE) -> list[Row]:
    """The rows that match a pattern; without patterns, a family's, those for --full if `full`."""
    if not patterns:
        return [row for row in ROWS if row.family == family and (full or not row.full_only)]
    for pattern in patterns:
        if not any(fnmatchcase(row.name, pattern) for row in ROWS):
            names = ", ".join(row.name for row in ROWS)
            raise ValueError(f"no benchmark is named {pattern!r}; there are: {names}")
    return [row for row in ROWS if any(fnmatchcase(row.name, pattern) for pattern in patterns)]


def find(row_name: str, subject: str) -> Case:
    """The case of a subject in a row."""
    for row in ROWS:
        for case in row.cases:
            if (row.name, case.subject) == (row_name, subject):
                return case
    raise LookupError(f"no case of {subject!r} in a row named {row_name!r}")
