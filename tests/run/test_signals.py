"""Ctrl-C: while fibers run, while the loop idles, and what is told of it.

The interpreter that is signalled is one of its own.
"""

from __future__ import annotations

import os
import signal

import pytest

from tests.run.signal_programs import script, start_script

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals between processes are POSIX")


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


def test_second_interrupt_amid_the_first_ends_the_run() -> None:
    """While the thread begins that tells of the first; it was written to stderr, and lost."""
    printed = script("""
        from pyfiber import _native
        _native.start_new_thread = lambda function, args: interrupt()
        def stubborn():
            try:
                interrupt()
                while True:
                    try:
                        sleep(0.001)
                    except Cancelled:
                        pass
            finally:
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


def test_interrupt_of_a_patched_program_says_nothing() -> None:
    """The handler's own lock parked the cancelled fiber, and Cancelled was printed as ignored."""
    assert (
        script("""
        import _thread, pyfiber
        from pyfiber import _hooks
        _hooks.INTERRUPT_PATIENCE = 1000
        patch()
        def main():
            interrupt()
            time.sleep(1000)
        print(runs(main))
        while _thread._count() > 0:
            time.sleep(0.001)
    """)
        == "['KeyboardInterrupt']"
    )


def test_second_interrupt_while_the_hint_is_prepared_leaves_no_hint_behind() -> None:
    assert (
        script("""
        import _thread
        from pyfiber import _hooks, _native
        _hooks.INTERRUPT_PATIENCE = 1000
        start_new_thread = _native.start_new_thread
        def starts(*args):
            start_new_thread(*args)
            interrupt()
        _native.start_new_thread = starts
        print(runs(interrupt))
        while _thread._count() > 0:
            time.sleep(0.001)
    """)
        == "['KeyboardInterrupt']"
    )


def test_interrupt_when_no_thread_can_be_started_goes_without_the_hint() -> None:
    assert (
        script("""
        from pyfiber import _native
        def refuses(*args):
            raise RuntimeError("can't start new thread")
        _native.start_new_thread = refuses
        print(runs(lambda: (interrupt(), sleep(1000))))
    """)
        == "['KeyboardInterrupt']"
    )
