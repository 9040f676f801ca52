"""The C API through cffi: ``ffi`` and ``lib``.

``lib.pyfiber_*`` are the functions of ``pyfiber.h``, reached through the same table that C and
Cython extensions use. Use them to call the engine with C functions and pointers from Python, or to
hand it to C code. Without C, the functions of :mod:`pyfiber` do the same and are faster. Both may
be mixed in any order::

    from pyfiber.capi import as_handle, check, ffi, lib

    fiber = check(lib.pyfiber_new_c(c_function, c_argument, ffi.NULL))
    value = check(lib.pyfiber_switch(as_handle(fiber), ffi.NULL))

Objects cross as ``PyObject *``:

* :func:`as_handle` makes a pointer of an object, for an argument of ``lib``. The pointer is a
  borrowed reference: keep the object alive while the pointer is used.
* A pointer that ``lib`` returns owns a reference: :func:`check` and :func:`take` turn it into an
  object and consume the reference; ``lib.pyfiber_decref`` drops it.
* :func:`from_handle` turns a pointer into an object and leaves the pointer's reference, if it owns
  one, as it is.

Errors: NULL or -1 means that an exception was raised; :func:`check` raises it. Until then, or until
the fiber's next error, each fiber keeps its exception. The functions named ``pyfiber_context_*``,
``pyfiber_hold``, ``pyfiber_release`` and ``pyfiber_unpark_no_gil`` raise nothing and return
negative errno values: :func:`check_errno` turns them into ``OSError``.
"""

from __future__ import annotations

import os
from typing import Any

from pyfiber import _engine

try:
    from pyfiber._capi import ffi, lib
except ImportError as exc:
    raise ImportError(
        "pyfiber.capi needs cffi, where pyfiber is built and where it runs:"
        " pip install 'cffi>=2.1.1' (and build this package again, if it was built without)",
        name=exc.name,
    ) from exc

__all__ = ["as_handle", "check", "check_errno", "ffi", "from_handle", "lib", "take"]


def as_handle(value: object) -> Any:
    """Return ``value`` as a ``PyObject *`` for ``lib``: a borrowed reference."""
    return ffi.cast("PyObject *", id(value))


def from_handle(handle: Any) -> Any:
    """Return the object that ``handle`` points to, which must be alive.

    Raises ValueError for NULL, TypeError for anything but a ``PyObject *``.
    """
    if not isinstance(handle, ffi.CData) or ffi.typeof(handle) is not OBJECT:
        raise TypeError(f"expected a PyObject *, not {handle!r}")
    return _engine._object_at(int(ffi.cast("uintptr_t", handle)))


def take(handle: Any) -> Any:
    """Return the object that ``handle`` points to; consume the handle's reference."""
    value = from_handle(handle)
    lib.pyfiber_decref(handle)
    return value


def check(result: Any) -> Any:
    """Return the result of a call of ``lib`` as Python has it: the object, or the number.

    If the call failed, raises its exception.
    """
    if isinstance(result, int):
        if result >= 0:
            return result
    elif result:
        return take(result)
    error = lib.pyfiber_take_error()
    if not error:
        raise SystemError("the last call of lib by this fiber did not fail")
    raise take(error)


def check_errno(result: int) -> int:
    """Return ``result``; raise OSError if it is a negative errno value."""
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


@ffi.def_extern()  # type: ignore[untyped-decorator]
def pyfiber_call(handle: Any) -> Any:
    """``lib.pyfiber_call``: a fiber's body that calls the Python function behind a handle."""
    try:
        value = ffi.from_handle(handle)()
    except BaseException as exc:
        lib.pyfiber_set_error(as_handle(exc))
        return ffi.NULL
    return lib.pyfiber_incref(as_handle(value))


OBJECT = ffi.typeof("PyObject *")
