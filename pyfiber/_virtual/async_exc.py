"""``ctypes.pythonapi.PyThreadState_SetAsyncExc()``, by which programs end a thread from outside.

The interpreter's function knows one thread for all fibers. For the ident of a fiber, or of the main
program, the stand-in has the exception raised there.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pyfiber import _engine
from pyfiber._patch._record import Record

NAME = "PyThreadState_SetAsyncExc"


class SetAsyncExc:
    """What a program gets as ``ctypes.pythonapi.PyThreadState_SetAsyncExc``.

    Other attributes, such as ``argtypes``, are those of the interpreter's function.
    """

    def __init__(self, original: Any, py_object: type[Any]) -> None:
        vars(self).update(_original=original, _py_object=py_object)

    def __call__(self, ident: Any, exc: Any) -> Any:
        number = getattr(ident, "value", ident)
        if isinstance(number, int) and _engine._set_async_exc(number, self._wanted(exc)):
            return 1
        return self._original(ident, exc)

    def _wanted(self, exc: Any) -> Any:
        """The exception type; None: no exception any more."""
        if not isinstance(exc, self._py_object):
            return exc if isinstance(exc, type) else None
        try:
            return exc.value
        except ValueError:  # NULL
            return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._original, name, value)

    def __repr__(self) -> str:
        return repr(self._original)


def apply(record: Record) -> None:
    """Put the stand-in in place as soon as ctypes is imported; the record undoes it."""

    def imported(ctypes: ModuleType) -> None:
        api = ctypes.pythonapi
        record.replace(api, NAME, SetAsyncExc(getattr(api, NAME), ctypes.py_object))

    record.when_imported("ctypes", imported)
