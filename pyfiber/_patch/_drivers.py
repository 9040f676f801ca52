"""Drivers written in C that have a hook for their waits: those are installed with them."""

from __future__ import annotations

from types import ModuleType

from pyfiber._engine import _load
from pyfiber._patch._record import Record


def _install(record: Record, name: str) -> None:
    hook = _load(f"pyfiber.{name}")
    if not hook.is_installed():
        hook.install()
        record.on_undo(hook.uninstall)
        record.notes.append(f"{name}, by pyfiber.{name}.install()")


def apply(record: Record) -> None:
    """See Record."""

    def psycopg(module: ModuleType) -> None:
        _install(record, "psycopg")

    def psycopg2(module: ModuleType) -> None:
        if module.extensions.get_wait_callback() is None:
            _install(record, "psycopg2")
        else:
            record.notes.append("psycopg2 keeps the wait callback that the program has set")

    record.when_imported("psycopg", psycopg)
    record.when_imported("psycopg2", psycopg2)
