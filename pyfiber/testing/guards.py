"""Refuses what code under test must not do: start real threads, or block in real time.

The functions concerned are replaced while a run needs that. The replacements are there for all
threads, but behave differently only on the run's thread.
"""

from __future__ import annotations

import _thread
import functools
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NoReturn

import pyfiber
from pyfiber import _engine
from pyfiber._native import get_ident, is_native
from pyfiber._patch._record import modules, variables_of
from pyfiber.testing.clock import NS, VirtualClock
from pyfiber.testing.machines import node_here

__tracebackhide__ = True  # pytest's

LOOKS = 10_000  # at the clock, after which time passes

Change = tuple[object, str, object]
Function = Callable[..., Any]

REAL_THREAD = (
    "the program under test starts a real thread, whose timing no schedule controls: replace "
    "that call in the test, or allow threads with threads=True (then runs may differ)"
)
REAL_AMONG_SIMULATED = (
    "the program under test starts a native thread, whose timing no schedule controls: replace "
    "that call in the test, or give the run clock='real' (then runs may differ)"
)
PACKAGES_LEFT_ALONE = frozenset(
    {"pyfiber", "pytest", "_pytest", "pluggy", "xdist", "execnet", "hypothesis"}
)


@dataclass(slots=True)
class Rules:
    """The rules for the runs of one thread."""

    threads: bool  # real threads may be started
    guarded: bool  # real waits are refused
    clock: VirtualClock | None  # the clock that the `time` module follows
    simulated: bool = False  # threads are fibers of the run
    active: bool = False  # a run is in progress
    looked: int = 0  # what the code has seen on the clock
    looks: int = 0  # how often
    pause: int = 1  # how long it paused then, in nanoseconds


RULES: dict[int, Rules] = {}  # by thread


def rules_here() -> Rules | None:
    """The rules of this thread."""
    return RULES.get(get_ident())


def guarded_here() -> bool:
    """Is this the code of a run that may not wait for anything real?"""
    rules = rules_here()
    return rules is not None and rules.active and rules.guarded


def simulated_here() -> bool:
    """Are threads fibers of the run here?"""
    rules = rules_here()
    return rules is not None and rules.active and rules.simulated


def refuse(call: str, *instead: str) -> NoReturn:
    """Raise the error for a call that would block."""
    ways = ", ".join([*instead, "replace that call in the test"])
    raise pyfiber.FiberError(
        f"{call} would block every fiber, in real time, but the run under test has virtual time: "
        f"{ways}, or allow real waiting with threads=True"
    )


# --------------------------------------------------------------- replacing things


def apply(changes: Iterable[Change]) -> ExitStack:
    """Set all these attributes; close() restores them."""
    undo = ExitStack()
    for owner, name, value in changes:
        undo.callback(restore, owner, name, value, own(owner, name))
        setattr(owner, name, value)
    return undo


def own(owner: object, name: str) -> object:
    """The attribute as the owner itself has it; None if it is inherited."""
    return owner.__defaults__ if isinstance(owner, FunctionType) else vars(owner).get(name)


def restore(owner: object, name: str, ours: object, before: Any) -> None:
    """Restore an attribute, unless other code has changed it meanwhile.

    If it was part of a patch that has ended meanwhile, the original is restored.
    """
    if own(owner, name) is not ours:
        return
    if has_gate(before) and not parks(before):
        before = before.__wrapped__
        if isinstance(owner, type) and getattr(super(owner, owner), name, None) is before:
            before = None
    if before is None:  # the attribute was inherited
        delattr(owner, name)
    else:
        setattr(owner, name, before)


class Shared:
    """Changes that the runs of several threads share: made for the first, undone by the last."""

    def __init__(self, changes: Callable[[], Iterable[Change]]) -> None:
        self.changes = changes
        self.lock = threading.RLock()  # a finalizer that runs inside may run a test, too
        self.users = 0
        self.undo = ExitStack()

    def __enter__(self) -> None:
        with self.lock:
            if self.users == 0:
                self.undo = apply(self.changes())
            self.users += 1

    def __exit__(self, *exc: object) -> None:
        with self.lock:
            self.users -= 1
            if self.users == 0:
                self.undo.close()


# ------------------------------------------------------------------ blocking calls


GATES = (_engine.Gate, _engine.MethodGate)


def has_gate(function: object) -> bool:
    """Is this a function of pyfiber.patch(), in force or not?"""
    return isinstance(function, GATES) or hasattr(function, "_parks")


def parks(real: Function) -> bool:
    """Does pyfiber.patch() make this function park in a fiber, by the run's clock?"""
    return real._open if isinstance(real, GATES) else getattr(real, "_parks", False) is True


def waits(timeout: object = None) -> bool:
    """Does a call with this timeout wait at all?"""
    return timeout is None or (isinstance(timeout, (int, float)) and timeout > 0)


def readable(sock: socket.socket) -> bool:
    """Would a read from the socket return at once?"""
    return sock.gettimeout() == 0 or sock.fileno() < 0 or bool(select.select([sock], [], [], 0)[0])


def unread(fd: int, *_: object) -> bool:
    """Would a read from the descriptor, a pipe say, wait?"""
    try:
        return os.get_blocking(fd) and not select.select([fd], [], [], 0)[0]
    except (OSError, TypeError, ValueError):
        return False  # os.read() says what is wrong


PARK = "let it park by pyfiber.patch()"


def guarded(real: Function, blocks: Callable[..., bool], call: str, *instead: str) -> Function:
    """A replacement for a function that refuses to block in a run."""

    @functools.wraps(real)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if guarded_here() and not parks(real) and blocks(*args, **kwargs):
            refuse(call, *(instead or ("use pyfiber's own", PARK)))
        return real(*args, **kwargs)

    return checked


def guarded_process(real: Function, call: str) -> Function:
    """A replacement for a function that starts a process, whose timing no schedule controls.

    Elsewhere than among simulated threads, patch() may let what waits for a process park.
    """

    @functools.wraps(real)
    def checked(*args: Any, **kwargs: Any) -> Any:
        if guarded_here() and simulated_here():
            raise pyfiber.FiberError(
                f"{call} starts a process, whose timing no schedule controls: replace that call in "
                "the test, or give the run clock='real' (then runs may differ)"
            )
        return real(*args, **kwargs)

    return checked


def guarded_select(real: Function) -> Function:
    """A replacement for select.select() that in a run returns what is ready, or refuses to wait."""

    @functools.wraps(real)
    def checked(*args: Any) -> Any:
        if not guarded_here() or parks(real) or not waits(*args[3:]):
            return real(*args)
        found = real(*args[:3], 0)
        return found if any(found) else refuse("select.select()", "use a timeout of 0", PARK)

    return checked


def guarded_sleep(real: Function) -> Function:
    """A replacement for time.sleep(), which sleeps in virtual time, refuses, or really sleeps."""

    @functools.wraps(real)
    def sleep(seconds: float, /) -> None:
        rules = rules_here()
        if rules is not None and rules.clock is not None:
            if rules.active:
                node = node_here()
                pyfiber.sleep(seconds if node is None else seconds / (1 + node.drift))
            else:  # in setup or check
                rules.clock.advance(seconds)
            return
        if guarded_here() and seconds > 0 and not parks(real):
            refuse("time.sleep()", "use pyfiber.sleep() or virtualize_time=True", PARK)
        real(seconds)

    return sleep


def locks_park() -> bool:
    """Does pyfiber.patch() make the interpreter's locks park in a fiber?"""
    patch = sys.modules.get("pyfiber._patch")
    return patch is not None and "threading" in patch.in_force()


class Lock:
    """threading.Lock, except that in a run it refuses to wait for ever for another fiber."""

    __slots__ = ("__weakref__", "_lock")

    def __new__(cls) -> Any:
        refuses = guarded_here() and not locks_park()
        return super().__new__(cls) if refuses else _thread.allocate_lock()

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As threading.Lock.acquire()."""
        waits = blocking and timeout != 0 and self._lock.locked()
        if waits and guarded_here() and not locks_park():
            refuse("acquire() of a threading.Lock that is held", "use pyfiber.Lock", PARK)
        return self._lock.acquire(blocking, timeout)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def __repr__(self) -> str:
        return repr(self._lock)


def guarded_start(real: Function) -> Function:
    """A replacement for a function that starts a thread."""

    @functools.wraps(real)
    def start(*args: Any, **kwargs: Any) -> Any:
        rules = rules_here()
        if rules is not None and rules.active and rules.simulated and rules.guarded:
            if isinstance(args[0], threading.Thread) and is_native(args[0]):
                raise pyfiber.FiberError(f"{REAL_AMONG_SIMULATED}: {args[0]!r}")
        elif rules is not None and rules.active and not (rules.threads or rules.simulated):
            who = f": {args[0]!r}" if isinstance(args[0], threading.Thread) else ""
            raise pyfiber.FiberError(REAL_THREAD + who)
        return real(*args, **kwargs)

    return start


def always(*_: object, **__: object) -> bool:
    """The call waits in each case."""
    return True


def guards() -> Iterator[Change]:
    """The replacements that keep a run from blocking."""
    yield time, "sleep", guarded_sleep(time.sleep)
    yield threading.Thread, "start", guarded_start(threading.Thread.start)
    for name in ("start_new_thread", "start_new", "start_joinable_thread"):
        if hasattr(_thread, name):
            yield _thread, name, guarded_start(getattr(_thread, name))
    yield threading, "Lock", Lock

    def until(self: object, timeout: object = None) -> bool:
        return waits(timeout) and not simulated_here()

    wait = guarded(threading.Condition.wait, until, "a wait of threading's")
    yield threading.Condition, "wait", wait

    def alive(self: threading.Thread, timeout: object = None) -> bool:
        return self.is_alive() and waits(timeout) and not simulated_here()

    yield threading.Thread, "join", guarded(threading.Thread.join, alive, "join() of a thread")
    yield select, "select", guarded_select(select.select)
    process = guarded(subprocess.Popen.__init__, always, "a subprocess", "use what it would print")
    yield subprocess.Popen, "__init__", guarded_process(process, "subprocess")
    for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp"):
        if hasattr(os, name):
            yield os, name, guarded_process(getattr(os, name), f"os.{name}()")
    if "multiprocessing.process" in sys.modules:
        base = sys.modules["multiprocessing.process"].BaseProcess
        yield base, "start", guarded_process(base.start, "multiprocessing")
    for name in ("pause", "sigwait", "sigwaitinfo"):
        if hasattr(signal, name):
            call = f"signal.{name}()"
            yield signal, name, guarded(getattr(signal, name), always, call, "use pyfiber.Event")
    instead = "wait with pyfiber.wait_readable() before"
    yield os, "read", guarded(os.read, unread, "os.read() of a descriptor without data", instead)
    yield from guarded_sockets()


def guarded_sockets() -> Iterator[Change]:
    """The replacements that refuse connects, and reads of data that is not there yet."""
    instead = (
        "use pyfiber.socket or pyfiber.net, which network=True connects in memory",
        "let it park by pyfiber.patch() (a real peer needs threads=True as well)",
    )

    def not_there(self: socket.socket, *args: object, **kwargs: object) -> bool:
        return not readable(self)

    def blocking(self: socket.socket, *args: object) -> bool:
        return self.gettimeout() != 0

    for name in ("accept", "recv", "recv_into", "recvfrom", "recvfrom_into"):
        real = getattr(socket.socket, name)
        yield socket.socket, name, guarded(real, not_there, f"{name}() of a socket", *instead)
    real = socket.socket.connect
    yield socket.socket, "connect", guarded(real, blocking, "connect() of a socket", *instead)


# ------------------------------------------------------------------- virtual clocks


def clocks() -> Iterator[Change]:
    """The replacements for the functions of the `time` module that return the time."""
    names = {
        "time": lambda clock: (here_ns(clock) + clock.epoch_ns) / NS,
        "time_ns": lambda clock: here_ns(clock) + clock.epoch_ns,
        "monotonic": lambda clock: here_ns(clock) / NS,
        "monotonic_ns": here_ns,
        "perf_counter": lambda clock: here_ns(clock) / NS,
        "perf_counter_ns": here_ns,
    }
    for name, virtual in names.items():
        yield time, name, virtual_or_real(virtual, getattr(time, name))


def here_ns(clock: VirtualClock) -> int:
    """What the clock shows on the machine of the running code: a node's clock may be wrong."""
    node = node_here()
    return clock.now_ns() if node is None else node.clock_ns(clock.now_ns())


def look(rules: Rules, clock: VirtualClock) -> None:
    """Let time pass in a loop that waits for a time, and does nothing else that moves the clock.

    Each pause is twice as long as the last one, so that any time comes soon.
    """
    if clock.now_ns() != rules.looked:
        rules.looked, rules.looks, rules.pause = clock.now_ns(), 0, 1
    rules.looks += 1
    if rules.looks >= LOOKS and rules.active and _engine._may_park():
        rules.looks = 0
        rules.pause *= 2
        pyfiber.sleep(rules.pause / NS)
        rules.looked = clock.now_ns()


def virtual_or_real(virtual: Callable[[VirtualClock], Any], real: Function) -> Function:
    """A function that reads the run's clock on the run's thread, the real one on others."""

    @functools.wraps(real)
    def either() -> Any:
        rules = rules_here()
        if rules is None or rules.clock is None:
            return real()
        look(rules, rules.clock)
        return virtual(rules.clock)

    return either


def imported_names(*, library: bool = False) -> Iterator[Change]:
    """The replacements for names bound by `from time import sleep`, and for default arguments.

    ``library``: in the modules of the standard library, and not in all others.
    """
    replaced: dict[int, Any] = {}
    for value in vars(time).values():
        if getattr(value, "__module__", "") == "time" and hasattr(value, "__wrapped__"):
            replaced[id(value.__wrapped__)] = value
            replaced[id(_engine._outside(value.__wrapped__))] = value

    def replacement(value: Any) -> Any:
        # A module that was imported during a patch keeps gates, which may be closed now.
        if type(value) in GATES and not value._open:
            value = value.__wrapped__
        return replaced.get(id(value))

    for _, module in modules():
        variables = variables_of(module)
        package = str(variables.get("__name__", "")).partition(".")[0]
        standard = package in sys.stdlib_module_names - {"__main__"}
        if standard is not library or package in PACKAGES_LEFT_ALONE:
            continue
        for name, value in list(variables.items()):
            new = replacement(value)
            if new is not None:
                yield module, name, new
            for function in functions_of(value, variables):
                old = function.__defaults__
                changed = [replacement(each) for each in old]
                if any(each is not None for each in changed):
                    pairs = zip(changed, old, strict=True)
                    yield function, "__defaults__", tuple(o if n is None else n for n, o in pairs)


def functions_of(value: object, variables: dict[str, Any]) -> Iterator[Any]:
    """The functions with default arguments that a module's name refers to, also by its class.

    Only types are asked: `isinstance()` would make a lazy proxy call its function.
    """
    if type(value) is FunctionType:
        if value.__defaults__:
            yield value
    elif type(value) is type and value.__module__ == variables.get("__name__"):
        for each in list(vars(value).values()):
            if type(each) is FunctionType and each.__defaults__:
                yield each


GUARDS = Shared(guards)
CLOCKS = Shared(clocks)
NAMES = Shared(imported_names)
LIBRARY_NAMES = Shared(functools.partial(imported_names, library=True))


@contextmanager
def in_force(rules: Rules) -> Iterator[None]:
    """Make the rules hold for this thread."""
    thread = get_ident()
    before = RULES.get(thread)
    with ExitStack() as stack:
        if rules.guarded or not rules.threads or rules.clock is not None:
            stack.enter_context(GUARDS)
        if rules.clock is not None:
            stack.enter_context(CLOCKS)
            stack.enter_context(NAMES)
            if rules.simulated:  # queue.Queue.get(timeout=...) reads the clock, for example
                stack.enter_context(LIBRARY_NAMES)
        RULES[thread] = rules
        try:
            yield
        finally:
            if before is None:
                del RULES[thread]
            else:
                RULES[thread] = before


def note_threads(exc: BaseException) -> None:
    """Add a note to a deadlock, if there are other threads: the run does not wait for them."""
    others = [
        thread.name
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]
    if others:
        exc.add_note(
            "other threads run (" + ", ".join(others) + "), but a run with virtual time does not "
            "wait for them unless threads=True"
        )
