"""The promise: what is public, where it is, and that docs/api.md has each name once."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import pytest

import pyfiber
from pyfiber import debug, threads
from tests.project.test_reference import look

#: The top level: what a program is made of. Think twice before you add to it.
TOP = [
    "Barrier",
    "BoundedSemaphore",
    "CancelScope",
    "Cancelled",
    "CancelledOutcome",
    "Case",
    "Channel",
    "ChannelClosed",
    "Condition",
    "DeadlockError",
    "Event",
    "Failed",
    "Fiber",
    "FiberCancelled",
    "FiberError",
    "FiberExit",
    "FiberGenerator",
    "LifoQueue",
    "Lock",
    "Ok",
    "Outcome",
    "PriorityQueue",
    "Queue",
    "RLock",
    "Scheduler",
    "Semaphore",
    "ShutDown",
    "TaskGroup",
    "await_future",
    "check_cancelled",
    "current",
    "current_deadline",
    "current_scheduler",
    "emit",
    "first_success",
    "from_thread",
    "gather",
    "generator",
    "get_include",
    "local",
    "move_on_after",
    "native_thread",
    "no_preemption",
    "now",
    "park",
    "patch",
    "pmap",
    "race",
    "run",
    "select",
    "shield",
    "signals",
    "sleep",
    "sleep_until",
    "spawn",
    "spawn_now",
    "stack_size",
    "timeout",
    "to_thread",
    "virtual_threads",
    "wait_readable",
    "wait_writable",
    "yield_now",
]

API = Path(__file__).resolve().parents[2] / "docs" / "api.md"
SECTION = re.compile(r"^## (pyfiber[\w.]*)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)[^`|]*` \| (?P<line>[^|]*) \|$", re.MULTILINE)

needs_docs = pytest.mark.skipif(not API.exists(), reason="needs the source tree")


def rows() -> dict[str, list[tuple[str, str]]]:
    """By module: each name and its line."""
    text = API.read_text(encoding="utf-8")
    return {module: ROW.findall(section) for module, section in SECTION.findall(text)}


def test_top_level_has_these_names_and_no_more_than_sixty_three() -> None:
    assert sorted(pyfiber.__all__) == sorted(TOP)
    assert len(TOP) <= 63


@pytest.mark.parametrize("module", [pyfiber, debug, threads], ids=lambda module: module.__name__)
def test_every_name_has_a_docstring(module: ModuleType) -> None:
    names = set(module.__all__) - {"Outcome"}  # a union, which has none of its own
    assert [name for name in sorted(names) if not getattr(module, name).__doc__] == []


def test_no_name_is_in_two_places() -> None:
    everywhere = [*pyfiber.__all__, *debug.__all__, *threads.__all__, *pyfiber._MODULES]
    assert len(set(everywhere)) == len(everywhere)


@needs_docs
@pytest.mark.parametrize("name", rows() if API.exists() else [])
def test_page_has_every_name_of(name: str) -> None:
    public, _ = look(name)
    found = [each for each, _ in rows()[name]]
    assert len(set(found)) == len(found)
    extra = {"install"} if name == "pyfiber.greenlet" else set()
    assert set(found) == set(public) | extra
    assert all(line for _, line in rows()[name])
