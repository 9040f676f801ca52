"""Recursion through slots on small stacks: RecursionError, told even where nobody can catch it.

A program of its own for each size of a stack, as what is tested for would end the process.
"""

from __future__ import annotations

import contextlib
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.subprocesses import run_python, run_script

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no reserve there")

SIZES = [128, 144, 160, 192, 256]  # KiB

leaves_room_to_report = pytest.mark.skipif(
    sys.version_info >= (3, 14),
    reason="the interpreter keeps no stack for the report: it says nothing on a thread, either",
)

#: How a method of this name is reached; it does it again.
SLOTS: dict[str, Callable[[Any], Any]] = {
    "__abs__": abs,
    "__add__": lambda value: value + 1,
    "__bool__": bool,
    "__bytes__": bytes,
    "__call__": lambda value: value(),
    "__complex__": complex,
    "__contains__": lambda value: 1 in value,
    "__delattr__": lambda value: delattr(value, "name"),
    "__delitem__": lambda value: operator.delitem(value, 1),
    "__dir__": dir,
    "__eq__": lambda value: value == 1,
    "__float__": float,
    "__format__": lambda value: format(value, "x"),
    "__fspath__": os.fspath,
    "__getattr__": lambda value: value.name,
    "__getattribute__": lambda value: value.name,
    "__getitem__": lambda value: value[1],
    "__hash__": hash,
    "__iadd__": lambda value: operator.iadd(value, 1),
    "__index__": operator.index,
    "__int__": int,
    "__iter__": iter,
    "__len__": len,
    "__length_hint__": operator.length_hint,
    "__lt__": lambda value: value < 1,
    "__matmul__": lambda value: value @ 1,
    "__ne__": lambda value: value != 1,
    "__neg__": operator.neg,
    "__next__": next,
    "__pow__": lambda value: pow(value, 1, 2),
    "__radd__": lambda value: 1 + value,
    "__repr__": repr,
    "__reversed__": reversed,
    "__round__": round,
    "__rpow__": lambda value: 2**value,
    "__set__": lambda value: setattr(type("Owner", (), {"name": value})(), "name", 1),
    "__setattr__": lambda value: setattr(value, "name", 1),
    "__setitem__": lambda value: operator.setitem(value, 1, 2),
    "__sizeof__": sys.getsizeof,
    "__str__": str,
    "__sub__": lambda value: value - 1,
}


def not_in_bool() -> Any:
    class Negated:
        def __bool__(self) -> bool:
            return not self

    return not Negated()


def caught_and_tried_again() -> Any:
    """Who catches the error and goes as deep again, a hundred times, is stopped each time."""
    caught = 0

    class Stubborn:
        def __len__(self) -> int:
            nonlocal caught
            try:
                return len(self)
            except RecursionError:
                caught += 1
                return len(self) if caught < 100 else operator.index(None)

    with contextlib.suppress(TypeError):
        len(Stubborn())
    raise RecursionError


def through(name: str) -> Any:
    reach = SLOTS[name]
    method = lambda self, *others: reach(self)  # noqa: E731
    return reach(type("Recursing", (), {name: method})())


def recurse_on_a_stack_of(size: int) -> None:
    from pyfiber import Fiber

    def work(*call: Any) -> str:
        try:
            call[0](*call[1:])
        except RecursionError:
            return "ended" if bool(SLOTS) else "broken"
        return "no error"

    for call in [(not_in_bool,), (caught_and_tried_again,), *((through, name) for name in SLOTS)]:
        print(*call, flush=True)  # what was the last, should it crash?
        assert Fiber(work, call, stack_size=size).switch() == "ended", call


@pytest.mark.parametrize("size", SIZES)
def test_slot_recursion_on_a_small_stack_ends_in_recursion_error(size: int) -> None:
    done = run_python(__file__, str(size * 1024))
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr)


# ------------------------------------------------- where no caller sees the exception

#: bsearch() of one element calls once: a sanitizer's qsort() compares more often than that.
CTYPES = """
    import ctypes
    import sys
    from pyfiber import Fiber
    compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
    libc = ctypes.CDLL(None)
    def deeper():
        one = ctypes.c_int(1)
        place = ctypes.byref(one)
        libc.bsearch(place, place, 1, 4, compare(lambda a, b: deeper() or 0))
"""
CFFI = """
    import sys
    import cffi
    from pyfiber import Fiber
    ffi = cffi.FFI()
    ffi.cdef('''void *bsearch(const void *, const void *, size_t, size_t,
                             int (*)(const void *, const void *));''')
    libc = ffi.dlopen(None)
    def deeper():
        one = ffi.new("int *", 1)
        compare = ffi.callback("int(const void *, const void *)", lambda a, b: deeper() or 0)
        libc.bsearch(one, one, 1, 4, compare)
"""


def callbacks(source: str, size: int, setup: str = "") -> subprocess.CompletedProcess[str]:
    work = f"{setup}\n    Fiber(deeper, stack_size={size * 1024}).switch()\n    print('on')"
    return run_script(f"{source}\n    {work}")


@leaves_room_to_report
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("source", [CTYPES, CFFI], ids=["ctypes", "cffi"])
def test_recursion_that_ends_in_a_callback_from_c_is_told(source: str, size: int) -> None:
    if source is CFFI:
        pytest.importorskip("cffi")
    done = callbacks(source, size)
    assert "RecursionError" in done.stderr
    assert done.stdout == "on\n"


@leaves_room_to_report
@pytest.mark.parametrize("size", SIZES)
def test_recursion_that_ends_in_a_callback_from_c_is_told_to_the_programs_hook(size: int) -> None:
    hook = "sys.unraisablehook = lambda told: print(told.exc_type.__name__)"
    done = callbacks(CTYPES, size, hook)
    assert (done.stdout, done.stderr) == ("RecursionError\non\n", "")


@leaves_room_to_report
@pytest.mark.skipif(sys.version_info < (3, 12), reason="3.11 says nothing on a thread, either")
@pytest.mark.parametrize("source", [CTYPES, CFFI], ids=["ctypes", "cffi"])
def test_recursion_that_ends_in_a_callback_from_c_is_told_on_the_default_stack(source: str) -> None:
    if source is CFFI:
        pytest.importorskip("cffi")
    assert "RecursionError" in callbacks(source, 1024).stderr


def test_python_calls_take_no_c_stack_after_a_reserve_was_reached() -> None:
    """pyfiber evaluates frames itself for a moment; then the interpreter inlines calls again."""
    done = run_script("""
        import sys
        from pyfiber import Fiber
        def count(depth=0):
            try:
                return count(depth + 1)
            except RecursionError:
                return depth
        class Endless:
            def __bool__(self):
                return bool(self)
        def end():
            try:
                bool(Endless())
            except RecursionError:
                pass
        sys.setrecursionlimit(20_000)
        fiber = Fiber(end, stack_size=128 * 1024)
        fiber.switch()
        # 20,000 levels fit a small stack only where Python calls take no C stack.
        print(Fiber(count, stack_size=128 * 1024).switch() > 19_000)
    """)
    assert done.stdout == "True\n"


if __name__ == "__main__":
    recurse_on_a_stack_of(int(sys.argv[1]))
