"""Signals that fibers wait for."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections import deque
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Generic, Self, cast

from pyfiber import _engine
from pyfiber._engine import FiberError, _Latch, now

__all__ = ["signals"]

#: What a signal is named by: ``signal.Signals``, or an int.
if TYPE_CHECKING:
    from typing_extensions import TypeVar  # checkers bring it along

    N_co = TypeVar("N_co", bound=int, default=int, covariant=True)
else:
    from typing import TypeVar

    N_co = TypeVar("N_co", bound=int, covariant=True)


class _Arrival:
    """A signal that has come, shared by the blocks that are told of it."""

    __slots__ = ("number", "taken", "untold")

    def __init__(self, number: int, untold: int) -> None:
        self.number = number
        self.untold = untold  #: blocks that have it in their queues
        self.taken = False


class _Watch:
    """Our handler of one signal, for all blocks that wait for it."""

    __slots__ = ("before", "blocks")

    def __init__(self, number: int, block: signals[Any]) -> None:
        self.blocks = [block]  # before the handler is there, which has somebody to tell then
        self.before = signal.getsignal(number)
        if self.before is None:
            raise ValueError(
                f"{_name(number)} has a handler that Python did not set and could not put back"
            )
        signal.signal(number, self.arrived)

    def arrived(self, number: int, frame: FrameType | None) -> None:
        """The handler; it runs between two steps of whatever runs on the main thread."""
        arrival = _Arrival(number, len(self.blocks))
        for block in self.blocks:
            block._arrivals.append(arrival)
            block._news.ring()

    def end(self, number: int) -> None:
        """Put back what was there, unless the program has set another handler meanwhile."""
        if signal.getsignal(number) == self.arrived:
            signal.signal(number, self.before)


#: Of the main thread.
_watches: dict[int, _Watch] = {}


class signals(Generic[N_co]):
    """``with signals(SIGTERM, SIGHUP) as received:`` for signals that a fiber takes one by one.

    Within the block ``for number in received:`` waits for the next one, for ever; so does
    ``received.get()``. What else would handle them does not, which is put back at the end of the
    block: with SIGINT here, Ctrl-C does not end the run.

    Blocks for the same signal, nested or in different fibers, are all told of it. Signals are
    told in the order in which Python handles them, and none is lost: what nobody has taken when
    the last block is left is raised again after that. As ever, a signal that comes again before
    the first one is handled may be told once.

    FiberError outside of a run; ValueError in a run that is not on the main thread, where Python
    handles signals, and for what is no signal; OSError for one that cannot be handled.
    """

    def __init__(self, *numbers: N_co) -> None:
        if not numbers:
            raise ValueError("name at least one signal: it would wait for ever")
        self._numbers = list(dict.fromkeys(int(number) for number in numbers))
        self._text = f"a signal: {', '.join(_name(number) for number in self._numbers)}"
        self._arrivals: deque[_Arrival] = deque()
        self._news = _Latch(outside=True)
        self._state = "not been entered"

    def __enter__(self) -> Self:
        if self._state != "not been entered":
            raise FiberError(f"the block has {self._state} already: make new signals()")
        if _engine._running_scheduler() is None:
            _engine._load("pyfiber._advice")
            from pyfiber import _advice

            raise FiberError(f"signals() need a running scheduler{_advice.no_signals()}")
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("signals() work on the main thread only, where Python handles them")
        self._state = "been entered"
        try:
            for number in self._numbers:
                if number in _watches:
                    _watches[number].blocks.append(self)
                else:
                    _watches[number] = _Watch(number, self)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._state = "been left"
        self._news.set()
        for number in self._numbers:
            watch = _watches.get(number)
            if watch is None or self not in watch.blocks:
                continue  # it was refused
            if len(watch.blocks) == 1:
                watch.end(number)  # until then the handler has this block to tell
                del _watches[number]
            watch.blocks.remove(self)
        with contextlib.ExitStack() as later:  # which calls all, whatever a handler raises
            for arrival in reversed(self._arrivals):
                arrival.untold -= 1
                if not arrival.untold and not arrival.taken:
                    later.callback(signal.raise_signal, arrival.number)
            self._arrivals.clear()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> N_co:
        """The next signal, as get()."""
        return self.get()

    def get(self, timeout: float | None = None) -> N_co:
        """Wait for the next signal: a member of ``signal.Signals`` if it has a name there.

        TimeoutError after ``timeout`` seconds. A cancellation point if none is there. FiberError
        if another fiber waits here already, and once the block has been left.
        """
        end = None if timeout is None else now() + timeout
        while True:
            seen = self._news.rings
            if self._state != "been entered":
                raise FiberError(f"signals come within the block, which has {self._state}")
            if self._arrivals:
                return cast("N_co", _member(self._take()))
            left = None if end is None else max(end - now(), 0)
            if not self._news.wait(left, self._text, seen):
                raise TimeoutError(f"waited {timeout} s for {self._text}")

    def _take(self) -> int:
        arrival = self._arrivals.popleft()
        arrival.untold -= 1
        arrival.taken = True
        return arrival.number

    def __repr__(self) -> str:
        return f"<pyfiber.signals {', '.join(_name(number) for number in self._numbers)}>"


signals.__module__ = "pyfiber"


def _member(number: int) -> int:
    try:
        return signal.Signals(number)
    except ValueError:
        return number


def _name(number: int) -> str:
    found: Any = _member(number)
    return getattr(found, "name", str(number))
