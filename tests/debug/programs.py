"""Programs to look at from outside, and the commands that do."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber._debug import client
from pyfiber._debug.places import User
from tests.support.subprocesses import run_python, start_python

needs_unix = pytest.mark.skipif(
    not hasattr(client.socket, "AF_UNIX"), reason="Python has no Unix sockets here"
)

#: Who runs the tests.
OURS = User(os.geteuid(), os.getegid()) if hasattr(os, "geteuid") else User(0, 0)

WITH_SOCKET = {"PYFIBER_DEBUG": "1"}
WITHOUT = {"PYFIBER_DEBUG": "0"}

#: Three fibers that wait, and a main that says so.
WAITING = """
    import os, time
    from pyfiber import *

    def consumer(channel):
        channel.receive()

    def main():
        channel = Channel(0)
        for number in range(2):
            Fiber(consumer, (channel,), name=f"consumer {number}").start()
        yield_now()
        print("ready", flush=True)
        park(1000)
"""


@contextlib.contextmanager
def running(
    source: str, end: str = "run(main)", env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A program that has printed a line; it is killed in the end."""
    code = f"{textwrap.dedent(source)}\n{end}\n"
    process = start_python("-c", code, env=WITH_SOCKET if env is None else env)
    try:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise AssertionError(process.communicate(timeout=60)[1])
        yield process
    finally:
        process.kill()
        process.communicate()


def command(*arguments: object, code: int = 0) -> str:
    """What `python -m pyfiber` prints; on standard error if it fails as it should."""
    done = run_python("-m", "pyfiber", *map(str, arguments), env=WITHOUT)
    assert done.returncode == code, done.stderr + done.stdout
    return done.stderr if code else done.stdout


def fibers_of(pid: int) -> list[dict[str, Any]]:
    """The groups of all threads."""
    found = json.loads(command("ps", "--json", pid))
    return [group for thread in found["threads"] for group in thread["groups"]]
