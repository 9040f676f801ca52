"""Random numbers are the same in each run under test, and the program's own again afterwards."""

from __future__ import annotations

import os
import random
import secrets
import threading
import uuid
from collections.abc import Callable

import pytest

from pyfiber.testing import explore, run

SOURCES: dict[str, Callable[[], object]] = {
    "random": random.random,
    "shuffle": lambda: random.sample(range(1 << 40), 3),
    "seed": lambda: (random.seed(), random.random()),
    "generator": lambda: random.Random().random(),
    "system": lambda: random.SystemRandom().getrandbits(64),
    "secrets": secrets.token_hex,
    "uuid4": uuid.uuid4,
    "urandom": lambda: os.urandom(8),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_random_numbers_are_the_same_in_each_run(source: Callable[[], object]) -> None:
    seen: list[object] = []
    explore(lambda: seen.append((source(), source())), 5)
    assert len(seen) == 6
    assert len({repr(pair) for pair in seen}) == 1
    first, second = seen[0]  # type: ignore[misc]
    assert first != second
    if source not in (SOURCES["random"], SOURCES["shuffle"]):
        assert repr(source()) != repr(first)


def test_seeded_generator_is_left_alone() -> None:
    wanted = random.Random(5).random()
    assert run(lambda: random.Random(5).random()) == wanted


def test_state_of_the_global_generator_is_put_back() -> None:
    random.seed(1)
    wanted = [random.random() for _ in range(3)]
    random.seed(1)
    found = [random.random()]
    run(lambda: random.random())
    found += [random.random() for _ in range(2)]
    assert found == wanted


def test_other_threads_get_real_random_numbers_of_the_system() -> None:
    numbers: list[bytes] = []

    def main() -> None:
        thread = threading.Thread(target=lambda: numbers.append(os.urandom(8)))
        thread.start()
        thread.join()

    for _ in range(2):
        run(main, threads=True)
    assert numbers[0] != numbers[1]


def test_wrong_size_is_refused_as_ever() -> None:
    def main() -> None:
        with pytest.raises(ValueError, match="negative"):
            os.urandom(-1)
        with pytest.raises(TypeError):
            os.urandom("1")  # type: ignore[arg-type]

    run(main)
