"""The run of a block of virtual threads, and the context manager ``virtual_threads()``."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyfiber import _engine, _hooks
from pyfiber._engine import Fiber, FiberError, Scheduler
from pyfiber._native import is_native
from pyfiber._patch import patch
from pyfiber._patch._record import Record
from pyfiber._virtual import async_exc, events, forks, lean, pipes, shutdown, signals, table
from pyfiber._virtual.starting import Session

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

#: Seconds that a thread may compute before others get a turn.
TIME_SLICE = 0.005


class MainRun:
    """A run in which the thread's own stack takes part.

    Another fiber becomes the hub. The run's main function switches straight back to the stack that
    has begun the run, which goes on as a raw fiber of the run, so its waits park it. When it
    switches to the main function again, that returns, and the run ends.
    """

    def __init__(
        self, on_unhandled: Callable[..., object] | None, time_slice: float | None
    ) -> None:
        options: dict[str, Any] = {} if on_unhandled is None else {"on_unhandled": on_unhandled}
        self.scheduler = Scheduler(time_slice=time_slice, **options)
        self._body = _engine.current()
        self._hub = Fiber(self._run, name="the loop of virtual threads")
        self._main: Fiber[None] | None = None

    def begin(self) -> None:
        """Begin the run; raises what the run raises if it ends at once."""
        self._hub.switch()

    def _run(self) -> None:
        try:
            self.scheduler.run(self._be_main)
        finally:
            self.scheduler.close()

    def _be_main(self) -> None:
        self._main = _engine.current()
        self._main.name = "main program"
        self._body.switch()

    def end(self) -> None:
        """Wait until the run has ended; raises what it raises."""
        assert self._main is not None
        self._main.switch()


def _refuse() -> None:
    if _engine._running_scheduler() is not None:
        raise FiberError("virtual_threads() inside of a run: use it around the run, not in it")
    if threading.current_thread() is not threading.main_thread():
        raise FiberError("virtual_threads() works on the main thread only")
    if _engine._name_here() is not None:
        raise FiberError("virtual_threads() in a raw fiber: use it outside of fibers")
    left = [thread for thread in threading.enumerate() if _is_the_programs(thread)]
    if left:
        names = ", ".join(thread.name for thread in left)
        raise FiberError(
            f"virtual_threads() after the program has started threads ({names}): begin the block"
            " before them, or make them with pyfiber.native_thread()"
        )


def _stand_in_for_greenlet() -> None:
    """Give each thread separate greenlets, by pyfiber.greenlet, if greenlet is installed.

    The package greenlet has one set of greenlets for all fibers of a thread. When two fibers switch
    greenlets, greenlet copies the stack of one fiber over that of the other.
    """
    there = sys.modules.get("greenlet")
    if there is None and importlib.util.find_spec("greenlet") is None:
        return
    _engine._load("pyfiber.greenlet")
    from pyfiber import greenlet

    if there is not None and there is not greenlet:
        file = getattr(there, "__file__", None)
        raise FiberError(
            f"virtual_threads() after greenlet has been imported, from {file}: call"
            " pyfiber.greenlet.install() before whatever imports it, or run the program by"
            " python -m pyfiber run --virtual-threads"
        )
    greenlet.install()


def _is_the_programs(thread: threading.Thread) -> bool:
    return not (
        thread is threading.main_thread()
        or is_native(thread)
        or isinstance(thread, threading._DummyThread)
    )


def _end_signals() -> None:
    left = signals.end()
    if left is not None:
        raise left


def _patch_more() -> Record:
    """Let calls park that patch() leaves alone, and very many threads cost little."""
    record = Record()
    pipes.apply(record)
    events.apply(record)
    lean.apply(record)
    async_exc.apply(record)
    record.bind_names()
    return record


class VirtualThreads:
    """A block in which threads are fibers: see ``virtual_threads()``."""

    def __init__(
        self,
        time_slice: float | None = TIME_SLICE,
        on_unhandled: Callable[[_hooks.Task, BaseException], object] | None = None,
        at_end: Callable[[], object] | None = None,
    ) -> None:
        self._time_slice = time_slice
        self._on_unhandled = on_unhandled
        #: Called when only daemon threads are left.
        self._at_end = at_end
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Self:
        _refuse()
        _stand_in_for_greenlet()
        self._pid = os.getpid()
        with contextlib.ExitStack() as undo:
            undo.callback(patch().undo)
            body = _engine.current()
            signals.begin(body)
            undo.callback(_end_signals)
            run = MainRun(self._on_unhandled, self._time_slice)
            run.begin()
            undo.callback(run.end)
            undo.callback(signals.leave)
            self._session = Session(run.scheduler, body)
            self._session.open()
            undo.callback(self._session.close)
            undo.callback(shutdown.forget_threads)
            undo.callback(shutdown.allow_thread_pools)
            self._main = shutdown.MainThread(self._session)
            undo.callback(self._main.restore)
            undo.callback(table.install((*table.THREADS, *table.MAIN)).undo)
            undo.callback(_patch_more().undo)
            self._undo = undo.pop_all()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if os.getpid() != self._pid:
            forks.leave(self._undo)
            return
        with self._undo:
            try:
                if not self._main.has_ended():
                    shutdown.call_exits(self._session)
                shutdown.end_thread_pools()
                self._main.ends()
                shutdown.wait_for_threads(self._session)
                if self._at_end is not None:
                    self._at_end()
            finally:
                shutdown.cut_off_threads(self._session)


def virtual_threads(*, time_slice: float | None = TIME_SLICE) -> VirtualThreads:
    """Make every thread that the program starts in the ``with`` block a fiber.

    The block and its threads run inside of one run of pyfiber on the main thread. Locks, queues,
    sockets and ``time.sleep()`` park, as ``patch()`` is in force. Thread pools, timers and servers
    of the standard library start fibers, too; ``native_thread()`` makes a real thread. At the end
    of the block threads that are no daemons are waited for, and daemons are ended where they wait.

    ``time_slice``: after so many seconds of computing a thread lets others run; None: never.

    FiberError inside of a run, in a raw fiber, on another thread than the main one, inside of
    another such block, after threads have been started, and without the GIL.
    """
    return VirtualThreads(time_slice)


virtual_threads.__module__ = "pyfiber"
