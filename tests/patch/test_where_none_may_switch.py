"""Patched waits in places where no fiber may be left: an error at once instead of a silent hang."""

from __future__ import annotations

from tests.support.subprocesses import run_script

PRELUDE = """
import gc, os, queue, signal, sys, threading, time
import pyfiber
pyfiber.patch()
told = []
sys.unraisablehook = lambda what: told.append(str(what.exc_value))
lock = KIND()
class Thing:
    "Finalized by the collector."
    def __init__(self, fn):
        self.me, self.fn = self, fn
    def __del__(self):
        self.fn()
def holder():
    with lock:
        time.sleep(0.05)
def collected(fn, hold=True):
    fiber = pyfiber.spawn(holder) if hold else None
    pyfiber.yield_now()
    Thing(fn)
    gc.collect()
    if fiber is not None:
        fiber.join()
def takes():
    with lock:
        told.append("taken")
"""


def told(code: str, kind: str = "threading.Lock") -> str:
    done = run_script(PRELUDE.replace("KIND", kind) + code + "\nprint(*told, sep='\\n')")
    assert done.stderr == ""
    return done.stdout.rstrip()


def assert_names_holder(text: str) -> None:
    assert text.startswith("cannot wait for <"), text
    assert "fiber 'holder' at 0x" in text
    assert "in holder(), holds it, and cannot go on before this returns" in text


def test_lock_in_a_finalizer_that_another_fiber_holds() -> None:
    """It was silent, for ever."""
    text = told("pyfiber.run(collected, takes)")
    assert_names_holder(text)
    assert "while the garbage collector runs (in __del__ or a weakref callback, say)" in text


def test_rlock_in_a_finalizer_that_another_fiber_holds() -> None:
    """The interpreter's own RLock belongs to the thread: both fibers were in it."""
    assert_names_holder(told("pyfiber.run(collected, takes)", "threading.RLock"))


def test_wait_with_a_time_limit_is_refused_within_it() -> None:
    assert_names_holder(told("pyfiber.run(collected, lambda: lock.acquire(timeout=30))"))


def test_try_where_no_fiber_may_be_left_is_only_a_try() -> None:
    code = "pyfiber.run(collected, lambda: told.append(lock.acquire(blocking=False)))"
    assert told(code) == "False"
    assert told(code, "threading.RLock") == "False"


def test_free_lock_in_a_finalizer_is_taken() -> None:
    assert told("pyfiber.run(collected, takes, False)") == "taken"
    assert told("pyfiber.run(collected, takes, False)", "threading.RLock") == "taken"


def test_lock_that_the_interrupted_fiber_holds_itself() -> None:
    text = told("""
def main():
    with lock:
        Thing(takes)
        gc.collect()
pyfiber.run(main)
""")
    assert "fiber 'main' at 0x" in text
    assert "holds it itself, and cannot go on before this returns" in text


def test_lock_that_another_thread_holds_is_waited_for() -> None:
    assert (
        told("""
def threads_holder():
    with lock:
        held.set()
        time.sleep(0.05)
held = threading.Event()
thread = threading.Thread(target=threads_holder)
thread.start()
held.wait()
pyfiber.run(collected, takes, False)
thread.join()
""")
        == "taken"
    )


def test_wait_for_another_thread_that_takes_long_is_told_of() -> None:
    text = told("""
import logging
logging.getLogger("pyfiber").addHandler(logging.NullHandler())
logging.getLogger("pyfiber").handlers[0].handle = lambda record: told.append(record.getMessage())
from pyfiber import _hooks
_hooks.set_stall_limit(0.05)
def threads_holder():
    with lock:
        held.set()
        go_on.wait()
held, go_on = threading.Event(), threading.Event()
thread = threading.Thread(target=threads_holder)
thread.start()
held.wait()
threading.Timer(0.3, go_on.set).start()
pyfiber.run(collected, takes, False)
thread.join()
""")
    lines = text.splitlines()
    assert "has blocked every fiber of this thread for 0.05 s" in lines[0]
    assert any("in takes" in line for line in lines)
    assert lines[-1] == "taken"


def test_queue_and_event_that_nobody_could_end_are_refused() -> None:
    text = told("""
pyfiber.run(collected, queue.SimpleQueue().get, False)
pyfiber.run(collected, queue.Queue().get, False)
pyfiber.run(collected, threading.Event().wait, False)
""")
    assert text.count("nobody could end that wait, for no fiber goes on before this returns") == 3


def test_lock_in_a_signal_handler_that_interrupts_the_idle_loop() -> None:
    text = told("""
def handler(*_):
    try:
        takes()
    except pyfiber.FiberError as exc:
        told.append(str(exc))
if hasattr(signal, "setitimer"):
    signal.signal(signal.SIGALRM, handler)
    def main():
        fiber = pyfiber.spawn(holder)
        pyfiber.yield_now()
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        fiber.join()
    pyfiber.run(main)
""")
    if text:
        assert_names_holder(text)


def test_lock_in_a_done_callback_that_another_fiber_holds() -> None:
    text = told("""
def callback(fiber):
    try:
        takes()
    except pyfiber.FiberError as exc:
        told.append(str(exc))
def main():
    fiber = pyfiber.spawn(holder)
    pyfiber.yield_now()
    short = pyfiber.spawn(lambda: None)
    short.add_done_callback(callback)
    fiber.join()
pyfiber.run(main)
""")
    assert_names_holder(text)


def test_lock_that_was_released_by_another_is_nobodys() -> None:
    assert (
        told("""
def main():
    fiber = pyfiber.spawn(lambda: (lock.acquire(), time.sleep(0.05)))
    pyfiber.yield_now()
    lock.release()
    Thing(takes)
    gc.collect()
    fiber.join()
pyfiber.run(main)
""")
        == "taken"
    )


def test_locks_that_die_locked_leave_nothing_behind() -> None:
    """Such as those on which threading.Condition lets its waiters wait."""
    assert (
        told("""
def main():
    before = pyfiber._engine._lot_count()
    for _ in range(100):
        threading.Lock().acquire()
        threading.Event().wait(0.0001)
    told.append(pyfiber._engine._lot_count() - before)
pyfiber.run(main)
""")
        == "0"
    )


def test_deadlock_report_names_the_holder_of_a_lock() -> None:
    done = run_script("""
        import threading, pyfiber
        pyfiber.patch()
        lock = threading.Lock()
        def holds():
            with lock:
                pyfiber.park()
        def main():
            pyfiber.Fiber(holds, name="holds").start()
            pyfiber.yield_now()
            lock.acquire()
        try:
            pyfiber.run(main)
        except pyfiber.DeadlockError as exc:
            print(exc)
    """)
    assert "held by fiber 'holds'" in done.stdout


def test_event_that_a_dropped_fiber_waits_for_while_it_is_unwound() -> None:
    """The fiber has held no lock before, and the condition takes its own again."""
    assert "cannot wait for <" in told("""
event = threading.Event()
def dropped(out):
    try:
        out.switch()
    finally:
        event.wait(0.01)
def drops():
    pyfiber.Fiber(dropped, (pyfiber.current(),)).switch()
drops()
pyfiber.run(drops)
""")
