"""Policies: which grain of a GrainPool runs next."""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyfiber._engine import Grain

_T = TypeVar("_T")


class Policy:
    """Decides which grain of a pool runs next: make a subclass with three methods.

    The pool calls them on its own thread. Between ``add`` and ``take`` or ``remove`` a grain is
    ready; the policy need not know about waiting grains. ``take`` is called only while there are
    ready grains. If a method raises, or ``take`` returns anything but a ready grain, the error is
    logged, and the pool runs the grain that has been ready for the longest time, calls ``remove``
    for it, and continues.
    """

    def add(self, grain: Grain[Any]) -> None:
        """Add ``grain``, which is ready."""
        raise NotImplementedError

    def take(self) -> Grain[Any]:
        """Remove and return the ready grain that has the next turn."""
        raise NotImplementedError

    def remove(self, grain: Grain[Any]) -> None:
        """Remove ``grain``, which is no longer ready and did not get a turn; it may be unknown."""
        raise NotImplementedError

    def ran(self, grain: Grain[Any], seconds: float) -> None:
        """The step of ``grain`` took ``seconds``, by the scheduler's clock.

        Called before the grain is added again, if it is still ready.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class RoundRobin(Policy):
    """First in, first out: every ready grain has one turn in each round.

    A pool with exactly this policy uses the scheduler's own queue, in which its grains and all
    fibers take turns.
    """

    def __init__(self) -> None:
        self._ready: OrderedDict[Grain[Any], None] = OrderedDict()

    def add(self, grain: Grain[Any]) -> None:
        self._ready[grain] = None

    def take(self) -> Grain[Any]:
        return self._ready.popitem(last=False)[0]

    def remove(self, grain: Grain[Any]) -> None:
        self._ready.pop(grain, None)


class _Notes(Generic[_T]):
    """One value for each grain, by the grain's id(), until the grain is gone.

    A WeakKeyDictionary would hash the grain itself at each look-up, which takes longer than a step.
    """

    def __init__(self) -> None:
        self._notes: dict[int, tuple[_T, ref[Grain[Any]]]] = {}

    def get(self, grain: Grain[Any], default: _T) -> _T:
        note = self._notes.get(id(grain))
        return default if note is None else note[0]

    def set(self, grain: Grain[Any], value: _T) -> None:
        key, notes = id(grain), self._notes
        note = notes.get(key)
        known = ref(grain, lambda _: notes.pop(key, None)) if note is None else note[1]
        notes[key] = value, known

    def __len__(self) -> int:
        return len(self._notes)


class _Ranked(Policy):
    """Runs the grain with the lowest rank; of equal ones, the one that has been ready longest."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Grain[Any]]] = []
        self._places: dict[Grain[Any], int] = {}  # the second part of the grain's entry in the heap
        self._count = 0

    def _push(self, rank: float, grain: Grain[Any]) -> None:
        self._count += 1
        heappush(self._heap, (rank, self._count, grain))
        self._places[grain] = self._count

    def _pop(self) -> tuple[float, Grain[Any]]:
        while True:
            rank, place, grain = heappop(self._heap)
            if self._places.get(grain) == place:  # else the grain was removed
                del self._places[grain]
                return rank, grain

    def take(self) -> Grain[Any]:
        return self._pop()[1]

    def remove(self, grain: Grain[Any]) -> None:
        if self._places.pop(grain, None) and len(self._heap) > 2 * len(self._places):
            self._heap = [entry for entry in self._heap if entry[2] in self._places]
            heapify(self._heap)


class Priority(_Ranked):
    """The ready grain with the lowest number runs; grains with equal numbers take turns.

    ``priority(grain)`` returns the number each time the grain becomes ready; without it, the
    numbers from ``set(grain, number)`` count, and ``default`` for the others. A ready grain keeps
    the number that it had when it became ready. A grain that is always ready starves those with
    higher numbers: that is what priorities mean.
    """

    def __init__(
        self, priority: Callable[[Grain[Any]], float] | None = None, *, default: float = 0
    ) -> None:
        super().__init__()
        if priority is not None and not callable(priority):
            raise TypeError(f"priority must be callable, not {priority!r}")
        self._priority = priority
        self._default = default
        self._numbers: _Notes[float | None] = _Notes()

    def set(self, grain: Grain[Any], number: float) -> None:
        """Give ``grain`` this priority, from the next time on that it becomes ready."""
        self._numbers.set(grain, number)

    def add(self, grain: Grain[Any]) -> None:
        number = self._numbers.get(grain, None)
        if number is None:
            number = self._default if self._priority is None else self._priority(grain)
        self._push(number, grain)


class FairShare(_Ranked):
    """Every grain gets the same time: the one that has used the least runs next.

    The time of each step is measured by the scheduler's clock, so a grain whose steps take three
    times as long gets a third of the turns. ``weight(grain)`` (default 1) multiplies a grain's
    share. A grain that is new or has slept starts level with the one that has used the least: a
    grain cannot save up time by sleeping.
    """

    def __init__(self, weight: Callable[[Grain[Any]], float] | None = None) -> None:
        super().__init__()
        if weight is not None and not callable(weight):
            raise TypeError(f"weight must be callable, not {weight!r}")
        self._weight = weight
        self._used: _Notes[float] = _Notes()
        self._level = 0.0

    def add(self, grain: Grain[Any]) -> None:
        used = max(self._used.get(grain, 0.0), self._level)
        self._used.set(grain, used)
        self._push(used, grain)

    def take(self) -> Grain[Any]:
        used, grain = self._pop()
        self._level = max(self._level, used)
        return grain

    def ran(self, grain: Grain[Any], seconds: float) -> None:
        weight = 1.0 if self._weight is None else self._weight(grain)
        if not weight > 0:
            raise ValueError(f"the weight of {grain!r} must be positive, not {weight!r}")
        self._used.set(grain, self._used.get(grain, 0.0) + seconds / weight)
