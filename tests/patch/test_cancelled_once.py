"""Code that was written for threads gets each cancellation once: its clean-up waits in peace."""

from __future__ import annotations

import logging
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyfiber
from pyfiber.testing import run

pytestmark = pytest.mark.usefixtures("patched")


def held(lock: Any, seconds: float) -> None:
    """By a fiber of its own, from now on."""

    def holder() -> None:
        with lock:
            time.sleep(seconds)

    pyfiber.spawn(holder)
    time.sleep(0)


def rest() -> None:
    time.sleep(1)


def ask() -> None:
    pyfiber.sleep(1)


# what the fault was -------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [rest, ask])
def test_resource_goes_back_to_a_queue_whose_mutex_is_taken(waits: Callable[[], None]) -> None:
    """Of five resources none was left: each put() in a `finally` raised Cancelled again."""

    pool: queue.Queue[int] = queue.Queue(1)  # a real one, made outside of the run

    def main() -> int:
        pool.put(0)
        with pyfiber.move_on_after(0.1):
            resource = pool.get()
            try:
                waits()
            finally:
                held(pool.mutex, 0.5)
                pool.put(resource)
        return pool.qsize()

    assert run(main) == 1


def test_cleanup_that_logs_through_a_handler_in_use_runs_to_its_end() -> None:
    log = logging.Logger("cleanup")
    handler = logging.NullHandler()
    handler.lock = threading.RLock()
    handler.handle = lambda record: logging.Handler.handle(handler, record)  # type: ignore[assignment,method-assign]
    log.addHandler(handler)
    ended = []

    def job() -> None:
        try:
            time.sleep(5)
        except BaseException:
            log.warning("interrupted")
            ended.append("here")
            raise

    def main() -> None:
        fiber = pyfiber.spawn(job)
        pyfiber.yield_now()
        held(handler.lock, 0.5)
        fiber.cancel()
        fiber.join()
        with pytest.raises(pyfiber.FiberCancelled):
            fiber.result()

    run(main)
    assert ended == ["here"]


def test_condition_is_waited_for_in_a_cleanup() -> None:
    condition, done = threading.Condition(), []

    def finishes() -> None:
        time.sleep(0.5)
        with condition:
            done.append("work")
            condition.notify_all()

    def main() -> None:
        pyfiber.spawn(finishes)
        with pyfiber.move_on_after(0.1):
            try:
                time.sleep(1)
            finally:
                with condition:
                    assert condition.wait_for(lambda: done, timeout=5)
                done.append("clean-up")

    run(main)
    assert done == ["work", "clean-up"]


def test_socket_made_in_a_fiber_is_read_in_a_cleanup() -> None:
    def main() -> bytes:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            pyfiber.spawn(lambda: (time.sleep(0.5), theirs.send(b"bye")))
            answer = b""
            with pyfiber.move_on_after(0.1):
                try:
                    ours.recv(10)
                finally:
                    answer = ours.recv(10)
            return answer

    assert run(main) == b"bye"


@pytest.mark.skipif(sys.platform == "win32", reason="its pipes are waited for by threads")
def test_child_is_waited_for_and_read_in_a_cleanup() -> None:
    code = "import sys; sys.stdin.read(); print('bye')"

    def main() -> None:
        with subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            with pyfiber.move_on_after(0):
                try:
                    child.stdout.read()
                finally:
                    child.stdin.close()
                    ended.append(child.stdout.read().strip())
                    ended.append(child.wait())

    ended: list[object] = []
    pyfiber.run(main)
    assert ended == [b"bye", 0]


# the rule -----------------------------------------------------------------------------------------


def raised_in(fn: Callable[[], object]) -> bool:
    try:
        fn()
    except pyfiber.Cancelled:
        return True
    return False


def test_patched_waits_raise_once_and_pyfibers_own_each_time() -> None:
    def main() -> list[bool]:
        with pyfiber.move_on_after(0):
            waits = [rest, rest, ask, rest, ask, pyfiber.yield_now, rest, pyfiber.check_cancelled]
            return [raised_in(wait) for wait in waits]
        raise AssertionError("not absorbed: nothing is raised at the end")

    assert run(main) == [True, False, True, False, True, True, False, True]


def test_wait_that_raises_nothing_keeps_its_own_time_limit() -> None:
    def main() -> float:
        began = pyfiber.now()
        with pyfiber.move_on_after(0):
            raised_in(rest)
            assert threading.Event().wait(2) is False
        return pyfiber.now() - began

    assert run(main) == pytest.approx(2)


@pytest.mark.parametrize("how", ["fiber", "scope", "deadline"])
def test_second_cancellation_is_raised_once_more_and_ends_a_wait(how: str) -> None:
    log: list[bool] = []

    def job(scope: pyfiber.CancelScope) -> None:
        with scope:
            log.extend(raised_in(wait) for wait in (rest, rest))
            log.extend(raised_in(lambda: time.sleep(100)) for _ in range(2))

    def main() -> float:
        scope = pyfiber.CancelScope()
        fiber = pyfiber.spawn(job, scope)
        pyfiber.sleep(0.5)
        fiber.cancel() if how == "fiber" else scope.cancel()
        pyfiber.sleep(5)
        if how == "deadline":
            scope.deadline = pyfiber.now() + 1
        else:
            fiber.cancel() if how == "fiber" else scope.cancel()
        began = pyfiber.now()
        fiber.join()
        return pyfiber.now() - began

    took = run(main)
    assert log == [True, False, True, False]
    assert 100 <= took < 102


def test_cancellation_of_a_parent_is_news_to_a_child_that_cleans_up() -> None:
    log: list[bool] = []

    def child() -> None:
        with pyfiber.move_on_after(1):
            log.extend(raised_in(lambda: time.sleep(100)) for _ in range(2))

    def parent() -> None:
        with pyfiber.TaskGroup() as group:
            group.spawn(child)

    def main() -> float:
        fiber = pyfiber.spawn(parent)
        pyfiber.sleep(10)
        fiber.cancel()
        fiber.join()
        assert fiber.cancelled()
        return pyfiber.now()

    began = run(pyfiber.now)
    assert run(main) - began < 100
    assert log == [True, True]


def test_deadline_inside_a_cleanup_ends_its_own_block_only() -> None:
    """The outer cancellation has been raised; at the inner deadline it is the inner's."""

    def main() -> list[str]:
        log = []
        with pyfiber.move_on_after(1):
            try:
                time.sleep(100)
            finally:
                with pyfiber.move_on_after(2) as inner:
                    time.sleep(100)
                log.append(f"inner {inner.cancelled()}")
                time.sleep(1)
                log.append("after")
        return log

    assert run(main) == ["inner True", "after"]


def test_cancellation_outside_of_a_shield_is_raised_after_it() -> None:
    def main() -> list[bool]:
        log = []
        with pyfiber.move_on_after(1):
            with pyfiber.shield():
                time.sleep(2)
                with pyfiber.move_on_after(1):
                    log.append(raised_in(lambda: time.sleep(100)))
            log.append(raised_in(rest))
            log.append(raised_in(rest))
        return log

    assert run(main) == [True, True, False]


def test_scope_that_was_cancelled_before_it_is_entered_raises_in_a_cleanup() -> None:
    def main() -> list[bool]:
        log = []
        early = pyfiber.CancelScope()
        early.cancel()
        with pyfiber.move_on_after(0):
            log.append(raised_in(rest))
            with early:
                log.append(raised_in(rest))
            log.append(raised_in(rest))
        return log

    assert run(main) == [True, True, False]


def test_next_scope_begins_anew() -> None:
    def main() -> list[bool]:
        log = []
        for _ in range(2):
            with pyfiber.move_on_after(0):
                log += [raised_in(rest), raised_in(rest)]
        return log

    assert run(main) == [True, False] * 2


def test_child_that_lives_on_after_a_group_was_left_is_not_told_again() -> None:
    log: list[bool] = []

    def child() -> None:
        log.extend(raised_in(wait) for wait in (rest, rest, rest))

    def parent() -> pyfiber.Fiber[None]:
        group = pyfiber.TaskGroup()
        group.__enter__()
        fiber = group.spawn(child)
        pyfiber.yield_now()
        group.cancel()
        pyfiber.shield().__enter__()
        pyfiber.sleep(0.5)
        return fiber

    def main() -> None:
        fiber = pyfiber.spawn(parent).result()
        fiber.join()

    run(main)
    assert log == [True, False, False]


def test_failure_in_a_group_is_raised_in_each_child_once() -> None:
    log: list[bool] = []

    def child() -> None:
        log.extend(raised_in(wait) for wait in (rest, rest))

    def fails(seconds: float) -> None:
        with pyfiber.shield():
            pyfiber.sleep(seconds)
        raise ValueError

    def main() -> None:
        with pyfiber.TaskGroup() as group:
            group.spawn(child)
            group.spawn(fails, 0.1)
            group.spawn(fails, 0.5)

    with pytest.raises(BaseExceptionGroup):
        run(main)
    assert log == [True, False]


def test_generators_body_counts_as_its_puller() -> None:
    def main() -> list[bool]:
        @pyfiber.generator
        def body() -> Iterator[None]:
            log.append(raised_in(rest))
            pyfiber.emit(None)
            yield_nothing = raised_in(rest)
            log.append(yield_nothing)

        log: list[bool] = []
        with pyfiber.move_on_after(0):
            for _ in body():
                log.append(raised_in(rest))
        return log

    assert run(main) == [True, False, False]


def test_cancelled_to_thread_is_not_disturbed_by_what_was_told_before() -> None:
    """join() of a thread, in a clean-up, with the help of another thread."""

    def main() -> bool:
        thread = threading.Thread(target=go.wait)
        thread.start()
        with pyfiber.move_on_after(0):
            try:
                time.sleep(1)
            finally:
                go.set()
                thread.join()
        return thread.is_alive()

    go = threading.Event()
    assert pyfiber.run(main) is False
