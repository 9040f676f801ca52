"""Raw fibers: parent, name, state, repr, frame, stack(), context, outcome, the type itself."""

from __future__ import annotations

import contextvars
import functools
import gc
import itertools
import sys
import threading
import traceback
import types
import weakref
from typing import Any

import pytest

from pyfiber import Fiber, FiberError, current, run
from tests.fiber.raw import finished, parked

NUMBER: contextvars.ContextVar[int] = contextvars.ContextVar("NUMBER", default=0)


# ---------------------------------------------------------------------------- parent


def test_parent_is_the_fiber_that_made_it() -> None:
    assert Fiber(int).parent is current()
    inner = Fiber(lambda: Fiber(int)).switch()
    assert inner.parent.state == "done"


def test_parent_of_the_main_fiber_is_none() -> None:
    assert current().parent is None


def test_parent_can_be_set_and_gets_the_result() -> None:
    main = current()
    log = []

    def collect() -> None:
        while True:
            log.append(main.switch())

    sink: Fiber[None] = Fiber(collect)
    sink.switch()
    fiber: Fiber[str] = Fiber(lambda: "for the sink")
    fiber.parent = sink
    fiber.switch()
    assert log == ["for the sink"]


def test_parent_gets_the_exception() -> None:
    main = current()
    log = []

    def collect() -> None:
        while True:
            try:
                main.switch()
            except KeyError as error:
                log.append(error.args)

    sink: Fiber[None] = Fiber(collect)
    sink.switch()

    def fail() -> None:
        raise KeyError("for the sink")

    fiber: Fiber[None] = Fiber(fail)
    fiber.parent = sink
    fiber.switch()
    assert log == [("for the sink",)]


def test_parent_can_be_set_while_the_fiber_is_suspended() -> None:
    main = current()
    fiber = parked()
    other: Fiber[Any] = Fiber(lambda: ["got", main.switch()])
    other.switch()
    fiber.parent = other
    assert fiber.switch("value") == ["got", "value"]


def test_parent_that_is_oneself_raises() -> None:
    fiber: Fiber[int] = Fiber(int)
    with pytest.raises(ValueError, match="ancestor"):
        fiber.parent = fiber


def test_parent_cycle_raises() -> None:
    a: Fiber[int] = Fiber(int)
    b: Fiber[int] = Fiber(int)
    c: Fiber[int] = Fiber(int)
    a.parent = b
    b.parent = c
    with pytest.raises(ValueError, match="ancestor"):
        c.parent = a
    assert c.parent is current()


def test_parent_of_the_main_fiber_set_to_a_child_raises() -> None:
    with pytest.raises(ValueError, match="ancestor"):
        current().parent = Fiber(int)


@pytest.mark.parametrize("value", [None, 1, "main", object()])
def test_parent_set_to_something_else_raises(value: Any) -> None:
    fiber: Fiber[int] = Fiber(int)
    with pytest.raises(TypeError):
        fiber.parent = value
    assert fiber.parent is current()


def test_parent_cannot_be_deleted() -> None:
    fiber: Fiber[int] = Fiber(int)
    with pytest.raises(AttributeError):
        del fiber.parent


def test_done_parent_passes_on_to_its_own_parent() -> None:
    main = current()
    inner: Fiber[str] | None = None

    def outer() -> None:
        nonlocal inner
        inner = Fiber(lambda: "up")

    Fiber(outer).switch()
    assert inner is not None
    explicit: Fiber[str] = Fiber(lambda: "up")
    middle = parked()
    explicit.parent = middle
    middle.switch()
    assert middle.done()
    assert explicit.switch() == "up"
    assert inner.switch() == "up"
    assert current() is main


@pytest.mark.parametrize("fails", [False, True])
def test_parent_that_was_never_started_passes_on_to_its_own_parent(fails: bool) -> None:
    log: list[Any] = []

    def body() -> str:
        if fails:
            raise LookupError("up")
        return "up"

    def grandparent() -> str:
        middle, inner = Fiber(int), Fiber(body)
        middle.parent = current()
        inner.parent = middle
        try:
            log.append(inner.switch())
        except LookupError as error:
            log.append(error.args[0])
        return "done"

    assert Fiber(grandparent).switch() == "done"
    assert log == ["up"]


def test_result_without_a_living_parent_goes_to_the_main_fiber() -> None:
    log: list[str] = []
    over: list[Fiber[Any]] = []
    run(lambda: over.append(current()))

    def starter() -> str:
        orphan: Fiber[str] = Fiber(lambda: "orphan's")
        orphan.parent = over[0]
        log.append(orphan.switch())
        return "starter's"

    fiber: Fiber[str] = Fiber(starter)
    assert fiber.switch() == "orphan's"
    assert fiber.switch("to the starter") == "starter's"
    assert log == ["to the starter"]


def test_chain_of_done_parents_passes_on_to_the_first_live_one() -> None:
    chain = [parked() for _ in range(10)]
    for child, parent in itertools.pairwise(chain):
        child.parent = parent
    last: Fiber[int] = Fiber(lambda: 5)
    last.parent = chain[0]
    for fiber in chain:
        fiber.parent = current()
        fiber.switch()
    assert last.switch() == 5


def test_parent_that_was_never_started_passes_on() -> None:
    ran = []
    fresh: Fiber[None] = Fiber(ran.append, (1,))
    fiber: Fiber[int] = Fiber(lambda: 9)
    fiber.parent = fresh
    assert fiber.switch() == 9
    assert not ran


def test_parent_is_released_when_the_fiber_ends() -> None:
    middle = parked()
    fiber: Fiber[int] = Fiber(int)
    fiber.parent = middle
    alive = weakref.ref(middle)
    middle.switch()
    fiber.switch()
    del middle
    assert alive() is None


def test_fiber_made_on_another_thread_takes_its_starter_as_parent() -> None:
    made: list[Fiber[str]] = []
    thread = threading.Thread(target=lambda: made.append(Fiber(lambda: "result")))
    thread.start()
    thread.join()
    assert made[0].switch() == "result"
    assert made[0].done()


def test_parent_set_on_another_thread_raises_when_the_fiber_starts() -> None:
    main = current()
    log = []

    def other() -> None:
        fiber: Fiber[int] = Fiber(int)
        fiber.parent = main
        try:
            fiber.switch()
        except FiberError as error:
            log.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(log) == 1
    assert "parent belongs to another thread" in log[0]


# ------------------------------------------------------------------ name, state, repr


def test_name_is_the_functions_by_default() -> None:
    def work() -> None: ...

    assert Fiber(work).name.endswith("work")
    assert "<lambda>" in Fiber(lambda: 1).name


def test_name_of_a_callable_object_is_its_type() -> None:
    class Work:
        def __call__(self) -> None: ...

    assert Fiber(Work()).name == "Work"


def test_name_of_a_partial_is_that_of_the_function() -> None:
    class Work:
        def __call__(self) -> int:
            return 1

    def work() -> None: ...

    assert Fiber(functools.partial(functools.partial(work))).name == work.__qualname__
    assert Fiber(functools.partial(Work())).name == "functools.partial"


def test_name_can_be_given_and_changed() -> None:
    fiber: Fiber[int] = Fiber(int, name="first")
    assert fiber.name == "first"
    fiber.name = "second"
    assert fiber.name == "second"


def test_name_survives_the_end() -> None:
    def work() -> None: ...

    fiber: Fiber[None] = Fiber(work)
    fiber.switch()
    assert fiber.name.endswith("work")


@pytest.mark.parametrize("name", [1, b"bytes", object()])
def test_name_that_is_no_string_raises(name: Any) -> None:
    with pytest.raises(TypeError):
        Fiber(int, name=name)
    fiber: Fiber[int] = Fiber(int)
    with pytest.raises(TypeError):
        fiber.name = name


def test_name_none_is_the_default() -> None:
    assert Fiber(int, name=None).name == "int"


def test_main_fiber_is_called_main() -> None:
    assert current().name == "main"


def test_state_follows_the_fibers_life() -> None:
    states = []
    main = current()

    def work() -> None:
        states.append(fiber.state)
        states.append(main.state)
        main.switch()

    fiber: Fiber[None] = Fiber(work)
    states.append(fiber.state)
    fiber.switch()
    states.append(fiber.state)
    states.append(main.state)
    fiber.switch()
    states.append(fiber.state)
    assert states == ["new", "running", "parked", "parked", "running", "done"]


@pytest.mark.parametrize("attribute", ["state", "frame", "outcome", "context"])
def test_read_only_attributes_cannot_be_set(attribute: str) -> None:
    with pytest.raises(AttributeError):
        setattr(Fiber(int), attribute, None)


def test_repr_tells_name_and_state() -> None:
    fiber: Fiber[Any] = Fiber(current().switch, name="reader")
    assert "'reader'" in repr(fiber)
    assert "new" in repr(fiber)
    assert "switch" in repr(fiber)  # the function, when it has another name
    fiber.switch()
    assert "parked" in repr(fiber)
    fiber.switch()
    assert "done" in repr(fiber)
    assert "running" in repr(current())


def test_repr_of_a_subclass_tells_its_name() -> None:
    class Reader(Fiber[int]):
        def run(self) -> int:
            return 1

    assert repr(Reader()).startswith("<Reader ") or "Reader" in repr(Reader())


def test_repr_survives_a_target_with_a_failing_repr() -> None:
    class Bad:
        def __call__(self) -> None: ...

        def __repr__(self) -> str:
            raise KeyError("repr")

    fiber: Fiber[None] = Fiber(Bad(), name="named")
    with pytest.raises(KeyError):
        repr(fiber)
    fiber.switch()
    assert "done" in repr(fiber)


# -------------------------------------------------------------------- frame, stack()


def outer_call(main: Fiber[Any]) -> Any:
    local_of_outer = 1
    return inner_call(main), local_of_outer


def inner_call(main: Fiber[Any]) -> Any:
    local_of_inner = 2
    return main.switch(), local_of_inner


def test_frame_of_a_suspended_fiber_is_where_it_stopped() -> None:
    fiber: Fiber[Any] = Fiber(outer_call, (current(),))
    assert fiber.frame is None
    fiber.switch()
    frame = fiber.frame
    assert isinstance(frame, types.FrameType)
    assert frame.f_code is inner_call.__code__
    assert frame.f_locals["local_of_inner"] == 2
    assert frame.f_back is not None
    assert frame.f_back.f_code is outer_call.__code__
    fiber.switch()
    assert fiber.frame is None


def test_frame_chain_ends_at_the_fibers_first_frame() -> None:
    fiber: Fiber[Any] = Fiber(outer_call, (current(),))
    fiber.switch()
    names = [frame.f_code.co_name for frame, _ in traceback.walk_stack(fiber.frame)]
    assert names == ["inner_call", "outer_call"]
    fiber.switch()


def test_frame_chain_inside_a_fiber_ends_at_its_first_frame() -> None:
    def look() -> list[str]:
        return [frame.f_code.co_name for frame, _ in traceback.walk_stack(sys._getframe())]

    names = Fiber(look).switch()
    assert names[-1] == "look"
    assert "test_frame_chain_inside_a_fiber_ends_at_its_first_frame" not in names


def test_frame_of_the_running_fiber_is_the_callers() -> None:
    frame = current().frame
    assert frame is not None
    assert frame.f_code.co_name == "test_frame_of_the_running_fiber_is_the_callers"


def test_frame_of_the_fiber_that_entered_this_one_is_where_it_waits() -> None:
    main = current()
    frame = Fiber(lambda: main.frame).switch()
    assert frame.f_code.co_name == "test_frame_of_the_fiber_that_entered_this_one_is_where_it_waits"


def test_frame_is_the_same_object_each_time() -> None:
    fiber: Fiber[Any] = Fiber(outer_call, (current(),))
    fiber.switch()
    assert fiber.frame is fiber.frame
    fiber.switch()


def test_frame_outlives_the_fiber() -> None:
    fiber: Fiber[Any] = Fiber(outer_call, (current(),))
    fiber.switch()
    frame = fiber.frame
    assert frame is not None
    back = frame.f_back
    fiber.switch()
    del fiber
    gc.collect()
    assert frame.f_locals["local_of_inner"] == 2
    assert back is not None
    assert back.f_locals["local_of_outer"] == 1
    assert frame.f_code.co_name == "inner_call"


def test_frame_of_a_fiber_suspended_in_a_c_function_as_target_is_none() -> None:
    assert parked().frame is None


def test_stack_lists_calls_outermost_first() -> None:
    fiber: Fiber[Any] = Fiber(outer_call, (current(),))
    fiber.switch()
    stack = fiber.stack()
    assert isinstance(stack, traceback.StackSummary)
    assert [entry.name for entry in stack] == ["outer_call", "inner_call"]
    assert stack[1].line == "return main.switch(), local_of_inner"
    assert all(entry.filename == __file__ for entry in stack)
    fiber.switch()


@pytest.mark.parametrize("make", [lambda: Fiber(int), finished], ids=["fresh", "finished"])
def test_stack_of_a_fiber_that_has_none_is_empty(make: Any) -> None:
    assert list(make().stack()) == []


# --------------------------------------------------------------------------- context


def test_context_is_a_copy_of_the_creators() -> None:
    token = NUMBER.set(1)
    fiber: Fiber[int] = Fiber(NUMBER.get)
    NUMBER.set(2)
    assert fiber.switch() == 1
    NUMBER.reset(token)


def test_context_changes_stay_in_the_fiber() -> None:
    def change() -> int:
        NUMBER.set(99)
        return NUMBER.get()

    assert Fiber(change).switch() == 99
    assert NUMBER.get() == 0


def test_context_is_kept_over_switches() -> None:
    main = current()

    def count(start: int) -> None:
        NUMBER.set(start)
        while True:
            main.switch(NUMBER.get())
            NUMBER.set(NUMBER.get() + 1)

    a: Fiber[None] = Fiber(count, (10,))
    b: Fiber[None] = Fiber(count, (20,))
    seen = [fiber.switch() for _ in range(3) for fiber in (a, b)]
    assert seen == [10, 20, 11, 21, 12, 22]
    assert NUMBER.get() == 0


def test_context_can_be_given() -> None:
    context = contextvars.copy_context()
    context.run(NUMBER.set, 7)
    fiber: Fiber[int] = Fiber(NUMBER.get, context=context)
    assert fiber.context is context
    assert fiber.switch() == 7


def test_context_can_be_shared_between_fibers() -> None:
    context = contextvars.Context()
    main = current()

    def write() -> None:
        NUMBER.set(5)
        main.switch()

    writer: Fiber[None] = Fiber(write, context=context)
    reader: Fiber[int] = Fiber(NUMBER.get, context=context)
    writer.switch()
    assert reader.switch() == 5
    assert context[NUMBER] == 5
    assert NUMBER.get() == 0


def test_context_of_a_suspended_fiber_can_be_read() -> None:
    main = current()

    def write() -> None:
        NUMBER.set(5)
        main.switch()

    fiber: Fiber[None] = Fiber(write)
    fiber.switch()
    assert fiber.context is not None
    assert fiber.context[NUMBER] == 5
    fiber.switch()


def test_context_of_a_finished_fiber_is_none() -> None:
    assert finished().context is None


def test_context_of_the_running_fiber_is_the_current_one() -> None:
    def look() -> bool:
        NUMBER.set(3)
        context = current().context
        return context is not None and context[NUMBER] == 3

    assert Fiber(look).switch()


def test_context_run_is_left_and_entered_again_by_switches() -> None:
    main = current()
    context = contextvars.Context()

    def inside() -> list[int]:
        NUMBER.set(1)
        main.switch()
        return [NUMBER.get()]

    fiber: Fiber[Any] = Fiber(lambda: [*context.run(inside), NUMBER.get()])
    fiber.switch()
    assert NUMBER.get() == 0
    assert fiber.switch() == [1, 0]


def test_context_token_is_reset_after_switches() -> None:
    main = current()

    def work() -> int:
        token = NUMBER.set(1)
        main.switch()
        NUMBER.reset(token)
        return NUMBER.get()

    fiber: Fiber[int] = Fiber(work)
    fiber.switch()
    NUMBER.set(NUMBER.get())
    assert fiber.switch() == 0


def test_context_variable_cache_is_not_stale_after_a_switch() -> None:
    """A ContextVar caches its last value by thread and context version."""
    main = current()

    def work(number: int) -> None:
        NUMBER.set(number)
        for _ in range(100):
            assert NUMBER.get() == number
            main.switch()
            assert NUMBER.get() == number

    fibers = [Fiber(work, (n,)) for n in range(1, 4)]
    for _ in range(101):
        for fiber in fibers:
            fiber.switch()
            assert NUMBER.get() == 0


@pytest.mark.parametrize("context", [1, "context", {}, object()])
def test_context_of_another_type_raises(context: Any) -> None:
    with pytest.raises(TypeError, match="Context"):
        Fiber(int, context=context)
