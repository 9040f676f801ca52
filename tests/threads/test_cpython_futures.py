"""CPython's own tests of executors, run on FiberExecutor, where CPython ships them.

Left out, because they are about other things than an executor's contract:
- FailingInitializerMixin of test_init: it looks into ThreadPoolExecutor (`_broken`, its logger);
  test_executor.py has a test of the same.
- ThreadPoolShutdownTest and ThreadPoolExecutorTest beyond their common base classes: they look at
  `_threads`, at thread names, at how many threads are started and reused, and at deadlocks of locks
  inside of ThreadPoolExecutor.
- test_process_pool, test_deadlock: processes.
- test_executor_map_current_future_cancel is in ThreadPoolExecutorTest, but its subject is common:
  test_executor.py has a test of the same.
"""

from __future__ import annotations

import unittest
from concurrent.futures import Future

import pytest

from pyfiber import Event
from pyfiber._futures import FiberFuture
from pyfiber.threads import FiberExecutor
from tests.support.subprocesses import run_python

# Python 3.11 has them in one file, which this does not take apart.
pytest.importorskip("test.test_concurrent_futures.util", reason="not shipped with this Python")

from test.test_concurrent_futures import (
    executor,
    test_as_completed,
    test_future,
    test_init,
    test_shutdown,
    test_wait,
    util,
)


class FiberPool(util.ExecutorMixin):  # type: ignore[misc]
    executor_type = FiberExecutor

    def create_event(self) -> Event:
        """What the tests of 3.14.7 ask for: the calls are fibers of one thread."""
        return Event()


class TestExecutor(FiberPool, executor.ExecutorTest, util.BaseTestCase):  # type: ignore[misc]
    test_map_timeout = pytest.mark.slow(executor.ExecutorTest.test_map_timeout)


class TestInitializer(  # type: ignore[misc]
    FiberPool, test_init.InitializerMixin, util.BaseTestCase
):
    pass


@pytest.mark.slow
class TestWait(FiberPool, test_wait.WaitTests, util.BaseTestCase):  # type: ignore[misc]
    test_pending_calls_race = test_wait.ThreadPoolWaitTests.test_pending_calls_race


@pytest.mark.slow
class TestAsCompleted(  # type: ignore[misc]
    FiberPool, test_as_completed.AsCompletedTests, util.BaseTestCase
):
    pass


class TestShutdown(  # type: ignore[misc]
    FiberPool, test_shutdown.ExecutorShutdownTest, util.BaseTestCase
):
    test_hang_issue12364 = pytest.mark.slow(test_shutdown.ExecutorShutdownTest.test_hang_issue12364)

    @pytest.fixture(autouse=True)
    def _import_it_from_pyfiber(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Their scripts import the executor from concurrent.futures."""

        def run_with_ours(option: str, script: str) -> tuple[int, bytes, bytes]:
            ours = script.replace(
                "from concurrent.futures import FiberExecutor",
                "from pyfiber.threads import FiberExecutor",
            )
            assert ours != script
            done = run_python(option, ours)
            assert done.returncode == 0, done.stderr
            return done.returncode, done.stdout.encode(), done.stderr.encode()

        monkeypatch.setattr(test_shutdown, "assert_python_ok", run_with_ours)


class TestFuture(test_future.FutureTests):  # type: ignore[misc]
    """Their tests of Future, on FiberFuture."""

    @pytest.fixture(autouse=True)
    def _use_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(test_future, "Future", FiberFuture)

    @unittest.skip("compares the repr of ready-made futures of the base class")
    def test_repr(self) -> None:
        """Ours have another class name."""

    @unittest.skip("looks for a log record on stderr, where pytest's handlers do not put it")
    def test_done_callback_raises(self) -> None:
        """Future's own code, which FiberFuture leaves alone."""

    test_done_callback_raises_already_succeeded = test_done_callback_raises


def test_futures_are_ordinary_futures() -> None:
    assert issubclass(FiberFuture, Future)
