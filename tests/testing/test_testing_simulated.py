"""threads="simulated": the threads that a run starts are fibers of the run, in virtual time."""

from __future__ import annotations

import _thread
import gc
import queue
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import pytest

import pyfiber
from pyfiber import DeadlockError, FiberError
from pyfiber._patch._threading import is_virtual
from pyfiber.testing import (
    LeftRunningError,
    NeverAwaitedError,
    ScheduleFailure,
    explore,
    replay,
    run,
)


@pytest.fixture(autouse=True, scope="module")
def patched() -> Iterator[None]:
    """Keep the patch in force: each exploration would make it and undo it."""
    patch = pyfiber.patch()
    yield
    patch.undo()


def simulated(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    return run(fn, *args, threads="simulated", **options)


def failure_of(fn: Callable[[], object], schedules: int = 1, **options: Any) -> BaseException:
    with pytest.raises(ScheduleFailure) as caught:
        explore(fn, schedules, threads="simulated", **options)
    return caught.value.exception


# --------------------------------------------------------------------- what a thread is


def test_thread_is_a_fiber_with_an_ident_and_a_name() -> None:
    def work(seen: dict[str, int]) -> None:
        seen[threading.current_thread().name] = threading.get_ident()

    def main() -> dict[str, int]:
        seen: dict[str, int] = {}
        threads = [threading.Thread(target=work, args=(seen,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        work(seen)
        return seen

    seen = simulated(main)
    assert list(seen) == ["Thread-1 (work)", "Thread-2 (work)", "MainThread"]
    assert seen["Thread-1 (work)"] != seen["MainThread"]
    assert seen["MainThread"] == threading.get_ident()


def test_time_is_virtual_for_everything_that_waits() -> None:
    def main() -> float:
        begun = time.monotonic()
        timer = threading.Timer(100, lambda: None)
        timer.start()
        timer.join()
        with pytest.raises(queue.Empty):
            queue.Queue[int]().get(timeout=1000)
        condition = threading.Condition()
        with condition:
            assert not condition.wait(10_000)
            assert not condition.wait_for(lambda: False, 1)
        assert not threading.Event().wait(1)
        assert not threading.Semaphore(0).acquire(timeout=1)
        return time.monotonic() - begun

    assert simulated(main) == 11103


def test_pool_and_its_futures_work() -> None:
    def main() -> list[int]:
        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(pow, n, 2) for n in range(5)]
            done, _ = wait(futures)
            assert len(done) == 5
            assert sorted(f.result() for f in as_completed(futures)) == [0, 1, 4, 9, 16]
            return list(pool.map(abs, [-1, -2]))

    assert simulated(main) == [1, 2]


def test_thread_locals_belong_to_threads() -> None:
    def main() -> list[bool]:
        local = threading.local()
        local.value = 1
        seen: list[bool] = []
        thread = threading.Thread(target=lambda: seen.append(hasattr(local, "value")))
        thread.start()
        thread.join()
        return seen

    assert simulated(main) == [False]


def test_start_new_thread_starts_a_fiber() -> None:
    def main() -> list[int]:
        seen: list[int] = []
        done = _thread.allocate_lock()
        done.acquire()

        def work() -> None:
            seen.append(1)
            done.release()

        _thread.start_new_thread(work, ())
        done.acquire()
        return seen

    assert simulated(main) == [1]


# --------------------------------------------------------------------------- failures


def test_exception_of_a_thread_fails_the_run() -> None:
    def main() -> None:
        thread = threading.Thread(target=lambda: 1 / 0, name="divider")
        thread.start()
        thread.join()

    exc = failure_of(main)
    assert isinstance(exc, NeverAwaitedError)
    assert "the thread 'divider' has failed with ZeroDivisionError" in str(exc)
    assert isinstance(exc.__cause__, ZeroDivisionError)


def test_failure_names_the_exception_of_a_thread_that_came_before() -> None:
    results: list[float] = []

    def divides() -> None:
        results.append(1 / 0)

    def main() -> None:
        thread = threading.Thread(target=divides, name="divider")
        thread.start()
        thread.join()
        assert results

    exc = failure_of(main)
    assert isinstance(exc, AssertionError)
    assert any("the thread 'divider' failed:" in note for note in exc.__notes__)
    assert any("in divides" in note for note in exc.__notes__)


def test_exception_without_a_text_is_a_failure_as_well() -> None:
    class WithoutTextError(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

        __repr__ = __str__

    def fails() -> None:
        raise WithoutTextError

    def main() -> None:
        threading.Thread(target=fails).start()

    failure = failure_of(main)
    assert isinstance(failure, NeverAwaitedError)
    assert "WithoutTextError(<its repr() failed>)" in str(failure)


def test_log_names_the_exception_that_ends_a_thread() -> None:
    def main() -> None:
        threading.Thread(target=lambda: 1 / 0, name="divider").start()

    with pytest.raises(ScheduleFailure) as caught:
        explore(main, threads="simulated")
    assert "ends with ZeroDivisionError: division by zero" in caught.value.log


def test_exception_goes_to_the_programs_own_hook() -> None:
    seen: list[object] = []

    def main() -> None:
        threading.excepthook = lambda args: seen.append(args.exc_type)
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()

    before = threading.excepthook
    simulated(main)
    assert seen == [ZeroDivisionError]
    assert threading.excepthook is before


def test_system_exit_ends_a_thread_silently() -> None:
    def main() -> None:
        thread = threading.Thread(target=sys.exit)
        thread.start()
        thread.join()

    simulated(main)


def test_deadlock_of_threads_names_them_and_their_locks() -> None:
    def main() -> None:
        locks = threading.Lock(), threading.Lock()

        def work(first: threading.Lock, second: threading.Lock) -> None:
            with first:  # noqa: SIM117
                with second:
                    pass

        threads = [
            threading.Thread(target=work, args=pair, name=name)
            for name, pair in (("ab", locks), ("ba", locks[::-1]))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    exc = failure_of(main, 300, switch="line")
    assert isinstance(exc, DeadlockError)
    assert "fiber 'ab'" in str(exc)
    assert "held by fiber 'ba'" in str(exc)


def test_lock_that_a_failed_thread_has_kept_is_a_deadlock_that_names_the_thread() -> None:
    def main() -> None:
        ready = threading.Condition()

        def fail() -> None:
            ready.acquire()
            raise ZeroDivisionError

        def work() -> None:
            with ready:
                pass

        for name, function in (("first", fail), ("second", work)):
            threading.Thread(target=function, name=name).start()

    exc = failure_of(main)
    assert isinstance(exc, DeadlockError)
    assert "taken by thread 'first', which has ended without release()" in str(exc)
    assert "the thread 'first' has failed with ZeroDivisionError()" in str(exc.__context__)


def test_deadlock_after_a_thread_has_failed_is_reported_with_that_failure() -> None:
    def main() -> None:
        done = threading.Event()

        def work() -> None:
            raise ZeroDivisionError
            done.set()

        threading.Thread(target=work, name="worker").start()
        done.wait()

    with pytest.raises(ScheduleFailure) as caught:
        explore(main, 1, threads="simulated")
    headline, _, text = str(caught.value).partition("\n")
    failed, _, then = headline.partition("; then ")
    assert "the thread 'worker' has failed with ZeroDivisionError()" in failed
    assert then.startswith("DeadlockError: 1 fiber waits")
    assert "raise ZeroDivisionError" in text


def test_time_passes_in_a_loop_that_looks_at_the_clock_alone() -> None:
    ended: list[float] = []

    def main() -> None:
        end = time.monotonic() + 0.001
        while time.monotonic() < end:
            pass
        ended.append(time.monotonic())

    explore(main, 2, threads="simulated")
    assert len(set(ended)) == 1
    assert 0.001 <= ended[0] < 0.003


def test_pool_of_multiprocessing_with_threads_ends() -> None:
    def main() -> None:
        with ThreadPool(2) as pool:
            assert pool.map(str, [1, 2]) == ["1", "2"]

    explore(main, 2, threads="simulated")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fcntl")
def test_threads_wait_for_a_lock_of_a_file_in_virtual_time(tmp_path: Path) -> None:
    import fcntl

    path = tmp_path / "lock"
    path.touch()

    def main() -> None:
        inside: list[int] = []

        def work() -> None:
            with path.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                inside.append(1)
                time.sleep(60)
                assert len(inside) == 1
                inside.pop()

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    explore(main, 20, threads="simulated", switch="line")


def test_join_in_a_deadlock_names_the_thread() -> None:
    def main() -> None:
        lock = threading.Lock()
        thread = threading.Thread(target=lambda: lock.acquire(), name="waits")
        with lock:
            thread.start()
            thread.join()

    exc = failure_of(main)
    assert isinstance(exc, DeadlockError)
    if sys.version_info >= (3, 13):  # before, join() waits for a lock that the thread holds
        assert "waits for the end of fiber 'waits'" in str(exc)
    assert "they wait for each other" in str(exc)


# -------------------------------------------------------------------------- the end


def test_thread_that_is_no_daemon_is_waited_for() -> None:
    ends: list[str] = []

    def work() -> None:
        time.sleep(60)
        ends.append("work")

    simulated(lambda: threading.Thread(target=work).start())
    assert ends == ["work"]


def test_daemon_is_cut_off_and_its_finally_runs() -> None:
    ends: list[str] = []

    def work() -> None:
        try:
            time.sleep(60)
            ends.append("slept")
        finally:
            ends.append("finally")

    explore(lambda: threading.Thread(target=work, daemon=True).start(), 3, threads="simulated")
    assert ends == ["finally"] * 4


def test_pool_that_is_not_shut_down_ends() -> None:
    done: list[int] = []

    def main() -> None:
        ThreadPoolExecutor(2).submit(done.append, 1)

    explore(main, 3, threads="simulated")
    assert done == [1] * 4
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(int, "5").result() == 5


def test_thread_that_never_ends_is_a_deadlock() -> None:
    def main() -> None:
        threading.Thread(target=threading.Event().wait).start()

    assert isinstance(failure_of(main), DeadlockError)


def test_left_thread_is_an_error_if_that_is_asked() -> None:
    def main() -> None:
        threading.Thread(target=time.sleep, args=(1,)).start()

    assert isinstance(failure_of(main, leftovers="error"), LeftRunningError)


def test_nothing_is_left_in_the_tables_of_threading() -> None:
    def main() -> None:
        threading.Thread(target=time.sleep, args=(1,)).start()
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        ThreadPoolExecutor(1).submit(int)

    threads = threading.enumerate()
    counter = threading._counter  # type: ignore[attr-defined]
    hook = threading.excepthook
    functions = vars(_thread).copy()
    explore(main, 20, threads="simulated", switch="line")
    assert threading.enumerate() == threads
    assert threading._counter is counter  # type: ignore[attr-defined]
    assert threading.excepthook is hook
    assert vars(_thread) == functions
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert threading.get_ident() == _thread.get_ident()


def test_threads_of_other_threads_stay_real() -> None:
    seen: list[bool] = []
    go, done = threading.Event(), threading.Event()

    def outside() -> None:
        go.wait(10)
        inner = threading.Thread(target=lambda: seen.append(pyfiber.current() is None))
        inner.start()
        inner.join()
        done.set()

    helper = pyfiber.native_thread(outside)
    helper.start()

    def main() -> None:
        go.set()
        while not done.is_set():
            pyfiber.testing.choose([1])

    run(main, threads="simulated", clock="real")
    helper.join()
    assert len(seen) == 1


def test_two_explorations_with_simulated_threads_exclude_each_other() -> None:
    def main() -> None:
        with pytest.raises(FiberError, match="are fibers already"):
            simulated(lambda: None)

    helper = []

    def inside() -> None:
        thread = pyfiber.native_thread(lambda: helper.append(main()))
        thread.start()
        while thread.is_alive():
            pyfiber.testing.choose([1])

    run(inside, threads="simulated", clock="real")
    assert helper == [None]


def test_refused_exploration_leaves_the_other_alone() -> None:
    refused: list[str] = []

    def explore_too() -> None:
        try:
            explore(lambda: None, threads="simulated")
        except FiberError as exc:
            refused.append(str(exc))

    def inside() -> None:
        native = pyfiber.native_thread(explore_too)
        native.start()
        while native.is_alive():
            pyfiber.testing.choose([1])
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        assert is_virtual(thread)

    run(inside, threads="simulated", clock="real")
    assert len(refused) == 1
    assert "are fibers already" in refused[0]


def test_exploration_in_virtual_threads_is_refused() -> None:
    with pyfiber.virtual_threads(), pytest.raises(FiberError, match="are fibers already"):
        explore(lambda: None, threads="simulated")


# ------------------------------------------------------------------- the same each time

RACE = """
import threading
from pyfiber.testing import ScheduleFailure, explore, replay

class Counter:
    value = 0

    def add(self):
        value = self.value
        self.value = value + 1

def race():
    counter = Counter()
    threads = [threading.Thread(target=counter.add) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 2
"""


def test_schedule_fails_in_another_process_as_well(tmp_path: Path) -> None:
    (tmp_path / "race.py").write_text(
        RACE
        + textwrap.dedent(
            """
            import sys
            try:
                if len(sys.argv) > 1:
                    replay(race, sys.argv[1], threads="simulated")
                else:
                    explore(race, threads="simulated", switch="line")
            except ScheduleFailure as failure:
                print(failure.schedule)
            """
        )
    )
    command = [sys.executable, str(tmp_path / "race.py")]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert first.startswith("pf2-")
    again = subprocess.run([*command, first.strip()], capture_output=True, text=True, check=True)
    assert again.stdout == first


def test_sets_of_threads_and_futures_have_the_same_order_in_each_run() -> None:
    orders: set[tuple[str, ...]] = set()
    junk: list[object] = []

    def main() -> None:
        threads = {threading.Thread(target=time.sleep, args=(n,)) for n in range(20)}
        orders.add(tuple(thread.name for thread in threads))
        junk.extend(object() for _ in range(101))  # other addresses next time
        for thread in threads:
            thread.start()

    explore(main, 5, threads="simulated")
    assert len(orders) == 1


def test_wrong_value_is_refused() -> None:
    with pytest.raises(TypeError, match='True, False or "simulated"'):
        explore(lambda: None, threads="real")  # type: ignore[arg-type]


def test_replay_line_repeats_the_failure() -> None:
    def race() -> None:
        seen: list[int] = []
        thread = threading.Thread(target=seen.append, args=(1,))
        thread.start()
        assert not seen

    with pytest.raises(ScheduleFailure, match=r'threads="simulated"\)') as caught:
        explore(race, threads="simulated", switch="line")
    with pytest.raises(ScheduleFailure):
        replay(race, caught.value.schedule, threads="simulated")


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["line", "gil"])
def test_ten_thousand_schedules_leave_nothing(switch: Any) -> None:
    def main() -> None:
        count = [0]
        lock = threading.Lock()

        def add() -> None:
            with lock:
                count[0] += 1

        threads = [threading.Thread(target=add) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert count == [2]

    def objects_after(schedules: int) -> int:
        explore(main, schedules, "random", switch=switch, threads="simulated")
        gc.collect()
        return len(gc.get_objects())

    assert objects_after(100) + 100 > objects_after(10_000)
