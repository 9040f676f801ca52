"""Switches: two fibers pass control to each other, at the top of and deep in their call stacks.

One operation is one transfer of control, half a round trip. Every subject drives the same loop,
and every method is bound before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from itertools import repeat
from threading import Lock, Thread
from typing import Any, TypeVar

import pyfiber

from ..model import Case, Row, Sample, clock
from ..peers import load

T = TypeVar("T")
#: A function that calls another one at that depth.
Below = Callable[[int, Callable[[], Any]], Any]

DEPTH_PYTHON = 500
DEPTH_C = 50


def time_round_trips(there_and_back: Callable[[], object], count: int) -> Sample:
    """Time `count` transfers of control, two to a round trip."""
    rounds = (count + 1) // 2
    start = clock()
    for _ in repeat(None, rounds):
        there_and_back()
    return Sample(clock() - start, 2 * rounds)


def time_exchanges(exchange: Callable[[Any], Any], count: int) -> Sample:
    """Time `count` transfers of control, each with an object handed over."""
    rounds = (count + 1) // 2
    value: object = "ball"
    start = clock()
    for _ in repeat(None, rounds):
        value = exchange(value)
    return Sample(clock() - start, 2 * rounds)


def answer_forever(back: Callable[[], object]) -> None:
    """Switch back for ever: the other side of a round trip."""
    while True:
        back()


def return_forever(back: Callable[[Any], Any]) -> None:
    """Send each object back for ever: the other side of an exchange."""
    value = None
    while True:
        value = back(value)


def below_python(depth: int, function: Callable[[], T]) -> T:
    """Call a function from `depth` nested calls of Python functions."""
    if depth == 0:
        return function()
    return below_python(depth - 1, function)


def below_c(depth: int, function: Callable[[], T]) -> T:
    """Call a function from `depth` nested callbacks of `map`, each of which adds C frames."""
    if depth == 0:
        return function()

    def deeper(level: int) -> T:
        return below_c(level, function)

    return next(map(deeper, (depth - 1,)))


# pyfiber ---------------------------------------------------------------------------------------


def pyfiber_switch(count: int) -> Sample:
    """`Fiber.switch()` both ways."""
    other = pyfiber.Fiber(answer_forever, (pyfiber.current().switch,))
    other.switch()
    return time_round_trips(other.switch, count)


def pyfiber_value(count: int) -> Sample:
    """`Fiber.switch(value)` both ways."""
    other = pyfiber.Fiber(return_forever, (pyfiber.current().switch,))
    other.switch()
    return time_exchanges(other.switch, count)


def pyfiber_deep(below: Below, depth: int, count: int) -> Sample:
    """Both fibers suspend below so many frames."""
    answer = partial(answer_forever, pyfiber.current().switch)
    other = pyfiber.Fiber(below, (depth, answer))
    other.switch()
    timed: Sample = below(depth, partial(time_round_trips, other.switch, count))
    return timed


# greenlet --------------------------------------------------------------------------------------


def greenlet_switch(count: int) -> Sample:
    """`greenlet.switch()` both ways."""
    greenlet = load("greenlet")
    other = greenlet.greenlet(answer_forever)
    other.switch(greenlet.getcurrent().switch)
    return time_round_trips(other.switch, count)


def greenlet_value(count: int) -> Sample:
    """`greenlet.switch(value)` both ways."""
    greenlet = load("greenlet")
    other = greenlet.greenlet(return_forever)
    other.switch(greenlet.getcurrent().switch)
    return time_exchanges(other.switch, count)


def greenlet_deep(below: Below, depth: int, count: int) -> Sample:
    """Both greenlets suspend below so many frames."""
    greenlet = load("greenlet")
    other = greenlet.greenlet(below)
    other.switch(depth, partial(answer_forever, greenlet.getcurrent().switch))
    timed: Sample = below(depth, partial(time_round_trips, other.switch, count))
    return timed


# generators ------------------------------------------------------------------------------------


def yield_forever() -> Generator[None, None, None]:
    """A generator that answers every `next` at once."""
    while True:
        yield


def yield_back() -> Generator[Any, Any, None]:
    """A generator that gives back what is sent to it."""
    value = None
    while True:
        value = yield value


def yield_from_below(depth: int) -> Generator[None, None, None]:
    """A generator that yields through `depth` others."""
    if depth == 0:
        yield from yield_forever()
    yield from yield_from_below(depth - 1)


def generator_switch(count: int) -> Sample:
    """`generator.send(None)`, the fastest call: in and out again are two transfers."""
    other = yield_forever()
    next(other)
    send = other.send
    rounds = (count + 1) // 2
    start = clock()
    for _ in repeat(None, rounds):
        send(None)
    return Sample(clock() - start, 2 * rounds)


def generator_value(count: int) -> Sample:
    """`generator.send(value)`: in and out again are two transfers."""
    other = yield_back()
    next(other)
    return time_exchanges(other.send, count)


def generator_deep_python(depth: int, count: int) -> Sample:
    """A generator that yields through a chain of `depth` `yield from`."""
    other = yield_from_below(depth - 1)
    next(other)
    return time_round_trips(partial(other.send, None), count)


# threads ---------------------------------------------------------------------------------------


def threads_switch(count: int) -> Sample:
    """Two threads, each waiting for a lock that the other releases."""
    rounds = (count + 1) // 2
    here, there = Lock(), Lock()
    here.acquire()
    there.acquire()

    def answer() -> None:
        wait, wake = there.acquire, here.release
        for _ in repeat(None, rounds):
            wait()
            wake()

    other = Thread(target=answer)
    other.start()
    wait, wake = here.acquire, there.release
    start = clock()
    for _ in repeat(None, rounds):
        wake()
        wait()
    elapsed = clock() - start
    other.join()
    return Sample(elapsed, 2 * rounds)


def deep_cases(depth: int) -> tuple[Case, ...]:
    """A switch below so many Python frames, one at least."""
    return (
        Case("pyfiber", partial(pyfiber_deep, below_python, depth)),
        Case("greenlet", partial(greenlet_deep, below_python, depth)),
        Case(
            "generator", partial(generator_deep_python, depth), note=f"through {depth} `yield from`"
        ),
    )


ROWS = (
    Row(
        "switch",
        "one switch, ping-pong",
        "Two fibers switch to each other without arguments; the time of half a round trip.",
        (
            Case("pyfiber", pyfiber_switch),
            Case("greenlet", greenlet_switch),
            Case("generator", generator_switch, note="send(None); suspends a single frame"),
            Case("threads", threads_switch, note="a pair of locks"),
        ),
        count=1_000_000,
        quick=100_000,
        budget=0.5,
    ),
    Row(
        "switch-value",
        "one switch that carries a value",
        "Two fibers hand one object back and forth; the time of half a round trip.",
        (
            Case("pyfiber", pyfiber_value),
            Case("greenlet", greenlet_value),
            Case("generator", generator_value, note="send(value)"),
        ),
        count=1_000_000,
        quick=50_000,
    ),
    Row(
        "deep-python",
        f"one switch, {DEPTH_PYTHON} Python frames deep",
        f"As `switch`, with both fibers suspended below {DEPTH_PYTHON} nested Python calls.",
        deep_cases(DEPTH_PYTHON),
        count=1_000_000,
        quick=50_000,
    ),
    Row(
        "deep-c",
        f"one switch, {DEPTH_C} C frames deep",
        f"As `switch`, with both fibers suspended below {DEPTH_C} nested callbacks of map().",
        (
            Case("pyfiber", partial(pyfiber_deep, below_c, DEPTH_C)),
            Case("greenlet", partial(greenlet_deep, below_c, DEPTH_C)),
        ),
        count=1_000_000,
        quick=50_000,
        impossible={"generator": "cannot be suspended below a C function"},
    ),
)
