"""pyfiber.greenlet.install() and `python -m pyfiber greenlet`."""

import textwrap

import pytest

from tests.support.subprocesses import run_python


@pytest.fixture
def program(tmp_path):
    """Write a program and run it on the stand-in: (source, *arguments, options) -> finished."""

    def run(source, *arguments, options=()):
        path = tmp_path / "prog.py"
        path.write_text(textwrap.dedent(source))
        return run_python("-m", "pyfiber", "greenlet", *options, str(path), *arguments)

    return run


def test_install_is_what_imports_find(child):
    child(
        """
        import sys, pyfiber.greenlet
        pyfiber.greenlet.install()
        pyfiber.greenlet.install()
        import greenlet, greenlet._greenlet
        from greenlet import getcurrent
        assert greenlet is pyfiber.greenlet is sys.modules["greenlet"]
        assert greenlet._greenlet._C_API is greenlet._C_API
        assert getcurrent()
        """
    )


def test_install_after_greenlet_was_imported(child):
    child(
        """
        import sys, types
        sys.modules["greenlet"] = types.ModuleType("greenlet")
        sys.modules["greenlet"].__file__ = "elsewhere.py"
        import pyfiber.greenlet
        try:
            pyfiber.greenlet.install()
        except RuntimeError as e:
            assert "elsewhere.py" in str(e) and "install()" in str(e)
        else:
            raise SystemExit("not refused")
        """
    )


def test_importing_pyfiber_does_not_import_the_stand_in(child):
    child("import sys, pyfiber; assert 'pyfiber.greenlet' not in sys.modules")


def test_program_runs_as_main(program):
    done = program(
        """
        import sys, os, greenlet, pyfiber.greenlet, __main__
        assert greenlet is pyfiber.greenlet
        assert __name__ == "__main__" and __main__.__dict__ is globals()
        assert __file__ == sys.argv[0]
        assert sys.path[0] == os.path.dirname(os.path.realpath(__file__))
        assert __spec__ is None and __doc__ is None
        print(sys.argv[1:])
        """,
        "a",
        "-m",
        "--children",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "['a', '-m', '--children']\n"


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("raise SystemExit(3)", 3), ("import sys; sys.exit('words')", 1), ("1 / 0", 1)],
)
def test_exit_code_is_the_programs(program, end, code):
    done = program(end)
    assert done.returncode == code
    if end == "1 / 0":
        assert "ZeroDivisionError" in done.stderr
        assert "prog.py" in done.stderr


def test_globals_outlive_the_main_program(program):
    done = program(
        """
        import atexit, threading
        value = "still here"
        atexit.register(lambda: print(value))
        threading.Thread(target=lambda: (threading.main_thread().join(), print(value))).start()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["still here"] * 2


def test_module_runs_as_main(tmp_path):
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").touch()
    (tmp_path / "pack" / "__main__.py").write_text(
        "import sys, greenlet, pyfiber.greenlet\n"
        "assert greenlet is pyfiber.greenlet\n"
        "print(__name__, __package__, sys.argv[1:])\n"
        "sys.exit(4)\n"
    )
    done = run_python(
        "-m", "pyfiber", "greenlet", "-m", "pack", "x", "-v", env={"PYTHONPATH": str(tmp_path)}
    )
    assert (done.returncode, done.stdout) == (4, "__main__ pack ['x', '-v']\n"), done.stderr


CHILD = """
    import subprocess, sys
    source = "import sys, greenlet; print(greenlet.__name__ == 'pyfiber.greenlet')"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    print(done.stdout.strip() or done.stderr.strip().splitlines()[-1])
"""


def test_children_are_reached_only_when_asked_for(program):
    assert program(CHILD, options=("--children",)).stdout == "True\n"
    assert "True" not in program(CHILD).stdout


def test_folders_and_missing_programs(tmp_path):
    (tmp_path / "__main__.py").write_text("import greenlet; print(greenlet.__name__)")
    done = run_python("-m", "pyfiber", "greenlet", str(tmp_path))
    assert (done.returncode, done.stdout) == (0, "pyfiber.greenlet\n")
    done = run_python("-m", "pyfiber", "greenlet", str(tmp_path / "none.py"))
    assert done.returncode == 2
    assert f"can't open file {str(tmp_path / 'none.py')!r}" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = run_python("-m", "pyfiber", "greenlet")
    assert done.returncode == 2
    assert "which program" in done.stderr
