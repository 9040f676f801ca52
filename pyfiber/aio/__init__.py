"""asyncio, both ways: plain code in coroutines.

``await run_in_fiber(fn)`` calls a plain function in a fiber of the running task, and ``await_()``
waits in it::

    >>> import asyncio
    >>> from pyfiber.aio import await_, run_in_fiber
    >>> def plain(names):
    ...     return sorted(names, key=lambda name: await_(length(name)))
    >>> async def length(name):
    ...     await asyncio.sleep(0)
    ...     return len(name)
    >>> asyncio.run(run_in_fiber(plain, ["Lancelot", "Tim"]))
    ['Tim', 'Lancelot']
"""

from __future__ import annotations

from pyfiber.aio._task import await_, run_in_fiber

__all__ = ["await_", "run_in_fiber"]

for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
