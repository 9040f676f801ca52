"""CPython's own tests of asyncio's loops, on the loop of ``new_event_loop()``, in fibers.

They are those of the interpreter's installed package ``test``. Those left out are named here, with
the reason. Other modules of theirs are about other things than a loop: ``test_futures``,
``test_locks`` and ``test_runners``, say, whose loops are mostly mocks.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path

import pytest

from tests.aio import cpython_program
from tests.support.subprocesses import run_python

pytestmark = pytest.mark.skipif(os.name == "nt", reason="selectors of Windows have no descriptor")

OTHER_SELECTOR = "asyncio's loop with a selector that has no descriptor"
SELECTORS = {"PollEventLoopTests": OTHER_SELECTOR, "SelectEventLoopTests": OTHER_SELECTOR}
CONTROL_C = "afterwards Ctrl-C is the run's again, and the test looks for the default handler"

LEFT_OUT: dict[str, dict[str, str]] = {
    "test_base_events": {},
    "test_buffered_proto": {},
    "test_context": {},
    "test_events": {**SELECTORS, "test_add_signal_handler": CONTROL_C},
    "test_pep492": {},
    "test_queues": {},
    "test_selector_events": {},
    "test_sendfile": SELECTORS,
    "test_server": {},
    "test_sock_lowlevel": SELECTORS,
    "test_ssl": {},
    "test_sslproto": {},
    "test_streams": {},
    "test_subprocess": {},
    "test_taskgroups": {},
    "test_tasks": {},
    "test_threads": {},
    "test_timeouts": {},
    "test_unix_events": {},
    "test_waitfor": {},
}

#: They wait for real seconds.
SLOW = {
    "test_base_events",
    "test_events",
    "test_sendfile",
    "test_ssl",
    "test_sslproto",
    "test_subprocess",
    "test_taskgroups",
    "test_tasks",
}


@pytest.mark.parametrize(
    "module", [pytest.param(m, marks=[pytest.mark.slow] if m in SLOW else []) for m in LEFT_OUT]
)
def test_their_tests_pass_in_fibers(module: str, tmp_path: Path) -> None:
    pytest.importorskip(f"test.test_asyncio.{module}", reason="not shipped with this Python")
    program = cpython_program.__file__
    done = run_python(program, module, json.dumps(LEFT_OUT[module]), cwd=tmp_path, timeout=290)
    assert done.returncode == 0, done.stderr[-10_000:]
    ran = re.search(r"^Ran (\d+) tests?", done.stderr, re.MULTILINE)
    assert ran, done.stderr[-2000:]
    assert int(ran[1]) > 0
    print(f"{module} on {sys.version_info[:2]}: {ran[0]}")
