"""Random programs: a short round of each kind, and that the driver notices what goes wrong."""

from __future__ import annotations

import pytest

from tests.fuzz import KINDS
from tests.support.subprocesses import run_python


def fuzz(*arguments: str, limit: str = "60") -> tuple[int, str]:
    env = {"PYFIBER_FUZZ_LIMIT": limit}
    done = run_python("-m", "tests.fuzz", *arguments, env=env, timeout=280)
    return done.returncode, done.stdout + done.stderr


def find_nothing(kind: str, first: int, count: int) -> None:
    if kind == "ends":  # each is a process, and as slow as 30 others
        count //= 5
    code, text = fuzz(kind, "--seeds", f"{first}:{first + count}", "--jobs", "1")
    assert (code, f"{kind}: {count} programs, 0 findings" in text) == (0, True), text


@pytest.mark.parametrize("kind", KINDS)
def test_random_programs_find_nothing(kind: str) -> None:
    find_nothing(kind, 0, 25)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_random_programs_find_nothing(kind: str) -> None:
    find_nothing(kind, 1000, 2000)


# The kind "broken" goes wrong by itself, in the way that its seed says.


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (0, "raises LookupError"),
        (1, "raises SystemError"),
        (2, "raises AssertionError"),
        (3, "raises MemoryError"),
        (4, "unraisable raises LookupError"),
        (5, "left behind: {'Evil': 1}"),
        (6, "crashes"),
        (7, "hangs"),
    ],
)
def test_program_that_goes_wrong_is_found(seed: int, what: str) -> None:
    code, text = fuzz("broken", "--seeds", f"{seed}:{seed + 1}", "--steps", "9", limit="5")
    assert (code, what in text) == (1, True), text
    assert f"broken {seed}: " in text
    assert f"again: python -m tests.fuzz broken --seed {seed} -v --steps 9" in text
    assert "broken: 1 programs, 1 findings" in text


def test_programs_after_one_that_crashes_are_played() -> None:
    code, text = fuzz("broken", "--seeds", "6:20", "--steps", "9", limit="5")
    assert code == 1
    assert "broken: 14 programs, 2 findings" in text


def test_program_that_goes_wrong_is_shrunk_to_its_first_steps() -> None:
    code, text = fuzz("broken", "--seeds", "0:1", "--jobs", "1")
    assert code == 1
    assert "broken --seed 0 -v --steps 3\n" in text


def test_one_program_shows_its_calls() -> None:
    code, text = fuzz("broken", "--seed", "8", "-v", "--steps", "2")
    assert (code, text.count("call() ->")) == (0, 2), text
