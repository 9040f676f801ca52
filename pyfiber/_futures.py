"""Futures of ``concurrent.futures``: waiting for them in a fiber, and an executor of fibers."""

from __future__ import annotations

import itertools
import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar

from pyfiber import _engine
from pyfiber._engine import Cancelled, Fiber, FiberError, FiberExit, Scheduler, _load

P = ParamSpec("P")
R = TypeVar("R")

#: Where the latches of the fibers that wait for a future are kept, on the future itself.
_LATCHES = "_pyfiber_latches"


def wait_for(future: Future[R], timeout: float | None = None) -> R:
    """Park until ``future``, completed by any thread, is done; return its result.

    Raises its exception, ``concurrent.futures.CancelledError`` if it was cancelled, TimeoutError
    after ``timeout`` seconds. A cancellation point; the future itself is left alone by a timeout or
    a cancellation. FiberError outside of a run, unless the future is done already.
    """
    if not isinstance(future, Future):
        hint = ": a fiber has result()" if isinstance(future, Fiber) else ""
        raise TypeError(
            f"expected a concurrent.futures.Future, not {type(future).__name__!r}{hint}"
        )
    if not _park_until_done(future, timeout):
        raise TimeoutError("the future is not done yet")
    return Future.result(future, 0)


def _park_until_done(future: Future[Any], timeout: float | None) -> bool:
    """False if ``timeout`` seconds passed first."""
    latch = _engine._Latch()
    latches: set[_engine._Latch] | None = future.__dict__.get(_LATCHES)
    if latches is None:
        latches = future.__dict__.setdefault(_LATCHES, set())
        future.add_done_callback(_set_latches)
    latches.add(latch)
    if future.done():  # perhaps since before the latch was among those to be set
        latch.set()
    try:
        return latch.wait(timeout, future)
    finally:
        latches.discard(latch)


def _set_latches(future: Future[Any]) -> None:
    for latch in list(future.__dict__[_LATCHES]):
        latch.set()


class FiberFuture(Future[R]):
    """What ``FiberExecutor.submit()`` returns: in a fiber, ``result()`` parks the fiber only."""

    def result(self, timeout: float | None = None) -> R:
        """As of any Future; other fibers run meanwhile."""
        return super().result(self._rest_of(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """As of any Future; other fibers run meanwhile."""
        return super().exception(self._rest_of(timeout))

    def _rest_of(self, timeout: float | None) -> float | None:
        """Wait if a fiber can; what is left to do for Future's own way, which blocks the thread."""
        if self.done() or _engine._running_scheduler() is None:
            return timeout
        if timeout is not None and timeout < 0:
            timeout = 0  # Executor.map() passes what is left of its own
        _park_until_done(self, timeout)
        return 0


def _work(
    pool: _Pool,
    future: FiberFuture[Any],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """The body of an executor's fiber."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        pool.prepare()
        result = fn(*args, **kwargs)
    except (Cancelled, FiberExit) as exc:
        future.set_exception(_cancelled(exc))
        raise
    except BaseException as exc:
        future.set_exception(exc)
        del future  # the exception's traceback refers to this frame
    else:
        future.set_result(result)


def _cancelled(exc: BaseException) -> BaseException:
    """What the running fiber, which ends with ``exc``, gives its future."""
    _load("pyfiber._cancelled")
    from pyfiber._cancelled import FiberCancelled

    return FiberCancelled._of(_engine.current(), exc)


class _Pool:
    """What an executor consists of; does not refer to it, so that it can be collected.

    Everything here may be used by any thread, under the lock, which is never held while a fiber
    parks. `over` is done when the pool was shut down and its last fiber has ended.
    """

    def __init__(
        self,
        limit: int | None,
        scheduler: Scheduler | None,
        name: str,
        initializer: Callable[[], object] | None,
    ) -> None:
        self.limit = limit
        self.scheduler = scheduler
        self.name = name
        self.numbers = itertools.count()
        self.initializer = initializer
        self.is_broken = False
        self.thread: threading.Thread | None = None
        self.lock = threading.RLock()  # a collection inside of it may come back here
        self.running = 0
        self.backlog: deque[tuple[Fiber[None], FiberFuture[Any]]] = deque()
        self.is_shut_down = False
        self.over: FiberFuture[None] = FiberFuture()

    def check_open(self) -> None:
        self.check_whole()
        if self.is_shut_down:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if _interpreter_ends:
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def check_whole(self) -> None:
        if self.is_broken:
            raise BrokenExecutor("the executor's initializer failed: its calls do not run")

    def prepare(self) -> None:
        """At the beginning of each fiber, which is what serves here as a worker."""
        self.check_whole()
        if self.initializer is None:
            return
        try:
            self.initializer()
        except Exception as exc:
            self.is_broken = True
            logging.getLogger("pyfiber").error("an executor's initializer failed", exc_info=exc)
            raise BrokenExecutor(f"the executor's initializer failed: {exc!r}") from exc

    def submit(self, fiber: Fiber[None], future: FiberFuture[Any]) -> None:
        fiber.add_done_callback(lambda fiber: self.ended(fiber, future))
        with self.lock:
            self.check_open()
            scheduler = self.scheduler or self.start_thread()
            if self.limit is not None and self.running >= self.limit:
                self.backlog.append((fiber, future))
                return
            scheduler._start_soon(fiber)
            self.running += 1

    def ended(self, fiber: Fiber[None], future: FiberFuture[Any]) -> None:
        """A done-callback, on the scheduler's thread: the next one begins, if one waits."""
        if not future.done() and future.set_running_or_notify_cancel():
            try:  # it was cancelled before it ran
                fiber.result()
            except BaseException as exc:
                future.set_exception(exc)
        while True:
            with self.lock:
                if not self.backlog:
                    self.running -= 1
                    break
                fiber, future = self.backlog.popleft()
            try:
                fiber.start()  # at once: a run with no fiber left would be over
                return
            except FiberError as exc:  # the run has ended
                if future.set_running_or_notify_cancel():
                    future.set_exception(exc)
        self.settle()

    def settle(self) -> None:
        with self.lock:
            over = self.is_shut_down and self.running == 0 and not self.over.done()
            if over:
                self.over.set_running_or_notify_cancel()
        if over:
            self.over.set_result(None)

    def shut_down(self, cancel_futures: bool = False) -> None:
        with self.lock:
            self.is_shut_down = True
            dropped = list(self.backlog) if cancel_futures else []
            if cancel_futures:
                self.backlog.clear()
        for _, future in dropped:
            future.cancel()
        self.settle()

    def start_thread(self) -> Scheduler:
        """With the lock held: a thread of its own, for an executor made outside of a run."""
        made: FiberFuture[Scheduler] = FiberFuture()
        self.thread = threading.Thread(target=self.serve, args=(made,), name=self.name)
        self.thread.start()
        self.scheduler = Future.result(made)
        _pools.add(self)
        return self.scheduler

    def serve(self, made: FiberFuture[Scheduler]) -> None:
        """The thread's own function."""
        scheduler = Scheduler()
        made.set_result(scheduler)
        del made
        try:
            scheduler.run(wait_for, self.over)
        finally:
            scheduler.close()


_numbers = itertools.count()

#: Those with a thread of their own that has not ended.
_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()
_interpreter_ends = False


def _at_exit() -> None:
    """Before the interpreter waits for the threads: what was submitted still runs."""
    global _interpreter_ends
    _interpreter_ends = True
    for pool in list(_pools):
        pool.shut_down()


# As concurrent.futures does for its own threads.
threading._register_atexit(_at_exit)  # type: ignore[attr-defined]


class FiberExecutor(Executor):
    """An Executor that runs each call in a fiber of its own.

    Made inside of a run, its fibers belong to that run. Made elsewhere, it starts one thread with a
    scheduler at the first ``submit()``; the fibers run there, and ``shutdown()`` ends it. At most
    ``max_workers`` calls run at a time (None: any number), the others wait their turn. Any thread
    may submit. A function that blocks its thread blocks the others with it: such functions belong
    into ``to_thread()``.

    The arguments are ThreadPoolExecutor's. ``thread_name_prefix`` names the thread, and with a
    number the fibers. ``initializer(*initargs)`` is called in each fiber before its call, for each
    call has a worker of its own; when it fails, the calls fail with BrokenExecutor.

    In a fiber, use the futures' own ``result()`` or ``wait_for()``: both park the fiber only, while
    ``concurrent.futures.wait()`` and ``as_completed()`` block the whole thread.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        thread_name_prefix: str = "",
        initializer: Callable[..., object] | None = None,
        initargs: tuple[Any, ...] = (),
    ) -> None:
        if max_workers is not None:
            if not isinstance(max_workers, int):
                raise TypeError(
                    f"max_workers must be an int or None, not {type(max_workers).__name__!r}"
                )
            if max_workers <= 0:
                raise ValueError("max_workers must be greater than 0")
        if initializer is not None:
            if not callable(initializer):
                raise TypeError("initializer must be a callable")
            initializer = partial(initializer, *initargs)
        name = thread_name_prefix or f"FiberExecutor-{next(_numbers)}"
        scheduler = _engine._running_scheduler()
        self._pool = _Pool(max_workers, scheduler, name, initializer)
        weakref.finalize(self, self._pool.shut_down).atexit = False

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> FiberFuture[R]:
        """Run ``fn(*args, **kwargs)`` in a fiber, with a copy of the caller's contextvars.

        RuntimeError after ``shutdown()``, BrokenExecutor when the initializer has failed,
        FiberError when the run it belongs to is over. If the fiber is cancelled the future's
        exception is FiberCancelled.
        """
        pool = self._pool
        pool.check_open()
        future: FiberFuture[R] = FiberFuture()
        name = f"{pool.name}_{next(pool.numbers)}"
        pool.submit(Fiber(_work, (pool, future, fn, args, kwargs), name=name), future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with ``wait``, return when the last one has ended.

        ``cancel_futures`` cancels those whose turn has not come. In a fiber it parks.
        """
        pool = self._pool
        pool.shut_down(cancel_futures)
        if wait:
            pool.over.result()
            if pool.thread is not None and pool.thread is not threading.current_thread():
                pool.thread.join()
