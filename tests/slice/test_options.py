"""How time slices are asked for, what is refused, and what a run with slices leaves behind."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyfiber import (
    Event,
    FiberError,
    Scheduler,
    current_scheduler,
    no_preemption,
    run,
    spawn,
    yield_now,
)
from pyfiber.debug import dump_fibers, trace
from tests.conftest import Child
from tests.support.subprocesses import run_python

SLICE = 0.0005

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="time slices need a GIL"
)
needs_monitoring = pytest.mark.skipif(
    sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12"
)

#: spin() computes until the fiber that was spawned before has run.
PROGRAM = """
import os, sys, warnings
from pyfiber import *
warnings.simplefilter("ignore", DeprecationWarning)
seen = []
def spin():
    spawn(seen.append, 1)
    while not seen:
        pass
"""


def spin(flag: Event) -> None:
    while not flag.is_set():
        pass


def spin_beside_another() -> None:
    """Compute until preempted."""
    flag = Event()
    spawn(flag.set)
    spin(flag)


# ----------------------------------------------------------------------- bad input


@pytest.mark.parametrize("make", [lambda value: run(int, time_slice=value), "scheduler"])
@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (0.00009, ValueError, "at least 0.0001 seconds .* not 9e-05"),
        (0, ValueError, "not 0"),
        (False, ValueError, "not False"),
        (-1, ValueError, "not -1"),
        (float("inf"), ValueError, "finite, not inf"),
        (float("nan"), ValueError, "NaN"),
        (10**30, ValueError, "finite"),
        ("5ms", TypeError, "a number, not 'str'"),
    ],
)
def test_time_slice_that_is_no_length_is_refused(
    make: Any, value: Any, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        Scheduler(time_slice=value) if make == "scheduler" else make(value)


def test_shortest_time_slice_is_a_tenth_of_a_millisecond() -> None:
    run(spin_beside_another, time_slice=0.0001)


def test_true_is_one_second_as_for_all_durations() -> None:
    assert run(lambda: current_scheduler().time_slice, time_slice=True) == 1.0


def test_time_slice_together_with_threads_is_refused() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        run(int, threads=2, time_slice=SLICE)
    assert run(lambda: current_scheduler().time_slice, threads=2, time_slice=None) is None


def test_no_preemption_entered_twice_raises() -> None:
    block = no_preemption()
    with block, pytest.raises(RuntimeError, match="entered already"):
        block.__enter__()
    with block:
        pass  # the object may be used again


def test_no_preemption_left_without_entering_raises() -> None:
    with pytest.raises(RuntimeError, match="not entered"):
        no_preemption().__exit__(None, None, None)


def test_no_preemption_block_that_raises_is_left() -> None:
    def main() -> None:
        with pytest.raises(ZeroDivisionError), no_preemption():
            raise ZeroDivisionError
        spin_beside_another()

    run(main, time_slice=SLICE)


# ------------------------------------------------------------- Scheduler.time_slice


def test_time_slice_of_a_scheduler_is_read_and_set() -> None:
    scheduler = Scheduler(time_slice=0.005)
    assert scheduler.time_slice == 0.005
    scheduler.time_slice = SLICE
    scheduler.run(spin_beside_another)
    scheduler.time_slice = None
    assert scheduler.time_slice is None
    scheduler.close()


def test_time_slice_set_to_no_length_leaves_it_as_it_was() -> None:
    scheduler = Scheduler(time_slice=0.005)
    with pytest.raises(ValueError, match="not 0"):
        scheduler.time_slice = 0
    with pytest.raises(TypeError, match="a number"):
        scheduler.time_slice = "1ms"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="cannot be deleted"):
        del scheduler.time_slice
    assert scheduler.time_slice == 0.005
    scheduler.close()


@pytest.mark.parametrize(("before", "after"), [(None, 0.005), (0.005, None)])
def test_time_slices_cannot_be_turned_on_or_off_in_a_run(
    before: float | None, after: float | None
) -> None:
    def main() -> None:
        with pytest.raises(FiberError, match="during a run"):
            current_scheduler().time_slice = after
        assert current_scheduler().time_slice == before

    run(main, time_slice=before)


def test_time_slice_may_become_shorter_in_a_run() -> None:
    def main() -> None:
        current_scheduler().time_slice = SLICE
        while sys.getswitchinterval() > SLICE / 4:
            spin_beside_another()

    run(main, time_slice=60)


def test_run_with_a_long_slice_ends_at_once(child: Child) -> None:
    child("import pyfiber; pyfiber.run(int, time_slice=1e6)", timeout=60)


def test_scheduler_is_closed_by_another_thread() -> None:
    scheduler = Scheduler(time_slice=SLICE)
    scheduler.run(int)
    thread = threading.Thread(target=scheduler.close)
    thread.start()
    thread.join()
    run(yield_now)


def test_run_under_test_has_no_slices(child: Child) -> None:
    program = """
        import sys
        import pyfiber.testing
        print(pyfiber.testing.run(sys.getswitchinterval), pyfiber.run(sys.getswitchinterval))
    """
    assert child(program, env={"PYFIBER_TIME_SLICE": "1ms"}).stdout == "0.005 0.00025\n"


# --------------------------------------------------------- environment and command


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5ms", 0.005),
        ("0.005", 0.005),
        ("500us", 0.0005),
        ("1s", 1.0),
        (" 5 ms", 0.005),
        ("", None),
    ],
)
def test_environment_sets_the_default(child: Child, text: str, seconds: float | None) -> None:
    program = """
        from pyfiber import *
        print(Scheduler().time_slice, run(lambda: current_scheduler().time_slice))
    """
    printed = child(program, env={"PYFIBER_TIME_SLICE": text}).stdout
    assert printed == f"{seconds} {seconds}\n"


def test_environment_makes_runs_preempt(child: Child) -> None:
    printed = child(PROGRAM + "run(spin); print('done')", env={"PYFIBER_TIME_SLICE": "1ms"}).stdout
    assert printed == "done\n"


def test_argument_goes_before_the_environment(child: Child) -> None:
    program = """
        from pyfiber import *
        print(run(lambda: current_scheduler().time_slice, time_slice=0.25))
        print(run(lambda: current_scheduler().time_slice, threads=2))
    """
    assert child(program, env={"PYFIBER_TIME_SLICE": "1ms"}).stdout == "0.25\nNone\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("soon", "a number of seconds, or for example 5ms, not 'soon'"),
        ("ms", "not 'ms'"),
        ("5msms", "not '5msms'"),
        ("10us", "at least 0.0001 seconds"),
        ("0", "at least 0.0001 seconds"),
        ("inf", "finite, not inf"),
        ("nan", "must not be NaN"),
    ],
)
def test_length_that_is_none_is_refused_by_environment_and_command(
    child: Child, tmp_path: Path, text: str, said: str
) -> None:
    done = child("import pyfiber", env={"PYFIBER_TIME_SLICE": text}, check=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ValueError: PYFIBER_TIME_SLICE: ")
    assert said in last
    program = tmp_path / "program.py"
    program.write_text("print('begun')")
    done = run_python("-m", "pyfiber", "run", f"--time-slice={text}", str(program))
    assert (done.returncode, done.stdout) == (2, "")
    assert "argument --time-slice: " in done.stderr
    assert said in done.stderr


def test_command_preempts_the_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + "spin(); print(current_scheduler().time_slice, sys.argv[1:])")
    done = run_python("-m", "pyfiber", "run", "--time-slice", "5ms", str(program), "-x")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0.005 ['-x']\n", "")


# ------------------------------------------------------- what a run leaves behind


@pytest.fixture
def interval() -> Iterator[float]:
    """The switch interval, which is put back after the test."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.005)
    yield 0.005
    sys.setswitchinterval(before)


def test_switch_interval_is_lowered_in_the_run_and_restored(interval: float) -> None:
    assert run(sys.getswitchinterval, time_slice=0.004) == 0.001
    assert sys.getswitchinterval() == interval


def test_switch_interval_is_restored_after_a_run_that_raises(interval: float) -> None:
    def main() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(main, time_slice=SLICE)
    assert sys.getswitchinterval() == interval


def test_switch_interval_that_is_short_already_stays(interval: float) -> None:
    sys.setswitchinterval(0.0005)
    before = sys.getswitchinterval()
    assert run(sys.getswitchinterval, time_slice=0.004) == before
    assert sys.getswitchinterval() == before


def test_switch_interval_that_rounds_down_is_restored(interval: float) -> None:
    sys.setswitchinterval(0.0016005)
    before = sys.getswitchinterval()
    run(int, time_slice=0.004)
    assert sys.getswitchinterval() == before


def test_switch_interval_that_the_program_sets_stays(interval: float) -> None:
    run(sys.setswitchinterval, 0.002, time_slice=SLICE)
    assert sys.getswitchinterval() == 0.002


def test_switch_interval_is_restored_after_the_last_of_two_runs(interval: float) -> None:
    inner: list[float] = []

    def main() -> None:
        thread = threading.Thread(target=lambda: run(int, time_slice=0.0004))
        thread.start()
        thread.join()
        inner.append(sys.getswitchinterval())

    run(main, time_slice=0.004)
    assert inner[0] <= 0.001
    assert sys.getswitchinterval() == interval


def test_scheduler_gives_everything_back_when_it_is_closed(interval: float) -> None:
    scheduler = Scheduler(time_slice=SLICE)
    scheduler.run(int)
    scheduler.close()
    assert sys.getswitchinterval() == interval


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs /proc")
def test_run_leaves_no_thread_behind(child: Child) -> None:
    printed = child(
        PROGRAM
        + """
def threads():
    return len(os.listdir("/proc/self/task"))
print(threads(), run(threads, time_slice=0.001))
while threads() > 1:
    pass  # the thread ends
"""
    ).stdout
    assert printed == "1 2\n"


def test_finalizer_of_a_scheduler_that_nobody_closed_gives_everything_back(
    interval: float,
) -> None:
    scheduler = Scheduler(time_slice=SLICE)
    scheduler.run(int)
    del scheduler
    assert sys.getswitchinterval() == interval


# ------------------------------------------------------------------ sys.monitoring


def tool_names() -> list[str | None]:
    return [sys.monitoring.get_tool(number) for number in range(6)]


@pytest.fixture
def free_tools() -> Iterator[list[int]]:
    """The numbers that no tool uses; they are free after the test."""
    free = [number for number, name in enumerate(tool_names()) if name is None]
    yield free
    for number in free:
        if sys.monitoring.get_tool(number) is not None:
            sys.monitoring.free_tool_id(number)


@needs_monitoring
def test_tool_of_monitoring_is_given_back() -> None:
    before = tool_names()
    assert "pyfiber time slices" in run(tool_names, time_slice=SLICE)
    assert tool_names() == before


@needs_monitoring
def test_run_does_not_begin_if_other_tools_use_its_ids(free_tools: list[int]) -> None:
    for number in (3, 4):
        sys.monitoring.use_tool_id(number, f"other {number}")
    before = tool_names(), sys.getswitchinterval()
    ran: list[int] = []
    with pytest.raises(RuntimeError, match="other tools use both"):
        run(ran.append, 1, time_slice=SLICE)
    scheduler = Scheduler(time_slice=SLICE)
    scheduler.spawn(ran.append, 2)
    with pytest.raises(RuntimeError, match="other tools use both"):
        scheduler.run(ran.append, 3)
    with pytest.raises(RuntimeError, match="other tools use both"):
        scheduler.run_once()
    assert not ran
    assert (tool_names(), sys.getswitchinterval()) == before
    sys.monitoring.free_tool_id(3)
    scheduler.run(spin_beside_another)
    assert ran == [2]
    scheduler.close()


@needs_monitoring
def test_tool_of_a_debugger_stays_and_sees_its_events(free_tools: list[int]) -> None:
    monitoring = sys.monitoring
    number, jump = monitoring.DEBUGGER_ID, monitoring.events.JUMP
    if number not in free_tools:
        pytest.skip("a debugger runs")
    jumps: list[int] = []

    def on_jump(code: Any, begin: int, end: int) -> None:
        jumps.append(begin)

    monitoring.use_tool_id(number, "debugger")
    monitoring.register_callback(number, jump, on_jump)
    monitoring.set_local_events(number, spin.__code__, jump)
    run(spin_beside_another, time_slice=SLICE)
    assert monitoring.get_tool(number) == "debugger"
    assert monitoring.get_local_events(number, spin.__code__) == jump
    seen = len(jumps)
    flag = Event()
    thread = threading.Thread(target=spin, args=(flag,))
    thread.start()
    while len(jumps) == seen:
        pass
    flag.set()
    thread.join()
    monitoring.set_local_events(number, spin.__code__, 0)
    monitoring.register_callback(number, jump, None)


def test_trace_function_of_a_debugger_stays() -> None:
    def tracer(*_: Any) -> None:
        return None

    def main() -> object:
        before = sys.gettrace()
        sys.settrace(tracer)
        try:
            for _ in range(50_000):
                pass
            return sys.gettrace()
        finally:
            sys.settrace(before)

    assert run(main, time_slice=0.0001) is tracer


# --------------------------------------------------------------------------- fork


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("end", ["os._exit(7)", "sys.exit(7)"])
def test_child_of_a_fork_goes_on_being_sliced(child: Child, end: str) -> None:
    program = f"""
def main():
    spin()
    seen.clear()
    pid = os.fork()
    spin()
    if pid == 0:
        {end}
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(run(main, time_slice=0.001))
"""
    assert child(PROGRAM + program).stdout == "7\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_may_leave_the_run_and_begin_another(child: Child) -> None:
    program = """
def main():
    spin()  # the other thread is there: AddressSanitizer dislikes a fork while one begins
    seen.clear()
    pid = os.fork()
    return pid and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
status = run(main, time_slice=0.001)
if status == 0:
    run(spin, time_slice=0.001)
    os._exit(int(sys.getswitchinterval() * 1000))
print(status)
"""
    assert child(PROGRAM + program).stdout == "5\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_child_of_a_fork_without_the_sliced_thread_has_no_slices(child: Child) -> None:
    program = """
import threading
begun, over = threading.Event(), threading.Event()
def sliced():
    scheduler = Scheduler(time_slice=0.001)
    scheduler.run(spin)
    begun.set()
    over.wait()
    scheduler.close()
thread = threading.Thread(target=sliced)
thread.start()
begun.wait()
pid = os.fork()
if pid == 0:
    os._exit(int(sys.getswitchinterval() * 1000))
over.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert child(PROGRAM + program).stdout == "5\n"


# ----------------------------------------------------------------- what is visible


def test_deadlock_is_found(child: Child) -> None:
    program = """
def main():
    spin()
    Event().wait()
try:
    run(main, time_slice=0.001)
except DeadlockError as exc:
    print(exc)
"""
    printed = child(PROGRAM + program).stdout
    assert printed.startswith("1 fiber waits and nothing can wake one")


def preempted(look: Callable[[], object]) -> None:
    """Call look() while a fiber named "computes" waits for its next slice."""

    def main() -> None:
        flag = Event()
        fiber = spawn(spin, flag)
        fiber.name = "computes"
        yield_now()
        try:
            assert (fiber.state, fiber.waiting_on) == ("parked", "the line of preempted fibers")
            look()
        finally:
            flag.set()  # else the fiber computes for ever

    run(main, time_slice=SLICE)


def test_dump_shows_the_wait_for_the_next_slice() -> None:
    text = io.StringIO()
    preempted(lambda: dump_fibers(text))
    assert "waits in the line of preempted fibers" in text.getvalue()


def test_timeline_shows_the_wait_for_the_next_slice() -> None:
    text = io.StringIO()
    with trace(text):
        preempted(lambda: None)
    waits = [each["name"] for each in json.loads(text.getvalue())["traceEvents"] if "name" in each]
    assert "waits: the line of preempted fibers" in waits


def test_ps_shows_the_wait_for_the_next_slice() -> None:
    from pyfiber._debug import snapshot

    shown: list[Any] = []
    preempted(lambda: shown.append(snapshot.snapshot()))
    assert "waits in the line of preempted fibers" in repr(shown)


def test_metrics_count_preemptions() -> None:
    from pyfiber import metrics

    run(spin_beside_another, time_slice=SLICE)
    found = re.findall(r"^pyfiber_preemptions_total\S* (\d+)", metrics.render(), re.MULTILINE)
    assert any(map(int, found))
