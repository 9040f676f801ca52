"""A guest, asyncio's loop or a step of it, and fibers that it has switched to."""

from __future__ import annotations

import asyncio
from typing import Any

from pyfiber import Fiber, current, park, run, spawn, yield_now
from pyfiber.aio._asyncio_state import keep_asyncio_state


def test_guest_may_end_while_a_fiber_that_it_switched_to_waits() -> None:
    """That fiber has set the guest aside, and finds it over when it continues."""
    inner: list[Fiber[Any]] = []
    seen: list[object] = []
    main_fiber: Fiber[Any] = current()
    loop = asyncio.new_event_loop()

    def waits() -> None:
        inner.append(current())
        park()
        seen.append(asyncio._get_running_loop())

    def body() -> None:
        asyncio._set_running_loop(loop)
        Fiber(waits).switch()  # comes back by the switch of main, before waits() has ended
        asyncio._set_running_loop(None)

    def host() -> None:
        keep_asyncio_state(body)
        main_fiber.switch()
        seen.append("host goes on")

    def main() -> None:
        nonlocal main_fiber
        main_fiber = current()
        fiber = spawn(host)
        yield_now()
        fiber.switch()
        inner[0].unpark()
        yield_now()
        assert fiber.outcome is not None
        keep_asyncio_state(yield_now)  # nothing is left of the first one
        assert asyncio._get_running_loop() is None

    try:
        run(main)
    finally:
        loop.close()
    assert seen == [None, "host goes on"]


def test_fiber_that_a_guest_switched_to_sets_the_guest_aside_while_it_waits() -> None:
    """The guest's own fiber is suspended meanwhile: nothing of the guest may be on its stack."""
    seen: list[object] = []

    def waits() -> None:
        for _ in range(3):
            yield_now()
            seen.append(asyncio._get_running_loop() is loop)

    def body() -> None:
        asyncio._set_running_loop(loop)
        Fiber(waits).switch()
        assert asyncio._get_running_loop() is loop
        asyncio._set_running_loop(None)

    def other() -> None:
        for _ in range(4):
            assert asyncio._get_running_loop() is None
            yield_now()

    def main() -> None:
        fibers = [spawn(other) for _ in range(4)]
        keep_asyncio_state(body)
        for fiber in fibers:
            fiber.join()

    loop = asyncio.new_event_loop()
    try:
        run(main)
    finally:
        loop.close()
    assert seen == [True, True, True]
