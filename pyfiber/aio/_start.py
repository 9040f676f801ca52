"""``start()``: a future for anything that can be awaited, begun in the running fiber."""

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
    """A future for the awaitable: the future itself, or a new task.

    The task begins at once where asyncio supports that, from Python 3.12 on.
    """
    if asyncio.current_task(loop) is not None:
        raise FiberError("await_() in a coroutine: write `await` instead")
    if asyncio.isfuture(awaitable):
        if awaitable.get_loop() is not loop:
            raise ValueError("await_() of a future that belongs to another loop")
        return awaitable
    coroutine = awaitable if asyncio.iscoroutine(awaitable) else _awaiting(awaitable)
    # The task may wait for other fibers in its first step, and these must not count as the task.
    return keep_asyncio_state(_make_task, loop, coroutine, _own_context(fiber))  # type: ignore[no-any-return]


async def _awaiting(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _own_context(fiber: Fiber[Any]) -> Context:
    """The fiber's context, so that the fiber sees what the coroutine sets.

    If the fiber is in the middle of a Context.run(), a copy: a context cannot be entered twice.
    """
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
