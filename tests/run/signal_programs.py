"""Programs that get signals: each in an interpreter of its own."""

from __future__ import annotations

import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.subprocesses import run_script, start_python

PRELUDE = """
import os, select, signal, socket, subprocess, sys, threading, time
from pyfiber import *
log = []
def interrupt():
    signal.raise_signal(signal.SIGINT)
def interrupt_soon(count=1, pause=0.03):
    "From another process, as a terminal does."
    return subprocess.Popen(
        ["/bin/sh", "-c", f"for i in {' '.join('x' * count)}; do "
         f"sleep {pause}; kill -INT {os.getpid()}; done"])
def runs(fn):
    "How the run ended, and what it took."
    try:
        log.append(run(fn))
    except BaseException as exc:
        log.append(type(exc).__name__)
    return log
def parks(name):
    try:
        park()
    except Cancelled as exc:
        log.append((name, exc.reason, exc.by))
        raise
"""


def script(code: str, timeout: float = 10) -> str:
    """What it prints, without the end of the line."""
    done = run_script(PRELUDE + textwrap.dedent(code), timeout=timeout)
    assert done.stderr == ""
    return done.stdout.rstrip()


@contextmanager
def start_script(code: str, before: str = "") -> Iterator[subprocess.Popen[str]]:
    """The same, to be talked to; it is ended with the block."""
    process = start_python("-c", "\n".join([PRELUDE, before, textwrap.dedent(code)]))
    with process:
        try:
            yield process
            process.wait(60)
        finally:
            process.kill()
