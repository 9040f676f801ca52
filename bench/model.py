"""What a benchmark is: rows of cases, and the samples that cases return."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns

from .peers import PEERS

clock = perf_counter_ns

#: The checkout: processes that import `bench` begin here.
ROOT = Path(__file__).resolve().parent.parent

#: The subject that this is all about.
PYFIBER = "pyfiber"

NANOSECONDS = "ns"
BYTES = "bytes"
MILLISECONDS = "ms"
CALLS = "calls"

#: The families of rows, of which the command measures one unless told otherwise.
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


#: A case is a function of the number of operations wanted. It prepares, measures and cleans up,
#: and may do somewhat more operations than asked for, to make its last round a full one.
Measure = Callable[[int], Sample]


@dataclass(frozen=True)
class Case:
    """One subject's part in a row."""

    subject: str
    measure: Measure
    #: The distribution it needs: the peer that has its name, unless another one is given.
    peer: str | None = None
    #: At most this many operations, for subjects that cannot bear the row's count.
    limit: int | None = None
    #: What to know about this subject's way of doing it.
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
    #: Operations in one repetition, normally and with --quick.
    count: int
    quick: int
    unit: str = NANOSECONDS
    #: Seconds that one repetition should not exceed; slower subjects do fewer operations. Many
    #: short repetitions find an undisturbed moment sooner than a few long ones.
    #: None: the count is part of what is measured and never reduced.
    budget: float | None = 0.125
    #: Measure every repetition in a process of its own.
    fresh: bool = False
    #: At most so many repetitions.
    repetitions: int | None = None
    #: Only with --full, or when asked for by name.
    full_only: bool = False
    #: Which rows it is measured with.
    family: str = ENGINE
    #: The subject that the others are compared with.
    reference: str = PYFIBER
    #: Print the median beside the best value.
    show_median: bool = False
    #: Subjects that cannot do this at all, with the reason.
    impossible: Mapping[str, str] = field(default_factory=dict)
