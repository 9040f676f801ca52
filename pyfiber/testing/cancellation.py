"""Cancel a program at every point where it can be cancelled, with one run for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pyfiber
from pyfiber.testing import report
from pyfiber.testing.errors import ScheduleFailure, first_line
from pyfiber.testing.network import Network
from pyfiber.testing.runner import (
    MAX_STEPS,
    Attempt,
    Clock,
    Program,
    Runner,
    check_count,
    clock_of,
    network_of,
)
from pyfiber.testing.story import Tracer

__tracebackhide__ = True  # pytest's


def expected(exc: BaseException | None) -> bool:
    """Is this the injected cancellation, raised out of the program?"""
    if isinstance(exc, BaseExceptionGroup):
        return all(expected(inner) for inner in exc.exceptions)
    return exc is None or isinstance(exc, (pyfiber.FiberCancelled, pyfiber.Cancelled))


def explore_cancellation(
    fn: Callable[..., Any],
    *,
    setup: Callable[[], Any] | None = None,
    check: Callable[..., object] | None = None,
    clock: Clock = None,
    max_points: int = 10_000,
    max_steps: int = MAX_STEPS,
    leftovers: Literal["join", "error"] = "join",
    virtualize_time: bool = False,
    threads: bool = False,
    network: Network | bool = False,
) -> int:
    """Run ``fn`` once for each point at which a fiber can be cancelled, and cancel the fiber there.

    Each wait of the program, in each fiber, has two points: while the fiber waits, and when it has
    been woken but has not run yet. Fibers that pyfiber itself runs, a server's, say, are cancelled
    only with what they serve. After each run ``check()`` (with the result of ``setup()``, if given)
    must pass; ``fn`` itself may raise the cancellation. Returns the number of points; if a point
    fails, the ScheduleFailure names it.
    """
    check_count(max_points, "max_points")
    program = Program(
        fn,
        setup=setup,
        clock=clock_of(clock),
        max_steps=max_steps,
        leftovers=leftovers,
        virtualize_time=virtualize_time,
        threads=threads,
        network=network_of(network),
    )
    with Runner(program) as runner:
        return Injector(runner, check, max_points).run()


class Injector:
    """Injects a cancellation at one point after the other."""

    def __init__(
        self, runner: Runner, check: Callable[..., object] | None, max_points: int
    ) -> None:
        self.runner = runner
        self.max_points = max_points
        self.state: tuple[Any, ...] = ()
        self.check = check
        program = runner.program
        if check is not None and not callable(check):
            raise TypeError(f"check must be callable, not {type(check).__name__!r}")
        if program.setup is not None:
            self.make = program.setup
            program.setup = self.keep

    def keep(self) -> Any:
        """Call setup() and keep the result for check(), which must pass after a failed run, too."""
        state = self.make()
        self.state = (state,)
        return state

    def run(self) -> int:
        """Run the program unchanged, then with each injection."""
        failure = self.attempt(0)
        if failure is not None:
            self.fail(failure, 0)
        point = 0
        # A cancellation may make later points appear and vanish.
        while point < self.max_points:
            point += 1
            failure = self.attempt(point)
            if failure is not None:
                self.fail(failure, point)
            if self.runner.explorer.injected is None and self.runner.explorer.events < point:
                return point - 1
        return point

    def attempt(self, point: int, trace: Tracer | None = None) -> BaseException | None:
        """Run once, with a cancellation at the point (0: none); returns what went wrong."""
        self.runner.configure(inject=point, trace=trace)
        attempt: Attempt = self.runner.run()
        failure = attempt.failure
        if failure is not None and not (point and expected(failure)):
            return failure
        if self.check is not None:
            try:
                self.check(*self.state)
            except Exception as exc:
                return exc
        return None

    def where(self) -> str:
        """Say which fiber was cancelled, and when."""
        injected = self.runner.explorer.injected
        if injected is None:
            return "without any cancellation"
        fiber, waited = injected
        how = "while it waited" if waited else "when it was about to go on"
        return f"when {fiber.name!r} was cancelled {how}"

    def fail(self, exc: BaseException, point: int) -> None:
        """Run the point again, with a log, and raise."""
        tracer = Tracer(self.runner.program.clock, self.runner.points)
        self.attempt(point, tracer)
        text = (
            f"the program fails {self.where()} (point {point}): {first_line(exc)}\n\n"
            f"{report.format_failure(exc)}\n\nwho ran when:\n{tracer.text()}"
        )
        raise ScheduleFailure(
            text,
            exception=exc,
            schedule=str(self.runner.schedule()),
            number=point,
            log=tracer.text(),
        ) from None
