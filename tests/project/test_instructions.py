"""`python -m bench.instructions`: how it reads a profile, and what it calls a rise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("bench", reason="needs the source tree")

from bench import hot_paths, instructions

Count, Counts = instructions.Count, instructions.Counts

PROFILE = """\
positions: line
events: Ir
summary: 1200

ob=/lib/interpreter
fl=a.c
fn=calls
10 20
+1 7
cob=/lib/extension
cfn=called
calls=1 5
+2 100
* 3

ob=/lib/extension
fn=called
5 100
totals: 130
"""


@pytest.mark.parametrize("name", hot_paths.OPERATIONS)
def test_hot_path_runs(name: str) -> None:
    hot_paths.main(name, 200)


def test_hot_paths_tell_their_names() -> None:
    assert instructions.hot_paths() == list(hot_paths.OPERATIONS)


def test_costs_are_those_of_each_object_file_without_what_it_calls() -> None:
    found = list(instructions.costs(iter(PROFILE.splitlines())))
    assert found == [
        *(("/lib/interpreter", cost) for cost in (20, 7, 3)),
        ("/lib/extension", 100),
    ]


def counts(everything: float, ours: float, interpreter: str = "3", compiler: str = "cc") -> Any:
    return Counts(interpreter, compiler, {"switch": Count(everything, ours)})


@pytest.mark.parametrize(
    ("now", "status"),
    [
        (counts(1029, 308), 0),
        (counts(1031, 300), 1),
        (counts(1000, 340), 0),  # moved from the interpreter into our code
        (counts(2000, 308, interpreter="other"), 0),
        (counts(1000, 310, interpreter="other"), 1),
        (counts(2000, 600, compiler="other"), 0),
    ],
)
def test_check_fails_on_a_rise_that_can_be_compared(
    now: Any, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.json"
    counts(1000, 300).to_file(kept)
    assert instructions.check(now, kept) == status
    told = capsys.readouterr().out
    assert ("--renew" in told) == (status == 1)
    assert ("NOT CHECKED" in told) == (now.compiler == "other")


def test_rise_of_an_instruction_or_two_is_noise() -> None:
    assert instructions.rise(22, 20) == 0
    assert instructions.rise(23, 20) == pytest.approx(0.15)
