"""Long chains, in which each object is kept by the next one only, are dropped on a small stack."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest

import pyfiber
from pyfiber import Channel, Fiber, Queue, current, grains, greenlet, select, spawn, stack_size

RESULTS = 100_000
#: Stacks take memory, and to set a parent takes as long as the line of ancestors.
PARENTS = 4_000
SMALL = 128 * 1024


class Sub(Fiber[Any]):
    pass


def suspended_parents() -> Any:
    main, last = current(), None
    for _ in range(PARENTS):
        fiber = Fiber(main.switch, stack_size=SMALL)
        if last is not None:
            fiber.parent = last
        last = fiber
        fiber.switch()
    return last


def new_parents(kind: Callable[[Any], Any]) -> Any:
    last = kind(int)
    for _ in range(PARENTS):
        fiber = kind(int)
        fiber.parent = last
        last = fiber
    return last


def fiber_results() -> Any:
    last: Any = None
    for _ in range(RESULTS):
        fiber: Any = Fiber(lambda last=last: last)
        fiber.switch()
        last = fiber
    return last


def grain_results() -> Any:
    def body(value: Any) -> Any:
        return value
        yield

    def main() -> Any:
        last: Any = None
        for _ in range(RESULTS):
            grain = grains.spawn(body, last)
            grain.join()
            last = grain
        return last

    return pyfiber.run(main)


def queues() -> Any:
    last: Any = None
    for _ in range(RESULTS):
        queue: Any = Queue()
        queue.put(last)
        last = queue
    return last


def channels() -> Any:
    def main() -> Any:
        last: Any = None
        for _ in range(RESULTS):
            channel: Any = Channel(1)
            channel.send(last)
            last = channel
        return last

    return pyfiber.run(main)


def kept(last: Any) -> Any:
    """Nothing else refers to it, and weak references to what is made are allowed."""
    channel: Channel[Any] = Channel(1)
    channel.send(last)
    return channel


def received() -> Any:
    channel: Channel[Any] = Channel(1)
    last: Any = None
    for _ in range(RESULTS):
        channel.send(last)
        last = select(channel.receiving())
    return kept(last)


def cases() -> Any:
    last: Any = None
    for _ in range(RESULTS):
        last = Channel[Any](1).sending(last)
    return kept(last)


def joined() -> Any:
    def main() -> Any:
        last: Any = None
        for _ in range(RESULTS // 10):
            last = spawn(lambda last=last: last).joining()
        return kept(last)

    return pyfiber.run(main)


@pytest.mark.parametrize(
    "make",
    [
        suspended_parents,
        lambda: new_parents(Fiber),
        lambda: new_parents(Sub),
        lambda: new_parents(greenlet.greenlet),
        fiber_results,
        grain_results,
        queues,
        channels,
        received,
        cases,
        joined,
    ],
    ids=[
        *("suspended", "new", "subclass", "greenlet"),
        *("results", "grains", "queues", "channels", "received", "cases", "joined"),
    ],
)
def test_long_chain_is_dropped_on_a_small_stack(make: Callable[[], Any]) -> None:
    box = [make()]
    gone = weakref.ref(box[0])
    dropper: Any = Fiber(box.clear, stack_size=min(SMALL, stack_size()))
    dropper.switch()
    assert dropper.done()
    assert gone() is None
