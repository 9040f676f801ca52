"""Greenlets whose finalizers, callbacks and computed attributes switch, end or reparent greenlets.

Each test lets code run where the engine cannot help running it, and has that code change what the
engine is about to work on.
"""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

import pyfiber
import pyfiber.greenlet
from pyfiber.greenlet import GreenletExit, getcurrent, greenlet, settrace


class Last:
    """Runs a function when its last reference goes."""

    def __init__(self, action: Any) -> None:
        self.action = action

    def __del__(self) -> None:
        self.action()


def suspended() -> Any:
    """A greenlet that goes back to its parent, and returns what it is sent then."""
    made = greenlet(lambda: getcurrent().parent.switch())
    made.switch()
    return made


def test_parent_computed_by_a_run_that_drops_it() -> None:
    class Computed(greenlet):
        @property
        def run(self) -> Any:  # type: ignore[override]
            over.parent = getcurrent()
            return lambda *args: ("ran", args)

    over = greenlet(lambda: None, Computed())
    over.parent, computed = getcurrent(), over.parent
    over.switch()
    over.parent = computed
    del computed
    assert over.switch(1) == ("ran", (1,))


def test_result_for_a_parent_computed_by_a_run_that_drops_it() -> None:
    main = getcurrent()

    class Computed(greenlet):
        @property
        def run(self) -> Any:  # type: ignore[override]
            child.parent = main
            return lambda *args: ("ran", args)

    child = greenlet(lambda: "result", Computed())
    assert child.switch() == ("ran", ("result",))


def test_value_of_an_unused_permit_that_switches_as_its_greenlet_ends() -> None:
    def main() -> None:
        other = suspended()

        def action() -> None:
            try:
                other.switch("to the end")
            except GreenletExit:
                log.append("killed")

        ends = greenlet(lambda: pyfiber.current().unpark(Last(action)), other)
        assert ends.switch() == "to the end"
        assert other.dead
        del ends
        assert log == ["killed"]

    log: list[str] = []
    pyfiber.run(main)


def test_parent_set_while_a_greenlet_is_killed_in_a_done_callback() -> None:
    def body() -> None:
        try:
            main.switch()
        finally:
            getcurrent().parent = other

    main = getcurrent()
    other = suspended()
    killed = greenlet(body)
    killed.switch()
    log: list[Any] = []

    def drop(fiber: Any) -> None:
        nonlocal killed
        del killed
        log.append("came back")

    fiber = pyfiber.Fiber(lambda: None)
    fiber.add_done_callback(drop)
    fiber.switch()
    assert log == ["came back"]
    assert not other.dead
    assert other.switch("end") == "end"


def dropped_by_a_greenlet(
    body: Any, as_the_exception_is_made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drop a greenlet that runs ``body``; a function gets it just before it is killed.

    No collection may come in between: it would kill what earlier tests left in cycles, and the
    function would be called for those as well.
    """

    def make(self: BaseException, *args: Any) -> None:
        found = reference()
        if found is not None:
            as_the_exception_is_made(found)

    def drop() -> None:
        nonlocal dropped
        gc.disable()
        try:
            monkeypatch.setattr(GreenletExit, "__init__", make)
            del dropped
            monkeypatch.undo()
        finally:
            gc.enable()

    dropped = greenlet(body)
    dropped.switch()
    reference = weakref.ref(dropped)
    greenlet(drop).switch()


def test_killer_made_a_child_of_the_greenlet_that_it_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        try:
            main.switch()
        finally:
            fresh = greenlet(lambda: None)
            fresh.parent = killers[0]  # looks through all its ancestors
            done.append(True)

    def become_a_child(killed: Any) -> None:
        killers.append(getcurrent())
        getcurrent().parent = killed

    killers: list[Any] = []
    done: list[bool] = []
    main = getcurrent()
    dropped_by_a_greenlet(body, become_a_child, monkeypatch)
    assert done == [True]
    killers.clear()


def test_kill_whose_exception_ends_the_greenlet_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        log.append(main.switch())

    def end(killed: Any) -> None:
        killed.parent = getcurrent()
        killed.switch("ended")

    log: list[Any] = []
    main = getcurrent()
    dropped_by_a_greenlet(body, end, monkeypatch)
    assert log == ["ended"]


def test_trace_function_is_not_told_of_a_switch_to_a_fiber_and_its_origin_goes() -> None:
    events: list[Any] = []
    other = suspended()

    def enter_fiber() -> None:
        view.switch()  # lands where the fiber has switched: nobody is told

    def in_fiber() -> None:
        nonlocal view
        view = getcurrent()
        first = greenlet(enter_fiber)
        pyfiber.Fiber(first.switch).switch()

    view: Any = None
    settrace(lambda *event: events.append(event[0]))
    try:
        pyfiber.Fiber(in_fiber).switch()
        other.switch()
    finally:
        settrace(None)
    assert other.dead
    assert "switch" in events


def test_dict_of_a_greenlet_is_one() -> None:
    made = greenlet(lambda: None)
    assert made.__dict__ is made.__dict__
    made.name = "a"
    assert made.__dict__ == {"name": "a"}
    made.__dict__ = {"name": "b"}
    assert made.name == "b"
    with pytest.raises(TypeError):
        made.__dict__ = 1
    with pytest.raises(TypeError):
        del made.__dict__


def test_init_again_with_a_run_whose_end_makes_the_parent_a_child() -> None:
    def reparent() -> None:
        parent.parent = again

    parent = greenlet(lambda: None)
    again = greenlet()
    again.run = Last(reparent)
    with pytest.raises(ValueError, match="cyclic"):
        again.__init__(lambda: None, parent)  # type: ignore[misc]
    assert parent.parent is again


def test_trace_function_that_ends_with_its_thread_cannot_switch() -> None:
    def body() -> None:
        made.append(suspended())
        settrace(Tracer())

    class Tracer:
        def __call__(self, *event: Any) -> None:
            pass

        def __del__(self) -> None:
            with pytest.raises(pyfiber.greenlet.error, match="thread ends"):
                suspended()
            made.append(greenlet(None))

    made: list[Any] = []
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert [one.dead for one in made] == [True, False]
