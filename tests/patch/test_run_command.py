"""`python -m pyfiber run`: whole programs, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.subprocesses import run_python, start_python

Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def program(tmp_path: Path) -> Callable[..., Finished]:
    """Write a program and run it: (source, *arguments, options) -> finished."""

    def run(source: str, *arguments: str, options: tuple[str, ...] = ()) -> Finished:
        path = tmp_path / "prog.py"
        path.write_text(textwrap.dedent(source))
        return run_python("-m", "pyfiber", "run", *options, str(path), *arguments)

    return run


def test_program_runs_as_main_in_a_fiber_of_a_run(program: Callable[..., Finished]) -> None:
    done = program(
        """
        import os, sys, pyfiber, __main__
        assert __name__ == "__main__" and __main__.__dict__ is globals()
        assert sys.path[0] == os.path.dirname(os.path.realpath(__file__))
        pyfiber.spawn(print, "a fiber")
        pyfiber.yield_now()
        print(sys.argv[1:])
        """,
        *("a", "-m", "--patch"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "a fiber\n['a', '-m', '--patch']\n"


#: Says which of two blocking calls let another fiber run.
WHO_PARKS = """
    import select, time, pyfiber
    parked = []
    def watch():
        parked.append(True)
    waits = {"time": (time.sleep, 0.001), "select": (select.select, [], [], [], 0.001)}
    for name, (wait, *arguments) in waits.items():
        parked.clear()
        pyfiber.spawn(watch)
        wait(*arguments)
        print(name, "parks" if parked else "blocks")
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "time blocks\nselect blocks\n"),
        (("--patch",), "time parks\nselect parks\n"),
        (("--parts=time",), "time parks\nselect blocks\n"),
        (("--patch", "--parts", "os,select"), "time blocks\nselect parks\n"),
    ],
)
def test_patch_is_what_the_options_say(
    program: Callable[..., Finished], options: tuple[str, ...], said: str
) -> None:
    done = program(WHO_PARKS, options=options)
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("raise SystemExit(3)", 3), ("import sys; sys.exit('words')", 1), ("1 / 0", 1)],
)
def test_exit_code_is_the_programs(program: Callable[..., Finished], end: str, code: int) -> None:
    done = program(end)
    assert done.returncode == code
    if end == "1 / 0":
        assert "ZeroDivisionError" in done.stderr
        assert "prog.py" in done.stderr


def test_process_waits_for_the_programs_fibers(program: Callable[..., Finished]) -> None:
    done = program(
        """
        import time, pyfiber
        def later():
            time.sleep(0.001)
            print("later")
        pyfiber.spawn(later)
        print("main ends")
        """,
        options=("--patch",),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "main ends\nlater\n", "")


def test_patch_serves_the_threads_that_outlive_the_program(
    program: Callable[..., Finished],
) -> None:
    done = program(
        """
        import threading, time
        def work():
            threading.main_thread().join()
            time.sleep(0.001)
            print("still here")
        threading.Thread(target=work).start()
        """,
        options=("--patch",),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "still here\n", "")


def test_module_runs_as_main_in_a_fiber(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "__main__.py").write_text(
        "import sys, pyfiber\n"
        "pyfiber.sleep(0)\n"
        "print(__name__, __package__, sys.argv[1:])\n"
        "sys.exit(4)\n"
    )
    done = run_python(
        *("-m", "pyfiber", "run", "-m", "pack", "x", "-v"), env={"PYTHONPATH": str(tmp_path)}
    )
    assert (done.returncode, done.stdout) == (4, "__main__ pack ['x', '-v']\n"), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process there")
def test_ctrl_c_ends_the_program(tmp_path: Path) -> None:
    path = tmp_path / "prog.py"
    path.write_text(
        "import time\n"
        "try:\n"
        "    print('waits', flush=True)\n"
        "    time.sleep(60)\n"
        "finally:\n"
        "    print('cleaned up', flush=True)\n"
    )
    with start_python("-m", "pyfiber", "run", "--patch", str(path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert out == "cleaned up\n"
    assert "KeyboardInterrupt" in err
    assert process.returncode not in {0, None}


def test_bad_command_lines_are_refused(tmp_path: Path) -> None:
    done = run_python("-m", "pyfiber", "run")
    assert (done.returncode, "which program" in done.stderr) == (2, True)
    done = run_python("-m", "pyfiber", "run", "--parts=time,sockt", "prog.py")
    assert (done.returncode, "no part 'sockt'; there are: time, dns" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "status", "words"),
    [
        (["none.py"], 2, "can't open file {folder}none.py': [Errno 2] No such file or directory"),
        (["none.pyz"], 2, "can't open file {folder}none.pyz': [Errno 2] No such file or directory"),
        (["empty"], 1, "can't find '__main__' module in {folder}empty'"),
        (["-m", "none"], 1, "No module named none"),
        (["-m", "empty.none"], 1, "No module named empty.none"),
        (["-m", "os.none"], 1, "No module named os.none"),
        (["-m", "..none"], 1, "Relative module names not supported"),
        (["-m", "pack"], 1, "No module named pack.__main__; 'pack' is a package and cannot be "),
    ],
)
def test_program_that_is_not_there_is_one_line(
    command: list[str], status: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    done = run_python("-m", "pyfiber", "run", *command, cwd=tmp_path)
    folder = repr(os.path.join(os.path.realpath(tmp_path), ""))[:-1]
    assert done.returncode == status
    assert words.format(folder=folder) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_module_that_needs_another_one_is_no_missing_program(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("import needed_and_not_there")
    done = run_python("-m", "pyfiber", "run", "-m", "pack.part", cwd=tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "import needed_and_not_there" in done.stderr


FAILS = """
    import os, sys, pyfiber
    def fails():
        raise ValueError("nobody looks")
    def forks():
        fiber = pyfiber.spawn(fails)
        pyfiber.yield_now()
        del fiber
        if child := os.fork():
            sys.exit(10 + os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("fiber = pyfiber.spawn(fails)", 1),
        ("pyfiber.spawn(fails); pyfiber.yield_now()", 1),
        ("pyfiber.spawn(fails); sys.exit()", 1),
        ("pyfiber.spawn(fails); sys.exit(0)", 1),
        ("pyfiber.spawn(fails); sys.exit(7)", 7),
        ("fiber = pyfiber.spawn(fails); fiber.exception()", 0),
        pytest.param(
            "forks()", 10, marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork there")
        ),
    ],
)
def test_failure_that_nobody_looked_at_is_the_exit_status(
    program: Callable[..., Finished], end: str, status: int
) -> None:
    done = program(f"{textwrap.dedent(FAILS)}\n{end}\n")
    assert done.returncode == status
    assert done.stderr.count("failed and nobody looked at it") == ("exception()" not in end)


def test_safe_path_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "prog.py"
    path.write_text("import os, sys; assert os.path.dirname(__file__) not in sys.path, sys.path")
    done = run_python("-P", "-m", "pyfiber", "run", str(path))
    assert done.returncode == 0, done.stderr
