"""CPython's own tests of sockets, selectors and what is built on them, with our modules in place.

They are those of the interpreter's installed package ``test``, and each runs in a fiber of a run.
Those left out are named here, with the reason.
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

pytestmark = pytest.mark.skipif(os.name == "nt", reason="its sockets do not park yet")

HANDLER = "a signal handler raises there; in a run that ends the run, and not the call that waits"
NEVER_BLOCKS = "it looks for the system's flag; our descriptors never block, whatever the timeout"

LEFT_OUT = {
    "test_socket": {
        "test_sendall_interrupted": HANDLER,
        "test_sendall_interrupted_with_timeout": HANDLER,
        "InterruptedRecvTimeoutTest": HANDLER,
        "InterruptedSendTimeoutTest": HANDLER,
        "testInterruptedTimeout": HANDLER,
        "NonBlockingTCPTests.testSetBlocking": NEVER_BLOCKS,
        "NonBlockingTCPTests.testSetBlocking_overflow": NEVER_BLOCKS,
        "NonblockConstantTest.test_SOCK_NONBLOCK": NEVER_BLOCKS,
        "testRefCountGetNameInfo": "its argument is in the traceback, since ours is Python code",
        "PurePythonSocketPairTest": "it replaces functions inside of the standard module",
        "ThreadedVSOCKSocketStreamTest": "it fails with the standard module, too, in a container",
    },
    "test_select": {},
    "test_selectors": {
        "test_select_interrupt_exc": HANDLER,
    },
    "test_socketserver": {},
    "test_httpservers": {},
    "test_smtplib": {},
    "test_ftplib": {},
    "test_poplib": {},
    "test_imaplib": {},
    "test_xmlrpc": {},
    "test_httplib": {},
    "test_urllib2_localnet": {},
}

#: They wait for real seconds; these of them are run all the same, or none.
SLOW = {
    "test_socket": [
        "BasicTCPTest",
        "BasicUDPTest",
        "BufferIOTest",
        "SmallBufferedFileObjectClassTestCase.testFullRead",
    ],
    "test_selectors": ["DefaultSelectorTestCase"],
    "test_smtplib": [],
    "test_ftplib": ["TestFTPClass.test_retrbinary", "TestTLS_FTPClass.test_data_connection"],
    "test_poplib": ["TestPOP3Class.test_retr", "TestPOP3_TLSClass.test_retr"],
    "test_imaplib": [],
    "test_xmlrpc": [],
    "test_urllib2_localnet": [],
}


def run_theirs(
    module: str,
    directory: Path,
    *names: str,
    left_out: dict[str, str] | None = None,
    patch: bool = False,
) -> int:
    """How many tests there were; all pass. On our twins, or on the standard modules, patched."""
    pytest.importorskip(f"test.{module}", reason="not shipped with this Python")
    reasons = json.dumps(LEFT_OUT[module] if left_out is None else left_out)
    arguments = [*(["--patch"] if patch else []), module, reasons, *names]
    done = run_python(cpython_tests.__file__, *arguments, cwd=directory, timeout=290)
    ran = re.search(r"^Ran (\d+) tests?", done.stderr, re.MULTILINE)
    assert done.returncode == 0, done.stderr[-10_000:]
    assert ran, done.stderr[-2000:]
    print(f"{module} on {sys.version_info[:2]}: {ran[0]}")
    return int(ran[1])


@pytest.mark.parametrize(
    "module", [pytest.param(m, marks=[pytest.mark.slow] if m in SLOW else []) for m in LEFT_OUT]
)
def test_their_tests_pass_in_fibers(module: str, tmp_path: Path) -> None:
    assert run_theirs(module, tmp_path) > (5 if module == "test_select" else 10)


@pytest.mark.parametrize("module", [module for module, some in SLOW.items() if some])
def test_some_of_their_slow_tests_pass_in_fibers(module: str, tmp_path: Path) -> None:
    assert run_theirs(module, tmp_path, *SLOW[module]) > 0
