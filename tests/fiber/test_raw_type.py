"""Raw fibers: their outcome, and the type itself."""

from __future__ import annotations

import contextvars
import copy
import gc
import pickle
import types
import weakref
from typing import Any

import pytest

import pyfiber
from pyfiber import (
    CancelledOutcome,
    Failed,
    Fiber,
    FiberError,
    FiberExit,
    Ok,
    _engine,
    current,
    run,
    spawn,
    yield_now,
)
from tests.fiber.raw import finished, parked

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("VARIABLE", default="no value")

# --------------------------------------------------------------------------- outcome


def test_outcome_is_none_before_the_end() -> None:
    fiber: Fiber[int] = Fiber(int)
    assert fiber.outcome is None
    assert not fiber.done()
    assert parked().outcome is None


def test_outcome_of_a_result() -> None:
    fiber: Fiber[int] = Fiber(lambda: 3)
    fiber.switch()
    match fiber.outcome:
        case Ok(value):
            assert value == 3
        case _:
            pytest.fail("not Ok")
    assert fiber.result() == 3
    assert fiber.exception() is None
    assert not fiber.cancelled()


def test_outcome_of_a_failure() -> None:
    error = KeyError("k")

    def fail() -> None:
        raise error

    fiber: Fiber[None] = Fiber(fail)
    with pytest.raises(KeyError):
        fiber.switch()
    assert fiber.outcome == Failed(error)
    assert fiber.exception() is error
    with pytest.raises(KeyError) as caught:
        fiber.result()
    assert caught.value is error


def test_outcome_of_an_exit() -> None:
    fiber = parked()
    fiber.throw(FiberExit)
    assert fiber.outcome == CancelledOutcome(None)
    assert fiber.cancelled()
    with pytest.raises(pyfiber.FiberCancelled):
        fiber.result()
    with pytest.raises(pyfiber.FiberCancelled):
        fiber.exception()


def test_result_of_an_unfinished_raw_fiber_raises() -> None:
    with pytest.raises(FiberError):
        parked().result()
    with pytest.raises(FiberError):
        Fiber(int).result()


def test_done_callback_of_a_raw_fiber_runs_at_its_end() -> None:
    log: list[Any] = []
    fiber: Fiber[int] = Fiber(lambda: 1)
    fiber.add_done_callback(lambda f: log.append((f, f.state, f.outcome)))
    fiber.switch()
    assert log == [(fiber, "done", Ok(1))]


# -------------------------------------------------------------------- the type itself


def test_generic_alias_is_made() -> None:
    alias = Fiber[int]
    assert isinstance(alias, types.GenericAlias)
    assert alias.__origin__ is Fiber
    assert alias(lambda: 1).switch() == 1


def test_subclass_run_is_the_target() -> None:
    class Adder(Fiber[int]):
        def run(self) -> int:
            assert current() is self
            return 5

    assert Adder().switch() == 5


def test_subclass_with_its_own_init() -> None:
    class Adder(Fiber[int]):
        def __init__(self, a: int, b: int) -> None:
            super().__init__(name="adder")
            self.a, self.b = a, b

        def run(self) -> int:
            return self.a + self.b

    adder = Adder(2, b=3)
    assert adder.name == "adder"
    assert adder.switch() == 5


def test_subclass_with_target_uses_the_target() -> None:
    class Named(Fiber[int]):
        label = "x"

    assert Named(lambda: 3).switch() == 3


def test_subclass_without_run_raises_when_it_starts() -> None:
    class Lazy(Fiber[int]):
        pass

    with pytest.raises(AttributeError, match="run"):
        Lazy().switch()


def test_subclass_that_does_not_call_init_runs_its_run() -> None:
    class Bare(Fiber[int]):
        def __init__(self) -> None:
            pass

        def run(self) -> int:
            return 8

    assert Bare().switch() == 8


def test_plain_fiber_made_without_init_raises_when_it_starts() -> None:
    fiber: Fiber[int] = Fiber.__new__(Fiber)
    with pytest.raises(AttributeError, match="run"):
        fiber.switch()
    assert fiber.done()


def test_init_again_before_the_start_replaces_the_target() -> None:
    fiber: Fiber[int] = Fiber(lambda: 1)
    fiber.__init__(lambda: 2)  # type: ignore[misc]
    assert fiber.switch() == 2


def test_init_of_a_started_fiber_raises() -> None:
    fiber = parked()
    for one in (fiber, finished(), current()):
        with pytest.raises(FiberError):
            one.__init__(int)  # type: ignore[misc]
    assert fiber.switch(1) == 1


def test_subclass_instance_has_attributes_and_slots() -> None:
    class Slotted(Fiber[int]):
        __slots__ = ("extra",)

    fiber = Slotted(int)
    fiber.extra = 5
    assert fiber.extra == 5
    with pytest.raises(AttributeError):
        Fiber(int).extra = 5  # type: ignore[attr-defined]


def test_subclass_with_del_runs_it_once() -> None:
    log = []

    class Deleted(Fiber[int]):
        def __del__(self) -> None:
            log.append(self.state)

    fiber = Deleted(int)
    fiber.switch()
    del fiber
    assert log == ["done"]


def test_subclass_with_del_is_still_unwound() -> None:
    log: list[str] = []

    class Deleted(Fiber[None]):
        def __del__(self) -> None:
            log.append("del")

    def work() -> None:
        try:
            main.switch()
        finally:
            log.append("finally")

    main = current()
    fiber = Deleted(work)
    fiber.switch()
    del fiber
    gc.collect()
    assert sorted(log) == ["del", "finally"]


def test_context_that_the_collector_cleared_before_the_fiber_ends_is_a_new_one() -> None:
    seen: list[str] = []

    class Deleted(Fiber[None]):
        def __del__(self) -> None:  # in place of what would unwind it in time
            pass

    class Node:
        fiber: Fiber[None]

    def work(node: Node) -> None:
        del node
        VARIABLE.set("its own")
        try:
            main.switch()
        finally:
            seen.append(VARIABLE.get())
            VARIABLE.set("set at the end")

    def make(context: contextvars.Context) -> None:
        node = Node()
        node.fiber = Deleted(work, (node,), context=context)
        node.fiber.switch()

    main = current()
    make(contextvars.Context())  # is older than the node, which is what makes the cycle end
    gc.collect()
    assert len(seen) == 1
    assert seen[0] in ("its own", "no value")


def test_weak_reference_does_not_keep_it_alive() -> None:
    gone = []
    fiber: Fiber[int] = Fiber(int)
    reference = weakref.ref(fiber, gone.append)
    assert reference() is fiber
    del fiber
    assert reference() is None
    assert len(gone) == 1


def test_weak_reference_to_a_suspended_fiber_dies_with_it() -> None:
    fiber = parked()
    reference = weakref.ref(fiber)
    del fiber
    assert reference() is None


def test_attributes_of_the_types_cannot_be_set() -> None:
    """As those of the interpreter's own types."""
    kinds = [kind for kind in vars(_engine).values() if isinstance(kind, type)]
    assert Fiber in kinds
    for kind in kinds:
        if issubclass(kind, BaseException):
            continue
        with pytest.raises(TypeError, match="immutable type"):
            kind.run = None  # type: ignore[attr-defined]


def test_fiber_made_of_a_dead_one_s_memory_has_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not even that it has been finalized: its lost failure is reported."""

    def fail() -> None:
        raise ValueError

    def drop_suspended() -> None:
        fibers = [parked() for _ in range(10)]
        for fiber in fibers:
            fiber.add_done_callback(lambda fiber: None)

    def fail_unseen() -> None:
        for _ in range(10):
            spawn(fail)
        yield_now()

    for times in range(1, 4):
        drop_suspended()
        fresh = [Fiber(int) for _ in range(10)]
        for fiber in fresh:
            assert (fiber.name, fiber.outcome, fiber.parent) == ("int", None, current())
        del fresh, fiber
        run(fail_unseen)
        gc.collect()
        assert len(caplog.records) == 10 * times


def test_main_fiber_can_be_referenced_weakly() -> None:
    assert weakref.ref(current())() is current()


@pytest.mark.parametrize("make", [lambda: Fiber(int), parked, finished, current])
@pytest.mark.parametrize("function", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_and_copying_raise(make: Any, function: Any) -> None:
    with pytest.raises(TypeError, match="cannot pickle or copy"):
        function(make())


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_with_every_protocol_raises(protocol: int) -> None:
    with pytest.raises(TypeError, match="a fiber is a stack"):
        pickle.dumps(Fiber(int), protocol)


def test_fibers_are_hashable_and_compare_by_identity() -> None:
    a: Fiber[int] = Fiber(int)
    b: Fiber[int] = Fiber(int)
    assert a == a
    assert a != b
    assert len({a, b, a}) == 2


def test_type_says_where_it_lives() -> None:
    assert Fiber.__module__ == "pyfiber"
    assert pickle.loads(pickle.dumps(Fiber)) is Fiber


@pytest.mark.parametrize("target", [1, "function", object()])
def test_target_that_cannot_be_called_raises(target: Any) -> None:
    with pytest.raises(TypeError, match=r"Fiber\(\) takes a function"):
        Fiber(target)


@pytest.mark.parametrize(
    ("arguments", "keywords"),
    [((), {}), ((None,), {}), ((int, 5), {}), ((int, (), 5), {}), ((int,), {"other": 1})],
)
def test_wrong_arguments_raise(arguments: Any, keywords: Any) -> None:
    with pytest.raises(TypeError):
        Fiber(*arguments, **keywords)


def test_keyword_only_arguments_are_refused_by_position() -> None:
    with pytest.raises(TypeError):
        Fiber(int, (), None, "name")  # type: ignore[misc]


def test_daemon_is_a_flag() -> None:
    fiber: Fiber[int] = Fiber(int, daemon=True)
    assert fiber.daemon is True
    fiber.daemon = False
    assert fiber.daemon is False
    with pytest.raises(AttributeError):
        del fiber.daemon


def test_current_takes_no_arguments() -> None:
    with pytest.raises(TypeError):
        current(1)  # type: ignore[call-arg]
    assert current() is current()
