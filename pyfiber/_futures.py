"""Futures of ``concurrent.futures``: how a fiber waits for them, and an executor of fibers."""

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
from pyfiber._engine import Cancelled, Event, Fiber, FiberError, FiberExit, Scheduler, _load
from pyfiber._native import native_thread

P = ParamSpec("P")
R = TypeVar("R")

#: The attribute of a future that keeps the latch on which fibers wait.
_LATCH = "_pyfiber_latch"
#: The attribute of a future that keeps its failure's traceback as it was before the first result().
_TRACEBACK = "_pyfiber_traceback"


def await_future(future: Future[R], timeout: float | None = None) -> R:
    """Park the fiber until ``future``, completed by any thread, is done; return its result.

    Raises the future's exception, ``concurrent.futures.CancelledError`` if the future was
    cancelled, TimeoutError after ``timeout`` seconds, and FiberError outside of a run unless the
    future is done already. This is a cancellation point; neither a timeout nor a cancellation
    changes the future.
    """
    if not isinstance(future, Future):
        hint = ": a fiber has result()" if isinstance(future, Fiber) else ""
        raise TypeError(
            f"expected a concurrent.futures.Future, not {type(future).__name__!r}{hint}"
        )
    if not _park_until_done(future, timeout):
        raise TimeoutError("the future is not done yet")
    return _result_of(future, 0)


def _result_of(future: Future[R], timeout: float | None) -> R:
    """``Future.result()``, but each call raises the failure with the traceback it had at first.

    Otherwise the traceback would grow with each call and keep the frames of all callers alive.
    """
    error = Future.exception(future, timeout)
    if error is None:
        return Future.result(future, timeout)
    try:
        raise error.with_traceback(future.__dict__.setdefault(_TRACEBACK, error.__traceback__))
    finally:
        del error  # the traceback refers to this frame


def _park_until_done(future: Future[Any], timeout: float | None) -> bool:
    """Park until the future is done; False if ``timeout`` seconds passed first."""
    latch: _engine._Latch | None = future.__dict__.get(_LATCH)
    if latch is None:
        latch = _engine._Latch()
        # Before another fiber can find the latch, so that it finds only one that will be set.
        future.add_done_callback(latch.set)
        latch = future.__dict__.setdefault(_LATCH, latch)
    if future.done():
        latch.set()
    return latch.wait(timeout, future)


class FiberFuture(Future[R]):
    """What ``FiberExecutor.submit()`` returns: in a fiber, ``result()`` parks the fiber only."""

    def result(self, timeout: float | None = None) -> R:
        """``Future.result()``; other fibers run meanwhile."""
        return _result_of(self, self._rest_of(timeout))

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """``Future.exception()``; other fibers run meanwhile."""
        return super().exception(self._rest_of(timeout))

    def _rest_of(self, timeout: float | None) -> float | None:
        """In a run, park until it is done; return the timeout for Future's own, blocking wait."""
        if self.done() or _engine._running_scheduler() is None:
            return timeout
        if timeout is not None and timeout < 0:
            timeout = 0  # Executor.map() passes the rest of its timeout
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
    """The exception that the running fiber, which ends with ``exc``, sets on its future."""
    _load("pyfiber._cancelled")
    from pyfiber._cancelled import fiber_cancelled

    return fiber_cancelled(_engine.current(), exc)


def _complete(future: FiberFuture[Any], fiber: Fiber[None]) -> None:
    """Complete the future at the fiber's end. Called again if an exception interrupts it."""
    if not future.done():  # the fiber was cancelled before it ran, or was interrupted
        try:
            fiber.result()
        except BaseException as exc:
            _fail(future, exc)
    latch: _engine._Latch | None = future.__dict__.get(_LATCH)
    if latch is not None:  # an exception may have skipped the future's done-callback
        latch.set()


def _fail(future: FiberFuture[Any], exc: BaseException) -> None:
    if not future.done() and (future.running() or future.set_running_or_notify_cancel()):
        future.set_exception(exc)


class _Pool:
    """The state of an executor, without a reference to the executor, so that this can be collected.

    Any thread may use the pool, under `lock`. Nothing parks and no thread waits for another one
    while the lock is held: a finalizer may call submit() there, on this thread or on the other one.
    An exception of a trace function or a signal handler may interrupt any step between two lines,
    so the next step must be able to continue from there. `over` is set when the pool was shut down
    and its last fiber has ended.
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
        self.lock = threading.RLock()  # a finalizer may call submit() while this thread holds it
        self.running: set[Fiber[None]] = set()
        self.backlog: deque[tuple[Fiber[None], FiberFuture[Any]]] = deque()
        self.is_shut_down = False
        self.over = Event()

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
        """Call the initializer: each fiber does so first, as a worker of a thread pool does."""
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
        fiber.add_done_callback(_engine._insistent(partial(self.ended, future)))
        thread = None
        if self.scheduler is None:
            serve = _engine._insistent(self.serve)
            thread = native_thread(serve, name=self.name)
        try:
            _engine._holding(self.lock, self.enqueue, fiber, future, thread)
            if thread is not None and self.thread is thread:
                _pools.add(self)
                thread.start()  # without the lock
        except BaseException as exc:
            if thread is not None and self.thread is thread and thread.ident is None:
                self.start_failed(exc)
            raise

    def enqueue(
        self, fiber: Fiber[None], future: FiberFuture[Any], thread: threading.Thread | None
    ) -> None:
        """Start the fiber or let it wait for its turn; the caller holds the lock.

        ``thread`` becomes the pool's thread if the pool has neither a scheduler nor a thread.
        """
        self.check_open()
        if self.scheduler is not None and not self.is_full():
            self.begin(self.scheduler, fiber)
            return
        if self.scheduler is None and self.thread is None:
            self.thread = thread
        self.backlog.append((fiber, future))

    def is_full(self) -> bool:
        return self.limit is not None and len(self.running) >= self.limit

    def begin(self, scheduler: Scheduler, fiber: Fiber[None]) -> None:
        """Start the fiber; the caller holds the lock."""
        try:
            self.running.add(fiber)
            scheduler._start_soon(fiber)
        except BaseException:
            if _engine._scheduler_of(fiber) is None:
                self.running.discard(fiber)
            raise

    def begin_next(self, scheduler: Scheduler) -> bool:
        """Start a waiting call, with the lock held; False if none waits or no place is free."""
        if not self.backlog or self.is_full():
            return False
        fiber, _ = self.backlog[0]
        if _engine._scheduler_of(fiber) is None:  # else an interrupted begin_next() has started it
            self.begin(scheduler, fiber)
        self.backlog.popleft()
        return True

    def ended(self, future: FiberFuture[Any], fiber: Fiber[None]) -> None:
        """The fiber's done-callback, on the scheduler's thread; repeated if interrupted."""
        _complete(future, fiber)
        self.running.discard(fiber)
        self.begin_all()
        self.look_for_end()

    def begin_all(self) -> None:
        """Start waiting calls, at once when a place is free: a run without fibers would be over."""
        assert self.scheduler is not None
        try:
            while _engine._holding(self.lock, self.begin_next, self.scheduler):
                pass
        except FiberError as exc:  # the run has ended
            self.fail_all(exc)

    def fail_all(self, exc: BaseException) -> None:
        """Fail the waiting calls: none of them will run."""
        while self.backlog:
            _fail(self.backlog[0][1], exc)
            self.backlog.popleft()

    def look_for_end(self) -> None:
        if self.is_shut_down and not self.running and not self.backlog:
            self.over.set()

    def shut_down(self, cancel_futures: bool = False) -> None:
        for _, future in _engine._holding(self.lock, self.close, cancel_futures):
            future.cancel()
        self.look_for_end()

    def close(self, drops: bool) -> list[tuple[Fiber[None], FiberFuture[Any]]]:
        """Take no more calls; the caller holds the lock. Returns the waiting calls if ``drops``."""
        self.is_shut_down = True
        dropped = list(self.backlog) if drops else []
        if drops:
            self.backlog.clear()
        return dropped

    def start_failed(self, exc: BaseException) -> None:
        """Fail the waiting calls, as the thread could not be started; the next submit() retries."""
        self.thread = None
        self.fail_all(exc)
        self.look_for_end()

    def serve(self) -> None:
        """The main function of the pool's thread; called again if an exception interrupts it."""
        if self.thread is not threading.current_thread():
            return  # submit() was interrupted, and has given this thread up
        try:
            scheduler = Scheduler()
        except BaseException as exc:
            self.start_failed(exc)
            raise
        try:
            self.scheduler = scheduler
            self.begin_all()
            self.look_for_end()
            scheduler.run(self.over.wait)
        finally:
            _engine._holding(self.lock, self.leave)
            scheduler.close()

    def leave(self) -> None:
        """Forget the scheduler; the caller holds the lock.

        A call that is submitted now is started by serve(), when that is called again.
        """
        self.scheduler = None


_numbers = itertools.count()

#: Pools that have started a separate thread.
_pools: weakref.WeakSet[_Pool] = weakref.WeakSet()
_interpreter_ends = False


def _at_exit() -> None:
    """Shut all pools down before the interpreter waits for threads: submitted calls still run."""
    global _interpreter_ends
    _interpreter_ends = True
    for pool in list(_pools):
        pool.shut_down()


# concurrent.futures registers the shutdown of its threads in the same way.
threading._register_atexit(_at_exit)  # type: ignore[attr-defined]


class FiberExecutor(Executor):
    """An Executor that runs each call in a separate fiber.

    The fibers of an executor that is made inside of a run belong to that run. An executor that is
    made elsewhere starts one thread with a scheduler at the first ``submit()``; the fibers run
    there, and ``shutdown()`` ends the thread. At most ``max_workers`` calls run at a time (None:
    any number), the others wait for their turn. Any thread may submit. A function that blocks its
    thread blocks the other calls as well: call such functions by ``to_thread()``.

    The arguments are ThreadPoolExecutor's. ``thread_name_prefix`` names the thread, and with a
    number the fibers. ``initializer(*initargs)`` runs in each fiber before its call; when it fails,
    the calls fail with BrokenExecutor.

    In a fiber, use the futures' own ``result()`` or ``await_future()``: both park only the fiber,
    while ``concurrent.futures.wait()`` and ``as_completed()`` block the whole thread.
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
        self._end_pool()  # of an earlier call of __init__
        self._pool = _Pool(max_workers, scheduler, name, initializer)

    def __del__(self) -> None:
        # A weakref.finalize() would not do: its registry would keep the pool alive, and if an
        # object of the pool (the initializer, the run's on_unhandled) refers to the executor, both
        # would live for ever.
        self._end_pool()

    def _end_pool(self) -> None:
        """Shut the pool down: submitted calls still run, then its thread ends."""
        pool = getattr(self, "_pool", None)
        if pool is not None:
            pool.shut_down()

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> FiberFuture[R]:
        """Run ``fn(*args, **kwargs)`` in a fiber, with a copy of the caller's contextvars.

        Raises RuntimeError after ``shutdown()``, BrokenExecutor when the initializer has failed,
        and FiberError when the executor's run is over. If the fiber is cancelled, the future's
        exception is FiberCancelled.
        """
        _engine._check_function("submit()", fn)
        pool = self._pool
        pool.check_open()
        future: FiberFuture[R] = FiberFuture()
        name = f"{pool.name}_{next(pool.numbers)}"
        pool.submit(Fiber(_work, (pool, future, fn, args, kwargs), name=name), future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; with ``wait``, return when the last one has ended.

        ``cancel_futures`` cancels the calls that have not begun. In a fiber the wait parks.
        """
        pool = self._pool
        pool.shut_down(cancel_futures)
        if wait:
            pool.over.wait()
            if pool.thread is not None and pool.thread is not threading.current_thread():
                pool.thread.join()
