"""What a report of a race tells: lines, conflicts, the verdict about the GIL, and as HTML."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from html.parser import HTMLParser

import pytest

from pyfiber import Lock, spawn
from pyfiber.testing import NondeterminismError, ScheduleFailure, explore, replay, search
from pyfiber.testing.story import where
from tests.testing.races import join_all
from tests.testing.textbook import TEXTBOOK


def together(*targets: Callable[[], object]) -> None:
    """Run each function in a fiber, and wait for all."""
    join_all(*map(spawn, targets))


class Counter:
    def __init__(self) -> None:
        self.value = 0

    def add(self) -> None:
        value = self.value
        self.value = value + 1

    def next(self) -> int:
        value = self.value
        self.value = value + 1
        return value

    def add_in_a_loop(self) -> None:
        value = self.value
        for _ in "a":
            pass
        self.value = value + 1


def race(name: str) -> None:
    counter = Counter()
    together(*[getattr(counter, name)] * 2)
    assert counter.value == 2


def found(name: str = "add", switch: str = "line") -> ScheduleFailure:
    with pytest.raises(ScheduleFailure) as caught:
        explore(partial(race, name), switch=switch)  # type: ignore[arg-type]
    return caught.value


def test_log_has_lines_and_what_conflicts() -> None:
    failure = found()
    first = Counter.add.__code__.co_firstlineno
    name = "test_testing_story.py"
    lines = [line.strip() for line in failure.log.splitlines()]
    assert f"is interrupted before {name}:{first + 2} self.value = value + 1" in lines
    assert f"<- Counter.add#1 has read .value at {name}:{first + 1}, and was interrupted" in lines
    assert any(line.endswith("reads .value") for line in lines)
    assert "1 choice out of the usual order" in str(failure)


def test_line_that_waits_for_a_call_has_written_nothing_yet() -> None:
    def run() -> None:
        counter = Counter()
        seen: list[int] = []

        def work() -> None:
            seen.append(counter.next())

        together(work, work)
        assert seen in ([0, 1], [1, 0])

    with pytest.raises(ScheduleFailure) as caught:
        explore(run, switch="line")
    assert "has read seen at" in caught.value.log
    assert "has written seen" not in caught.value.log


def test_failure_is_shrunk_to_one_interruption() -> None:
    for name in ("lost_update", "double_checked_locking", "torn_pair", "abba"):
        with pytest.raises(ScheduleFailure) as caught:
            explore(partial(TEXTBOOK[name], False), switch="line", threads="simulated")
        assert caught.value.log.count("is interrupted") == 1


def test_log_of_a_long_turn_has_its_first_and_last_lines() -> None:
    def run() -> None:
        total = [0]

        def work() -> None:
            for _ in range(50):
                value = total[0]
                total[0] = value + 1

        together(work, work)
        assert total == [100]

    with pytest.raises(ScheduleFailure) as caught:
        explore(run, switch="line")
    assert "... " in caught.value.log
    assert len(caught.value.log.splitlines()) < 100


VERSION = f"CPython {sys.version_info.major}.{sys.version_info.minor}"


def test_verdict_on_what_a_gil_prevents() -> None:
    verdict = found("add").verdict
    assert verdict.startswith(f"cannot happen in {VERSION} with at most 2 interruptions (all ")
    assert f"\nwith a GIL: {verdict}\n" in str(found("add"))


def test_verdict_on_what_happens_with_a_gil_as_well() -> None:
    verdict = found("add_in_a_loop").verdict
    assert verdict.startswith("can happen; pf2-")
    assert verdict.endswith(f" shows it with {VERSION}")
    with pytest.raises(ScheduleFailure) as caught:
        replay(partial(race, "add_in_a_loop"), verdict.split()[2])
    assert caught.value.verdict == "can happen"


def test_deadlock_that_needs_a_lock_handed_over_happens_with_a_gil() -> None:
    """Between two `with` statements no version before 3.14 gives up the GIL."""

    def run(times: int) -> None:
        locks = Lock(), Lock()

        def work(first: Lock, second: Lock) -> None:
            for _ in range(times):
                with first:  # noqa: SIM117
                    with second:
                        pass

        for fiber in [spawn(work, *pair) for pair in (locks, locks[::-1])]:
            fiber.join()

    verdicts = []
    for times in (1, 2):
        with pytest.raises(ScheduleFailure) as caught:
            explore(partial(run, times), switch="line")
        verdicts.append(caught.value.verdict.partition(";")[0].partition(" in ")[0])
    once = "cannot happen" if sys.version_info < (3, 14) else "can happen"
    assert verdicts == [once, "can happen"]


class Balanced(HTMLParser):
    """Checks that every element is closed, and collects the text of cells."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        assert tag not in ("script", "link", "img")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_page_of_html_has_a_lane_for_each_fiber() -> None:
    parser = Balanced()
    parser.feed(found().html())
    parser.close()
    assert parser.open == []
    text = "\n".join(parser.texts)
    assert "Counter.add#1" in parser.texts
    assert "Counter.add#2" in parser.texts
    assert "is interrupted before" in text
    assert "has read .value" in text
    assert "pf2-" in text


def test_file_whose_name_says_nothing_is_shown_with_its_package() -> None:
    assert where("/lib/cache/__init__.py", 3) == "cache/__init__.py:3"
    assert where("/lib/cache/store.py", 3) == "store.py:3"


def test_failure_is_reported_if_runs_for_the_verdict_differ(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def differs(*args: object) -> object:
        raise NondeterminismError("the same schedule was run twice")

    monkeypatch.setattr(search, "same_failure", differs)
    assert found().verdict.startswith("not known, as runs of one schedule")
