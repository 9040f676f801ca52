"""``asyncio.run()`` in a fiber has pyfiber's loop, which parks that fiber; elsewhere its own."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pyfiber._engine import _load
from pyfiber._patch._record import Record


def new_event_loop() -> Any:
    """In a fiber."""
    return _load("pyfiber.aio").new_event_loop()


def apply(record: Record) -> None:
    """See Record. asyncio takes long to import: a program that does not use it need not."""

    def imported(module: ModuleType) -> None:
        record.function(module, "new_event_loop", new_event_loop)

    record.when_imported("asyncio.events", imported)
