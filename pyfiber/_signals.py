"""signals(): a block in which a fiber waits for signals of the system."""

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

#: The type that names a signal: ``signal.Signals``, or int.
if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers bring this module along

    N_co = TypeVar("N_co", bound=int, default=int, covariant=True)
else:
    from typing import TypeVar

    N_co = TypeVar("N_co", bound=int, covariant=True)


class _Arrival:
    """A signal that has come, shared by the blocks that wait for it."""

    __slots__ = ("number", "queues", "taken")

    def __init__(self, number: int, queues: int) -> None:
        self.number = number
        self.queues = queues  #: how many blocks have it in their queues
        self.taken = False


class _Watch:
    """pyfiber's handler of one signal, for all blocks that wait for it."""

    __slots__ = ("before", "blocks")

    def __init__(self, number: int, block: signals[Any]) -> None:
        self.blocks = [block]  # before the handler is set, so that the first signal has a queue
        self.before = signal.getsignal(number)
        if self.before is None:
            raise ValueError(
                f"{_name(number)} has a handler that Python did not set and could not put back"
            )
        signal.signal(number, self.arrived)

    def arrived(self, number: int, frame: FrameType | None) -> None:
        """The handler, which runs between two steps of whatever runs on the main thread."""
        arrival = _Arrival(number, len(self.blocks))
        for block in self.blocks:
            block._arrivals.append(arrival)
            block._news.ring()

    def end(self, number: int) -> None:
        """Restore the earlier handler, unless the program has set another one meanwhile."""
        if signal.getsignal(number) == self.arrived:
            signal.signal(number, self.before)


#: By the signal's number. Only the main thread uses this.
_watches: dict[int, _Watch] = {}


class signals(Generic[N_co]):
    """``with signals(SIGTERM, SIGHUP) as received:`` for signals that a fiber takes one by one.

    Within the block ``for number in received:`` and ``received.get()`` wait for the next signal,
    without a limit of time. The block replaces the handlers of its signals, and restores them at
    its end: with SIGINT here, Ctrl-C does not end the run.

    Blocks for the same signal, nested or in different fibers, all receive it. Signals are received
    in the order in which Python handles them, and none is lost: what no block has taken when the
    last one is left is raised again after that. As with any handler, a signal that comes again
    before Python has handled it may be received only once.

    Raises FiberError outside of a run, ValueError for a number that is no signal and in a run that
    is not on the main thread, where Python handles signals, and OSError for a signal that cannot be
    handled.
    """

    def __init__(self, *numbers: N_co) -> None:
        if not numbers:
            raise ValueError("name at least one signal: without one this would wait for ever")
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
                continue  # __enter__() failed before this signal
            if len(watch.blocks) == 1:
                watch.end(number)  # until then a signal needs the queue of this block
                del _watches[number]
            watch.blocks.remove(self)
        with contextlib.ExitStack() as later:  # makes all calls, whatever a handler raises
            for arrival in reversed(self._arrivals):
                arrival.queues -= 1
                if not arrival.queues and not arrival.taken:
                    later.callback(signal.raise_signal, arrival.number)
            self._arrivals.clear()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> N_co:
        """Wait for the next signal, as get()."""
        return self.get()

    def get(self, timeout: float | None = None) -> N_co:
        """Wait for the next signal: a member of ``signal.Signals`` if it has a name there.

        A cancellation point if no signal has come yet. Raises TimeoutError after ``timeout``
        seconds, and FiberError if another fiber waits here already and once the block has been
        left.
        """
        end = None if timeout is None else now() + timeout
        while True:
            seen = self._news.rings
            if self._state != "been entered":
                raise FiberError(f"signals are received in the block, which has {self._state}")
            if self._arrivals:
                return cast("N_co", _member(self._take()))
            left = None if end is None else max(end - now(), 0)
            if not self._news.wait(left, self._text, seen):
                raise TimeoutError(f"waited {timeout} s for {self._text}")

    def _take(self) -> int:
        arrival = self._arrivals.popleft()
        arrival.queues -= 1
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
