"""memray, a memory profiler, over fibers and over greenlets of the stand-in."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("memray")

FIBERS = """
import pyfiber
def wait(): pyfiber.yield_now()
def run(functions): pyfiber.run(lambda: pyfiber.gather(*functions))
"""
STANDIN = """
import greenlet
hub, ready = greenlet.getcurrent(), []
def wait():
    ready.append(greenlet.getcurrent())
    hub.switch()
def run(functions):
    ready.extend(greenlet.greenlet(function) for function in functions)
    while ready:
        ready.pop(0).switch()
"""
FIRST = "import pyfiber.greenlet; pyfiber.greenlet.install()\n"
WORK = """
import re
def deep(n):
    if n: return deep(n - 1)
    wait()
    return len([bytearray(100) for _ in range(50)])
def upper(match):
    wait()
    return match.group(0).upper()
def allocate(): return bytearray(100_000)
def waits_first():
    for turn in range(20):
        deep(turn % 7)
        re.sub("a+", upper, "xaay")
        try:
            if turn % 10 == 9: raise ValueError(turn)
        except ValueError: wait()
        allocate()
run([waits_first] * 20)
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(FIBERS + WORK, id="fibers"),
        pytest.param(FIRST + STANDIN + WORK, id="standin"),
    ],
)
def test_memray_tells_allocations_under_the_calls_that_made_them(
    program: str, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(program)

    def memray(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "memray", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    memray("run", "-q", "-o", "out.bin", "program.py")
    printed = tmp_path / "printed.py"
    printed.write_text(
        textwrap.dedent(
            """
            import memray
            for each in memray.FileReader("out.bin").get_allocation_records():
                if each.size >= 100_000 and each.allocator != memray.AllocatorType.MUNMAP:
                    print(*(name for name, *_ in each.stack_trace()))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(printed)], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    stacks = [line for line in done.stdout.splitlines() if line.startswith("allocate")]
    assert len(stacks) == 400
    assert {re.sub(r" (<lambda>|run|<module>)", "", each) for each in stacks} == {
        "allocate waits_first"
    }
