"""Raw fibers: values and exceptions through switch() and throw()."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import pyfiber
from pyfiber import CancelledOutcome, Failed, Fiber, FiberError, FiberExit, Ok, current
from tests.fiber.raw import finished, parked

# ---------------------------------------------------------------------------- values


def test_switch_carries_values_both_ways() -> None:
    seen = []

    def echo(main: Fiber[Any]) -> str:
        for answer in "abc":
            seen.append(main.switch(answer))
        return "end"

    fiber: Fiber[str] = Fiber(echo, (current(),))
    assert [fiber.switch(), fiber.switch(1), fiber.switch(2), fiber.switch(3)] == [*"abc", "end"]
    assert seen == [1, 2, 3]


def test_switch_without_a_value_carries_none() -> None:
    fiber = parked()
    assert fiber.switch() is None
    assert fiber.outcome == Ok(None)


def test_switch_takes_its_value_by_keyword() -> None:
    fiber = parked()
    assert fiber.switch(value=5) == 5


@pytest.mark.parametrize(
    ("arguments", "keywords"), [((1, 2), {}), ((), {"other": 1}), ((1,), {"value": 1})]
)
def test_switch_with_other_arguments_raises(arguments: Any, keywords: Any) -> None:
    fiber = parked()
    with pytest.raises(TypeError):
        fiber.switch(*arguments, **keywords)
    assert fiber.state == "parked"


def test_switch_sends_the_very_object() -> None:
    thing = object()
    fiber = parked()
    assert fiber.switch(thing) is thing


def test_value_is_released_after_the_switch() -> None:
    class Thing:
        pass

    thing = Thing()
    alive = weakref.ref(thing)
    main = current()

    def take() -> None:
        main.switch()
        main.switch()

    fiber: Fiber[None] = Fiber(take)
    fiber.switch()
    fiber.switch(thing)
    del thing
    gc.collect()
    assert alive() is None
    fiber.switch()


def test_fresh_fiber_takes_its_arguments() -> None:
    fiber: Fiber[Any] = Fiber(lambda *a, **k: (a, k), (1, 2), {"x": 3})
    assert fiber.switch() == ((1, 2), {"x": 3})


def test_arguments_may_be_any_sequence_and_mapping() -> None:
    fiber: Fiber[Any] = Fiber(lambda *a, **k: (a, k), args=iter([1]), kwargs={"k": 2})
    assert fiber.switch() == ((1,), {"k": 2})


def test_arguments_are_released_when_the_function_drops_them() -> None:
    class Thing:
        pass

    main = current()

    def drop(thing: Thing) -> None:
        del thing
        main.switch()

    thing = Thing()
    alive = weakref.ref(thing)
    fiber: Fiber[None] = Fiber(drop, [thing])
    del thing
    fiber.switch()
    # The caller of a C-called function holds its arguments; after the end nobody does.
    fiber.switch()
    assert alive() is None


def test_switch_with_a_value_to_a_fresh_fiber_raises() -> None:
    fiber: Fiber[int] = Fiber(lambda: 1)
    with pytest.raises(TypeError, match="not started"):
        fiber.switch(1)
    assert fiber.state == "new"
    assert fiber.switch() == 1


def test_switch_to_finished_fiber_raises() -> None:
    fiber = finished()
    with pytest.raises(FiberError, match="finished"):
        fiber.switch()


def test_switch_to_oneself_returns_the_value() -> None:
    assert current().switch("me") == "me"
    fiber: Fiber[Any] = Fiber(lambda: current().switch("inner"))
    assert fiber.switch() == "inner"


def test_throw_into_oneself_raises_here() -> None:
    with pytest.raises(KeyError):
        current().throw(KeyError)
    assert current().state == "running"


def test_result_goes_to_the_parent() -> None:
    assert Fiber(lambda: 42).switch() == 42


def test_exception_goes_to_the_parent() -> None:
    def fail() -> None:
        raise KeyError("inner")

    fiber: Fiber[None] = Fiber(fail)
    with pytest.raises(KeyError, match="inner"):
        fiber.switch()
    assert fiber.done()


def test_ring_of_fibers_passes_a_value_around() -> None:
    main = current()
    ring: list[Fiber[Any]] = []

    def member(index: int) -> None:
        value = main.switch()
        while True:
            following = ring[index + 1] if index + 1 < len(ring) else main
            value = following.switch(value + 1)

    ring += [Fiber(member, (i,)) for i in range(50)]
    for fiber in ring:
        fiber.switch()
    assert ring[0].switch(0) == 50
    assert ring[0].switch(100) == 150
    ring.clear()  # the frames hold the list, and through it each other


def test_deep_chain_of_fibers_starts_and_ends() -> None:
    def descend(depth: int) -> int:
        return depth if depth == 0 else 1 + Fiber(descend, (depth - 1,)).switch()

    assert descend(500) == 500


def test_exception_passes_up_a_chain_of_fibers() -> None:
    def descend(depth: int) -> None:
        if depth == 0:
            raise KeyError("bottom")
        Fiber(descend, (depth - 1,)).switch()

    with pytest.raises(KeyError, match="bottom") as caught:
        descend(100)
    names = [entry.name for entry in caught.traceback]
    assert names.count("descend") == 101


def test_thousands_of_fibers_are_suspended_at_once() -> None:
    main = current()

    def add(number: int) -> int:
        return number + main.switch()

    fibers = [Fiber(add, (n,), stack_size=128 * 1024) for n in range(5000)]
    for fiber in fibers:
        fiber.switch()
    assert sum(fiber.switch(1) for fiber in fibers) == sum(range(1, 5001))
    assert all(fiber.done() for fiber in fibers)


def test_fibers_one_after_another_reuse_their_stacks() -> None:
    Fiber(int).switch()
    before = [stats["slots"] for stats in pyfiber.debug.stack_stats()]
    for number in range(20_000):
        assert Fiber(lambda n=number: n).switch() == number
    after = [stats["slots"] for stats in pyfiber.debug.stack_stats()]
    assert len(after) == len(before) > 0
    assert all(new <= old for new, old in zip(after, before, strict=True))  # spare ones may go


def test_switch_from_a_nested_call_keeps_every_frame() -> None:
    main = current()

    def nested(depth: int) -> int:
        here = depth * 10
        below = nested(depth - 1) if depth else main.switch("bottom")
        return here + below

    fiber: Fiber[int] = Fiber(nested, (100,))
    assert fiber.switch() == "bottom"
    assert fiber.switch(1) == sum(range(0, 1001, 10)) + 1


def test_two_fibers_switch_to_each_other_without_the_main_one() -> None:
    log: list[str] = []
    fibers: dict[str, Fiber[Any]] = {}

    def player(me: str, other: str) -> None:
        for _ in range(3):
            log.append(me)
            fibers[other].switch()

    fibers["a"] = Fiber(player, ("a", "b"))
    fibers["b"] = Fiber(player, ("b", "a"))
    fibers["a"].switch()
    assert "".join(log) == "ababab"
    assert fibers["a"].done()
    assert not fibers["b"].done()


# ----------------------------------------------------------------------------- throw


@pytest.mark.parametrize("thrown", [KeyError, KeyError("k")])
def test_throw_raises_where_the_fiber_is_suspended(thrown: Any) -> None:
    main = current()

    def catch() -> BaseException:
        try:
            main.switch()
        except KeyError as error:
            return error
        raise AssertionError

    fiber: Fiber[Any] = Fiber(catch)
    fiber.switch()
    caught = fiber.throw(thrown)
    assert isinstance(caught, KeyError)
    if isinstance(thrown, KeyError):
        assert caught is thrown


def test_throw_that_is_not_caught_comes_back() -> None:
    fiber = parked()
    with pytest.raises(KeyError):
        fiber.throw(KeyError)
    assert isinstance(fiber.outcome, Failed)


def test_throw_returns_what_the_fiber_switches_back_with() -> None:
    main = current()

    def catch() -> None:
        try:
            main.switch()
        except KeyError:
            main.switch("caught")

    fiber: Fiber[Any] = Fiber(catch)
    fiber.switch()
    assert fiber.throw(KeyError) == "caught"


@pytest.mark.parametrize("thrown", [None, 1, "KeyError", int, object(), (KeyError, "x")])
def test_throw_something_else_raises(thrown: Any) -> None:
    fiber = parked()
    with pytest.raises(TypeError, match="exception"):
        fiber.throw(thrown)
    assert fiber.state == "parked"
    assert fiber.switch(1) == 1


def test_throw_a_class_that_cannot_be_made_raises_that() -> None:
    class Picky(Exception):
        def __init__(self, needed: int) -> None:
            super().__init__(needed)

    fiber = parked()
    with pytest.raises(TypeError, match="needed"):
        fiber.throw(Picky)
    assert fiber.state == "parked"


def test_throw_a_class_whose_call_makes_no_exception_raises() -> None:
    class Odd(Exception):
        def __new__(cls) -> Any:
            return 5

    fiber = parked()
    with pytest.raises(TypeError, match="should have made an exception"):
        fiber.throw(Odd)
    assert fiber.state == "parked"


def test_throw_into_a_fresh_fiber_ends_it_without_running_it() -> None:
    ran = []
    fiber: Fiber[None] = Fiber(ran.append, (1,))
    with pytest.raises(KeyError):
        fiber.throw(KeyError)
    assert fiber.done()
    assert not ran
    assert isinstance(fiber.outcome, Failed)


def test_throw_fiber_exit_into_a_fresh_fiber_ends_it_quietly() -> None:
    ran = []
    fiber: Fiber[None] = Fiber(ran.append, (1,))
    assert fiber.throw(FiberExit) is None
    assert fiber.done()
    assert not ran


def test_throw_into_finished_fiber_raises() -> None:
    fiber = finished()
    with pytest.raises(FiberError, match="finished"):
        fiber.throw(KeyError)


def test_throw_keeps_the_traceback_of_the_exception() -> None:
    try:
        raise KeyError("first")
    except KeyError as error:
        thrown = error
    fiber = parked()
    with pytest.raises(KeyError) as caught:
        fiber.throw(thrown)
    assert caught.value is thrown
    assert thrown.__context__ is None


def test_throw_base_exceptions_pass_through() -> None:
    for kind in (KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, BaseException):
        fiber = parked()
        with pytest.raises(kind):
            fiber.throw(kind)


def test_throw_again_and_again_is_caught_each_time() -> None:
    main = current()

    def stubborn() -> int:
        for count in itertools.count():
            try:
                main.switch()
            except KeyError:
                continue
            return count
        raise AssertionError

    fiber: Fiber[int] = Fiber(stubborn)
    fiber.switch()
    for _ in range(100):
        fiber.throw(KeyError)
    assert fiber.switch() == 100


# ------------------------------------------------------------------------- FiberExit


def test_fiber_exit_that_leaves_the_target_ends_quietly() -> None:
    def leave() -> None:
        raise FiberExit

    fiber: Fiber[None] = Fiber(leave)
    assert fiber.switch() is None
    assert fiber.done()
    assert isinstance(fiber.outcome, CancelledOutcome)


def test_fiber_exit_is_not_an_exception() -> None:
    assert issubclass(FiberExit, BaseException)
    assert not issubclass(FiberExit, Exception)


def test_throw_fiber_exit_runs_finally_blocks() -> None:
    log = []
    main = current()

    def clean() -> None:
        try:
            main.switch()
        finally:
            log.append("finally")

    fiber: Fiber[None] = Fiber(clean)
    fiber.switch()
    assert fiber.throw(FiberExit) is None
    assert log == ["finally"]


def test_fiber_exit_can_be_caught_when_thrown() -> None:
    main = current()

    def catch() -> str:
        try:
            main.switch()
        except FiberExit:
            return "caught"
        raise AssertionError

    fiber: Fiber[str] = Fiber(catch)
    fiber.switch()
    assert fiber.throw(FiberExit) == "caught"
    assert fiber.outcome == Ok("caught")


# ----------------------------------------------------------------------- dropping it


def test_dropped_fiber_runs_its_finally_blocks() -> None:
    log: list[Any] = []
    main = current()

    def clean() -> None:
        try:
            try:
                main.switch()
            finally:
                log.append("inner")
        except BaseException as error:
            log.append(type(error))
            raise

    fiber = Fiber(clean)
    fiber.switch()
    assert not log
    del fiber
    assert log == ["inner", FiberExit]


def test_dropped_fresh_fiber_does_nothing() -> None:
    ran: list[int] = []
    fiber: Fiber[None] = Fiber(ran.append, (1,))
    alive = weakref.ref(fiber)
    del fiber
    assert alive() is None
    assert not ran


def test_dropped_fiber_that_swallows_the_exit_ends_all_the_same() -> None:
    main = current()
    log = []

    def swallow() -> str:
        try:
            main.switch()
        except FiberExit:
            log.append("swallowed")
        return "value"

    fiber = Fiber(swallow)
    fiber.switch()
    del fiber
    assert log == ["swallowed"]


def test_dropped_fiber_that_switches_in_its_finally_block_gets_an_error() -> None:
    main = current()
    log = []

    def clean() -> None:
        try:
            main.switch()
        finally:
            try:
                main.switch("from the grave")
            except FiberError as error:
                log.append(str(error))

    fiber = Fiber(clean)
    fiber.switch()
    del fiber
    assert len(log) == 1
    assert "unwound" in log[0]


def test_dropped_fiber_that_starts_another_in_its_finally_block_gets_an_error() -> None:
    main = current()
    log = []

    def clean() -> None:
        try:
            main.switch()
        finally:
            try:
                Fiber(lambda: log.append("ran")).switch()
            except FiberError:
                log.append("refused")

    fiber = Fiber(clean)
    fiber.switch()
    del fiber
    assert log == ["refused"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_dropped_fiber_that_fails_is_reported_and_the_dropper_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import sys

    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda info: reported.append(info.exc_type))
    main = current()

    def fail() -> None:
        try:
            main.switch()
        finally:
            raise KeyError("in finally")

    fiber = Fiber(fail)
    fiber.switch()
    del fiber
    assert reported == [KeyError]


def test_dropping_keeps_the_exception_in_flight() -> None:
    main = current()

    def holder() -> None:
        fiber = Fiber(main.switch, ("inner",))
        fiber.switch()
        raise KeyError("mine")  # the fiber is dropped while this one passes

    with pytest.raises(KeyError, match="mine"):
        holder()


def test_dropping_inside_a_running_fiber_comes_back_to_it() -> None:
    main = current()
    log = []

    def inner() -> None:
        try:
            main.switch("inner waits")
        finally:
            log.append("inner gone")

    def outer() -> str:
        fiber = Fiber(inner)
        fiber.parent = main
        fiber.switch()
        log.append("drop")
        del fiber
        log.append("go on")
        return "outer"

    fiber = Fiber(outer)
    assert fiber.switch() == "inner waits"
    assert fiber.switch() == "outer"
    assert log == ["drop", "inner gone", "go on"]


def test_running_fiber_whose_last_reference_is_dropped_goes_on() -> None:
    main = current()
    box: list[Fiber[Any]] = []

    def work() -> str:
        box.clear()
        gc.collect()
        main.switch("still here")
        return "never reached"

    box.append(Fiber(work))
    assert box[0].switch() == "still here"


def test_fiber_known_only_to_itself_ends_and_is_freed() -> None:
    def work() -> str:
        return "done"

    fiber: Fiber[str] = Fiber(work)
    alive = weakref.ref(fiber)
    assert fiber.switch() == "done"
    del fiber
    assert alive() is None


def test_temporary_fiber_lives_while_it_runs() -> None:
    assert Fiber(lambda: [gc.collect(), 7][1]).switch() == 7


def test_chain_of_dropped_fibers_is_unwound() -> None:
    log = []
    main = current()

    def hold(depth: int) -> None:
        inner = Fiber(hold, (depth - 1,)) if depth else None
        try:
            if inner is not None:
                # Else it would hold the fiber whose frame holds it.
                inner.parent = main
            if inner is not None:
                inner.switch()
            else:
                main.switch()
        finally:
            log.append(depth)

    fiber = Fiber(hold, (20,))
    fiber.switch()
    del fiber
    assert sorted(log) == list(range(21))


def test_dropped_parent_stays_alive_through_its_child() -> None:
    main = current()
    log = []

    def outer() -> None:
        box.append(Fiber(main.switch))
        try:
            log.append(box[0].switch())
        finally:
            log.append("outer ends")

    box: list[Fiber[Any]] = []
    fiber = Fiber(outer)
    fiber.switch()
    del fiber
    assert log == []
    assert box[0].switch("through") is None
    assert log == ["through", "outer ends"]


def test_result_is_kept_after_the_end_and_released_with_the_fiber() -> None:
    class Thing:
        pass

    fiber: Fiber[Thing] = Fiber(Thing)
    alive = weakref.ref(fiber.switch())
    assert alive() is not None
    del fiber
    assert alive() is None


def test_generator_like_use_is_dropped_in_the_middle() -> None:
    log = []

    def numbers() -> Iterator[int]:
        main = current()

        def produce() -> None:
            try:
                for number in itertools.count():
                    main.switch(number)
            finally:
                log.append("closed")

        fiber = Fiber(produce)
        while True:
            yield fiber.switch()

    assert list(itertools.islice(numbers(), 5)) == [0, 1, 2, 3, 4]
    assert log == ["closed"]
