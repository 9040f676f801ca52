"""Ordinary code on a fiber: looking at stacks, frames and locals; pdb on a suspended fiber."""

from __future__ import annotations

import faulthandler
import gc
import inspect
import io
import linecache
import pdb
import sys
import tempfile
import threading
import traceback
from typing import Any

import pytest

from pyfiber import Fiber, current


def outer_call(main: Fiber[Any], number: int) -> Any:
    outer_local = number * 10
    return inner_call(main), outer_local


def inner_call(main: Fiber[Any]) -> Any:
    inner_local = ["kept"]
    main.switch()
    return inner_local


def suspended(number: int = 1) -> Fiber[Any]:
    fiber: Fiber[Any] = Fiber(outer_call, (current(), number))
    fiber.switch()
    return fiber


def test_locals_of_a_suspended_frame_are_read() -> None:
    frame = suspended(4).frame
    assert frame is not None
    assert frame.f_locals["inner_local"] == ["kept"]
    assert frame.f_back is not None
    assert frame.f_back.f_locals["outer_local"] == 40
    assert frame.f_back.f_back is None


def test_changing_a_local_object_of_a_suspended_frame_is_seen_by_it() -> None:
    fiber = suspended()
    frame = fiber.frame
    assert frame is not None
    frame.f_locals["inner_local"].append("added")
    assert fiber.switch() == (["kept", "added"], 10)


@pytest.mark.skipif(sys.version_info < (3, 13), reason="f_locals writes through from 3.13 on")
def test_writing_a_local_of_a_suspended_frame() -> None:
    fiber = suspended()
    frame = fiber.frame
    assert frame is not None
    assert frame.f_back is not None
    frame.f_locals["inner_local"] = "replaced"
    frame.f_back.f_locals["outer_local"] = "too"
    del frame
    assert fiber.switch() == ("replaced", "too")


def test_source_of_a_suspended_frame_is_found() -> None:
    fiber = suspended()
    frame = fiber.frame
    assert frame is not None
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    assert line.strip() == "main.switch()"
    assert inspect.getframeinfo(frame).function == "inner_call"
    assert [info.function for info in inspect.getouterframes(frame)] == ["inner_call", "outer_call"]


def test_frame_of_a_suspended_fiber_cannot_be_cleared() -> None:
    fiber = suspended()
    frame = fiber.frame
    assert frame is not None
    with pytest.raises(RuntimeError, match=r"clear an? (suspended|executing) frame"):
        frame.clear()
    assert fiber.switch() == (["kept"], 10)
    frame.clear()


def test_frames_taken_before_stay_right_over_switches_and_collections() -> None:
    main = current()

    def count() -> int:
        total = 0
        for number in range(50):
            total += number
            main.switch()
        return total

    fiber: Fiber[int] = Fiber(count)
    fiber.switch()
    frame = fiber.frame
    assert frame is not None
    for number in range(1, 50):
        fiber.switch()
        gc.collect(0)
        assert fiber.frame is frame
        assert frame.f_locals["number"] == number
    fiber.switch()
    assert frame.f_locals["total"] == sum(range(50))


def test_frame_chains_of_many_suspended_fibers_do_not_mix() -> None:
    fibers = [suspended(n) for n in range(100)]
    for number, fiber in enumerate(fibers):
        frame = fiber.frame
        assert frame is not None
        assert frame.f_back is not None
        assert frame.f_back.f_locals["number"] == number
    for number, fiber in enumerate(reversed(fibers)):
        assert fiber.switch()[1] == (99 - number) * 10


def test_inspect_stack_and_print_stack_inside_a_fiber() -> None:
    def work() -> list[str]:
        out = io.StringIO()
        traceback.print_stack(file=out)
        assert "in work" in out.getvalue()
        assert "test_inspect_stack" not in out.getvalue().replace("<locals>", "")
        return [info.function for info in inspect.stack()]

    assert Fiber(work).switch() == ["work"]


def test_getframe_beyond_the_fibers_stack_raises() -> None:
    def work() -> None:
        with pytest.raises(ValueError, match="deep"):
            sys._getframe(10_000)

    Fiber(work).switch()


def test_current_frames_shows_the_running_fiber() -> None:
    def work() -> str:
        return sys._current_frames()[threading.get_ident()].f_code.co_name

    assert Fiber(work).switch() == "work"
    name = sys._current_frames()[threading.get_ident()].f_code.co_name
    assert name == "test_current_frames_shows_the_running_fiber"


def test_current_exceptions_shows_the_fibers_own() -> None:
    main = current()

    def work() -> None:
        try:
            raise KeyError
        except KeyError:
            main.switch(handled())

    def handled() -> Any:
        found: Any = sys._current_exceptions()[threading.get_ident()]
        return found[1] if isinstance(found, tuple) else found  # 3.11: as sys.exc_info()

    fiber: Fiber[Any] = Fiber(work)
    assert isinstance(fiber.switch(), KeyError)
    assert handled() is None
    fiber.switch()


def test_faulthandler_dumps_the_fibers_stack() -> None:
    def work() -> str:
        with tempfile.TemporaryFile("w+") as out:
            faulthandler.dump_traceback(out, all_threads=False)
            out.seek(0)
            return out.read()

    text = Fiber(work).switch()
    assert "in work" in text
    assert "test_faulthandler" not in text.replace("test_ordinary", "").split("in work")[1]


def test_traceback_walks_the_stack_of_a_suspended_fiber() -> None:
    frame = suspended().frame
    text = "".join(traceback.format_stack(frame))
    assert text.index("in outer_call") < text.index("in inner_call")


def post_mortem(commands: str, frame: Any) -> str:
    out = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO(commands), stdout=out, nosigint=True, readrc=False)
    debugger.use_rawinput = False
    debugger.reset()
    debugger.interaction(frame, None)
    return out.getvalue()


def test_pdb_inspects_a_suspended_fiber() -> None:
    fiber = suspended(7)
    trace = sys.gettrace()
    text = post_mortem(
        "where\np inner_local\nup\np outer_local\nargs\ndown\nlist\nq\n", fiber.frame
    )
    sys.settrace(trace)
    assert "outer_call" in text
    assert "['kept']" in text
    assert "70" in text
    assert "number = 7" in text
    assert fiber.switch() == (["kept"], 70)


def test_pdb_evaluates_in_a_suspended_fiber() -> None:
    fiber = suspended()
    trace = sys.gettrace()
    text = post_mortem("!inner_local.append('by pdb')\np len(inner_local)\nq\n", fiber.frame)
    sys.settrace(trace)
    assert "2" in text
    assert fiber.switch() == (["kept", "by pdb"], 10)


def test_pdb_steps_through_code_on_a_fiber() -> None:
    out = io.StringIO()
    debugger = pdb.Pdb(
        stdin=io.StringIO("next\nnext\np a + b\ncontinue\n"),
        stdout=out,
        nosigint=True,
        readrc=False,
    )
    debugger.use_rawinput = False

    def work() -> int:
        a = 1
        b = 2
        return a + b

    trace = sys.gettrace()
    try:
        result = Fiber(debugger.runcall, (work,)).switch()
    finally:
        sys.settrace(trace)
    assert result == 3
    assert "(Pdb) 3" in out.getvalue()


def test_garbage_collector_finds_no_frame_of_a_suspended_fiber_twice() -> None:
    fiber = suspended()
    frames = {id(fiber.frame) for _ in range(10)}
    assert len(frames) == 1
    gc.get_referrers(fiber)
    gc.get_referents(fiber)
    assert fiber.switch() == (["kept"], 10)
