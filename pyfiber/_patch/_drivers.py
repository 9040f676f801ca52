"""The part ``drivers``: installs pyfiber's hooks for psycopg and psycopg2 at their import."""

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
    """Install the hook ``pyfiber.{name}`` when the driver is imported, if ``wanted(driver)``.

    If the import of the hook's module has imported the driver, the module has no ``install()`` yet.
    Then the hook is installed at the end of that import.
    """
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
    """Whether the import of the hook's module is in progress."""
    hook = sys.modules.get(f"pyfiber.{name}")
    return hook is not None and not hasattr(hook, "install")


def apply(record: Record) -> None:
    """Apply this part; the record undoes it."""
    _with_driver(record, "psycopg", lambda driver: True)
    _with_driver(record, "psycopg2", lambda driver: driver.extensions.get_wait_callback() is None)
