"""A future for whatever can be awaited, begun in the running fiber."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from contextvars import Context
from typing import Any

from pyfiber._engine import Fiber, FiberError
from pyfiber.aio._asyncio_state import keep_asyncio_state


def start(
    loop: asyncio.AbstractEventLoop, fiber: Fiber[Any], awaitable: Awaitable[Any]
) -> asyncio.Future[Any]:
    """The future itself, or a task. That begins at once where asyncio can do it, from 3.12 on."""
    if asyncio.current_task(loop) is not None:
        raise FiberError("await_() in a coroutine: write `await` instead")
    if asyncio.isfuture(awaitable):
        if awaitable.get_loop() is not loop:
            raise ValueError("await_() of a future that belongs to another loop")
        return awaitable
    coroutine = awaitable if asyncio.iscoroutine(awaitable) else _awaiting(awaitable)
    # Inside of the task the fiber may wait for others, who must not be taken for the task.
    return keep_asyncio_state(_make_task, loop, coroutine, _own_context(fiber))  # type: ignore[no-any-return]


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _own_context(fiber: Fiber[Any]) -> Context:
    """What the coroutine sets, the fiber sees; unless that is in the midst of a Context.run()."""
    context = fiber.context
    assert context is not None
    try:
        context.run(_nothing)
    except RuntimeError:
        return context.copy()
    return context


def _nothing() -> None:
    pass


def _make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context) -> Any:
    if sys.version_info >= (3, 12) and loop.get_task_factory() is None:
        return asyncio.Task(coroutine, loop=loop, context=context, eager_start=True)
    return loop.create_task(coroutine, context=context)
