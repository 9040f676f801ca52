"""What needs a late import: for test_late_imports.py, each in a process of its own.

Import hooks are code within every import. The one here tries to switch each time.
"""

from __future__ import annotations

import sys

import pyfiber
from pyfiber import Cancelled, Fiber, FiberError, TaskGroup, current, park, run, sleep, spawn

TYPE_CHECKING = False  # the fewer imports the better
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Leaver:
    """An import hook that leaves the fiber if it can."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.left: list[str] = []
        self.busy = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if self.busy:
            return
        self.busy = True
        try:
            Fiber(int).switch()
            self.left.append(name)
        except FiberError:
            self.refused.append(name)
        finally:
            self.busy = False


def play(name: str) -> None:
    """Print which imports the hook could not leave, and fail if there were others."""
    leaver = Leaver()
    sys.meta_path.insert(0, leaver)  # type: ignore[arg-type]
    try:
        check = USES[name]()
    finally:
        sys.meta_path.remove(leaver)  # type: ignore[arg-type]
    if check is not None:
        check()
    assert not leaver.left, leaver.left
    print("\n".join(leaver.refused))


def public_names() -> dict[str, Callable[[], Any]]:
    def asker(name: str) -> Callable[[], Any]:
        return lambda: getattr(pyfiber, name) and None

    return {name: asker(name) for name in (*pyfiber._HOMES, *pyfiber._MODULES)}


def error_of(function: Callable[..., object], *args: Any, **kwargs: Any) -> BaseException:
    """What it raises."""
    try:
        function(*args, **kwargs)
    except BaseException as exc:
        return exc
    raise AssertionError("it raised nothing")


def fails() -> None:
    raise ValueError("it failed")


def type_of_outcome() -> None:
    from pyfiber import _outcome

    assert _outcome.R in _outcome.Outcome.__parameters__


def greenlet_install() -> None:
    pyfiber._engine._load("pyfiber.greenlet")
    from pyfiber import greenlet

    greenlet.install(children=True)


def queue_empty() -> Callable[[], None]:
    exc = error_of(pyfiber.Queue().get, False)

    def check() -> None:
        import queue

        assert type(exc) is queue.Empty

    return check


def queue_full() -> Callable[[], None]:
    full: pyfiber.Queue[int] = pyfiber.Queue(1)
    full.put(1)
    exc = error_of(full.put, 2, False)

    def check() -> None:
        import queue

        assert type(exc) is queue.Full

    return check


def queue_shut_down() -> None:
    over: pyfiber.Queue[int] = pyfiber.Queue()
    over.shutdown()
    assert type(error_of(over.get)) is pyfiber.ShutDown


def queue_hooked() -> None:
    class Hooked(pyfiber.Queue[int]):
        def _put(self, item: int) -> None:
            raise ValueError(item)

    assert str(error_of(Hooked().put, 7)) == "7"


def fiber_cancelled() -> None:
    ended: Fiber[object] = Fiber(lambda: root.switch())
    root = current()
    ended.switch()
    error_of(ended.throw, Cancelled("the reason"))
    assert type(error_of(ended.result)) is pyfiber.FiberCancelled


def stack() -> None:
    root = current()
    fiber: Fiber[object] = Fiber(lambda: root.switch())
    fiber.switch()
    assert len(fiber.stack()) == 1


def failure_logged() -> None:
    run(spawn, fails)


def failure_raised() -> None:
    exc = error_of(run, spawn, fails, on_unhandled="raise")
    assert isinstance(exc, BaseExceptionGroup)


def group_failed() -> None:
    def main() -> None:
        with TaskGroup() as group:
            group.spawn(fails)

    assert 'catch with "except* ValueError:"' in str(error_of(run, main))


def deadlock() -> None:
    assert "park" in str(error_of(run, park))


def deaf() -> None:
    def catches() -> None:
        for _ in range(200):
            error_of(sleep, 60)

    def main() -> None:
        fiber = spawn(catches)
        pyfiber.yield_now()
        fiber.cancel()
        fiber.join()

    run(main)


def stalled() -> None:
    import _thread

    held = _thread.allocate_lock()
    held.acquire()

    def late(unpark: Callable[[], object]) -> None:
        held.acquire()
        unpark()

    def main() -> None:
        _thread.start_new_thread(late, (current().unpark,))
        park()

    pyfiber._engine._load("logging")
    from logging import Handler, getLogger

    class Releasing(Handler):
        def emit(self, record: object) -> None:
            held.release()

    getLogger("pyfiber").addHandler(Releasing())
    pyfiber._hooks.set_stall_limit(1e-6)
    run(main)


def worker_started() -> None:
    assert run(pyfiber._engine.ThreadLimiter(1).to_thread, int) == 0


def abandoned_call_logged() -> None:
    limiter = pyfiber._engine.ThreadLimiter(1, abandon_on_cancel=True)
    pyfiber._engine._load("threading")
    import threading

    entered, go = threading.Event(), threading.Event()

    def late() -> None:
        entered.set()
        go.wait()
        fails()

    def main() -> None:
        fiber = spawn(limiter.to_thread, late)
        while not entered.is_set():
            sleep(0.001)
        fiber.cancel()
        fiber.join()
        go.set()
        limiter.to_thread(int)

    run(main)


def future_cancelled() -> None:
    def main() -> None:
        with pyfiber.threads.FiberExecutor() as executor:
            future = executor.submit(sleep, 60)
            pyfiber.yield_now()
            for fiber in pyfiber.current_scheduler().fibers():
                if fiber is not current():
                    fiber.cancel()
            exc = error_of(future.result)
        assert type(exc) is pyfiber.FiberCancelled

    run(main)


def work_elsewhere() -> None:
    def main() -> object:
        work = pyfiber.compose.call(int).on_new_thread()
        return pyfiber.compose.perform(work)

    assert run(main) == 0


def dump_on_signal() -> None:
    before = sys.modules.pop("signal", None)
    pyfiber._engine._load("pyfiber._report")
    sys.modules.pop("signal", None)
    pyfiber.debug.dump_on_signal(15).undo()  # a number that Windows has, too
    if before is not None:
        sys.modules["signal"] = before


def debug_socket_opened() -> None:
    pyfiber._hooks.open_debug_socket()


def run_begins() -> None:
    run(int)


def frozen_outcome() -> Callable[[], None]:
    exc = error_of(setattr, pyfiber.Ok(1), "value", 2)

    def check() -> None:
        import dataclasses

        assert type(exc) is dataclasses.FrozenInstanceError

    return check


#: The functions above, and the modules that they are known to import.
OTHERS = {
    type_of_outcome: "typing",
    greenlet_install: "pyfiber.greenlet._greenlet",
    queue_empty: "queue",
    queue_full: "queue",
    queue_shut_down: "pyfiber._queues",
    queue_hooked: "pyfiber._queues",
    fiber_cancelled: "pyfiber._cancelled",
    stack: "traceback",
    failure_logged: "logging",
    failure_raised: "concurrent.futures",
    group_failed: "pyfiber._words",
    deadlock: "pyfiber._report",
    deaf: "logging",
    stalled: "pyfiber._report",
    worker_started: "pyfiber._threads",
    abandoned_call_logged: "logging",
    future_cancelled: "pyfiber._cancelled",
    work_elsewhere: "pyfiber._remote",
    dump_on_signal: "signal",
    debug_socket_opened: "pyfiber._debug.server",
    run_begins: "signal",
    frozen_outcome: "dataclasses",
}

USES: dict[str, Callable[[], Callable[[], None] | None]] = {
    **public_names(),
    **{use.__name__: use for use in OTHERS},
}
