"""``python -m pyfiber run --virtual-threads``: whole programs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]

PROGRAM = """
    import atexit, sys, threading, time
    def work():
        time.sleep(0.01)
        print("thread", flush=True)
    def serve():
        while True:
            request.wait()
            request.clear()
            answer.set()
    def ask():
        request.set()
        print("daemon answers:", answer.wait(10), flush=True)
    request, answer = threading.Event(), threading.Event()
    threading.Thread(target=serve, daemon=True).start()
    atexit.register(ask)
    threading.Thread(target=work).start()
    print("main", flush=True)
"""


@pytest.mark.parametrize(
    ("end", "status", "says"),
    [
        ("", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('words')", 1, "words\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
    ],
)
def test_threads_and_exit_functions_run_after_the_main_program(
    command: Command, end: str, status: int, says: str
) -> None:
    code, out, err = command(PROGRAM + "    " + end)
    assert (code, out) == (status, "main\nthread\ndaemon answers: True\n")
    assert err.endswith(says)
    assert bool(err) == bool(says)


def test_the_main_program_is_the_main_thread(command: Command) -> None:
    assert command(
        """
        import sys, threading
        import __main__
        print(threading.current_thread() is threading.main_thread(), __main__.__file__ == __file__)
        thread = threading.Thread(target=lambda: print(threading.get_ident() % 2))
        thread.start()
        """,
        "--time-slice=2ms",
    ) == (0, "True True\n1\n", "")


def test_ctrl_c_ends_the_process_by_the_signal(command: Command) -> None:
    code, out, err = command(
        """
        import os, signal, threading
        threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGINT)).start()
        threading.Event().wait()
        """
    )
    assert (code, out) == (-2, "")
    assert err.count("KeyboardInterrupt") == 1


def test_what_is_printed_at_the_end_is_as_the_interpreter_prints_it(
    command: Command, tmp_path: Path
) -> None:
    code, out, err = command(
        """
        import atexit, sys
        print(__file__, __loader__.path)
        atexit.register(sys.exit, 3)
        atexit.register(int, "x")
        raise KeyError
        """
    )
    path = tmp_path / "program.py"
    assert (code, out) == (1, f"{path} {path}\n")
    assert err == (
        "Traceback (most recent call last):\n"
        f'  File "{path}", line 6, in <module>\n'
        "    raise KeyError\n"
        "KeyError\n"
        "Exception ignored in atexit callback <class 'int'>:\n"
        "ValueError: invalid literal for int() with base 10: 'x'\n"
        "Exception ignored in atexit callback <built-in function exit>:\n"
        "SystemExit: 3\n"
    )
