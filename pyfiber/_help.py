"""Could anything besides Python's threads wake a fiber when all fibers of a run wait?

The engine asks before it calls that a deadlock. Signal handlers of the program could, and threads
that Python does not know.
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
from collections.abc import Iterator
from importlib.machinery import EXTENSION_SUFFIXES

from pyfiber import _engine

#: Modules whose signal handlers do not count: pyfiber's own wake only fibers that are known to wait
#: for a signal, and pytest-timeout's raises an exception.
_HARMLESS = ("pyfiber._signals", "pyfiber._report", "pytest_timeout")
#: The folders of CPython's own extension modules, and last the folder of pyfiber's.
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
#: The folders of installed packages, which may lie within those of _OWN.
_NOT_OWN = tuple(
    os.path.join(folder, "")
    for folder in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    if folder
)
#: Extension modules through which Python code calls any C library.
_DOORS = ("_ctypes", "_cffi_backend")


def handled_signals() -> Iterator[signal.Signals]:
    """Signals for which the program has set a handler, which may do anything."""
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
    """Is code loaded that could have started threads which call into Python?

    CPython itself starts a thread that Python does not know, for
    ``faulthandler.dump_traceback_later()``, but that calls nothing. So unknown threads count only
    if an extension module is loaded that is not CPython's own, or if a program embeds Python.
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
    """Is the program of this process not Python's? False where the system does not say."""
    try:
        program = os.readlink("/proc/self/exe")
    except OSError:
        return False
    python = getattr(sys, "_base_executable", sys.executable) or ""
    return os.path.realpath(python) != os.path.realpath(program)


def could_be_woken() -> bool:
    """Could a signal handler of the program wake a fiber, or a thread that Python does not know?

    The engine asks when no other thread of Python could wake a fiber.
    """
    return any(True for _ in handled_signals()) or (
        has_foreign_code() and _engine._has_unknown_threads()
    )
