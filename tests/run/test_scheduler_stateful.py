"""Random programs of fibers, checked against a model of what the scheduler promises.

The model is the semantics in a page of Python: a first-in-first-out queue of names (whoever is
waited for before it has begun goes to the front), one permit for each fiber, who waits for whom,
who is cancelled, and a virtual sequence of events. A program is a list of steps for each fiber; the
real fibers and the model both write a log of what happened in which order, and the two logs must be
equal.

Time is left out of the comparison but not out of the programs: a sleep without end that somebody
cancels is in the model, and the tests at the end mix real timers in and check only what does not
depend on them.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyfiber import (
    Cancelled,
    CancelledOutcome,
    Failed,
    Fiber,
    FiberError,
    Ok,
    Scheduler,
    current,
    park,
    sleep,
    spawn,
    yield_now,
)

# A second unpark() with a value says that it is dropped; the models know that.
pytestmark = pytest.mark.filterwarnings("ignore:unpark:RuntimeWarning")

FIBERS = 5
FOREVER = float("inf")

# Steps: what one fiber does next. `n` names another fiber by its number.
Step = tuple[Any, ...]
Log = list[Any]


class Boom(Exception):
    """Raised by the step of that name."""


# The model ----------------------------------------------------------------------------------------


@dataclass
class Body:
    """One fiber of the model."""

    steps: list[Step]
    at: int = 0
    entered: bool = False
    preferred: bool = False  # it began before its turn, because somebody waits for it
    state: str = "unborn"  # unborn, ready, parked, sleeping, joining, done
    permit: list[Any] = field(default_factory=list)  # empty, or one value
    cancelled: bool = False
    woken_by: str = ""  # value, cancel, end: why it is ready again
    waits_for: int = -1
    outcome: Any = None


class Model:
    """Runs a program by the rules and logs what it sees."""

    def __init__(self, program: list[list[Step]]) -> None:
        self.bodies = [Body(steps) for steps in program]
        self.queue: deque[int] = deque()
        self.waiters: dict[int, list[int]] = defaultdict(list)
        self.log: Log = []

    def run(self) -> Log:
        self.spawn(0)
        while self.queue:
            self.turn(self.queue.popleft())
        return self.log

    def spawn(self, n: int) -> bool:
        if self.bodies[n].state != "unborn":
            return False
        self.ready(n)
        return True

    def ready(self, n: int, why: str = "", *, first: bool = False) -> None:
        self.bodies[n].state = "ready"
        self.bodies[n].woken_by = why
        if first:
            self.queue.appendleft(n)
        else:
            self.queue.append(n)

    def prefer(self, n: int) -> None:
        if n in self.queue and not self.bodies[n].entered and self.queue[0] != n:
            self.queue.remove(n)
            self.queue.appendleft(n)
            self.bodies[n].preferred = True

    def turn(self, n: int) -> None:
        """Until the fiber waits or ends."""
        body = self.bodies[n]
        if not body.entered and body.cancelled:
            return self.end(n, "cancelled")
        body.entered = True
        if body.waits_for >= 0:
            self.waiters[body.waits_for].remove(n)
            body.waits_for = -1
        if body.woken_by and not self.finish_step(n):
            return None
        while body.at < len(body.steps):
            if self.step(n, body.steps[body.at]) == "left":
                return None
            body.at += 1
        return self.end(n, "ok")

    def finish_step(self, n: int) -> bool:
        """Back from the step it waited in; False if that ended the fiber."""
        body = self.bodies[n]
        why, body.woken_by = body.woken_by, ""
        name, *rest = body.steps[body.at]
        if name == "join" and self.bodies[rest[0]].state == "done":
            why = "end"  # it came before the fiber ran: the end beats the cancellation
        if why == "cancel" or (name == "yield" and body.cancelled):
            return self.raise_cancelled(n)
        if name == "park":
            self.log.append((n, "park", body.permit.pop()))
        else:
            self.log.append((n, name, "end"))
        body.at += 1
        return True

    def raise_cancelled(self, n: int) -> bool:
        """A step in a `try` is over; otherwise the fiber is. True if it goes on."""
        body = self.bodies[n]
        self.log.append((n, body.steps[body.at][0], "cancelled"))
        if body.steps[body.at][-1] == "try":
            body.at += 1
            return True
        self.end(n, "cancelled")
        return False

    def wait(self, n: int, state: str) -> str:
        """Park with nothing there to be had: a cancellation is raised before."""
        body = self.bodies[n]
        if body.cancelled:
            if not self.raise_cancelled(n):
                return "left"
            body.at -= 1  # the caller goes one on
            return ""
        body.state = state
        return "left"

    def step(self, n: int, step: Step) -> str:
        body = self.bodies[n]
        match step:
            case ("yield", *_):
                left = self.wait(n, "ready")
                if left and body.state == "ready":
                    self.ready(n, "value")
                return left
            case ("park", *_):
                if body.permit:
                    self.log.append((n, "park", body.permit.pop()))
                    return ""
                return self.wait(n, "parked")
            case ("sleep", *_):
                return self.wait(n, "sleeping")
            case ("join", target, *_):
                return self.join(n, target)
            case ("spawn", target):
                self.log.append((n, "spawn", self.spawn(target)))
            case ("unpark", target, value):
                self.log.append((n, "unpark", self.unpark(target, value)))
            case ("cancel", target):
                self.log.append((n, "cancel", self.cancel(target)))
            case ("boom",):
                self.end(n, "boom")
                return "left"
        return ""

    def join(self, n: int, target: int) -> str:
        other = self.bodies[target]
        if other.state == "unborn" or target == n:
            self.log.append((n, "join", "refused"))
            return ""
        if other.state == "done":
            self.log.append((n, "join", "end"))
            return ""
        if not self.bodies[n].cancelled:
            self.prefer(target)
        left = self.wait(n, "joining")
        if self.bodies[n].state == "joining":
            self.bodies[n].waits_for = target
            self.waiters[target].append(n)
        return left

    def unpark(self, target: int, value: int) -> Any:
        body = self.bodies[target]
        if body.state in ("unborn", "done"):
            return "refused"
        if body.permit:
            return False
        body.permit.append(value)
        if body.state == "parked":
            self.ready(target, "value")
        return True

    def cancel(self, target: int) -> Any:
        body = self.bodies[target]
        if body.state == "unborn":
            return "refused"
        if body.state == "done":
            return False
        first, body.cancelled = not body.cancelled, True
        if first and body.state in ("parked", "sleeping", "joining"):
            self.ready(target, "cancel")  # in its place in the line until it runs
        return True

    def end(self, n: int, how: str) -> None:
        body = self.bodies[n]
        body.state, body.outcome = "done", how
        self.log.append((n, "ends", how))
        for place, waiter in enumerate(self.waiters.pop(n, ())):
            self.bodies[waiter].waits_for = -1
            if self.bodies[waiter].state == "joining":
                self.ready(waiter, "value", first=body.preferred and place == 0)


# The real thing -----------------------------------------------------------------------------------


class Real:
    """Runs the same program on real fibers and logs the same things."""

    def __init__(self, program: list[list[Step]]) -> None:
        self.program = program
        self.fibers: dict[int, Fiber[None]] = {}
        self.log: Log = []
        self.scheduler = Scheduler()

    def run(self) -> Log:
        """Passes until nothing moves: who waits for ever then is left as it is."""
        self.start(0)
        switches = -1
        while switches != self.scheduler.stats()["switches"]:
            switches = self.scheduler.stats()["switches"]
            for _ in range(3):
                self.scheduler.run_once()
        return self.log

    def start(self, n: int) -> bool:
        if n in self.fibers:
            return False
        make = spawn if n else self.scheduler.spawn
        fiber = self.fibers[n] = make(self.body, n)
        fiber.add_done_callback(lambda done: self.log.append((n, "ends", outcome_of(done))))
        return True

    def body(self, n: int) -> None:
        for step in self.program[n]:
            try:
                self.step(n, step)
            except Cancelled:
                self.log.append((n, step[0], "cancelled"))
                if step[-1] != "try":
                    raise

    def step(self, n: int, step: Step) -> None:
        match step:
            case ("yield", *_):
                yield_now()
                self.log.append((n, "yield", "end"))
            case ("park", *_):
                self.log.append((n, "park", park()))
            case ("sleep", *_):
                sleep(FOREVER)
            case ("join", target, *_):
                self.join(n, target)
            case ("spawn", target):
                self.log.append((n, "spawn", self.start(target)))
            case ("unpark", target, value):
                self.ask(n, "unpark", target, value)
            case ("cancel", target):
                self.ask(n, "cancel", target)
            case ("boom",):
                raise Boom

    def join(self, n: int, target: int) -> None:
        try:
            self.fibers[target].join()
            self.log.append((n, "join", "end"))
        except (FiberError, KeyError):
            self.log.append((n, "join", "refused"))

    def ask(self, n: int, what: str, target: int, *args: Any) -> None:
        try:
            answer = getattr(self.fibers[target], what)(*args)
        except (FiberError, KeyError):
            answer = "refused"
        self.log.append((n, what, answer))


def outcome_of(fiber: Fiber[Any]) -> str:
    match fiber.outcome:
        case Ok(None):
            return "ok"
        case Failed(Boom()):
            return "boom"
        case CancelledOutcome():
            return "cancelled"
    raise AssertionError(fiber.outcome)


# Programs -----------------------------------------------------------------------------------------

numbers = st.integers(0, FIBERS - 1)
maybe_try = st.sampled_from(["", "try"])
steps = st.one_of(
    st.tuples(st.just("yield"), maybe_try),
    st.tuples(st.just("park"), maybe_try),
    st.tuples(st.just("sleep"), maybe_try),
    st.tuples(st.just("join"), numbers, maybe_try),
    st.tuples(st.just("spawn"), numbers),
    st.tuples(st.just("spawn"), numbers),
    st.tuples(st.just("unpark"), numbers, st.integers(0, 9)),
    st.tuples(st.just("cancel"), numbers),
    st.just(("boom",)),
)
bodies = st.lists(steps, max_size=8)


@st.composite
def programs(draw: st.DrawFn) -> list[list[Step]]:
    """Fiber 0 starts some of the others, lest most programs end at once."""
    made = [draw(bodies) for _ in range(FIBERS)]
    born = draw(st.lists(st.integers(1, FIBERS - 1), unique=True))
    made[0] = [("spawn", n) for n in born] + made[0]
    return made


def check(program: list[list[Step]]) -> None:
    model, real = Model(program), Real(program)
    expected = model.run()
    try:
        assert real.run() == expected
        for n, fiber in real.fibers.items():
            assert fiber.done() == (model.bodies[n].state == "done")
            assert fiber.cancelled() == (model.bodies[n].outcome == "cancelled")
    finally:
        real.scheduler.close()
    assert all(fiber.done() for fiber in real.fibers.values())
    assert real.scheduler.stats()["timers"] == 0


@given(programs())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs_do_what_the_model_does(program: list[list[Step]]) -> None:
    check(program)


@pytest.mark.slow
@given(programs())
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_programs_do_what_the_model_does(program: list[list[Step]]) -> None:
    check(program)


# With time ----------------------------------------------------------------------------------------

tiny = st.sampled_from([0, 1e-9, 1e-6, 5e-5, 2e-4])
timed_steps = st.one_of(
    st.tuples(st.just("yield")),
    st.tuples(st.just("sleep"), tiny),
    st.tuples(st.just("park"), tiny),
    st.tuples(st.just("join"), numbers, tiny),
    st.tuples(st.just("unpark"), numbers),
    st.tuples(st.just("cancel"), numbers),
)


def timed_step(step: Step, fibers: list[Fiber[int]]) -> None:
    match step:
        case ("yield",):
            yield_now()
        case ("sleep", seconds):
            sleep(seconds)
        case ("park", seconds):
            park(seconds)
        case ("join", n, seconds):
            if fibers[n] is not current():
                assert fibers[n].join(seconds) == fibers[n].done()
        case ("unpark", n):
            fibers[n].unpark(n)
        case ("cancel", n):
            fibers[n].cancel(n)


@given(st.lists(st.lists(timed_steps, max_size=8), min_size=FIBERS, max_size=FIBERS))
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_programs_with_timers_all_end(program: list[list[Step]]) -> None:
    """Whatever races whatever: every fiber ends, in a way it may, and no timer is left."""
    scheduler = Scheduler()
    fibers: list[Fiber[int]] = []

    def body(mine: list[Step]) -> int:
        done = 0
        for step in mine:
            with contextlib.suppress(TimeoutError, FiberError):
                timed_step(step, fibers)
            done += 1
        return done

    def main() -> None:
        fibers.extend(spawn(body, mine) for mine in program)
        for fiber in fibers:
            fiber.join()

    scheduler.run(main)
    asked = {step[1] for mine in program for step in mine if step[0] == "cancel"}
    for n, fiber in enumerate(fibers):
        match fiber.outcome:
            case Ok(done):
                assert done == len(program[n])
            case CancelledOutcome(reason):
                assert reason == n
                assert n in asked
            case other:
                raise AssertionError(other)
    stats = scheduler.stats()
    assert (stats["timers"], stats["fibers"], stats["ready"]) == (0, 0, 0)
    scheduler.close()
