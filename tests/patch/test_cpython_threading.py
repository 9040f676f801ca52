"""CPython's own tests of threading's and queue's classes, patched, in fibers.

As in tests/sync/test_cpython_lock_tests.py, but the classes tested are the standard ones:

- ThreadsAndRun: the test itself is a fiber, what it starts are plain threads;
- Runs: every thread it starts has a scheduler and runs the test's function as a fiber;
- Fibers: everything in one run, where starting a thread means to spawn a fiber.
"""

from __future__ import annotations

import queue
import threading
import unittest
from typing import Any

import pytest

import pyfiber
from tests.sync.test_cpython_lock_tests import FiberThread, load, runs_world, thread_world

MODES = ("ThreadsAndRun", "Runs", "Fibers")

# They ask again and again, without waiting, until somebody else has acted.
SPINS = "its threads spin, and fibers take turns where they wait"
LEFT_OUT_OF_FIBERS = {
    "test_shutdown_all_methods_in_many_threads": SPINS,
    "test_shutdown_immediate_all_methods_in_many_threads": SPINS,
    "test_many_threads": SPINS,
    "test_many_threads_nonblock": SPINS,
    "test_many_threads_timeout": SPINS,
    "test_thread_leak": "it counts threads",
}


def fiber_world(module: Any) -> dict[str, Any]:
    world = thread_world(module, FiberThread)
    world["start_new_thread"] = lambda fn, args: pyfiber.spawn(fn, *args)
    return world


def in_mode(mode: str, module: Any) -> type:
    class Mode:
        def setUp(self) -> None:
            if mode == "Fibers" and self._testMethodName in LEFT_OUT_OF_FIBERS:
                raise unittest.SkipTest(LEFT_OUT_OF_FIBERS[self._testMethodName])
            self.addCleanup(pyfiber.patch().undo)
            super().setUp()
            changes = pytest.MonkeyPatch()
            self.addCleanup(changes.undo)
            world = {"Fibers": fiber_world, "Runs": runs_world}.get(mode, lambda _: {})(module)
            for key, value in world.items():
                changes.setattr(module, key, value, raising=False)

        def _callTestMethod(self, method: Any) -> None:
            call = super()._callTestMethod
            if mode == "Runs":
                call(method)
            else:
                pyfiber.run(call, method)

        def tearDown(self) -> None:
            super().tearDown()
            assert pyfiber._engine._lot_count() == 0

        if mode == "Fibers":

            def _callTearDown(self) -> None:  # the barrier's abort(), say
                pyfiber.run(super()._callTearDown)

    # Real threads take real time.
    Mode.pytestmark = [] if mode == "Fibers" else [pytest.mark.slow]
    return Mode


def lock_test_classes() -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        "LockTests": ("LockTests", {"locktype": staticmethod(threading.Lock)}),
        "RLockTests": ("RLockTests", {"locktype": staticmethod(threading.RLock)}),
        "EventTests": ("EventTests", {"eventtype": staticmethod(threading.Event)}),
        "ConditionAsRLockTests": ("RLockTests", {"locktype": staticmethod(threading.Condition)}),
        "ConditionTests": ("ConditionTests", {"condtype": staticmethod(threading.Condition)}),
        "SemaphoreTests": ("SemaphoreTests", {"semtype": staticmethod(threading.Semaphore)}),
        "BoundedSemaphoreTests": (
            "BoundedSemaphoreTests",
            {"semtype": staticmethod(threading.BoundedSemaphore)},
        ),
        "BarrierTests": ("BarrierTests", {"barriertype": staticmethod(threading.Barrier)}),
    }


#: What conditions ask of their RLock is not theirs.
CONDITION_IS_NO_RLOCK = ("test_recursion_count", "test_release_save_unacquired")


def make_lock_tests(namespace: dict[str, Any]) -> None:
    module = load("test.lock_tests")
    if module is None:
        return
    for mode in MODES:
        for name, (base, attributes) in lock_test_classes().items():
            bases = (in_mode(mode, module), getattr(module, base))
            body: dict[str, Any] = dict(attributes)
            if name == "ConditionAsRLockTests":
                body |= dict.fromkeys(CONDITION_IS_NO_RLOCK)
            namespace[f"Test{name}{mode}"] = type(
                f"Test{name}{mode}", (*bases, unittest.TestCase), body
            )


def make_queue_tests(namespace: dict[str, Any]) -> None:
    module = load("test.test_queue")
    if module is None:
        return
    names = ("QueueTest", "LifoQueueTest", "PriorityQueueTest", "FailingQueueTest")
    for name in (*names, "CSimpleQueueTest"):
        base = getattr(module, f"C{name}" if hasattr(module, f"C{name}") else name)
        for mode in MODES:
            bases = (in_mode(mode, module), base, unittest.TestCase)
            if name != "CSimpleQueueTest":
                body: dict[str, Any] = {"queue": queue}
            else:
                body = {}
            namespace[f"Test{name}{mode}"] = type(f"Test{name}{mode}", bases, body)


make_lock_tests(globals())
make_queue_tests(globals())


def test_cpythons_tests_are_there():
    if load("test.lock_tests") is None:
        pytest.skip("this interpreter comes without its own tests")
    for prefix in ("TestLockTests", "TestQueueTest", "TestCSimpleQueueTest"):
        assert len([name for name in globals() if name.startswith(prefix)]) == len(MODES)
