"""Calls of functions in threads, and from threads in a run: ``to_thread()``, ``Portal`` etc."""

from __future__ import annotations

import itertools
import threading
from _thread import allocate_lock
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from pyfiber import _engine
from pyfiber._engine import (
    Fiber,
    FiberError,
    Scheduler,
    ThreadLimiter,
    _check_function,
    _load,
    shield,
)
from pyfiber._native import native_thread

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

P = ParamSpec("P")
R = TypeVar("R")

#: How many threads ``to_thread()`` uses at most.
DEFAULT_TOKENS = 40

_default_limiter: Final = ThreadLimiter(DEFAULT_TOKENS)
_numbers = itertools.count(1)
_one_numbers = itertools.count(1)

#: ``default_thread_limiter().to_thread``: callers reach the engine directly.
to_thread: Final = _default_limiter.to_thread


def default_thread_limiter() -> ThreadLimiter:
    """Return the limiter of ``to_thread()``; its ``total_tokens`` may be changed."""
    return _default_limiter


def start_worker(run: Callable[[], object]) -> None:
    """Start a thread that runs jobs until there have been none for a while.

    The thread is a daemon, so that the interpreter does not wait at its exit for functions that
    their callers have abandoned.
    """
    name = f"pyfiber-worker-{next(_numbers)}"
    native_thread(run, name=name, daemon=True).start()


def _start_own(threads: list[threading.Thread], name: str, run: Callable[[], object]) -> None:
    """Start the thread of a OneThread. Called by the engine."""
    thread = native_thread(run, name=name, daemon=True)
    threads.append(thread)  # before the thread's first function can look for it there
    try:
        thread.start()
    except BaseException:
        threads.clear()
        raise


def log_abandoned(function: Callable[..., object], exc: BaseException) -> None:
    """Log that a function failed after its caller had been cancelled and had stopped waiting."""
    _load("logging")
    import logging

    logging.getLogger("pyfiber").error(
        "%r failed in a thread, after the fiber that called to_thread() was cancelled",
        function,
        exc_info=exc,
    )


class OneThread:
    """Runs functions on one thread, for objects that must stay on the thread that made them.

    Examples are a connection of sqlite3 and an object of a GUI. Calls run one at a time, in the
    order in which they were made, by fibers of any run or by plain threads. The thread starts with
    the first call, and ends with close(), at the end of a with block, or when the object is
    dropped.

    ``name`` is the thread's name. ``abandon_on_cancel`` is that of ``ThreadLimiter``.
    """

    def __init__(self, name: str = "", *, abandon_on_cancel: bool = False) -> None:
        self._name = name or f"pyfiber-thread-{next(_one_numbers)}"
        self._threads: list[threading.Thread] = []  # one, once it has been started
        self._limiter = ThreadLimiter(1, abandon_on_cancel=abandon_on_cancel)
        self._limiter._own_thread(partial(_start_own, self._threads, self._name))
        self._closed = False

    def run(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call ``fn(*args, **kwargs)`` on the thread, and wait; return its result or raise.

        In a fiber this works as ``to_thread()``: others run meanwhile; if the call is cancelled
        while it waits for its turn, ``fn`` is never called; a later cancellation is raised after
        ``fn``. Elsewhere this blocks the calling thread. On the thread of this object it simply
        calls ``fn``. Raises FiberError after close(), and in the child of a fork if the thread had
        been started before.
        """
        if self._is_here():
            return fn(*args, **kwargs)
        if self._closed:
            raise FiberError(f"{self!r} takes no more calls: make another OneThread")
        if _engine._running_scheduler() is None:
            return _engine.run(self._limiter.to_thread, fn, *args, **kwargs)
        return self._limiter.to_thread(fn, *args, **kwargs)

    def _is_here(self) -> bool:
        return any(thread.ident == threading.get_ident() for thread in self._threads)

    def close(self) -> None:
        """Take no more calls; wait until the earlier ones have ended, and the thread has, too.

        Closing twice is fine. Raises FiberError on the thread of this object, which would wait for
        itself.
        """
        if self._is_here():
            raise FiberError(f"{self!r} cannot be closed on its own thread: it would wait for it")
        if self._closed:
            return
        self._closed = True
        for thread in self._threads:
            if thread.ident is not None and not thread.is_alive():
                return  # in the child of a fork
            self._wait_for_its_turn()
        self._limiter._end_thread()  # even if there is no thread: a call may be about to start it
        for thread in self._threads:
            thread.join()

    def _wait_for_its_turn(self) -> None:
        """Wait for the end of all earlier calls, by one that does nothing."""
        if _engine._running_scheduler() is None:
            _engine.run(self._limiter.to_thread, int)
            return
        with shield():
            self._limiter.to_thread(int)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._name

    @property
    def closed(self) -> bool:
        """True after close()."""
        return self._closed

    def __repr__(self) -> str:
        return f"<pyfiber.threads.OneThread {self._name!r}{', closed' if self._closed else ''}>"


OneThread.__module__ = "pyfiber.threads"


class Portal:
    """A way into a running scheduler from other threads.

    ``Portal()`` inside a run leads to the scheduler of that run; pass it to threads. With an
    argument it leads to that ``Scheduler``, or to the one on which that fiber was started.
    """

    __slots__ = ("_scheduler",)

    def __init__(self, target: Fiber[Any] | Scheduler | None = None) -> None:
        if isinstance(target, Scheduler):
            self._scheduler = target
            return
        if target is not None and not isinstance(target, Fiber):
            raise TypeError(f"Portal() takes a fiber or a Scheduler, not {type(target).__name__!r}")
        if target is None:
            scheduler = _engine._running_scheduler()
        else:
            scheduler = _engine._scheduler_of(target)
        if scheduler is None:
            raise FiberError(_nowhere_to_lead_to(target))
        self._scheduler = scheduler

    def spawn(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Fiber[R]:
        """Start ``fn(*args, **kwargs)`` in a fiber of the scheduler, and do not wait for it.

        Any thread may call this. Use the fiber's ``add_done_callback()`` and, once it is done,
        ``result()``. Raises FiberError when the scheduler is closed.
        """
        fiber: Fiber[R] = Fiber(_check_function("spawn()", fn), args, kwargs=kwargs)
        self._scheduler._start_soon(fiber)
        return fiber

    def call(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run ``fn(*args, **kwargs)`` in a fiber of the scheduler; wait and return its result.

        Blocks the calling thread. Raises what ``fn`` raises, FiberCancelled if the fiber was
        cancelled, and FiberError when the scheduler is closed and on the scheduler's own thread. An
        exception that ends the wait (KeyboardInterrupt) cancels the fiber.
        """
        if self._scheduler._on_this_thread():
            raise FiberError(
                "called on the scheduler's own thread, which would wait for itself: call the "
                "function directly, or use spawn()"
            )
        fiber: Fiber[R] = Fiber(_check_function("call()", fn), args, kwargs=kwargs)
        self._wait_for(fiber)
        return fiber.result()

    def _wait_for(self, fiber: Fiber[Any], together: bool = False) -> None:
        """Start the fiber, and block the calling thread until it is done.

        With ``together`` a cancellation of the fiber that waits in ``to_thread()`` for this thread
        cancels the new fiber as well.
        """
        over = allocate_lock()
        over.acquire()
        waits = True

        def done(fiber: Fiber[Any]) -> None:
            if waits:
                _ = fiber.outcome  # call() looks at it, though perhaps after the end of the run

        fiber.add_done_callback(done)
        fiber.add_done_callback(_engine._releaser(over))
        if together:
            _engine._share_cancellation(fiber)
        try:
            self._scheduler._start_soon(fiber)
            _engine._wait_for_call(over, fiber, together)
        except BaseException:
            waits = False
            if _engine._scheduler_of(fiber) is not None:
                fiber.cancel("the thread that waits for it was interrupted")
            raise

    def __repr__(self) -> str:
        return f"<Portal to {self._scheduler!r}>"


def _nowhere_to_lead_to(target: Fiber[Any] | None) -> str:
    if target is not None:
        return f"there is no scheduler to lead to: {target!r} was not started on one"
    _load("pyfiber._advice")
    from pyfiber import _advice

    return f"there is no scheduler to lead to: Portal() needs a running one{_advice.no_run()}"


def from_thread(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """In a function that ``to_thread()`` runs: run ``fn`` in a fiber of the caller's scheduler.

    Blocks the thread until the fiber is done; returns its result or raises its exception. When the
    caller of ``to_thread()`` is cancelled, so is that fiber, and this raises the caller's
    Cancelled: let it propagate. In other threads use a ``Portal``. Raises FiberError elsewhere.
    """
    job = _engine._current_job()
    if job is not None:
        fiber: Fiber[R] = Fiber(_check_function("from_thread()", fn), args, kwargs=kwargs)
        Portal(job.scheduler)._wait_for(fiber, together=True)
        if job.cancellation is not None and fiber.cancelled():
            try:
                raise job.cancellation
            finally:
                del job  # the exception's traceback refers to this frame
        return fiber.result()
    if _engine._running_scheduler() is not None:
        raise FiberError(
            "from_thread() is for other threads: in a fiber call the function, or spawn() it"
        )
    raise FiberError(_not_from_here())


def _not_from_here() -> str:
    _load("pyfiber._advice")
    from pyfiber import _advice

    return f"from_thread() works in functions that to_thread() runs: {_advice.no_from_thread()}"
