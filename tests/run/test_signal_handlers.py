"""Handlers of signals and the wake-up descriptor: what runs when, and what is put back after.

The interpreter that is signalled is one of its own.
"""

from __future__ import annotations

import os

import pytest

from tests.run.signal_programs import script

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals between processes are POSIX")


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


def test_wakeup_fd_that_was_closed_changes_no_result() -> None:
    """SystemError, or the failure of set_wakeup_fd(), took the place of the run's result."""
    printed = script("""
        def open_and_close():
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            signal.set_wakeup_fd(ours.fileno())
            ours.close()
            theirs.close()
            return "result"
        runs(open_and_close)
        runs(lambda: (sleep(0.001), "next")[1])
        signal.set_wakeup_fd(-1)
        open_and_close()
        runs(lambda: "closed before")
        print(log)
    """)
    assert printed == "['result', 'next', 'closed before']"


def test_wakeup_fd_that_blocks_changes_no_result_and_stays() -> None:
    printed = script("""
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        def main():
            signal.set_wakeup_fd(theirs.fileno())
            theirs.setblocking(True)
            return "result"
        runs(main)
        runs(lambda: "next")
        print(log, signal.set_wakeup_fd(-1) == theirs.fileno())
        ours.close()
        theirs.close()
    """)
    assert printed == "['result', 'next'] True"


def test_wakeup_pipe_that_the_program_closed_is_made_anew() -> None:
    """A daemon closes all descriptors; the pipe's numbers then belong to files of its own."""
    printed = script("""
        run(sleep, 0)
        os.closerange(3, 100)
        import tempfile, warnings
        warnings.simplefilter("ignore")  # of forks beside threads
        files = [tempfile.TemporaryFile(buffering=0) for _ in range(20)]
        sender = interrupt_soon()
        print(runs(lambda: park(20)))
        sender.wait()
        print([os.fstat(file.fileno()).st_size for file in files] == [0] * 20)
        if (pid := os.fork()) == 0:
            os.write(1, b"child %d\\n" % any(os.fstat(file.fileno()).st_size for file in files))
            os._exit(0)
        os.waitpid(pid, 0)
    """)
    assert printed.split("\n") == ["['KeyboardInterrupt']", "True", "child 0"]


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
