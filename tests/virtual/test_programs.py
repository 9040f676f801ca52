"""Programs that know nothing of fibers: their threads are fibers, and all else is as before.

Each program of the folder programs/ runs in a process of its own, talks on 127.0.0.1, asserts what
it expects, and prints "done".
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.libraries.acts import need
from tests.libraries.services import answers, free_port, until
from tests.support.gil import GIL, PATCH_NEEDS_IT
from tests.support.subprocesses import run_python, start_python

pytestmark = [
    pytest.mark.skipif(not GIL, reason=PATCH_NEEDS_IT),
    pytest.mark.skipif(sys.platform == "win32", reason="the programs send themselves signals"),
]

HERE = Path(__file__).parent / "programs"

#: The programs, and the libraries that each of them uses.
PROGRAMS: dict[str, tuple[str, ...]] = {
    "apscheduler_jobs": ("apscheduler",),
    "asyncio_loops": (),
    "celery_worker": ("celery",),
    "cheroot_server": ("cheroot",),
    "django_runserver": ("django",),
    "flask_server": ("flask",),
    "greenlets": ("greenlet",),
    "hog": (),
    "http_server": (),
    "log_listener": (),
    "multiprocessing_pool": (),
    "paramiko_server": ("paramiko",),
    "pymongo_monitors": ("pymongo",),
    "queues": (),
    "requests_threads": ("requests",),
    "socket_server": (),
    "thread_pools": (),
    "timers": (),
    "uvicorn_server": ("uvicorn",),
    "waitress_server": ("waitress",),
    "websocket_server": ("websockets",),
}

WITHIN = """
import runpy, sys, pyfiber
with pyfiber.virtual_threads():
    runpy.run_path(sys.argv[1], run_name="__main__")
"""

#: Ways to run a program; the last one shows that the program itself is right.
WAYS = {
    "command": ("-m", "pyfiber", "run", "--virtual-threads"),
    "block": ("-c", WITHIN),
    "native": (),
}


def runs(name: str, way: str) -> None:
    need(*PROGRAMS[name])
    done = run_python(*WAYS[way], str(HERE / f"{name}.py"))
    assert (done.returncode, done.stdout.count("done\n")) == (0, 1), done.stdout + done.stderr


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_unchanged_by_the_command(name: str) -> None:
    runs(name, "command")


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_unchanged_in_a_block(name: str) -> None:
    runs(name, "block")


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_program_runs_with_threads_of_the_system(name: str) -> None:
    runs(name, "native")


def test_every_program_is_tested() -> None:
    assert {path.stem for path in HERE.glob("*.py")} == {*PROGRAMS}


def serves_until_interrupted(*command: str, port: int) -> None:
    """A server's command answers, and ends by Ctrl-C."""
    process = start_python("-m", "pyfiber", "run", "--virtual-threads", "-m", *command)
    try:
        until(lambda: process.poll() is not None or answers(port))
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()


def test_module_http_server_serves_until_interrupted() -> None:
    port = free_port()
    serves_until_interrupted("http.server", "--bind", "127.0.0.1", str(port), port=port)


def test_module_waitress_serves_until_interrupted() -> None:
    need("waitress")
    port = free_port()
    serves_until_interrupted(
        "waitress", "--listen", f"127.0.0.1:{port}", "wsgiref.simple_server:demo_app", port=port
    )
