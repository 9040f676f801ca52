"""Builds the C programs of bench/c, once for each state of their sources."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from ..model import Unavailable

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "bench" / "c"
BUILD = ROOT / "build" / "bench"
FLAGS = ("-O2", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra")
TLS_FLAGS = ("-DWITH_TLS", "-lssl", "-lcrypto")

LOAD = "load"
ECHO = "echo_epoll"


def compiler() -> list[str]:
    """The command of the C compiler: $CC, or the system's."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not command or shutil.which(command[0]) is None:
        raise Unavailable("needs a C compiler for the load generator")
    return command


def has_openssl() -> bool:
    """Whether OpenSSL's headers are there to build with."""
    done = subprocess.run(
        [*compiler(), "-E", "-x", "c", "-"],
        input="#include <openssl/ssl.h>\n",
        capture_output=True,
        text=True,
    )
    return done.returncode == 0


def require_tls() -> None:
    """Refuse what needs TLS where the programs cannot speak it."""
    if not has_openssl():
        raise Unavailable("the load generator needs OpenSSL's headers (libssl-dev) for TLS")


def sources_of(name: str) -> list[Path]:
    """What a program is built from, headers included."""
    if not (SOURCES / f"{name}.c").exists():
        raise Unavailable(f"needs bench/c/{name}.c: run it in pyfiber's source tree")
    return [SOURCES / f"{name}.c", SOURCES / "io.c", *SOURCES.glob("*.h")]


def build(name: str) -> Path:
    """The program, built if its sources are newer than it is."""
    sources = sources_of(name)
    program = BUILD / name
    if not is_newer(program, sources):
        files = [str(source) for source in sources if source.suffix == ".c"]
        tls = TLS_FLAGS if has_openssl() else ()
        build_into(program, lambda fresh: [*compiler(), *FLAGS, "-o", fresh, *files, *tls])
    return program


def is_newer(program: Path, sources: list[Path]) -> bool:
    """Whether it is there, and was built since they were last changed."""
    newest = max(source.stat().st_mtime for source in sources)
    return program.exists() and program.stat().st_mtime >= newest


def build_into(program: Path, command: Callable[[str], list[str]]) -> None:
    """Build beside the program and rename: another process may be building it as well."""
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as directory:
        fresh = Path(directory, program.name)
        done = subprocess.run(command(str(fresh)), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{program.name} cannot be built: {done.stderr.strip()}")
        fresh.replace(program)
