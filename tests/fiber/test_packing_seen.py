"""Whoever looks at a fiber finds it, even while its stack is another fiber's."""

from __future__ import annotations

import gc
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from pyfiber import Fiber, current, park, spawn, yield_now
from pyfiber.debug import trim_stacks
from tests.fiber.sharing import counted, deep, needs_packing, running

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


def test_packed_fiber_is_seen_after_the_memory_of_its_slot_has_gone_back() -> None:
    """Whoever was in the slot last has ended."""

    def work(i: int) -> int:
        park()
        return i

    def main() -> None:
        fibers = [spawn(work, i) for i in range(12)]
        yield_now()
        for fiber in fibers[:6]:
            fiber.unpark()
            fiber.join()
        assert counted("packed") >= 6
        trim_stacks()
        gc.collect()
        for i in range(6, 12):
            if i % 4 < 2:
                frame = fibers[i].frame
                assert frame is not None
                assert frame.f_locals == {"i": i}
            else:
                assert "in work" in "".join(fibers[i].stack().format())
            fibers[i].unpark()
            assert fibers[i].result() == i

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


def waiting(count: int, function: Callable[..., Any]) -> list[Fiber[Any]]:
    """Fibers in function(i), nearly all packed."""
    before = counted("packed")
    fibers = [spawn(function, i) for i in range(count)]
    yield_now()
    assert counted("packed") - before >= count - 3
    return fibers


def names_of(frame: FrameType | None) -> list[str]:
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def test_frames_refer_to_their_callers_wherever_they_are() -> None:
    """Also if the fiber is packed, comes home and is packed again while somebody holds them."""

    def inner(i: int) -> None:
        own = sys._getframe()
        for lap in range(3):
            number = i * 100 + lap
            park()
            assert own.f_locals["number"] == number
            assert own is sys._getframe()

    def outer(i: int) -> None:
        inner(i)

    def main() -> None:
        fibers = waiting(12, outer)
        frames = [fiber.frame for fiber in fibers]
        for lap in range(3):
            for i, frame in enumerate(frames):
                assert frame is not None
                assert names_of(frame)[:2] == ["inner", "outer"]
                assert frame.f_back is not None
                assert frame.f_back.f_locals["i"] == i
                assert frame.f_locals["number"] == i * 100 + lap
                assert traceback.extract_stack(frame)[-1].name == "inner"
            assert [fiber.frame for fiber in fibers] == frames
            gc.collect()
            for fiber in fibers:
                fiber.unpark()
            yield_now()
            yield_now()
        for fiber in fibers:
            fiber.result()
        assert [names_of(frame) for frame in frames] == [["inner", "outer"]] * 12

    running(main)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="f_locals is a snapshot")
def test_variables_of_packed_fibers_can_be_written() -> None:
    def work(i: int) -> list[int]:
        mine = i
        park()
        first = mine
        park()
        return [first, mine]

    def main() -> None:
        fibers = waiting(12, work)
        for lap in (100, 200):
            for i, fiber in enumerate(fibers):
                frame = fiber.frame
                assert frame is not None
                frame.f_locals["mine"] = lap + i
                fiber.unpark()
            yield_now()
            yield_now()
        assert [fiber.result() for fiber in fibers] == [[100 + i, 200 + i] for i in range(12)]

    running(main)


def test_frames_outlive_their_packed_fibers() -> None:
    """What is left in them is what would be with a stack for each fiber."""

    def work(i: int, wait: Callable[[], Any]) -> None:
        mine = str(i)
        wait()
        assert mine

    def main() -> list[Any]:
        fibers = [spawn(work, i, park) for i in range(12)]
        yield_now()
        frames = [fiber.frame for fiber in fibers]
        for fiber in fibers[:6]:
            fiber.cancel()
        for fiber in fibers[6:]:
            fiber.unpark()
        yield_now()
        yield_now()
        assert all(fiber.done() for fiber in fibers)

        raw: list[Fiber[Any]] = [Fiber(work, (i, current().switch)) for i in range(12)]
        for each in raw:
            each.switch()
        frames += [each.frame for each in raw]
        raw.clear()
        del each
        return [(frame.f_lineno, [*frame.f_locals], names_of(frame)) for frame in frames if frame]

    found = running(main)
    assert len(found) == 24
    assert found == running(main, slots=0)


def test_frame_of_a_packed_fiber_cannot_be_cleared() -> None:
    def main() -> None:
        fibers = waiting(8, lambda i: deep(1, park))
        for fiber in fibers:
            frame = fiber.frame
            assert frame is not None
            with pytest.raises(RuntimeError, match="executing"):
                frame.clear()
            fiber.unpark(3)
        assert [fiber.result() for fiber in fibers] == [3] * 8

    running(main)


def test_generators_lead_to_the_frames_that_run_them() -> None:
    """Generators within generators, each of which refers to the next frame on the stack."""

    def numbers(i: int) -> Iterator[int]:
        for lap in range(3):
            park()
            yield i * 10 + lap

    def middle(numbers: Iterator[int]) -> Iterator[int]:
        yield from numbers

    async def waits(numbers: Iterator[int]) -> list[int]:
        return [*middle(numbers)]

    def work(i: int) -> list[int]:
        inner = numbers(i)
        generators.append(inner)
        coroutine = waits(inner)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            got: list[int] = stop.value
        return got

    generators: list[Any] = []

    def main() -> None:
        fibers = waiting(12, work)
        for _ in range(3):
            for inner in generators:
                assert inner.gi_running
                found = names_of(inner.gi_frame)
                assert found[:4] == ["numbers", "middle", "waits", "work"]
                assert inner.gi_frame.f_back.f_locals["numbers"] is inner
                with pytest.raises(ValueError, match="already executing"):
                    next(inner)
            gc.collect()
            for fiber in fibers:
                fiber.unpark()
            yield_now()
            yield_now()
        assert [fiber.result() for fiber in fibers] == [
            [i * 10 + lap for lap in range(3)] for i in range(12)
        ]

    running(main)


def test_collector_finds_frames_of_packed_fibers() -> None:
    def work(i: int) -> int:
        thing = [i]
        frames.append(sys._getframe())
        things.append(thing)
        park()
        return thing[0]

    frames: list[FrameType] = []
    things: list[list[int]] = []

    def main() -> None:
        fibers = waiting(12, work)
        for thing in gc.get_objects():
            gc.get_referents(thing)
        for frame, thing in zip(frames, things, strict=True):
            assert any(found is frames for found in gc.get_referrers(frame))
            assert any(found is things for found in gc.get_referrers(thing))
            assert isinstance(gc.get_referents(frame), list)
        gc.collect()
        for fiber in fibers:
            fiber.unpark()
        assert [fiber.result() for fiber in fibers] == [*range(12)]
        frames.clear()

    running(main)
