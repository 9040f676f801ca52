"""Ordinary code on a fiber: trace and profile functions, monitoring, cProfile, coverage."""

from __future__ import annotations

import contextlib
import cProfile
import gc
import pstats
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import Fiber, current
from pyfiber.greenlet import greenlet
from tests.conftest import Child

FRESH = """
import sys
from pyfiber import Fiber, current
"""


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    """A coverage run's own trace function comes back."""
    trace, profile = sys.gettrace(), sys.getprofile()
    yield
    sys.settrace(trace)
    sys.setprofile(profile)


def first(main: Fiber[Any]) -> str:
    value = main.switch("first")
    return f"first {value}"


def second(main: Fiber[Any]) -> str:
    value = main.switch("second")
    return f"second {value}"


def lines_of(events: list[tuple[str, str, int]], name: str) -> list[int]:
    return [line for event, where, line in events if where == name and event == "line"]


class Recorder:
    """A trace function for the functions of this file."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, int]] = []

    def __call__(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != __file__:
            return None
        where = frame.f_code
        self.events.append((event, where.co_name, frame.f_lineno - where.co_firstlineno))
        return self


def test_settrace_sees_every_line_of_interleaved_fibers() -> None:
    recorder = Recorder()
    main = current()
    a: Fiber[str] = Fiber(first, (main,))
    b: Fiber[str] = Fiber(second, (main,))
    sys.settrace(recorder)
    a.switch()
    b.switch()
    a.switch(1)
    b.switch(2)
    sys.settrace(None)
    assert lines_of(recorder.events, "first") == [1, 2]
    assert lines_of(recorder.events, "second") == [1, 2]
    kinds = [event for event, where, _ in recorder.events if where == "first"]
    assert kinds == ["call", "line", "line", "return"]


def test_settrace_started_in_a_fiber_goes_on_in_the_caller() -> None:
    recorder = Recorder()
    main = current()

    def start() -> None:
        sys.settrace(recorder)
        main.switch()

    def traced() -> int:
        number = 1
        return number

    fiber: Fiber[None] = Fiber(start)
    fiber.switch()
    traced()
    sys.settrace(None)
    assert lines_of(recorder.events, "traced") == [1, 2]
    fiber.switch()


def test_settrace_stopped_in_a_fiber_is_stopped_in_all() -> None:
    recorder = Recorder()
    main = current()

    def stop() -> None:
        main.switch()
        sys.settrace(None)
        main.switch()

    def untraced() -> int:
        return 1

    fiber: Fiber[None] = Fiber(stop)
    sys.settrace(recorder)
    fiber.switch()
    fiber.switch()
    assert sys.gettrace() is None
    untraced()
    fiber.switch()
    assert "untraced" not in {where for _, where, _ in recorder.events}


def test_settrace_reaches_fibers_that_were_suspended_before() -> None:
    recorder = Recorder()
    main = current()

    def called() -> int:
        return 1

    def work() -> None:
        main.switch()
        called()

    fiber: Fiber[None] = Fiber(work)
    fiber.switch()
    sys.settrace(recorder)
    fiber.switch()
    sys.settrace(None)
    assert ("call", "called", 0) in recorder.events


def test_settrace_removed_while_a_fiber_is_suspended() -> None:
    recorder = Recorder()
    main = current()
    a: Fiber[str] = Fiber(first, (main,))
    sys.settrace(recorder)
    a.switch()
    sys.settrace(None)
    assert a.switch(1) == "first 1"
    assert lines_of(recorder.events, "first") == [1]


def test_settrace_sees_exceptions_thrown_into_a_fiber() -> None:
    recorder = Recorder()
    fiber: Fiber[str] = Fiber(first, (current(),))
    sys.settrace(recorder)
    fiber.switch()
    with pytest.raises(KeyError):
        fiber.throw(KeyError)
    sys.settrace(None)
    kinds = [event for event, where, _ in recorder.events if where == "first"]
    assert kinds == ["call", "line", "exception", "return"]


def test_setprofile_sees_calls_and_returns_in_order() -> None:
    events: list[tuple[str, str]] = []

    def profile(frame: types.FrameType, event: str, arg: Any) -> None:
        if frame.f_code.co_filename == __file__ and event in ("call", "return"):
            events.append((event, frame.f_code.co_name))

    main = current()
    a: Fiber[str] = Fiber(first, (main,))
    b: Fiber[str] = Fiber(second, (main,))
    sys.setprofile(profile)
    a.switch()
    b.switch()
    a.switch(1)
    b.switch(2)
    sys.setprofile(None)
    assert events == [
        ("call", "first"),
        ("call", "second"),
        ("return", "first"),
        ("return", "second"),
    ]


def test_setprofile_sees_the_c_call_of_the_switch() -> None:
    names: list[str] = []

    def profile(frame: types.FrameType, event: str, arg: Any) -> None:
        if event.startswith("c_"):
            names.append(f"{event} {arg.__name__}")

    fiber: Fiber[str] = Fiber(first, (current(),))
    sys.setprofile(profile)
    fiber.switch()
    sys.setprofile(None)
    assert "c_call switch" in names
    assert "c_return switch" in names
    fiber.switch()


def test_switch_inside_a_trace_function() -> None:
    """The trace function leaves the fiber at each line: a debugger that steps."""
    main = current()
    lines: list[int] = []

    def work() -> str:
        a = 1
        b = 2
        return f"{a}{b}"

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not work.__code__:
            return None
        if event == "line":
            main.switch(frame.f_lineno - work.__code__.co_firstlineno)
        return trace

    fiber: Fiber[str] = Fiber(work)
    sys.settrace(trace)
    answer: Any = fiber.switch()
    while not fiber.done():
        lines.append(answer)
        answer = fiber.switch()
    sys.settrace(None)
    assert lines == [1, 2, 3]
    assert answer == "12"


def test_tracing_goes_on_elsewhere_while_one_fiber_is_inside_its_trace_function() -> None:
    main = current()
    recorder = Recorder()

    def stopped() -> int:
        return 1

    def other() -> int:
        number = 1
        return number

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is stopped.__code__:
            if event == "line":
                main.switch("stopped")
            return trace
        return recorder(frame, event, arg)

    fiber: Fiber[int] = Fiber(stopped)
    sys.settrace(trace)
    assert fiber.switch() == "stopped"
    other()
    Fiber(other).switch()
    assert fiber.switch() == 1
    sys.settrace(None)
    assert lines_of(recorder.events, "other") == [1, 2, 1, 2]


def test_switch_inside_a_profile_function() -> None:
    main = current()

    def work() -> int:
        return 1

    def profile(frame: types.FrameType, event: str, arg: Any) -> None:
        if frame.f_code is work.__code__:
            main.switch(event)

    fiber: Fiber[int] = Fiber(work)
    sys.setprofile(profile)
    seen = [fiber.switch(), fiber.switch(), fiber.switch()]
    sys.setprofile(None)
    assert seen == ["call", "return", 1]


def test_exception_in_a_trace_function_ends_tracing_and_reaches_the_fiber() -> None:
    def work() -> int:
        return 1

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is work.__code__:
            raise KeyError("from the trace function")
        return None

    sys.settrace(trace)
    with pytest.raises(KeyError, match="trace function"):
        Fiber(work).switch()
    assert sys.gettrace() is None


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="3.12.1 has no opcode events")
def test_opcode_tracing_over_switches() -> None:
    opcodes = 0

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        nonlocal opcodes
        if frame.f_code is not first.__code__:
            return None
        frame.f_trace_opcodes = True
        opcodes += event == "opcode"
        return trace

    fiber: Fiber[str] = Fiber(first, (current(),))
    sys.settrace(trace)
    fiber.switch()
    before = opcodes
    fiber.switch(1)
    sys.settrace(None)
    assert 0 < before < opcodes


def test_changing_the_line_in_a_trace_function_on_a_fiber() -> None:
    def work() -> list[str]:
        log = []
        log.append("skipped")
        log.append("kept")
        return log

    def trace(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not work.__code__:
            return None
        if event == "line" and frame.f_lineno == work.__code__.co_firstlineno + 2:
            frame.f_lineno += 1
        return trace

    sys.settrace(trace)
    result = Fiber(work).switch()
    sys.settrace(None)
    assert result == ["kept"]


def test_threading_settrace_reaches_fibers_of_new_threads() -> None:
    recorder = Recorder()

    def traced() -> int:
        return 1

    def thread() -> None:
        Fiber(traced).switch()

    threading.settrace(recorder)
    try:
        worker = threading.Thread(target=thread)
        worker.start()
        worker.join()
    finally:
        threading.settrace(None)  # type: ignore[arg-type]
    assert lines_of(recorder.events, "traced") == [1]


# -------------------------------------------------------------------------- cProfile


def test_cprofile_counts_calls_of_interleaved_fibers(child: Child) -> None:
    done = child(
        FRESH
        + """
import cProfile, pstats
main = current()
def leaf(): pass
def work():
    for _ in range(10):
        leaf()
        main.switch()
fibers = [Fiber(work) for _ in range(5)]
profile = cProfile.Profile()
profile.enable()
for _ in range(11):
    for fiber in fibers:
        fiber.switch()
profile.disable()
calls = {key[2]: value[1] for key, value in pstats.Stats(profile).stats.items()}
print(calls["leaf"], calls["work"])
"""
    )
    assert done.stdout == "50 5\n"


def test_cprofile_enabled_and_disabled_while_fibers_are_suspended() -> None:
    if sys.getprofile() is not None:
        pytest.skip("another profiler runs")
    main = current()

    def work() -> None:
        for _ in range(3):
            main.switch()

    profile = cProfile.Profile()
    a: Fiber[None] = Fiber(work)
    a.switch()
    profile.enable()
    try:
        a.switch()
        b: Fiber[None] = Fiber(work)
        b.switch()
    finally:
        profile.disable()
    a.switch()
    a.switch()
    for _ in range(3):
        b.switch()
    assert a.done()
    assert b.done()
    assert pstats.Stats(profile).total_calls > 0  # type: ignore[attr-defined]


def test_cprofile_inside_a_fiber() -> None:
    if sys.getprofile() is not None:
        pytest.skip("another profiler runs")
    profile = cProfile.Profile()
    assert Fiber(profile.runcall, (lambda: 5,)).switch() == 5


# ------------------------------------------------------------------------ monitoring


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_monitoring_sees_starts_lines_and_returns() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    tool = 3
    events = monitoring.events
    seen: list[tuple[str, str]] = []

    def record(kind: str) -> Any:
        def callback(code: types.CodeType, *rest: Any) -> None:
            if code.co_name in ("first", "second"):
                seen.append((kind, code.co_name))

        return callback

    monitoring.use_tool_id(tool, "pyfiber-test")
    try:
        for name in ("PY_START", "PY_RETURN", "PY_UNWIND", "LINE"):
            monitoring.register_callback(tool, getattr(events, name), record(name))
        monitoring.set_events(
            tool, events.PY_START | events.PY_RETURN | events.PY_UNWIND | events.LINE
        )
        main = current()
        a: Fiber[str] = Fiber(first, (main,))
        b: Fiber[str] = Fiber(second, (main,))
        a.switch()
        b.switch()
        a.switch()
        with pytest.raises(KeyError):
            b.throw(KeyError)
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    assert [kind for kind, name in seen if name == "first"] == [
        *("PY_START", "LINE", "LINE", "PY_RETURN")
    ]
    assert [kind for kind, name in seen if name == "second"] == ["PY_START", "LINE", "PY_UNWIND"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_switch_inside_a_monitoring_callback() -> None:
    monitoring = sys.monitoring  # type: ignore[attr-defined]
    tool = 3
    main = current()

    def work() -> int:
        return 1

    def on_start(code: types.CodeType, offset: int) -> None:
        if code is work.__code__:
            main.switch("started")

    monitoring.use_tool_id(tool, "pyfiber-test")
    try:
        monitoring.register_callback(tool, monitoring.events.PY_START, on_start)
        monitoring.set_events(tool, monitoring.events.PY_START)
        fiber: Fiber[int] = Fiber(work)
        assert fiber.switch() == "started"
        assert fiber.switch() == 1
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)


# -------------------------------------------------------------------------- coverage


COVERED = """\
import sys
from pyfiber import Fiber, current

def work(main):
    a = 1
    main.switch()
    b = 2
    if a == b:
        never = 1
    main.switch()
    return a + b

fibers = [Fiber(work, (current(),)) for _ in range(3)]
for _ in range(3):
    for fiber in fibers:
        fiber.switch()
"""


@pytest.mark.slow
@pytest.mark.parametrize("core", ["ctrace", "pytrace", "sysmon"])
def test_coverage_measures_fibers(child: Child, tmp_path: Any, core: str) -> None:
    pytest.importorskip("coverage")
    if core == "sysmon" and sys.version_info < (3, 12):
        pytest.skip("sys.monitoring is new in 3.12")
    program = tmp_path / "covered.py"
    program.write_text(COVERED)
    done = child(
        """
        import runpy, sys
        import coverage
        measure = coverage.Coverage(data_file=None, config_file=False)
        # Coverage's tracer in Python warns for each fiber but the first, and loses nothing.
        measure.set_option("run:disable_warnings", ["trace-changed"])
        with measure.collect():
            runpy.run_path(sys.argv[1])
        print(measure.analysis(sys.argv[1])[2])
        """,
        str(program),
        env={"COVERAGE_CORE": core},
    )
    assert done.stdout == "[9]\n"


class Handled(Exception):
    """Can be referred to weakly, as exceptions of Python classes can."""


def as_fiber(function: Callable[[], None]) -> None:
    Fiber(function).switch()


def as_greenlet(function: Callable[[], None]) -> None:
    greenlet(function).switch()


@pytest.mark.parametrize("way", [as_fiber, as_greenlet])
def test_exception_that_a_trace_function_lets_be_handled_for_ever_goes_with_the_fiber(
    way: Callable[[Callable[[], None]], None],
) -> None:
    """CPython 3.11 goes on with it as the one being handled, and the fiber's end left it there."""
    handled: list[weakref.ref[Handled]] = []

    def tracer(frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not fails.__code__:
            return None
        if event == "line" and handled and frame.f_lineno == frame.f_code.co_firstlineno + 1:
            raise ZeroDivisionError  # before `with` has seen the failure inside of it
        return tracer

    def fails() -> None:
        with contextlib.nullcontext():
            error = Handled()
            handled.append(weakref.ref(error))
            raise error

    def body() -> None:
        sys.settrace(tracer)
        with pytest.raises((ZeroDivisionError, Handled)):
            fails()
        sys.settrace(None)

    way(body)
    gc.collect()
    assert [ref() for ref in handled] == [None]


BEGUN = """
import sys
from pyfiber import Fiber, current
from pyfiber.greenlet import greenlet

def fails():
    try:
        raise ValueError("inner")
    finally:
        pass

def root():
    begin.switch()  # suspended in here, with a frame that has not seen the events
    try:
        fails()
    except ValueError:
        pass
    try:
        raise ValueError("here")
    except ValueError as error:
        return str(error)

def between(way):
    '''A fiber is suspended, others begin, and it raises when it goes on.'''
    main = current()

    def goes_on():
        try:
            main.switch()
            raise LookupError
        except LookupError:
            return "caught"

    fiber = Fiber(goes_on)
    fiber.switch()
    Fiber(way).switch()
    return fiber.switch()

def trace():
    sys.settrace(lambda frame, event, argument: None)

def profile():
    sys.setprofile(lambda frame, event, argument: None)

def monitor():
    monitoring = sys.monitoring
    events = monitoring.events
    monitoring.use_tool_id(3, "test")
    for event in (events.RAISE, events.RERAISE, events.PY_UNWIND, events.EXCEPTION_HANDLED):
        monitoring.register_callback(3, event, lambda *arguments: seen.append(arguments))
    monitoring.set_events(3, events.RAISE | events.RERAISE | events.PY_UNWIND
                          | events.EXCEPTION_HANDLED)

seen = []
way = globals()[sys.argv[1]]
found = [between(way)]
sys.settrace(None)
sys.setprofile(None)
if sys.argv[1] != "monitor":  # again: with code that has seen events
    begin = Fiber(way)
    found.append(root())
    sys.settrace(None)
    sys.setprofile(None)
    begin = greenlet(way)
    found.append(root())
else:
    found += ["here", "here"] if seen else []
sys.settrace(None)
sys.setprofile(None)
print(found)
"""


@pytest.mark.parametrize("way", ["trace", "profile", "monitor"])
def test_events_begin_while_code_that_will_raise_is_suspended(way: str, child: Child) -> None:
    """CPython 3.15 makes ready what threads run just then, and reads through NULL elsewhere."""
    if way == "monitor" and sys.version_info < (3, 12):
        pytest.skip("there is no sys.monitoring")
    assert child(BEGUN, way).stdout == "['caught', 'here', 'here']\n"


TRACED_BY_THE_JIT = """
import sys
from pyfiber import Fiber, current
main = current()

def hot(turns):
    switch, total = main.switch, 0
    for turn in range(turns):
        switch(turn)
        total += turn
    return total

def others(count):
    for number in range(count):
        names = {}
        exec(f"def other(n):\\n t=0\\n for i in range(n): t+=i*{number}\\n return t", names)
        names["other"](9000)

fiber = Fiber(hot, args=(30_000,))
fiber.switch()
sum(map(fiber.switch, [None] * 20_000))  # by C code: the trace switches
sys.monitoring.use_tool_id(4, "test")
sys.monitoring.set_events(4, sys.monitoring.events.PY_START)  # no trace is valid any more
sys.monitoring.set_events(4, 0)
others(100)
kept = [[] for _ in range(200_000)]  # the collector frees those that nobody is in
others(100)
for _ in range(200):
    fiber.switch()
print("goes on")
"""


def test_fiber_suspended_in_a_trace_of_the_jit_goes_on_after_that_is_dropped(child: Child) -> None:
    jit = getattr(sys, "_jit", None)
    if jit is None or not jit.is_available():
        pytest.skip("this CPython has no JIT")
    assert child(TRACED_BY_THE_JIT, env={"PYTHON_JIT": "1"}).stdout == "goes on\n"
