"""Fibers on threads that C made, and what is suspended there when such a thread ends."""

from __future__ import annotations

import pytest

from tests.conftest import Child
from tests.core.c_threads import can_make, ends_are_seen

pytestmark = pytest.mark.skipif(not can_make(), reason="no pthread_create here")

if_ends_are_seen = pytest.mark.skipif(
    can_make() and not ends_are_seen(), reason="this C library tells of a thread's end too late"
)


def test_fibers_on_a_thread_that_c_made(child: Child) -> None:
    done = child(
        """
        from tests.core.c_threads import in_c_thread
        from pyfiber import Fiber, current
        log = []
        kept = []

        def body():
            main = current()

            def work():
                try:
                    main.switch("value")
                finally:
                    log.append("finally")

            kept.append(Fiber(work))
            log.append(kept[-1].switch())

        in_c_thread(body, body, body)
        print(log, [fiber.state for fiber in kept])
        """
    )
    assert done.stdout == f"{['value', 'finally'] * 3} {['done'] * 3}\n"


def test_fiber_that_calls_back_from_c_as_its_c_thread_ends(child: Child) -> None:
    """The thread's state is being cleared: the callback's end must not clear it once more."""
    done = child(
        """
        from tests.core.c_threads import call_through_c, in_c_thread
        from pyfiber import Fiber, current
        log = []
        kept = []

        def body():
            main = current()

            def work():
                try:
                    main.switch()
                finally:
                    call_through_c(lambda: log.append("called"))
                    log.append("finally")

            kept.append(Fiber(work))
            kept[-1].switch()

        in_c_thread(body, body, body)
        print(log, [fiber.state for fiber in kept])
        """
    )
    assert done.stdout == f"{['called', 'finally'] * 3} {['done'] * 3}\n"


NESTED = """
from tests.core.c_threads import in_c_thread, suspended_in_callback
log = []
kept = []

def body():
    kept.append(suspended_in_callback(lambda: log.append("unwound")))

in_c_thread(body, body, body)
print(log, [fiber.state for fiber in kept])
"""


@if_ends_are_seen
def test_fiber_suspended_in_a_nested_callback_is_unwound_as_its_c_thread_ends(
    child: Child,
) -> None:
    assert child(NESTED).stdout == f"{['unwound'] * 3} {['done'] * 3}\n"


@pytest.mark.skipif(not can_make() or ends_are_seen(), reason="they are unwound here")
def test_fiber_suspended_in_a_nested_callback_is_named_as_its_c_thread_ends(child: Child) -> None:
    done = child(NESTED, check=False)
    assert done.returncode == 0
    assert done.stdout == f"[] {['parked'] * 3}\n"
    assert done.stderr.count("can never be unwound") == 3
    assert done.stderr.count("<pyfiber.Fiber 'nested' parked") == 3


@if_ends_are_seen
def test_c_threads_that_leave_nested_fibers_leave_no_memory(child: Child) -> None:
    done = child(
        """
        from tests.core.c_threads import in_c_thread, suspended_in_callback
        from tests.support.growth import grows

        def body():
            kept.append(suspended_in_callback(lambda: None))

        def act():
            kept.clear()
            in_c_thread(body)

        kept = []
        act()
        print(grows(act, 30))
        """
    )
    assert done.stdout == "False\n"


def test_c_thread_comes_back_to_a_fiber_suspended_in_a_nested_callback(child: Child) -> None:
    """One thread, two callbacks one after the other: the second ends what the first began."""
    done = child(
        """
        import ctypes
        from tests.core.c_threads import CALLBACK, in_c_thread, libc, suspended_in_callback
        log = []
        fibers = []

        def one(a, b):
            if not fibers:
                fibers.append(suspended_in_callback(lambda: log.append("unwound")))
            elif fibers[0].state == "parked":
                fibers[0].switch()
                log.append(fibers[0].state)
            return 0

        triple = (ctypes.c_int * 3)(3, 2, 1)
        callback = CALLBACK(one)

        def body():
            libc().qsort(triple, 3, 4, callback)

        in_c_thread(body)
        print(log)
        """
    )
    assert done.stdout == "['done']\n"


@if_ends_are_seen
def test_fiber_left_by_a_c_thread_of_a_forked_child_is_unwound(child: Child) -> None:
    done = child(
        """
        import os, warnings
        from tests.core.c_threads import in_c_thread, suspended_in_callback
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork() beside threads
        read, write = os.pipe()
        pid = None
        kept = []

        def body():
            global pid
            kept.append(suspended_in_callback(lambda: os.write(write, b"unwound ")))
            pid = os.fork()

        in_c_thread(body)
        os.waitpid(pid, 0)
        print(os.read(read, 100))
        """
    )
    assert done.stdout == "b'unwound unwound '\n"


def test_exit_called_by_a_c_thread_with_a_nested_fiber(child: Child) -> None:
    """C's exit() in the midst of Python code: nothing is entered any more, nothing crashes."""
    done = child(
        """
        from tests.core.c_threads import in_c_thread, libc, suspended_in_callback
        kept = []

        def body():
            kept.append(suspended_in_callback(lambda: print("unwound", flush=True)))
            libc().exit(3)

        in_c_thread(body)
        """,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_interpreter_exits_while_a_c_thread_has_a_nested_fiber(child: Child) -> None:
    """The thread waits in C for a moment that does not come."""
    done = child(
        """
        import ctypes, threading
        from tests.core.c_threads import libc, suspended_in_callback
        ready = threading.Event()
        kept = []

        def body(_):
            kept.append(suspended_in_callback(lambda: print("unwound", flush=True)))
            ready.set()
            libc().sleep(1000)

        start = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(body)
        thread = ctypes.c_ulong()
        assert libc().pthread_create(ctypes.byref(thread), None, start, None) == 0
        ready.wait()
        """
    )
    assert done.stdout == ""
