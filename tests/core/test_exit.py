"""The end: of the interpreter, of the process, of a forked one; subinterpreters."""

from __future__ import annotations

import os
import sys

import pytest

from tests.conftest import Child

HEAD = """
import sys
from pyfiber import Fiber, FiberError, FiberExit, current
main = current()
"""


# ------------------------------------------------------------------------ exit


@pytest.mark.slow
def test_exit_with_thousands_suspended_runs_their_finally_blocks(child: Child) -> None:
    done = child(
        HEAD
        + """
ended = 0
def work():
    global ended
    try:
        main.switch()
    finally:
        ended += 1
        if ended == 5000:
            print("all of them")
fibers = [Fiber(work) for _ in range(5000)]
for fiber in fibers:
    fiber.switch()
print("end of the program")
"""
    )
    assert done.stdout == "end of the program\nall of them\n"


def test_exit_unwinds_fibers_that_only_cycles_hold(child: Child) -> None:
    done = child(
        HEAD
        + """
def work():
    me = current()
    try:
        main.switch()
    finally:
        print("finally")
Fiber(work).switch()
"""
    )
    assert done.stdout == "finally\n"


def test_exit_with_fibers_suspended_in_every_kind_of_place(child: Child) -> None:
    done = child(
        HEAD
        + """
import json, re, xml.parsers.expat
def generate():
    try:
        main.switch()
        yield
    finally:
        print("generator")
def parse():
    parser = xml.parsers.expat.ParserCreate()
    parser.StartElementHandler = lambda *a: main.switch()
    try:
        parser.Parse(b"<a/>", True)
    finally:
        print("parser")
def handle():
    try:
        raise KeyError
    except KeyError:
        try:
            main.switch()
        finally:
            print("handler")
fibers = [
    Fiber(lambda: list(generate())), Fiber(parse), Fiber(handle),
    Fiber(lambda: sorted([2, 1], key=lambda i: main.switch())),
    Fiber(lambda: re.sub("a", lambda m: main.switch(), "a")),
    Fiber(main.switch),
    Fiber(lambda: (lambda f: (f.switch(), main.switch()))(Fiber(main.switch))),
    Fiber(print, ("never started",)),
]
for fiber in fibers[:-1]:
    fiber.switch()
"""
    )
    assert sorted(done.stdout.split()) == ["generator", "handler", "parser"]


def test_exit_with_a_fiber_that_fails_in_its_finally_block(child: Child) -> None:
    done = child(
        HEAD
        + """
def work():
    try:
        main.switch()
    finally:
        raise KeyError("at exit")
fiber = Fiber(work)
fiber.switch()
print("end")
""",
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout == "end\n"
    assert "KeyError: 'at exit'" in done.stderr


def test_exit_with_a_fiber_that_swallows_the_exit(child: Child) -> None:
    done = child(
        HEAD
        + """
def work():
    while True:
        try:
            main.switch()
        except FiberExit:
            print("swallowed")
            break
    return 1
fiber = Fiber(work)
fiber.switch()
"""
    )
    assert done.stdout == "swallowed\n"


def test_exit_with_a_fiber_that_switches_in_its_finally_block(child: Child) -> None:
    done = child(
        HEAD
        + """
def work():
    try:
        main.switch()
    finally:
        try:
            main.switch()
        except FiberError:
            print("refused")
fiber = Fiber(work)
fiber.switch()
"""
    )
    assert done.stdout == "refused\n"


def test_sys_exit_inside_a_fiber_ends_the_program(child: Child) -> None:
    done = child(
        HEAD
        + """
def work():
    try:
        sys.exit(7)
    finally:
        print("finally")
Fiber(work).switch()
print("not reached")
""",
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "finally\n", "")


def test_exception_out_of_a_fiber_ends_the_program_with_its_traceback(child: Child) -> None:
    done = child(
        HEAD
        + """
def work():
    raise KeyError("uncaught")
held = Fiber(main.switch)
held.switch()
Fiber(work).switch()
""",
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):")
    assert "in work" in done.stderr
    assert done.stderr.endswith("KeyError: 'uncaught'\n")


def test_program_that_ends_while_a_fiber_runs(child: Child) -> None:
    """The main fiber is left for good: sys.exit comes from deep inside of others."""
    done = child(
        HEAD
        + """
def inner():
    sys.exit(3)
def outer():
    try:
        Fiber(inner).switch()
    finally:
        print("outer")
Fiber(outer).switch()
""",
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "outer\n", "")


def test_os_exit_inside_a_fiber(child: Child) -> None:
    done = child(HEAD + "import os\nFiber(os._exit, (4,)).switch()\n", check=False)
    assert (done.returncode, done.stderr) == (4, "")


def test_atexit_callbacks_may_use_fibers(child: Child) -> None:
    done = child(
        """
import atexit
atexit.register(lambda: print("registered before", late()))
def late():
    import pyfiber
    try:
        return pyfiber.Fiber(lambda: "ran").switch()
    except pyfiber.FiberError as error:
        return "refused"
import pyfiber
atexit.register(lambda: print("registered after", late()))
pyfiber.Fiber(int).switch()
"""
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "registered after ran"
    assert lines[1].startswith("registered before ")


def test_fibers_in_objects_that_die_with_their_module(child: Child) -> None:
    """Finalizers at the very end touch fibers: they get an error, not a crash."""
    done = child(
        HEAD
        + """
class Late:
    def __init__(self, fiber):
        self.fiber, self.error = fiber, FiberError
    def __del__(self):
        try:
            self.fiber.switch()
        except self.error:
            pass
        except BaseException as error:
            print(type(error))
        try:
            type(self.fiber)(int).switch()
        except self.error:
            pass
def work():
    main.switch()
fiber = Fiber(work)
fiber.switch()
late = Late(fiber)
sys.late = Late(Fiber(work))
"""
    )
    assert done.stdout == ""


def test_exit_with_daemon_threads_that_hold_fibers(child: Child) -> None:
    child(
        """
import threading, time
from pyfiber import Fiber, current
ready = threading.Barrier(5)
def live():
    main = current()
    def work():
        try:
            while True:
                main.switch()
        finally:
            pass
    fibers = [Fiber(work) for _ in range(20)]
    for fiber in fibers:
        fiber.switch()
    ready.wait()
    while True:
        for fiber in fibers:
            fiber.switch()
for _ in range(4):
    threading.Thread(target=live, daemon=True).start()
ready.wait()
"""
    )


def test_exit_with_daemon_threads_blocked_inside_of_fibers(child: Child) -> None:
    child(
        """
import threading
from pyfiber import Fiber, current
inside = threading.Semaphore(0)
def live():
    def work():
        inside.release()
        threading.Event().wait()
    Fiber(work).switch()
for _ in range(4):
    threading.Thread(target=live, daemon=True).start()
for _ in range(4):
    inside.acquire()
"""
    )


def test_exit_drops_fibers_of_daemon_threads(child: Child) -> None:
    """The main thread holds the last references to fibers of threads that are cut off."""
    child(
        """
import threading
from pyfiber import Fiber, current
kept = []
ready = threading.Event()
def live():
    main = current()
    kept.extend(Fiber(main.switch) for _ in range(10))
    for fiber in kept:
        fiber.switch()
    ready.set()
    threading.Event().wait()
threading.Thread(target=live, daemon=True).start()
ready.wait()
kept.clear()
"""
    )


def test_exit_while_the_main_thread_waits_for_threads_with_fibers(child: Child) -> None:
    done = child(
        """
import os, threading
from pyfiber import Fiber, current
def live(number):
    main = current()
    def work():
        try:
            main.switch()
        finally:
            os.write(1, b"finally\\n")  # in one piece
    kept = Fiber(work)
    kept.switch()
    box.append(kept)
box = []
for number in range(5):
    threading.Thread(target=live, args=(number,)).start()
"""
    )
    assert done.stdout.split() == ["finally"] * 5


def test_exit_under_a_tracer_and_with_allocator_checks(child: Child) -> None:
    child(
        HEAD
        + """
sys.settrace(lambda *a: None)
sys.setprofile(lambda *a: None)
def work():
    try:
        main.switch()
    finally:
        pass
fibers = [Fiber(work) for _ in range(50)]
for fiber in fibers:
    fiber.switch()
""",
        env={"PYTHONMALLOC": "debug", "PYTHONDEVMODE": "1"},
    )


def test_no_memory_is_left_behind_by_ended_fibers(child: Child) -> None:
    """Not one block for every second turn of ten fibers."""
    done = child(
        HEAD
        + """
from tests.support.growth import grows
def work(a, *, k):
    main.switch([a, k])
    raise KeyError(a)
def turn(count):
    for number in range(count):
        fiber = Fiber(work, (number,), {"k": 1}, name=f"n{number}")
        fiber.add_done_callback(lambda f: None)
        fiber.switch()
        try:
            if number % 3:
                fiber.switch()
        except KeyError:
            pass
        fiber.outcome
print(not grows(lambda: turn(10), 500))
"""
    )
    assert done.stdout == "True\n"


# ------------------------------------------------------------------------ fork


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

FORK = (
    """
import os, warnings
warnings.simplefilter("ignore", DeprecationWarning)
"""
    + HEAD
    + """
def wait(pid):
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)
"""
)


@needs_fork
def test_fork_inside_a_fiber_both_go_on(child: Child) -> None:
    done = child(
        FORK
        + """
def work():
    pid = os.fork()
    value = main.switch(pid)
    return value + 1
fiber = Fiber(work)
pid = fiber.switch()
answer = fiber.switch(41)
if pid == 0:
    os._exit(answer)
print(wait(pid), answer)
"""
    )
    assert done.stdout == "42 42\n"


@needs_fork
def test_fork_with_suspended_fibers_both_run_them(child: Child) -> None:
    done = child(
        FORK
        + """
def work(number):
    return number + main.switch()
fibers = [Fiber(work, (n,)) for n in range(100)]
for fiber in fibers:
    fiber.switch()
pid = os.fork()
total = sum(fiber.switch(1) for fiber in fibers)
more = sum(Fiber(lambda: 1).switch() for _ in range(100))
if pid == 0:
    os._exit(0 if (total, more) == (5050, 100) else 1)
print(wait(pid), total, more)
"""
    )
    assert done.stdout == "0 5050 100\n"


@needs_fork
def test_fork_child_leaves_normally_with_suspended_fibers(child: Child) -> None:
    done = child(
        FORK
        + """
def work():
    try:
        main.switch()
    finally:
        print("finally", flush=True)
fiber = Fiber(work)
fiber.switch()
sys.stdout.flush()
pid = os.fork()
if pid != 0:
    print("child:", wait(pid), flush=True)
"""
    )
    assert done.stdout == "finally\nchild: 0\nfinally\n"


@needs_fork
def test_fork_with_fibers_on_other_threads(child: Child) -> None:
    """They are out of reach in the child: touching them is refused, dropping them harmless."""
    done = child(
        FORK
        + """
import gc, threading
ready, leave = threading.Event(), threading.Event()
box = []
def live():
    box.append(Fiber(current().switch))
    box[0].switch()
    ready.set()
    leave.wait()
thread = threading.Thread(target=live)
thread.start()
ready.wait()
pid = os.fork()
if pid == 0:
    try:
        box[0].switch()
    except FiberError:
        box.clear()
        gc.collect()
        assert Fiber(lambda: 5).switch() == 5
        os._exit(0)
    os._exit(1)
print(wait(pid))
leave.set()
thread.join()
"""
    )
    assert done.stdout == "0\n"


@needs_fork
def test_fork_on_a_thread_makes_it_the_childs_main_thread(child: Child) -> None:
    done = child(
        FORK
        + """
import threading
log = []
def live():
    here = current()
    fiber = Fiber(lambda: here.switch(1) + 1)
    fiber.switch()
    pid = os.fork()
    answer = fiber.switch(5)
    if pid == 0:
        os._exit(answer)
    log.append((wait(pid), answer))
thread = threading.Thread(target=live)
thread.start()
thread.join()
print(log)
"""
    )
    assert done.stdout == "[(6, 6)]\n"


@needs_fork
def test_fork_again_and_again_inside_of_fibers(child: Child) -> None:
    done = child(
        FORK
        + """
def generation(depth):
    if depth == 0:
        return 1
    pid = os.fork()
    if pid == 0:
        os._exit(Fiber(generation, (depth - 1,)).switch() + 1)
    return wait(pid)
print(Fiber(generation, (5,)).switch())
"""
    )
    assert done.stdout == "6\n"


# ------------------------------------------------------------------ subinterpreters


INTERPRETERS = """
import sys
def run(source):
    if sys.version_info >= (3, 14):
        from concurrent import interpreters
        interpreter = interpreters.create()
        try:
            interpreter.exec(source)
        except interpreters.ExecutionFailed as error:
            return str(error)
        finally:
            interpreter.close()
    elif sys.version_info >= (3, 13):
        import _interpreters
        interpreter = _interpreters.create()
        failed = _interpreters.exec(interpreter, source)
        _interpreters.destroy(interpreter)
        if failed is not None:
            return f"{failed.type.__name__}: {failed.msg}"
    else:
        import _xxsubinterpreters
        interpreter = _xxsubinterpreters.create()
        try:
            _xxsubinterpreters.run_string(interpreter, source)
        except _xxsubinterpreters.RunFailedError as error:
            return str(error)
        finally:
            _xxsubinterpreters.destroy(interpreter)
    return "it worked"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="embedding differs")
@pytest.mark.parametrize("first", [False, True], ids=["fresh", "after-the-main-one"])
def test_subinterpreter_is_refused_with_an_import_error(child: Child, first: bool) -> None:
    source = INTERPRETERS
    if first:
        source += "import pyfiber\nheld = pyfiber.Fiber(pyfiber.current().switch)\nheld.switch()\n"
    source += "print(run('import pyfiber'))\n"
    source += "import pyfiber\nprint(pyfiber.Fiber(lambda: 'main one works').switch())\n"
    lines = child(source).stdout.splitlines()
    assert "ImportError" in lines[0]
    assert "subinterpreters" in lines[0] or "subinterpreter" in lines[0]
    assert lines[-1] == "main one works"
