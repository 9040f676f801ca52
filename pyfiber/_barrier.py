"""Barrier: a set number of fibers wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from threading import BrokenBarrierError

from pyfiber._engine import Condition


class Round:
    """One round of a barrier: how many fibers have arrived, and how the round ended."""

    def __init__(self) -> None:
        self.arrived = 0
        #: None until the round ends; then True, or False if the barrier was broken or reset.
        self.passed: bool | None = None


class Barrier:
    """A threading.Barrier for fibers, of any thread, and plain threads.

    `parties` fibers wait() for each other. The last one to arrive runs `action`, if there is one.
    `timeout`, in seconds, is the default for wait(). A wait() that fails - it timed out, was
    cancelled, or the action raised - breaks the barrier: every other wait(), now or later, raises
    threading.BrokenBarrierError until reset().
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
        if hasattr(self, "_changed"):
            self._changed.__init__()  # type: ignore[misc]  # raises FiberError while in use
        else:
            self._changed = Condition()
        self._parties = parties
        self._action = action
        self._timeout = timeout
        self._round = Round()
        self._broken = False

    def wait(self, timeout: float | None = None) -> int:
        """Wait until all parties have arrived; return the caller's place among them, from 0.

        After `timeout` seconds (default: the barrier's) the barrier breaks. Raises
        threading.BrokenBarrierError if the barrier is or becomes broken, or is reset.
        """
        if timeout is None:
            timeout = self._timeout
        with self._changed:
            if self._broken:
                raise BrokenBarrierError
            this = self._round
            index = this.arrived
            this.arrived += 1
            try:
                if this.arrived == self._parties:
                    self._open()
                else:
                    self._changed.wait_for(lambda: this.passed is not None, timeout)
            except BaseException:
                self._break(this)
                raise
            if this.passed is None:
                self._break(this)
            if not this.passed:
                raise BrokenBarrierError
            return index

    def _open(self) -> None:
        """Run the action and end the round: all parties have arrived."""
        if self._action is not None:
            self._action()
        self._end_round(passed=True)

    def _end_round(self, *, passed: bool) -> None:
        self._round.passed = passed
        self._round = Round()
        self._changed.notify_all()

    def _break(self, this: Round) -> None:
        """Break the barrier, because a waiter of ``this`` gives up; no effect if that is over."""
        if this.passed is None:
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
