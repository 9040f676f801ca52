"""CPython's own tests of the standard modules themselves, in fibers and under the patch."""

from __future__ import annotations

import os
import sys
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

SSL: dict[str, str] = {}
THREADING = {"InterruptMainTests": HANDLER}
if sys.version_info < (3, 13):
    SSL |= dict.fromkeys(
        ("test_wrong_cert_tls13", "test_pha_required_nocert"),
        "the server may reset the connection before the client's next write; "
        "from Python 3.13 on the test permits that",
    )
    THREADING["test_tstate_lock"] = (
        "the thread's end, in C, releases that lock, and only join() is told"
    )

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
    "test_ssl": SSL,
    "test_subprocess": {},
    "test_logging": {},
    "test_threading": THREADING,
    "test_queue": {},
    "test_concurrent_futures.test_future": {},
    "test_concurrent_futures.test_as_completed": {},
    "test_concurrent_futures.test_wait": {},
    "test_concurrent_futures.test_thread_pool": {},
    "test_concurrent_futures.test_init": {},
    "test_concurrent_futures.test_shutdown": {},
    "test_concurrent_futures.test_process_pool": {},
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
    "test_ssl": ["ThreadedTests.test_recv_send", "SimpleBackgroundTests.test_connect"],
    "test_subprocess": [
        "ProcessTestCase.test_communicate",
        "ProcessTestCase.test_wait_timeout",
        "POSIXProcessTestCase.test_preexec",
    ],
    "test_logging": ["SocketHandlerTest", "QueueHandlerTest", "QueueListenerTest"],
    "test_threading": ["ThreadTests.test_various_ops", "CRLockTests", "TimerTests"],
    "test_queue": ["CSimpleQueueTest.test_basic", "CQueueTest"],
    "test_concurrent_futures.test_as_completed": ["ThreadPoolAsCompletedTest"],
    "test_concurrent_futures.test_wait": ["ThreadPoolWaitTests.test_first_completed"],
    "test_concurrent_futures.test_thread_pool": [],
    "test_concurrent_futures.test_shutdown": [],
    "test_concurrent_futures.test_process_pool": [],
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
