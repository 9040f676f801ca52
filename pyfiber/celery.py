"""A pool for Celery's worker that runs tasks in fibers.

    CELERY_CUSTOM_WORKER_POOL=pyfiber.celery:TaskPool celery -A proj worker --pool custom -c 1000

Tasks are the ordinary blocking functions they were: ``pyfiber.patch()`` is called when the worker
loads this module. At most ``--concurrency`` tasks are under way at a time; the worker's own loop,
its connection to the broker and its remote control run in fibers of the same thread.

A task is interrupted where it waits: ``revoke(terminate=True)`` and hard time limits cancel its
fiber, and the task, once it waits, ends there. A task that never waits goes on to its end, and its
result is dropped. A warm shutdown waits for the tasks under way; a cold one cancels them, and tasks
that are acknowledged late are delivered again. A signal to shut down is handled in a fiber as well,
because Celery's handlers wait: for the broker, for a soft shutdown's time-out, for the pool.

Needs the extra ``celery``: ``pip install "pyfiber-engine[celery]"``.
"""

# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any

from pyfiber import (
    Cancelled,
    CancelScope,
    Fiber,
    _patch,
    current,
    move_on_after,
    park,
    run,
    sleep,
    spawn,
    yield_now,
)
from pyfiber._engine import _fiber_ident, _running_scheduler

try:
    from billiard.einfo import ExceptionInfo
    from celery import _state, platforms
    from celery.concurrency import base
    from celery.exceptions import SoftTimeLimitExceeded
    from celery.utils import threads
    from celery.worker.worker import WorkController
    from kombu.asynchronous import timer as kombu_timer
except ImportError as exc:
    raise ImportError(
        'pyfiber.celery needs Celery: pip install "pyfiber-engine[celery]"', name=exc.name
    ) from exc

if TYPE_CHECKING:
    from pyfiber import Scheduler

__all__ = ["TaskPool"]


# The worker's main program is a fiber -------------------------------------------------------------


def _start_in_a_run(start: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(start)
    def started(worker: Any) -> Any:
        chosen = worker.pool_cls
        if not (isinstance(chosen, type) and issubclass(chosen, TaskPool)):
            return start(worker)
        if _running_scheduler() is not None:
            return start(worker)
        return run(_start_here, start, worker)

    started.__pyfiber__ = True  # type: ignore[attr-defined]
    return started


def _start_here(start: Callable[[Any], Any], worker: Any) -> Any:
    """Start the worker; `_worker_run` says meanwhile where handlers of signals run."""
    global _worker_run
    _worker_run = _running_scheduler()
    try:
        return start(worker)
    finally:
        _worker_run = None


#: The run of the worker's main program.
_worker_run: Scheduler | None = None


def _in_a_fiber(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Have a handler of a signal run in a fiber, where it may wait, up to the end of all tasks."""

    def handle(number: int) -> None:
        try:
            handler(number, None)
        except SystemExit as exc:  # the last resort, after two other signals to shut down
            os._exit(exc.code if isinstance(exc.code, int) else 1)

    def handle_soon(number: int, frame: Any) -> None:
        if _worker_run is None:
            handler(number, frame)
        else:
            _worker_run.call_soon_threadsafe(spawn, handle, number)

    return handle_soon


def _set_handler(signals: Any, name: str, handler: Any) -> None:
    """``celery.platforms.signals[name] = handler``, but the worker's handlers run in fibers."""
    if getattr(handler, "__name__", "").startswith("worker_"):
        handler = _in_a_fiber(handler)
    _their_set_handler(signals, name, handler)


_their_set_handler = platforms.Signals.__setitem__


def _prepare() -> None:
    """Patch what a worker needs before it starts; Celery has no hook around its main program."""
    _patch.patch()
    if not hasattr(WorkController.start, "__pyfiber__"):
        WorkController.start = _start_in_a_run(WorkController.start)
        platforms.Signals.__setitem__ = _set_handler
    _of_fibers(_state._task_stack)
    threads.get_ident = _fiber_ident


def _of_fibers(stack: Any) -> None:
    """Have each fiber see its part of a stack of Celery's, instead of each thread or greenlet."""
    if hasattr(type(stack), "__ident_func__"):  # otherwise it is a threading.local
        stack.__ident_func__ = _fiber_ident


# Tasks --------------------------------------------------------------------------------------------


class Job:
    """A task that was handed to the pool."""

    def __init__(self, number: int, perform: Callable[[Job], None]) -> None:
        self.number = number
        self.perform = perform
        self.soft_limit: float | None = None
        self.scope = CancelScope()
        self.terminated = False

    def terminate(self, signal: Any = None) -> None:
        """Cancel the task, and drop what it returns."""
        self.terminated = True
        self.scope.cancel(f"the task was terminated, signal {signal}")


#: The jobs that run, by their fibers.
_running: dict[Fiber[Any], Job] = {}


def _limited(run_task: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a task's function: SoftTimeLimitExceeded ends it when its time is over."""

    @functools.wraps(run_task)
    def limited(*args: Any, **kwargs: Any) -> Any:
        job = _running.get(current())
        if job is None or job.soft_limit is None:
            return run_task(*args, **kwargs)
        with move_on_after(job.soft_limit):
            return run_task(*args, **kwargs)
        raise SoftTimeLimitExceeded(job.soft_limit)

    limited.__pyfiber__ = True  # type: ignore[attr-defined]
    return limited


class TaskPool(base.BasePool):  # type: ignore[misc]
    """Celery's pool; a fiber performs one task at a time."""

    limit: int
    signal_safe = False
    #: Has Celery's remote control use a separate connection and loop.
    is_green = True
    task_join_will_block = False
    body_can_be_buffer = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._scheduler: Scheduler | None = None
        self._waiting: deque[Job] = deque()
        self._under_way: dict[int, Job] = {}
        self._idle: list[_Worker] = []
        self._numbers = iter(range(1, 2**62))
        self._ended = threading.Event()
        self._wakes: tuple[int, int] | None = None
        self._wake_sent = False

    # Called by Celery

    def on_start(self) -> None:
        """Prepare the tasks. Celery calls this in the fiber of the worker's main program."""
        self._scheduler = _running_scheduler()
        if self._scheduler is None:
            raise RuntimeError("start the worker by its start(): the pool needs a run of pyfiber")
        for task in self.app.tasks.values() if self.app else ():
            _of_fibers(task.request_stack)
            if not hasattr(task.run, "__pyfiber__"):
                task.run = _limited(task.run)

    def register_with_event_loop(self, loop: Any) -> None:
        """Give the loop, which sleeps on descriptors, one that wakes it when a task has ended.

        Celery calls this again after each loss of the connection to the broker.
        """
        if self._wakes is None:
            self._wakes = os.pipe()
            os.set_blocking(self._wakes[0], False)
        reader = self._wakes[0]
        loop.add_reader(reader, self._heard, reader)

    def on_apply(
        self,
        target: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        callback: Callable[[Any], Any] | None = None,
        accept_callback: Callable[..., Any] | None = None,
        timeout: float | None = None,
        soft_timeout: float | None = None,
        timeout_callback: Callable[[bool, float], Any] | None = None,
        error_callback: Callable[[Any], Any] | None = None,
        **_: Any,
    ) -> Job:
        """Run the task as soon as there are fewer than ``limit`` others."""
        limits = self.options
        perform = functools.partial(
            _perform, target, args, kwargs, callback, accept_callback,
            timeout or limits.get("timeout"), timeout_callback, error_callback,
        )  # fmt: skip
        job = Job(next(self._numbers), perform)
        job.soft_limit = soft_timeout or limits.get("soft_timeout")
        if _running_scheduler() is self._scheduler:
            self._enqueue(job)
        else:  # called by Celery's timer, where that is a thread
            assert self._scheduler is not None
            self._scheduler.call_soon_threadsafe(self._enqueue, job)
        return job

    def on_stop(self) -> None:
        """Warm shutdown: wait for the end of all tasks."""
        while self._under_way or self._waiting:
            self._ended.clear()
            self._ended.wait()
        self._forget_wakes()

    def on_terminate(self) -> None:
        """Cold shutdown: cancel all tasks."""
        self._waiting.clear()
        for job in list(self._under_way.values()):
            job.terminate("cold shutdown")

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        """Cancel the job with this number."""
        if (job := self._under_way.get(pid)) is not None:
            job.terminate(signal)

    def grow(self, n: int = 1) -> None:
        """Allow more tasks at once."""
        self.limit += n
        self._begin_some()

    def shrink(self, n: int = 1) -> None:
        """Allow fewer tasks at once, as soon as enough have ended."""
        self.limit = max(self.limit - n, 1)

    def spawn_n(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Start a fiber, for the loop of the remote control."""
        spawn(fn, *args, **kwargs)

    def _get_info(self) -> dict[str, Any]:
        return {
            **super()._get_info(),
            "running": len(self._under_way),
            "waiting": len(self._waiting),
        }

    # Called by the pool and its workers

    def _enqueue(self, job: Job) -> None:
        self._waiting.append(job)
        self._begin_some()

    def _begin_some(self) -> None:
        while self._waiting and len(self._under_way) < self.limit:
            job = self._waiting.popleft()
            if not job.terminated:
                self._under_way[job.number] = job
                (self._idle.pop() if self._idle else _Worker(self)).begin(job)

    def _rests(self, worker: _Worker) -> None:
        self._idle.append(worker)
        self._begin_some()

    def _finished(self, job: Job) -> None:
        del self._under_way[job.number]
        self._ended.set()
        if self._wakes is not None and not self._wake_sent:
            self._wake_sent = True
            os.write(self._wakes[1], b"e")

    def _heard(self, reader: int) -> None:
        self._wake_sent = False
        with contextlib.suppress(BlockingIOError):
            os.read(reader, 64)

    def _forget_wakes(self) -> None:
        if self._wakes is not None:
            reader, writer = self._wakes
            self._wakes = None
            os.close(reader)
            os.close(writer)


class _Worker:
    """A fiber that performs one job after the other, as a thread of a pool does.

    So what libraries keep in a threading.local serves the next job as well, for example Celery's
    own result backend with its connection.
    """

    def __init__(self, pool: TaskPool) -> None:
        self._pool = pool
        self._job: Job | None = None
        self._fiber = Fiber(self._work, daemon=True).start()

    def begin(self, job: Job) -> None:
        self._job = job
        self._fiber.unpark()

    def _work(self) -> None:
        while True:
            while (job := self._job) is None:
                park()
            self._job = None
            _running[self._fiber] = job
            try:
                with job.scope:
                    job.perform(job)
            except (Exception, SystemExit):
                base.logger.critical("a task's outcome could not be reported", exc_info=True)
            finally:
                del _running[self._fiber]
                self._pool._finished(job)
            self._pool._rests(self)
            yield_now()


def _perform(
    target: Callable[..., Any],
    args: Any,
    kwargs: Any,
    callback: Callable[[Any], Any] | None,
    accept_callback: Callable[..., Any] | None,
    timeout: float | None,
    timeout_callback: Callable[[bool, float], Any] | None,
    error_callback: Callable[[Any], Any] | None,
    job: Job,
) -> None:
    """Perform a job in a worker's fiber."""

    def answer(result: Any) -> None:
        lost = isinstance(result, ExceptionInfo)  # by SystemExit, say
        report = error_callback if lost else callback
        if not job.terminated and report is not None:
            report(result)

    with move_on_after(timeout) as limit:
        base.apply_target(
            target, args, kwargs, answer, accept_callback, job.number, propagate=(Cancelled,)
        )
    if limit.cancelled() and timeout_callback is not None:
        timeout_callback(False, timeout)  # type: ignore[arg-type]


class Timer(kombu_timer.Timer):  # type: ignore[misc]
    """The timer for brokers for which Celery has no event loop: each entry waits in a fiber."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fibers: set[Fiber[Any]] = set()

    def _enter(self, eta: float, priority: int, entry: Any, **kwargs: Any) -> Any:
        entry.eta = eta
        fiber = spawn(self._wait, eta, entry)
        self._fibers.add(fiber)
        fiber.add_done_callback(self._fibers.discard)
        return entry

    def _wait(self, eta: float, entry: Any) -> None:
        sleep(max(eta - monotonic(), 0))
        if not entry.canceled:
            self.apply_entry(entry)

    def clear(self) -> None:
        """Cancel all entries."""
        for fiber in list(self._fibers):
            fiber.cancel()

    def stop(self) -> None:
        """Cancel all entries."""
        self.clear()

    def ensure_started(self) -> None:
        """Do nothing: there is no thread to start."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    @property
    def queue(self) -> set[Fiber[Any]]:
        """The fibers of the entries that wait."""
        return self._fibers


TaskPool.Timer = Timer

_prepare()
