"""CPython's own tests of threads, run by ``python -m pyfiber run --virtual-threads``.

The programs that these tests run in turn have virtual threads as well.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.support import cpython_tests
from tests.support.subprocesses import run_python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="they want what Unix has")

#: Each reason is one of those that docs/virtual_threads.md names under "Where threads differ".
IMPORTED_FIRST = "it asks that the program imports a module that pyfiber has imported already"

THREADING = {
    "test_import_from_another_thread": IMPORTED_FIRST,
    "test_join_nondaemon_on_shutdown": "it compares the text of time.sleep, which is a gate's",
}
if sys.version_info[:2] == (3, 12):
    THREADING["test_start_new_thread_at_exit"] = "exit functions may start threads here"
LOGGING = {"test_relativeCreated_has_higher_precision": IMPORTED_FIRST}

LEFT_OUT: dict[str, dict[str, str]] = {
    "test_thread": {},
    "test_threading": THREADING,
    "test_threading_local": {},
    "test_queue": {},
    "test_sched": {},
    "test_socketserver": {},
    "test_httpservers": {},
    "test_logging": LOGGING,
    "test_threadsignals": {},
    "test_concurrent_futures.test_future": {},
    "test_concurrent_futures.test_as_completed": {},
    "test_concurrent_futures.test_wait": {},
    "test_concurrent_futures.test_thread_pool": {},
    "test_concurrent_futures.test_init": {},
    "test_concurrent_futures.test_shutdown": {},
}

#: They wait for real seconds.
SLOW = {
    "test_threading",
    "test_logging",
    "test_threadsignals",
    "test_concurrent_futures.test_as_completed",
    "test_concurrent_futures.test_wait",
    "test_concurrent_futures.test_shutdown",
}


@pytest.mark.parametrize(
    "module", [pytest.param(m, marks=[pytest.mark.slow] if m in SLOW else []) for m in LEFT_OUT]
)
def test_their_tests_pass_with_virtual_threads(module: str, tmp_path: Path) -> None:
    pytest.importorskip(f"test.{module}", reason="not shipped with this Python")
    command = ["-m", "pyfiber", "run", "--virtual-threads", cpython_tests.__file__, "--virtual"]
    left_out = json.dumps(LEFT_OUT[module])
    done = run_python(*command, module, left_out, cwd=tmp_path, timeout=290)
    ran = re.search(r"^Ran (\d+) tests?", done.stderr, re.MULTILINE)
    assert done.returncode == 0, done.stderr[-10_000:]
    assert ran, done.stderr[-2000:]
    print(f"{module} on {sys.version_info[:2]}: {ran[0]}")
    assert int(ran[1]) > 3
