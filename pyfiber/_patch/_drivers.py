"""Drivers written in C that have a hook for their waits: those are installed with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from pyfiber._engine import _load
from pyfiber._patch._record import Record


def _install(record: Record, name: str, hook: ModuleType) -> None:
    if not hook.is_installed():
        hook.install()
        record.on_undo(hook.uninstall)
        record.notes.append(f"{name}, by pyfiber.{name}.install()")


def _with_driver(record: Record, name: str, wanted: Callable[[ModuleType], bool]) -> None:
    """Install the hook with the driver, if it is wanted."""
    late: list[str] = []

    def imported(driver: ModuleType) -> None:
        if not wanted(driver):
            record.notes.append(f"{name} keeps the wait callback that the program has set")
        elif _is_under_way(name):
            late.append(name)
        else:
            _install(record, name, _load(f"pyfiber.{name}"))

    def complete(hook: ModuleType) -> None:
        if late:
            late.clear()
            _install(record, name, hook)

    record.when_imported(f"pyfiber.{name}", complete)
    record.when_imported(name, imported)


def _is_under_way(name: str) -> bool:
    """Whether it is our own module whose import has imported the driver."""
    hook = sys.modules.get(f"pyfiber.{name}")
    return hook is not None and not hasattr(hook, "install")


def apply(record: Record) -> None:
    """See Record."""
    _with_driver(record, "psycopg", lambda driver: True)
    _with_driver(record, "psycopg2", lambda driver: driver.extensions.get_wait_callback() is None)
