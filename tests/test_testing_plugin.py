"""The pytest plugin, from outside: what a test run with it prints and does."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from importlib.util import find_spec

import pytest

pytest_plugins = ["pytester"]

PLUGIN = ["-p", "pyfiber.testing.plugin", "-p", "no:cacheprovider"]

LOST_UPDATE = """
    import pytest
    from pyfiber import spawn, yield_now

    @pytest.mark.fiber(schedules=200, strategy="{strategy}")
    def test_lost_update():
        total = 0

        def add(waits):
            nonlocal total
            for _ in range(waits):
                yield_now()
            before = total
            yield_now()
            total = before + 1

        for fiber in [spawn(add, waits) for waits in (0, 2)]:
            fiber.join()
        assert total == 2
"""


@pytest.fixture(autouse=True)
def _no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their import takes longer than the tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def outcome(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess(*PLUGIN, *args)


def test_installed_package_brings_the_plugin_along() -> None:
    for entry in entry_points(group="pytest11", name="pyfiber"):
        assert entry.value == "pyfiber.testing.plugin"


def test_marked_function_runs_in_a_fiber_in_virtual_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pyfiber, pytest
        from datetime import datetime, UTC

        @pytest.mark.fiber
        def test_sleeps(virtual_clock):
            pyfiber.sleep(1e6)
            assert pyfiber.now() == virtual_clock.now() == 1e6

        @pytest.mark.fiber(clock=datetime(2030, 1, 1))
        def test_starts_then(virtual_clock):
            pyfiber.sleep(60)
            assert virtual_clock.datetime() == datetime(2030, 1, 1, 0, 1, tzinfo=UTC)

        class TestMethods:
            @pytest.mark.fiber(schedules=5)
            @pytest.mark.parametrize("n", [1, 2])
            def test_method(self, n, tmp_path):
                assert tmp_path.exists()
                pyfiber.sleep(n)

        def test_unmarked():
            with pytest.raises(pyfiber.FiberError):
                pyfiber.sleep(1)

        @pytest.mark.fiber
        @pytest.mark.xfail(raises=KeyError, strict=True)
        def test_fails_with_its_own_exception():
            raise KeyError

        @pytest.mark.fiber(schedules=5)
        def test_skips():
            pytest.skip("today")
    """)
    outcome(pytester).assert_outcomes(passed=5, xfailed=1, skipped=1)


@pytest.mark.parametrize("strategy", ["random", "pct", "dfs"])
def test_failure_prints_a_line_that_replays_it(pytester: pytest.Pytester, strategy: str) -> None:
    pytester.makepyfile(test_it=LOST_UPDATE.format(strategy=strategy))
    result = outcome(pytester)
    result.assert_outcomes(failed=1)
    line = re.search(r'pytest "(\S+)" --fiber-replay=(pf1-\w+)', result.stdout.str())
    assert line is not None
    again = outcome(pytester, line[1], f"--fiber-replay={line[2]}")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["*the schedule fails with AssertionError*"])


def test_seed_and_schedules_come_from_the_command_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=LOST_UPDATE.format(strategy="random"))
    result = outcome(pytester, "--fiber-seed=12345")
    result.stdout.fnmatch_lines(["*strategy 'random', seed 12345*"])
    outcome(pytester, "--fiber-schedules=1").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("schedule=5", "mark.fiber does not take 'schedule'"),
        ("5", "mark.fiber does not take positional arguments"),
        ("schedules=0", "schedules must be at least 1"),
        ("strategy='best'", "no strategy 'best'"),
    ],
)
def test_wrong_mark_is_told(pytester: pytest.Pytester, arguments: str, text: str) -> None:
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.fiber({arguments})
        def test_it():
            pass
    """)
    result = outcome(pytester)
    assert result.ret != 0
    result.stdout.fnmatch_lines([f"*{text}*"])


def test_wrong_replay_string_is_told(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=LOST_UPDATE.format(strategy="random"))
    result = outcome(pytester, "--fiber-replay=pf1-cut")
    result.stdout.fnmatch_lines(["*ScheduleError*cut or mistyped*"])


def test_coroutine_function_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.fiber
        async def test_it():
            pass
    """)
    result = outcome(pytester)
    result.stdout.fnmatch_lines(["*for plain functions, not for coroutines*"])


def test_fixture_fiber_run_runs_and_explores(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pyfiber, pytest
        from pyfiber.testing import ScheduleFailure

        def test_run(fiber_run):
            assert fiber_run(lambda n: (pyfiber.sleep(n), pyfiber.now())[1], 77) == 77.0
            with pytest.raises(ZeroDivisionError):
                fiber_run(lambda: 1 / 0)

        def test_explore(fiber_run):
            assert fiber_run.explore(lambda: None, schedules=7).schedules == 7
            with pytest.raises(ScheduleFailure, match="fiber-replay"):
                fiber_run.explore(lambda: 1 / 0)
            with pytest.raises(TypeError, match="no option 'n'"):
                fiber_run(lambda: None, n=1)
    """)
    outcome(pytester).assert_outcomes(passed=2)


def test_hypothesis_explores_each_example(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pyfiber, pytest
        from hypothesis import assume, given, settings, strategies as st

        @pytest.mark.fiber(schedules=5)
        @settings(max_examples=20, database=None)
        @given(st.integers(0, 1000))
        def test_passes(n):
            assume(n % 7)
            pyfiber.sleep(n)
            assert pyfiber.now() == n

        @pytest.mark.fiber(schedules=5)
        @settings(max_examples=200, database=None)
        @given(st.integers(0, 1000))
        def test_fails(n):
            pyfiber.yield_now()
            assert n < 10
    """)
    result = outcome(pytester)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*n=10*"])


@pytest.mark.skipif(find_spec("xdist") is None, reason="pytest-xdist is not installed")
def test_xdist_runs_marked_tests_and_hands_options_on(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=LOST_UPDATE.format(strategy="random"))
    result = outcome(pytester, "-p", "xdist", "-n2", "--fiber-seed=99")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*seed 99*"])


def test_option_help_is_there(pytester: pytest.Pytester) -> None:
    outcome(pytester, "--help").stdout.fnmatch_lines(["*--fiber-seed=N*"])
    outcome(pytester, "--markers").stdout.fnmatch_lines(["*pytest.mark.fiber(schedules=1*"])
