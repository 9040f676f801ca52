"""The loops that the tests run on: asyncio's own and, where it is installed, uvloop's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

try:
    import uvloop
except ImportError:
    uvloop = None

T = TypeVar("T")
Factory = Callable[[], asyncio.AbstractEventLoop]

needs_uvloop = pytest.mark.skipif(uvloop is None, reason="uvloop is NOT INSTALLED")


def _uvloop() -> asyncio.AbstractEventLoop:
    return uvloop.new_event_loop()  # type: ignore[no-any-return]


def _asyncio() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


FACTORIES = [
    pytest.param(_asyncio, id="asyncio"),
    pytest.param(_uvloop, id="uvloop", marks=needs_uvloop),
]


def run_on(factory: Factory, main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run(), and nobody else's error goes to a log unseen."""
    told: list[Any] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        return await main

    with asyncio.Runner(loop_factory=factory) as runner:
        result = runner.run(watched())
    assert told == []
    return result
