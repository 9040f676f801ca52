"""C functions that call back, and what they have on the stack while the callback waits."""

from __future__ import annotations

import ctypes
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import pyfiber
from pyfiber import Fiber, FiberError, current, park, spawn, yield_now
from tests.fiber.sharing import counted, deep, in_a_fresh_thread, needs_packing, running
from tests.support.subprocesses import run_python

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


# ----------------------------------------------------- variables that are lent to others

needs_nftw = pytest.mark.skipif(sys.platform == "win32", reason="nftw of the C library")


def lending(path: Path, wait: Callable[[Any], Any]) -> None:
    """wait() in a callback; it gets a C variable that lies on the running fiber's stack."""

    def visit(name: bytes, status: Any, kind: int, place: Any) -> int:
        if kind == 0:  # a file, and not the directory
            level = place[1]
            wait(status)
            assert place[1] == level == 1
        return 0

    longs, ints = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int)
    visits = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, longs, ctypes.c_int, ints)
    assert ctypes.CDLL(None).nftw(bytes(path), visits(visit), 8, 1) == 0


@pytest.fixture
def one_file(tmp_path: Path) -> Path:
    (tmp_path / "file").touch()
    return tmp_path


@needs_nftw
def test_variable_that_a_fiber_with_its_own_stack_lends_stays(one_file: Path) -> None:
    """nftw has the stat of a file on its stack; others write to it while the callback waits."""
    lent: dict[int, Any] = {}

    def work(i: int) -> int:
        got = -1

        def wait(status: Any) -> None:
            nonlocal got
            lent[i] = status
            park()
            got = status[0]

        lending(one_file, wait)
        return got

    def main() -> list[int]:
        fibers = [Fiber(work, (i,), own_stack=True).start() for i in range(8)]
        others = [spawn(deep, 1, park) for _ in range(8)]
        yield_now()
        for i, status in lent.items():
            status[0] = 1000 + i
        for fiber in others + fibers:
            fiber.unpark()
        for fiber in others:
            fiber.result()
        return [fiber.result() for fiber in fibers]

    assert running(main) == [1000 + i for i in range(8)]


@needs_nftw
def test_variables_of_others_move_and_come_back(one_file: Path) -> None:
    """Nobody writes to them meanwhile."""

    def work(i: int) -> int:
        got = -1

        def wait(status: Any) -> None:
            nonlocal got
            before = [status[n] for n in range(12)]
            status[0] = i
            for _ in range(3):
                yield_now()
            got = status[0]
            assert [status[n] for n in range(1, 12)] == before[1:]

        lending(one_file, wait)
        return got

    def main() -> list[int]:
        fibers = [spawn(work, i) for i in range(10)]
        yield_now()
        assert counted("packed") >= 8
        return [fiber.result() for fiber in fibers]

    assert running(main) == list(range(10))


def call_back(wait: Callable[[], Any]) -> Any:
    """wait() with a C function between it and its caller."""
    return min([0], key=lambda _: wait())


def packed_of(wait: Callable[[], Any], *, own_stack: bool = False, slots: int = 16) -> int:
    """How many of 400 fibers in wait() are packed, so that the others need less memory."""

    def main() -> int:
        before = counted("packed")
        fibers = [Fiber(wait, own_stack=own_stack).start() for _ in range(400)]
        yield_now()
        packed = counted("packed") - before
        for fiber in fibers:
            fiber.unpark()
            fiber.result()
        return packed

    return int(in_a_fresh_thread(partial(running, main, slots)))


def test_fiber_that_lends_is_not_packed_to_save_memory() -> None:
    assert packed_of(park) >= 200
    assert packed_of(partial(call_back, park)) == 0


def test_fiber_that_lends_is_packed_where_slots_are_few() -> None:
    assert packed_of(partial(call_back, park), slots=2) >= 398


@pytest.mark.parametrize("slots", [2, 16])
def test_fiber_with_its_own_stack_is_never_packed(slots: int) -> None:
    assert packed_of(park, own_stack=True, slots=slots) == 0


# --------------------------------------------------------- numbers that look like addresses


def address_on_the_stack(path: Path) -> int:
    found: list[int] = []
    lending(path, lambda status: found.append(ctypes.addressof(status.contents)))
    return found[0]


@needs_nftw
def test_numbers_like_addresses_are_what_they_were(one_file: Path) -> None:
    """Arguments on the C stack that are equal to addresses of the stack, and of the fiber."""
    count = 40
    numbers = [ctypes.c_int64] * count
    sums = ctypes.CFUNCTYPE(ctypes.c_int64, *numbers)

    def work(i: int) -> bool:
        here, fiber = address_on_the_stack(one_file), id(current())
        wanted = [here + 8 * (n - count // 2) * 37 for n in range(count)]
        wanted[::2] = [fiber + 8 * (n - 10) for n in range(count // 2)]
        got: list[Any] = []

        def wait(*given: int) -> int:
            for _ in range(3):
                yield_now()
            got.extend(given)
            return given[i]

        answer = sums(wait)(*wanted)
        return got == wanted and answer == wanted[i]

    def main() -> bool:
        fibers = [spawn(work, i) for i in range(12)]
        yield_now()
        assert counted("packed") >= 10
        return all(fiber.result() for fiber in fibers)

    assert running(main)


@needs_nftw
def test_numbers_like_addresses_in_a_variable_of_c(one_file: Path) -> None:
    """A C struct on the stack has nothing but such numbers while the fiber is packed."""

    def work() -> bool:
        fine = False

        def wait(status: Any) -> None:
            nonlocal fine
            here = ctypes.addressof(status.contents)
            wanted = [here + 8 * n * 211 for n in range(-3, 4)]
            wanted += [id(current()) + n for n in range(-3, 3)]
            for n, number in enumerate(wanted):
                status[n] = number
            for _ in range(3):
                yield_now()
            fine = [status[n] for n in range(len(wanted))] == wanted
            fine = fine and ctypes.addressof(status.contents) == here

        lending(one_file, wait)
        return fine

    def main() -> bool:
        fibers = [spawn(work) for _ in range(12)]
        yield_now()
        assert counted("packed") >= 10
        return all(fiber.result() for fiber in fibers)

    assert running(main)


def test_times_like_addresses_are_waited_for() -> None:
    """A deadline in nanoseconds, and a number of seconds by its bits."""
    done = run_python(
        "-c",
        """if True:
        import struct
        from pyfiber import current, now, sleep, spawn
        from pyfiber.testing import VirtualClock, run

        woken = []

        def work(number):
            address = id(current()) + 4096 * (number - 5)
            tiny, = struct.unpack("d", struct.pack("q", address))
            sleep(tiny)
            seconds = address / 1e9 - now()
            sleep(seconds)
            assert abs(now() - address / 1e9) < 1e-6, (now(), address)
            woken.append(address)

        def main():
            fibers = [spawn(work, number) for number in range(12)]
            for fiber in fibers:
                fiber.join()
            print(len(woken), woken == sorted(woken))

        run(main, clock=VirtualClock())
        """,
        env={"PYFIBER_SLOTS": "2"},
    )
    assert (done.stdout, done.stderr) == ("12 True\n", "")


def test_callbacks_of_cffi_wait() -> None:
    cffi = pytest.importorskip("cffi")
    ffi = cffi.FFI()

    def work(i: int) -> bool:
        @ffi.callback("uint64_t(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,"  # type: ignore[untyped-decorator]
                      " uint64_t, uint64_t, uint64_t, double, double)")  # fmt: skip
        def wait(*given: Any) -> int:
            for _ in range(3):
                yield_now()
            return hash(given) & (2**63 - 1)

        mine = id(current())
        given = [mine + 8 * (n - 4) for n in range(9)] + [float(i), mine / 7]
        return bool(wait(*given) == hash(tuple(given)) & (2**63 - 1))

    def main() -> bool:
        fibers = [spawn(work, i) for i in range(12)]
        yield_now()
        assert counted("packed") >= 10
        return all(fiber.result() for fiber in fibers)

    assert running(main)


# -------------------------------------------------------------------------- own_stack=True


def test_own_stack_is_any_object_that_is_true() -> None:
    class Truth:
        def __init__(self, truth: bool) -> None:
            self.truth = truth

        def __bool__(self) -> bool:
            asked.append(self.truth)
            return self.truth

    class Failing:
        def __bool__(self) -> bool:
            raise ZeroDivisionError

    asked: list[bool] = []

    def main() -> list[int]:
        root, packed = current(), []
        for truth in (True, False):
            own: Any = Truth(truth)
            fibers: list[Fiber[Any]] = [Fiber(root.switch, own_stack=own) for _ in range(10)]
            before = counted("packed")
            for fiber in fibers:
                fiber.switch()
            packed.append(counted("packed") - before)
            for fiber in fibers:
                fiber.switch()
        return packed

    never, often = running(main)
    assert never == 0
    assert often >= 8
    assert asked == [True] * 10 + [False] * 10
    failing: Any = Failing()
    with pytest.raises(ZeroDivisionError):
        Fiber(int, own_stack=failing)


def test_own_stack_comes_too_late_for_a_fiber_that_has_been_started() -> None:
    fiber: Fiber[Any] = Fiber(current().switch)
    fiber.switch()
    with pytest.raises(FiberError, match="has been started: that comes too late"):
        fiber.__init__(int, own_stack=True)  # type: ignore[misc]
    fiber.switch()

    class StartsItself:
        def __bool__(self) -> bool:
            late.switch()
            return True

    late: Fiber[Any] = Fiber(current().switch)
    starts_itself: Any = StartsItself()
    with pytest.raises(FiberError, match="has been started: that comes too late"):
        late.__init__(int, own_stack=starts_itself)  # type: ignore[misc]
    assert late.switch("end") == "end"


@pytest.mark.parametrize("again", [{}, {"stack_size": 1345 << 10}, {"own_stack": False}])
def test_own_stack_stays_what_it_was_at_the_next_init(again: dict[str, Any]) -> None:
    def main() -> tuple[int, int]:
        fibers: list[Fiber[Any]] = [
            Fiber(int, own_stack=True, stack_size=1234 << 10) for _ in range(10)
        ]
        before = counted("packed")
        for fiber in fibers:
            fiber.__init__(current().switch, **again)  # type: ignore[misc]
            fiber.switch()
        size = again.get("stack_size", 1234 << 10)
        near = [
            stats["live"]
            for stats in pyfiber.debug.stack_stats()
            if size <= stats["stack_size"] <= size + (64 << 10)
        ]
        packed = counted("packed") - before
        for fiber in fibers:
            fiber.switch()
        return packed, sum(near)

    assert running(main) == (0, 10)


def test_stack_that_was_own_is_shared_after_its_fiber() -> None:
    """Its slot has one home again, and others may have theirs there."""

    def main() -> tuple[int, int]:
        root = current()
        for own_stack in (True, False):
            before = counted("packed")
            fibers: list[Fiber[Any]] = [Fiber(root.switch, own_stack=own_stack) for _ in range(20)]
            for fiber in fibers:
                fiber.switch()
            packed = counted("packed") - before
            for fiber in fibers:
                fiber.switch()
        own: Fiber[Any] = Fiber(root.switch, own_stack=True)
        own.switch()
        fibers = [Fiber(root.switch) for _ in range(20)]
        for fiber in fibers:
            fiber.switch()
        mine = counted("packed") - before
        own.switch()
        for fiber in fibers:
            fiber.switch()
        return packed, mine

    packed, mine = running(main)
    assert packed >= 17
    assert mine >= 17


def test_fiber_with_its_own_stack_ends_as_others_do() -> None:
    """Cancelled, dropped, thrown into, and in the collector."""

    def main() -> None:
        root = current()
        ended: list[int] = []

        def work(i: int, wait: Callable[[], Any]) -> None:
            try:
                deep(i % 3, wait)
            finally:
                ended.append(i)

        others: list[Fiber[Any]] = [Fiber(root.switch) for _ in range(10)]
        for other in others:
            other.switch()
        started = [Fiber(work, (i, park), own_stack=True).start() for i in range(3)]
        raw: list[Fiber[Any]] = [Fiber(work, (i, root.switch), own_stack=True) for i in range(3, 9)]
        yield_now()
        for fiber in raw:
            fiber.switch()
        for fiber in started:
            fiber.cancel()
        yield_now()
        for fiber in raw[:3]:
            with pytest.raises(KeyError):
                fiber.throw(KeyError)
        del fiber
        raw.clear()
        assert sorted(ended) == [*range(9)]
        for other in others:
            other.switch()

    running(main)
