"""Schedule strings: short, checked, and refused with a reason when they are not whole."""

from __future__ import annotations

from base64 import b32encode
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyfiber import spawn, yield_now
from pyfiber.testing import ReplayDivergence, ScheduleError, replay
from pyfiber.testing.schedule import KINDS, PREFIX, Choice, Schedule, check, gamma


@st.composite
def choices(draw: st.DrawFn) -> list[Choice]:
    """What a run may have chosen."""
    usual = st.tuples(st.integers(0, len(KINDS) - 1), st.integers(2, 2**20), st.just(0))
    count = st.integers(2, 2**20)
    other = count.flatmap(
        lambda n: st.tuples(st.integers(0, len(KINDS) - 1), st.just(n), st.integers(1, n - 1))
    )
    return draw(st.lists(st.one_of(usual, usual, usual, other), max_size=60))


def forget_usual(schedule: Schedule) -> Schedule:
    """What a string keeps: of the usual choices only that they are there."""
    kept = [choice if choice[2] else (0, 0, 0) for choice in schedule.choices]
    return Schedule(kept, schedule.preempt, schedule.unfair, schedule.fingerprint & 0xFFFF)


@settings(deadline=None)
@given(choices(), st.booleans(), st.booleans(), st.integers(0, 2**64 - 1))
def test_schedule_survives_being_written_and_read(
    chosen: list[Choice], preempt: bool, unfair: bool, fingerprint: int
) -> None:
    schedule = Schedule(chosen, preempt, unfair, fingerprint)
    again = Schedule.parse(str(schedule))
    assert again == forget_usual(schedule)
    assert str(again) == str(schedule)
    assert Schedule.parse(f"  {str(schedule).upper()}\n") == again


@settings(deadline=None)
@given(choices(), st.data())
def test_schedule_with_a_letter_changed_or_missing_is_refused(
    chosen: list[Choice], data: st.DataObject
) -> None:
    text = str(Schedule(chosen))
    at = data.draw(st.integers(4, len(text) - 1))
    letter = data.draw(st.sampled_from("abcdefghijklmnopqrstuvwxyz234567"))
    damaged = text[:at] + letter + text[at + 1 :]
    if Schedule.parse(text) and damaged != text:
        # The bits of the last letter that carry nothing may differ.
        try:
            assert Schedule.parse(damaged) == Schedule.parse(text)
            assert at == len(text) - 1
        except ScheduleError:
            pass
    with pytest.raises(ScheduleError):
        Schedule.parse(text[: data.draw(st.integers(0, len(text) - 2))])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not begin with"),
        ("hello", "does not begin with"),
        ("pf1-aaaaaaaaaaaa", "another version"),
        ("pf3-aaaaaaaaaaaa", "another version"),
        ("pf2-", "cut or mistyped"),
        ("pf2-aaaaaaaaaaaaaaaaaa", "cut or mistyped"),
        ("pf2-not base32!", "cut or mistyped"),
    ],
)
def test_text_that_is_no_schedule_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=why):
        replay(lambda: None, text)


@pytest.mark.parametrize("text", [None, 1, b"pf2-"])
def test_schedule_of_the_wrong_type_is_a_type_error(text: Any) -> None:
    with pytest.raises(TypeError, match="a schedule is a string"):
        replay(lambda: None, text)


def with_checksum(bits: str) -> str:
    """A schedule of these bits, which nobody has written."""
    bits += "0" * (-len(bits) % 8)
    data = b"\0" + int(bits, 2).to_bytes(len(bits) // 8, "big") + b"\0\0"
    return PREFIX + b32encode(data + check(data)).decode().rstrip("=").lower()


@pytest.mark.parametrize(
    ("bits", "why"),
    [
        ("0" * 64, "its end is missing"),
        (gamma(6) + "1" + "0" * 60, "its end is missing"),
        (gamma(30_000_001) + "0", "too many choices"),
        (gamma(2**60) + "0", "too many choices"),
        (gamma(1) + "1" + gamma(1) + "0" + gamma(1) + "0", "an impossible choice"),
        (gamma(6) + "1" + gamma(2**60) + "0" + gamma(1) + "0", "an impossible choice"),
        (gamma(6) + "1" + gamma(1) + "0" + gamma(3) + "11" + "0", "an impossible choice"),
        (gamma(6) + "1" + gamma(1) + "1111" + gamma(1) + "0", "an impossible choice"),
        (gamma(6) + "1" + gamma(1) + "0" + gamma(2**40) + "0" * 60, "an impossible choice"),
    ],
)
def test_impossible_schedule_with_a_right_checksum_is_refused_at_once(bits: str, why: str) -> None:
    with pytest.raises(ScheduleError, match=f"damaged: .*{why}"):
        Schedule.parse(with_checksum(bits))


def test_long_schedule_has_few_letters() -> None:
    many = [(0, 3, i % 3) for i in range(3000)]
    assert len(str(Schedule(many))) < 3300
    assert Schedule.parse(str(Schedule(many))) == forget_usual(Schedule(many))
    assert len(str(Schedule([(0, 2, 0)] * 100_000 + [(0, 4, 2)]))) < 40


def test_schedule_of_another_program_names_the_step() -> None:
    def main() -> None:
        for _ in range(3):
            spawn(yield_now)

    longer = Schedule([(0, 3, 1), (0, 4, 2)])
    with pytest.raises(ReplayDivergence, match=r"at choice 2 .* 3 of 4"):
        replay(main, str(longer))


def test_schedule_that_asks_for_more_choices_than_there_are_names_the_step() -> None:
    with pytest.raises(ReplayDivergence, match=r"at choice 1 .*the run was over already"):
        replay(lambda: None, str(Schedule([(0, 2, 1)])))


def test_schedule_that_ends_before_the_program_is_a_divergence() -> None:
    def main() -> None:
        for _ in range(3):
            spawn(yield_now)

    with pytest.raises(ReplayDivergence, match="went on after choice 1"):
        replay(main, str(Schedule([(0, 3, 1)])))
