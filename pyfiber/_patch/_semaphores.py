"""The locks and semaphores of ``multiprocessing``, of the part ``subprocess``.

These belong to the system, which cannot tell a loop that one is free, so a fiber asks again and
again. The system's recursive locks count for the thread; here they count for the fiber.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pyfiber import _engine
from pyfiber._patch._polling import look_until
from pyfiber._patch._record import Record

#: The kind of SemLock that its holder may take again.
_RECURSIVE = 0


class Semaphore:
    """Parks fibers in the place of one ``_multiprocessing.SemLock``."""

    def __init__(self, semlock: Any) -> None:
        self._semlock = semlock
        #: The fiber or thread that holds a recursive lock in this process.
        self._owner: int | None = None

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        if not _engine._may_park():
            return self._note(self._semlock.acquire(block, timeout))
        return _engine._call_patched(look_until, self._try, timeout if block else 0)  # type: ignore[no-any-return]

    def _try(self) -> bool:
        return not self._is_anothers() and self._note(self._semlock.acquire(False))

    def _is_anothers(self) -> bool:
        """Does another fiber hold the recursive lock, which to the system is the same thread?"""
        return (
            self._semlock.kind == _RECURSIVE
            and self._semlock._is_mine()
            and self._owner not in (None, _engine._fiber_ident())
        )

    def _note(self, taken: bool) -> bool:
        if taken:
            self._owner = _engine._fiber_ident()
        return taken

    def release(self) -> None:
        if self._is_anothers():
            raise AssertionError("attempt to release recursive lock not owned by thread")
        self._semlock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _make_methods(self: Any) -> None:
    """``SemLock._make_methods()``, which gives each object its methods."""
    self._parks = Semaphore(self._semlock)
    self.acquire = self._parks.acquire
    self.release = self._parks.release


def _enter(self: Any) -> Any:
    return getattr(self, "_parks", self._semlock).__enter__()


def _exit(self: Any, *args: object) -> Any:
    return getattr(self, "_parks", self._semlock).__exit__(*args)


def change(record: Record, module: ModuleType) -> None:
    """Change the class of these objects in ``multiprocessing.synchronize``."""
    record.replace(module.SemLock, "_make_methods", _make_methods)
    record.replace(module.SemLock, "__enter__", _enter)
    record.replace(module.SemLock, "__exit__", _exit)
