"""What asyncio keeps for the thread: the running loop, and the current task of each loop.

``keep_asyncio_state(fn, *args)`` calls a function that may set the two. While the function waits,
they are set aside, so that the thread's other fibers do not see a loop that is not theirs. See
csrc/python/wait/asyncio.h.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from pyfiber._engine import _keep_asyncio_state

_asyncio: Any = import_module("_asyncio")

# _take and _give are functions in C, so that no signal handler runs in the middle of an exchange.
_take: Callable[[Any, Any], Any]
_give: Callable[[Any, Any], Any]
if sys.version_info >= (3, 14):
    _take = _give = _asyncio._swap_current_task
else:
    _take, _give = _asyncio._current_tasks.pop, _asyncio._current_tasks.__setitem__

keep_asyncio_state: Callable[..., Any] = partial(
    _keep_asyncio_state, (_asyncio._get_running_loop, _asyncio._set_running_loop, _take, _give)
)
