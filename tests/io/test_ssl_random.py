"""Random programs over TLS: whatever is timed out, cancelled and tried again, the bytes match."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from pyfiber import Cancelled, run, sleep, spawn, ssl, yield_now
from tests.io.certificates import needs_certificates
from tests.io.tls_pairs import VERSIONS, client_context, wrapped

pytestmark = needs_certificates

#: The last that each end sends.
LAST = bytes(range(100, 120))

SIZES = [1, 10, 1000, 16383, 16384, 16385, 70_000, 300_000]


class End:
    """One end of the connection: what it has sent so far, and what it has got."""

    def __init__(self, sock: Any, seed: int) -> None:
        self.sock = sock
        self.random = random.Random(seed)
        self.sent = bytearray()
        self.got = bytearray()
        self.unsent = b""  # told not to have gone

    def next_data(self) -> bytes:
        size = self.random.choice(SIZES) * self.random.randint(1, 3)
        return self.unsent or self.random.randbytes(size)

    def write(self) -> None:
        """One write, which may be ended."""
        data = self.next_data()
        if self.random.random() < 0.3:
            self._send(data)
        else:
            self._sendall(data)

    def _send(self, data: bytes) -> None:
        self.unsent = data
        count = self.sock.send(data)
        self.sent += data[:count]
        self.unsent = data[count:]

    def _sendall(self, data: bytes) -> None:
        self.unsent = data
        try:
            self.sock.sendall(data)
        except (TimeoutError, Cancelled) as exc:
            gone = exc.sent  # type: ignore[union-attr]
            self.sent += data[:gone]
            self.unsent = data[gone:]
            raise
        self.sent += data
        self.unsent = b""

    def read(self) -> bool:
        """One read, which may be ended.  False: that was the last."""
        size = self.random.choice(SIZES)
        if self.random.random() < 0.3:
            buffer = bytearray(size)
            data = bytes(buffer[: self.sock.recv_into(buffer)])
        else:
            data = self.sock.recv(size)
        assert data
        self.got += data
        return not self.got.endswith(LAST)

    def keep_on(self, act: Any, times: int) -> None:
        """Do it so often, ended now and then; a read also stops at the end."""
        for _ in range(times):
            self.sock.settimeout(self.random.choice([None, None, 0.0005, 0.005]))
            fiber = spawn(act)
            if self.random.random() < 0.3:
                for _ in range(self.random.randint(0, 5)):
                    yield_now()
                fiber.cancel()
            fiber.join()
            if fiber.cancelled() or isinstance(fiber.exception(), TimeoutError):
                sleep(0.0001)
            elif fiber.result() is False:
                return

    def write_all(self) -> None:
        self.keep_on(self.write, 12)
        self._write_rest()
        self.unsent = LAST
        self._write_rest()

    def _write_rest(self) -> None:
        while self.unsent:
            with contextlib.suppress(TimeoutError):
                self.write()

    def read_to_end(self) -> None:
        self.keep_on(self.read, 100_000)


def exchange(seed: int, version: ssl.TLSVersion) -> None:
    sockets = wrapped(client_context(version))
    ends = [End(sock, seed * 2 + i) for i, sock in enumerate(sockets)]
    readers = [spawn(end.read_to_end) for end in ends]
    writers = [spawn(end.write_all) for end in ends]
    for fiber in [*writers, *readers]:
        fiber.result()
    assert ends[0].got == ends[1].sent
    assert ends[1].got == ends[0].sent
    for end in ends:
        end.sock.settimeout(None)
    for fiber in [spawn(end.sock.unwrap) for end in ends]:
        fiber.result()
    for end in ends:
        end.sock.close()


@pytest.mark.parametrize("version", VERSIONS, ids=["1.2", "1.3"])
@pytest.mark.parametrize("seed", range(8))
def test_bytes_match_whatever_is_ended(seed: int, version: ssl.TLSVersion) -> None:
    run(exchange, seed, version)
