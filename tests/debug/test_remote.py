"""`ps` of a process without a socket: sys.remote_exec, where Python has it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest

from pyfiber._debug import remote
from pyfiber._debug.client import Failed, connect
from tests.debug.programs import OURS, WAITING, WITHOUT, command, fibers_of, needs_unix, running
from tests.support.subprocesses import EMULATED

pytestmark = needs_unix
needs_remote_exec = pytest.mark.skipif(
    not hasattr(sys, "remote_exec"), reason="from Python 3.14 on"
)
may_enter = pytest.mark.skipif(
    hasattr(os, "geteuid") and os.geteuid() != 0, reason="needs root, or a kernel that lets others"
)


#: An idle loop is woken by ptrace.
has_ptrace = pytest.mark.skipif(EMULATED, reason="qemu knows no ptrace")


@needs_remote_exec
@may_enter
@has_ptrace
def test_idle_loop_is_woken_and_answers() -> None:
    with running(WAITING, env=WITHOUT) as process:
        assert sum(group["count"] for group in fibers_of(process.pid)) == 3
        assert "2 fibers, 'consumer" in command("ps", process.pid)  # and again


@needs_remote_exec
@may_enter
def test_fiber_that_computes_is_shown() -> None:
    source = """
        from pyfiber import *
        def computes():
            print("ready", flush=True)
            while True:
                pass
    """
    with running(source, "run(computes)", env=WITHOUT) as process:
        [group] = fibers_of(process.pid)
    assert group["state"] == "running"


@needs_remote_exec
@may_enter
@has_ptrace
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_stays_in_the_process() -> None:
    with running(WAITING, env=WITHOUT) as process:
        before = left(process.pid)
        connection = connect(process.pid)
        assert connection.ask()["pid"] == process.pid
        assert left(process.pid) != before
        connection.close()
        for _ in range(1000):
            if left(process.pid) == before:
                break
            time.sleep(0.01)
        assert left(process.pid) == before


def left(pid: int) -> tuple[int, int]:
    """Numbers of threads and of descriptors."""
    return len(os.listdir(f"/proc/{pid}/task")), len(os.listdir(f"/proc/{pid}/fd"))


@needs_remote_exec
@may_enter
def test_process_that_forbids_it_is_told_of() -> None:
    with running(WAITING, env={**WITHOUT, "PYTHON_DISABLE_REMOTE_DEBUG": "1"}) as process:
        shown = command("ps", process.pid, code=1)
    assert "cannot be entered" in shown
    assert "PYTHON_DISABLE_REMOTE_DEBUG" in shown
    assert "start it with PYFIBER_DEBUG=1" in shown


@needs_remote_exec
@may_enter
def test_main_thread_that_waits_for_a_lock_is_told_of() -> None:
    source = """
        import threading
        from pyfiber import *
        def main():
            print("ready", flush=True)
            park(1000)
        threading.Thread(target=run, args=(main,), daemon=True).start()
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    """
    with running(source, "", env=WITHOUT) as process:
        shown = command("ps", process.pid, "--timeout", 0.5, code=1)
    assert "has run no Python code for 0.5 s: it may wait for a lock" in shown


@needs_remote_exec
@may_enter
@pytest.mark.skipif(sys.platform == "linux", reason="Linux tells before")
def test_process_without_pyfiber_says_so_itself() -> None:
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with pytest.raises(Failed, match="does not use pyfiber"):
            connect(other.pid).ask()
    finally:
        other.kill()
        other.communicate()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ProcessLookupError(), "there is no process 7"),
        (PermissionError("no"), r"the system does not let you into process 7 \(no\): "),
        (RuntimeError("other version"), r"process 7 cannot be entered \(other version\): it must"),
        (OSError("what"), r"process 7 cannot be entered \(what\)"),
    ],
)
def test_refusals_are_sentences(
    error: Exception, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remote_exec(pid: int, script: str) -> None:
        raise error

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    with pytest.raises(remote.Refused, match=words):
        remote.enter(7, OURS, 1)


def test_script_brings_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other process would do, done by this one."""

    def remote_exec(pid: int, script: str) -> None:
        with open(script, encoding="utf-8") as file:
            exec(compile(file.read(), script, "exec"), {})

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    monkeypatch.setattr("pyfiber._debug.client.connected", lambda *args: None)
    connection = connect(os.getpid())
    try:
        found: Any = connection.ask()
        assert found["pid"] == os.getpid()
    finally:
        connection.close()
