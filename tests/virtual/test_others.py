"""What a thread does to other threads: exceptions, trace functions, and what comes at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.conftest import Child
from tests.virtual.conftest import Prints

Command = Callable[..., tuple[int, str, str]]

RAISES = """
import ctypes, threading, time
raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
class Stop(Exception):
    pass
"""


def test_exception_for_a_thread_that_waits_is_raised_after_the_wait(prints: Prints) -> None:
    assert (
        prints(
            RAISES
            + """
def work(name):
    try:
        begun.release()
        print(name, go.acquire())
        for _ in range(100):
            pass
        print(name, "goes on")
    except Stop as exc:
        print(name, repr(exc))
begun, go = threading.Semaphore(0), threading.Semaphore(0)
threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
for thread in threads:
    thread.start()
for _ in threads:
    begun.acquire()
a, b, c = (ctypes.c_ulong(thread.ident) for thread in threads)
print(raise_in(a, ctypes.py_object(ValueError)), raise_in(a, ctypes.py_object(Stop)))
print(raise_in(b, ctypes.py_object(Stop)), raise_in(b, None))
time.sleep(0.01)
go.release(3)
for thread in threads:
    thread.join()
print(raise_in(a, ctypes.py_object(Stop)), "when it has ended")
"""
        )
        == "1 1\n1 1\na Stop()\nb True\nb goes on\nc True\nc goes on\n0 when it has ended\n"
    )


def test_exception_for_a_thread_that_computes_ends_it(prints: Prints) -> None:
    assert (
        prints(
            RAISES
            + """
def compute():
    try:
        begun.set()
        while True:
            pass
    except Stop:
        print("stopped")
begun = threading.Event()
thread = threading.Thread(target=compute)
thread.start()
begun.wait()
raise_in.argtypes = ctypes.c_ulong, ctypes.py_object
print(raise_in(thread.ident, Stop))
thread.join()
"""
        )
        == "1\nstopped\n"
    )


def test_exception_for_the_main_program_is_raised_there(prints: Prints) -> None:
    assert (
        prints(
            RAISES
            + """
def work():
    go.wait()
    print(raise_in(ctypes.c_ulong(main), ctypes.py_object(Stop)))
    for _ in range(100):
        pass
    print("the thread goes on")
main, go = threading.get_ident(), threading.Event()
thread = threading.Thread(target=work)
thread.start()
try:
    go.set()
    thread.join()
    for _ in range(100):
        pass
    print("not raised")
except Stop:
    print("raised in main")
thread.join()
try:
    raise_in(ctypes.c_ulong(main), ctypes.py_object(Stop))
    while True:
        pass
except Stop:
    print("also by itself")
"""
        )
        == "1\nthe thread goes on\nraised in main\nalso by itself\n"
    )


def test_exception_for_a_native_thread_and_for_no_thread(prints: Prints) -> None:
    assert (
        prints(
            RAISES
            + """
def compute():
    try:
        begun.set()
        while True:
            pass
    except Stop:
        print("stopped")
begun = threading.Event()
thread = pyfiber.native_thread(compute)
thread.start()
begun.wait()
raised = raise_in(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop))
thread.join()
print(raised, raise_in(ctypes.c_ulong(-1), ctypes.py_object(Stop)))
"""
        )
        == "stopped\n1 0\n"
    )


def test_function_for_exceptions_is_the_interpreters_after_the_block(child: Child) -> None:
    child(
        """
        import ctypes, pyfiber
        before = ctypes.pythonapi.PyThreadState_SetAsyncExc
        with pyfiber.virtual_threads():
            inside = ctypes.pythonapi.PyThreadState_SetAsyncExc
            assert inside is not before
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc is before
        assert inside(ctypes.c_ulong(-1), ctypes.py_object(ValueError)) == 0
        """
    )


@pytest.mark.skipif(sys.version_info < (3, 12), reason="threading has no such function")
@pytest.mark.parametrize("kind", ["trace", "profile"])
def test_function_for_all_threads_reaches_those_that_trace_and_those_that_do_not(
    prints: Prints, kind: str
) -> None:
    source = """
        import sys, threading
        def own(*args): pass
        def of_all(*args): pass
        def work(function):
            if function:
                sys.settrace(function)
            begun.release()
            go.acquire()
            seen.append(sys.gettrace())
            sys.settrace(None)
        begun, go, seen = threading.Semaphore(0), threading.Semaphore(0), []
        threads = [threading.Thread(target=work, args=(each,)) for each in (None, own, None)]
        for thread in threads:
            thread.start()
            begun.acquire()
        sys.settrace(own)
        threading.settrace_all_threads(of_all)
        print(sys.gettrace() is of_all)
        sys.settrace(None)
        go.release(3)
        for thread in threads:
            thread.join()
        print(seen == [of_all] * 3, sys.gettrace())
        later = threading.Thread(target=work, args=(None,))
        go.release()
        later.start()
        later.join()
        print(seen[3] is of_all)
        threading.settrace_all_threads(None)
        print(sys.gettrace(), threading.gettrace())
    """
    source = source.replace("trace", kind)
    assert prints(source) == "True\nTrue None\nTrue\nNone None\n"


def test_native_ids_are_not_used_again(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            threads = [threading.Thread(target=threading.get_native_id) for _ in range(1000)]
            for thread in threads:
                thread.start()
                thread.join()
            ids = {thread.native_id for thread in threads}
            print(len(ids), threading.get_native_id() not in ids)
            """
        )
        == "1000 True\n"
    )


#: A function that is called before threads are joined ends a thread that is no daemon.
ENDS = """
import threading
def work():
    stop.wait()
    print("thread ends")
def end(word):
    print(word)
    stop.set()
stop = threading.Event()
threading.Thread(target=work).start()
threading._register_atexit(print, "last")
threading._register_atexit(end, word="first")
"""


def test_functions_that_end_threads_are_called_at_the_end_of_the_block(prints: Prints) -> None:
    assert prints(ENDS) == "first\nlast\nthread ends\n"


def test_functions_that_end_threads_are_called_once(command: Command) -> None:
    assert command(ENDS) == (0, "first\nlast\nthread ends\n", "")
    early = "threading._shutdown()\nprint(threading.main_thread().is_alive())\n"
    assert command(ENDS + early) == (0, "first\nlast\nthread ends\nFalse\n", "")


def test_function_before_threads_end_may_fail_and_cannot_add_another(command: Command) -> None:
    code, out, err = command(
        """
        import threading
        def work():
            stop.wait()
        stop = threading.Event()
        threading.Thread(target=work).start()
        threading._register_atexit(stop.set)
        threading._register_atexit(lambda: threading._register_atexit(print))
        """
    )
    assert (code, out) == (0, "")
    assert "RuntimeError: can't register atexit after shutdown" in err


def test_threads_whose_stacks_were_moved_are_reached(prints: Prints) -> None:
    assert (
        prints(
            RAISES
            + """
import sys
def work():
    sys.setprofile(own)
    begun.release()
    try:
        go.acquire()
        for _ in range(100):
            pass
    except Stop:
        sys.setprofile(None)
        stopped.append(1)
    else:
        if set_in_all:
            found.append(sys.getprofile())
def own(*args):
    pass
def of_all(*args):
    pass
begun, go = threading.Semaphore(0), threading.Semaphore(0)
stopped, found = [], []
set_in_all = getattr(threading, "setprofile_all_threads", None)
threads = [threading.Thread(target=work) for _ in range(1500)]
for thread in threads:
    thread.start()
for _ in threads:
    begun.acquire()
if set_in_all:
    set_in_all(of_all)
for thread in threads[::2]:
    assert raise_in(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop)) == 1
go.release(len(threads))
for thread in threads:
    thread.join()
print(len(stopped), not set_in_all or found == [of_all] * 750)
"""
        )
        == "750 True\n"
    )
