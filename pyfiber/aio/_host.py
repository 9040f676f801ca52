"""``Host``: a scheduler that runs in the turns which the running loop gives it.

::

    the loop's callbacks      ... task, task, turn(), task, reader, turn() ...
                                              │                      │
    the scheduler's fibers                    └> fiber, fiber, ...   └> fiber

A turn is due when a fiber is ready. If a method of the Host makes a fiber ready, it asks the loop
for a turn by ``call_soon()``. If other code does so between turns, or another thread, the
scheduler's descriptor becomes readable, which the loop watches. One timer of the loop is set for
the earliest of the scheduler's timers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from pyfiber._cancelled import FiberCancelled
from pyfiber._engine import (
    Cancelled,
    Fiber,
    FiberError,
    Scheduler,
    _Latch,
    _running_scheduler,
    shield,
)
from pyfiber.aio._start import start

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class HostedScheduler(Scheduler):
    """A scheduler with a reference to its host."""

    host: Host


class Host:
    """``async with Host() as host``: fibers on the running loop, beside its tasks.

    In the fibers everything works that works in ``pyfiber.run()``: ``spawn()``, ``sleep()``,
    groups, scopes, queues, ``to_thread()``; and so does ``await_()``. The fibers run on the loop's
    thread, between its callbacks. The loop may be asyncio's, uvloop's or another one with
    ``add_reader()``.

    Leaving the block cancels the fibers that are left, and waits for their end. `on_unhandled` says
    what happens to failures that nobody looks at, as for ``pyfiber.run()``.

    FiberError if a Host is entered twice, or inside of a run. NotImplementedError where the loop
    cannot watch descriptors, or the scheduler has none, as on Windows: run asyncio in one thread
    and ``pyfiber.run()`` in another.
    """

    _loop: asyncio.AbstractEventLoop
    _scheduler: HostedScheduler | None = None
    _timer: asyncio.TimerHandle | None = None

    def __init__(
        self, *, on_unhandled: str | Callable[[Fiber[Any], BaseException], object] = "log"
    ):
        self._on_unhandled: Any = on_unhandled
        self._due = False  # a turn has been asked for
        self._entered = False

    # entering and leaving -------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._entered:
            raise FiberError("a Host can be entered only once: make another one")
        if _running_scheduler() is not None:
            raise FiberError("a Host cannot be used inside of a run: start fibers with spawn()")
        loop = self._loop = asyncio.get_running_loop()
        # Loops other than asyncio's may round times to milliseconds. A timer that is rounded down
        # would come too early, again and again.
        self._least = 0.0 if isinstance(loop, asyncio.BaseEventLoop) else 0.001
        scheduler = HostedScheduler(on_unhandled=self._on_unhandled)
        try:
            loop.add_reader(scheduler.fileno(), self._turn)
        except NotImplementedError:
            scheduler.close()
            raise NotImplementedError(
                "a Host needs a loop that watches descriptors, and a scheduler that has one: run "
                "asyncio in one thread and pyfiber.run() in another"
            ) from None
        scheduler.host = self
        self._scheduler = scheduler
        self._entered = True
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scheduler = self._open()
        cancelled: asyncio.CancelledError | None = None
        try:
            while fibers := scheduler.fibers():
                self._ask_for_turn()
                scheduler.stop()
                for fiber in fibers:
                    cancelled = await self._end_of(fiber) or cancelled
        finally:
            self._scheduler = None
            self._loop.remove_reader(scheduler.fileno())
            if self._timer is not None:
                self._timer.cancel()
            scheduler.close()
        if cancelled is not None:
            raise cancelled

    def _open(self) -> HostedScheduler:
        if self._scheduler is None:
            raise FiberError(
                "the Host is not open: use it inside of its `async with` block"
                if not self._entered
                else "the Host's `async with` block is over, and so are its fibers"
            )
        return self._scheduler

    # turns ----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        scheduler = self._scheduler
        self._due = False
        if scheduler is None:
            return  # the turn was asked for before the end of the block
        try:
            delay = scheduler._turn()
        except BaseException:
            self._ask_for_turn()
            raise
        if delay == 0:
            self._ask_for_turn()
        elif delay is not None:
            self._come_back_in(delay)

    def _ask_for_turn(self) -> None:
        """Ask the loop for a turn; called where a fiber is made ready.

        ``_stir()`` notes that a turn will come, so that the descriptor need not become readable.
        """
        if not self._due:
            self._open()._stir()
            self._due = True
            self._loop.call_soon(self._turn)

    def _come_back_in(self, delay: float) -> None:
        """Set the loop's timer, unless it is set for an earlier time.

        A timer that comes too early does no harm, and most time limits are removed before they
        end: so an earlier timer is not moved.
        """
        when = self._loop.time() + max(delay, self._least)
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._turn()

    # fibers ---------------------------------------------------------------------------------------

    def spawn(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Fiber[R]:
        """Start ``fn(*args, **kwargs)`` in a fiber, to begin at the next turn; return the Fiber.

        FiberError outside of the block, and on another thread: from there, pass this method to
        ``call_soon_threadsafe()`` of the loop.
        """
        scheduler = self._open()
        self._ask_for_turn()
        return scheduler.spawn(fn, *args, **kwargs)

    async def run(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``fn(*args, **kwargs)`` in a fiber and wait for its result, as ``result()`` does."""
        return await self.result(self.spawn(fn, *args, **kwargs))

    async def result(self, fiber: Fiber[R]) -> R:
        """Wait for a fiber of this host; return its result, or raise its exception.

        Cancelling the task that waits cancels the fiber, and waits for its end, as with a task that
        another one awaits. If the fiber was cancelled, by this task or by other code, this raises
        asyncio.CancelledError.
        """
        cancelled = await self._end_of(fiber)
        try:
            return fiber.result()
        except FiberCancelled as exc:
            raise cancelled or asyncio.CancelledError(str(exc)) from exc

    async def _end_of(self, fiber: Fiber[Any]) -> asyncio.CancelledError | None:
        """Wait for the end of a fiber, and cancel the fiber when the waiting task is cancelled.

        Returns the last cancellation of the task, or None.
        """
        cancelled = None
        while not fiber.done():
            future = self._loop.create_future()
            fiber.add_done_callback(partial(_mark, future))
            try:
                await future
            except asyncio.CancelledError as exc:
                if fiber.done():
                    _ = fiber.outcome  # counts as looked at: probably this cancellation ended it
                    raise
                cancelled = exc
                self._ask_for_turn()
                fiber.cancel(*exc.args[:1] or ("the asyncio task that awaits it was cancelled",))
        return cancelled

    # awaiting in a fiber --------------------------------------------------------------------------

    def wait_for(self, fiber: Fiber[Any], awaitable: Awaitable[T]) -> T:
        """Wait in the running fiber for an awaitable of asyncio's."""
        future: asyncio.Future[T] = start(self._loop, fiber, awaitable)
        if not future.done():
            self._wait(future)
        return future.result()

    def _wait(self, future: asyncio.Future[Any]) -> None:
        latch = _Latch()
        future.add_done_callback(partial(self._ring, latch))
        try:
            latch.wait(None, future)
        except Cancelled as exc:
            if future.done():
                return  # the cancellation came just too late
            future.cancel(*() if exc.reason is None else (exc.reason,))
            with shield():
                latch.wait(None, future)
            if future.cancelled():
                raise
        except BaseException:
            future.cancel()
            raise

    def _ring(self, latch: _Latch, future: asyncio.Future[Any]) -> None:
        if self._scheduler is not None:
            self._ask_for_turn()
        latch.set()


def _mark(future: asyncio.Future[None], fiber: Fiber[Any]) -> None:
    if not future.done():
        future.set_result(None)
