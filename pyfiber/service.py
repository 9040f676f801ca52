"""Parts of a service besides its requests: background fibers, and functions for start and end.

::

    from pyfiber import service, sleep
    from pyfiber.service import background

    @service.on_start
    def begin():
        pool.open()
        service.on_stop(pool.close)
        background(refresh, every=60)

``pyfiber.gunicorn.Worker`` and ``python -m pyfiber.wsgi`` call these functions, in the run that
serves: those of the start before the first connection is accepted, those of the end after the last
request. A program that makes its own server marks the service with a block::

    with service.running(), wsgi.serve(app, "127.0.0.1", 8000) as server:
        server.wait()
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pyfiber._engine import (
    Event,
    Fiber,
    FiberError,
    _check_function,
    _running_scheduler,
    current,
    current_scheduler,
    now,
    shield,
    sleep,
)

if TYPE_CHECKING:
    from pyfiber._engine import Scheduler

__all__ = ["background", "on_start", "on_stop", "running", "stop", "until_stop"]

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[[], object])

_starts: list[Callable[[], object]] = []
_stops: list[Callable[[], object]] = []


class _Service:
    """A running service: its background fibers, and the functions for its end so far."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.fibers: dict[Fiber[Any], None] = {}
        self.stops = ExitStack()
        self.stopping = Event()

    def own(self, fiber: Fiber[Any]) -> None:
        self.fibers[fiber] = None
        fiber.add_done_callback(lambda fiber: self.fibers.pop(fiber, None))

    def __enter__(self) -> None:
        self.stops.callback(_running.remove, self)
        self.stops.callback(self._end_fibers)  # after the functions below, which may start some
        for stop in _stops:
            self.stops.callback(stop)
        _running.append(self)

    def __exit__(self, *failure: Any) -> None:
        self.stopping.set()
        with shield():
            self._end_fibers()
            self.stops.__exit__(*failure)

    def _end_fibers(self) -> None:
        while fibers := list(self.fibers):
            for fiber in fibers:
                fiber.cancel("the service has ended")
            for fiber in fibers:
                fiber.join()


_running: list[_Service] = []


def _here() -> _Service | None:
    """The service of the current run, if there is one."""
    scheduler = _running_scheduler()
    return next((each for each in _running if each.scheduler is scheduler), None)


def background(fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Fiber[R]:
    """Start ``fn(*args, **kwargs)`` in a fiber that nothing waits for.

    The fiber is cancelled, so that its ``finally`` blocks run: in a service (see
    ``pyfiber.service``) after the last request, in any other run when the main function and all
    fibers of ``spawn()`` have ended. A failure is logged, and ends nothing else. This is the same
    as ``Fiber(fn, args, kwargs, daemon=True).start()``, which takes a name as well, except that a
    service cancels the fiber before it calls the functions for its end.

    Raises TypeError for a generator function or an async one, FiberError outside of a run.
    """
    fiber = Fiber(_check_function("background()", fn), args, kwargs, daemon=True).start()
    service = _here()
    if service is not None:
        service.own(fiber)
    return fiber


def on_start(fn: F, /) -> F:
    """Call ``fn()`` when the service starts, before it accepts a connection; a decorator.

    The functions are called in the order of their registration, in the fiber that serves: they may
    wait, and start fibers. An exception ends the service before it has begun. A function that is
    registered while the service is running is for the next one.
    """
    _starts.append(_check_function("on_start()", fn))
    return fn


def on_stop(fn: F, /) -> F:
    """Call ``fn()`` when the service ends, after the last request; a decorator.

    Background fibers have ended by then. The function that was registered last is called first, and
    all are called, also when another one fails or the start has failed. A cancellation does not
    reach them. A function that is registered while the service is running, in a function of its
    start, say, is for this service only.
    """
    _check_function("on_stop()", fn)
    service = _here()
    if service is None:
        _stops.append(fn)
    else:
        service.stops.callback(fn)
    return fn


@contextmanager
def running() -> Iterator[None]:
    """Call the ``on_start()`` functions, run the block as a service, call the ``on_stop()`` ones.

    The service's background fibers are cancelled and joined when the block has ended. Raises
    FiberError outside of a run, and in a run that has a service already.
    """
    scheduler = current_scheduler()
    if _here() is not None:
        raise FiberError("there is a service in this run already: one service.running() is enough")
    with _Service(scheduler):
        for start in list(_starts):
            start()
        yield


def until_stop(seconds: float | None = None, /) -> bool:
    """Sleep for so many seconds (None: no limit); return True, at once, when the service stops.

    Use this in requests that take long, such as streams of events, which would otherwise hold up
    the end of the service until their time of grace is over. Outside of a service, but in a run,
    this sleeps and returns False.
    """
    service = _here()
    if service is not None:
        return service.stopping.wait(seconds)
    sleep(1e9 if seconds is None else seconds)
    return False


def stop() -> None:
    """Let ``until_stop()`` return True from here on.

    The worker of gunicorn and ``python -m pyfiber.wsgi`` call it when they stop accepting. Outside
    of a service nothing happens.
    """
    service = _here()
    if service is not None:
        service.stopping.set()


def end_others(reason: str, seconds: float, beat: Callable[[], object]) -> None:
    """Cancel all other fibers of the run, once each, and wait for them for so many seconds.

    For programs that are nothing but a service. ``beat()`` is called every second.
    """
    me = current()
    end = now() + seconds
    cancelled: set[Fiber[Any]] = set()
    while others := [fiber for fiber in current_scheduler().fibers() if fiber is not me]:
        for fiber in others:
            if fiber not in cancelled:
                cancelled.add(fiber)
                fiber.cancel(reason)
        left = end - now()
        if left <= 0:
            return
        others[0].join(min(left, 1.0))
        beat()
