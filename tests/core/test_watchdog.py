"""The watchdog: who keeps a loop from running is told, and nobody else."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from pyfiber import _engine, run, sleep, spawn, yield_now
from pyfiber.debug import watchdog
from tests.conftest import Child
from tests.support.compilers import make_library
from tests.support.gil import PATCH_NEEDS_IT, needs_gil

#: Begins every report of this thread.
HERE = f"the loop of thread {threading.current_thread().name!r} ({threading.get_ident()}) has not"
#: Seconds; what is reported has to last longer, however slow the machine.
SHORT = 0.02

#: gcc 12's libasan does not see to its allocator's locks in a fork: the child of a process with
#: threads may wait for one for ever.
forks = pytest.mark.skipif(
    not hasattr(os, "fork") or "libasan" in os.environ.get("LD_PRELOAD", ""),
    reason="no fork here, or none beside threads",
)


class Reports:
    """The reports so far; waiting for the next one is what the blocked fiber does."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.changed = threading.Condition()

    def add(self, message: str, text: str) -> None:
        with self.changed:
            self.texts.append(text)
            self.changed.notify_all()

    def wait_for(self, part: str) -> str:
        """Blocks the thread, and with it the loop."""
        found: list[str] = []

        def there() -> bool:
            found[:] = [text for text in self.texts if part in text]
            return bool(found)

        with self.changed:
            assert self.changed.wait_for(there, 60), self.texts
        return found[0]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Reports:
    import logging

    reports = Reports()
    logger = logging.getLogger("pyfiber")
    monkeypatch.setattr(logger, "warning", reports.add)
    # Reports come one after the other: after this one comes none of an earlier test.
    last = threading.Thread(
        target=run,
        args=(reports.wait_for, "'the last of before'"),
        kwargs={"watchdog": SHORT},
        name="the last of before",
    )
    last.start()
    last.join()
    return reports


def test_fiber_that_blocks_is_told_with_its_stack(reports: Reports) -> None:
    texts = []

    def blocker() -> None:
        texts.append(reports.wait_for(HERE))

    def main() -> None:
        fiber = spawn(blocker)
        fiber.name = "the blocker"
        spawn(sleep, 0)
        fiber.join()

    run(main, watchdog=SHORT)
    (text,) = texts
    assert "fiber 'the blocker' at 0x" in text
    assert "does not wait, and 1 others wait for their turn" in text
    assert ", in blocker\n" in text


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_c_function_that_a_fiber_is_stuck_in_is_told(reports: Reports) -> None:
    assert "in C: " in run(reports.wait_for, HERE, watchdog=SHORT)


def test_end_of_a_long_turn_is_told_as_well(reports: Reports) -> None:
    def main() -> None:
        reports.wait_for(HERE)
        while not any("runs again, after" in text for text in reports.texts):
            sleep(SHORT / 4)

    run(main, watchdog=SHORT)


def test_long_turn_is_told_again_when_it_has_lasted_twice_as_long(reports: Reports) -> None:
    def seconds() -> list[float]:
        here = [text for text in reports.texts if HERE in text]
        return [float(text.split(" has not run for ")[1].split()[0]) for text in here]

    def main() -> None:
        with reports.changed:
            assert reports.changed.wait_for(lambda: len(seconds()) >= 3, 60)

    run(main, watchdog=SHORT)
    first, second, third = seconds()[:3]
    assert first * 1.9 < second
    assert second * 1.9 < third


@pytest.mark.parametrize("idle", [lambda: sleep(SHORT / 4), yield_now], ids=["sleep", "yield_now"])
def test_loop_that_runs_is_not_told(idle: Callable[[], None], reports: Reports) -> None:
    """While another thread's loop is blocked and told of three times."""

    def blocker() -> None:
        with reports.changed:
            assert reports.changed.wait_for(lambda: len(reports.texts) >= 3, 60)

    other = threading.Thread(target=run, args=(blocker,), kwargs={"watchdog": SHORT})

    def main() -> None:
        other.start()
        while other.is_alive():
            idle()

    run(main, watchdog=10)
    assert HERE not in "".join(reports.texts)


def test_limit_of_the_process_reaches_a_run_that_is_on_its_way(reports: Reports) -> None:
    def main() -> None:
        with watchdog(SHORT):
            reports.wait_for(HERE)

    run(main)


def test_own_limit_of_a_run_comes_before_that_of_the_process(reports: Reports) -> None:
    with watchdog(1e6):
        run(reports.wait_for, HERE, watchdog=SHORT)


def test_watchdog_undone_leaves_the_limit_from_before() -> None:
    first = watchdog(100)
    second = watchdog(50)
    third = watchdog(None)
    second.undo()
    assert _engine._watchdog_limit(None) is None
    third.undo()
    third.undo()
    assert _engine._watchdog_limit(100) == 100
    first.undo()
    assert _engine._watchdog_limit(None) is None


WRONG = [(0, ValueError), (-1, ValueError), ("1", TypeError), (b"", TypeError)]
WRONG += [(float("nan"), ValueError), (float("inf"), ValueError)]


@pytest.mark.parametrize(("seconds", "error"), WRONG)
def test_limit_that_is_none_is_refused(seconds: float, error: type[Exception]) -> None:
    with pytest.raises(error):
        watchdog(seconds)
    with pytest.raises(error):
        run(list, watchdog=seconds)
    assert _engine._watchdog_limit(None) is None


def test_run_takes_its_own_arguments_from_among_the_functions() -> None:
    def main(*args: int, **kwargs: int) -> object:
        return args, kwargs

    given = run(main, 1, 2, a=3, watchdog=100, b=4, on_unhandled="raise", c=5)
    assert given == ((1, 2), {"a": 3, "b": 4, "c": 5})
    assert run(main, watchdog=None, on_unhandled="log") == ((), {})


def test_watchdog_is_no_thread_that_could_wake_a_fiber(child: Child) -> None:
    """Or a deadlock would not be noticed."""
    child(
        """
        from pyfiber import DeadlockError, park, run
        from pyfiber.debug import watchdog
        watchdog(100)
        try:
            run(park)
        except DeadlockError:
            pass
        else:
            raise SystemExit("no deadlock")
        """
    )


HOLDS_THE_GIL = """
import sys
from pyfiber import Fiber, run

def reported():
    with open(sys.argv[1]) as file:  # on a busy machine a report of another moment may come first
        return "(most recent call first)" in file.read().partition("holds the GIL")[2]

def holds_on():
    # One operation, in C, with the GIL; of a second at first, then ever longer, until the report is
    # there. (A sleep would end when the thread is interrupted.)
    exponent = 2_000_000
    while not reported() and exponent < 1_000_000_000:
        3**exponent
        exponent *= 2

def main():
    Fiber(holds_on, name="holder").start().join()

run(main, watchdog=0.02)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_c_function_that_holds_the_gil_is_told_without_it(tmp_path: Path) -> None:
    """By the blocked thread itself, to stderr."""
    errors = tmp_path / "stderr"
    with errors.open("w") as stderr:
        command = [sys.executable, "-c", HOLDS_THE_GIL, str(errors)]
        subprocess.run(command, stderr=stderr, check=True, timeout=280)
    text = errors.read_text()
    assert "in a C function that holds the GIL\n" in text
    assert "in C: " in text
    assert "fiber 'holder'\n" in text
    assert " in holds_on\n" in text


def test_environment_sets_a_limit_from_the_start(child: Child) -> None:
    source = "from pyfiber import _engine; print(_engine._watchdog_limit(None))"
    assert child(source, env={"PYFIBER_WATCHDOG": "2.5"}).stdout == "2.5\n"
    assert child(source, env={"PYFIBER_WATCHDOG": "0"}).stdout == "None\n"
    done = child(source, env={"PYFIBER_WATCHDOG": "soon"}, check=False)
    assert "PYFIBER_WATCHDOG must be a number of seconds (0: never), not 'soon'" in done.stderr


@forks
def test_watchdog_goes_on_in_the_child_of_a_fork(child: Child) -> None:
    child(
        """
        import logging, os, threading, warnings
        from pyfiber import run
        from pyfiber.debug import watchdog

        told = threading.Event()
        logging.getLogger("pyfiber").warning = lambda *args: told.set()
        watchdog(0.02)
        run(told.wait, 60)
        assert told.is_set()
        warnings.simplefilter("ignore")  # there are threads: the watchdog's
        pid = os.fork()
        if pid == 0:
            told.clear()
            told = threading.Event()
            run(told.wait, 60)
            os._exit(0 if told.is_set() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        """
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_handler_of_the_program_is_left_alone(child: Child) -> None:
    child(
        """
        import logging, signal, threading
        from pyfiber import run
        from pyfiber.debug import watchdog

        signal.signal(signal.SIGURG, lambda *args: None)
        before = signal.getsignal(signal.SIGURG)
        told = []
        there = threading.Event()

        def warning(message, text):
            told.append(text)
            there.set()

        logging.getLogger("pyfiber").warning = warning
        run(there.wait, 60, watchdog=0.02)
        assert signal.getsignal(signal.SIGURG) is before
        assert "has not run" in told[0] and "in C" not in told[0]
        """
    )


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_handler_that_the_program_sets_later_is_left_alone_as_well(child: Child) -> None:
    child(
        """
        import logging, signal, threading
        from pyfiber import run
        from pyfiber.debug import watchdog

        called = []
        there = threading.Event()
        logging.getLogger("pyfiber").warning = lambda *args: there.set()
        watchdog(0.02)
        signal.signal(signal.SIGURG, lambda *args: called.append(args))
        run(there.wait, 60)
        assert there.is_set() and not called, called
        """
    )


def test_limit_taken_off_a_blocked_loop_leaves_nothing_to_tell_later(reports: Reports) -> None:
    """It was told that the loop "runs again", after all the time in which nobody had looked."""

    def look() -> None:
        """Let another loop be told of: the watchdog has looked at all of them in between."""

        def blocker() -> None:
            with reports.changed:
                count = len(reports.texts)
                assert reports.changed.wait_for(lambda: len(reports.texts) >= count + 3, 60)

        other = threading.Thread(target=run, args=(blocker,), kwargs={"watchdog": SHORT})
        other.start()
        while other.is_alive():
            yield_now()

    def main() -> None:
        with watchdog(SHORT):
            reports.wait_for(HERE)
        look()
        with watchdog(1000):
            look()

    run(main)
    mine = [text for text in reports.texts if f"({threading.get_ident()})" in text]
    assert not [text for text in mine if "runs again" in text]


def test_filter_that_raises_does_not_end_the_reports(child: Child) -> None:
    done = child(
        """
        import logging, threading
        from pyfiber import run

        tried = []
        twice = threading.Event()

        class Filter(logging.Filter):
            def filter(self, record):
                tried.append(record)
                if len(tried) == 2:
                    twice.set()
                raise KeyboardInterrupt("not today")

        logging.getLogger("pyfiber").addFilter(Filter())
        run(twice.wait, 60, watchdog=0.02)
        assert twice.is_set()
        """,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "KeyboardInterrupt: not today" in done.stderr
    assert "GIL" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_report_while_an_earlier_one_is_still_being_logged_says_so(child: Child) -> None:
    """It goes to stderr, and does not blame the GIL alone."""
    child(
        """
        import logging, os, sys
        from pyfiber import run

        handler = logging.StreamHandler(sys.stdout)
        logging.getLogger("pyfiber").addHandler(handler)

        def main():
            text = b""
            with handler.lock:
                while b"because an earlier report is still being logged" not in text:
                    text += os.read(reading, 10_000)
                while b" in main\\n" not in text:
                    text += os.read(reading, 10_000)

        reading, writing = os.pipe()
        stderr = os.dup(2)
        os.dup2(writing, 2)
        try:
            run(main, watchdog=0.02)
        finally:
            os.dup2(stderr, 2)
        """
    )


@pytest.mark.slow  # the watchdog is patient for a second of real time
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_report_that_nobody_could_log_until_the_run_had_ended_is_not_told(child: Child) -> None:
    """It would blame a thread that has gone on long ago."""
    child(
        """
        import logging, threading, time
        from pyfiber import run

        logged = threading.Event()
        lock = threading.Lock()

        class Handler(logging.Handler):
            def handle(self, record):
                logged.set()
                with lock:
                    pass

        logging.getLogger("pyfiber").addHandler(Handler())

        def main():
            logged.wait()  # and the reporter waits for the lock
            time.sleep(0.3)  # the next report waits for the reporter

        with lock:
            run(main, watchdog=0.02)
            time.sleep(1.5)
        """
    )


def test_watchdog_without_a_thread_for_its_reports_is_none_at_all(child: Child) -> None:
    child(
        """
        import logging, threading
        from pyfiber import _engine, _native, run
        from pyfiber.debug import watchdog

        def refuse(function, arguments):
            raise RuntimeError("can't start new thread")

        start = _native.start_new_thread
        _native.start_new_thread = refuse
        for attempt in (lambda: watchdog(0.02), lambda: run(list, watchdog=0.02)):
            try:
                attempt()
            except RuntimeError as exc:
                assert str(exc) == "can't start new thread"
            else:
                raise SystemExit("no error")
        assert _engine._watchdog_limit(None) is None
        _native.start_new_thread = start
        told = threading.Event()
        logging.getLogger("pyfiber").warning = lambda *args: told.set()
        run(told.wait, 60, watchdog=0.02)
        assert told.is_set()
        """
    )


def test_threads_that_start_and_stop_it_at_once_wait_for_nobody_for_ever(child: Child) -> None:
    child(
        """
        import _thread, logging, threading, time
        from pyfiber import _engine, _watchdog, run

        def plays():
            for _ in range(300):
                _watchdog.start()
                _watchdog._stop()

        players = [threading.Thread(target=plays) for _ in range(2)]
        for player in players:
            player.start()
        for player in players:
            player.join()
        end = time.monotonic() + 60
        while _thread._count() and time.monotonic() < end:  # their reporters
            time.sleep(0.001)
        assert not _thread._count()
        told = threading.Event()
        logging.getLogger("pyfiber").warning = lambda *args: told.set()
        run(told.wait, 60, watchdog=0.02)
        assert told.is_set()
        """
    )


def test_watchdog_may_be_started_while_logging_is_locked(child: Child) -> None:
    """As by logging.config, whose handlers and filters may be those of a module that it imports."""
    child(
        """
        import logging
        from pyfiber.debug import watchdog

        with logging._lock:
            watchdog(100)
        """
    )


def test_reporter_that_cannot_settle_in_reports_all_the_same(child: Child) -> None:
    done = child(
        """
        import logging, threading
        from pyfiber import _engine, run

        def refuse():
            raise MemoryError("not today")

        _engine._only_watches = refuse
        told = threading.Event()
        logging.getLogger("pyfiber").warning = lambda *args: told.set()
        run(told.wait, 60, watchdog=0.02)
        assert told.is_set()
        """,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "MemoryError: not today" in done.stderr


@forks
def test_watchdog_of_a_run_goes_on_in_the_child_of_a_fork(child: Child) -> None:
    child(
        """
        import logging, os, threading, warnings
        from pyfiber import run

        def main():
            warnings.simplefilter("ignore")  # there are threads: the watchdog's
            pid = os.fork()
            if pid == 0:
                told = threading.Event()
                logging.getLogger("pyfiber").warning = lambda *args: told.set()
                told.wait(60)
                os._exit(0 if told.is_set() else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

        logging.getLogger("pyfiber").addHandler(logging.NullHandler())
        run(main, watchdog=0.02)
        """
    )


@forks
@needs_gil(PATCH_NEEDS_IT)
def test_fork_with_a_watchdog_lets_no_other_fiber_run(child: Child) -> None:
    """The child started its threads by those of a patched `threading`, for which fibers park."""
    child(
        """
        import os, warnings
        from pyfiber import patch, run, spawn, yield_now

        def counts():
            while not done:
                turns.append(os.getpid())
                yield_now()

        def main():
            warnings.simplefilter("ignore")  # there are threads: the watchdog's
            spawn(counts)
            yield_now()
            before = len(turns)
            pid = os.fork()
            if pid == 0:
                os._exit(len(turns) - before)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            done.append(True)

        turns, done = [], []
        patch()
        run(main, watchdog=100)
        """
    )


#: Some milliseconds in no other library's function.
SPINS = """
void spin(long rounds)
{
    for (volatile long i = 0; i < rounds; i++) {
    }
}
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other names elsewhere")
def test_library_whose_name_is_no_text_is_told(reports: Reports, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.so"
    make_library(tmp_path, SPINS).rename(os.fsdecode(path))
    spin = ctypes.CDLL(os.fsdecode(path)).spin
    spin.argtypes = [ctypes.c_long]

    def main() -> None:
        for _ in range(1000):
            if any("(caf\ufffd.so)" in text for text in reports.texts):
                return
            spin(10_000_000)
        pytest.fail("\n".join(reports.texts))

    run(main, watchdog=SHORT)
