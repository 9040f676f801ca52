"""Builds the programs of bench/c and bench/go, once for each state of their sources."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..model import ROOT, Unavailable

SOURCES = ROOT / "bench" / "c"
BUILD = ROOT / "build" / "bench"

LOAD = "load"
ECHO = "echo_epoll"
SWITCH = "raw_switch"
GOROUTINES = "parked_go"


def require(command: str, what: str) -> None:
    """Raise Unavailable if a command is missing."""
    if shutil.which(command) is None:
        raise Unavailable(f"needs {what}")


def require_compiler() -> None:
    """Raise Unavailable without a compiler ($CC, or the system's) or make."""
    require((shlex.split(os.environ.get("CC", "")) or ["cc"])[0], "a C compiler")
    require("make", "make")


def require_tls() -> None:
    """Raise Unavailable without a compiler or OpenSSL's headers, which TLS needs."""
    require_compiler()
    text = "#include <openssl/ssl.h>\n"
    command = [*(shlex.split(os.environ.get("CC", "")) or ["cc"]), "-E", "-x", "c", "-"]
    if subprocess.run(command, input=text, capture_output=True, text=True).returncode:
        raise Unavailable("the load generator needs OpenSSL's headers (libssl-dev) for TLS")


@contextmanager
def alone() -> Iterator[None]:
    """Keep other processes from building at the same time."""
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(name: str) -> Path:
    """Return the program; make builds it if its sources are newer."""
    require_compiler()
    if name == GOROUTINES:
        require("go", "Go")
    with alone():
        command = ["make", "-s", "-C", str(SOURCES), f"O={BUILD}", name]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{name} cannot be built: {done.stderr.strip()}")
    return BUILD / name
