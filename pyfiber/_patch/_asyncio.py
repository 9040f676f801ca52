"""The part ``asyncio``: in a fiber ``asyncio.run()`` uses pyfiber's loop, which parks the fiber."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pyfiber._engine import _load
from pyfiber._patch._record import Record


def new_event_loop() -> Any:
    """What ``asyncio.new_event_loop()`` does in a fiber."""
    return _load("pyfiber.aio").new_event_loop()


def apply(record: Record) -> None:
    """Apply this part once asyncio is imported: that is slow, and not every program needs it."""

    def imported(module: ModuleType) -> None:
        record.function(module, "new_event_loop", new_event_loop)

    record.when_imported("asyncio.events", imported)
