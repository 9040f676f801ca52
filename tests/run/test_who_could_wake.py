"""A deadlock is reported only where nobody could wake a fiber any more."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support.subprocesses import EMULATED, run_script

pytestmark = pytest.mark.skipif(EMULATED, reason="the emulator has threads of its own")

PRELUDE = """
import os, signal, subprocess, sys, threading, time
import pyfiber
from pyfiber import DeadlockError, Event, park, run, spawn
def ends(fn):
    "How a run of it ends."
    try:
        return run(fn)
    except DeadlockError as exc:
        return str(exc).splitlines()[0]
DEADLOCK = "1 fiber waits and nothing can wake one: no timer is set, no other thread runs"
"""


def printed(code: str) -> str:
    done = run_script(PRELUDE + code)
    assert done.stderr == ""
    return done.stdout.rstrip()


@pytest.mark.skipif(os.name == "nt", reason="signals between processes are POSIX")
@pytest.mark.parametrize("patched", ["", "pyfiber.patch()"])
def test_handler_of_the_program_may_wake_a_fiber(patched: str) -> None:
    """The usual service, which waits for an event that SIGTERM's handler sets, ended at once."""
    assert (
        printed(f"""
{patched}
stop = threading.Event() if {bool(patched)} else Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
sender = subprocess.Popen(["/bin/sh", "-c", f"sleep 0.1; kill -TERM {{os.getpid()}}"])
print(ends(stop.wait))
sender.wait()
""")
        == "True"
    )


def test_deadlock_is_reported_with_handlers_that_wake_nobody() -> None:
    assert (
        printed("""
if os.name != "nt":
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    pyfiber.debug.dump_on_signal(signal.SIGUSR2)
print(ends(park) == DEADLOCK)
""")
        == "True"
    )


def test_deadlock_is_reported_again_when_the_handler_is_gone() -> None:
    assert (
        printed("""
before = signal.signal(signal.SIGINT, lambda *_: None)
def resets():
    signal.signal(signal.SIGINT, before)
    park()
print(ends(resets) == DEADLOCK)
""")
        == "True"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="usleep() is called as a thread's function")
def test_deadlock_is_reported_once_no_thread_is_left_that_python_does_not_know() -> None:
    """One of a C library's own may call in at any time: its main function is the library's."""
    assert (
        printed("""
import ctypes
from tests.core.c_threads import libc
thread = ctypes.c_ulong()
assert libc().pthread_create(
    ctypes.byref(thread), None, libc().usleep, ctypes.c_void_p(300_000)
) == 0
assert pyfiber._engine._has_unknown_threads()
print(ends(park) == DEADLOCK, pyfiber._engine._has_unknown_threads())
""")
        == "True False"
    )


def test_deadlock_is_reported_beside_the_thread_of_faulthandler() -> None:
    """It is none that Python knows by its states, but CPython's own."""
    assert (
        printed("""
import faulthandler
faulthandler.dump_traceback_later(50, exit=True)
assert pyfiber._engine._has_unknown_threads()
print(ends(park) == DEADLOCK)
""")
        == "True"
    )


def test_what_dies_with_a_failed_look_cannot_wait() -> None:
    """It would wait in the loop, which nobody would ever bring back."""
    assert printed("""
class Waiting:
    def __del__(self):
        try:
            park()
        except pyfiber.FiberError as error:
            refused.append(str(error))
def tracer(frame, event, arg):
    if frame.f_code.co_name == "could_be_woken" and not refused:
        dying = Waiting()
        raise ValueError
refused = []
sys.unraisablehook = lambda info: None
sys.settrace(tracer)
end = ends(park)
sys.settrace(None)
assert end == DEADLOCK, end
print(refused)
""") == str(["cannot leave this fiber while a run looks for who could wake it"])
