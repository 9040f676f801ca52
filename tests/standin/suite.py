"""greenlet's own released tests on `pyfiber.greenlet`.

    python tests/standin/suite.py [--leakchecks] [-v]

Needs greenlet, psutil and objgraph installed beside pyfiber. The tests are copied out of the
installed greenlet for the time of the run. The exit code is 0 if those fail that must, and no
others: see docs/greenlet.md.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

#: Tests of greenlet's insides, which a stand-in does not have.
INSIDES = {
    "test_greenlet.TestBrokenGreenlets.test_failed_to_initialstub",
    "test_greenlet.TestBrokenGreenlets.test_failed_to_switch_into_running",
    "test_greenlet.TestBrokenGreenlets.test_failed_to_slp_switch_into_running",
    "test_stack_saved.Test.test_stack_saved",
}
#: With --leakchecks: tests that fail unless greenlet leaks, and the stand-in does not.
#: What leaks depends on the version, so these may pass or fail.
EXPECT_LEAKS = {
    "test_gc.TestGC.test_finalizer_crash",
    "test_leaks.TestLeaks.test_issue251_issue252_need_to_collect_in_background",
    "test_leaks.TestLeaks.test_issue251_issue252_need_to_collect_in_background_cleanup_disabled",
    "test_leaks.TestLeaks.test_issue251_issue252_explicit_reference_not_collectable",
}
FEWEST = 170

#: A package `greenlet` that is the stand-in, with greenlet's tests in it.
PACKAGE = """\
import os, sys
import pyfiber.greenlet
del sys.modules[__name__]
pyfiber.greenlet.install()
pyfiber.greenlet.__path__.append(os.path.dirname(__file__))
"""

RUNNER = """\
import json, sys, unittest
import greenlet, pyfiber.greenlet
assert greenlet is pyfiber.greenlet
folder, answer, verbosity = sys.argv[1:]
suite = unittest.defaultTestLoader.discover(folder + "/greenlet/tests", top_level_dir=folder)
result = unittest.TextTestRunner(verbosity=int(verbosity)).run(suite)
bad = {test.id(): text for test, text in result.failures + result.errors}
with open(answer, "w") as file:
    json.dump({"ran": result.testsRun, "skipped": len(result.skipped), "bad": bad}, file)
"""


def prepare(folder: Path) -> None:
    """The package, with the tests of the greenlet that is installed."""
    spec = importlib.util.find_spec("greenlet")
    if spec is None or spec.origin is None:
        sys.exit("greenlet is not installed: its tests are what is to be run")
    package = folder / "greenlet"
    package.mkdir()
    shutil.copytree(Path(spec.origin).parent / "tests", package / "tests")
    (package / "__init__.py").write_text(PACKAGE)


def run(folder: Path, *, leakchecks: bool, verbosity: int) -> dict[str, object]:
    """Run them in a process of their own; what came of it."""
    answer = folder / "answer.json"
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if not leakchecks:
        env["GREENLET_SKIP_LEAKCHECKS"] = "1"
    command = [sys.executable, "-c", RUNNER, str(folder), str(answer), str(verbosity)]
    done = subprocess.run(command, env=env, cwd=folder, timeout=1200, check=False)
    if not answer.exists():
        sys.exit(f"the tests did not come to their end: exit code {done.returncode}")
    found: dict[str, object] = json.loads(answer.read_text())
    return found


def main() -> int:
    """Run the tests and judge."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--leakchecks", action="store_true", help="each test several times")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        prepare(Path(name))
        found = run(
            Path(name), leakchecks=options.leakchecks, verbosity=2 if options.verbose else 1
        )
    bad = {test.removeprefix("greenlet.tests.") for test in found["bad"]}
    allowed = INSIDES | (EXPECT_LEAKS if options.leakchecks else set())
    ran, skipped = int(found["ran"]), int(found["skipped"])
    print(f"{ran - skipped - len(bad)} of {ran} passed, {skipped} skipped, {len(bad)} failed")
    for test in sorted(bad - allowed):
        print(f"unexpected failure: {test}")
    for test in sorted(INSIDES - bad):
        print(f"passed, though it cannot: {test}")
    if ran < FEWEST:
        print(f"only {ran} tests were found")
    return int(bool(bad - allowed or INSIDES - bad or ran < FEWEST))


if __name__ == "__main__":
    sys.exit(main())
