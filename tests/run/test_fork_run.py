"""fork inside of a run: parent and child both go on, and do not wake each other."""

from __future__ import annotations

import os
import textwrap

import pytest

from tests.support.subprocesses import run_script

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

PRELUDE = """
import os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)
from pyfiber import *
def in_child(fn):
    "The exit code of a child that runs fn() in this very place, and goes no further."
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = fn()
        except BaseException as exc:
            sys.excepthook(type(exc), exc, exc.__traceback__)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


def script(code: str, check: bool = True) -> str:
    done = run_script(PRELUDE + textwrap.dedent(code), timeout=30, check=check)
    assert done.stderr == ""
    return done.stdout.rstrip()


def test_fork_in_a_fiber_child_uses_the_scheduler() -> None:
    printed = script("""
        def child():
            fiber = spawn(lambda: (sleep(0.001), yield_now(), 7)[2])
            return fiber.result()
        print(run(lambda: in_child(child)), run(lambda: 5))
    """)
    assert printed == "7 5"


def test_fork_child_may_leave_the_run_and_start_another() -> None:
    printed = script("""
        def main():
            pid = os.fork()
            if pid:
                return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            return "child"
        result = run(main)
        if result == "child":
            os._exit(run(lambda: spawn(lambda: 6).result()))
        print(result)
    """)
    assert printed == "6"


def test_fork_both_finish_the_other_fibers() -> None:
    printed = script("""
        log = []
        def worker(name):
            for i in range(3):
                log.append(f"{name}{i}")
                sleep(0.001)
        def main():
            fibers = [spawn(worker, name) for name in "ab"]
            yield_now()
            pid = os.fork()
            for fiber in fibers:
                fiber.join()
            return pid
        pid = run(main)
        if pid == 0:
            os._exit(len(log))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(log))
    """)
    assert printed == "6 6"


def test_fork_child_is_woken_by_its_own_threads() -> None:
    printed = script("""
        def child():
            me = current()
            thread = threading.Thread(target=me.unpark, args=(8,))
            thread.start()
            value = park(10)
            thread.join()
            return value
        print(run(lambda: in_child(child)))
    """)
    assert printed == "8"


def test_fork_child_does_not_take_the_parents_wake_ups() -> None:
    printed = script("""
        def main():
            me = current()
            pid = os.fork()
            if pid == 0:
                for _ in range(50):
                    sleep(0.001)
                os._exit(0)
            for i in range(50):
                thread = threading.Thread(target=me.unpark, args=(i,))
                thread.start()
                assert park(10) == i
                thread.join()
            os.waitpid(pid, 0)
            return "none lost"
        print(run(main))
    """)
    assert printed == "none lost"


def test_fork_child_that_loses_a_thread_job_does_not_wake_the_parent() -> None:
    printed = script("""
        import select
        begun, goes_on = threading.Event(), threading.Event()
        scheduler = Scheduler()
        def job():
            begun.set()
            goes_on.wait()
        scheduler.spawn(to_thread, job)
        scheduler.fileno()
        scheduler.run_once(timeout=0)
        begun.wait()
        def is_woken():
            return scheduler.fileno() in select.select([scheduler.fileno()], [], [], 0)[0]
        before = is_woken()
        code = in_child(lambda: 0)
        print(before, code, is_woken())
        goes_on.set()
        while scheduler.fibers():
            scheduler.run_once()
        scheduler.close()
    """)
    assert printed == "False 0 False"


def test_fork_with_a_timer_set_fires_in_both() -> None:
    printed = script("""
        def main():
            sleeper = spawn(sleep, 0.01)
            yield_now()
            pid = os.fork()
            sleeper.join()
            if pid == 0:
                os._exit(3)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(run(main))
    """)
    assert printed == "3"


def test_fork_child_of_a_deadlocked_run_sees_no_threads_of_the_parent() -> None:
    printed = script("""
        def child():
            try:
                park()
            except Cancelled:
                return 4
        def main():
            event = threading.Event()
            thread = threading.Thread(target=event.wait)
            thread.start()
            code = in_child(child)
            event.set()
            thread.join()
            return code
        print(run(main))
    """)
    assert printed == "4"


def test_fork_in_a_run_on_a_thread() -> None:
    printed = script("""
        results = []
        def child():
            return spawn(lambda: (sleep(0.001), 9)[1]).result()
        thread = threading.Thread(target=lambda: results.append(run(lambda: in_child(child))))
        thread.start()
        thread.join()
        print(results)
    """)
    assert printed == "[9]"


def test_fork_outside_of_a_run_after_one() -> None:
    printed = script("""
        run(lambda: sleep(0.001))
        print(in_child(lambda: run(lambda: spawn(lambda: 5).result())))
    """)
    assert printed == "5"


def test_fork_child_can_be_interrupted() -> None:
    printed = script("""
        import signal
        def child():
            try:
                run(lambda: (signal.raise_signal(signal.SIGINT), park()))
            except KeyboardInterrupt:
                return 2
        run(lambda: None)
        print(in_child(child))
    """)
    assert printed == "2"


def test_fork_child_that_ends_normally_unwinds_quietly() -> None:
    printed = script("""
        def main():
            spawn(park)
            daemon = Fiber(park, daemon=True).start()
            yield_now()
            pid = os.fork()
            if pid == 0:
                sys.exit(3)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            for fiber in (daemon,):
                fiber.cancel()
            return code
        def outer():
            main_fiber = spawn(main)
            code = main_fiber.result()
            raise SystemExit(f"child ended with {code}")
        try:
            run(outer)
        except SystemExit as exc:
            if exc.code == 3:
                raise
            print(exc)
    """)
    assert printed == "child ended with 3"


def test_fork_thousand_fibers_survive_in_both() -> None:
    printed = script("""
        def main():
            fibers = [spawn(park) for _ in range(1000)]
            yield_now()
            pid = os.fork()
            for i, fiber in enumerate(fibers):
                fiber.unpark(i)
            total = sum(fiber.result() for fiber in fibers)
            if pid == 0:
                os._exit(total == 499500)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), total
        print(run(main))
    """)
    assert printed == "(1, 499500)"


# A run inside of the one that was forked ------------------------------------------------------


def test_fork_child_may_run_inside_of_the_run_it_was_made_in() -> None:
    printed = script("""
        def inner():
            event = Event()
            fiber = spawn(lambda: (sleep(0.001), event.set(), 7)[2])
            event.wait()
            return fiber.result()
        print(run(lambda: in_child(lambda: run(inner))), run(lambda: 5))
    """)
    assert printed == "7 5"


def test_fork_child_goes_on_with_the_first_run_after_one_of_its_own() -> None:
    printed = script("""
        log = []
        def other():
            sleep(0.001)
            log.append("other")
        def main():
            fiber = spawn(other)
            yield_now()
            pid = os.fork()
            if pid == 0:
                run(lambda: log.append("inner"))
                log.append(str(current() in current_scheduler().fibers()))
                current().unpark()
                park(10)
            fiber.join()
            return pid
        if pid := run(main):
            os.waitpid(pid, 0)
        else:
            print(*log)
    """)
    assert printed == "inner True other"


def test_fork_child_whose_run_fails_sees_the_exception() -> None:
    printed = script("""
        def child():
            try:
                run(lambda: 1 / 0)
            except ZeroDivisionError:
                return run(lambda: 6)
        print(run(lambda: in_child(child)))
    """)
    assert printed == "6"


def test_fork_in_a_run_inside_of_a_forked_one() -> None:
    printed = script("""
        def child():
            return run(lambda: in_child(lambda: run(lambda: spawn(lambda: 4).result())))
        print(run(lambda: in_child(child)))
    """)
    assert printed == "4"


def test_fork_child_refuses_a_run_inside_of_its_own() -> None:
    printed = script("""
        def nested():
            try:
                run(lambda: None)
            except FiberError as exc:
                return "inside of a run" in str(exc)
        def again():
            scheduler = current_scheduler()
            try:
                scheduler.run(lambda: None)
            except FiberError as exc:
                return "runs on this thread already" in str(exc)
        print(run(lambda: in_child(lambda: run(nested))), run(lambda: in_child(again)))
    """)
    assert printed == "1 1"


def test_fork_child_run_inside_can_be_interrupted() -> None:
    printed = script("""
        import signal
        def child():
            def interrupt():
                os.kill(os.getpid(), signal.SIGINT)
            def main():
                threading.Timer(0.05, interrupt).start()
                park(20)
            try:
                run(main)
            except KeyboardInterrupt:
                return 2
        print(run(lambda: in_child(child)))
    """)
    assert printed == "2"


def test_fork_by_multiprocessing_inside_of_a_run() -> None:
    printed = script("""
        import multiprocessing
        context = multiprocessing.get_context("fork")
        def work(queue):
            queue.put(run(lambda: [spawn(abs, -n).result() for n in range(3)]))
        def main():
            queue = context.SimpleQueue()
            process = context.Process(target=work, args=(queue,))
            process.start()
            process.join()
            return queue.get(), process.exitcode
        print(run(main))
    """)
    assert printed == "([0, 1, 2], 0)"
