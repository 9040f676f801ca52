"""pyfiber.signals(): fibers wait for signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyfiber
import pyfiber.testing
from pyfiber import (
    CancelScope,
    Fiber,
    FiberCancelled,
    FiberError,
    Scheduler,
    move_on_after,
    run,
    shield,
    signals,
    spawn,
    yield_now,
)
from tests.support.subprocesses import run_script

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")

if os.name != "nt":
    from signal import SIGHUP, SIGINT, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2


@pytest.fixture(autouse=True)
def told() -> Iterator[list[int]]:
    """What the program's own handlers are told; afterwards they must be there again."""
    log: list[int] = []

    def handler(number: int, frame: object) -> None:
        log.append(number)

    before = {each: signal.signal(each, handler) for each in (SIGUSR1, SIGUSR2, SIGHUP)}
    yield log
    for number, old in before.items():
        assert signal.signal(number, old) is handler


def send(*numbers: int) -> None:
    for number in numbers:
        signal.raise_signal(number)


def send_from_another_process(number: int) -> subprocess.Popen[bytes]:
    code = f"import os; os.kill({os.getpid()}, {int(number)})"
    return subprocess.Popen([sys.executable, "-c", code])


# the signals that come ----------------------------------------------------------------------------


def test_signals_come_one_by_one_in_their_order(told: list[int]) -> None:
    def main() -> None:
        with signals(SIGUSR1, SIGUSR2) as received:
            send(SIGUSR2, SIGUSR1, SIGUSR2, SIGUSR2)
            for expected in (SIGUSR2, SIGUSR1, SIGUSR2, SIGUSR2):
                found = next(received)
                assert found is expected

    run(main)
    assert told == []


def test_waiting_parks_and_others_run() -> None:
    def first() -> int:
        with signals(SIGUSR1, SIGUSR2) as received:
            return next(iter(received))

    def main() -> None:
        waits = spawn(first)
        yield_now()
        yield_now()
        assert not waits.done()
        send(SIGUSR2)
        assert waits.result() == SIGUSR2

    run(main)


def test_idle_loop_with_nothing_else_waits_for_a_signal_and_is_no_deadlock() -> None:
    def main() -> int:
        with signals(SIGUSR1) as received, send_from_another_process(SIGUSR1):
            return received.get()

    assert run(main) == SIGUSR1


def test_run_that_waits_for_no_signal_any_more_can_be_a_deadlock() -> None:
    printed = run_script("""
        import signal
        import pyfiber
        def main():
            with pyfiber.signals(signal.SIGUSR1) as received:
                signal.raise_signal(signal.SIGUSR1)
                print(received.get().name)
                pyfiber.park()
        try:
            pyfiber.run(main)
        except pyfiber.DeadlockError:
            print("deadlock")
    """).stdout
    assert printed == "SIGUSR1\ndeadlock\n"


def test_busy_loop_is_told() -> None:
    def main() -> None:
        with signals(SIGUSR1) as received:
            waits = spawn(received.get)
            with send_from_another_process(SIGUSR1):
                while not waits.done():
                    yield_now()

    run(main)


def test_another_thread_sends() -> None:
    def main() -> int:
        with signals(SIGUSR1) as received:
            thread = threading.Thread(target=os.kill, args=(os.getpid(), SIGUSR1))
            thread.start()
            try:
                return received.get()
            finally:
                thread.join()

    assert run(main) == SIGUSR1


def test_scheduler_that_another_loop_hosts_is_told() -> None:
    scheduler = Scheduler()

    def wait() -> int:
        with signals(SIGUSR1) as received:
            return received.get()

    fiber = scheduler.spawn(wait)
    scheduler.run_once()
    send(SIGUSR1)
    while not fiber.done():
        scheduler.run_once()
    assert fiber.result() == SIGUSR1
    scheduler.close()


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="has no real-time signals")
def test_signal_without_a_name_is_a_number() -> None:
    number = signal.SIGRTMIN + 3

    def main() -> int:
        with signals(number) as received:
            assert repr(received) == f"<pyfiber.signals {number}>"
            send(number)
            return received.get()

    assert run(main) == number


def test_control_c_is_taken_away_from_the_run_and_given_back() -> None:
    printed = run_script("""
        import signal
        import pyfiber
        def main():
            with pyfiber.signals(signal.SIGINT) as received:
                signal.raise_signal(signal.SIGINT)
                print(received.get().name)
            signal.raise_signal(signal.SIGINT)
            pyfiber.park()
        try:
            pyfiber.run(main)
        except KeyboardInterrupt:
            print("interrupted")
    """).stdout
    assert printed == "SIGINT\ninterrupted\n"


# waits that end otherwise -------------------------------------------------------------------------


def test_get_times_out() -> None:
    def main() -> None:
        with signals(SIGUSR1) as received:
            with pytest.raises(TimeoutError, match="SIGUSR1"):
                received.get(1000)
            with pytest.raises(TimeoutError):
                received.get(0)
            with move_on_after(1000) as limit:
                received.get()
            assert limit.cancelled()
            send(SIGUSR1)
            assert received.get(0) == SIGUSR1

    pyfiber.testing.run(main)


def test_wait_is_cancelled_and_the_handler_put_back() -> None:
    def wait() -> None:
        with signals(SIGUSR1) as received:
            received.get()

    def main() -> None:
        waits = spawn(wait)
        yield_now()
        waits.cancel()
        with pytest.raises(FiberCancelled):
            waits.result()

    run(main)


def test_block_that_is_left_ends_the_waits_of_others() -> None:
    def main() -> None:
        with signals(SIGUSR1) as received:
            waits = spawn(received.get)
            yield_now()
        with pytest.raises(FiberError, match="been left"):
            waits.result()
        with pytest.raises(FiberError, match="been left"):
            received.get()
        with pytest.raises(FiberError, match="been left"):
            received.__enter__()

    run(main)


def test_second_fiber_in_the_same_wait_is_refused() -> None:
    def main() -> None:
        with signals(SIGUSR1) as received:
            waits = spawn(received.get)
            yield_now()
            with pytest.raises(FiberError, match="another fiber waits for a signal: SIGUSR1"):
                received.get()
            send(SIGUSR1)
            assert waits.result() == SIGUSR1

    run(main)


# handlers -----------------------------------------------------------------------------------------


def test_block_left_by_an_exception_puts_the_handlers_back(told: list[int]) -> None:
    def main() -> None:
        with pytest.raises(LookupError), signals(SIGUSR1, SIGHUP):
            raise LookupError
        send(SIGUSR1, SIGHUP)

    run(main)
    assert told == [SIGUSR1, SIGHUP]


def test_signal_that_nobody_took_goes_to_the_handler_that_was_there(told: list[int]) -> None:
    def main() -> None:
        with signals(SIGUSR1, SIGUSR2) as received:
            send(SIGUSR1, SIGUSR2, SIGUSR1)
            received.get()
            assert told == []
        assert told == [SIGUSR2, SIGUSR1]

    run(main)


def test_handlers_that_raise_do_not_lose_the_other_signals(told: list[int]) -> None:
    def raises(number: int, frame: object) -> None:
        raise LookupError

    def main() -> None:
        before = signal.signal(SIGUSR1, raises)
        with pytest.raises(LookupError), signals(SIGUSR1, SIGUSR2):
            send(SIGUSR1, SIGUSR2)
        assert signal.signal(SIGUSR1, before) is raises
        assert told == [SIGUSR2]

    run(main)


@pytest.mark.parametrize("outer_first", [True, False])
def test_blocks_for_the_same_signal_are_all_told(told: list[int], outer_first: bool) -> None:
    def main() -> None:
        blocks = [signals(SIGUSR1), signals(SIGUSR1)]
        with blocks[0], blocks[1]:
            send(SIGUSR1)
            assert [block.get(0) for block in blocks] == [SIGUSR1] * 2
        one, other = [signals(SIGUSR1).__enter__() for _ in range(2)]
        first, second = (one, other) if outer_first else (other, one)
        first.__exit__(None, None, None)
        send(SIGUSR1)
        assert second.get(0) == SIGUSR1
        assert told == []
        second.__exit__(None, None, None)

    run(main)


def test_signal_that_one_of_two_blocks_took_is_not_raised_again(told: list[int]) -> None:
    def main() -> None:
        with signals(SIGUSR1), signals(SIGUSR1) as inner:
            send(SIGUSR1)
            inner.get(0)

    run(main)
    assert told == []


def test_signal_that_neither_of_two_blocks_took_is_raised_once(told: list[int]) -> None:
    def main() -> None:
        with signals(SIGUSR1), signals(SIGUSR1):
            send(SIGUSR1)

    run(main)
    assert told == [SIGUSR1]


def test_handler_that_the_program_sets_meanwhile_stays(told: list[int]) -> None:
    def ignores(number: int, frame: object) -> None:
        pass

    def main() -> None:
        with signals(SIGUSR1):
            ours = signal.signal(SIGUSR1, ignores)
        assert callable(ours)

    before = signal.getsignal(SIGUSR1)
    run(main)
    assert signal.signal(SIGUSR1, before) is ignores


def test_signal_that_cannot_be_handled_leaves_the_others_alone(told: list[int]) -> None:
    def main() -> None:
        with pytest.raises(OSError, match="argument"), signals(SIGUSR1, SIGKILL):
            pass
        send(SIGUSR1)

    run(main)
    assert told == [SIGUSR1]


def test_signal_named_twice_comes_once() -> None:
    def main() -> None:
        with signals(SIGUSR1, SIGUSR1) as received:
            send(SIGUSR1)
            received.get()
            with pytest.raises(TimeoutError):
                received.get(0)

    run(main)


# misuse -------------------------------------------------------------------------------------------


def refused_in_thread(fn: Callable[[], object]) -> BaseException:
    found: list[BaseException] = []

    def work() -> None:
        try:
            fn()
        except BaseException as exc:
            found.append(exc)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def test_outside_of_a_run_it_is_refused() -> None:
    with pytest.raises(FiberError, match=r"elsewhere use signal\.signal"), signals(SIGUSR1):
        pass


def test_on_another_thread_it_is_refused() -> None:
    def main() -> None:
        with signals(SIGUSR1):
            pass

    refusal = refused_in_thread(lambda: run(main))
    assert isinstance(refusal, ValueError)
    assert "main thread" in str(refusal)


def test_without_a_signal_it_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        signals()


def test_before_the_block_there_are_no_signals() -> None:
    with pytest.raises(FiberError, match="not been entered"):
        signals(SIGUSR1).get()


def test_number_that_is_no_signal_is_refused(told: list[int]) -> None:
    def main() -> None:
        with pytest.raises(ValueError, match="range"), signals(SIGUSR1, 12345):
            pass

    run(main)


def test_report_says_what_is_waited_for() -> None:
    def wait(received: Any) -> None:
        received.get()

    def main() -> None:
        with signals(SIGTERM, SIGINT) as received, CancelScope() as scope:
            waits: Fiber[None] = spawn(wait, received)
            yield_now()
            assert waits.waiting_on == "a signal: SIGTERM, SIGINT"
            waits.cancel()
            with shield():
                waits.join()
            scope.cancel()

    run(main)
