"""What happens when a stack is used up by C code that nobody counts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import Child
from tests.support.subprocesses import EMULATED

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the system reports it there")

#: next() of nested iterators recurses in C, and nothing counts how deep.
OVERFLOW = """
from pyfiber import Fiber
nested = iter([1])
for _ in range(60_000):
    nested = filter(None, nested)
def deep_next():
    return next(nested)
def caller():
    return deep_next()
"""


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode < 0, "it should have died of a signal"
    return done.stderr.splitlines()


def test_overflow_names_the_fiber_and_its_stack_size(child: Child) -> None:
    source = OVERFLOW + "Fiber(caller, name='greedy', stack_size=512 * 1024).switch()\n"
    lines = lines_of(child(source, check=False))
    first = lines[0]
    assert first.startswith("Fatal pyfiber error: stack overflow in fiber 'greedy'")
    assert "512 KiB" in first


def test_overflow_names_the_function_of_an_unnamed_fiber(child: Child) -> None:
    lines = lines_of(child(OVERFLOW + "Fiber(caller).switch()\n", check=False))
    assert "'caller'" in lines[0]


def test_overflow_line_of_the_default_stack_says_its_size(child: Child) -> None:
    lines = lines_of(child(OVERFLOW + "Fiber(caller).switch()\n", check=False))
    assert "1024 KiB" in lines[0]


def test_overflow_prints_the_fibers_traceback(child: Child) -> None:
    done = child(OVERFLOW + "Fiber(caller, name='greedy').switch()\n", check=False)
    text = done.stderr
    assert text.index("in deep_next") < text.index("in caller")
    assert "line 7" in text
    assert "shim" not in text


@pytest.mark.parametrize("when", ["before", "after"])
def test_faulthandler_runs_after_the_report(child: Child, when: str) -> None:
    enable = "import faulthandler; faulthandler.enable()\n"
    source = OVERFLOW + "Fiber(caller, name='greedy').switch()\n"
    source = (
        enable + source if when == "before" else source.replace("nested =", enable + "nested =", 1)
    )
    lines = lines_of(child(source, check=False))
    assert lines[0].startswith("Fatal pyfiber error")
    assert any(line.startswith("Fatal Python error: Segmentation fault") for line in lines)


SORT = """
def down(depth):
    return sorted([0], key=lambda item: down(depth + 1))
def work():
    try:
        down(0)
    except RecursionError:
        return "RecursionError"
print(Fiber(work).switch())
"""


@pytest.mark.parametrize("when", ["never", "before", "after", "after the first fiber"])
def test_deep_recursion_ends_in_recursion_error_whenever_faulthandler_is_enabled(
    child: Child, when: str
) -> None:
    # A handler that came later is noticed when a run begins, and every few
    # milliseconds when fibers get stacks.
    enable = "import faulthandler; faulthandler.enable()\n"
    source = {
        "never": "from pyfiber import Fiber\n",
        "before": enable + "from pyfiber import Fiber\n",
        "after": "from pyfiber import Fiber\n" + enable,
        "after the first fiber": "from pyfiber import Fiber\nFiber(int).switch()\n"
        + enable
        + "import pyfiber; pyfiber.run(int)\n",
    }[when]
    assert child(source + SORT).stdout == "RecursionError\n"


def test_deep_recursion_under_a_segv_handler_of_the_programs_own(child: Child) -> None:
    source = "import signal\nfrom pyfiber import Fiber\n"
    source += "signal.signal(signal.SIGBUS, signal.SIG_DFL)\n"
    assert child(source + SORT).stdout == "RecursionError\n"


def test_overflow_of_the_second_fiber_names_the_second(child: Child) -> None:
    source = (
        OVERFLOW
        + """
from pyfiber import current
main = current()
innocent = Fiber(main.switch, name="innocent")
innocent.switch()
Fiber(caller, name="guilty").switch()
"""
    )
    lines = lines_of(child(source, check=False))
    assert "'guilty'" in lines[0]


def test_overflow_on_another_thread_is_reported(child: Child) -> None:
    source = (
        OVERFLOW
        + """
import threading
thread = threading.Thread(target=lambda: Fiber(caller, name="on a thread").switch())
thread.start()
thread.join()
"""
    )
    lines = lines_of(child(source, check=False))
    assert "'on a thread'" in lines[0]


def test_fault_that_is_no_overflow_is_left_to_the_previous_handler(child: Child) -> None:
    source = """
import faulthandler
faulthandler.enable()
from pyfiber import Fiber
import ctypes
Fiber(ctypes.string_at, (16,)).switch()
"""
    lines = lines_of(child(source, check=False))
    assert lines[0].startswith("Fatal Python error: Segmentation fault")
    assert "pyfiber error" not in "".join(lines)


def test_fault_on_the_main_stack_is_left_to_the_previous_handler(child: Child) -> None:
    source = """
import faulthandler
faulthandler.enable()
import ctypes
from pyfiber import Fiber
Fiber(int).switch()
ctypes.string_at(16)
"""
    lines = lines_of(child(source, check=False))
    assert lines[0].startswith("Fatal Python error: Segmentation fault")


@pytest.mark.skipif(EMULATED, reason="qemu tells of the signal itself, on stderr")
def test_segv_sent_by_kill_ends_the_process(child: Child) -> None:
    done = child(
        "import os, signal, pyfiber\n"
        "pyfiber.Fiber(os.kill, (os.getpid(), signal.SIGSEGV)).switch()\n",
        env={"PYTHONDEVMODE": "", "PYTHONFAULTHANDLER": ""},
        check=False,
    )
    assert done.returncode == -11
    assert done.stderr == ""


def test_stack_used_deeply_without_recursion_leaves_no_trace(child: Child) -> None:
    """Uncounted C code that needs most of a stack, and returns: nothing failed.

    The interpreter's own counters must be as before, without a switch in between.
    """
    done = child(
        """
        from pyfiber import Fiber
        def nest(depth):
            nested = iter([1])
            for _ in range(depth):
                nested = filter(None, nested)
            return nested
        def count():
            def down(depth):
                try:
                    return down(depth + 1)
                except RecursionError:
                    return depth
            return down(0)
        def work(nested):
            next(nested)
            fine = [1] == [1.0] and repr([[[]]]) == "[[[]]]"
            return fine, count()
        # Deeper and deeper, until the reserve is touched (or the process ends).
        for depth in range(1000, 60_000, 200):
            fiber = Fiber(work, (nest(depth),))
            fine, levels = fiber.switch()
            assert fine and levels > 900, (depth, fine, levels)
            print(depth, flush=True)
        """,
        check=False,
    )
    # Where it ends depends on the compiler's frames; how it ends does not.
    last = done.stderr.splitlines()[-1:] if done.returncode > 0 else []
    assert last == []
    assert done.stdout.count("\n") > 5


@pytest.mark.parametrize("slots", ["0", "2"])
def test_fiber_that_was_left_in_its_reserve_gets_it_back(child: Child, slots: str) -> None:
    """A fiber is left at the bottom of a recursion, and others are left before it is back above.

    The interpreter counts calls, of which some kinds take more of the stack than others.
    """
    done = child(
        """
        import random, pyfiber
        from pyfiber import Fiber
        root = pyfiber.current()
        def down(depth):
            again = lambda _: down(depth + 1)
            try:
                way = some.randrange(3)
                if way == 0:
                    return sorted([1], key=again)[0]
                if way == 1:
                    return list(map(again, [1]))[0]
                return max([1], key=again)
            except RecursionError:
                if some.random() < 0.1:
                    root.switch()
                raise
        def work():
            for _ in range(3):
                try:
                    down(0)
                except RecursionError:
                    root.switch()
        some = random.Random(1)
        for _ in range(100):
            fibers = [Fiber(work, stack_size=128 * 1024) for _ in range(3)]
            while not all(fiber.done() for fiber in fibers):
                for fiber in fibers:
                    fiber.done() or fiber.switch()
        print("ended")
        """,
        env={"PYFIBER_SLOTS": slots},
    )
    assert done.stdout == "ended\n"
