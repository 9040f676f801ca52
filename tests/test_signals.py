"""Ctrl-C and other signals: while fibers run, while the loop idles, and what is put back after.

The interpreter that is signalled is one of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from subprocesses import run_script, start_python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals between processes are POSIX")

PRELUDE = """
import os, select, signal, socket, subprocess, sys, threading, time
from pyfiber import *
log = []
def interrupt():
    signal.raise_signal(signal.SIGINT)
def interrupt_soon(count=1, pause=0.03):
    "From another process, as a terminal does."
    return subprocess.Popen(
        ["/bin/sh", "-c", f"for i in {' '.join('x' * count)}; do "
         f"sleep {pause}; kill -INT {os.getpid()}; done"])
def runs(fn):
    "How the run ended, and what it took."
    try:
        log.append(run(fn))
    except BaseException as exc:
        log.append(type(exc).__name__)
    return log
def parks(name):
    try:
        park()
    except Cancelled as exc:
        log.append((name, exc.reason, exc.by))
        raise
"""


def script(code: str, timeout: float = 10) -> str:
    """What it prints, without the end of the line."""
    done = run_script(PRELUDE + textwrap.dedent(code), timeout=timeout)
    assert done.stderr == ""
    return done.stdout.rstrip()


@contextmanager
def start_script(code: str, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """The same, to be talked to; it is ended with the block."""
    process = start_python("-c", "\n".join([PRELUDE, before, textwrap.dedent(code)]))
    with process:
        try:
            yield process
            process.wait(60)
        finally:
            process.kill()


# Ctrl-C -------------------------------------------------------------------------------------------


def test_interrupt_cancels_everything_and_run_raises() -> None:
    printed = script("""
        def main():
            for name in "ab":
                spawn(parks, name)
            spawn(interrupt)
            parks("main")
        print(runs(main))
    """)
    cancelled = "('main', 'KeyboardInterrupt', None)"
    assert cancelled in printed
    assert "('a', 'KeyboardInterrupt', None)" in printed
    assert "('b', 'KeyboardInterrupt', None)" in printed
    assert printed.endswith("'KeyboardInterrupt']")


def test_interrupt_beats_the_result() -> None:
    assert script("print(runs(lambda: (interrupt(), 'result')))") == "['KeyboardInterrupt']"


def test_interrupt_while_the_loop_idles() -> None:
    printed = script("""
        def main():
            sender = interrupt_soon()
            try:
                park(20)
            finally:
                sender.wait()
        print(runs(main))
    """)
    assert printed == "['KeyboardInterrupt']"


def test_interrupt_while_the_loop_idles_without_a_timer() -> None:
    printed = script("""
        threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
        sender = interrupt_soon()
        print(runs(park))
        sender.wait()
    """)
    assert printed == "['KeyboardInterrupt']"


def test_interrupt_from_another_thread_while_the_loop_idles() -> None:
    """The system may deliver it to that thread: the loop is woken all the same."""
    printed = script("""
        def other():
            time.sleep(0.03)
            interrupt()
        def main():
            thread = threading.Thread(target=other)
            thread.start()
            try:
                park(20)
            finally:
                thread.join()
        print(runs(main))
    """)
    assert printed == "['KeyboardInterrupt']"


def test_interrupt_while_a_fiber_is_busy() -> None:
    printed = script("""
        def busy():
            try:
                while True:
                    yield_now()
            finally:
                log.append("cleaned up")
        sender = interrupt_soon()
        print(runs(busy))
        sender.wait()
    """)
    assert printed == "['cleaned up', 'KeyboardInterrupt']"


def test_interrupt_does_not_break_into_a_fiber_that_computes() -> None:
    """It is cancelled where it parks; code between park points is not torn apart."""
    printed = script("""
        def computes():
            sender = interrupt_soon()
            sender.wait()
            for i in range(100000):
                pass
            log.append("computed")
            yield_now()
            log.append("never")
        print(runs(computes))
    """)
    assert printed == "['computed', 'KeyboardInterrupt']"


def test_interrupt_waits_for_the_cleanup() -> None:
    printed = script("""
        def body():
            try:
                park()
            finally:
                for _ in range(3):
                    try:
                        sleep(1)
                    except Cancelled:
                        log.append("again")
        def main():
            spawn(body)
            spawn(interrupt)
            park()
        print(runs(main))
    """)
    assert printed == "['again', 'again', 'again', 'KeyboardInterrupt']"


def test_second_interrupt_breaks_into_a_fiber_that_does_not_end() -> None:
    printed = script("""
        import logging
        logging.getLogger("pyfiber").setLevel(logging.ERROR)  # it reports the fiber
        def stubborn():
            sender = interrupt_soon(2)
            try:
                while True:
                    try:
                        sleep(0.001)
                    except Cancelled:
                        pass
            finally:
                sender.wait()
                log.append("unwound")
        print(runs(stubborn))
    """)
    assert printed == "['unwound', 'KeyboardInterrupt']"


def test_second_interrupt_does_not_wait_for_the_others() -> None:
    printed = script("""
        def stubborn(name):
            try:
                while True:
                    try:
                        park()
                    except Cancelled:
                        pass
            finally:
                log.append(name)
        def main():
            for name in "ab":
                spawn(stubborn, name)
            yield_now()
            interrupt()
            interrupt()
        runs(main)
        print(sorted(log))
    """)
    assert printed == "['KeyboardInterrupt', 'a', 'b']"


def test_second_interrupt_gives_ready_fibers_no_other_turn() -> None:
    printed = script("""
        def stubborn():
            while True:
                try:
                    yield_now()
                except Cancelled:
                    pass
                log.append("turn")
        def main():
            for _ in range(3):
                spawn(stubborn)
            yield_now()
            interrupt()
            log.clear()
            interrupt()
        print(runs(main))
    """)
    assert printed == "['KeyboardInterrupt']"


def test_second_interrupt_when_the_loop_is_to_run_anyway_is_not_put_off() -> None:
    """Main has failed: the loop's turn would come after those who are ready. It comes at once."""
    printed = script("""
        def interrupts():
            yield_now()
            interrupt()
            log.clear()
            interrupt()
        def stubborn():
            while True:
                try:
                    yield_now()
                except Cancelled:
                    pass
                log.append("turn")
        def main():
            spawn(interrupts)
            for _ in range(3):
                spawn(stubborn)
            yield_now()
            raise LookupError
        print(runs(main))
    """)
    assert printed == "['KeyboardInterrupt']"


def test_first_interrupt_leaves_the_loop_its_place_in_the_line() -> None:
    """Who was spawned since has its turn if it stands before the loop, and only then."""
    printed = script("""
        def later():
            log.append("later")
        def first():
            log.append("first")
            spawn(later)
        def main():
            interrupt()
            spawn(first)
        print(runs(main))
    """)
    assert printed == "['first', 'KeyboardInterrupt']"


def test_second_interrupt_leaves_nobody_in_the_line() -> None:
    """The loop was in it already: it comes to the front, and is not there twice."""
    printed = script("""
        def interrupts():
            yield_now()
            interrupt()
            interrupt()
        def stubborn():
            while True:
                try:
                    yield_now()
                except Cancelled:
                    pass
        def main():
            spawn(interrupts)
            for _ in range(3):
                spawn(stubborn)
            yield_now()
            raise LookupError
        scheduler = Scheduler()
        try:
            scheduler.run(main)
        except KeyboardInterrupt:
            print(scheduler.stats()["ready"])
        print(scheduler.run(lambda: spawn(int, "7").result()))
    """)
    assert printed == "0\n7"


def test_handler_that_outlives_its_run_interrupts_as_usual() -> None:
    printed = script("""
        kept = run(lambda: signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, kept)
        for _ in range(2):
            try:
                interrupt()
            except KeyboardInterrupt:
                print("interrupted")
        print(run(lambda: 7))
    """)
    assert printed == "interrupted\ninterrupted\n7"


def test_second_interrupt_that_a_fiber_swallows_ends_the_run_all_the_same() -> None:
    printed = script("""
        def deaf():
            while True:
                try:
                    yield_now()
                except (Cancelled, KeyboardInterrupt):
                    log.append("deaf")
        def main():
            fiber = spawn(deaf)
            spawn(lambda: [yield_now() for _ in range(1_000_000)])
            yield_now()
            try:
                interrupt()
                interrupt()
            except KeyboardInterrupt:
                log.append("swallowed")
            while True:
                yield_now()
        print(runs(main))
    """)
    assert printed == "['swallowed', 'KeyboardInterrupt']"


def test_interrupt_when_a_fiber_was_left_by_a_direct_switch_does_not_hang() -> None:
    printed = script("""
        root = current()
        def main():
            raw = Fiber(lambda: None)
            raw.parent = root
            spawn(raw.switch)
            yield_now()
            interrupt()
        print(runs(main))
    """)
    assert printed == "['KeyboardInterrupt']"


def test_interrupt_between_two_runs_is_the_interpreters() -> None:
    printed = script("""
        run(lambda: None)
        try:
            interrupt()
        except KeyboardInterrupt:
            print("raised here", run(lambda: 5))
    """)
    assert printed == "raised here 5"


def test_run_after_an_interrupted_one_works_and_can_be_interrupted() -> None:
    printed = script("""
        for _ in range(3):
            runs(lambda: (interrupt(), park()))
            runs(lambda: "fine")
        print(log)
    """)
    assert printed == str(["KeyboardInterrupt", "fine"] * 3)


def test_interrupt_with_a_run_on_another_thread_stops_the_main_thread_only() -> None:
    printed = script("""
        fibers = []
        def body():
            fibers.append(current())
            return park(20)
        thread = threading.Thread(target=runs, args=(body,))
        thread.start()
        while not fibers:
            time.sleep(0.001)
        try:
            interrupt()
        except KeyboardInterrupt:
            log.append("main thread")
        fibers[0].unpark("not interrupted")
        thread.join()
        print(log)
    """)
    assert printed == "['main thread', 'not interrupted']"


def test_interrupt_in_a_run_inside_a_raw_fiber() -> None:
    printed = script("""
        def raw():
            return runs(lambda: (interrupt(), park()))
        print(Fiber(raw).switch())
    """)
    assert printed == "['KeyboardInterrupt']"


# Handlers -----------------------------------------------------------------------------------------


def test_handler_is_put_back_after_the_run() -> None:
    printed = script("""
        def main():
            log.append(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
            raise ValueError
        before = signal.getsignal(signal.SIGINT)
        runs(main)
        print(log, signal.getsignal(signal.SIGINT) is before, signal.set_wakeup_fd(-1))
    """)
    assert printed == "[True, 'ValueError'] True -1"


def test_handler_of_the_programs_own_is_kept() -> None:
    printed = script("""
        signal.signal(signal.SIGINT, lambda *args: log.append("mine"))
        print(runs(lambda: (interrupt(), yield_now(), "result")[2]))
        interrupt()
        print(log)
    """)
    assert printed.splitlines() == ["['mine', 'result']", "['mine', 'result', 'mine']"]


@pytest.mark.parametrize("choice", ["SIG_IGN", "SIG_DFL"])
def test_disposition_of_the_programs_own_is_kept(choice: str) -> None:
    printed = script(f"""
        signal.signal(signal.SIGINT, signal.{choice})
        run(lambda: log.append(signal.getsignal(signal.SIGINT) is signal.{choice}))
        print(log, signal.getsignal(signal.SIGINT) is signal.{choice})
    """)
    assert printed == "[True] True"


def test_handler_installed_during_the_run_is_kept() -> None:
    printed = script("""
        def mine(*args):
            pass
        run(lambda: signal.signal(signal.SIGINT, mine))
        print(signal.getsignal(signal.SIGINT) is mine)
    """)
    assert printed == "True"


def test_handler_that_unparks_a_fiber_while_the_loop_idles() -> None:
    printed = script("""
        def main():
            me = current()
            signal.signal(signal.SIGALRM, lambda *args: me.unpark("from the handler"))
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            return park(20)
        print(runs(main))
    """)
    assert printed == "['from the handler']"


def test_handler_that_unparks_a_fiber_while_another_is_busy() -> None:
    printed = script("""
        def main():
            me = current()
            signal.signal(signal.SIGALRM, lambda *args: me.unpark("from the handler"))
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            busy = Fiber(lambda: [yield_now() for _ in iter(int, 1)], daemon=True).start()
            return park(20)
        print(runs(main))
    """)
    assert printed == "['from the handler']"


def test_handler_that_fails_while_the_loop_idles_ends_the_run() -> None:
    printed = script("""
        def fails(*args):
            raise LookupError("from the handler")
        def main():
            signal.signal(signal.SIGALRM, fails)
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            try:
                park(20)
            except Cancelled:
                log.append("cancelled")
                raise
        print(runs(main))
    """)
    assert printed == "['cancelled', 'LookupError']"


@pytest.mark.parametrize(
    "act", ["yield_now()", "park(0.001)", "sleep(0.001)", "Fiber(lambda: None).switch()"]
)
def test_handler_cannot_leave_the_idle_loop(act: str) -> None:
    printed = script(f"""
        def handler(*args):
            try:
                {act}
            except FiberError as exc:
                log.append("signal handler" in str(exc))
            me[0].unpark("woken")
        me = []
        def main():
            me.append(current())
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            return park(20)
        print(runs(main))
    """)
    assert printed == "[True, 'woken']"


@pytest.mark.parametrize(
    "act",
    [
        "yield_now()",
        "park(0.001)",
        "sleep(0.001)",
        "spawn(yield_now).join()",
        "Fiber(lambda: None).switch()",
        "run(lambda: None)",
        "scheduler.run_once()",
        "current().cancel()",
    ],
)
def test_handler_that_switches_in_a_busy_fiber_does_no_harm(act: str) -> None:
    """It may be refused or work; nothing may be lost or broken by it."""
    printed = script(f"""
        scheduler = Scheduler()
        calls = []
        def handler(*args):
            calls.append(1)
            if len(calls) > 50:
                signal.setitimer(signal.ITIMER_REAL, 0)
            try:
                {act}
            except (FiberError, TimeoutError, Cancelled):
                pass
        def busy():
            for _ in range(10):
                for _ in range(20000):
                    pass
                try:
                    yield_now()
                except Cancelled:
                    pass
            return 5
        def main():
            signal.signal(signal.SIGALRM, handler)
            signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
            fibers = [spawn(busy) for _ in range(5)]
            results = []
            for fiber in fibers:
                while not fiber.done():
                    try:
                        fiber.join()
                    except Cancelled:
                        for _ in range(10000):
                            pass
                        try:
                            yield_now()
                        except Cancelled:
                            break
            while not all(fiber.done() for fiber in fibers):
                try:
                    yield_now()
                except Cancelled:
                    return "cancelled"
            signal.setitimer(signal.ITIMER_REAL, 0)
            return [fiber.result() for fiber in fibers]
        result = run(main)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(result)
    """)
    assert printed in ("[5, 5, 5, 5, 5]", "cancelled")


def test_handler_wakes_the_idle_loop_whatever_other_threads_loops_do() -> None:
    """A loop that wakes all the time must not take the news of a signal from the main thread's."""
    printed = script("""
        over = False
        def naps():
            while not over:
                sleep(0.00001)
        other = threading.Thread(target=run, args=(naps,))
        other.start()
        parking = threading.Semaphore(0)
        def send():
            for _ in range(20):
                parking.acquire()
                time.sleep(0.002)
                signal.pthread_kill(other.ident, signal.SIGUSR1)
        def main():
            me = current()
            signal.signal(signal.SIGUSR1, lambda number, frame: me.unpark("woken"))
            for _ in range(20):
                parking.release()
                log.append(park(30))
        sender = threading.Thread(target=send)
        sender.start()
        begun = time.monotonic()
        run(main)
        print(log == ["woken"] * 20, time.monotonic() - begun < 20)
        over = True
        other.join()
        sender.join()
    """)
    assert printed == "True True"


def test_storm_of_signals_loses_no_wake_up() -> None:
    printed = script("""
        signal.signal(signal.SIGALRM, lambda *args: None)
        signal.setitimer(signal.ITIMER_REAL, 0.0003, 0.0003)
        def pong(other):
            for i in range(300):
                assert park() == i
                sleep(0.0001)
                other.unpark(i)
        def main():
            other = spawn(pong, current())
            for i in range(300):
                other.unpark(i)
                assert park() == i
            return "fine"
        result = run(main)
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(result)
    """)
    assert printed == "fine"


# The wake-up descriptor ---------------------------------------------------------------------------


def test_wakeup_fd_of_the_program_is_left_alone() -> None:
    printed = script("""
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            end.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno())
        signal.signal(signal.SIGALRM, lambda *args: log.append("handled"))
        def main():
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            while not log:
                sleep(0.001)
            return ours.recv(10) == bytes([signal.SIGALRM])
        runs(main)
        print(log, signal.set_wakeup_fd(-1) == theirs.fileno())
        ours.close()
        theirs.close()
    """)
    assert printed == "['handled', True] True"


def test_wakeup_fd_set_during_the_run_is_kept() -> None:
    printed = script("""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        run(lambda: signal.set_wakeup_fd(theirs.fileno()))
        print(signal.set_wakeup_fd(-1) == theirs.fileno())
        ours.close()
        theirs.close()
    """)
    assert printed == "True"


def test_asyncio_inside_a_fiber_keeps_its_signal_handling() -> None:
    printed = script("""
        import asyncio
        async def main():
            loop = asyncio.get_running_loop()
            called = asyncio.Event()
            loop.add_signal_handler(signal.SIGALRM, called.set)
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            await asyncio.wait_for(called.wait(), 10)
            loop.remove_signal_handler(signal.SIGALRM)
            return "called"
        print(run(lambda: asyncio.run(main())), run(lambda: (sleep(0.001), "again")[1]))
    """)
    assert printed == "called again"


def test_interrupt_while_idle_with_a_wakeup_fd_of_the_programs() -> None:
    printed = script("""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        signal.set_wakeup_fd(theirs.fileno())
        sender = interrupt_soon()
        print(runs(lambda: park(20)))
        sender.wait()
        signal.set_wakeup_fd(-1)
        ours.close()
        theirs.close()
    """)
    assert printed == "['KeyboardInterrupt']"


# Code that runs while a run begins ----------------------------------------------------------------


def test_getsignal_that_fails_when_a_run_begins_is_what_run_raises() -> None:
    code = """
    def refuses(number):
        raise LookupError(number)
    signal.getsignal = refuses
    print(runs(lambda: 1))
    """
    assert script(code) == "['LookupError']"


def test_full_queue_while_a_run_begins_or_ends_is_not_waited_for() -> None:
    code = """
    queue = Queue(1)
    queue.put("first")
    original = signal.getsignal
    def puts(number):
        try:
            queue.put("second", timeout=0.001)
        except FiberError as exc:
            log.append(str(exc).removeprefix("cannot leave this fiber "))
        return original(number)
    signal.getsignal = puts
    print(runs(lambda: 1), queue.qsize())
    """
    assert script(code) == "['while a run begins', 'while a run ends', 1] 1"


# telling what goes on -----------------------------------------------------------------------------


def test_interrupt_that_a_busy_fiber_does_not_see_is_told_and_the_second_ends_it() -> None:
    """The first Ctrl-C was silent for as long as main computed."""
    code = """
        def crunches():
            print("ready", flush=True)
            while True:
                pass
        try:
            run(crunches)
        except KeyboardInterrupt:
            print("ended")
    """
    with start_script(code) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "\n"
        told = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "ended\n"
        assert process.stderr.read() == ""
    assert process.returncode == 0
    assert told.startswith("pyfiber: Ctrl-C: every fiber is cancelled and waited for until it ends")
    assert "fiber 'crunches' runs crunches() at " in told
    assert told.endswith("; press Ctrl-C again to stop at once\n")


def test_interrupt_of_a_run_whose_cleanup_waits_is_told() -> None:
    code = """
        def stubborn():
            print("ready", flush=True)
            with shield():
                park()
        try:
            run(stubborn)
        except KeyboardInterrupt:
            print("ended")
    """
    with start_script(
        code, "other = threading.Event(); threading.Thread(target=other.wait, daemon=True).start()"
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        assert process.stderr.readline() == "\n"
        told = process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "ended\n"
    assert told == (
        "pyfiber: Ctrl-C: every fiber is cancelled and waited for until it ends; press Ctrl-C "
        "again to stop at once\n"
    )


def test_interrupt_of_a_run_that_ends_promptly_says_nothing() -> None:
    """... and the thread that would tell is gone; the second run is watched anew."""
    assert (
        script("""
        import _thread
        from pyfiber import _hooks
        _hooks.INTERRUPT_PATIENCE = 1000
        def main():
            interrupt()
            sleep(1000)
        for _ in range(2):
            print(runs(main))
            while _thread._count() > 0:
                time.sleep(0.001)
    """).splitlines()[-1]
        == "['KeyboardInterrupt', 'KeyboardInterrupt']"
    )


def test_watch_of_an_interrupted_run_is_no_thread_that_could_wake_somebody() -> None:
    assert (
        script("""
        from pyfiber import _hooks
        _hooks.INTERRUPT_PATIENCE = 1000
        def main():
            interrupt()
            with shield():
                park()
        began = time.monotonic()
        print(runs(main), time.monotonic() - began < 100)
    """)
        == "['KeyboardInterrupt'] True"
    )
