"""CPython's own tests of threading's and queue's classes, run against pyfiber's.

They come with the interpreter (test/lock_tests.py, test/test_queue.py; some distributions leave
them out) and start threads. Each runs four times:

- Threads: as it is, on plain threads;
- ThreadsAndRun: the test itself is a fiber, what it starts are plain threads;
- Runs: every thread it starts has a scheduler and runs the test's function as a fiber;
- Fibers: everything in one run, where starting a thread means to spawn a fiber.

What is left out, and why, stands in LEFT_OUT.
"""

from __future__ import annotations

import importlib
import queue
import time
import types
import unittest
from typing import Any

import pytest

import pyfiber

LEFT_OUT = {
    "test_shrinking_queue": "a queue's maxsize is fixed; queue's documentation does not allow it",
}
LEFT_OUT_OF_EVENT = {
    "test_at_fork_reinit": "it looks into threading.Event (evt._cond), not at what it does",
}

MODES = ("Threads", "ThreadsAndRun", "Runs", "Fibers")


def load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def sleeping_retry(timeout: float, *_: Any, **__: Any) -> Any:
    """support.sleeping_retry, with pyfiber's sleep in place of time's."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        yield
        pyfiber.sleep(0.001)
    raise AssertionError(f"nothing happened in {timeout} s")


def fiber_world(module: Any) -> dict[str, Any]:
    """What a test module has to see so that its threads are fibers."""
    clock = types.SimpleNamespace(**{**vars(time), "sleep": pyfiber.sleep})
    world: dict[str, Any] = {
        "time": clock,
        "start_new_thread": lambda fn, args: pyfiber.spawn(fn, *args),
    }
    if hasattr(module, "support"):
        changed = {**vars(module.support), "sleeping_retry": sleeping_retry}
        world["support"] = types.SimpleNamespace(**changed)
    return world


def runs_world(module: Any) -> dict[str, Any]:
    """Threads that run what they are given as a fiber."""
    start = module.start_new_thread
    return {"start_new_thread": lambda fn, args: start(pyfiber.run, (fn, *args))}


def in_mode(mode: str, module: Any) -> type:
    class Mode:
        def setUp(self) -> None:
            left_out = LEFT_OUT | (LEFT_OUT_OF_EVENT if hasattr(self, "eventtype") else {})
            if self._testMethodName in left_out:
                raise unittest.SkipTest(left_out[self._testMethodName])
            super().setUp()
            patch = pytest.MonkeyPatch()
            self.addCleanup(patch.undo)
            world = {"Fibers": fiber_world, "Runs": runs_world}.get(mode, lambda _: {})(module)
            for key, value in world.items():
                patch.setattr(module, key, value, raising=False)

        def _callTestMethod(self, method: Any) -> None:
            call = super()._callTestMethod
            if mode in ("Threads", "Runs"):
                call(method)
            else:
                pyfiber.run(call, method)

        if mode == "Fibers":

            def _callTearDown(self) -> None:  # the barrier's abort(), say
                pyfiber.run(super()._callTearDown)

    # Real threads take real time.
    Mode.pytestmark = [] if mode == "Fibers" else [pytest.mark.slow]
    return Mode


def lock_test_classes() -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        "LockTests": ("LockTests", {"locktype": staticmethod(pyfiber.Lock)}),
        "RLockTests": ("RLockTests", {"locktype": staticmethod(pyfiber.RLock)}),
        "ConditionAsRLockTests": ("RLockTests", {"locktype": staticmethod(pyfiber.Condition)}),
        "EventTests": ("EventTests", {"eventtype": staticmethod(pyfiber.Event)}),
        "ConditionTests": ("ConditionTests", {"condtype": staticmethod(pyfiber.Condition)}),
        "SemaphoreTests": ("SemaphoreTests", {"semtype": staticmethod(pyfiber.Semaphore)}),
        "BoundedSemaphoreTests": (
            "BoundedSemaphoreTests",
            {"semtype": staticmethod(pyfiber.BoundedSemaphore)},
        ),
        "BarrierTests": ("BarrierTests", {"barriertype": staticmethod(pyfiber.Barrier)}),
    }


#: As in CPython's own test_threading: threading.Condition has no _recursion_count either.
CONDITION_IS_NO_RLOCK = (
    "test_recursion_count",
    "test_release_save_unacquired",
    "test_repr",
    "test_locked_repr",
    "test_locked",
    "test_locked_with_2threads",
)


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


QUEUES = types.SimpleNamespace(
    Queue=pyfiber.Queue,
    LifoQueue=pyfiber.LifoQueue,
    PriorityQueue=pyfiber.PriorityQueue,
    Empty=queue.Empty,
    Full=queue.Full,
    ShutDown=pyfiber.ShutDown,
)


def make_queue_tests(namespace: dict[str, Any]) -> None:
    module = load("test.test_queue")
    if module is None:
        return
    for name in ("QueueTest", "LifoQueueTest", "PriorityQueueTest", "FailingQueueTest"):
        base = getattr(module, name)
        for mode in ("Threads", "ThreadsAndRun"):
            bases = (in_mode(mode, module), base, unittest.TestCase)
            namespace[f"Test{name}{mode}"] = type(f"Test{name}{mode}", bases, {"queue": QUEUES})


make_lock_tests(globals())
make_queue_tests(globals())


def test_cpythons_tests_are_there():
    if load("test.lock_tests") is None:
        pytest.skip("this interpreter comes without its own tests")
    assert len([name for name in globals() if name.startswith("TestLockTests")]) == len(MODES)
