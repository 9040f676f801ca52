"""explore(switch="line", "access", "gil"): where a run may interrupt a fiber, and where not."""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pyfiber import Fiber, sleep, spawn
from pyfiber.testing import Exploration, LivelockError, ScheduleFailure, explore, replay
from tests.testing.races import join_all

SWITCHES = ("line", "access", "gil")


def together(*targets: Callable[[], object]) -> None:
    """Run each function in a fiber, and wait for all."""
    join_all(*map(spawn, targets))


class Counter:
    value = 0

    def add_in_two_lines(self) -> None:
        value = self.value
        self.value = value + 1

    def add_in_one_line(self) -> None:
        self.value += 1

    def add_with_a_call(self) -> None:
        value = self.value
        len("")
        self.value = value + 1

    def add_in_a_loop(self) -> None:
        value = self.value
        for _ in "a":
            pass
        self.value = value + 1

    def one(self) -> int:
        return 1

    def add_what_a_function_returns(self) -> None:
        value = self.value
        self.value = value + self.one()

    def add_after_a_function_has_begun(self) -> None:
        self.value = self.read() + 1

    def read(self) -> int:
        return self.value


def race(name: str) -> Callable[[], None]:
    def run() -> None:
        counter = Counter()
        together(*[getattr(counter, name)] * 2)
        assert counter.value == 2, "lost"

    return run


def is_found(fn: Callable[[], object], switch: Any, **options: Any) -> bool:
    """Whether some schedule fails; otherwise all with two switches have been tried."""
    try:
        found = explore(fn, 100_000, "dfs", switch=switch, **options)
    except ScheduleFailure as failure:
        names = {name: options[name] for name in ("include", "exclude") if name in options}
        with pytest.raises(ScheduleFailure):
            replay(fn, failure.schedule, **names)
        return True
    assert found.complete
    return False


@pytest.mark.parametrize(
    ("name", "switches"),
    [
        ("add_in_two_lines", {"line", "access"}),
        ("add_in_one_line", {"access"}),
        ("add_with_a_call", {"line", "access", "gil"}),
        ("add_in_a_loop", {"line", "access", "gil"}),
        ("add_what_a_function_returns", {"line", "access", "gil"}),
        ("add_after_a_function_has_begun", {"access"}),
    ],
)
def test_race_is_found_where_the_switch_can_be(name: str, switches: set[str]) -> None:
    assert {switch for switch in SWITCHES if is_found(race(name), switch)} == switches


def test_wait_does_not_interrupt() -> None:
    found = explore(race("add_in_two_lines"), 1000, "dfs")
    assert found.complete


def test_without_preemptions_only_waits_switch() -> None:
    assert not is_found(race("add_in_two_lines"), "line", preemptions=0)
    assert is_found(race("add_in_two_lines"), "line", preemptions=1)


# ------------------------------------------------------------------------ which code


def module(path: str, name: str, source: str) -> ModuleType:
    """A module whose file seems to be there."""
    made = ModuleType(name)
    exec(compile(textwrap.dedent(source), path, "exec"), made.__dict__)
    return made


COUNTER = """
class Counter:
    value = 0

    def add(self):
        value = self.value
        self.value = value + 1
"""


def use(library: ModuleType) -> Callable[[], None]:
    def run() -> None:
        counter = library.Counter()
        together(counter.add, counter.add)
        assert counter.value == 2

    return run


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, False),
        ({"include": ["counters"]}, True),
        ({"include": ["counters.fast"]}, True),
        ({"include": ["count"]}, False),
        ({"include": ["counters"], "exclude": ["counters.fast"]}, False),
    ],
)
def test_installed_package_is_interrupted_if_it_is_included(
    options: dict[str, Any], found: bool
) -> None:
    library = module("/usr/lib/site-packages/counters/fast.py", "counters.fast", COUNTER)
    assert is_found(use(library), "line", **options) is found


def test_module_of_the_program_can_be_excluded() -> None:
    library = module("/home/ada/counters.py", "counters", COUNTER)
    assert is_found(use(library), "line")
    assert not is_found(use(library), "line", exclude=["counters"])


def test_code_made_by_exec_in_each_run_belongs_to_the_program() -> None:
    def run() -> None:
        use(module("<string>", "made", COUNTER))()

    assert is_found(run, "line")


class LateProxy:
    """A stand-in for an object that is made when it is used first, also by isinstance()."""

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self.make())

    def __call__(self) -> None:
        pass


@pytest.mark.parametrize("switch", ["line", "access", "gil"])
def test_lazy_object_is_not_used_by_the_exploration(
    switch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    proxy = LateProxy(lambda: made.append(1))
    monkeypatch.setitem(globals(), "late_proxy", proxy)
    explore(lambda: together(lambda: proxy(), lambda: proxy()), 10, switch=switch)
    assert not made


def test_module_that_is_loaded_late_is_not_loaded_by_the_exploration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late.py").write_text("x = 1")
    spec = importlib.util.spec_from_file_location("late", tmp_path / "late.py")
    assert spec is not None
    assert spec.loader is not None
    loader = importlib.util.LazyLoader(spec.loader)
    late = importlib.util.module_from_spec(spec)
    loader.exec_module(late)
    monkeypatch.setitem(sys.modules, "late", late)
    never: list[int] = []

    def use() -> None:
        if never:
            never.append(late.x)

    explore(lambda: together(use, use), 10, switch="line", threads="simulated")
    assert type(late) is not ModuleType
    assert late.x == 1
    assert type(late) is ModuleType


def test_import_is_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_in_a_run.py").write_text(
        textwrap.dedent(
            """
            def step():
                state.append(len(state))

            state = []
            for _ in range(3):
                step()
            """
        )
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def load() -> None:
        import imported_in_a_run  # type: ignore[import-not-found]

        assert imported_in_a_run.state == [0, 1, 2]

    def run() -> None:
        sys.modules.pop("imported_in_a_run", None)
        together(load, load)

    explore(run, 300, switch="line")
    assert sys.modules.pop("imported_in_a_run")


# --------------------------------------------------------------- what can be interrupted


class Key:
    """Equal to its like; compares in Python code."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        self.log.append("begins")
        self.log.append("ends")
        return True

    def __lt__(self, other: object) -> bool:
        return self == other


def interleaved(log: list[str]) -> None:
    assert log in (["begins", "ends"] * (len(log) // 2),)


@pytest.mark.parametrize(
    "call",
    [
        lambda one, other: {one: 1}.get(other),
        lambda one, other: sorted([one, other]),
        lambda one, other: functools.reduce(lambda a, b: a == b, [one, other]),
        lambda one, other: next(x for x in [one] if x == other),
    ],
    ids=["dict", "sorted", "reduce", "generator"],
)
@pytest.mark.parametrize("switch", ["line", "access", "gil"])
def test_callback_from_c_is_interrupted(call: Callable[[Key, Key], object], switch: str) -> None:
    def run() -> None:
        log: list[str] = []

        def work() -> None:
            call(Key(log), Key(log))

        together(work, work)
        interleaved(log)

    assert is_found(run, switch)


def test_fiber_that_is_left_at_a_point_is_unwound() -> None:
    ends: list[str] = []

    def work() -> None:
        try:
            for _ in range(100):
                ends.append("runs")
        finally:
            ends.append("unwound")

    def run() -> None:
        ends.clear()
        fiber = Fiber(work)
        fiber.daemon = True
        fiber.start()
        sleep(0)
        assert "unwound" not in ends or ends.count("runs") == 100
        for _ in range(3):
            ends.append("main")

    def check() -> None:
        assert ends.count("unwound") == 1

    explore(run, 300, switch="line", check=check)


def test_exception_is_handled_while_another_fiber_handles_one() -> None:
    def work(kind: type[Exception]) -> None:
        for _ in range(2):
            try:
                raise kind
            except Exception:
                assert sys.exc_info()[0] is kind
                seen = [sys.exc_info()[0]]
                assert seen == [kind]
        assert sys.exc_info()[0] is None

    def run() -> None:
        together(lambda: work(KeyError), lambda: work(OSError))

    for switch in SWITCHES:
        explore(run, 200, switch=switch)  # type: ignore[arg-type]


# ------------------------------------------------------------------------ long stretches


def test_loop_without_points_ends() -> None:
    def run() -> None:
        def wait(items: list[int]) -> None:
            while not items:
                pass
            while len(items) < 2:
                pass

        ready: list[int] = []
        together(lambda: wait(ready), lambda: ready.append(1), lambda: ready.append(2))

    for switch in SWITCHES:
        explore(run, 20, switch=switch)  # type: ignore[arg-type]


def test_loop_that_spins_for_another_fiber_ends() -> None:
    def run() -> None:
        ready: list[int] = []

        def wait() -> None:
            while not ready:
                pass
            while len(ready) < 2:
                pass

        def work() -> None:
            ready.append(1)
            ready.append(2)

        together(wait, work)

    for switch in SWITCHES:
        explore(run, 20, switch=switch)  # type: ignore[arg-type]


def test_loop_that_spins_for_a_timer_ends() -> None:
    def run() -> None:
        fired: list[int] = []

        def later() -> None:
            sleep(60)
            fired.append(1)

        fiber = spawn(later)
        sleep(1)
        while not fired:
            pass
        fiber.join()

    explore(run, 3, switch="line")


def test_loop_that_spins_for_ever_is_a_livelock() -> None:
    def run() -> None:
        while True:
            pass

    with pytest.raises(ScheduleFailure) as caught:
        explore(run, 1, switch="line", max_steps=1000)
    assert isinstance(caught.value.exception, LivelockError)
    assert "within 1000 steps (max_steps) and 5000 lines" in str(caught.value.exception)


# ---------------------------------------------------------------------- beside other tools


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_other_tools_of_sys_monitoring_keep_their_events() -> None:
    monitoring = sys.monitoring
    events = monitoring.events
    lines: list[int] = []
    code = Counter.add_in_two_lines.__code__
    monitoring.use_tool_id(monitoring.DEBUGGER_ID, "debugger")
    try:
        monitoring.register_callback(
            monitoring.DEBUGGER_ID, events.LINE, lambda code, line: lines.append(line)
        )
        monitoring.set_local_events(monitoring.DEBUGGER_ID, code, events.LINE)
        assert is_found(race("add_in_two_lines"), "line")
        assert monitoring.get_local_events(monitoring.DEBUGGER_ID, code) == events.LINE
        assert len(lines) >= 8
        assert monitoring.get_tool(3) is None
        monitoring.use_tool_id(3, "next user")
        assert monitoring.get_local_events(3, code) == 0
        assert monitoring.get_events(3) == 0
        monitoring.free_tool_id(3)
    finally:
        monitoring.set_local_events(monitoring.DEBUGGER_ID, code, 0)
        monitoring.free_tool_id(monitoring.DEBUGGER_ID)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_no_free_tool_id_is_refused_and_nothing_stays_replaced() -> None:
    before = time.sleep, threading.Thread.start, os.urandom
    monitoring = sys.monitoring
    monitoring.use_tool_id(3, "one")
    monitoring.use_tool_id(4, "other")
    try:
        with pytest.raises(RuntimeError, match="one, other use both that are free"):
            explore(race("add_in_two_lines"), switch="line", threads="simulated")
    finally:
        monitoring.free_tool_id(3)
        monitoring.free_tool_id(4)
    assert (time.sleep, threading.Thread.start, os.urandom) == before


def test_trace_function_keeps_its_events() -> None:
    lines: list[int] = []

    def trace(frame: Any, event: str, arg: object) -> Any:
        if frame.f_code is Counter.add_in_two_lines.__code__:
            lines.append(frame.f_lineno)
            return trace
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        assert is_found(race("add_in_two_lines"), "line")
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
    first = Counter.add_in_two_lines.__code__.co_firstlineno
    assert {first + 1, first + 2} <= set(lines)


def test_trace_function_that_is_set_in_a_run_comes_beside_the_points() -> None:
    lines: list[int] = []

    def trace(frame: Any, event: str, arg: object) -> Any:
        lines.append(frame.f_lineno)
        return trace

    def run() -> None:
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            assert sys.gettrace() is trace
            race("add_in_two_lines")()
        finally:
            sys.settrace(before)

    assert is_found(run, "line")
    assert Counter.add_in_two_lines.__code__.co_firstlineno + 1 in lines


def test_coverage_counts_lines_and_points_work(tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            from pyfiber import spawn
            from pyfiber.testing import ScheduleFailure, explore

            class Counter:
                value = 0

                def add(self):
                    value = self.value
                    self.value = value + 1

            def race():
                counter = Counter()
                for fiber in [spawn(counter.add) for _ in range(2)]:
                    fiber.join()
                assert counter.value == 2

            try:
                explore(race, switch="line")
            except ScheduleFailure:
                print("found")
            """
        )
    )
    run = [sys.executable, "-m", "coverage", "run", "--data-file", str(tmp_path / "data")]
    out = subprocess.run([*run, str(script)], capture_output=True, text=True, check=True)
    assert out.stdout == "found\n"
    report = [sys.executable, "-m", "coverage", "report", "-m", "--data-file"]
    out = subprocess.run(
        [*report, str(tmp_path / "data")], capture_output=True, text=True, check=True
    )
    assert "program.py" in out.stdout
    assert "100%" in out.stdout, out.stdout


@pytest.mark.parametrize("core", ["ctrace", "sysmon"])
def test_runs_of_one_schedule_do_not_differ_under_coverage(core: str, tmp_path: Path) -> None:
    pytest.importorskip("coverage")
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import threading
            from pyfiber.testing import explore

            def threads_increment():
                class Counter:
                    value = 0

                counter = Counter()

                def add():
                    counter.value += 1

                threads = [threading.Thread(target=add) for _ in range(2)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()

            for switch in ("line", "access", "gil"):
                explore(threads_increment, 20, threads="simulated", switch=switch)
            """
        )
    )
    run = [sys.executable, "-m", "coverage", "run", "--data-file", str(tmp_path / "data")]
    environment = os.environ | {"COVERAGE_CORE": core}
    out = subprocess.run([*run, str(script)], capture_output=True, text=True, env=environment)
    assert out.returncode == 0, out.stderr


def test_two_threads_explore_at_once() -> None:
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.append(is_found(race("add_in_two_lines"), "line")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True, True]


# ------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"switch": "lines"}, "switch is one of 'wait', 'line', 'access', 'gil', not 'lines'"),
        ({"preemptions": -1}, "preemptions is from 0 to 15, not -1"),
        ({"preemptions": 16}, "preemptions is from 0 to 15, not 16"),
        ({"strategy": "best"}, "no strategy 'best': there are fifo, random, pct, dfs, mix"),
    ],
)
def test_wrong_value_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        explore(lambda: None, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"include": "queue"}, "include is a list of names of modules, not 'queue'"),
        ({"exclude": [1]}, "exclude has names of modules, not 1"),
        ({"preemptions": "2"}, "preemptions is an integer, not 'str'"),
    ],
)
def test_wrong_type_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        explore(lambda: None, **options)


def test_same_seed_gives_the_same_schedules() -> None:
    def explored() -> list[object]:
        results: list[object] = []
        for name in ("add_in_two_lines", "add_with_a_call"):
            with pytest.raises(ScheduleFailure) as caught:
                explore(race(name), switch="line", seed=3)
            results += [caught.value.number, caught.value.schedule]
        return results

    assert explored() == explored()


def test_exploration_says_when_there_are_no_other_schedules() -> None:
    def run() -> None:
        together(lambda: None, lambda: None)

    found = explore(run, 100_000, switch="line")
    assert isinstance(found, Exploration)
    assert found.complete


# ----------------------------------------------------- C functions that give up the GIL


class Folder:
    """Says that it is there, and is made then; a set of names stands in for the disk."""

    def __init__(self, path: str, names: set[str]) -> None:
        self.path = path
        self.names = names
        self.announced = False

    def make_on_disk(self) -> None:
        path = self.path
        self.announced = True
        os.mkdir(path)

    def is_on_disk(self) -> None:
        assert not self.announced or os.path.exists(self.path), "announced too early"

    def make_in_memory(self) -> None:
        names, path = self.names, self.path
        self.announced = True
        names.add(path)

    def is_in_memory(self) -> None:
        assert not self.announced or self.path in self.names, "announced too early"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="3.11 reports no calls of C functions")
def test_gil_is_given_up_before_the_effect_of_a_system_call(tmp_path: Path) -> None:
    def main() -> None:
        folder = Folder(str(tmp_path / "folder"), set())
        try:
            together(folder.make_on_disk, folder.is_on_disk)
        finally:
            os.rmdir(folder.path)

    with pytest.raises(ScheduleFailure, match="announced too early"):
        explore(main, switch="gil")


def test_gil_is_kept_until_a_method_of_a_set_has_returned() -> None:
    def main() -> None:
        folder = Folder("folder", set())
        together(folder.make_in_memory, folder.is_in_memory)

    assert explore(main, 10_000, "dfs", switch="gil").complete
