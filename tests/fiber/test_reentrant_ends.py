"""Fibers that are freed or made while code of the program runs in the midst of it."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from pyfiber import Fiber, current, run, spawn
from tests.conftest import Child


class Acting:
    """Does something when it dies."""

    def __init__(self, act: Any) -> None:
        self.act = act

    def __del__(self) -> None:
        self.act()


@pytest.mark.parametrize("who", ["finalizer", "weakref callback"])
def test_run_that_ends_while_one_of_its_failed_fibers_is_freed(who: str) -> None:
    """The run's list of failures has the fiber no more."""
    root, kept, ended = current(), [], []

    def end_run(*_: Any) -> None:
        kept[0].switch()
        ended.append(who)

    def fails() -> None:
        thing = Acting(end_run) if who == "finalizer" else None
        raise KeyError(thing)

    def main() -> None:
        failed = spawn(fails)
        assert failed.exception() is not None
        kept.append(spawn(root.switch))
        kept.append(failed)

    fiber = Fiber(run, (main,))
    fiber.switch()
    failed = kept.pop()
    watched = weakref.ref(failed, end_run if who != "finalizer" else None)
    del failed
    assert ended == [who]
    assert fiber.done()
    assert watched() is None


def test_abandoned_run_does_not_go_on_while_the_interpreter_shuts_down(child: Child) -> None:
    done = child(
        """
from pyfiber import Fiber, Queue, current, run, spawn
root, queue = current(), Queue(1)
class Thing:
    def __del__(self):
        try:
            queue.get(timeout=0.01)
        except BaseException as error:
            print(error, flush=True)
def fails():
    thing = Thing()
    try:
        root.switch()
    finally:
        raise KeyError
fiber = Fiber(run, (lambda: [spawn(fails)] and None,))
fiber.switch()
""",
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout == "cannot leave this fiber while the interpreter shuts down\n"
    assert "KeyError" in done.stderr


def test_function_that_gets_other_code_while_its_defaults_are_compared() -> None:
    def f(*, a: int = 1, b: int = 1) -> int:
        return 7

    def other(*, a: int = 1) -> int:
        return 8

    class Key(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other_key: object) -> bool:
            f.__code__ = other.__code__
            return str.__eq__(self, other_key)

    f.__kwdefaults__ = {Key("a"): 1, Key("b"): 1}
    assert run(lambda: spawn(f).result()) == 8
