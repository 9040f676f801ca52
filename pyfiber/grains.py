"""Grains: generators and coroutines that the loop steps, beside the fibers.

A grain is a task without a stack, which takes a few hundred bytes. A step of a grain costs tens of
nanoseconds; in return, only its own generators can pause it::

    >>> from pyfiber import run
    >>> from pyfiber.grains import READY, spawn
    >>> def count(name, n):
    ...     for i in range(n):
    ...         print(name, i)
    ...         yield READY
    ...     return name
    >>> def main():
    ...     grains = [spawn(count, "a", 2), spawn(count, "b", 2)]
    ...     return [grain.result() for grain in grains]
    >>> run(main)
    a 0
    b 0
    a 1
    b 1
    ['a', 'b']

What a grain yields says what to do next; ``Grain`` lists the possible values. A ``GrainPool`` keeps
grains together, on a separate thread if you like, and its policy decides which one runs next.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload
from weakref import WeakKeyDictionary, WeakSet

from pyfiber import _engine
from pyfiber._engine import Event, FiberError, FiberExit, Grain, current_grain, shield, until
from pyfiber._native import native_thread
from pyfiber._policies import FairShare, Policy, Priority, RoundRobin

__all__ = [
    "READY",
    "SLEEPING",
    "STOPPED",
    "FairShare",
    "Grain",
    "GrainPool",
    "GrainState",
    "Policy",
    "Priority",
    "RoundRobin",
    "current_grain",
    "spawn",
    "until",
]

_log = logging.getLogger("pyfiber")
_R = TypeVar("_R")


class GrainState(enum.Enum):
    """What a grain may yield, what a predicate may return, and a grain's last known state."""

    READY = "ready"
    SLEEPING = "sleeping"
    STOPPED = "stopped"

    def __repr__(self) -> str:
        return self.name


READY: Literal[GrainState.READY] = GrainState.READY
SLEEPING: Literal[GrainState.SLEEPING] = GrainState.SLEEPING
STOPPED: Literal[GrainState.STOPPED] = GrainState.STOPPED

#: What a grain is made from: a Task if its type says what the result is, or any Start.
Task = (
    Callable[..., Generator[Any, Any, _R]]
    | Callable[..., Coroutine[Any, Any, _R]]
    | Generator[Any, Any, _R]
    | Coroutine[Any, Any, _R]
)
Start = Callable[..., Iterable[Any]] | Iterable[Any] | Awaitable[Any]


@overload
def spawn(start: Task[_R], /, *args: Any, name: str | None = None) -> Grain[_R]: ...
@overload
def spawn(start: Start, /, *args: Any, name: str | None = None) -> Grain[Any]: ...
def spawn(start: Any, /, *args: Any, name: str | None = None) -> Grain[Any]:
    """Start ``Grain(start, *args, name=name)`` on the running scheduler.

    The grain belongs to the run, as a fiber from spawn() does; ``TaskGroup.spawn(grain)`` starts
    one that belongs to a group. Raises FiberError outside of a run.
    """
    return Grain(start, *args, name=name).start()


class GrainPool(_engine.GrainPoolBase):
    """Grains that run together and take turns.

    ``policy`` decides which grain runs next: ``RoundRobin()`` (the default), ``Priority()``,
    ``FairShare()`` or your own ``Policy``. ``on_error`` says what an exception that leaves a grain
    ends: that grain (``"grain"``: ``result()`` raises it, and it is logged if nobody asks), or the
    pool (``"pool"``: the other grains are cancelled, and ``shutdown()`` raises it).

    Grains may be queued before and after the start, from any thread. As a context manager a pool
    starts at the beginning of the block and shuts down at its end; an exception that leaves the
    block, or ends the wait at its end, first interrupts the pool. A pool with a separate thread
    that is not shut down when the interpreter exits is interrupted then.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        on_error: Literal["grain", "pool"] = "grain",
        name: str = "grains",
    ) -> None:
        if on_error not in ("grain", "pool"):
            raise ValueError(f"on_error must be 'grain' or 'pool', not {on_error!r}")
        if policy is None:
            policy = RoundRobin()
        for method in ("add", "take", "remove", "ran"):
            if not callable(getattr(policy, method, None)):
                raise TypeError(f"{policy!r} is no policy: it has no method {method}()")
        super().__init__(None if type(policy) is RoundRobin else policy)
        self.policy = policy
        self.on_error = on_error
        self.name = name
        self.error: BaseException | None = None
        self._traceback: TracebackType | None = None
        self._closing = False
        self._thread: threading.Thread | None = None
        self._thread_over = Event()
        self._host: Grain[None] | None = None
        self._starting = threading.Lock()
        self._waiting: deque[Event] = deque()  # set when no grain is left

    # --- grains come and go

    @overload
    def queue(self, start: Grain[_R], /) -> Grain[_R]: ...
    @overload
    def queue(self, start: Task[_R], /, *args: Any, name: str | None = None) -> Grain[_R]: ...
    @overload
    def queue(self, start: Start, /, *args: Any, name: str | None = None) -> Grain[Any]: ...
    def queue(self, start: Any, /, *args: Any, name: str | None = None) -> Grain[Any]:
        """Add a grain, or ``Grain(start, *args, name=name)``; return it.

        The grain runs when its turn comes; before the pool is started, it waits for the start. A
        grain that was dequeued continues where it was. Raises FiberError if the grain is queued in
        this or another pool, was started without one or has finished, and after ``shutdown()`` or
        ``interrupt()``.
        """
        if isinstance(start, Grain):
            if args or name is not None:
                raise TypeError("queue() takes arguments for a function, not for a Grain")
            grain = start
        else:
            grain = Grain(start, *args, name=name)
        if self._closing and current_grain() not in self:
            raise FiberError("the pool is shut down: it takes no more grains")
        self._enter(grain)
        if self._thread_over.is_set():  # the thread has ended meanwhile
            grain.cancel("the pool's thread has ended")
        return grain

    def dequeue(self, grain: Grain[Any]) -> None:
        """Remove a grain: it gets no more turns until it is queued again, here or elsewhere.

        Queued again, the grain starts its wait afresh: a sleep begins again. A grain may dequeue
        itself; that step is finished first. Raises FiberError if the grain is not in this pool.
        """
        self._leave(grain)

    def __iter__(self) -> Iterator[Grain[Any]]:
        """The grains that are in the pool now, oldest first; the pool may run meanwhile."""
        return iter(self._grains())

    # --- start and end of the pool

    @property
    def started(self) -> bool:
        """Has ``start()`` been called?"""
        return self._bound or self._thread is not None

    def start(self, *, thread: bool | None = None) -> Self:
        """Give the grains their turns from now on; return the pool.

        Inside a run the grains run on its scheduler, and the run lasts until they are done. Outside
        of a run, or with ``thread=True``, they run on a new thread, until ``shutdown()``. Raises
        FiberError if called twice, and with ``thread=False`` outside of a run.
        """
        # The policy and finalizers may call start() meanwhile: that is an error, and must not wait.
        begins = self._starting.acquire(blocking=False)
        try:
            if not begins or self.started or self._closing:
                raise FiberError("the pool has been started already, or shut down")
            self._start(_engine._running_scheduler() is None if thread is None else thread)
        finally:
            if begins:
                self._starting.release()
        return self

    def _start(self, thread: bool) -> None:
        """Run the grains in the current run, or start a thread that does."""
        if not thread:
            self._bind()
            return
        started = threading.Event()
        native_thread(self._run, (started,), name=self.name).start()
        started.wait()

    def _run(self, started: threading.Event) -> None:
        """The main function of the pool's thread.

        The thread registers itself, because an exception of a trace function or a signal handler
        may have interrupted start() meanwhile.
        """
        try:
            self._thread = threading.current_thread()
            _with_threads.add(self)
            _engine.run(self._serve, started)
        except BaseException as exc:  # a grain has ended the run: SystemExit, KeyboardInterrupt
            _log.error("%r was ended", self, exc_info=exc)
            self._ended_by(exc)
        finally:
            self._closing = True
            started.set()
            self._thread_over.set()
            self.interrupt("the pool's thread has ended")  # cancels grains queued meanwhile

    def _serve(self, started: threading.Event) -> None:
        """The main fiber of the pool's thread: a grain that sleeps keeps the run going."""
        self._host = spawn(iter([SLEEPING]), name=f"host of {self.name}")
        self._bind()
        started.set()
        self._release_host()  # if the pool was shut down meanwhile
        self._host.join()

    def shutdown(self, wait: bool = True) -> None:
        """Take no more grains; with ``wait``, return when the remaining ones are done.

        A fiber that waits here can be cancelled as usual; the pool then continues. With
        ``on_error="pool"`` this raises what ended the pool. Raises FiberError if a grain waits for
        its own pool: use ``wait=False`` there. Shutting down twice is fine.
        """
        if wait and current_grain() in self:
            raise FiberError(
                "a grain cannot wait for the shutdown of its own pool: use shutdown(wait=False)"
            )
        self._closing = True
        self._release_host()
        if not wait:
            return
        if self.started:
            self._wait_for_end()
        elif len(self):
            raise FiberError("the pool was not started: its grains would never be done")
        self._raise_error()

    def interrupt(self, reason: object = "the pool was interrupted") -> None:
        """Take no more grains and cancel the remaining ones; any thread may call this.

        Each of them gets ``Cancelled`` at its ``yield``, and may clean up. ``shutdown()`` waits for
        that.
        """
        self._closing = True
        for grain in self:
            grain.cancel(reason)
        self._release_host()

    def _release_host(self) -> None:
        """Let the pool's thread end if the pool is shut down and has no more grains."""
        if self._closing and not len(self) and self._host is not None:
            with suppress(FiberError):  # the host has ended already
                self._host.unpark()

    def _wait_for_end(self) -> None:
        """Wait until no grain is left, and the pool's own thread has ended."""
        while len(self):
            empty = Event()
            self._waiting.append(empty)
            if len(self):  # else the last grain has left, perhaps before it could see `empty`
                empty.wait()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._thread_over.wait()  # other fibers run meanwhile
            thread.join()

    def _grain_failed(self, grain: Grain[Any]) -> None:
        """End the pool if ``on_error`` says so. Called by the engine."""
        if self.on_error == "pool" and self.error is None:
            self._ended_by(grain.exception())
            self.interrupt("another grain failed")

    def _ended_by(self, error: BaseException | None) -> None:
        if self.error is None and error is not None:
            self.error = error
            self._traceback = error.__traceback__

    def _raise_error(self) -> None:
        """Raise what ended the pool, if anything did, without a traceback that grows each time."""
        if self.error is not None:
            raise self.error.with_traceback(self._traceback)

    def _emptied(self) -> None:
        """Wake those who wait for the end. The engine calls this when the last grain has left."""
        self._release_host()
        while self._waiting:
            self._waiting.popleft().set()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is None:
            try:
                self.shutdown()
            except BaseException as why:  # cancelled, or Ctrl-C, unless it is `self.error`
                self._stop(why)
                raise
        else:
            self._stop(exc)
            if self.error is not exc:
                self._raise_error()

    def _stop(self, why: BaseException) -> None:
        """An exception ends the block: cancel the grains and wait for them."""
        self.interrupt()
        if isinstance(why, (FiberExit, GeneratorExit)) or current_grain() in self:
            return  # no wait is allowed here
        if _engine._running_scheduler() is None:
            self._wait_for_end()
        else:
            with shield():
                self._wait_for_end()

    def __repr__(self) -> str:
        state = "shut down" if self._closing else "started" if self.started else "new"
        return f"<GrainPool {self.name!r} {state}, {len(self)} grains, {self.policy!r}>"


#: Pools that were started on a separate thread.
_with_threads: WeakSet[GrainPool] = WeakSet()


def _interrupt_all() -> None:
    """Called when the interpreter exits and is about to wait for all threads."""
    for pool in list(_with_threads):
        pool.interrupt("the interpreter exits")


# `atexit` would be too late, after the wait for threads; concurrent.futures does this as well.
threading._register_atexit(_interrupt_all)  # type: ignore[attr-defined]

#: The event of a grain that waiters on other threads wait for; set when the grain is done.
_ends: WeakKeyDictionary[Grain[Any], Event] = WeakKeyDictionary()


def _join_elsewhere(grain: Grain[Any], timeout: float | None) -> bool:
    """Wait for a grain of another thread, or of a pool that is not started yet."""
    mine = Event()
    end = _ends.setdefault(grain, mine)
    if end is mine:
        grain.add_done_callback(lambda _: mine.set())
    return end.wait(timeout)


def _policy_failed(pool: GrainPool, exc: BaseException) -> None:
    """Log that a policy raised ``exc``, or chose badly; the pool has chosen another grain."""
    _log.error("the policy of %r failed", pool, exc_info=exc)
    if pool.on_error == "pool" and pool.error is None:
        pool.error = exc
        pool.interrupt("the pool's policy failed")


_engine._set_hooks(
    "pyfiber.grains",
    ready=READY,
    sleeping=SLEEPING,
    stopped=STOPPED,
    join_elsewhere=_join_elsewhere,
    policy_failed=_policy_failed,
)
