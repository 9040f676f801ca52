"""``threads="simulated"``: the threads that a run starts are fibers of the run.

The table in pyfiber/_virtual makes them fibers. What this module adds: each run begins with the
same state of the module `threading`, an exception that ends a thread is a failure of the run, and
at the end no thread is left.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import pyfiber
from pyfiber import _engine
from pyfiber._native import get_ident, is_native
from pyfiber._patch._threading import is_virtual
from pyfiber._virtual import shutdown, starting, table
from pyfiber.testing.errors import NeverAwaitedError, repr_of
from pyfiber.testing.guards import Change, Shared
from pyfiber.testing.machines import has_crashed, on_this_machine
from pyfiber.testing.report import format_failure

POOLS = ("concurrent.futures.thread", "ThreadPoolExecutor")
#: Classes whose instances the standard library keeps in sets: module, name.
NUMBERED = (("threading", "Thread"), ("concurrent.futures._base", "Future"))


class Session(starting.Session):
    """The threads that code on the run's thread starts."""

    def __init__(self, scheduler: pyfiber.Scheduler, main: _engine.Fiber[Any]) -> None:
        super().__init__(scheduler, main)
        self.thread = get_ident()

    def takes(self) -> bool:
        return get_ident() == self.thread

    def body(self, function: Callable[..., object]) -> Callable[..., object]:
        """A function that runs on the machine of the code that starts the thread."""
        return on_this_machine(function)


#: The simulator in force, under the key "process"; setdefault() is one step for all threads.
HOLDER: dict[str, Simulated] = {}


class Simulated:
    """The threads of the runs of one exploration."""

    def __init__(self, scheduler: pyfiber.Scheduler) -> None:
        self.scheduler = scheduler
        self.session: Session | None = None
        self.failed: list[tuple[str, BaseException]] = []
        self.on_failure: Callable[[BaseException], None] | None = None  # tells the log

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Patch, so that locks park, and let the table stand in for `_thread`.

        FiberError while another run makes threads fibers, as `threading` has one set of tables.
        """
        with ExitStack() as stack:
            stack.callback(self.let_go)
            if HOLDER.setdefault("process", self) is not self or starting.session is not None:
                raise pyfiber.FiberError(
                    "the program's threads are fibers already: there is one run with "
                    'threads="simulated" at a time in a process, and none in virtual_threads()'
                )
            stack.callback(pyfiber.patch().undo)
            stack.callback(table.install(table.THREADS).undo)
            stack.enter_context(NUMBERS)
            yield

    def let_go(self) -> None:
        """Let another exploration simulate threads."""
        if HOLDER.get("process") is self:
            del HOLDER["process"]

    @contextmanager
    def a_run(self) -> Iterator[None]:
        """Begin a run with fresh names of threads, and put back what threads leave behind."""
        self.failed.clear()
        BORN[get_ident()] = itertools.count(1)
        hook = threading.excepthook
        threading.excepthook = self.excepthook
        counters = list(renumbered())
        try:
            yield
        except pyfiber.DeadlockError as exc:
            exc.__context__ = self.failure()  # often the cause
            raise
        finally:
            for owner, value in counters:
                owner._counter = value
            threading.excepthook = hook
            del BORN[get_ident()]
            if self.session is not None:
                self.session.close()
                self.session = None
            forget_threads()

    def main(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """The function for the main fiber of a run: the main program with its threads."""

        @wraps(fn)
        def called(*args: Any) -> Any:
            self.session = session = Session(self.scheduler, _engine.current())
            session.open()
            try:
                value = fn(*args)
                end_pools(session)
                shutdown.wait_for_threads(session)
            except BaseException as exc:
                self.note_failed(exc)
                raise
            finally:
                shutdown.cut_off_threads(session)
            failure = self.failure()
            if failure is not None:
                raise failure
            return value

        return called

    def excepthook(self, args: Any) -> None:
        """Stands in for threading.excepthook, unless the program sets another one."""
        if isinstance(args.exc_value, (SystemExit, pyfiber.FiberExit, pyfiber.Cancelled)):
            return
        if has_crashed():  # nothing of a machine is left after a crash, not even its failures
            return
        name = "a thread" if args.thread is None else args.thread.name
        self.failed.append((name, args.exc_value))
        if self.on_failure is not None:
            self.on_failure(args.exc_value)

    def note_failed(self, failure: BaseException) -> None:
        """Note on the failure what has ended threads before: often the cause."""
        for name, exc in self.failed:
            if exc is not failure:
                failure.add_note(f"before that, the thread {name!r} failed:\n{format_failure(exc)}")

    def failure(self) -> NeverAwaitedError | None:
        """An exception with what has ended threads, as no code has looked at that."""
        if not self.failed:
            return None
        names = [f"the thread {name!r} has failed with {repr_of(exc)}" for name, exc in self.failed]
        failure = NeverAwaitedError("; ".join(names))
        failure.__cause__ = self.failed[0][1]
        return failure


#: Counts the objects of a run, by thread.
BORN: dict[int, Iterator[int]] = {}


def numbered(real: Callable[..., None]) -> Callable[..., None]:
    """A replacement for an __init__() that gives objects of a run a number."""

    @wraps(real)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        born = BORN.get(get_ident())
        if born is not None:
            vars(self)["_number_in_run"] = next(born)
        real(self, *args, **kwargs)

    return init


def hash_of(self: Any) -> int:
    """The number, so that a set of such objects has the same order in each run.

    A native thread may outlive the run, after which `threading` looks for it by its usual hash.
    """
    number: int | None = None if is_native(self) else vars(self).get("_number_in_run")
    return number or object.__hash__(self)


def numbers() -> Iterator[Change]:
    """The replacements by which sets of threads and of futures do not go by addresses."""
    for module, name in NUMBERED:
        if module in sys.modules:
            kind = getattr(sys.modules[module], name)
            yield kind, "__init__", numbered(kind.__init__)
            yield kind, "__hash__", hash_of


NUMBERS = Shared(numbers)


def renumbered() -> Iterator[tuple[Any, Any]]:
    """Count threads and pools from the start again; yield what to put back."""
    yield threading, threading._counter  # type: ignore[attr-defined]
    threading._counter = itertools.count(1).__next__  # type: ignore[attr-defined]
    module, name = POOLS
    if module in sys.modules:
        pool = getattr(sys.modules[module], name)
        yield pool, pool._counter
        pool._counter = itertools.count().__next__


def end_pools(session: Session) -> None:
    """Let the threads of pools end that the program has not shut down, as a program's end does."""
    module: Any = sys.modules.get(POOLS[0])
    if module is None:
        return
    queues = [queue for thread, queue in module._threads_queues.items() if is_virtual(thread)]
    if not queues:
        return
    before, module._shutdown = module._shutdown, True
    try:
        for queue in queues:
            queue.put(None)
        shutdown.wait_for_threads(session)
    finally:
        module._shutdown = before


def forget_threads() -> None:
    """Remove from the tables of `threading` and of pools what threads have left there."""
    for name in ("_active", "_limbo"):
        for thread in list(getattr(threading, name).values()):
            lock = getattr(thread, "_tstate_lock", None)  # up to 3.12
            if is_virtual(thread) and lock is not None:
                threading._shutdown_locks.discard(lock)  # type: ignore[attr-defined]
    shutdown.forget_threads()
    module: Any = sys.modules.get(POOLS[0])
    for thread in list(module._threads_queues) if module is not None else ():
        if is_virtual(thread):
            module._threads_queues.pop(thread, None)
