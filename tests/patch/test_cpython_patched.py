"""CPython's own tests of the standard modules themselves, in fibers and under the patch."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.io.test_cpython_io import HANDLER, NEVER_BLOCKS, run_theirs

pytestmark = pytest.mark.skipif(os.name == "nt", reason="they want what Unix has")

SOCKET = {
    "test_sendall_interrupted": HANDLER,
    "test_sendall_interrupted_with_timeout": HANDLER,
    "InterruptedRecvTimeoutTest": HANDLER,
    "InterruptedSendTimeoutTest": HANDLER,
    "testInterruptedTimeout": HANDLER,
    "NonBlockingTCPTests.testSetBlocking": NEVER_BLOCKS,
    "NonBlockingTCPTests.testSetBlocking_overflow": NEVER_BLOCKS,
    "NonblockConstantTest.test_SOCK_NONBLOCK": NEVER_BLOCKS,
    "testRefCountGetNameInfo": "its argument is in the traceback, since ours is Python code",
    "ThreadedVSOCKSocketStreamTest": "it fails without the patch, too, in a container",
}

LEFT_OUT: dict[str, dict[str, str]] = {
    "test_socket": SOCKET,
    "test_select": {
        "test_disallow_instantiation": "what select.poll() makes in a fiber is a class of ours",
        "test_select_mutated": "its list loses what is in it while it is read; ours is a copy",
    },
    "test_selectors": {"test_select_interrupt_exc": HANDLER},
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
    "test_socket": ["BasicTCPTest", "BasicUDPTest", "BufferIOTest", "CreateServerFunctionalTest"],
    "test_selectors": ["DefaultSelectorTestCase"],
    "test_smtplib": [],
    "test_ftplib": ["TestFTPClass.test_retrbinary", "TestTLS_FTPClass.test_data_connection"],
    "test_poplib": ["TestPOP3Class.test_retr", "TestPOP3_TLSClass.test_retr"],
    "test_imaplib": [],
    "test_xmlrpc": [],
    "test_urllib2_localnet": [],
}


@pytest.mark.parametrize(
    "module", [pytest.param(m, marks=[pytest.mark.slow] if m in SLOW else []) for m in LEFT_OUT]
)
def test_their_tests_pass_under_the_patch(module: str, tmp_path: Path) -> None:
    assert run_theirs(module, tmp_path, left_out=LEFT_OUT[module], patch=True) > 3


@pytest.mark.parametrize("module", [module for module, some in SLOW.items() if some])
def test_some_of_their_slow_tests_pass_under_the_patch(module: str, tmp_path: Path) -> None:
    names = SLOW[module]
    assert run_theirs(module, tmp_path, *names, left_out=LEFT_OUT[module], patch=True) > 0
