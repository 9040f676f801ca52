"""CPython's own tests of ssl, run on pyfiber.ssl, each in a fiber of a run.

Their servers are threads of their own, so what they test is both: fibers that park, and threads
that block.
"""

from __future__ import annotations

import socket as standard_socket
import ssl as standard_ssl
import sys
import unittest
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

import pyfiber
import pyfiber.socket
import pyfiber.ssl

theirs = pytest.importorskip("test.test_ssl", reason="not shipped with this Python")

LEFT_OUT: dict[str, str] = {}
if sys.version_info < (3, 13):
    RESETS = (
        "the server may reset the connection before the client's next write; "
        "from Python 3.13 on the test permits that"
    )
    LEFT_OUT |= dict.fromkeys(("test_wrong_cert_tls13", "test_pha_required_nocert"), RESETS)

#: Each test of theirs waits for a second or more for its server's end; these are run all the same.
SLOW: dict[str, set[str]] = {
    "ThreadedTests": {"test_recv_send", "test_starttls", "test_wrong_cert_tls12"},
    "SimpleBackgroundTests": {"test_connect", "test_bio_handshake", "test_non_blocking_handshake"},
    "TestPostHandshakeAuth": {"test_pha_required"},
    "TestSSLDebug": set(),
}

pytestmark = pytest.mark.filterwarnings("default")


class Inserted(ModuleType):
    """Our module, with the private names of the standard one, which the tests use."""

    def __init__(self, ours: ModuleType, standard: ModuleType) -> None:
        super().__init__(standard.__name__)
        self.__dict__.update(vars(standard))
        self.__dict__.update({k: v for k, v in vars(ours).items() if not k.startswith("__")})


SSL = Inserted(pyfiber.ssl, standard_ssl)
SOCKET = Inserted(pyfiber.socket, standard_socket)


def _read_until_reset(handler: Any) -> bytes:
    """A server reads; from Python 3.13 on it goes on itself after a client that has not waited."""
    try:
        read: bytes = _read(handler)
    except ConnectionError:
        return b""
    return read


_read = theirs.ThreadedEchoServer.ConnectionHandler.read


class InFiber:
    def _callTestMethod(self, method: Callable[[], Any]) -> None:
        pyfiber.run(method)

    @pytest.fixture(autouse=True)
    def _insert_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(theirs, "ssl", SSL)
        monkeypatch.setattr(theirs, "socket", SOCKET)
        handler = theirs.ThreadedEchoServer.ConnectionHandler
        monkeypatch.setattr(handler, "read", _read_until_reset)


def setup_module() -> None:
    theirs.setUpModule()


def teardown_module() -> None:
    unittest.doModuleCleanups()


def _take_over(name: str) -> None:
    case = getattr(theirs, name)
    left_out = {
        test: pytest.mark.skip(reason=reason)(getattr(case, test))
        for test, reason in LEFT_OUT.items()
        if hasattr(case, test)
    }
    slow = {
        test: pytest.mark.slow(getattr(case, test))
        for test in dir(case)
        if name in SLOW and test.startswith("test") and test not in SLOW[name]
    }
    globals()["Test" + name] = type(
        "Test" + name, (InFiber, case), {"__module__": __name__, **slow, **left_out}
    )


for _name, _case in list(vars(theirs).items()):
    if isinstance(_case, type) and issubclass(_case, theirs.unittest.TestCase):
        _take_over(_name)


def test_their_connections_are_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would say nothing."""
    made: list[bool] = []
    start = pyfiber.ssl.SSLSocket._start

    def counted(sock: pyfiber.ssl.SSLSocket) -> None:
        made.append(pyfiber._engine._may_park())
        start(sock)

    monkeypatch.setattr(pyfiber.ssl.SSLSocket, "_start", counted)
    monkeypatch.setattr(theirs, "ssl", SSL)
    monkeypatch.setattr(theirs, "socket", SOCKET)
    globals()["TestThreadedTests"]("test_recv_send").debug()
    assert set(made) == {True, False}
