"""Greenlets that several threads touch at once: every attempt ends, perhaps with an error."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from pyfiber.greenlet import GreenletExit, error, getcurrent, greenlet

PLACES = 2
OPERATIONS = 8000


def body(*_: object) -> int:
    for n in range(3):
        parent = getcurrent().parent
        assert parent is not None
        parent.switch(n)
    return 3


def look(g: Any) -> None:
    _ = (g.dead, bool(g), repr(g), g.parent, g.gr_context)
    _ = g.gr_frame  # FiberError, without a GIL, of another thread's


class World:
    """Greenlets in two places, where all threads take, use, replace and drop them."""

    def __init__(self, threads: int) -> None:
        self.places: list[Any] = [None] * PLACES
        self.mains: list[Any] = []
        self.start = threading.Barrier(threads)

    def act(self, chance: random.Random) -> None:
        place = chance.randrange(PLACES)
        g = self.places[place]
        acts: list[Callable[[], object]] = [
            lambda: g.switch(),
            lambda: look(g),
            lambda: setattr(g, "parent", chance.choice(self.mains)),
            lambda: setattr(g, "run", body),
            lambda: g.run,
            lambda: setattr(g, "gr_context", None),
        ]
        if g is None or chance.random() < 0.1:
            self.places[place] = greenlet(body) if g is None else None
        else:
            chance.choice([*acts, *acts[:1] * 4])()

    def play(self, seed: int) -> None:
        chance = random.Random(seed)
        self.mains.append(getcurrent())
        self.start.wait()
        for _ in range(OPERATIONS):
            with suppress(error, ValueError, AttributeError, RuntimeError, GreenletExit):
                self.act(chance)


@pytest.mark.parametrize("threads", [2, 8])
def test_greenlets_that_several_threads_enter_first_look_at_and_drop(threads: int) -> None:
    world = World(threads)
    ended: list[int] = []

    def play(seed: int) -> None:
        world.play(seed)
        ended.append(seed)

    players = [threading.Thread(target=play, args=(seed,)) for seed in range(threads)]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert sorted(ended) == [*range(threads)]


def enter_as_child(g: Any, start: threading.Barrier) -> None:
    start.wait()
    with suppress(error, ValueError):
        g.parent = getcurrent()
        g.switch(1)


def test_greenlet_that_two_threads_enter_first_begins_once() -> None:
    """Its parent, which says whose it is, changes while both try."""
    for _ in range(200):
        began: list[int] = []
        g = greenlet(began.append)
        start = threading.Barrier(2)
        threads = [threading.Thread(target=enter_as_child, args=(g, start)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(began) <= 1
