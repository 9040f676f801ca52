"""Fibers that are packed when their thread ends, also if that is for want of memory."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import Child
from tests.fiber.sharing import needs_packing

pytestmark = [
    needs_packing,
    pytest.mark.parametrize("slots", [2, 3]),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc and RLIMIT_AS"),
]


def test_slots_of_greenlets_that_are_left_over_go_with_their_thread(
    slots: int, child: Child
) -> None:
    child(
        """
        import gc, threading
        from pyfiber.greenlet import getcurrent, greenlet

        def mapped():
            with open("/proc/self/statm") as file:
                return int(file.read().split()[0]) * 4096

        def leave():
            root = getcurrent()
            kept.extend(greenlet(lambda: root.switch()) for _ in range(40))
            for g in kept:
                g.switch()

        kept = []
        sizes = []
        for _ in range(20):
            thread = threading.Thread(target=leave)
            thread.start()
            thread.join()
            kept.clear()
            gc.collect()
            sizes.append(mapped())
        assert sizes[-1] - sizes[4] < 64 << 20, sizes
        """,
        # A thread that meets a busy arena of malloc's maps another one.
        env={"PYFIBER_SLOTS": str(slots), "MALLOC_ARENA_MAX": "1"},
    )


WITHOUT_MEMORY = """
import ctypes, resource, sys, threading
import pyfiber
from pyfiber import Fiber
from pyfiber.greenlet import getcurrent, greenlet

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
FOREVER = resource.RLIM_INFINITY

def exhaust(*sizes):
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (size, FOREVER))
    for size in sizes:
        while libc.malloc(size):
            pass

def in_a_thread_that_ends_without_memory(make, *sizes):
    kept = []
    def leave():
        kept.extend(make())
        exhaust(*sizes)
    thread = threading.Thread(target=leave)
    thread.start()
    while thread.is_alive():
        pass
    resource.setrlimit(resource.RLIMIT_AS, (FOREVER, FOREVER))
    return kept
"""


def test_fibers_that_are_lost_without_memory_are_not_freed_under_their_holders(
    slots: int, child: Child
) -> None:
    done = child(
        WITHOUT_MEMORY
        + """
def deep(n, root):
    if n == 0:
        root.switch()
        root.switch()
        return 0
    return sorted([1], key=lambda _: deep(n - 1, root))[0]

def make():
    root = pyfiber.current()
    fibers = [Fiber(deep, (100, root)) for _ in range(2)]
    fibers += [Fiber(root.switch) for _ in range(6)]
    for fiber in [*fibers, *fibers[:2]]:
        fiber.switch()
    return fibers

kept = in_a_thread_that_ends_without_memory(make, 1 << 18, 1 << 14)
more = [Fiber(int) for _ in range(30)]
assert len({*map(id, kept), *map(id, more)}) == 38
assert {sys.getrefcount(fiber) for fiber in kept} == {sys.getrefcount(fiber) for fiber in more}
""",
        env={"PYFIBER_SLOTS": str(slots)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for line in done.stderr.splitlines():  # as many as could not have their stack back
        assert line == "MemoryError: " or line.startswith("Exception ignored in: <pyfiber.Fiber")


def test_frame_of_a_greenlet_that_is_left_over_without_memory_is_none_or_whole(
    slots: int, child: Child
) -> None:
    child(
        WITHOUT_MEMORY
        + """
def make():
    root = getcurrent()
    def wait():
        root.switch()
    greenlets = [greenlet(wait) for _ in range(6)]
    for g in greenlets:
        g.switch()
    return greenlets

for g in in_a_thread_that_ends_without_memory(make, *(1 << n for n in range(18, 5, -1))):
    assert g.gr_frame is None or g.gr_frame.f_code.co_name == "wait"
""",
        env={"PYFIBER_SLOTS": str(slots)},
    )
