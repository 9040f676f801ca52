"""gevent's own released tests on `pyfiber.greenlet`, judged by what greenlet itself makes of them.

    python tests/standin/gevent_suite.py [FILE...]

Needs gevent installed beside pyfiber. Each file runs in a process of its own. Where something fails
the file runs again by itself, and thrice on greenlet; a test that then fails on the stand-in, and
on greenlet never, is an error of ours. The exit code is 0 if there is none.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyfiber.greenlet

#: Files that ask name servers or hosts elsewhere, and those that run the examples and the standard
#: library's tests of gevent's source tree, which do not come with it.
LEFT_OUT = re.compile(
    r"test_(__monkey_patching|_ares_|_example|_getaddrinfo_import|_resolver_|_socket_(dns|ssl))"
)
PATIENCE = 200.0
FEWEST = 115

#: Says which greenlet it is, and that gevent is not the one in Python.
CHECK = """\
import greenlet, gevent._greenlet_primitives as p
assert p.__file__.endswith((".so", ".pyd")), "gevent is not compiled"
print(greenlet.__name__)
"""


@dataclass(frozen=True)
class Verdict:
    """How the tests of a file went."""

    ran: int
    skipped: int
    bad: frozenset[str]
    output: str


def environments() -> tuple[dict[str, str], dict[str, str]]:
    """For the stand-in, and for greenlet."""
    usual = {**os.environ, "GEVENTTEST_USE_RESOURCES": "all,-network", "PYTHONFAULTHANDLER": "1"}
    pyfiber.greenlet.install(children=True)
    ours = {**usual, "PYTHONPATH": os.environ["PYTHONPATH"]}
    for env, name in ((ours, "pyfiber.greenlet"), (usual, "greenlet")):
        done = subprocess.run(
            [sys.executable, "-c", CHECK], env=env, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == name, done.stdout
    return ours, usual


def judge(output: str, code: int | None) -> Verdict:
    """Read what unittest prints. Some files are plain programs, whose exit code is all there is."""
    ran = sum(map(int, re.findall(r"^Ran (\d+) tests?", output, re.MULTILINE)))
    skipped = sum(map(int, re.findall(r"\bskipped=(\d+)\)$", output, re.MULTILINE)))
    bad = set(re.findall(r"^(?:FAIL|ERROR): (.+)$", output, re.MULTILINE))
    if code is None:
        bad.add(f"no end within {PATIENCE:g} s")
    elif code < 0:
        bad.add(signal.Signals(-code).name)
    elif code not in (0, 5) and not bad:  # 5: all were skipped
        bad.add(f"exit code {code}")
    return Verdict(ran, skipped, frozenset(bad), output)


def run(name: str, env: dict[str, str], folder: str) -> Verdict:
    """One file in a process of its own, which takes those that it started with it."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"gevent.tests.{name}"],
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    code: int | None
    try:
        output, _ = process.communicate(timeout=PATIENCE)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        code = None
    return judge(output.decode(errors="replace"), code)


def find(wanted: list[str]) -> list[str]:
    """The names of the test modules."""
    spec = importlib.util.find_spec("gevent")
    if spec is None or spec.origin is None:
        sys.exit("gevent is not installed: its tests are what is to be run")
    every = sorted(path.stem for path in (Path(spec.origin).parent / "tests").glob("test_*.py"))
    return wanted or [name for name in every if not LEFT_OUT.match(name)]


def main() -> int:
    """Run the tests, compare, tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="*", help="names like test__event; all if none is given")
    names = find(parser.parse_args().file)
    ours, usual = environments()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
            verdicts = dict(
                zip(names, pool.map(lambda n: run(n, ours, folder), names), strict=True)
            )
        for name, first in verdicts.items():
            if not first.bad:
                continue
            again = run(name, ours, folder)
            # What fails now and then does so on both.
            theirs = frozenset().union(*(run(name, usual, folder).bad for _ in range(3)))
            for test in sorted(first.bad | again.bad):
                if test not in again.bad:
                    print(f"{name}: {test}: only once, in company")
                elif test in theirs:
                    print(f"{name}: {test}: as on greenlet")
                else:
                    wrong += 1
                    print(f"{name}: {test}: FAILS, AND ON GREENLET DOES NOT\n{again.output}")
    ran, skipped = (sum(getattr(v, what) for v in verdicts.values()) for what in ("ran", "skipped"))
    print(f"{len(names)} files, {ran} tests, {skipped} skipped, {wrong} differ from greenlet")
    return int(wrong > 0 or (len(names) < FEWEST and not parser.parse_args().file))


if __name__ == "__main__":
    sys.exit(main())
