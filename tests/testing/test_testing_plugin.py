"""The pytest plugin, from outside: what a test run with it prints and does."""

from __future__ import annotations

import re
import shlex
import signal
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec

import pytest

import pyfiber.__main__

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


@pytest.fixture(autouse=True)
def _no_other_configuration(pytester: pytest.Pytester) -> None:
    """Else one in a folder above, /tmp say, would be the tests'."""
    pytester.makeini("[pytest]")


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
    line = re.search(r'pytest "(\S+)" --fiber-replay=(pf2-\w+)', result.stdout.str())
    assert line is not None
    again = outcome(pytester, line[1], f"--fiber-replay={line[2]}")
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["*the schedule fails with AssertionError*"])


def test_failure_shows_no_frames_of_the_plugin(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=LOST_UPDATE.format(strategy="random"))
    printed = outcome(pytester).stdout.str()
    assert "who ran when" in printed
    assert "in test_lost_update" in printed
    for inside in ("plugin.py", "explore.py", "found.py", "runner.py"):
        assert inside not in printed


def test_single_run_with_a_seed_prints_the_line_that_replays_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=LOST_UPDATE.format(strategy="").replace('schedules=200, strategy=""', "")
    )
    outcome(pytester).assert_outcomes(passed=1)
    for seed in range(50):
        result = outcome(pytester, f"--fiber-seed={seed}")
        if result.ret:
            break
    line = re.search(r'replay: pytest "(\S+)" --fiber-replay=(pf2-\w+)', result.stdout.str())
    assert line is not None
    again = outcome(pytester, line[1], f"--fiber-replay={line[2]}")
    again.stdout.fnmatch_lines(["*the schedule fails with AssertionError*"])


def test_command_line_explores_tests_that_are_marked_only(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=LOST_UPDATE.format(strategy="").replace('schedules=200, strategy=""', "")
    )
    outcome(pytester, "--fiber-schedules=1").assert_outcomes(passed=1)
    result = outcome(pytester, "--fiber-schedules=300")
    result.stdout.fnmatch_lines(["*of 300 (strategy 'random', seed 0) fails with*"])


def test_methods_of_unittest_run_in_fibers_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pyfiber, pytest, unittest

        @pytest.mark.fiber
        class TestIt(unittest.TestCase):
            def setUp(self):
                self.hours = 5
                self.assertEqual(pyfiber.current().name, "main")

            tearDown = setUp

            def test_sleeps(self):
                pyfiber.sleep(self.hours * 3600)
                assert pyfiber.now() == 18000

            @pytest.mark.fiber(schedules=20)
            def test_fails(self):
                self.assertEqual(pyfiber.current().name, "main")

            @pytest.mark.fiber(schedules=20)
            def test_skips(self):
                self.skipTest("today")

            def test_unmarked_by_mistake(self):
                pytest.xfail("known")

        class TestUnmarked(unittest.TestCase):
            def test_is_not_in_a_run(self):
                with self.assertRaises(pyfiber.FiberError):
                    pyfiber.sleep(1)
    """)
    result = outcome(pytester)
    result.assert_outcomes(passed=2, failed=1, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(["*schedule 1 of 20 *fails with AssertionError*"])


def test_fixtures_are_made_and_ended_inside_each_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pyfiber, pytest
        runs = []

        @pytest.fixture(autouse=True)
        def happened(request):
            runs.append([])
            pyfiber.sleep(1)
            return runs[-1]

        @pytest.fixture
        def number(happened, request):
            request.addfinalizer(lambda: happened.append("finalizer"))
            return len(happened)

        @pytest.fixture(params=["a", "b"])
        def thing(number, happened, request):
            happened.append(f"{request.param} in {pyfiber.current().name}")
            yield number
            pyfiber.sleep(1)
            happened.append(f"end at {pyfiber.now()}")

        @pytest.mark.fiber(schedules=9)
        def test_it(thing, happened, tmp_path, virtual_clock):
            assert (thing, len(happened)) == (0, 1)
            assert virtual_clock.now() == 1
            assert tmp_path.exists()

        @pytest.fixture(scope="module")
        def shared():
            return pyfiber.current().name

        @pytest.mark.fiber
        def test_wider_scopes_are_outside(shared):
            assert shared == "main"
            assert len(runs) == 21  # of the first schedule there are two
            for number, run in enumerate(runs[:20]):
                param = "a" if number < 10 else "b"
                assert run == [f"{param} in test_it", "end at 2.0", "finalizer"]
    """)
    outcome(pytester).assert_outcomes(passed=3)


def test_virtual_clock_is_that_of_the_mark(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.fiber(clock="real")
        def test_no_virtual_clock(virtual_clock):
            pass

        def test_clock_without_a_mark(virtual_clock):
            assert virtual_clock.now() == 0
    """)
    result = outcome(pytester)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*UsageError: *virtual_clock with clock='real'*"])


SERVER = """
    import pyfiber, pytest
    from pyfiber import net

    @pytest.fixture
    def server():
        def shout(stream):
            for line in stream:
                stream.write(line.upper())

        with net.serve(shout, "127.0.0.1", 0) as server:
            yield server
        assert server.connections == 0

    @pytest.fixture
    def client(server):
        with net.connect(*server.address) as client:
            yield client

    @pytest.mark.fiber({options})
    def test_server_answers(client):
        client.write(b"spam\\n")
        assert next(client) == b"SPAM\\n"
"""


@pytest.mark.parametrize("options", ["", "network=True", "network=True, schedules=20"])
def test_fixture_starts_a_server_and_opens_a_connection(
    pytester: pytest.Pytester, options: str
) -> None:
    pytester.makepyfile(SERVER.format(options=options))
    outcome(pytester).assert_outcomes(passed=1)


def test_fixture_that_is_asked_for_during_the_run_is_made_in_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pyfiber, pytest
        ended = []

        @pytest.fixture
        def early():
            pyfiber.yield_now()
            return "early"

        @pytest.fixture
        def late(early):
            pyfiber.yield_now()
            yield early + " and late"
            pyfiber.yield_now()
            ended.append(pyfiber.current().name)

        @pytest.mark.fiber(schedules=5)
        def test_asks(early, request):
            for _ in range(2):
                assert request.getfixturevalue("late") == "early and late"
            assert request.getfixturevalue("early") is early

        def test_was_ended_in_each_run():
            assert set(ended) == {"test_asks"}
            assert len(ended) == 6  # the first schedule is run twice
    """)
    outcome(pytester).assert_outcomes(passed=2)


def test_fixture_that_fails_or_skips_does_so_for_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pyfiber, pytest

        @pytest.fixture
        def broken():
            yield 1
            pyfiber.yield_now()
            raise KeyError("end")

        @pytest.fixture
        def skips():
            pytest.skip("today")

        @pytest.mark.fiber(schedules=3)
        def test_skips(skips):
            pass

        @pytest.fixture
        def yields_nothing():
            if pyfiber.now() > 1000:
                yield

        @pytest.mark.fiber
        def test_broken(broken):
            assert broken == 1

        @pytest.mark.fiber
        def test_yields_nothing(yields_nothing):
            pass

        @pytest.fixture
        def good():
            yield
            pyfiber.yield_now()
            print("ended")

        @pytest.mark.fiber
        def test_fails(good):
            assert 0, "the test"
    """)
    result = outcome(pytester)
    result.assert_outcomes(failed=3, skipped=1)
    result.stdout.fnmatch_lines(["*KeyError: 'end'*"])
    result.stdout.fnmatch_lines(["*yields_nothing did not yield a value*"])
    result.stdout.fnmatch_lines(["*Captured stdout call*", "ended"])


def test_setup_methods_are_made_inside_of_the_run_too(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pyfiber, pytest

        def setup_function():
            pyfiber.yield_now()

        def teardown_function():
            pyfiber.yield_now()

        @pytest.mark.fiber
        def test_function():
            pass

        @pytest.mark.fiber(schedules=3)
        class TestIt:
            def setup_method(self):
                self.opened = pyfiber.Event()
                self.opener = pyfiber.spawn(self.opened.set)

            def teardown_method(self):
                self.opener.join()

            def test_method(self):
                self.opened.wait()
    """)
    outcome(pytester).assert_outcomes(passed=2)


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
        ("depth=17", "depth is at most 16"),
        ("leftovers='x'", "leftovers is 'join' or 'error'"),
        ("clock='x'", "the clock is 'virtual', 'real' or a VirtualClock"),
        ("clock='real', virtualize_time=True", "virtualize_time needs a virtual clock"),
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
    result = outcome(pytester, "--fiber-replay=pf2-cut")
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


@pytest.mark.skipif(
    find_spec("pytest_timeout") is None or not hasattr(signal, "SIGALRM"),
    reason="needs pytest-timeout and its signal",
)
@pytest.mark.parametrize("options", ["", "schedules=50"])
def test_program_that_hangs_is_ended_by_the_timeout_and_not_run_again(
    pytester: pytest.Pytester, options: str
) -> None:
    pytester.makepyfile(f"""
        import pytest
        runs = []

        @pytest.mark.fiber({options})
        def test_hangs():
            runs.append(1)
            assert len(runs) < 3
            while len(runs) == {2 if options else 1}:
                pass
    """)
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "pytest_timeout", "--timeout=0.5")
    result.stdout.fnmatch_lines(["*Failed: Timeout (>0.5s) from pytest-timeout*"])
    result.assert_outcomes(failed=1)


@pytest.mark.parametrize("name", ["plain", "with spaces", "quo\"te's", "$HOME"])
def test_replay_line_survives_odd_names_of_tests(pytester: pytest.Pytester, name: str) -> None:
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.fiber(schedules=5)
        @pytest.mark.parametrize("name", [{name!r}])
        def test_it(name):
            assert name is None
    """)
    line = re.search(r"replay: +pytest (.*)", outcome(pytester).stdout.str())
    assert line is not None
    again = outcome(pytester, *shlex.split(line[1]))
    again.stdout.fnmatch_lines(["*the schedule fails with AssertionError*"])


def test_option_help_is_there(pytester: pytest.Pytester) -> None:
    outcome(pytester, "--help").stdout.fnmatch_lines(["*--fiber-seed=N*"])
    outcome(pytester, "--markers").stdout.fnmatch_lines(["*pytest.mark.fiber(schedules=1*"])


BANK = """
    import threading
    import pytest

    class Account:
        def __init__(self):
            self.balance = 100

        def withdraw(self, amount):
            if self.balance >= amount:
                self.balance -= amount

    def withdraw_twice(account):
        threads = [threading.Thread(target=account.withdraw, args=(80,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert account.balance >= 0
"""

MARKED = """
    @pytest.mark.fiber(threads="simulated", switch="line")
    def test_withdraw():
        withdraw_twice(Account())
"""

UNMARKED = """
    @pytest.fixture
    def account():
        return Account()

    def test_withdraw(account):
        withdraw_twice(account)

    def test_once(account):
        account.withdraw(10)
        assert account.balance == 90
"""


def test_mark_simulates_threads(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_bank=BANK + MARKED)
    result = outcome(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*fails with AssertionError*", "*is interrupted before*"])
    line = re.search(r"pytest \"\S+\" --fiber-replay=(pf2-\w+)", result.stdout.str())
    assert line is not None
    again = outcome(pytester, f"--fiber-replay={line[1]}")
    again.stdout.fnmatch_lines(["*the schedule fails with AssertionError*"])


def test_command_line_overrides_where_to_switch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_bank=BANK + MARKED)
    outcome(pytester, "--fiber-switch=wait").assert_outcomes(passed=1)
    outcome(pytester, "--fiber-preemptions=0").assert_outcomes(passed=1)
    outcome(pytester, "--fiber-exclude=test_bank").assert_outcomes(passed=1)
    wrong = outcome(pytester, "--fiber-switch=lines")
    wrong.stdout.fnmatch_lines(["*switch is one of 'wait', 'line', 'access', 'gil'*"])


def test_unmarked_tests_are_explored_if_that_is_asked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_bank=BANK + UNMARKED)
    outcome(pytester).assert_outcomes(passed=2)
    result = outcome(pytester, "--fiber-explore", "--fiber-html=reports")
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*test_once: no failure in any schedule*all were tried*"])
    result.stdout.fnmatch_lines(["*report: reports*test_bank.py_test_withdraw.html"])
    page = pytester.path.joinpath("reports", "test_bank.py_test_withdraw.html").read_text()
    assert "Thread-1 (withdraw)#1" in page


def test_command_explores_and_replays(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    pytester.makepyfile(test_bank=BANK + UNMARKED)

    def explore(*words: str) -> str:
        result = pytester.run(sys.executable, "-m", "pyfiber", "explore", *words)
        return result.stdout.str()

    printed = explore("test_bank.py::test_withdraw", "-n", "300", "--seed", "1")
    assert "of 300 (strategy 'mix', seed 1) fails with AssertionError" in printed
    line = re.search(r"python -m pyfiber explore (\S+) (--replay=pf2-\w+)", printed)
    assert line is not None
    assert "the schedule fails with AssertionError" in explore(line[1].strip('"'), line[2])
    printed = explore("test_bank.py", "--exclude", "test_bank", "--switch", "access")
    assert "2 passed" in printed


def test_command_hands_options_on_to_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_bank=BANK + UNMARKED)
    explore = (sys.executable, "-m", "pyfiber", "explore", "test_bank.py")
    result = pytester.run(*explore, "-n", "5", "--", "--collect-only", "-q")
    result.stdout.fnmatch_lines(["test_bank.py::test_withdraw"])


def test_command_skips_async_tests(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("async def test_it(): pass")
    result = pytester.runpytest_inprocess(*PLUGIN, "--fiber-explore")
    result.assert_outcomes(skipped=1)


def test_command_knows_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        pyfiber.__main__.main(["explore", "--help"])
    assert "--preemptions" in capsys.readouterr().out
