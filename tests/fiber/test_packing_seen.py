"""Whoever looks at a fiber finds it, even while its stack is another fiber's."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

from pyfiber import park, spawn, yield_now
from tests.fiber.sharing import deep, needs_packing, running

pytestmark = needs_packing


def test_traceback_of_a_packed_fiber_is_whole() -> None:
    def inner() -> None:
        park()
        raise ValueError

    def outer() -> None:
        inner()

    def main() -> list[list[str]]:
        fibers = [spawn(outer) for _ in range(10)]
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

    assert all(names[-2:] == ["outer", "inner"] for names in running(main))


def test_frame_of_a_packed_fiber_can_be_looked_at() -> None:
    def work(i: int) -> None:
        mine = i * 10
        park()
        assert mine == i * 10

    def main() -> None:
        fibers = [spawn(work, i) for i in range(20)]
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

    running(main)


def test_reports_show_packed_fibers() -> None:
    def work() -> None:
        deep(2, park)

    def main() -> list[str]:
        fibers = [spawn(work) for _ in range(10)]
        yield_now()
        texts = ["".join(fiber.stack().format()) for fiber in fibers]
        for fiber in fibers:
            fiber.unpark()
        return texts

    for text in running(main):
        assert text.count("in deep") == 3
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
        gc.collect()
        assert all(thing() is not None for thing in things)
        for fiber in fibers:
            fiber.unpark()
        for fiber in fibers:
            fiber.result()
        gc.collect()
        assert all(thing() is None for thing in things)
        things.clear()

    running(main)


def test_another_thread_looks_at_packed_fibers() -> None:
    def main() -> list[str]:
        fibers = [spawn(deep, 1, park) for _ in range(10)]
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

    texts = running(main)
    assert len(texts) == 10
    assert all("in deep" in text for text in texts)


def test_generators_that_a_fiber_runs_move_with_it() -> None:
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

    running(main)
