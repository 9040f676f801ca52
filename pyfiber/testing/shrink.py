"""Makes a failing schedule as close to the usual order as possible.

Delta debugging over the choices that deviate: leave out halves, quarters, single ones, as long as
the program still fails in the same way. A choice left out changes the ones after it, so each trial
is adapted to the program, and the choices really made are the ones that count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from pyfiber.testing.schedule import FAULT, Choice

#: How many places earlier a fault is tried when one before it is left out.
EARLIER = 24

Trial = Callable[[Sequence[Choice]], "list[Choice] | None"]


def weight(choices: Sequence[Choice]) -> tuple[int, int, int]:
    """What the shrinker minimizes: the number of deviations, their size, then the length."""
    deviations = [taken for _, _, taken in choices if taken]
    return len(deviations), sum(deviations), len(choices)


def with_taken(choices: Sequence[Choice], places: set[int], taken: int) -> list[Choice]:
    """The choices, changed at these places."""
    return [
        (kind, count, taken) if i in places else (kind, count, before)
        for i, (kind, count, before) in enumerate(choices)
    ]


def trimmed(choices: list[Choice]) -> list[Choice]:
    """The choices without the usual ones at the end."""
    end = len(choices)
    while end and choices[end - 1][2] == 0:
        end -= 1
    return choices[:end]


class Shrinker:
    """Keeps the smallest failing schedule found so far; gives up after `budget` trials."""

    def __init__(self, choices: Sequence[Choice], trial: Trial, budget: int) -> None:
        self.best = list(choices)
        self.trial = trial
        self.budget = budget

    def places(self) -> list[int]:
        """The places at which the best schedule deviates."""
        return [i for i, choice in enumerate(self.best) if choice[2]]

    def smaller(self, candidate: list[Choice]) -> bool:
        """Try a schedule; keep it if it fails in the same way and is smaller."""
        if self.budget <= 0:
            return False
        self.budget -= 1
        found = self.trial(trimmed(candidate))
        if found is None or weight(found) >= weight(self.best):
            return False
        self.best = found
        return True

    def remove_chunks(self) -> None:
        """Try to leave out halves, quarters, ... of the deviations."""
        size = len(self.places())
        while size > 0 and self.budget > 0:
            start = 0
            while start < len(places := self.places()):
                chunk = set(places[start : start + size])
                if not self.smaller(with_taken(self.best, chunk, 0)):
                    start += size
            size //= 2

    def fewer_faults(self) -> None:
        """Try to leave out a fault, with the next one earlier.

        Without the first fault the program need not try again what has failed, so it comes sooner
        to the place of the next one.
        """
        faults = [place for place in self.places() if self.best[place][0] == FAULT]
        for place, after in pairwise(faults):
            for earlier in range(1, min(EARLIER, after - place)):
                candidate = with_taken(self.best, {place, after}, 0)
                if self.smaller(with_taken(candidate, {after - earlier}, self.best[after][2])):
                    return

    def lower_each(self) -> None:
        """Try the nearest other choice instead of a far one."""
        for place in self.places():
            if place < len(self.best) and self.best[place][2] > 1:
                self.smaller(with_taken(self.best, {place}, 1))

    def run(self) -> list[Choice]:
        """Shrink as far as possible; return the smallest schedule found."""
        before = None
        while before != weight(self.best) and self.budget > 0:
            before = weight(self.best)
            self.remove_chunks()
            self.fewer_faults()
            self.lower_each()
        return self.best


def shrink(choices: Sequence[Choice], trial: Trial, budget: int = 400) -> list[Choice]:
    """The smallest schedule near `choices` for which `trial` returns its choices, not None."""
    return Shrinker(choices, trial, budget).run()


def only_one(usual: Sequence[Choice], trial: Trial, budget: int = 2000) -> list[Choice] | None:
    """A failing schedule that leaves the usual order at one place only; None if none is found.

    Leaving out a deviation moves the places of later ones, so shrink() may miss such a schedule.
    """
    for place, (kind, count, _) in enumerate(usual):
        for taken in range(1, count):
            budget -= 1
            if budget < 0:
                return None
            found = trial([*usual[:place], (kind, count, taken)])
            if found is not None and weight(found)[0] == 1:
                return found
    return None
