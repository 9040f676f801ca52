"""``new_event_loop()``: asyncio's loop in a fiber, beside other fibers.

The loop's selector does not block the thread. Instead the fiber parks until the selector's own
descriptor is readable: that of epoll or kqueue is, when something that the selector watches is::

    the run's poller ── watches ──> the selector's descriptor ── watches ──> sockets, pipes ...
                                    and what other fibers wait for

Everything else is asyncio's own loop.
"""

from __future__ import annotations

import asyncio
import contextvars
import selectors
import signal
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVarTuple

from pyfiber._engine import (
    Cancelled,
    CancelScope,
    _on_sigint,
    _outside,
    _running_scheduler,
    _wait_any,
    check_cancelled,
    now,
    shield,
    wait_readable,
    yield_now,
)
from pyfiber._native import get_ident
from pyfiber.aio._asyncio_state import keep_asyncio_state

Ts = TypeVarTuple("Ts")

Events = list[tuple[selectors.SelectorKey, int]]
Look = Callable[[float | None], Events]


class ParkingSelector(selectors.DefaultSelector):
    """A selector whose ``select()`` parks in a fiber of a run, and blocks the thread elsewhere."""

    #: While a fiber sleeps in select(): the scope to cancel to wake the fiber.
    sleep: CancelScope | None = None
    #: The thread of that fiber.
    thread = 0
    #: The loop has been given something to do, so it must not sleep.
    called = False
    #: The loop's fiber is cancelled and the loop winds down, so its waits must not fail any more.
    winding_down = False

    def __init__(self, on_cancelled: Callable[[Cancelled], None]):
        super().__init__()
        self._on_cancelled = on_cancelled
        self._look: Look = partial(_outside(super().select.__func__), self)  # type: ignore[attr-defined]

    def select(self, timeout: float | None = None) -> Events:
        if _running_scheduler() is None:
            return self._look(timeout)
        self.called = False
        try:
            self._yield()
            events = self._look(0)
            if events or self.called or (timeout is not None and timeout <= 0):
                return events
            self._park(timeout)
        except Cancelled as exc:
            self._on_cancelled(exc)
        return self._look(0)

    def _yield(self) -> None:
        """Let other fibers run after each batch of callbacks. Without any, that costs little."""
        if self.winding_down:
            with shield():
                yield_now()
        else:
            yield_now()

    def _park(self, timeout: float | None) -> None:
        try:
            self.thread = get_ident()
            with CancelScope(shield=self.winding_down) as self.sleep:
                self._wait(timeout)
        except TimeoutError:
            pass
        finally:
            self.sleep = None

    def _wait(self, timeout: float | None) -> None:
        wait_readable(self, timeout)

    def wake(self) -> None:
        """Wake select(): somebody, perhaps another fiber, has given the loop something to do."""
        self.called = True
        sleep, self.sleep = self.sleep, None
        if sleep is not None:
            sleep.cancel("the loop has work")


class StandingSelector(ParkingSelector):
    """A selector without a descriptor: the fiber waits for each descriptor that is watched."""

    def _wait(self, timeout: float | None) -> None:
        keys = self.get_map().values()
        _wait_any(
            [key.fd for key in keys if key.events & selectors.EVENT_READ],
            [key.fd for key in keys if key.events & selectors.EVENT_WRITE],
            timeout,
        )

    # Another fiber may change what the loop's fiber waits for.

    def register(self, *args: Any, **kwargs: Any) -> selectors.SelectorKey:
        self.wake()
        return super().register(*args, **kwargs)

    def modify(self, *args: Any, **kwargs: Any) -> selectors.SelectorKey:
        self.wake()
        return super().modify(*args, **kwargs)


#: A selector of Windows has no descriptor.
Selector = ParkingSelector if hasattr(selectors.DefaultSelector, "fileno") else StandingSelector


class FiberEventLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, run by a fiber."""

    _main: asyncio.Future[Any] | None = None
    #: The wakeup descriptor and SIGINT's handler of the run around the loop, while the loop has
    #: handlers for signals.
    _wakeup_outside: int | None = None
    _sigint_outside: Any = None

    def __init__(self) -> None:
        self._parking = Selector(self._fiber_is_cancelled)
        super().__init__(self._parking)

    #: The scheduler's clock, which may be virtual; the monotonic clock elsewhere.
    time = staticmethod(now)

    # running --------------------------------------------------------------------------------------

    def run_forever(self) -> None:
        if _running_scheduler() is None:
            return super().run_forever()
        self._parking.winding_down = self._parking.winding_down and _is_cancelled()
        keep_asyncio_state(super().run_forever)
        if self._parking.winding_down and self._main is None:
            check_cancelled()
        return None

    def run_until_complete(self, future: Any) -> Any:
        self._check_closed()  # type: ignore[attr-defined]
        self._check_running()  # type: ignore[attr-defined]
        main: Any = asyncio.ensure_future(future, loop=self)
        if main is not future:
            main._log_destroy_pending = False
        self._main = main
        if self._parking.winding_down and isinstance(future, asyncio.Task) and _is_cancelled():
            future.cancel()  # of Runner.run(); what the Runner cleans up with is no task
        try:
            return super().run_until_complete(main)
        except asyncio.CancelledError:
            if self._parking.winding_down:
                check_cancelled()
            raise
        except BaseException:
            if main is not future and main.done() and not main.cancelled():
                main.exception()  # counts as retrieved: the caller has no access to it
            raise
        finally:
            self._main = None

    def _fiber_is_cancelled(self, exc: Cancelled) -> None:
        """Cancel the main task, as Ctrl-C does; the loop goes on until that task has ended."""
        self._parking.winding_down = True
        if self._main is None:
            self.stop()
        else:
            self._main.cancel(exc.reason)

    # calls of other fibers ------------------------------------------------------------------------

    def _call_soon(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
    ) -> asyncio.Handle:
        """Wake the loop; both call_soon() and call_soon_threadsafe() call this method.

        A method around call_soon() itself would make each step of a task take a fifth more time.
        """
        handle: asyncio.Handle = super()._call_soon(callback, args, context)  # type: ignore[misc]
        self._parking.called = True
        if self._parking.sleep is not None and get_ident() == self._parking.thread:
            self._parking.wake()  # another thread writes to the loop's own pipe
        trace: Any = handle._source_traceback  # type: ignore[attr-defined]
        if trace:  # in debug mode: the stack at which the handle was made, without this method
            del trace[-1]
        return handle

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        handle = super().call_at(when, callback, *args, context=context)
        self._parking.wake()
        trace: Any = handle._source_traceback  # type: ignore[attr-defined]
        if trace:  # in debug mode: the stack at which the handle was made, without this method
            del trace[-1]
        return handle

    def stop(self) -> None:
        super().stop()
        self._parking.wake()

    # signals --------------------------------------------------------------------------------------

    def add_signal_handler(self, sig: int, callback: Callable[[*Ts], object], *args: *Ts) -> None:
        """Add a handler, and keep the run's wakeup descriptor, which asyncio replaces."""
        self._keep_outside(sig)
        try:
            super().add_signal_handler(sig, callback, *args)
        finally:
            self._give_back()

    def remove_signal_handler(self, sig: int) -> bool:
        removed = super().remove_signal_handler(sig)
        if removed and sig == signal.SIGINT and self._sigint_outside is _on_sigint:
            signal.signal(sig, self._sigint_outside)
            self._sigint_outside = None
        self._give_back()
        return removed

    def _keep_outside(self, sig: int) -> None:
        if not self._has_handlers():
            try:
                self._wakeup_outside = signal.set_wakeup_fd(-1)
            except ValueError:  # not the main thread: asyncio raises the error
                return
        if sig == signal.SIGINT and self._sigint_outside is None:
            self._sigint_outside = signal.getsignal(sig)

    def _give_back(self) -> None:
        outside = self._wakeup_outside
        if outside is not None and not self._has_handlers():
            self._wakeup_outside = None
            signal.set_wakeup_fd(outside, warn_on_full_buffer=False)

    def _has_handlers(self) -> bool:
        return bool(getattr(self, "_signal_handlers", None))  # on Windows there are none


def _is_cancelled() -> bool:
    try:
        check_cancelled()
    except Cancelled:
        return True
    return False


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Make an asyncio loop for a fiber: when the loop waits, the fiber parks and others run.

    In a fiber of a run, use it with ``asyncio.Runner(loop_factory=new_event_loop)`` or, from Python
    3.12 on, ``asyncio.run(main(), loop_factory=new_event_loop)``. The loop is asyncio's own
    SelectorEventLoop, with all its features. Several loops may run on one thread, each in a fiber.
    Outside of a run such a loop blocks its thread as any loop does.

    The loop is "the running loop" in its own fiber only. Other fibers of the thread may call its
    methods (``call_soon()``, ``create_task()``, ``stop()``), and set results of its futures. A
    callback or task that parks, in ``pyfiber.sleep()`` or for a lock, say, holds up its own loop
    only.

    Cancelling the fiber cancels the task that the loop runs for, as Ctrl-C does; when that task has
    ended, Cancelled is raised.
    """
    return FiberEventLoop()
