"""Counts the system calls of a process, with perf where that is permitted, otherwise with strace.

perf counts in the kernel and does not disturb. strace stops the process at each call: what it
counts is right, but a server so slow finds more connections ready at a time than it would.
"""

from __future__ import annotations

import functools
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from ..model import Unavailable

EVENT = "raw_syscalls:sys_enter"
#: Seconds until strace must have stopped every thread of the process.
PATIENCE = 30.0

Found = TypeVar("Found")
Work = Callable[[], Found]


@functools.cache
def perf_is_permitted() -> bool:
    """Whether perf exists and may count system calls."""
    if shutil.which("perf") is None:
        return False
    command = ["perf", "stat", "-e", EVENT, "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


def count_calls(pid: int, work: Work[Found]) -> tuple[int, Found]:
    """Do the work; return how many system calls the process made meanwhile, and the result."""
    with TemporaryDirectory() as directory:
        file = Path(directory, "counts")
        if perf_is_permitted():
            return under_perf(pid, file, work)
        if shutil.which("strace"):
            return under_strace(pid, file, work)
    raise Unavailable("needs strace, or perf and the right to use it")


def under_perf(pid: int, file: Path, work: Work[Found]) -> tuple[int, Found]:
    """Count with perf while `cat` runs: its answer shows that perf counts, end of input ends it."""
    command = ["perf", "stat", "-x", ",", "-o", str(file), "-e", EVENT, "-p", str(pid), "cat"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as perf:
        assert perf.stdin is not None
        assert perf.stdout is not None
        perf.stdin.write("on\n")
        perf.stdin.flush()
        perf.stdout.readline()
        found = work()
    return perf_total(file.read_text(encoding="utf-8")), found


def perf_total(text: str) -> int:
    """The count in perf's output: `71,,raw_syscalls:sys_enter,...` below comments."""
    return next(int(line.split(",")[0]) for line in text.splitlines() if EVENT in line)


def under_strace(pid: int, file: Path, work: Work[Found]) -> tuple[int, Found]:
    """Count with strace, from when it has attached to every thread until it is interrupted."""
    command = ["strace", "-c", "-f", "-q", "-o", str(file), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as strace:
        try:
            wait_until_traced(pid, strace)
            found = work()
        finally:
            strace.send_signal(signal.SIGINT)
    return strace_total(file.read_text(encoding="utf-8")), found


def is_traced(task: Path) -> bool:
    """Whether a thread has a tracer."""
    lines = (task / "status").read_text(encoding="ascii").splitlines()
    return any(line.startswith("TracerPid:") and line.split()[1] != "0" for line in lines)


def wait_until_traced(pid: int, strace: subprocess.Popen[bytes]) -> None:
    """Wait until strace has attached to every thread of the process."""
    end = time.monotonic() + PATIENCE
    while not all(is_traced(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if strace.poll() is not None or time.monotonic() > end:
            raise Unavailable("strace may not look at other processes here")
        time.sleep(0.01)


def strace_total(text: str) -> int:
    """The count in strace's summary: the fourth word of the line of totals."""
    return next(int(line.split()[3]) for line in text.splitlines() if line.endswith(" total"))
