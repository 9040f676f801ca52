"""``Runner``: runs a program again and again, on one scheduler."""

from __future__ import annotations

import functools
import gc
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

import pyfiber
from pyfiber import _engine, _hooks, _report
from pyfiber.testing import guards
from pyfiber.testing.clock import VirtualClock
from pyfiber.testing.errors import LeftRunningError, LivelockError, NeverAwaitedError, repr_of
from pyfiber.testing.network import Network
from pyfiber.testing.points import Points, check_names, check_switch
from pyfiber.testing.schedule import Choice, Schedule
from pyfiber.testing.seeds import Seeds
from pyfiber.testing.simulated import Simulated
from pyfiber.testing.story import outside

__tracebackhide__ = True  # pytest's

FIFO, RANDOM, PCT = range(3)
# Calling a function of these kinds does not run its code.
NOT_PLAIN = (
    inspect.iscoroutinefunction,
    inspect.isasyncgenfunction,
    inspect.isgeneratorfunction,
)
MASK = (1 << 64) - 1
UNBOUND = (1 << 32) - 1  # any number of switches at points
STANDARD = sys.stdlib_module_names - {"__main__"}
COLLECT_EVERY = 256  # schedules
POINTS_A_STEP = 5  # as in csrc/python/testing/explorer.h
FAULT_PLACES = 20
MAX_STEPS, RUN_STEPS = 100_000, 10_000_000  # of one schedule of many; of a run by itself

Clock = VirtualClock | float | datetime | Literal["virtual", "real"] | None
OnUnhandled = (
    Literal["log", "raise"]
    | Callable[["_engine.Fiber[Any] | _engine.Grain[Any]", BaseException], object]
)
Trace = Callable[[int, "_engine.Fiber[Any] | None", int, int, int], object]


def clock_of(clock: Clock) -> VirtualClock | None:
    """The clock that an argument asks for; None is real time."""
    if clock is None or clock == "virtual":
        return VirtualClock()
    if clock == "real":
        return None
    if isinstance(clock, VirtualClock):
        return clock
    if isinstance(clock, str):
        raise ValueError(f"the clock is 'virtual', 'real' or a VirtualClock, not {clock!r}")
    return VirtualClock(clock)


def network_text(network: Network | bool) -> str:
    """The source text for a `network` argument; empty for none."""
    return "network" if isinstance(network, Network) else repr(network) if network else ""


def network_of(network: Network | bool) -> Network | None:
    """The network that an argument asks for; None is the system's."""
    if isinstance(network, Network):
        return network
    if not isinstance(network, bool):
        raise TypeError(f"the network is a Network or True, not {type(network).__name__!r}")
    return Network() if network else None


def clock_text(clock: Clock) -> str:
    """The source text for a `clock` argument; empty for the usual one."""
    if clock is None or clock == "virtual":
        return ""
    return "clock" if isinstance(clock, VirtualClock) else repr(clock)


def mix(seed: int, number: int) -> int:
    """The seed of one schedule of many."""
    return (seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03) & MASK


def describe(fiber: _engine.Fiber[Any]) -> str:
    """A fiber, what it waits for, and its stack."""
    if fiber.state == "ready":
        head = f"{_report.title_of(fiber)} could go on"
        stack = _report.stack_at(outside(fiber.frame))
    else:
        head = f"{_report.title_of(fiber)} {_report.wait_of(fiber)}"
        stack = _report.stack_of(fiber)
    return "\n".join([head, *stack])


def check_seed(seed: object) -> int:
    """A seed is any integer; TypeError for something else."""
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise TypeError(f"a seed is an integer, not {type(seed).__name__!r}")
    return seed


def check_count(value: object, what: str) -> int:
    """A positive integer; TypeError or ValueError with the name of the argument."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is an integer, not {type(value).__name__!r}")
    if value < 1:
        raise ValueError(f"{what} must be at least 1, not {value}")
    return value


@dataclass(slots=True)
class Program:
    """The program that is run again and again, and what must hold for each run."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    setup: Callable[[], Any] | None = None
    check: Callable[..., object] | None = None
    clock: VirtualClock | None = None
    preempt: bool = False
    unfair: bool = False
    max_steps: int = MAX_STEPS
    leftovers: Literal["join", "error"] = "join"
    virtualize_time: bool = False
    threads: bool | Literal["simulated"] = False
    network: Network | None = None
    switch: str = "wait"
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    on_unhandled: OnUnhandled | None = None  # of run() alone; None: NeverAwaitedError
    replay: str = ""  # how a report says to repeat a failure
    clock_text: str = ""  # the clock argument for replay(), if it is not the usual one
    network_text: str = ""  # the network argument, if there is one

    def __post_init__(self) -> None:
        for what in ("fn", "setup", "check"):
            value = getattr(self, what)
            if not callable(value) and (what == "fn" or value is not None):
                raise TypeError(f"{what} must be callable, not {type(value).__name__!r}")
        if any(kind(self.fn) for kind in NOT_PLAIN):
            raise TypeError("fn is a coroutine function or a generator: a plain one is needed")
        if not (isinstance(self.threads, bool) or self.threads == "simulated"):
            raise TypeError(  # pyfiber.run() takes a number, too
                'threads says whether other threads may run: True, False or "simulated". A run '
                "under test has one scheduler: its order could not be repeated over several threads"
            )
        if self.simulated and self.clock is not None:
            self.virtualize_time = True
        check_count(self.max_steps, "max_steps")
        check_switch(self.switch)
        check_names(self.include, "include")
        check_names(self.exclude, "exclude")
        if self.leftovers not in ("join", "error"):
            raise ValueError(f"leftovers is 'join' or 'error', not {self.leftovers!r}")
        if self.virtualize_time and self.clock is None:
            raise ValueError("virtualize_time needs a virtual clock")
        if self.clock is not None and self.clock.threads:
            self.threads = True

    @property
    def simulated(self) -> bool:
        """Are the threads that the program starts fibers of the run?"""
        return self.threads == "simulated"


@dataclass(slots=True)
class Attempt:
    """How one run went; the explorer keeps its choices until the next run."""

    failure: BaseException | None = None
    value: Any = None
    notes: list[str] = field(default_factory=list)


def is_failure(exc: BaseException) -> bool:
    """Is this a failure of the program? Ctrl-C, exits, skips and hypothesis' own are not."""
    kind = type(exc)
    if isinstance(exc, (KeyboardInterrupt, SystemExit)) or kind.__module__.startswith(
        "hypothesis."
    ):
        return False
    pytest = sys.modules.get("_pytest.outcomes")
    if pytest is not None and isinstance(exc, (pytest.OutcomeException, pytest.Exit)):
        # A timeout comes only once, so a program that hangs is not run again.
        return kind is pytest.Failed and not passes_through(exc, "pytest_timeout")
    unittest = sys.modules.get("unittest")
    return unittest is None or not isinstance(exc, unittest.SkipTest)


def passes_through(exc: BaseException, module: str) -> bool:
    """Was this raised by a function of the module, or by one called from there?"""
    frames = traceback.walk_tb(exc.__traceback__)
    return any(frame.f_globals.get("__name__") == module for frame, _ in frames)


def is_of_pyfiber(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == "pyfiber"


def is_own(fiber: _engine.Fiber[Any]) -> bool:
    """Whether the fiber is a helper of pyfiber's, and none of the program's code waits in it.

    pyfiber cancels such a fiber only with what it helps; the program cannot reach it at all.
    """
    if _engine.current() is fiber:
        frame: Any = sys._getframe().f_back
    else:
        frame = _hooks.frame_of(fiber)
    if frame is None:  # the fiber has not begun
        target = _engine._target_of(fiber)
        return is_of_pyfiber(getattr(getattr(target, "func", target), "__module__", None))
    module: object = None
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if not is_of_pyfiber(module) and str(module).partition(".")[0] not in STANDARD:
            return False
        frame = frame.f_back
    return is_of_pyfiber(module)  # the module of the outermost frame


class Runner:
    """Runs a program under given schedules.  Use it as a context manager."""

    def __init__(self, program: Program) -> None:
        self.program = program
        how = program.on_unhandled
        self.scheduler = _engine.Scheduler() if how is None else _engine.Scheduler(on_unhandled=how)
        self.points: Points | None = None
        engine: tuple[_engine._Points, ...] = ()
        if program.switch != "wait":
            self.points = Points(program.switch, program.include, program.exclude)
            engine = (self.points.engine,)
        self.explorer = _engine._Explorer(self.scheduler, self.livelock, is_own, *engine)
        self.rules = guards.Rules(
            threads=program.threads is True,
            guarded=program.clock is not None and program.threads is not True,
            clock=program.clock if program.virtualize_time else None,
            simulated=program.simulated,
        )
        self.seeds = Seeds()
        self.simulated = Simulated(self.scheduler) if program.simulated else None
        self.longest = 1
        self.fault_places = FAULT_PLACES  # of any run; a guess before the first
        self.runs = 0
        self.resources = ExitStack()

    def __enter__(self) -> Runner:
        network = self.program.network
        with ExitStack() as stack:
            if network is not None:
                network.attach(self.scheduler)
                stack.callback(network.detach)
            stack.callback(self.scheduler.close)
            stack.enter_context(collector_held())
            if self.simulated is not None:
                stack.enter_context(self.simulated.in_force())
            stack.enter_context(guards.in_force(self.rules))
            stack.enter_context(self.seeds.in_force())
            stack.enter_context(waiting_allowed(self.program))
            if self.points is not None:
                stack.enter_context(self.points.watching())
            self.resources = stack.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        self.resources.close()

    # Called by the engine.
    def livelock(self) -> LivelockError:
        """The error for a run with too many steps, with the fibers that are left."""
        steps = self.program.max_steps
        points = (
            "" if self.points is None else f" and {POINTS_A_STEP * steps} lines or instructions"
        )
        fibers = self.scheduler.fibers()
        head = (
            f"the run did not end within {steps} steps (max_steps){points}: a livelock, or a "
            f"longer program than expected. Still there:\n"
        )
        return LivelockError(head + "\n".join(map(describe, fibers[:20])))

    def configure(
        self,
        *,
        strategy: int = FIFO,
        seed: int = 0,
        depth: int = 1,
        script: Sequence[Choice] | None = None,
        lenient: bool = False,
        inject: int = 0,
        trace: Trace | None = None,
        length: int | None = None,
        hot: bool = False,
        bound: int = UNBOUND,
        branch: bool = False,
        directed: bool = False,
    ) -> None:
        """Set how the next runs choose."""
        network = self.program.network
        if network is not None:
            network.on_event = getattr(trace, "note", None)
        if self.simulated is not None:
            self.simulated.on_failure = getattr(trace, "fails", None)
        self.explorer.configure(
            strategy=strategy,
            seed=seed & MASK,
            depth=depth,
            length=self.longest if length is None else length,
            hot=hot,
            bound=bound,
            branch=branch,
            directed=directed,
            script=script,
            lenient=lenient,
            preempt=self.program.preempt,
            unfair=self.program.unfair,
            max_steps=self.program.max_steps,
            inject=inject,
            trace=trace,
            faults=0 if network is None else network.faults,
            fault_places=self.fault_places,
        )

    def run(self) -> Attempt:
        """Run once. What the program raises is in the attempt; Ctrl-C and skips are raised."""
        program = self.program
        if program.clock is not None:
            program.clock.reset()
        if program.network is not None:
            program.network.reset()
        self.runs += 1
        if self.runs % COLLECT_EVERY == 0:
            gc.collect(1)
            if self.points is not None:
                self.points.engine.forget()
        args = program.args
        state: tuple[Any, ...] = ()
        if program.setup is not None:
            state = (program.setup(),)
            args = (*state, *args)
        fn = program.fn if program.leftovers == "join" else self.none_left
        if program.network is not None:
            fn = self.with_nodes(fn, program.network)
        attempt = Attempt()
        try:
            attempt.value = self.run_program(fn, args)
            self.look_for_unseen(None)
            if program.check is not None:
                program.check(*state)
        except BaseException as exc:
            self.look_for_unseen(exc)
            if not is_failure(exc):
                raise
            if isinstance(exc, pyfiber.DeadlockError):
                guards.note_threads(exc)
            attempt.failure = exc
        self.longest = max(self.longest, self.explorer.steps)
        places = self.explorer.fault_places
        self.fault_places = places if self.runs == 1 else max(self.fault_places, places)
        return attempt

    def run_program(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run ``fn(*args)`` with the guards active."""
        simulated = self.simulated
        self.rules.active = True
        self.rules.looks = 0
        self.rules.pause = 1
        self.seeds.begin()
        try:
            if simulated is None:
                return self.explorer.run(self.program.clock, fn, *args)
            with simulated.a_run():
                main = simulated.main(fn)
                return self.explorer.run(self.program.clock, main, *args)
        finally:
            self.seeds.end()
            self.rules.active = False
            if self.program.network is not None:
                self.program.network.rest()

    def with_nodes(self, fn: Callable[..., Any], network: Network) -> Callable[..., Any]:
        """The function under test; the nodes that it starts are stopped when it has ended."""

        @functools.wraps(fn)
        def called(*args: Any) -> Any:
            try:
                return fn(*args)
            finally:
                network.stop_nodes()

        return called

    def none_left(self, *args: Any) -> Any:
        """Call the function under test; LeftRunningError if fibers that it started are left."""
        value = self.program.fn(*args)
        if self.program.network is not None:
            self.program.network.stop_nodes()
        me = pyfiber.current()
        left = [fiber for fiber in self.scheduler.fibers() if fiber is not me]
        if left:
            text = f"the function returned and left {len(left)} running:\n"
            raise LeftRunningError(text + "\n".join(map(describe, left)))
        return value

    def look_for_unseen(self, failure: BaseException | None) -> None:
        """Raise failures that nobody asked for, or note them on ``failure`` if there is one."""
        unseen = self.explorer.unseen()
        if not unseen:
            return
        exceptions = [fiber.exception() for fiber in unseen]
        if failure is None:
            raise NeverAwaitedError(
                "nobody asked for the result of "
                + ", ".join(
                    f"{fiber!r}, which failed with {repr_of(exc)}"
                    for fiber, exc in zip(unseen, exceptions, strict=True)
                )
            ) from exceptions[0]
        for fiber, exc in zip(unseen, exceptions, strict=True):
            if exc is not failure:
                failure.add_note(f"besides, {fiber!r} failed with {repr_of(exc)}")

    def story(self) -> str:
        """What the network did in the last run."""
        return "" if self.program.network is None else self.program.network.story()

    def schedule(self) -> Schedule:
        """The choices of the last run."""
        program, explorer = self.program, self.explorer
        return Schedule(
            explorer.choices(),
            program.preempt,
            program.unfair,
            explorer.fingerprint,
            program.switch,
        )


@contextmanager
def waiting_allowed(program: Program) -> Iterator[None]:
    """Let the clock wait for threads if the program may use them."""
    clock, threads = program.clock, program.threads is True
    if clock is None or clock.threads == threads:
        yield
        return
    clock.threads = threads
    try:
        yield
    finally:
        clock.threads = not threads


@contextmanager
def collector_held() -> Iterator[None]:
    """Turn off automatic garbage collection, as a schedule cannot say when it finalizes things."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
