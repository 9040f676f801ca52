"""Who, beside Python's threads, could still wake a fiber when all of a run's fibers wait."""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES

from pyfiber import _engine

#: Modules whose handlers wake nobody: pyfiber's own wake only fibers that are known to wait for a
#: signal, and pytest-timeout's raises an exception.
_HARMLESS = ("pyfiber._signals", "pyfiber._report", "pytest_timeout")
#: Where CPython's own extension modules are; and pyfiber's.
_OWN = tuple(
    os.path.join(folder, "")
    for folder in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        sysconfig.get_config_var("DESTSHARED"),
        os.path.dirname(os.path.abspath(__file__)),
    )
    if folder
)
_NOT_OWN = tuple(
    os.path.join(folder, "")
    for folder in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    if folder
)
#: Extension modules of CPython's own through which any C library is called.
_DOORS = ("_ctypes", "_cffi_backend")


def handled_signals() -> Iterator[signal.Signals]:
    """Signals with a handler that the program has set, which may do anything."""
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if (
            callable(handler)
            and handler is not signal.default_int_handler
            and handler is not _engine._on_sigint
            and getattr(handler, "__module__", None) not in _HARMLESS
        ):
            yield signal.Signals(number)


def has_foreign_code() -> bool:
    """Whether code is loaded that could have made threads that call in.

    CPython has such a thread itself (of ``faulthandler.dump_traceback_later()``), which calls
    nobody. So unknown threads mean something only beside an extension module that is not CPython's
    own, or in a program in which Python is embedded.
    """
    if any(door in sys.modules for door in _DOORS) or _is_embedded():
        return True
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(tuple(EXTENSION_SUFFIXES)):
            path = os.path.abspath(file)
            if path.startswith(_NOT_OWN) and not path.startswith(_OWN[-1:]):
                return True
            if not path.startswith(_OWN):
                return True
    return False


def _is_embedded() -> bool:
    """Whether the process's program is another one than Python's, as far as the system tells."""
    try:
        program = os.readlink("/proc/self/exe")
    except OSError:
        return False
    python = getattr(sys, "_base_executable", sys.executable) or ""
    return os.path.realpath(python) != os.path.realpath(program)


def could_be_woken() -> bool:
    """Whether a handler of the program's could wake a fiber, or a thread that Python does not know.

    Called on the main thread, or where only such threads are left: no other thread of Python's
    could.
    """
    return any(True for _ in handled_signals()) or (
        has_foreign_code() and _engine._has_unknown_threads()
    )
