"""Barrier: a set number of fibers or threads wait for each other.

The engine has no barrier. This one is built on its Condition, whose lock guards all attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import BrokenBarrierError

from pyfiber._engine import Condition


class Round:
    """One round of a barrier: how many have arrived, and how the round ended.

    Each wait() keeps the round that it belongs to. A waiter that wakes late thus reads how its
    own round ended, even if others wait in the next one already. `passed` is set once, and from
    then on the barrier has a new Round.
    """

    def __init__(self) -> None:
        self.arrived = 0
        #: None until the round ends; then True, or False if the barrier was broken or reset.
        self.passed: bool | None = None


class Barrier:
    """A threading.Barrier for plain threads and for the fibers of any thread.

    `parties` fibers wait() for each other. The last one to arrive calls `action`, if there is one,
    with the barrier's lock held; `action` must not wait() itself. `timeout`, in seconds, is the
    default for wait().

    The barrier breaks if a wait() times out or is cancelled, or if `action` raises. The wait()
    that timed out raises threading.BrokenBarrierError, a cancelled one Cancelled, and the one
    that called `action` the exception of `action`. Every other wait(), now or later, raises
    BrokenBarrierError until reset().
    """

    _changed: Condition

    def __init__(
        self,
        parties: int,
        action: Callable[[], object] | None = None,
        timeout: float | None = None,
    ) -> None:
        if not isinstance(parties, int):
            raise TypeError(f"parties must be an int, not {type(parties).__name__!r}")
        if parties < 1:
            raise ValueError("parties must be >= 1")
        if action is not None and not callable(action):
            raise TypeError(f"action must be callable, not {type(action).__name__!r}")
        if hasattr(self, "_changed"):  # __init__ is called again, which is refused while in use
            self._changed.__init__()  # type: ignore[misc]  # raises FiberError then
        else:
            self._changed = Condition()
        self._parties = parties
        self._action = action
        self._timeout = timeout
        self._round = Round()
        self._broken = False

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all parties have arrived; return how many had arrived before this one.

        After `timeout` seconds (default: the barrier's) the barrier breaks. Raises
        threading.BrokenBarrierError if the barrier is or becomes broken, or is reset.
        """
        if timeout is None:
            timeout = self._timeout
        with self._changed:
            if self._broken:
                raise BrokenBarrierError
            own_round = self._round
            index = own_round.arrived
            own_round.arrived += 1
            try:
                if own_round.arrived == self._parties:
                    self._open()
                else:
                    self._changed.wait_for(lambda: own_round.passed is not None, timeout)
            except BaseException:
                self._break(own_round)
                raise
            if own_round.passed is None:  # wait_for() has timed out
                self._break(own_round)
            if not own_round.passed:
                raise BrokenBarrierError
            return index

    def _open(self) -> None:
        """Run the action and end the round, because all parties have arrived."""
        if self._action is not None:
            self._action()
        self._end_round(passed=True)

    def _end_round(self, *, passed: bool) -> None:
        """Wake all waiters of the round; later calls of wait() belong to a new one."""
        self._round.passed = passed
        self._round = Round()
        self._changed.notify_all()

    def _break(self, own_round: Round) -> None:
        """Break the barrier for a waiter that gives up, unless its round has ended already."""
        if own_round.passed is None:
            self._broken = True
            self._end_round(passed=False)

    def reset(self) -> None:
        """Empty the barrier and repair it; fibers that wait in it get BrokenBarrierError."""
        with self._changed:
            self._broken = False
            self._end_round(passed=False)

    def abort(self) -> None:
        """Break the barrier: fibers that wait in it, or come later, get BrokenBarrierError."""
        with self._changed:
            self._broken = True
            self._end_round(passed=False)

    @property
    def parties(self) -> int:
        """How many fibers and threads must arrive."""
        return self._parties

    @property
    def n_waiting(self) -> int:
        """How many fibers and threads wait in the barrier."""
        return self._round.arrived

    @property
    def broken(self) -> bool:
        """True while the barrier is broken."""
        return self._broken

    def __repr__(self) -> str:
        state = "broken" if self._broken else f"waiters={self.n_waiting}/{self._parties}"
        return f"<pyfiber.{type(self).__qualname__} at {id(self):#x}: {state}>"
