"""A fiber's own trace function, as threading.settrace() gives one to each thread."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyfiber import Fiber, current
from pyfiber.greenlet import getcurrent, greenlet
from tests.conftest import Child


class Stack:
    """A trace function that keeps a stack of calls; it must see each of them return."""

    made: list[Stack]

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.seen: set[str] = set()
        self.wrong: list[tuple[str, str]] = []
        self.made.append(self)

    def __call__(self, frame: types.FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename != __file__:
            return None
        name = frame.f_code.co_name
        if event == "call":
            self.calls.append(name)
            self.seen.add(name)
        elif self.calls[-1:] != [name]:
            self.wrong.append((event, name))
        elif event == "return":
            self.calls.pop()
        return self


def begin(frame: types.FrameType, event: str, arg: Any) -> Any:
    """Like coverage's, it replaces itself by a trace function for this thread."""
    sys.settrace(None)
    function = Stack()
    sys.settrace(function)
    return function(frame, event, arg)


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    """A coverage run's own trace function comes back."""
    trace, hook = sys.gettrace(), threading.gettrace()
    Stack.made = []
    yield
    sys.settrace(trace)
    threading.settrace(hook)  # type: ignore[arg-type]


@contextlib.contextmanager
def traced(hook: Any = begin) -> Iterator[Stack]:
    threading.settrace(hook)
    stack = Stack()
    sys.settrace(stack)
    try:
        yield stack
    finally:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]


def leaf(leave: Callable[[], object]) -> int:
    leave()
    return 1


def branch(leave: Callable[[], object]) -> int:
    leave()
    number = leaf(leave)
    leave()
    return number


def fails(leave: Callable[[], object]) -> None:
    try:
        leave()
        raise ValueError
    finally:
        leaf(leave)


def handles(leave: Callable[[], object]) -> str:
    try:
        fails(leave)
    except ValueError:
        return "handled"
    return "not raised"


def as_fibers(*functions: Callable[..., Any]) -> None:
    leave = current().switch
    fibers = [Fiber(function, (leave,)) for function in functions]
    while left := [fiber for fiber in fibers if not fiber.done()]:
        for fiber in left:
            fiber.switch()


def as_greenlets(*functions: Callable[..., Any]) -> None:
    leave = getcurrent().switch
    greenlets = [greenlet(function) for function in functions]
    for each in greenlets:
        each.switch(leave)
    while left := [each for each in greenlets if not each.dead]:
        for each in left:
            each.switch()


@pytest.mark.parametrize("way", [as_fibers, as_greenlets])
def test_interleaved_fibers_have_a_trace_function_each(way: Callable[..., None]) -> None:
    with traced() as mine:
        way(branch, leaf, handles, branch)
    assert [stack.wrong for stack in Stack.made] == [[]] * 5
    assert [stack.calls for stack in Stack.made[1:]] == [[]] * 4
    assert not mine.seen & {"branch", "leaf", "fails", "handles"}
    assert Stack.made[1].seen == {"branch", "leaf"}


def test_trace_function_of_a_fiber_that_ended_serves_the_next() -> None:
    with traced():
        for _ in range(10):
            as_fibers(branch, leaf)
    assert len(Stack.made) == 3
    assert [stack.wrong for stack in Stack.made] == [[]] * 3


def test_spare_trace_functions_do_not_outlive_the_thread_s() -> None:
    with traced():
        as_fibers(leaf)
    with traced():
        as_fibers(leaf)
    assert [stack.seen & {"leaf"} for stack in Stack.made] == [set(), {"leaf"}] * 2


def test_without_a_hook_for_threads_the_thread_s_trace_function_sees_all() -> None:
    with traced(None) as mine:
        as_fibers(leaf)
    assert Stack.made == [mine]
    assert "leaf" in mine.seen


def test_ended_in_a_fiber_tracing_has_ended_for_all() -> None:
    def ends(leave: Callable[[], object]) -> None:
        leave()
        sys.settrace(None)
        leave()

    leave = current().switch
    other: Fiber[Any] = Fiber(branch, (leave,))
    fiber: Fiber[Any] = Fiber(ends, (leave,))
    with traced():
        other.switch()
        fiber.switch()
        fiber.switch()
        assert sys.gettrace() is None
        other.switch()
        assert sys.gettrace() is None
        fiber.switch()
        # What is set now is for all, also for those that had their own.
        sys.settrace(again := Stack())
        other.switch()
        other.switch()
        assert sys.gettrace() is again
    assert other.done()
    assert again in Stack.made


def test_set_in_a_fiber_that_has_ended_tracing() -> None:
    """What the thread's was before does not come back."""
    found = []

    def ends(leave: Callable[[], object]) -> None:
        sys.settrace(None)
        leave()
        sys.settrace(Stack())
        leave()

    with traced() as mine:
        fiber: Fiber[Any] = Fiber(ends, (current().switch,))
        fiber.switch()
        found.append(sys.gettrace())
        fiber.switch()
        found.append(sys.gettrace())
        fiber.switch()
    assert found[0] is None
    assert found[1] is Stack.made[-1]
    assert found[1] is not mine


def test_replaced_on_the_thread_it_is_replaced_in_all_fibers() -> None:
    with traced():
        fiber: Fiber[Any] = Fiber(branch, (current().switch,))
        fiber.switch()
        sys.settrace(new := Stack())
        for _ in range(3):
            fiber.switch()
        assert fiber.done()
        assert sys.gettrace() is new
    assert "leaf" in new.seen


def test_hook_that_raises_is_told_of_and_the_fiber_runs(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    def refuse(event: str, args: tuple[object, ...]) -> None:
        if refusing and event == "sys.settrace":
            raise PermissionError

    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: told.append(args.exc_type))
    refusing: list[int] = []
    sys.addaudithook(refuse)
    with traced():
        fiber: Fiber[Any] = Fiber(leaf, (lambda: None,))
        refusing.append(1)
        assert fiber.switch() == 1
        refusing.clear()
    assert told == [PermissionError]


MODULES = {
    "one.py": """\
from two import helper
from pyfiber import yield_now

def first(flag):
    a = 1
    yield_now()
    if flag:
        b = 2
    else:
        b = 3
    yield_now()
    c = helper(b)
    yield_now()
    return c
""",
    "two.py": """\
from pyfiber import yield_now

def helper(value):
    yield_now()
    value += 1
    yield_now()
    return value

def second():
    a = 1
    for _ in range(2):
        yield_now()
        a += 1
    if a == 100:
        never = 1
    return a
""",
    "program.py": """\
from pyfiber import run, spawn
from one import first
from two import second

def main():
    fibers = [spawn(first, 0), spawn(second), spawn(first, 1), spawn(second)]
    for fiber in fibers:
        fiber.join()
    done = 1

run(main)
after = 1
""",
}


@pytest.mark.parametrize("core", ["ctrace", "sysmon"])
@pytest.mark.parametrize("branch", [False, True], ids=["lines", "branches"])
def test_coverage_tells_the_lines_of_fibers_in_several_files(
    child: Child, tmp_path: Path, core: str, branch: bool
) -> None:
    """With one stack of calls for all fibers, lines went to the file of another fiber."""
    pytest.importorskip("coverage")
    if core == "sysmon" and sys.version_info < (3, 14 if branch else 12):
        pytest.skip("sys.monitoring is new in 3.12, and has branches from 3.14 on")
    for name, text in MODULES.items():
        (tmp_path / name).write_text(text)
    done = child(
        """
        import os, runpy, sys
        import coverage
        folder, branch = sys.argv[1:]
        sys.path.insert(0, folder)
        measure = coverage.Coverage(data_file=None, config_file=False, branch=branch == "True")
        with measure.collect():
            runpy.run_path(os.path.join(folder, "program.py"), run_name="__main__")
        for name in ("one", "two", "program"):
            print(name, measure.analysis(os.path.join(folder, name + ".py"))[2])
        """,
        str(tmp_path),
        str(branch),
        env={"COVERAGE_CORE": core},
    )
    assert done.stdout == "one []\ntwo [15]\nprogram []\n"


def test_fiber_that_only_its_trace_function_refers_to_is_collected() -> None:
    ended: list[str] = []

    def work() -> None:
        try:
            current().parent.switch()  # type: ignore[union-attr]
        finally:
            ended.append("unwound")

    class Tracer:
        fiber: Fiber[None]

        def __call__(self, frame: types.FrameType, event: str, arg: object) -> None:
            return None

    def hook(frame: types.FrameType, event: str, arg: object) -> None:
        tracer = Tracer()
        tracer.fiber = current()
        sys.settrace(tracer)

    before = sys.gettrace()
    threading.settrace(hook)
    sys.settrace(lambda *event: None)
    try:
        fiber: Fiber[None] = Fiber(work)
        fiber.switch()
    finally:
        sys.settrace(before)
        threading.settrace(None)  # type: ignore[arg-type]
    del fiber
    gc.collect()
    assert ended == ["unwound"]
