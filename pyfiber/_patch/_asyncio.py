"""The part ``asyncio``: in a fiber a loop of asyncio's parks the fiber while it waits.

``asyncio.run()`` uses pyfiber's loop. A loop that a program makes by hand, or by another
``loop_factory``, is left as it is, and waits in its selector, which parks as any selector does.
While it parks, asyncio's running loop is set aside, so that other fibers do not see the loop.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pyfiber._engine import _load, _outside
from pyfiber._patch._record import Record


def new_event_loop() -> Any:
    """What ``asyncio.new_event_loop()`` does in a fiber."""
    return _load("pyfiber.aio").new_event_loop()


def apply(record: Record) -> None:
    """Apply this part once asyncio is imported: that is slow, and not every program needs it."""

    def imported(module: ModuleType) -> None:
        record.function(module, "new_event_loop", new_event_loop)

    def imported_loops(module: ModuleType) -> None:
        loop = module.BaseEventLoop
        theirs = _outside(vars(loop)["run_forever"])

        def run_forever(self: Any) -> Any:
            """``run_forever()`` of a loop of the standard library."""
            return _load("pyfiber.aio._asyncio_state").keep_asyncio_state(theirs, self)

        record.method(loop, "run_forever", run_forever)

    record.when_imported("asyncio.events", imported)
    record.when_imported("asyncio.base_events", imported_loops)
