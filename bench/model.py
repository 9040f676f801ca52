"""Defines a benchmark: rows of cases, and the samples that cases return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns

from .peers import PEERS

clock = perf_counter_ns

#: The checkout, the working directory of processes that import `bench`.
ROOT = Path(__file__).resolve().parent.parent

#: pyfiber's name among the subjects.
PYFIBER = "pyfiber"

NANOSECONDS = "ns"
BYTES = "bytes"
MILLISECONDS = "ms"
CALLS = "calls"

#: The families of rows; one run of the command measures one of them.
ENGINE = "engine"
IO = "io"
CURVES = "curves"
CORES = "cores"


class Unavailable(Exception):
    """A case cannot be measured here; the text says why."""


@dataclass(frozen=True)
class Sample:
    """What one measurement found: `total`, in the row's unit, for `operations` operations."""

    total: float
    operations: int
    details: Mapping[str, float] = field(default_factory=dict)

    @property
    def value(self) -> float:
        """The amount for one operation."""
        return self.total / self.operations


#: A case is a function of the number of operations wanted. The function prepares, measures and
#: cleans up, and may do more operations than asked for, so that its last round is a full one.
Measure = Callable[[int], Sample]


@dataclass(frozen=True)
class Case:
    """One subject's part in a row."""

    subject: str
    measure: Measure
    #: The distribution that the case needs; by default the peer with the subject's name.
    peer: str | None = None
    #: At most this many operations, for subjects that cannot bear the row's count.
    limit: int | None = None
    #: A remark on how this subject does the work.
    note: str = ""

    def __post_init__(self) -> None:
        if self.peer is None and self.subject in PEERS:
            object.__setattr__(self, "peer", self.subject)


@dataclass(frozen=True)
class Row:
    """One line of the table: the same work done by several subjects."""

    name: str
    title: str
    #: One sentence: what exactly is timed.
    description: str
    cases: tuple[Case, ...]
    #: How many operations one repetition has, normally and with --quick.
    count: int
    quick: int
    unit: str = NANOSECONDS
    #: Seconds that one repetition should not exceed; slower subjects do fewer operations. Many
    #: short repetitions find an undisturbed moment sooner than a few long ones.
    #: None: the count is part of what is measured and never reduced.
    budget: float | None = 0.125
    #: Measure every repetition in a new process.
    fresh: bool = False
    #: Make at most so many repetitions.
    repetitions: int | None = None
    #: Measure this row only with --full, or when it is named.
    full_only: bool = False
    #: The rows that are measured together with this one.
    family: str = ENGINE
    #: The subject that the others are compared with.
    reference: str = PYFIBER
    #: Print the median beside the best value.
    show_median: bool = False
    #: Subjects that cannot do this at all, with the reason.
    impossible: Mapping[str, str] = field(default_factory=dict)
