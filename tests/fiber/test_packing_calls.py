"""C functions that call back, and what they have on the stack while the callback waits."""

from __future__ import annotations

import ctypes
import sqlite3
import sys
from typing import Any

import pytest

from pyfiber import spawn, yield_now
from tests.fiber.sharing import needs_packing, running

pytestmark = needs_packing


def test_interpreters_c_functions_that_call_back_go_on() -> None:
    """A sort, a dictionary that compares keys, map: other C code of the interpreter than a call."""

    class Key:
        def __init__(self, number: int) -> None:
            self.number = number

        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            yield_now()
            return isinstance(other, Key) and other.number == self.number

        def __lt__(self, other: Key) -> bool:
            yield_now()
            return self.number < other.number

    def wait(number: int) -> int:
        yield_now()
        return -number

    def work(i: int) -> None:
        keys = [Key(n * 7 % 5) for n in range(5)]
        assert [key.number for key in sorted(keys)] == [0, 1, 2, 3, 4]
        assert len(dict.fromkeys(keys)) == 5
        assert list(map(wait, range(5))) == [0, -1, -2, -3, -4]
        assert sorted(range(5), key=wait) == [4, 3, 2, 1, 0]

    def main() -> None:
        fibers = [spawn(work, i) for i in range(8)]
        for fiber in fibers:
            fiber.result()

    running(main)


@pytest.mark.skipif(sys.platform == "win32", reason="qsort of the C library")
def test_library_functions_that_call_back_go_on() -> None:
    library = ctypes.CDLL(None)
    number = ctypes.POINTER(ctypes.c_int)
    compare_type = ctypes.CFUNCTYPE(ctypes.c_int, number, number)

    def compare(a: Any, b: Any) -> int:
        yield_now()
        return int(a[0] - b[0])

    def work(i: int) -> list[int]:
        numbers = (ctypes.c_int * 6)(5, 3, 1, 4, 2, 0)
        library.qsort(numbers, 6, 4, compare_type(compare))
        return list(numbers)

    def main() -> None:
        fibers = [spawn(work, i) for i in range(8)]
        assert [fiber.result() for fiber in fibers] == [[0, 1, 2, 3, 4, 5]] * 8

    running(main)


def test_databases_handler_of_progress_may_wait() -> None:
    def work(i: int) -> int:
        connection = sqlite3.connect(":memory:")
        calls = 0

        def progress() -> int:
            nonlocal calls
            calls += 1
            yield_now()
            return 0

        connection.set_progress_handler(progress, 10)
        row = connection.execute(
            "with recursive n(i) as (select ? union all select i + 1 from n where i < 50) "
            "select sum(i) from n",
            (i,),
        ).fetchone()
        connection.close()
        assert calls > 10
        return int(row[0])

    def main() -> None:
        fibers = [spawn(work, i) for i in range(8)]
        assert [fiber.result() for fiber in fibers] == [sum(range(i, 51)) for i in range(8)]

    running(main)


def test_databases_functions_that_call_back_go_on() -> None:
    def wait(number: int) -> int:
        yield_now()
        return number * 2

    def work(i: int) -> int:
        connection = sqlite3.connect(":memory:")
        connection.create_function("wait", 1, wait)
        row = connection.execute("select wait(1) + wait(2) + wait(?)", (i,)).fetchone()
        connection.close()
        return int(row[0])

    def main() -> None:
        fibers = [spawn(work, i) for i in range(8)]
        assert [fiber.result() for fiber in fibers] == [6 + 2 * i for i in range(8)]

    running(main)


def test_buffered_reader_keeps_its_variable() -> None:
    """The interpreter's BufferedReader lets a memoryview point to its stack while it reads."""
    import io

    class Raw(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, view: Any) -> int:
            for _ in range(3):
                yield_now()
            shape = view.shape
            view[: len(b"line\n")] = b"line\n"
            assert shape == (len(view),)
            return len(b"line\n")

    def main() -> None:
        fibers = [spawn(lambda: io.BufferedReader(Raw()).readline()) for _ in range(10)]
        assert [fiber.result() for fiber in fibers] == [b"line\n"] * 10

    running(main)
