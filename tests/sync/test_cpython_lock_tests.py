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
import threading
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
# They ask again and again, without waiting, until somebody else has acted: fibers take turns where
# they wait, so nobody else would ever run.
LEFT_OUT_OF_FIBERS = dict.fromkeys(
    (
        "test_shutdown_all_methods_in_many_threads",
        "test_shutdown_immediate_all_methods_in_many_threads",
    ),
    "its readers spin on get(block=False)",
)

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


class FiberThread:
    """Stands for threading.Thread, and is a fiber."""

    def __init__(self, target: Any = None, args: Any = ()) -> None:
        self._target = target  # not `args`: their subclass has that
        self._args = args

    def run(self) -> None:
        self._target(*self._args)

    def start(self) -> None:
        self.fiber = pyfiber.spawn(self.run)

    def join(self, timeout: float | None = None) -> None:
        self.fiber.join(timeout)

    def is_alive(self) -> bool:
        return not self.fiber.done()


class RunThread(FiberThread):
    """... and is a fiber on a thread of its own."""

    def start(self) -> None:
        self.thread = threading.Thread(target=pyfiber.run, args=(self.run,))
        self.thread.start()

    def join(self, timeout: float | None = None) -> None:
        self.thread.join(timeout)

    def is_alive(self) -> bool:
        return self.thread.is_alive()


def with_changes(namespace: Any, **changes: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**{**vars(namespace), **changes})


def thread_world(module: Any, thread: type, **primitives: Any) -> dict[str, Any]:
    """Another class in place of threading.Thread, and of the subclass in test_queue."""
    world: dict[str, Any] = {"threading": with_changes(threading, Thread=thread, **primitives)}
    trigger = getattr(module, "_TriggerThread", None)
    if trigger is not None:
        body = {name: vars(trigger)[name] for name in ("__init__", "run")}
        world["_TriggerThread"] = type("_TriggerThread", (thread,), body)
    return world


def fiber_world(module: Any) -> dict[str, Any]:
    """What a test module has to see so that its threads are fibers."""
    names = ("Lock", "Event", "Barrier")
    world = thread_world(module, FiberThread, **{name: getattr(pyfiber, name) for name in names})
    # test_queue sleeps so that others can block first; fibers need less for that.
    hurry = 0.05 if "_TriggerThread" in world else 1
    world["time"] = with_changes(time, sleep=lambda seconds: pyfiber.sleep(seconds * hurry))
    world["start_new_thread"] = lambda fn, args: pyfiber.spawn(fn, *args)
    if hasattr(module, "support"):
        world["support"] = with_changes(module.support, sleeping_retry=sleeping_retry)
    return world


def runs_world(module: Any) -> dict[str, Any]:
    """Threads that run what they are given as a fiber."""
    world = thread_world(module, RunThread)
    if hasattr(module, "start_new_thread"):
        start = module.start_new_thread
        world["start_new_thread"] = lambda fn, args: start(pyfiber.run, (fn, *args))
    return world


def in_mode(mode: str, module: Any) -> type:
    class Mode:
        def setUp(self) -> None:
            left_out = LEFT_OUT | (LEFT_OUT_OF_EVENT if hasattr(self, "eventtype") else {})
            if mode == "Fibers":
                left_out |= LEFT_OUT_OF_FIBERS
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


#: What conditions ask of their RLock is not theirs. (threading's has no _recursion_count() either.)
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
        for mode in MODES:
            bases = (in_mode(mode, module), base, unittest.TestCase)
            namespace[f"Test{name}{mode}"] = type(f"Test{name}{mode}", bases, {"queue": QUEUES})


make_lock_tests(globals())
make_queue_tests(globals())


def test_cpythons_tests_are_there():
    if load("test.lock_tests") is None:
        pytest.skip("this interpreter comes without its own tests")
    for prefix in ("TestLockTests", "TestQueueTest"):
        assert len([name for name in globals() if name.startswith(prefix)]) == len(MODES)
