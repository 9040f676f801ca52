"""gRPC, whose calls wait in its own core where nothing parks: in threads, or by its futures."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pyfiber
from pyfiber import to_thread
from pyfiber.threads import ThreadLimiter
from tests.libraries import web
from tests.libraries.acts import ACTS, need, play
from tests.libraries.clients import Client

#: Calls at once: the server has a thread for each.
MOST = 50

Way = Callable[[Any, bytes], bytes]


class Grpc:
    """One channel, which many calls share."""

    most = MOST

    def __init__(self, method: Any, way: Way, gate: web.Gate) -> None:
        self._method = method
        self._way = way
        self._gate = gate

    def ask(self, number: int) -> int:
        return int(self._way(self._method, b"%d" % number))

    def wait(self) -> None:
        assert self._way(self._method, b"wait") == b"wait"

    def waiting(self) -> int:
        return self._gate.waiting

    def release(self) -> None:
        self._gate.open()


def _by_future(method: Any, message: bytes) -> bytes:
    """What result() waits for is a condition of threading's, and that parks."""
    call = method.future(message)
    try:
        return call.result()  # type: ignore[no-any-return]
    finally:
        call.cancel()


@contextlib.contextmanager
def grpc(way: Way) -> Iterator[Client]:
    import grpc as library

    gate = web.Gate()

    def answer(message: bytes, context: object) -> bytes:
        if message == b"wait":
            gate.pass_through()
        return message

    handler = library.unary_unary_rpc_method_handler(answer)
    with ThreadPoolExecutor(2 * MOST) as threads:
        server = library.server(threads)
        server.add_generic_rpc_handlers(
            (library.method_handlers_generic_handler("Echo", {"Say": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        with library.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield Grpc(channel.unary_unary("/Echo/Say"), way, gate)
        gate.open()
        to_thread(server.stop(0).wait)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_grpc_calls_in_threads_that(act: Callable[[Client], None]) -> None:
    need("grpc")
    limiter = ThreadLimiter(2 * MOST, abandon_on_cancel=True)
    play(lambda: grpc(limiter.to_thread), act)


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_grpc_futures_that(act: Callable[[Client], None]) -> None:
    need("grpc")
    with pyfiber.patch():
        play(lambda: grpc(_by_future), act)
