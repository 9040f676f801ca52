"""asyncio with fibers: plain code in coroutines, fibers beside tasks, a loop in a fiber.

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

``async with Host() as host`` runs a whole scheduler between the callbacks of the running loop::

    >>> import pyfiber
    >>> def main():
    ...     return pyfiber.gather(*(lambda n=n: await_(length("x" * n)) for n in (1, 2)))
    >>> async def with_fibers():
    ...     async with Host() as host:
    ...         return await host.run(main)
    >>> asyncio.run(with_fibers())
    [1, 2]

``new_event_loop()`` makes a loop that runs in a fiber of ``pyfiber.run()``, beside the others::

    >>> def in_a_fiber():
    ...     with asyncio.Runner(loop_factory=new_event_loop) as runner:
    ...         return runner.run(length("Zoot"))
    >>> pyfiber.run(in_a_fiber)
    4
"""

from __future__ import annotations

import sys

from pyfiber.aio._host import Host
from pyfiber.aio._loop import new_event_loop
from pyfiber.aio._task import await_, run_in_fiber

__all__ = ["Host", "await_", "new_event_loop", "run_in_fiber"]

for _name in __all__:
    getattr(sys.modules[__name__], _name).__module__ = __name__
del _name
