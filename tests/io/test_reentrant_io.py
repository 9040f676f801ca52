"""Sockets and streams, while buffers and what others return run code that uses them."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pyfiber import net, run
from tests.io.tls_pairs import receive, tls_pair


class Acting(bytes):
    """Bytes whose end reads from a stream."""

    stream: Any = None
    seen: bytes | None = None

    def __del__(self) -> None:
        if self.stream is not None:
            try:
                type(self).seen = self.stream.read(100_000)
            except RuntimeError as error:
                type(self).seen = str(error).encode()


class Source:
    """A socket that has received these parts."""

    def __init__(self, parts: list[bytes]) -> None:
        self.parts = parts

    def recv(self, size: int) -> bytes:
        return self.parts.pop(0) if self.parts else b""


def test_part_whose_end_reads_from_the_stream() -> None:
    """The buffer grows into a smaller object, and drops the part that it had."""
    part = Acting(b"x" * 99_990 + b"y" * 10)
    stream = net.Stream.__new__(net.Stream)
    part.stream = stream
    stream.socket = Source([part, b"z" * 5])  # type: ignore[assignment]
    del part
    assert stream.read_exactly(99_990) == b"x" * 99_990
    assert stream.read_exactly(15) == b"y" * 10 + b"z" * 5
    assert Acting.seen is not None
    assert b"only one may at a time" in Acting.seen


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no buffers made by Python code")
@pytest.mark.parametrize("how", ["send", "sendall", "write"])
@pytest.mark.parametrize("sizes", [(10, 30_000), (30_000, 10)])
def test_tls_takes_the_buffer_of_what_it_sends_once(how: str, sizes: tuple[int, int]) -> None:
    class Changing:
        def __buffer__(self, flags: int) -> memoryview:
            return memoryview(b"x" * left.pop(0))

    left = list(sizes)

    def main() -> None:
        with tls_pair() as (one, other):
            getattr(one, how)(Changing())
            assert receive(other, sizes[0]) == b"x" * sizes[0]

    run(main)
    assert left == [sizes[1]]
