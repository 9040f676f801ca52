"""Fibers that wait without a stack of their own: each must go on as if it had never lost it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import queue as queue_module
import random
import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pyfiber
import pyfiber.socket
from pyfiber import Scheduler, TaskGroup, current, park, sleep, spawn, yield_now
from tests.support.subprocesses import run_python

pytestmark = pytest.mark.skipif(
    pyfiber.info()["slots_refused"] is not None, reason="stacks cannot be packed in this build"
)


def running(main: Callable[[], Any], slots: int = 2) -> Any:
    """main() in a run whose fibers share so few stacks that nearly every switch moves one."""
    with contextlib.closing(Scheduler(slots=slots)) as scheduler:
        return scheduler.run(main)


def counted(name: str) -> int:
    return sum(stats[name] for stats in pyfiber.stack_stats())


def deep(depth: int, wait: Callable[[], Any]) -> Any:
    """wait() under so many calls, each of which checks its own variables afterwards."""
    mine = [depth, str(depth)]
    got = wait() if depth == 0 else deep(depth - 1, wait)
    assert mine == [depth, str(depth)]
    return got


def packs(wait: Callable[[], Any], wake: Callable[[], Any], count: int = 12) -> list[Any]:
    """What `count` fibers got from wait() after wake(); some were packed meanwhile."""
    seen = 0

    def main() -> list[Any]:
        nonlocal seen
        fibers = [spawn(deep, i % 4, wait) for i in range(count)]
        for _ in range(3):
            yield_now()
        seen = counted("packed")
        wake()
        return [fiber.result() for fiber in fibers]

    # A stack whose shape is not known stays; shapes are learned as fibers are left, and more
    # rarely where that was in vain.
    for _ in range(200):
        got = running(main)
        if seen > 0:
            return got
    raise AssertionError("none was ever packed")


# ------------------------------------------------------------------ every wait


def test_fibers_in_park_get_their_values() -> None:
    waiting: list[pyfiber.Fiber[Any]] = []

    def wait() -> Any:
        waiting.append(current())
        return park()

    def wake() -> None:
        for fiber in waiting:
            fiber.unpark(fiber)
        waiting.clear()

    got = packs(wait, wake)
    assert len(set(map(id, got))) == 12


def test_fibers_that_sleep_wake_in_order() -> None:
    woken: list[float] = []
    left = iter(range(1000))

    def wait() -> None:
        seconds = (next(left) * 7 % 12) / 1000
        sleep(seconds + 0.001)
        woken.append(seconds)

    packs(wait, woken.clear)
    assert woken == sorted(woken)


def test_queue_hands_each_fiber_one_item() -> None:
    queue: pyfiber.Queue[int] = pyfiber.Queue()
    assert sorted(packs(queue.get, lambda: [queue.put(i) for i in range(12)])) == list(range(12))


def test_putters_of_a_full_queue_put_once() -> None:
    queue: pyfiber.Queue[int] = pyfiber.Queue(1)
    got: list[int] = []

    def wake() -> None:
        got[:] = [queue.get() for _ in range(13)]

    running(lambda: None)
    left = iter(range(10_000))

    def main_put() -> None:
        queue.put(next(left))

    def begin() -> None:
        queue.put(-1)

    begin()
    packed = 0

    def main() -> None:
        nonlocal packed
        fibers = [spawn(deep, i % 3, main_put) for i in range(12)]
        yield_now()
        yield_now()
        packed = counted("packed")
        wake()
        for fiber in fibers:
            fiber.result()

    running(main)
    begin()
    running(main)
    assert packed > 0
    assert got[0] == -1
    assert sorted(got[1:]) == list(range(12, 24))


def test_lock_goes_to_each_in_turn() -> None:
    lock = pyfiber.Lock()
    inside = 0
    order: list[int] = []

    def wait() -> None:
        nonlocal inside
        with lock:
            inside += 1
            assert inside == 1
            yield_now()
            order.append(1)
            inside -= 1

    packs(wait, lambda: None)
    assert len(order) % 12 == 0


@pytest.mark.parametrize("kind", ["Event", "Condition", "Semaphore"])
def test_primitive_wakes_all(kind: str) -> None:
    if kind == "Event":
        event = pyfiber.Event()

        def wake() -> None:
            event.set()
            yield_now()
            event.clear()

        assert packs(event.wait, wake) == [True] * 12
    elif kind == "Condition":
        condition = pyfiber.Condition()

        def wait() -> bool:
            with condition:
                return condition.wait()

        def tell() -> None:
            with condition:
                condition.notify_all()

        assert packs(wait, tell) == [True] * 12
    else:
        semaphore = pyfiber.Semaphore(0)
        got = packs(semaphore.acquire, lambda: [semaphore.release() for _ in range(12)])
        assert got == [True] * 12


def test_channel_passes_each_item_on() -> None:
    channel: pyfiber.Channel[int] = pyfiber.Channel()

    def wake() -> None:
        for i in range(12):
            channel.send(i)

    assert sorted(packs(channel.receive, wake)) == list(range(12))


@pytest.mark.parametrize("cases", [1, 3, 20])
def test_select_gets_from_one(cases: int) -> None:
    """Few places in queues lie on the stack, many do not."""
    queues: list[pyfiber.Queue[int]] = [pyfiber.Queue() for _ in range(cases)]

    def wake() -> None:
        for i in range(12):
            queues[i % cases].put(i)

    got = packs(lambda: pyfiber.select(*[queue.getting() for queue in queues]), wake)
    assert sorted(one.item for one in got) == list(range(12))


def test_fiber_that_stands_in_one_queue_twice_moves() -> None:
    """Its places point to each other: the second was left behind on the stack."""
    queue: pyfiber.Queue[int] = pyfiber.Queue()

    def wake() -> None:
        for i in range(12):
            queue.put(i)

    got = packs(lambda: pyfiber.select(queue.getting(), queue.getting(), queue.getting()), wake)
    assert sorted(one.item for one in got) == list(range(12))


def test_fibers_that_join_get_the_result() -> None:
    others: list[pyfiber.Fiber[Any]] = []

    def wait() -> Any:
        other = spawn(park)
        others.append(other)
        return other.result()

    def wake() -> None:
        for i, other in enumerate(others):
            other.unpark(i)
        others.clear()

    assert sorted(packs(wait, wake)) == list(range(12))


@pytest.mark.skipif(sys.platform == "win32", reason="pairs of sockets")
def test_sockets_receive_what_is_for_them() -> None:
    pairs: list[tuple[Any, Any]] = []

    def wait() -> bytes:
        ours, theirs = pyfiber.socket.socketpair()
        with ours, theirs:
            pairs.append((theirs, len(pairs)))
            return bytes(ours.recv(10))

    def wake() -> None:
        for theirs, number in pairs:
            theirs.sendall(b"%d" % number)
        pairs.clear()

    assert sorted(packs(wait, wake), key=int) == [b"%d" % i for i in range(12)]


def test_clock_under_test_moves_packed_fibers() -> None:
    done = run_python(
        "-c",
        """if True:
        from pyfiber import sleep, spawn
        from pyfiber.testing import VirtualClock, run

        clock = VirtualClock()
        done = []

        def main():
            for i in range(20):
                spawn(lambda i=i: (sleep(i + 1), done.append(i)))
                spawn(lambda i=i: clock.advance(0.5))
            sleep(30)

        for _ in range(3):
            done.clear()
            run(main, clock=clock)
        print(done == list(range(20)))
        """,
        env={"PYFIBER_SLOTS": "2"},
    )
    assert (done.stdout, done.stderr) == ("True\n", "")


# ------------------------------------------------------------- what goes on with it


def test_cancelled_fibers_unwind() -> None:
    ended: list[int] = []

    def work(i: int) -> None:
        try:
            deep(i % 3, park)
        finally:
            ended.append(i)

    def main() -> None:
        with TaskGroup() as group:
            for i in range(20):
                group.spawn(work, i)
            yield_now()
            yield_now()
            group.cancel()

    for _ in range(3):
        ended.clear()
        running(main)
    assert sorted(ended) == list(range(20))


def test_end_of_a_run_unwinds_packed_daemons() -> None:
    ended: list[int] = []

    def work(i: int) -> None:
        try:
            deep(i % 3, park)
        finally:
            ended.append(i)

    def main() -> int:
        for i in range(20):
            pyfiber.Fiber(work, (i,), daemon=True).start()
        yield_now()
        yield_now()
        return counted("packed")

    packed = [running(main) for _ in range(50)]
    assert max(packed) > 0
    assert sorted(ended) == sorted(list(range(20)) * 50)


def test_timeouts_end_the_waits_of_packed_fibers() -> None:
    queue: pyfiber.Queue[int] = pyfiber.Queue()

    def wait() -> str:
        try:
            queue.get(timeout=0.005)
        except queue_module.Empty:
            return "late"
        return "in time"

    def main() -> list[str]:
        fibers = [spawn(deep, i % 3, wait) for i in range(20)]
        return [fiber.result() for fiber in fibers]

    for _ in range(3):
        assert running(main) == ["late"] * 20
    assert queue.empty()


def test_context_variables_stay_with_their_fiber() -> None:
    import contextvars

    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable")

    def work(i: int) -> bool:
        variable.set(i)
        for _ in range(5):
            yield_now()
        return variable.get() == i

    def main() -> bool:
        fibers = [spawn(work, i) for i in range(20)]
        return all(fiber.result() for fiber in fibers)

    assert all(running(main) for _ in range(3))


def test_handled_exception_is_still_being_handled() -> None:
    def work(i: int) -> None:
        try:
            raise KeyError(i)
        except KeyError:
            for _ in range(4):
                yield_now()
            error = sys.exc_info()[1]
            assert error is not None
            assert error.args == (i,)
            with pytest.raises(KeyError, match=str(i)):
                raise

    def main() -> None:
        fibers = [spawn(work, i) for i in range(20)]
        for fiber in fibers:
            fiber.result()

    for _ in range(3):
        running(main)


def test_traceback_of_a_packed_fiber_is_whole() -> None:
    def inner() -> None:
        park()
        raise ValueError

    def outer() -> None:
        inner()

    def main() -> list[list[str]]:
        fibers = [spawn(outer) for _ in range(10)]
        yield_now()
        yield_now()
        names = []
        for fiber in fibers:
            fiber.unpark()
            error = fiber.exception()
            assert error is not None
            tb, found = error.__traceback__, []
            while tb is not None:
                found.append(tb.tb_frame.f_code.co_name)
                tb = tb.tb_next
            names.append(found)
        return names

    for _ in range(3):
        assert all(names[-2:] == ["outer", "inner"] for names in running(main))


def test_frame_of_a_packed_fiber_can_be_looked_at() -> None:
    def work(i: int) -> None:
        mine = i * 10
        park()
        assert mine == i * 10

    def main() -> None:
        fibers = [spawn(work, i) for i in range(20)]
        yield_now()
        yield_now()
        frames = [fiber.frame for fiber in fibers]
        for i, frame in enumerate(frames):
            assert frame is not None
            assert frame.f_code.co_name == "work"
            assert frame.f_locals["mine"] == i * 10
        for fiber in fibers:  # while somebody holds the frames
            fiber.unpark()
        for fiber in fibers:
            fiber.result()
        assert all(frame is not None and frame.f_locals["i"] == i for i, frame in enumerate(frames))

    for _ in range(3):
        running(main)


def test_reports_show_packed_fibers() -> None:
    def work() -> None:
        deep(2, park)

    def main() -> list[str]:
        fibers = [spawn(work) for _ in range(10)]
        yield_now()
        yield_now()
        texts = ["".join(fiber.stack().format()) for fiber in fibers]
        for fiber in fibers:
            fiber.unpark()
        return texts

    for _ in range(3):
        for text in running(main):
            assert text.count("in deep") + text.count("[Previous line") >= 1
            assert "in work" in text


def test_objects_of_packed_fibers_live_as_long_as_they_run() -> None:
    class Thing:
        pass

    things: list[weakref.ref[Thing]] = []

    def work() -> None:
        thing = Thing()
        things.append(weakref.ref(thing))
        park()
        del thing

    def main() -> None:
        fibers = [spawn(work) for _ in range(20)]
        yield_now()
        yield_now()
        gc.collect()
        assert all(thing() is not None for thing in things)
        for fiber in fibers:
            fiber.unpark()
        for fiber in fibers:
            fiber.result()
        gc.collect()
        assert all(thing() is None for thing in things)
        things.clear()

    for _ in range(3):
        running(main)


def test_another_thread_looks_at_packed_fibers() -> None:
    def main() -> list[str]:
        fibers = [spawn(deep, 1, park) for _ in range(10)]
        yield_now()
        yield_now()
        found: list[str] = []

        def look() -> None:
            found.extend("".join(fiber.stack().format()) for fiber in fibers)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        for fiber in fibers:
            fiber.unpark()
        return found

    for _ in range(3):
        assert all("in deep" in text for text in running(main))


# ----------------------------------------------------------- what must stay


def stays(main_of: Callable[[], Any]) -> None:
    for _ in range(4):
        running(main_of)


def test_generators_that_a_fiber_runs_stay_with_it() -> None:
    def numbers() -> Iterator[int]:
        for i in range(5):
            yield_now()
            yield i

    def work(i: int) -> int:
        total = 0
        for number in numbers():
            total += number * i
            yield_now()
        return total

    def main() -> None:
        fibers = [spawn(work, i) for i in range(10)]
        assert [fiber.result() for fiber in fibers] == [10 * i for i in range(10)]

    stays(main)


def test_interpreters_c_functions_that_call_back_stay() -> None:
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

    stays(main)


@pytest.mark.skipif(sys.platform == "win32", reason="qsort of the C library")
def test_library_functions_that_call_back_stay() -> None:
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

    stays(main)


@pytest.mark.skipif(sys.platform == "win32", reason="nftw of the C library")
def test_variable_that_a_library_lends_to_its_callback_stays(tmp_path: Path) -> None:
    """nftw has the stat of a file on its stack; others write to it while the callback waits."""
    (tmp_path / "file").touch()
    library = ctypes.CDLL(None)
    regular_file, same_as_lstat = 0, 1
    lent: dict[int, Any] = {}

    def work(i: int) -> int:
        got = -1

        def visit(path: bytes, status: Any, kind: int, place: Any) -> int:
            nonlocal got
            if kind == regular_file:
                level = place[1]
                lent[i] = status
                park()
                got = status[0]
                assert place[1] == level == 1
            return 0

        longs, ints = ctypes.POINTER(ctypes.c_int64), ctypes.POINTER(ctypes.c_int)
        visits = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, longs, ctypes.c_int, ints)
        callback = visits(visit)
        assert library.nftw(bytes(tmp_path), callback, 8, same_as_lstat) == 0
        return got

    def main() -> None:
        fibers = [spawn(work, i) for i in range(8)]
        others = [spawn(deep, 1, park) for _ in range(8)]
        yield_now()
        yield_now()
        assert sorted(lent) == list(range(8))
        for i, status in lent.items():
            status[0] = 1000 + i
        for fiber in others:
            fiber.unpark()
            fiber.result()
        for fiber in fibers:
            fiber.unpark()
        assert [fiber.result() for fiber in fibers] == [1000 + i for i in range(8)]
        lent.clear()

    stays(main)


def test_databases_handler_of_progress_that_waits_stays() -> None:
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

    stays(main)


def test_databases_functions_that_call_back_stay() -> None:
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

    stays(main)


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

    stays(main)


# ------------------------------------------------------------------- numbers


def test_few_fibers_are_never_packed() -> None:
    def main() -> int:
        before = counted("packings")
        fibers = [spawn(park) for _ in range(100)]
        yield_now()
        for fiber in fibers:
            fiber.unpark()
            fiber.result()
        return counted("packings") - before

    assert running(main, slots=256) == 0


def test_fibers_that_take_turns_get_a_stack_each() -> None:
    def turns() -> None:
        for _ in range(10):
            yield_now()

    def main() -> int:
        fibers = [spawn(turns) for _ in range(300)]
        for _ in range(5):
            yield_now()
        before = counted("packings")
        for _ in range(4):
            yield_now()
        moved = counted("packings") - before
        for fiber in fibers:
            fiber.result()
        return moved

    running(main, slots=64)
    assert running(main, slots=64) == 0


def test_many_that_wait_share_the_slots() -> None:
    def main() -> tuple[int, int]:
        fibers = [spawn(deep, 1, park) for _ in range(2000)]
        yield_now()
        live, packed = counted("live"), counted("packed")
        for fiber in fibers:
            fiber.unpark(fiber)
        assert all(fiber.result() is fiber for fiber in fibers)
        return live, packed

    running(main, slots=48)  # learns; and those that end soon afterwards add slots
    live, packed = running(main, slots=64)
    assert live <= 80
    assert packed >= 1900


def test_idle_loop_takes_the_stacks_of_those_that_were_busy() -> None:
    """On the real clock: a second is what an idle loop waits for."""

    def wait_thrice() -> None:
        for _ in range(3):
            park()

    def main() -> tuple[int, int, int]:
        fibers = [spawn(wait_thrice) for _ in range(1000)]
        yield_now()
        for _ in range(2):
            for fiber in fibers:
                fiber.unpark()
            yield_now()
        busy = counted("live")
        waits = pyfiber.current_scheduler().stats()["waits"]
        ends = pyfiber.now() + 30
        while counted("live") > 64 and pyfiber.now() < ends:
            sleep(0.5)
        idle = counted("live")
        waits = pyfiber.current_scheduler().stats()["waits"] - waits
        for fiber in fibers:
            fiber.unpark()
            fiber.result()
        return busy, idle, waits

    busy, idle, waits = running(main, slots=64)
    assert busy > 900
    assert idle == 64
    assert waits < 80


def test_statistics_are_zero_after_all_have_ended() -> None:
    packs(lambda: sleep(0.001), lambda: None)
    assert counted("packed") == 0
    assert counted("packed_bytes") == 0
    assert counted("packings") == counted("unpackings")


def test_without_slots_nothing_is_packed() -> None:
    def main() -> int:
        before = counted("packings")
        fibers = [spawn(park) for _ in range(600)]
        yield_now()
        for fiber in fibers:
            fiber.unpark()
            fiber.result()
        return counted("packings") - before

    assert running(main, slots=0) == 0


@pytest.mark.parametrize("slots", [-1, 1])
def test_number_of_slots_that_makes_no_sense_is_refused(slots: int) -> None:
    with pytest.raises(ValueError, match="slots must be 0"):
        Scheduler(slots=slots)


def test_slots_must_be_a_number() -> None:
    with pytest.raises(TypeError):
        Scheduler(slots="many")  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["1", "-3", "many", "2x"])
def test_environment_that_makes_no_sense_is_refused(text: str) -> None:
    done = run_python("-c", "import pyfiber", env={"PYFIBER_SLOTS": text})
    assert done.returncode != 0
    assert "PYFIBER_SLOTS must be 0 or a number from 2 on" in done.stderr


def test_environment_sets_the_default() -> None:
    code = "import pyfiber; print(pyfiber.info()['slots'])"
    done = run_python("-c", code, env={"PYFIBER_SLOTS": "7"})
    assert done.stdout == "7\n"


# -------------------------------------------------------------------- at random


@pytest.mark.parametrize("slots", [2, 3, 17])
@given(seed=st.integers(0, 2**32))
@settings(max_examples=15, deadline=None)
def test_random_programs_do_the_same_with_few_stacks(slots: int, seed: int) -> None:
    """Who shares stacks and who has one of his own see the same order of everything."""

    def program() -> list[Any]:
        numbers = random.Random(seed)
        queue: pyfiber.Queue[int] = pyfiber.Queue(3)
        lock = pyfiber.Lock()
        log: list[Any] = []

        def act(name: int, depth: int) -> None:
            kind = numbers.randrange(6)
            log.append((name, depth, kind))
            if depth > 0 and kind < 2:
                act(name, depth - 1)
            elif kind == 2:
                with lock:
                    yield_now()
            elif kind == 3 and not queue.full():
                queue.put(name)
            elif kind == 4 and not queue.empty():
                log.append(queue.get())
            else:
                yield_now()

        def work(name: int) -> None:
            mine = [name]
            for _ in range(8):
                act(name, 4)
                assert mine == [name]

        def main() -> None:
            fibers = [spawn(work, name) for name in range(numbers.randrange(2, 20))]
            for fiber in fibers:
                fiber.result()

        running(main, slots)
        return log

    few = program()
    slots = 0
    assert program() == few


class Called:
    """wait() under calls that go their own ways through the interpreter: new shapes of stacks."""

    def __init__(self, ways: list[Callable[[Any], Any]], wait: Callable[[], Any]) -> None:
        self.ways, self.wait = ways, wait

    def __call__(self) -> None:
        if not self.ways:
            self.wait()
        else:
            self.ways[0](Called(self.ways[1:], self.wait))()


def test_fiber_that_teaches_a_shape_is_packed_before_it_was_read() -> None:
    """What it left was looked for on its stack, which was unmapped by then."""
    ways = [lambda f: f, partial, lambda f: f.__call__, lambda f: lambda: f()]
    rng = random.Random(1)
    walkers: list[pyfiber.Fiber[Any]] = []
    over = False

    def walk() -> None:
        walkers.append(current())
        while not over:
            Called(rng.choices(ways, k=rng.randrange(12) if rng.random() < 0.5 else 0), yield_now)()

    def look() -> None:
        for _ in range(400):
            for fiber in rng.sample(walkers, 5):
                assert fiber.frame is not None
            pyfiber.Fiber(int).switch()
            pyfiber.trim_stacks()
            yield_now()

    def main() -> None:
        nonlocal over
        fibers = [spawn(walk) for _ in range(30)]
        yield_now()
        spawn(look).join()
        over = True
        for fiber in fibers:
            fiber.result()

    running(main, 3)


# ------------------------------------------------------------------------- at exit


def test_fiber_freed_at_exit_is_not_looked_for_on_its_stack() -> None:
    """Then nothing is unwound any more: the stack stays in use, without its fiber."""
    program = """if True:
        import pyfiber

        class Last:
            def __del__(self, pyfiber=pyfiber):
                for _ in range(40):
                    pyfiber.Fiber(pyfiber.current().switch).switch()
                pyfiber.run(lambda: [pyfiber.spawn(pyfiber.sleep, 0) for _ in range(100)])
                print("done")

        pyfiber.run(int)
        last = Last()
    """
    done = run_python("-c", program, env={"PYFIBER_SLOTS": "2"})
    assert done.stdout == "done\n", done.stderr
